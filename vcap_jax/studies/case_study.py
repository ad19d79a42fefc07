"""One held-out scene through base, e1 and e2: the captions with their facts marked true, false and missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vcap_jax.data.references import ReferencePool
from vcap_jax.data.videos import index_video, read_frames
from vcap_jax.report.samples import SampleFact, SampleFrame, picture
from vcap_jax.report.world_facts import fact_list
from vcap_jax.studies.results import CaseText, heldout_captions, heldout_folder
from vcap_jax.world.facts import count_facts
from vcap_jax.world.scenes import Modality, Scene
from vcap_jax.world.splits import EmbeddedData


@dataclass(frozen=True, kw_only=True)
class Told:
    """One caption of the scene. who: wrote it, in words."""

    who: str
    caption: str
    facts: tuple[SampleFact, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """frames: of the picture or clip, with their times in seconds. captions: from the base on."""

    modality: Modality
    scene: str
    frames: tuple[SampleFrame, ...]
    captions: tuple[Told, ...]


def case_text(e1: Path, e2: Path, scenes: Mapping[str, Scene]) -> CaseText:
    """What base, e1 and e2 say of one held-out scene. e1, e2: run folders of one seed.

    The scene is the one with the most facts among those whose reference has both a false claim and a missing fact, the
    first of several; of eight captions the first is shown. Nothing is chosen by what e1 or e2 made of it.
    """
    references = ReferencePool.read(heldout_folder(e1) / "references.jsonl").texts()
    identity = choose_scene(scenes, references)
    captions = [("reference of e1, by the base", references[identity][0])]
    for who, run, name in (("base", e1, "start"), ("VCap e1", e1, "trained"), ("VCap e2", e2, "trained")):
        captions.append((who, heldout_captions(heldout_folder(run) / f"{name}.jsonl")[identity][0]))
    return CaseText(scene=identity, captions=tuple(captions))


def show_case(text: CaseText, modality: Modality, data: EmbeddedData) -> Case:
    """The case with its pictures and facts. data: the world of its runs."""
    scene = data.heldout_scenes[text.scene]
    media = data.heldout.parent / f"{modality}s"
    return Case(
        modality=modality,
        scene=text.scene,
        frames=_frames(media, text.scene, modality),
        captions=tuple(
            Told(who=who, caption=caption, facts=fact_list(scene, caption)) for who, caption in text.captions
        ),
    )


def choose_scene(scenes: Mapping[str, Scene], references: Mapping[str, Sequence[str]]) -> str:
    """See ``case_text``; if no reference has both kinds of faults, the scene with the most facts."""

    def rank(identity: str) -> tuple[bool, int]:
        count = count_facts(scenes[identity], references[identity][0])
        both = count.claims > count.correct and count.correct < count.total
        return both, count.total

    return max(references, key=rank)


def _frames(media: Path, identity: str, modality: Modality) -> tuple[SampleFrame, ...]:
    if modality == "image":
        return (picture(np.asarray(Image.open(media / f"{identity}.png").convert("RGB"))),)
    index = index_video(media / f"{identity}.mp4")
    frames = zip(index.times, read_frames(index, range(len(index))), strict=True)
    return tuple(picture(frame, timestamp=float(time)) for time, frame in frames)
