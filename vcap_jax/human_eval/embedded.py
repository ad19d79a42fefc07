"""A study of the embedded world: its scenes, captions of five writers of known skill or of any captioner, and
propositions whose true verdicts follow from the facts. For the demonstration, for rehearsing a study, and for tests.

What a comparison of two captions finds is worked out from their claims, not asked of a judge. As a judge would, it
overlooks some of a caption's claims, drawn at random, and says that the caption lacks them where another makes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vcap_jax.data.jsonl import read_objects
from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.protocol import Kind, Step1, Step2, Verdict, verdict_of
from vcap_jax.human_eval.records import Caption, Item, Proposition, Span, write_rows
from vcap_jax.human_eval.study import ITEMS, PROPOSITIONS, Settings, same_file, write_settings
from vcap_jax.system.files import replace_file
from vcap_jax.system.json_values import as_text
from vcap_jax.world.captions import WeakSettings, full_caption, weak_caption
from vcap_jax.world.dataset import render, sample_scene, write_mp4, write_png
from vcap_jax.world.facts import caption_claims, count_facts, scene_facts, scene_undecided
from vcap_jax.world.image_grammar import parse_image, say_image
from vcap_jax.world.scenes import ImageScene, Modality, Scene, VideoScene
from vcap_jax.world.sentences import PLAIN
from vcap_jax.world.slots import question_of
from vcap_jax.world.video_grammar import NO_SHOT, parse_video, say_shot, say_summary
from vcap_jax.world.vocabulary import Claim, Facts

TRUTH = "truth.jsonl"

OVERLOOKED = 0.15
"""The chance that a claim of a caption is overlooked there, be it right or wrong: drawn once for the claim, however
many other captions make it too. If any does, a proposition says that the caption lacks it.

