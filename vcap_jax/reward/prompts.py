"""From a group's media, reference and one candidate to the messages of a chat request.

Media come first, the reference next and the candidate last, so that a server's prefix cache holds everything
but the candidate for the other members of the group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from vcap_jax.reward.media import JudgeFrame, TimeWindow
from vcap_jax.reward.templates import (
    ANALYSIS_KEY,
    GLOBAL_VIDEO_KEYS,
    QUALITY_KEYS,
    Instruction,
    InstructionSpec,
)

_BRACKET_MARKERS = re.compile(
    r"\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|IMG|IMG_BREAK|IMG_END|THINK)\])",
    re.IGNORECASE,
)
_VERDICT_KEYS = "|".join(re.escape(key) for key in sorted({ANALYSIS_KEY, *QUALITY_KEYS, *GLOBAL_VIDEO_KEYS}))
_VERDICT_KEY = re.compile(rf'"(\s*(?:{_VERDICT_KEYS})\s*)"(\s*:)', re.IGNORECASE)
# C0 controls but tab and newline, DEL, and the invisible "tag" characters that can hide a text from a reader.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\U000e0000-\U000e007f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def neutralise(caption: str) -> str:
    """Make a caption plain data for the judge.

    * every ``<`` becomes ``\u2039``, so neither our delimiters nor any ``<|...|>`` special token, ``<think>``
      block or tool tag can be formed, whatever the judge's tokenizer knows;
    * the opening bracket of ``[INST]``-like markers becomes ``(``;
    * a quoted score key before a colon loses its double quotes, so a judge that repeats the caption does not
      repeat a ready-made verdict;
    * control and invisible tag characters are dropped, lone surrogates become U+FFFD, line ends become
      ``\\n``.

    Ordinary text, and the ``[0.0 - 2.0]`` headers of segments, stay as they are. Idempotent.
    """
    text = caption.replace("\r\n", "\n").replace("\r", "\n")
    text = _SURROGATE.sub("\ufffd", _INVISIBLE.sub("", text))
    text = _BRACKET_MARKERS.sub("(", text.replace("<", "\u2039"))
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
    return instruction.fill(values)


def media_parts(frames: Sequence[JudgeFrame]) -> list[dict[str, Any]]:
    """The leading content parts: a picture each, with ``<12.3 seconds>`` before it where it has a time."""
    parts: list[dict[str, Any]] = []
    for frame in frames:
        if frame.seconds is not None:
            parts.append({"type": "text", "text": f"<{frame.seconds:.1f} seconds>"})
        parts.append({"type": "image_url", "image_url": {"url": frame.url}})
    return parts


def no_media_notice(what: str, window: TimeWindow | None = None) -> list[dict[str, Any]]:
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


def build_messages(media: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """One user message: media parts, then the filled instruction."""
    return [{"role": "user", "content": [*media, {"type": "text", "text": text}]}]


def verdict_schema(spec: InstructionSpec, max_analysis_chars: int) -> dict[str, Any]:
    """JSON schema of the answer: a bounded analysis first, then the three integers from 0 to 10."""
    properties: dict[str, Any] = {ANALYSIS_KEY: {"type": "string", "maxLength": max_analysis_chars}}
    for key in spec.score_keys:
        properties[key] = {"type": "integer", "minimum": 0, "maximum": 10}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def response_format(spec: InstructionSpec, max_analysis_chars: int) -> dict[str, Any]:
    """The ``response_format`` field that holds a server to :func:`verdict_schema`."""
    schema = verdict_schema(spec, max_analysis_chars)
    return {
        "type": "json_schema",
        "json_schema": {"name": f"vcap_{spec.name}", "strict": True, "schema": schema},
    }
