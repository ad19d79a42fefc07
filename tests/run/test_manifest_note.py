"""A run goes on with the samples it began with, or says what has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.manifest_note import MANIFEST_NOTE, remember_samples

ROWS = [Sample(id=name, images=(Path(f"old/{name}.png"),), references=("A cat.",)) for name in "abcd"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    begun = RunFolder(tmp_path)
    remember_samples(begun, "mine.jsonl", ROWS[:3], ROWS[3:])
    return begun


def test_files_may_move_and_references_have_a_note_of_their_own(folder: RunFolder) -> None:
    moved = [replace(row, images=(Path(f"new/{row.id}.png"),), references=()) for row in ROWS]
    remember_samples(folder, "mine.jsonl", moved[:3], moved[3:])


@pytest.mark.parametrize(
    ("training", "heldout", "told"),
    [
        (
            [*ROWS[:2], replace(ROWS[2], images=(Path("old/x.png"),))],
            ROWS[3:],
            "to train on it has other rows",
        ),
        ([*ROWS[:2], replace(ROWS[2], prompt="What?")], ROWS[3:], "to train on it has other rows"),
        (ROWS[2::-1], ROWS[3:], "the same 3 in another order"),
        (ROWS[:2], ROWS[3:], "to train on it has 2 samples, and had 3"),
        (ROWS[:3], [replace(ROWS[3], images=(Path("old/x.png"),))], "held out it has other rows"),
        (ROWS[:3], [], "held out it has 0 samples, and had 1"),
    ],
)
def test_other_samples_are_refused(
    folder: RunFolder, training: list[Sample], heldout: list[Sample], told: str
) -> None:
    with pytest.raises(ConfigError, match=rf"mine\.jsonl is not what the run .* began with: .*{told}"):
        remember_samples(folder, "mine.jsonl", training, heldout)


def test_scenes_of_the_embedded_world_need_no_note(tmp_path: Path) -> None:
    remember_samples(RunFolder(tmp_path), None, ROWS, [])
    assert not (tmp_path / MANIFEST_NOTE).exists()
