"""Requests for lists in place of scores: differences between two captions, or a caption's claims and the units of
another. Told by their delimiter lines and by the keys that they ask for, so that user-written texts work too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gpu_judge.embedded.delimiters import find_blocks, without_blocks
from gpu_judge.embedded.prose import Prose
from gpu_judge.embedded.request import BadRequest, Content, Picture
from vcap_jax.world.vocabulary import Claim

_NAMES = ("reference_caption", "generated_caption")
_MOST = re.compile(r"\b(?:at most|more than) (\d{1,6})\b")
_LONGEST_ENTRY = 160


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A request for lists.

    wanted: which. kind: frames with times are a video's. most: entries of a list; None where no limit is named.
    """

    wanted: Literal["differences", "balance"]
    kind: Literal["image", "video"]
    pictures: tuple[Picture, ...]
    reference: str
    candidate: str
    most: int | None


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a text claims, each claim once, and how it reads."""

    claims: tuple[Claim, ...]
    prose: Prose


def read_comparison(content: Content) -> Comparison | None:
    """The request for lists; None for one of another kind.

    Raises BadRequest where a caption or the pictures are missing, or a caption stands there twice.
    """
    texts = "\n".join(content.texts)
    blocks = find_blocks(texts, _NAMES)
    asked = without_blocks(texts, blocks)
    wanted: Literal["differences", "balance"]
    if '"Differences"' in asked:
        wanted = "differences"
    elif '"Claims"' in asked and '"Units"' in asked:
        wanted = "balance"
    else:
        return None
    found = {block.name: block.text for block in blocks}
    if len(blocks) != 2 or set(found) != set(_NAMES):
        raise BadRequest(
            f"{len(blocks)} captions stand between delimiter lines; give one <reference_caption> and one "
            "<generated_caption>"
        )
    if not content.pictures:
        raise BadRequest("there is no picture, and what two captions say is settled by it")
    timed = [picture.seconds is not None for picture in content.pictures]
    if any(timed) and not all(timed):
        raise BadRequest("every frame of a video needs a text part '<12.3 seconds>' before it")
    most = _MOST.search(asked)
    return Comparison(
        wanted=wanted,
        kind="video" if timed[0] else "image",
        pictures=content.pictures,
        reference=found["reference_caption"],
        candidate=found["generated_caption"],
        most=int(most[1]) if most else None,
    )


def entry(text: str) -> str:
    """A text at the length that an entry may have."""
    return text if len(text) <= _LONGEST_ENTRY else f"{text[: _LONGEST_ENTRY - 3]}..."
