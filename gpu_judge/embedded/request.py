"""What a chat request asks for: the kind of judgement, the pictures and the two captions.

The judge gets what a vision-language model would get and nothing else. Which of the instructions it is given
is told by the keys that the instruction asks for and by the delimiter lines around the captions, so
user-written templates work as long as they ask for the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from gpu_judge.embedded.delimiters import Block, find_blocks, without_blocks
from vcap_jax.system.json_values import JsonObject

Kind = Literal["image", "video", "segment"]

_KEY = re.compile(r'"(Analysis|Reasonability|Correctness|Completeness|Text Quality)"\s*:')
_CAPTIONS = tuple(
    f"{whose}_{what}" for whose in ("reference", "generated") for what in ("caption", "description")
)
_SECONDS = r"(\d{1,9}(?:\.\d{1,9})?)"  # 400 digits would be infinitely many seconds
_TIME = re.compile(rf"\s*<{_SECONDS} seconds>\s*")
_WINDOW = re.compile(rf"segment runs from {_SECONDS} to {_SECONDS} seconds")
_QUALITY_KEYS = {"Analysis", "Correctness", "Completeness", "Text Quality"}
_VIDEO_KEYS = {"Analysis", "Reasonability", "Correctness", "Completeness"}


MOST_MESSAGES = 256
MOST_PARTS = 8192
MOST_PICTURES = 1024
"""Qwen3-VL samples at most 768 frames of a video."""
MOST_TEXT = 1024**2
"""Characters of all texts of a request: more than the paper's longest caption and reference have if every token is one
of the tokenizer's longest."""


class BadRequest(ValueError):
    """The request cannot be judged; the message says why, ``param`` where."""

    def __init__(self, message: str, param: str | None = "messages") -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture of the request: a data URL and, for a frame of a video, its time in seconds."""

    url: str
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Content:
    """What the user's messages hold, in order: pictures, and texts other than the times before pictures."""

    pictures: tuple[Picture, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """A request as the judge understands it.

    kind: image, whole video, or one segment of a video.
    pictures: in the order given; empty in the ablation without them.
    reference: None in the ablation without it. candidate: the text to be scored.
    window: start and end in seconds of a segment whose frames are not shown, where the request tells them.
    """

    kind: Kind
    pictures: tuple[Picture, ...]
    reference: str | None
    candidate: str
    window: tuple[float, float] | None = None


def read_request(content: Content) -> JudgeRequest:
    """Understands what a request asks for; raises ``BadRequest`` naming what is wrong."""
    blocks = {text: find_blocks(text, _CAPTIONS) for text in content.texts}
    instructions = [text for text in content.texts if blocks[text]]
    if len(instructions) != 1:
        raise BadRequest(
            f"{len(instructions)} text parts contain a caption between delimiter lines such as "
            "<generated_caption> and </generated_caption>; exactly one must"
        )
    instruction = instructions[0]
    reference, candidate, of_video = _captions(blocks[instruction])
    kind = _kind(without_blocks(instruction, blocks[instruction]), of_video)
    pictures = content.pictures
    if kind != "image" and any(picture.seconds is None for picture in pictures):
        raise BadRequest("every frame of a video needs a text part '<12.3 seconds>' before it")
    times = [picture.seconds for picture in pictures if picture.seconds is not None]
    if kind != "image" and any(b < a for a, b in pairwise(times)):
        raise BadRequest("the frames are not in the order of their times")
    if not pictures and reference is None:
        raise BadRequest("there is neither a picture nor a reference: nothing to judge by")
    around = (without_blocks(text, blocks[text]) for text in content.texts)
    window = next((match for text in around if (match := _WINDOW.search(text))), None)
    return JudgeRequest(
        kind=kind,
        pictures=pictures,
        reference=reference,
        candidate=candidate,
        window=(float(window[1]), float(window[2])) if window else None,
    )


def read_content(body: JsonObject) -> Content:
    """Pictures and texts of all user messages of a chat completion request.

    Raises ``BadRequest`` where the messages have another form, or are more than a judgement can need.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("'messages' must be a list of at least one message")
    if len(messages) > MOST_MESSAGES:
        raise BadRequest(f"there are {len(messages)} messages; at most {MOST_MESSAGES} are read")
    pictures: list[Picture] = []
    texts: list[str] = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise BadRequest(f"{where} must be an object with 'role' and 'content'", where)
        content = message.get("content")
        if message["role"] == "user":
            _read_parts(content, where, pictures, texts)
        elif content is not None:  # nothing of it is used
            _read_parts(content, where, [], [])
        if len(pictures) > MOST_PICTURES:
            raise BadRequest(f"there are {len(pictures)} pictures; at most {MOST_PICTURES} are looked at")
        if (length := sum(map(len, texts))) > MOST_TEXT:
            raise BadRequest(f"the texts have {length:,} characters; at most {MOST_TEXT:,} are read")
    return Content(pictures=tuple(pictures), texts=tuple(texts))


def _read_parts(content: object, where: str, pictures: list[Picture], texts: list[str]) -> None:
    """Adds what one message holds."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise BadRequest(f"{where}.content must be a string or a list of parts", f"{where}.content")
    if len(content) > MOST_PARTS:
        raise BadRequest(f"{where} has {len(content)} parts; at most {MOST_PARTS} are read", where)
    seconds: float | None = None
    for index, part in enumerate(content):
        at = f"{where}.content[{index}]"
        match part:
            case {"type": "text", "text": str(text)}:
                time = _TIME.fullmatch(text)
                seconds = float(time[1]) if time else None
                if time is None:
                    texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                pictures.append(Picture(url=url, seconds=seconds))
                seconds = None
            case _:
                raise BadRequest(f"{at} is neither a text part nor an image_url part with a 'url'", at)


def _captions(blocks: Sequence[Block]) -> tuple[str | None, str, bool]:
    """Reference, candidate and whether they are about a video."""
    found: dict[str, str] = {}
    for block in blocks:
        if block.name in found:
            raise BadRequest(
                f"<{block.name}> occurs more than once: what stands in a caption must be neutralised"
            )
        found[block.name] = block.text
    of_video = "generated_description" in found
    if of_video == ("generated_caption" in found):
        raise BadRequest("give one generated caption, as <generated_caption> or as <generated_description>")
    suffix = "description" if of_video else "caption"
    if set(found) - {f"reference_{suffix}", f"generated_{suffix}"}:
        raise BadRequest("reference and generated text must both be captions or both be descriptions")
    return found.get(f"reference_{suffix}"), found[f"generated_{suffix}"], of_video


def _kind(instruction: str, of_video: bool) -> Kind:
    keys = set(_KEY.findall(instruction))
    if of_video and keys == _VIDEO_KEYS:
        return "video"
    if keys == _QUALITY_KEYS:
        return "segment" if of_video else "image"
    what = "description" if of_video else "caption"
    raise BadRequest(
        f"the instruction asks for the keys {sorted(keys)} about a {what}; known are "
        f"{sorted(_QUALITY_KEYS)}, and for descriptions also {sorted(_VIDEO_KEYS)}"
    )
