"""What a finished run leaves for the studies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vcap_jax.studies.results import ResultsError
from vcap_jax.studies.run_files import heldout_captions


def test_a_scene_that_was_not_captioned_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trained.jsonl"
    rows = [{"id": "a", "captions": ["A cat.", "A dog."]}, {"id": "b", "failure": "not readable"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    assert heldout_captions(path) == {"a": ["A cat.", "A dog."]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ResultsError, match=r"trained\.jsonl:2: b was not captioned \(not readable\): remove"):
        heldout_captions(path)
