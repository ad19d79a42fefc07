"""A run that brings its own pictures and no judge of its own is told that the embedded judge cannot see them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.bare_context import bare_context
from tests.data.media_files import write_video
from vcap_jax.data.config import DataConfig
from vcap_jax.data.manifest import Sample
from vcap_jax.parallel.processes import Processes
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.judge_domain import JudgeDomain, check_judge_domain, domain_warning, judge_domain
from vcap_jax.world.dataset import write_mp4, write_png
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.video_rendering import render_video
from vcap_jax.world.video_scenes import sample_video_scene

OWN = RunConfig(data=DataConfig(manifest="mine.jsonl"))


def pictures(folder: Path, world: int, others: int) -> list[Sample]:
    """The world's first, then a tall and a square picture in turn, of noise."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{index}.png" for index in range(world + others)]
    for index, path in enumerate(paths):
        if index < world:
            write_png(path, render_image(sample_image_scene(3, index)))
        else:
            size = (96, 96) if index % 2 else (120, 80)
            Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(path)
    return [Sample(id=path.stem, images=(path,)) for path in paths]


def ctx(config: RunConfig, root: Path, said: list[str], index: int = 0) -> RunContext:
    return bare_context(config, root, say=said.append, processes=Processes(index, 2))


def test_a_run_of_photographs_is_told_once_at_its_start_and_again_when_it_is_resumed(tmp_path: Path) -> None:
    samples, root, said = pictures(tmp_path, 0, 5), tmp_path / "run", []
    check_judge_domain(ctx(OWN, root, said), samples)
    line = (
        "These rewards mean nothing here: the embedded judge reads only pictures of the embedded world, and 5 of 5 "
        "samples are not its own. Set judge.urls to a vision-language model."
    )
    assert said == [f"warning: {line}"]
    assert domain_warning(OWN, RunFolder(root)) == line
    # A resumed run takes what was found: the files are not read again.
    for sample in samples:
        sample.images[0].unlink()
    check_judge_domain(ctx(OWN, root, said), samples)
    assert said == [f"warning: {line}"] * 2


def test_nothing_is_said_where_the_judge_can_see_or_is_another(tmp_path: Path) -> None:
    said: list[str] = []
    theirs = dataclasses.replace(OWN, judge=JudgeConfig(urls=("http://localhost:1",)))
    photographs = pictures(tmp_path, 0, 3)
    check_judge_domain(ctx(theirs, tmp_path / "theirs", said), photographs)
    check_judge_domain(ctx(RunConfig(), tmp_path / "scenes", said), photographs)
    check_judge_domain(ctx(OWN, tmp_path / "second", said, index=1), photographs)
    check_judge_domain(ctx(OWN, tmp_path / "world", said), pictures(tmp_path, 3, 0))
    assert said == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["world"]
    # A run that began with the embedded judge and goes on with another.
    check_judge_domain(ctx(OWN, tmp_path / "then", []), photographs)
    assert domain_warning(theirs, RunFolder(tmp_path / "then")) is None


@pytest.mark.slow
def test_some_of_many_samples_are_looked_at_all_over_the_manifest(tmp_path: Path) -> None:
    samples = pictures(tmp_path, 150, 50)
    domain = judge_domain(samples)
    assert (domain.samples, domain.looked_at) == (200, 64)
    assert domain.strange == 16
    assert domain.warning is not None
    assert domain.warning.startswith("Some of these rewards mean nothing here")
    assert "16 of the 64 samples looked at (there are 200) are not its own" in domain.warning


def test_clips_are_looked_at_and_unreadable_files_left_out(tmp_path: Path) -> None:
    write_mp4(tmp_path / "world.mp4", render_video(sample_video_scene(3, 0)))
    write_video(tmp_path / "square.mp4", 20, size=(64, 64))
    write_video(tmp_path / "wide.mp4", 20)
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    names = ("world", "square", "wide", "broken", "absent")
    domain = judge_domain([Sample(id=name, video=tmp_path / f"{name}.mp4") for name in names])
    assert domain == JudgeDomain(samples=5, looked_at=3, strange=2)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    nothing = judge_domain([Sample(id=n, images=(tmp_path / f"{n}.png",)) for n in ("broken", "absent")])
    assert nothing == JudgeDomain(samples=2, looked_at=0, strange=0)
    assert nothing.warning is None


def test_what_was_found_is_kept_in_the_run_folder(tmp_path: Path) -> None:
    check_judge_domain(ctx(OWN, tmp_path / "run", []), pictures(tmp_path, 4, 0))
    assert json.loads((tmp_path / "run" / "judge_domain.json").read_text()) == {
        "samples": 4,
        "looked_at": 4,
        "strange": 0,
    }
