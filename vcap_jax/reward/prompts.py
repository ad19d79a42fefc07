"""From a group's media, reference and one candidate to the messages of a chat request.

Media come first, the reference next and the candidate last, so that a server's prefix cache holds everything
but the candidate for the other members of the group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Literal, NotRequired, TypeAlias, TypedDict

from vcap_jax.data.media import JudgeFrame, JudgeVideo, TimeWindow
from vcap_jax.reward.templates import (
    ANALYSIS_KEY,
    GLOBAL_VIDEO_KEYS,
    LIST_KEYS,
    QUALITY_KEYS,
    SPECS,
    Instruction,
    InstructionSpec,
    filled,
)
from vcap_jax.system.json_values import JsonDict, JsonObject

# -- chat messages as OpenAI's API spells them, with the fields that vLLM adds ----------------------------------


class TextPart(TypedDict):
    """Words."""

    type: Literal["text"]
    text: str


class MediaUrl(TypedDict):
    """Where a picture or video is, mostly inside the address itself (``data:...``)."""

    url: str


class ImagePart(TypedDict):
    """A picture. uuid: names its content; None in place of the address means what the server has under that name."""

    type: Literal["image_url"]
    image_url: MediaUrl | None
    uuid: NotRequired[str]


class VideoPart(TypedDict):
    """A video; ``uuid`` as for a picture."""

    type: Literal["video_url"]
    video_url: MediaUrl | None
    uuid: NotRequired[str]


ContentPart: TypeAlias = TextPart | ImagePart | VideoPart


class ChatMessage(TypedDict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | Sequence[ContentPart]


# -- captions made harmless --------------------------------------------------------------------------------------

# Signs that are a "<", or fall apart into one under Unicode's compatibility forms, which some tokenizers apply first.
_ANGLES = str.maketrans(dict.fromkeys("<\uff1c\ufe64\u226e", "\u2039"))
_FOLDED_BRACKETS = str.maketrans("\uff3b\ufe47", "((")
# Markers in square brackets: anything in capitals ([INST], [/SYSTEM_PROMPT], [SEP]), whatever their case the ones that
# open a turn, [gMASK], [|user|], and the "[e~[", "]~b]" and "]~!b[" of another family.
_BRACKET_MARKERS = re.compile(
    r"\[(?=/?[A-Z][A-Z0-9_]+\]|(?i:/?(?:inst|system_prompt|img|think|control_\d+)\])|[gs]MASK\]|\||e~\[)"
    r"|\](?=~!?b[\[\]])"
)
_DELIMITER_NAME = re.compile(
    r"(?<=reference)_(?=caption|description)|(?<=generated)_(?=caption|description)", re.I
)
_PLACEHOLDERS = {
    name for spec in SPECS.values() for name, _ in (spec.candidate, spec.reference or spec.candidate)
}
_PLACEHOLDER = re.compile(rf"\{{(?=(?:{'|'.join(sorted(_PLACEHOLDERS))})\}})")
_VERDICT_KEYS = "|".join(
    re.escape(key) for key in sorted({ANALYSIS_KEY, *QUALITY_KEYS, *GLOBAL_VIDEO_KEYS, *LIST_KEYS})
)
_VERDICT_KEY = re.compile(rf'"(\s*(?:{_VERDICT_KEYS})\s*)"(\s*:)', re.IGNORECASE)
_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
# What no reader sees and a tokenizer does: control characters but tab and line end, soft hyphens, zero-width signs,
# marks and overrides of writing direction, annotations, tag characters and supplementary variation selectors.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
# Joiners and variation selectors belong to some scripts and to emoji; beside ASCII, or many in a row, they only hide.
_JOINER = re.compile(
    "(?<![^\x00-\x7f])[\u200c\u200d]+|[\u200c\u200d]+(?![^\x00-\x7f])|[\u200c\u200d\ufe00-\ufe0f]{3,}"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def neutralise(caption: str) -> str:
    """Make a caption plain data for the judge.

    * every ``<``, and every sign that compatibility normalisation turns into one, becomes ``\u2039``, so neither our
      delimiters nor any ``<|...|>`` special token, ``<think>`` block or tool tag can be formed, whatever the judge's
      tokenizer knows; the names of our delimiters lose their underscore, so that nothing looks like one either;
    * the bracket that begins an ``[INST]``-like marker, or an instruction's place for a caption, becomes a round one;
    * a quoted key of an answer before a colon loses its double quotes, so a judge that repeats the caption does not
      repeat a ready-made verdict;
    * characters that nobody sees are dropped, lone surrogates become U+FFFD, line ends of all kinds become ``\\n``.

    Ordinary text, and the ``[0.0 - 2.0]`` headers of segments, stay as they are. Idempotent.
    """
    # What is dropped may stand inside a marker, so it goes first.
    text = _INVISIBLE.sub("", _LINE_END.sub("\n", caption))
    while (plain := _JOINER.sub("", text)) != text:
        text = plain
    text = _SURROGATE.sub("\ufffd", text).translate(_ANGLES).translate(_FOLDED_BRACKETS)
    text = _BRACKET_MARKERS.sub(lambda found: "(" if found.group() == "[" else ")", text)
    text = _PLACEHOLDER.sub("(", _DELIMITER_NAME.sub(" ", text))
    return _VERDICT_KEY.sub(r"'\1'\2", text)


def delimited(caption: str, delimiter: str) -> str:
    """The neutralised caption between its delimiter lines."""
    return f"<{delimiter}>\n{neutralise(caption).strip()}\n</{delimiter}>"


def fill_instruction(instruction: Instruction, *, reference: str | None, candidate: str) -> str:
    """The instruction's text for one candidate.

    Raises ValueError if a reference is given to an instruction without one, or missing.
    """
    spec = instruction.spec
    if (reference is None) != (spec.reference is None):
        need = "takes no reference" if spec.reference is None else "needs a reference"
        raise ValueError(f"instruction {spec.name!r} {need}")
    values = {spec.candidate[0]: delimited(candidate, spec.candidate[1])}
    if spec.reference is not None and reference is not None:
        values[spec.reference[0]] = delimited(reference, spec.reference[1])
    return filled(instruction.template, values)


def media_parts(frames: Sequence[JudgeFrame]) -> list[ContentPart]:
    """The leading content parts: a picture each, with ``<12.3 seconds>`` before it where it has a time.

    ``uuid`` is the hash of a picture's content; the client takes it out where the server knows no such field.
    """
    parts: list[ContentPart] = []
    for frame in frames:
        if frame.seconds is not None:
            parts.append({"type": "text", "text": f"<{frame.seconds:.1f} seconds>"})
        uuid = content_hash(frame.url)
        parts.append({"type": "image_url", "image_url": {"url": frame.url}, "uuid": uuid})
    return parts


def video_parts(video: JudgeVideo) -> tuple[list[ContentPart], JsonObject]:
    """The one leading part of a video, and the request's fields beside ``messages`` that belong to it.

    The fields keep the server from choosing frames of its own: these frames, at these indices of the source.
    A single frame is sent twice, for the processor pairs frames and refuses one (with an odd number it
    repeats the last itself).
    """
    frames, indices = list(video.frames), list(video.indices)
    if len(frames) == 1:
        frames, indices = 2 * frames, 2 * indices
    io: JsonDict = {
        "num_frames": -1,
        "fps": video.fps,
        "frames_indices": indices,
        "total_num_frames": max(video.total_frames, len(frames)),
        "duration": video.duration,
    }
    url = "data:video/jpeg;base64," + ",".join(frames)
    uuid = content_hash(url, repr(sorted(io.items())))
    fields: JsonObject = {
        "media_io_kwargs": {"video": io},
        "mm_processor_kwargs": {"do_sample_frames": False},
    }
    return [{"type": "video_url", "video_url": {"url": url}, "uuid": uuid}], fields


def content_hash(*texts: str) -> str:
    """A name for content: 128 bits in hexadecimal."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(f"{len(text)}|".encode())
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def no_media_notice(what: str, window: TimeWindow | None = None) -> list[ContentPart]:
    """What stands in place of the media in the ablation without them ("- reference image" in the paper).

    The instruction is the same; without a word about it the judge would be told of a picture it never gets.

    what: "picture" or "frames".
    """
    text = (
        f"No {what} can be shown for this request. Do not guess what might be seen: wherever the instruction "
        f"appeals to the {what}, take the reference below as the only evidence."
    )
    if window is not None:
        text += f" The segment runs from {window.start:.1f} to {window.end:.1f} seconds."
    return [{"type": "text", "text": text}]


def build_messages(media: Sequence[ContentPart], text: str) -> list[ChatMessage]:
    """One user message: media parts, then the filled instruction."""
    return [{"role": "user", "content": [*media, {"type": "text", "text": text}]}]


def verdict_schema(spec: InstructionSpec, max_analysis_chars: int) -> JsonObject:
    """JSON schema of the answer: a bounded analysis first, then the three integers from 0 to 10."""
    properties: JsonDict = {ANALYSIS_KEY: {"type": "string", "maxLength": max_analysis_chars}}
    for key in spec.score_keys:
        properties[key] = {"type": "integer", "minimum": 0, "maximum": 10}
    return object_schema(properties)


def object_schema(properties: JsonObject) -> JsonObject:
    """JSON schema of an object with these keys, all of them, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def schema_format(name: str, schema: JsonObject) -> JsonObject:
    """The ``response_format`` field that holds a server to a schema."""
    return {"type": "json_schema", "json_schema": {"name": f"vcap_{name}", "strict": True, "schema": schema}}
