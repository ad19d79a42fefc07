"""Which groups of a run are shown, and that a resumed run shows the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.bare_context import bare_context
from tests.run.test_judge_domain import pictures
from vcap_jax.data.config import DataConfig
from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings, encode_picture
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.samples import SampleRows
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.run.config import LoggingConfig, RunConfig
from vcap_jax.run.judge_domain import check_judge_domain
from vcap_jax.run.observers import RunObserver, Shown, frames_of

CONFIG = RunConfig(logging=LoggingConfig(samples_every=10, samples_per_step=2, plot_every=1000))


def report(step: int, identities: Iterable[str]) -> Any:
    """Of a step with a group of each of the samples, in this order."""
    records = []
    for index, name in enumerate(identities):
        picture = encode_picture(np.full((8, 8, 3), ord(name), np.uint8), JudgeMediaSettings())
        caption = SimpleNamespace(reward=step / 100, components={}, notes={}, failure=None)
        records.append(
            SimpleNamespace(
                sample_id=name,
                index=index,
                captions=(f"{name} at step {step} <i>",),
                truncated=np.zeros(1, bool),
                reference="weak",
                scores=SimpleNamespace(candidates=(caption,), window=None, full_reward=1.0),
                example=SimpleNamespace(
                    media=EncodedMedia(modality="image", duration=0.0, pictures=(picture,)),
                    sample=SimpleNamespace(prompt=None),
                ),
            )
        )
    advantages = SimpleNamespace(advantages=np.zeros((len(records), 1)))
    return SimpleNamespace(step=step, records=tuple(records), advantages=advantages)


def unexpected(text: str) -> None:
    raise AssertionError(text)


def observe(folder: Path, steps: range, batches: str, total: int, config: RunConfig = CONFIG) -> None:
    """A start of a run that goes through ``steps``, whose step s is of the samples ``batches`` turned by s."""
    observer = RunObserver(config, RunFolder(folder), None, done=steps.start - 1, total=total, say=unexpected)
    for step in steps:
        turned = step % len(batches)
        observer(report(step, batches[turned:] + batches[:turned]))
    observer.close()


def shown(folder: Path) -> list[tuple[int, str]]:
    return [(sample.step, sample.id) for sample in SampleRows(folder / "samples.jsonl").update()]


def test_a_trial_of_two_steps_shows_its_last_step_and_other_samples_there(tmp_path: Path) -> None:
    observe(tmp_path, range(1, 3), "abcde", total=2)
    steps, names = zip(*shown(tmp_path), strict=True)
    assert steps == (1, 1, 2, 2)
    assert len(set(names)) == 4


def test_one_clip_is_shown_once_a_step(tmp_path: Path) -> None:
    observe(tmp_path, range(1, 3), "aaaa", total=2)
    assert shown(tmp_path) == [(1, "a"), (2, "a")]


def test_samples_not_yet_shown_come_first_then_those_shown_longest_ago() -> None:
    shown = Shown()
    assert shown.choose("abcab", 2) == [0, 1]
    for name, step in (("a", 1), ("b", 1), ("c", 10), ("b", 20)):
        shown.add(name, step)
    assert shown.choose("bcad", 4) == [3, 2, 1, 0]
    assert shown.choose("bbb", 2) == [0]
    assert shown.choose("abc", 0) == []


def test_a_caption_is_shown_with_its_own_advantage_and_end(tmp_path: Path) -> None:
    told = report(1, "ab")
    of_b = told.records[1]
    of_b.captions, of_b.truncated = ("one", "other"), np.array([False, True])
    of_b.scores.candidates *= 2
    told.advantages.advantages = np.array([[0.0, 0.25], [0.5, -0.5]])
    observer = RunObserver(CONFIG, RunFolder(tmp_path), None, done=0, total=9, say=unexpected)
    a, b = observer(told)
    assert [candidate.advantage for candidate in (*a.candidates, *b.candidates)] == [0.0, 0.5, -0.5]
    assert [candidate.truncated for candidate in b.candidates] == [False, True]


def test_every_so_many_steps_keeps_its_meaning(tmp_path: Path) -> None:
    observe(tmp_path, range(1, 26), "abcdefgh", total=25)
    assert sorted({step for step, _ in shown(tmp_path)}) == [1, 10, 20, 25]
    names = [name for _, name in shown(tmp_path)]
    assert sorted(names) == list("abcdefgh")


def test_a_resumed_run_shows_what_one_left_alone_does(tmp_path: Path) -> None:
    """Resumed from a checkpoint before what it had logged last, and once more."""
    # Pages are titled by the last two parts of a path.
    alone, resumed = (tmp_path / name / "runs" / "mine" for name in ("alone", "resumed"))
    observe(alone, range(1, 31), "abcde", total=30)
    for steps in (range(1, 15), range(9, 22), range(21, 31)):
        observe(resumed, steps, "abcde", total=30)
    for name in ("samples.jsonl", "samples.html"):
        assert (resumed / name).read_bytes() == (alone / name).read_bytes(), name
    page = (alone / "samples.html").read_text()
    assert "Since this sample was first shown" in page
    assert "&lt;i&gt;" in page
    assert "<i>" not in page


def test_the_page_is_drawn_again_without_reading_all_samples_again(tmp_path: Path) -> None:
    drawn = dataclasses.replace(CONFIG, logging=dataclasses.replace(CONFIG.logging, samples_every=1))
    observer = RunObserver(drawn, RunFolder(tmp_path), None, done=0, total=200, say=unexpected)
    for step in range(1, 200):
        observer(report(step, "abcde"))
    observer.close()
    rows = SampleRows(tmp_path / "samples.jsonl").update()
    unshown = [row for row in rows if f"step {row.step}<" not in (tmp_path / "samples.html").read_text()]
    assert len(unshown) > 100
    with (tmp_path / "samples.jsonl").open("r+b") as file:
        for row in unshown:
            file.seek(row.begin)
            file.write(b"gone")
    observer.close()
    assert "step 199<" in (tmp_path / "samples.html").read_text()


def test_what_cannot_be_drawn_is_told_and_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps since the last checkpoint would be lost with the run."""

    def broken(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("vcap_jax.run.observers.plot_run", broken)
    drawing = dataclasses.replace(CONFIG, logging=dataclasses.replace(CONFIG.logging, plot_every=1))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    said: list[str] = []
    observer = RunObserver(drawing, RunFolder(tmp_path), None, done=0, total=9, say=said.append)
    assert [sample.id for sample in observer(report(1, "abc"))] == ["a", "b"]
    assert said == [f"{tmp_path / 'plots.png'} could not be drawn: RuntimeError: no font. All else goes on"]
    assert "a at step 1" in (tmp_path / "samples.html").read_text()


def test_the_page_of_a_run_of_photographs_says_that_its_rewards_mean_nothing(tmp_path: Path) -> None:
    own = dataclasses.replace(CONFIG, data=DataConfig(manifest="mine.jsonl"))
    folder = RunFolder(tmp_path / "run")
    check_judge_domain(bare_context(own, folder.root), pictures(tmp_path, 0, 3))
    observe(folder.root, range(1, 3), "abc", 2, own)
    assert "These rewards mean nothing here" in folder.samples_page.read_text()
    # With a judge of its own there is nothing to warn of.
    observe(
        folder.root, range(3, 3), "abc", 2, dataclasses.replace(own, judge=JudgeConfig(urls=("http://x",)))
    )
    assert "These rewards mean nothing" not in folder.samples_page.read_text()


def test_frames_of_a_clip_are_smaller_than_a_picture_alone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (360, 640, 3), np.uint8)
    picture = encode_picture(pixels, JudgeMediaSettings())

    def shown(count: int) -> list[tuple[int, int]]:
        media = EncodedMedia(modality="image", duration=0.0, pictures=(picture,) * count)
        return [(frame.width, frame.height) for frame in frames_of(media)]

    assert shown(1) == [(512, 288)]
    assert shown(2) == [(288, 162)] * 2
    assert len(shown(40)) == 16