How many propositions do not hold follows from how much captions share: with five writers' captions about a seventh,
with four about a fifth.
"""

WRITERS: Mapping[str, WeakSettings | None] = {
    "thorough": None,
    "careful": WeakSettings(omit_object=0.05, omit_fact=0.10, wrong_fact=0.02, invent_object=0.02),
    "brief": WeakSettings(omit_object=0.40, omit_fact=0.30, wrong_fact=0.01, invent_object=0.0),
    "careless": WeakSettings(omit_object=0.10, omit_fact=0.15, wrong_fact=0.20, invent_object=0.15),
    "inventive": WeakSettings(omit_object=0.20, omit_fact=0.20, wrong_fact=0.10, invent_object=0.70),
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
    overlooked: float = OVERLOOKED,
    writers: Sequence[str] = tuple(WRITERS),
) -> EmbeddedStudy:
    """Writes a study's folder, with ``truth.jsonl`` beside it.

    images, videos: how many scenes of each. overlooked: see ``OVERLOOKED``. The same arguments give the same files.
    """
    asked: list[tuple[Item, Scene, int]] = []
    kinds: list[tuple[Modality, int]] = [("image", images), ("video", videos)]
    for modality, count in kinds:
        for index in range(count):
            scene = sample_scene(modality, seed, index, "human-eval")
            asked.append((_write_item(folder, scene, modality, index, seed, writers), scene, index))
    write_settings(folder, settings)
    made = _write_propositions(folder, asked, seed, overlooked)
    write_rows(folder / ITEMS, made.items)  # last: where they are, a study is complete
    return made


def propose_from_facts(
    folder: Path,
    items: Iterable[Item],
    scenes: Mapping[str, Scene],
    files: Mapping[str, Path],
    *,
    seed: int = 0,
) -> EmbeddedStudy:
    """Writes the propositions of a study whose items are scenes, by their ids, and ``truth.jsonl`` beside them.

    files: the scenes' own pictures and videos. Raises StudyError for an item without a scene, or of another scene that
    has the same id.
    """
    asked = []
    for index, item in enumerate(items):
        if item.id not in scenes or item.id not in files:
            raise StudyError(
                f"item {item.id} is no scene of the embedded world: name a judge for its propositions"
            )
        if not same_file(folder / item.media, files[item.id]):
            raise StudyError(
                f'item "{item.id}": {item.media} is not {files[item.id]}, which the facts are of: give the manifest '
                "that the items were made of"
            )
        asked.append((item, scenes[item.id], index))
    return _write_propositions(folder, asked, seed, OVERLOOKED)


def _write_propositions(
    folder: Path, asked: Sequence[tuple[Item, Scene, int]], seed: int, overlooked: float
) -> EmbeddedStudy:
    """asked: items with their scenes, and the number that what is overlooked there is drawn with."""
    found: dict[Proposition, Verdict] = {}
    for item, scene, number in asked:
        found |= _propositions(item, scene, np.random.default_rng([seed, 77, number]), overlooked)
    truth = {one.prop_id: verdict for one, verdict in found.items()}
    rows = (
        {"prop_id": prop, "step1": verdict.step1, "step2": verdict.step2} for prop, verdict in truth.items()
    )
    replace_file(folder / TRUTH, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    write_rows(folder / PROPOSITIONS, found)
    return EmbeddedStudy(items=tuple(item for item, _, _ in asked), propositions=tuple(found), truth=truth)


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
        write_png(folder / media, render(scene))
    else:
        write_mp4(folder / media, render(scene))
    captions = []
    for place, writer in enumerate(writers):
        rng = np.random.default_rng([seed, 31, index, place])
        weak = WRITERS[writer]
        text = full_caption(scene, rng) if weak is None else weak_caption(scene, rng, weak)
        count = count_facts(scene, text)
        # Stands for a reward: what the facts say, seen through some noise.
        reward = count.coverage - count.hallucination + float(rng.normal(0, 0.12))
        captions.append(Caption(model=writer, text=text, reward=round(reward, 4)))
    row = {"id": media.stem, modality: media.as_posix(), "captions": captions}
    return Item.model_validate(row)


def _propositions(
    item: Item, scene: Scene, rng: np.random.Generator, overlooked: float
) -> dict[Proposition, Verdict]:
    """What comparing each ordered pair of captions finds, with the right verdicts.

    Nothing is asked about what the picture leaves open.
    """
    facts, undecided = scene_facts(scene), scene_undecided(scene)
    claims = {
        caption.model: [one for one in caption_claims(scene, caption.text) if one[0] not in undecided]
        for caption in item.captions
    }
    found: dict[Proposition, Verdict] = {}
    for model in item.models:
        said = {question_of(slot): (slot, value) for slot, value in claims[model]}
        unseen = {claim for claim in claims[model] if rng.random() < overlooked}
        raised: set[Claim] = set()
        for ref in item.models:
            if model == ref:
                continue
            for number, claim in enumerate(claims[ref]):
                if claim in raised:  # by another caption already: once is enough for people to decide
                    continue
                slot, value = claim
                other = said.get(question_of(slot))
                # Where the caption says it as well, only a judge that overlooks it would object.
                if other == claim and claim not in unseen:
                    continue
                raised.add(claim)
                against = other is not None and other != claim
                one = Proposition(
                    image_id=item.id,
                    prop_id=f"{item.id}/{model}/{ref}/{number}",
                    model=model,
                    ref_model=ref,
                    kind=Kind.INCONSISTENT if against else Kind.MISSING,
                    text=_words(scene, claim, other if against else None),
                    span=_span(scene, item.caption(model), other) if other is not None else None,
                    ref_span=_span(scene, item.caption(ref), claim),
                )
                if facts.get(slot) != value:
                    found[one] = Verdict(step1=Step1.INCONSISTENT)
                else:
                    step2 = Step2.HOLDING if other != claim else Step2.NOT_HOLDING
                    found[one] = Verdict(step1=Step1.CONSISTENT, step2=step2)
    return found


def _words(scene: Scene, claim: Claim, against: Claim | None) -> str:
    """A claim in English, and what a caption says against it: "In the image, the background is navy, but the caption
    says white." """
    slot, value = claim
    facts: Facts = {slot: value}
    if isinstance(scene, ImageScene):
        where, (sentence,) = "In the image", say_image(facts, PLAIN)
        # A statement stands alone: there is nothing before it that "them" could mean.
        sentence = sentence.replace(" of them ", " of the objects ")
    elif not isinstance(slot[0], int):
        where, (sentence,) = "In the video", say_summary(facts, PLAIN)
    else:
        where, (sentence,) = _when(scene, slot[0]), say_shot({slot[1:]: value}, PLAIN)
    if against is None:
        return f"{where}, {sentence}"
    # One thing that covers another is denied by the claim that the other covers it.
    other = against[1] if against[0] == slot else "the opposite"
    return f"{where}, {sentence.removesuffix('.')}, but the caption says {other}."


def _when(scene: VideoScene, shot: int) -> str:
    if shot == NO_SHOT:
        return "In the video at another time"
    start, end = scene.shots[shot].seconds
    return f"In the video from {start:.1f} to {end:.1f} seconds"


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
