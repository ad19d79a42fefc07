"""What a finished run leaves for the studies: its held-out captions, and the scenes that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vcap_jax.data.jsonl import read_objects
from vcap_jax.evals.config import HELDOUT
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.studies.results import ResultsError
from vcap_jax.system.json_values import as_list, as_text
from vcap_jax.world.dataset import read_scenes
from vcap_jax.world.scenes import Scene


def heldout_folder(run: Path) -> Path:
    """Where a run keeps the captions of its held-out scenes."""
    return RunFolder(run).evaluation(HELDOUT)


def heldout_captions(path: Path) -> dict[str, list[str]]:
    """Captions by scene, as ``vcap_jax.run.evaluation`` writes them.

    Raises ResultsError for a scene that could not be captioned: rows of fewer scenes than others have do not compare.
    """
    found: dict[str, list[str]] = {}
    for number, row in read_objects(path, "file of captions"):
        identity, failure = as_text(row.get("id"), f"{path}:{number}: id"), row.get("failure")
        if failure is not None:
            raise ResultsError(
                f"{path}:{number}: {identity} was not captioned ({failure}): remove {path.stem}.* beside that file and "
                "the run's summary.json, and go on with the study, which captions these scenes anew"
            )
        captions = as_list(row.get("captions"), f"{path}:{number}: captions")
        found[identity] = [as_text(one, f"{path}:{number}: caption") for one in captions]
    return found


class Worlds:
    """Scenes of a modality by split, read once. data: their folder."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._scenes: dict[str, Mapping[str, Scene]] = {}

    def __getitem__(self, split: str) -> Mapping[str, Scene]:
        if split not in self._scenes:
            self._scenes[split] = read_scenes(self._data / split)
        return self._scenes[split]
