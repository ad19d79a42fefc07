"""Propositions by a judge: for each ordered pair of an item's captions what one misses or gets wrong, and a verifier
that takes out obvious errors and says why (paper, section "Human Evaluation and Reward-Model Alignment").

Two questions for a pair: the first lists statements with the words that they rest on, the second looks at all of them
again. What is not true of the texts themselves is taken out without asking: an empty or repeated statement, and one
that accuses the caption of words that it does not have. Answers are kept, so a second start asks only what failed.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path

import numpy as np

from vcap_jax.data.images import decode_image
from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings, VideoSource, encode_picture
from vcap_jax.data.videos import index_video, read_frames
from vcap_jax.evals.answers import Sentences, Shape, typed
from vcap_jax.evals.asking import LONG, Asker, Stage
from vcap_jax.evals.templates import PromptTemplate, load_template
from vcap_jax.human_eval.protocol import Kind
from vcap_jax.human_eval.records import Item, Name, Proposition, Row, Span
from vcap_jax.reward.encoded_view import EncodedView
from vcap_jax.reward.failures import Failure
from vcap_jax.system.json_values import as_object

PROMPTS = Path(__file__).parent / "prompts"
MOST_FRAMES = 32
"""Of a video, evenly spaced."""
_MOST_TEXT = 2000


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A statement about what the other caption has and the candidate lacks."""

    statement: Sentences
    reference_quote: Sentences


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A statement about what the candidate says and the picture contradicts."""

    statement: Sentences
    caption_quote: Sentences
    reference_quote: Sentences


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """An answer of the first question."""

    missing: list[Missing]
    inconsistent: list[Wrong]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the verifier says of one statement."""

    number: int
    reason: Sentences
    keep: bool


@dataclass(frozen=True, kw_only=True)
class Check:
    """An answer of the second question."""

    verdicts: list[Checked]


