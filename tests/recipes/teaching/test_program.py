"""The whole course, as short as it can be: what it leaves, and how it goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from vcap_jax.export.hugging_face import write_new
from vcap_jax.recipes.teaching import program
from vcap_jax.recipes.teaching.stages import Course
from vcap_jax.world.backbone import backbone_config

pytestmark = pytest.mark.long

COURSE = Course(
    modalities=("image", "video"),
    pictures=8,
    clips=8,
    check=4,
    look_steps=2,
    look_pictures=4,
    look_clips=2,
    answer_steps=4,
    first_steps=2,
    scenes=4,
    questions=2,
    habit_steps=4,
)


def save(model, processor, folder: Path) -> None:
    write_new(folder, model, backbone_config(processor.tokenizer), processor, dtype=jnp.float32)


def taught(work: Path, out: Path, course: Course = COURSE) -> tuple[dict, list[str]]:
    told: list[str] = []
    return program.teach(course, work, out, save=save, commit="abc", say=told.append), told


def test_a_course_is_resumed_where_it_was_and_ends_alike(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    card, told = taught(work, out)
    assert json.loads((out / program.CARD).read_text()) == json.loads(json.dumps(card))
    assert card["commit"] == "abc"
    for modality in ("image", "video"):
        for stage, kind in (("answer", "answers"), ("habit", "captions")):
            row = card["stated"][stage][modality][kind]
            assert row["texts"] > 0
            assert row["largest_share"] <= 0.5
        assert set(card[modality]) == {"sees", "greedy", "sampled"}
    assert not any("done before" in line for line in told)

    # What the last stage left is lost: it alone is taught again, to the same weights but for rounding.
    whole = load_file(out / "model.safetensors")
    (work / "habit" / program.RECORD).unlink()
    again, told = taught(work, tmp_path / "again")
    assert [line.split(":")[0] for line in told if "done before" in line] == ["look", "answer"]
    for name, values in load_file(tmp_path / "again" / "model.safetensors").items():
        np.testing.assert_allclose(values, whole[name], atol=1e-5)
    assert again["stated"] == card["stated"]

    with pytest.raises(program.TeachingError, match=r"taught by another course \(peak differ\)"):
        taught(work, out, replace(COURSE, peak=0.1))
    with pytest.raises(
        program.TeachingError, match=r"habit was taught by another course \(habit_peak differ\)"
    ):
        taught(work, out, replace(COURSE, habit_peak=0.1))
