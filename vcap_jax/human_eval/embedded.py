"""A study of the embedded world: its scenes, captions of five writers of known skill, and propositions whose true
verdicts follow from the facts. For the demonstration, for rehearsing a study, and for tests.

What a comparison of two captions finds is worked out from their claims, not asked of a judge; a share of propositions
is misjudged on purpose, as a judge's would be: what they say of the caption does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vcap_jax.data.jsonl import read_objects
from vcap_jax.human_eval.protocol import Kind, Step1, Step2, Verdict, verdict_of
from vcap_jax.human_eval.records import Caption, Item, Proposition, Span, write_rows
from vcap_jax.human_eval.study import ITEMS, PROPOSITIONS, Settings, write_settings
from vcap_jax.report.step_log import replace_file
from vcap_jax.system.json_values import as_text
from vcap_jax.world.captions import WeakSettings, full_caption, weak_caption
from vcap_jax.world.dataset import write_mp4, write_png
from vcap_jax.world.facts import Claim, Slot, caption_claims, count_facts, scene_facts
from vcap_jax.world.grammar import BACKGROUND, parse_image
from vcap_jax.world.rendering import render_image, render_video
from vcap_jax.world.scenes import ImageScene, Modality, Scene, sample_scene
from vcap_jax.world.video_grammar import CUT, parse_video

TRUTH = "truth.jsonl"

WRITERS: Mapping[str, WeakSettings | None] = {
    "thorough": None,
    "careful": WeakSettings(omit_object=0.05, omit_attribute=0.10, wrong_attribute=0.02, invent_object=0.02),
    "brief": WeakSettings(omit_object=0.40, omit_attribute=0.30, wrong_attribute=0.01, invent_object=0.0),
    "careless": WeakSettings(omit_object=0.10, omit_attribute=0.15, wrong_attribute=0.20, invent_object=0.15),
    "inventive": WeakSettings(
        omit_object=0.20, omit_attribute=0.20, wrong_attribute=0.10, invent_object=0.70
    ),
}
"""How the writers' captions differ from full ones; None says everything and nothing else."""


@dataclass(frozen=True, kw_only=True)
class EmbeddedStudy:
    """items, propositions: as in the files. truth: the right verdict of each proposition, by its id."""

    items: tuple[Item, ...]
    propositions: tuple[Proposition, ...]
    truth: Mapping[str, Verdict]