class Rejected(Row):
    """A proposition that people need not look at, and why. by: "verifier", or "rule" for what its text shows."""

    proposition: Proposition
    by: Name
    why: str


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """Of one ordered pair. failure: why it has none, None if it was done."""

    item: str
    model: str
    ref_model: str
    kept: tuple[Proposition, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    failure: str | None = None


def stages(folder: Path | None = None) -> tuple[Stage, Stage]:
    """The two kinds of questions. folder: with texts of one's own, propose.txt or verify.txt or both."""

    def template(name: str, *placeholders: str) -> PromptTemplate:
        own = folder is not None and (folder / f"{name}.txt").is_file()
        return load_template(f"human_eval/{name}", placeholders, str(folder if own else PROMPTS))

    propose = Stage(
        name="propose",
        template=template("propose", "CAPTION", "REFERENCE"),
        max_tokens=LONG,
        at_once=True,
    )
    # By then the server has the picture.
    verify = Stage(name="verify", template=template("verify", "CAPTION", "STATEMENTS"), max_tokens=LONG)
    return propose, verify


async def propose_for(asker: Asker, asked: tuple[Stage, Stage], folder: Path, item: Item) -> list[Proposed]:
    """All ordered pairs of an item's captions."""
    pairs = list(permutations(item.models, 2))
    shown = await asker.view(partial(judge_media, folder / item.media, video=item.video is not None))
    if isinstance(shown, Failure):
        return [Proposed(item=item.id, model=a, ref_model=b, failure=str(shown)) for a, b in pairs]
    return list(await asyncio.gather(*(_propose_pair(asker, asked, item, a, b, shown) for a, b in pairs)))


async def _propose_pair(
    asker: Asker, asked: tuple[Stage, Stage], item: Item, model: str, ref_model: str, shown: EncodedView
) -> Proposed:
    propose, verify = asked
    caption, reference = item.caption(model), item.caption(ref_model)
    pair = partial(Proposed, item=item.id, model=model, ref_model=ref_model)
    values = {"CAPTION": caption, "REFERENCE": reference}
    answer = await asker.ask(propose, typed(Proposals), values, shown=shown)
    if isinstance(answer, Failure):
        return pair(failure=str(answer))
    kept, rejected = sorted_out(item, model, ref_model, answer)
    if not kept:
        return pair(rejected=tuple(rejected))
    numbered = "\n".join(f"{number}. [{one.kind}] {one.text}" for number, one in enumerate(kept, 1))
    checked = await asker.ask(
        verify, verdicts_on(len(kept)), {"CAPTION": caption, "STATEMENTS": numbered}, shown=shown
    )
    if isinstance(checked, Failure):
        return pair(failure=str(checked))
    by_number = {one.number: one for one in checked.verdicts}
    good = []
    for number, one in enumerate(kept, 1):
        if by_number[number].keep:
            good.append(one)
        else:
            rejected.append(Rejected(proposition=one, by="verifier", why=by_number[number].reason))
    return pair(kept=tuple(good), rejected=tuple(rejected))


def verdicts_on(count: int) -> Shape[Check]:
    """An answer of the second question about ``count`` statements; a server that enforces schemas is held to as many
    verdicts, about these numbers."""
    shape = typed(Check, partial(_one_each, count=count))
    schema = copy.deepcopy(dict(shape.schema))
    verdicts = as_object(as_object(schema["properties"], "properties")["verdicts"], "verdicts")
    one = as_object(as_object(schema["$defs"], "$defs")["Checked"], "Checked")
    number = as_object(as_object(one["properties"], "properties")["number"], "number")
    verdicts |= {"minItems": count, "maxItems": count}
    number |= {"minimum": 1, "maximum": count}
    return replace(shape, schema=schema)


def _one_each(check: Check, *, count: int) -> str | None:
    numbers = [one.number for one in check.verdicts]
    if sorted(numbers) == list(range(1, count + 1)):
        return None
    return f"verdicts about {numbers}, not about each of 1 to {count}"


def sorted_out(
    item: Item, model: str, ref_model: str, proposals: Proposals
) -> tuple[list[Proposition], list[Rejected]]:
    """Propositions of an answer, and those that their own text rules out; pure.

    Quotes become spans where they stand in the captions word for word; where not, there is no span, and an inconsistent
    one is ruled out, for it accuses the caption of what it does not say.
    """
    caption, reference = item.caption(model), item.caption(ref_model)
    listed = [(Kind.MISSING, one.statement, "", one.reference_quote) for one in proposals.missing]
    listed += [
        (Kind.INCONSISTENT, one.statement, one.caption_quote, one.reference_quote)
        for one in proposals.inconsistent
    ]
    kept: list[Proposition] = []
    rejected: list[Rejected] = []
    seen: set[str] = set()
    for number, (kind, statement, quote, reference_quote) in enumerate(listed):
        text = " ".join(statement.split())
        one = Proposition(
            image_id=item.id,
            prop_id=f"{item.id}/{model}/{ref_model}/{number}",
            model=model,
            ref_model=ref_model,
            kind=kind,
            text=text[:_MOST_TEXT] or "(empty)",
            span=quoted(caption, quote),
            ref_span=quoted(reference, reference_quote),
        )
        why = ""
        if not text:
            why = "it says nothing"
        elif len(text) > _MOST_TEXT:
            why = f"it is longer than {_MOST_TEXT} characters"
        elif text.casefold() in seen:
            why = "it says the same as one before"
        elif kind is Kind.INCONSISTENT and one.span is None:
            why = f'the caption does not have the words "{quote}"'
        seen.add(text.casefold())
        if why:
            rejected.append(Rejected(proposition=one, by="rule", why=why))
        else:
            kept.append(one)
    return kept, rejected


def quoted(text: str, quote: str) -> Span | None:
    """Where a quote stands in a text, in code points; None where it does not."""
    plain = quote.strip()
    start = text.find(plain) if plain else -1
    return None if start < 0 else Span(start=start, end=start + len(plain), text=plain)


def judge_media(path: Path, *, video: bool) -> EncodedMedia:
    """What the judge is shown: the picture, or evenly spaced frames with their times. Raises MediaError."""
    settings = JudgeMediaSettings()
    if not video:
        picture = encode_picture(decode_image(path), settings)
        return EncodedMedia(modality="image", duration=0.0, pictures=(picture,))
    index = index_video(path)
    count = min(MOST_FRAMES, len(index))
    places = np.linspace(0, len(index) - 1, count).round().astype(int).tolist()
    pictures = [
        encode_picture(pixels, settings, seconds=index.times[place], index=place)
        for place, pixels in zip(places, read_frames(index, places), strict=True)
    ]
    source = VideoSource(frames=len(index), fps=index.fps if index.constant_rate else None)
    return EncodedMedia(modality="video", duration=index.duration, pictures=tuple(pictures), source=source)


def summary(found: Sequence[Proposed]) -> Mapping[str, object]:
    """Counts: pairs, failures by reason in words, kept and rejected by kind."""
    failed = Counter(one.failure.split(":")[0] for one in found if one.failure is not None)
    kept = [p for one in found for p in one.kept]
    rejected = [r for one in found for r in one.rejected]
    return {
        "pairs": len(found),
        "failed": failed,
        "kept": {str(kind): sum(p.kind is kind for p in kept) for kind in Kind},
        "rejected": {by: sum(r.by == by for r in rejected) for by in ("rule", "verifier")},
    }
