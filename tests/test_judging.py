"""What a run adds to the configured reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vcap_jax.config import RunConfig, WorldConfig
from vcap_jax.configuration import load_config
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.distributed import Processes
from vcap_jax.embedded import prepare_embedded_data
from vcap_jax.judging import reward_session, reward_settings
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.questions import read_questions
from vcap_jax.workplace import Workplace


def place_of(index: int, config: RunConfig, root: Path) -> Workplace:
    """Of one of two processes."""
    nothing: Any = None
    return Workplace(
        *(config, RunFolder(root), *[nothing] * 4), say=lambda _: None, processes=Processes(index, 2)
    )


def test_each_process_writes_a_file_of_questions_of_its_own(tmp_path: Path) -> None:
    """In containers processes of several hosts have the same number, by which a half-written file is named."""
    config = load_config(RunConfig, [], ["reward={family: vqa, vqa: {about: scene}}"])
    world = prepare_embedded_data(tmp_path / "data", "image", WorldConfig(train_scenes=3, heldout_scenes=1))
    found = []
    for index in range(2):
        path = reward_settings(place_of(index, config, tmp_path / "run"), None, world).vqa.questions
        assert path is not None
        found.append((path, read_questions(path)))
    assert found[0][0] != found[1][0]
    assert found[0][1] == found[1][1]
    assert list(found[0][1]) == list(world.train_scenes)


def test_each_process_keeps_judgements_of_its_own(tmp_path: Path) -> None:
    pool = ReferencePool(PoolEntry(id=name, references=(f"A {name} dog.",)) for name in ("red", "blue"))
    for named, files in (
        ("null", ["run/judgements.sqlite", "run/judgements-1.sqlite"]),
        (str(tmp_path / "all" / "mine.db"), ["all/mine.db", "all/mine-1.db"]),
    ):
        config = load_config(RunConfig, [], ["reward.family=imitation", f"judge.store={named}"])
        for index, file in enumerate(files):
            assert not (tmp_path / file).exists()
            with reward_session(place_of(index, config, tmp_path / "run"), config.reward, pool):
                assert (tmp_path / file).exists()