def write_embedded_study(
    folder: Path,
    *,
    images: int,
    videos: int = 0,
    settings: Settings,
    seed: int = 0,
    misjudged: float = 0.15,
    writers: Sequence[str] = tuple(WRITERS),
) -> EmbeddedStudy:
    """Writes a study's folder, with ``truth.jsonl`` beside it.

    images, videos: how many scenes of each. misjudged: share of propositions that do not hold of the caption. The same
    arguments give the same files.
    """
    items: list[Item] = []
    propositions: list[Proposition] = []
    truth: dict[str, Verdict] = {}
    kinds: list[tuple[Modality, int]] = [("image", images), ("video", videos)]
    for modality, count in kinds:
        for index in range(count):
            scene = sample_scene(modality, seed, index, "human-eval")
            item = _write_item(folder, scene, modality, index, seed, writers)
            items.append(item)
            found = _propositions(item, scene, np.random.default_rng([seed, 77, index]), misjudged)
            propositions += found
            truth |= {one.prop_id: verdict for one, verdict in found.items()}
    write_rows(folder / ITEMS, items)
    write_rows(folder / PROPOSITIONS, propositions)
    write_settings(folder, settings)
    rows = (
        {"prop_id": prop, "step1": verdict.step1, "step2": verdict.step2} for prop, verdict in truth.items()
    )
    replace_file(folder / TRUTH, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    return EmbeddedStudy(items=tuple(items), propositions=tuple(propositions), truth=truth)


def read_truth(folder: Path) -> dict[str, Verdict]:
    """The right verdicts of a study that was written here. Raises ManifestError."""
    rows = read_objects(folder / TRUTH, "file of right verdicts")
    truth: dict[str, Verdict] = {}
    for number, row in rows:
        where = f"{folder / TRUTH}:{number}"
        one, two = (None if row[step] is None else as_text(row[step], where) for step in ("step1", "step2"))
        truth[as_text(row["prop_id"], f"{where}: prop_id")] = verdict_of(one, two, "")
    return truth


def _write_item(
    folder: Path, scene: Scene, modality: Modality, index: int, seed: int, writers: Sequence[str]
) -> Item:
    media = Path("media") / f"{modality}-{index:04d}.{'png' if modality == 'image' else 'mp4'}"
    (folder / media).parent.mkdir(parents=True, exist_ok=True)
    if isinstance(scene, ImageScene):
        write_png(folder / media, render_image(scene))
    else:
        write_mp4(folder / media, render_video(scene))
    captions = []
    for place, writer in enumerate(writers):
        rng = np.random.default_rng([seed, 31, index, place])
        weak = WRITERS[writer]
        text = full_caption(scene, rng) if weak is None else weak_caption(scene, rng, weak)
        count = count_facts(scene, text)
        # Stands for a reward: what the facts say, seen through some noise.
        reward = count.coverage - count.hallucination + float(rng.normal(0, 0.12))
        captions.append(Caption(model=writer, text=text, reward=round(reward, 4)))
    name = f"{modality}-{index:04d}"
    return Item(
        id=name,
        image=media.as_posix() if modality == "image" else None,
        video=media.as_posix() if modality == "video" else None,
        captions=tuple(captions),
    )


def _propositions(
    item: Item, scene: Scene, rng: np.random.Generator, misjudged: float
) -> dict[Proposition, Verdict]:
    """What comparing each ordered pair of captions finds, with the right verdicts."""
    facts = scene_facts(scene)
    claims = {caption.model: caption_claims(scene, caption.text) for caption in item.captions}
    found: dict[Proposition, Verdict] = {}
    for model in item.models:
        said = dict(claims[model])
        raised: set[Claim] = set()
        for ref in item.models:
            if model == ref:
                continue
            for number, (slot, value) in enumerate(claims[ref]):
                if (slot, value) in raised:  # by another caption already: once is enough for people to decide
                    continue
                true = facts.get(slot) == value
                other = said.get(slot)
                if other == value:
                    # The caption says it as well: only a judge that misreads it would object.
                    if rng.random() >= misjudged:
                        continue
                    kind, text, holds = (
                        Kind.MISSING,
                        f"The {_scene_word(scene)} shows {_words(slot, value)}.",
                        False,
                    )
                elif other is None:
                    kind, text, holds = (
                        Kind.MISSING,
                        f"The {_scene_word(scene)} shows {_words(slot, value)}.",
                        True,
                    )
                else:
                    kind, holds = Kind.INCONSISTENT, True
                    text = (
                        f"The {_scene_word(scene)} actually shows {_words(slot, value)}, but the caption says "
                        f"{other}."
                    )
                raised.add((slot, value))
                one = Proposition(
                    image_id=item.id,
                    prop_id=f"{item.id}/{model}/{ref}/{number}",
                    model=model,
                    ref_model=ref,
                    kind=kind,
                    text=text,
                    span=_span(scene, item.caption(model), (slot, other)) if other is not None else None,
                    ref_span=_span(scene, item.caption(ref), (slot, value)),
                )
                if not true:
                    found[one] = Verdict(step1=Step1.INCONSISTENT)
                else:
                    step2 = Step2.HOLDING if holds else Step2.NOT_HOLDING
                    found[one] = Verdict(step1=Step1.CONSISTENT, step2=step2)
    return found


def _scene_word(scene: Scene) -> str:
    return "image" if isinstance(scene, ImageScene) else "video"


def _words(slot: Slot, value: str) -> str:
    """A claim in English: "the colour of the object at the top left to be red"."""
    if slot == BACKGROUND:
        return f"a {value} background"
    if slot == CUT:
        return f"a change of scene at {value} seconds"
    *shot, place, attribute = slot
    at = f"at the {place}"
    if shot:
        at += " before the cut" if shot[0] == 0 else " after the cut" if shot[0] == 1 else " at another time"
    match attribute:
        case "shape":
            return f"{'an' if value[0] in 'aeiou' else 'a'} {value} {at}"
        case "motion":
            return f"that the object {at} {'stays still' if value == 'still' else f'moves {value}'}"
        case _:
            return f"{'an' if value[0] in 'aeiou' else 'a'} {value} object {at}"


def _span(scene: Scene, caption: str, claim: Claim) -> Span | None:
    """The sentence of a caption that makes a claim; None where it cannot be found again."""
    slot, value = claim
    if isinstance(scene, ImageScene):
        sentences = parse_image(caption).sentences
        plain: Claim = (slot, value)
    else:
        sentences = parse_video(caption).sentences
        # A sentence of a segment does not say which shot it is about.
        plain = (slot[1:], value) if isinstance(slot[0], int) else (slot, value)
    at = 0
    for sentence in sentences:
        start = caption.find(sentence.text, at)
        if start < 0:
            return None
        at = start + len(sentence.text)
        if plain in sentence.claims:
            return Span(start=start, end=at, text=sentence.text)
    return None
