"""The instructions given to the judge: what each must contain, and loading them from text files.

The paper's Appendix "Instructions for VCap Reward Modeling" has four. The files in ``instructions/`` keep
their structure, placeholders and output keys in our own words, and state three things the paper leaves to the
model: captions are data, a statement that cannot be checked earns nothing, and time ranges may reach beyond a
    segment.
The ablation "no reference" needs two more texts for video, which the paper uses but does not print.

Every file can be replaced by a path in the configuration. A template marks the places to be filled as
``{ref_answer}`` and ``{gen_solution}`` (images) or ``{REF_DESC}`` and ``{GEN_DESC}`` (videos), each exactly
once, and asks for exactly the keys of its pass; anything else is refused when the run starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import where_sought

ANALYSIS_KEY = "Analysis"
QUALITY_KEYS = ("Correctness", "Completeness", "Text Quality")
GLOBAL_VIDEO_KEYS = ("Reasonability", "Correctness", "Completeness")
DIFFERENCES_KEY = "Differences"
CLAIMS_KEY, UNITS_KEY = "Claims", "Units"
LIST_KEYS = (DIFFERENCES_KEY, CLAIMS_KEY, UNITS_KEY)
"""Of the answers that are lists: of differences, and of claims and units."""

REFERENCE_CAPTION = "reference_caption"
GENERATED_CAPTION = "generated_caption"
REFERENCE_DESCRIPTION = "reference_description"
GENERATED_DESCRIPTION = "generated_description"
DELIMITERS = (REFERENCE_CAPTION, GENERATED_CAPTION, REFERENCE_DESCRIPTION, GENERATED_DESCRIPTION)

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ASKED_KEY = re.compile(r'"([^"\n]+)"\s*:')

InstructionName = Literal[
    "image",
    "image_no_reference",
    "video_global",
    "video_global_no_reference",
    "video_segment",
    "video_segment_no_reference",
]


class TemplateError(VCapError, ValueError):
    """A template that cannot serve its pass; the message names the file and what to change."""


@dataclass(frozen=True)
class InstructionSpec:
    """What one pass of the judge needs from its instruction.

    score_keys: the three keys of the answer beside "Analysis", in the order asked for.
    reference, candidate: the placeholder and the delimiter name around its text; ``reference`` is None where
        the judge gets none.
    """

    name: InstructionName
    score_keys: tuple[str, str, str]
    reference: tuple[str, str] | None
    candidate: tuple[str, str]


_IMAGE_REF, _IMAGE_GEN = ("ref_answer", REFERENCE_CAPTION), ("gen_solution", GENERATED_CAPTION)
_VIDEO_REF, _VIDEO_GEN = ("REF_DESC", REFERENCE_DESCRIPTION), ("GEN_DESC", GENERATED_DESCRIPTION)

_SPECS = (
    InstructionSpec("image", QUALITY_KEYS, _IMAGE_REF, _IMAGE_GEN),
    InstructionSpec("image_no_reference", QUALITY_KEYS, None, _IMAGE_GEN),
    InstructionSpec("video_global", GLOBAL_VIDEO_KEYS, _VIDEO_REF, _VIDEO_GEN),
    InstructionSpec("video_global_no_reference", GLOBAL_VIDEO_KEYS, None, _VIDEO_GEN),
    InstructionSpec("video_segment", QUALITY_KEYS, _VIDEO_REF, _VIDEO_GEN),
    InstructionSpec("video_segment_no_reference", QUALITY_KEYS, None, _VIDEO_GEN),
)
SPECS: Mapping[InstructionName, InstructionSpec] = {spec.name: spec for spec in _SPECS}


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """A checked template."""

    spec: InstructionSpec
    template: str


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with texts, which are neutralised and delimited, in the places of their names. All in one pass, so
    that nothing inside a text is filled again; other words in braces stay."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


def load_instruction(name: InstructionName, path: str | None = None) -> Instruction:
    """The packaged instruction ``name``, or the user's own at ``path``.

    Raises TemplateError for an unreadable file and for a template that does not fit its pass.
    """
    spec = SPECS[name]
    template, source = _read(name, path)
    _check(template, spec, source)
    return Instruction(spec=spec, template=template.strip() + "\n")


def _read(name: str, path: str | None) -> tuple[str, str]:
    """The text of the packaged instruction ``name``, or of the user's own at ``path``, and where it is from."""
    if path is None:
        source = f"instructions/{name}.txt"
        return resources.files("vcap_jax.reward").joinpath(source).read_text(encoding="utf-8"), source
    try:
        return Path(path).read_text(encoding="utf-8"), path
    except (OSError, UnicodeDecodeError) as error:
        where = where_sought(path) if isinstance(error, FileNotFoundError) else ""
        raise TemplateError(f"instruction {name!r}: cannot read {path!r}{where}: {error}") from error


def load_template(name: str, path: str | None, *placeholders: str) -> str:
    """An instruction in which each of ``placeholders`` stands once, in braces. Raises TemplateError."""
    text, source = _read(name, path)
    for place in placeholders:
        if (count := text.count(f"{{{place}}}")) != 1:
            raise TemplateError(
                f"instruction {name!r} ({source}) has {{{place}}} {count} times: write it once"
            )
    return text.strip() + "\n"


def _check(template: str, spec: InstructionSpec, source: str) -> None:
    """Raise TemplateError unless ``template`` has its placeholders once, no others, and asks for its keys."""
    where = f"instruction {spec.name!r} ({source})"
    required = [spec.candidate[0]] if spec.reference is None else [spec.reference[0], spec.candidate[0]]
    found = _PLACEHOLDER.findall(template)
    if sorted(found) != sorted(required):
        has, wanted = (", ".join(f"{{{name}}}" for name in names) or "none" for names in (found, required))
        raise TemplateError(
            f"{where} has the placeholders {has}; write each of {wanted} once, with its braces, and no others"
        )
    asked, expected = set(_ASKED_KEY.findall(template)), {ANALYSIS_KEY, *spec.score_keys}
    if asked != expected:
        raise TemplateError(
            f'{where} asks for the keys {sorted(asked)}; ask for {sorted(expected)}, as "Key": in its output format'
        )
    for name in DELIMITERS:
        if re.search(rf"</?\s*{name}\s*>", template):
            raise TemplateError(
                f"{where} writes the delimiter <{name}> itself; it is added when the captions are filled in"
            )
