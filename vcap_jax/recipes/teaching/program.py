"""The whole course: from random weights to a policy that sees, and captions by its habit; with its card."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp

from vcap_jax.models.family import CaptionModel, Processor
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.recipes.teaching.corpus import Corpus
from vcap_jax.recipes.teaching.drawn import SEED
from vcap_jax.recipes.teaching.probing import GREEDY, SAMPLED, captions, told
from vcap_jax.recipes.teaching.pupil import Pupil, scenery
from vcap_jax.recipes.teaching.seeing import seeing
from vcap_jax.recipes.teaching.stages import STAGES, Course, Material, Materials, Say, answer, habit, look
from vcap_jax.run.model_loading import load_model
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import replace_file
from vcap_jax.system.json_values import JsonDict, as_object, read_json_object
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tiny_policy import Prompts, new_policy, new_processor
from vcap_jax.world.tokenizer import train_tokenizer

CARD = "card.json"
RECORD = "stage.json"
"""Beside the policy after a stage: how it came about."""
SPLIT, CHECK_SPLIT = "teaching", "teaching-check"
"""Of scenes; those of runs are of other splits."""
_STAGES = dict(zip(STAGES, (look, answer, habit), strict=True))

Save = Callable[[CaptionModel, Processor, Path], None]
"""Writes a policy into a new folder, complete."""


class TeachingError(VCapError):
    """A course that cannot go on where another has begun."""


def teach(course: Course, work: Path, out: Path, *, save: Save, commit: str, say: Say = print) -> JsonDict:
    """Teaches a policy and writes it to ``out``, in bfloat16, with its card; returns the card.

    work: a folder for pictures and for the policy after each stage; the stages that it holds already are not taught
    again. save: see ``Save``. commit: of this program, for the card.
    Raises TeachingError if the stages in ``work`` are of another course, TooMuchStated (a fault of this program) if a
    text would state more than half of its scene's facts.
    """
    begin = time.monotonic()
    qwen = new_processor(train_tokenizer())
    prompts = {modality: Prompts(qwen, modality) for modality in course.modalities}
    processor = cast(Processor, qwen)  # as it is known outside its family
    materials = _materials(course, prompts, work / "pictures")
    say(f"scenes are drawn: {time.monotonic() - begin:.0f} s")
    pupil = Pupil.of(new_policy(qwen, course.seed), processor, prompts)
    say(f"{sum(leaf.size for leaf in jax.tree.leaves((pupil.visual, pupil.rest))):,} parameters")
    records: dict[str, JsonDict] = {}
    for stage in STAGES:
        folder = work / stage
        if (folder / RECORD).exists():
            records[stage] = _record(folder / RECORD, course.until(stage))
            pupil = Pupil.of(_loaded(folder), processor, prompts)
            say(f"{stage}: done before, in {records[stage]['seconds']} s")
            continue
        begin = time.monotonic()
        pupil = _STAGES[stage](pupil, materials, course, say)
        save(pupil.model(), processor, folder)
        records[stage] = {
            "course": asdict(course),
            "seconds": round(time.monotonic() - begin),
            "stated": {name: material.corpus.rows() for name, material in materials.items()},
        }
        _write(folder / RECORD, records[stage])
        for modality, material in materials.items():
            material.corpus.forget()
            if stage != "look":
                shares = seeing(pupil, modality, material.check).items()
                told_of = " ".join(f"{kind} {share:.3f}" for kind, share in shares)
                say(f"{stage}, unseen {modality}s: {told_of}")
    card = _card(pupil, course, materials, records, commit)
    save(pupil.model(), processor, out)
    _write(out / CARD, card)
    return card


def _materials(course: Course, prompts: dict[Modality, Prompts], kept: Path) -> Materials:
    made = {}
    for modality, own in prompts.items():
        count = course.pictures if modality == "image" else course.clips
        shown = scenery(own, SPLIT, count, kept)
        made[modality] = Material(
            shown=shown,
            check=scenery(own, CHECK_SPLIT, course.check, kept),
            corpus=Corpus(shown.scenes),
        )
    return made


def _loaded(folder: Path) -> CaptionModel:
    return load_model(
        folder,
        placement=Placement.build(MeshConfig()),
        dtype=jnp.float32,
        param_dtype=jnp.float32,
        attention_name="dense",
    )


def _record(file: Path, course: JsonDict) -> JsonDict:
    record = read_json_object(file)
    taught, asked = as_object(record["course"], f"{file}: course"), json.loads(json.dumps(course))
    other = sorted(key for key in asked if taught.get(key) != asked[key])
    if other:
        raise TeachingError(
            f"{file.parent} was taught by another course ({', '.join(other)} differ): give another folder, or remove it"
        )
    return record


def _card(
    pupil: Pupil, course: Course, materials: Materials, records: dict[str, JsonDict], commit: str
) -> JsonDict:
    """What a user should know of the policy, in figures."""
    card: JsonDict = {
        "commit": commit,
        "jax": jax.__version__,
        "seed": course.seed,
        "scenes": {"seed": SEED, "split": SPLIT, "check": CHECK_SPLIT},
        "course": asdict(course),
        "seconds": {stage: record["seconds"] for stage, record in records.items()},
        "stated": {stage: record["stated"] for stage, record in records.items()},
    }
    for modality, material in materials.items():
        card[modality] = {
            "sees": {
                kind: round(share, 4) for kind, share in seeing(pupil, modality, material.check).items()
            },
            "greedy": told(material.check, captions(pupil, modality, material.check, GREEDY)),
            "sampled": told(material.check, captions(pupil, modality, material.check, SAMPLED, each=4)),
        }
    return card


def _write(file: Path, row: JsonDict) -> None:
    replace_file(file, (json.dumps(row, indent=1) + "\n").encode())
