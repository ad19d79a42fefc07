"""One request in, one verdict out: reads both captions, looks at the pictures, applies the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from gpu_judge.embedded.adjudication import (
    Adjudication,
    adjudicate,
    coarse_score,
    contradictions,
    impression,
    taken_on_trust,
)
from gpu_judge.embedded.comparison import Comparison, Said, list_differences, read_comparison, take_apart
from gpu_judge.embedded.pictures import Eyes
from gpu_judge.embedded.prose import Prose, read_prose, text_quality
from gpu_judge.embedded.questions import answer_questions, asks_questions
from gpu_judge.embedded.reasonability import reasonability
from gpu_judge.embedded.request import BadRequest, JudgeRequest, read_content, read_request
from gpu_judge.embedded.stages import answer_stage
from gpu_judge.embedded.windows import Window, claims_in_window, empty_in_window, window_of
from vcap_jax.system.json_values import JsonObject
from vcap_jax.world.image_grammar import parse_image
from vcap_jax.world.noisy_perception import ImperfectSight, PerceptionConfig
from vcap_jax.world.video_grammar import VideoCaption, parse_segment, parse_video
from vcap_jax.world.vocabulary import Claim, Slot

Answer = dict[str, str | int]
_MOST_SEGMENTS = 10_000
"""Of a description, several times what the paper's longest caption has room for."""
_MAX_ANALYSIS = 900
"""Characters: clients bound the answer's length, and a cut-off answer is a failure."""


class EmbeddedJudge:
    """Scores captions of the embedded world. Deterministic: equal requests get equal answers.
    To be used by one thread at a time.

    cache_size: pictures whose content is remembered. perception: how well it sees, by default without errors.
    """

    def __init__(self, cache_size: int = 4096, perception: PerceptionConfig | None = None) -> None:
        self._eyes = Eyes(cache_size, perception or PerceptionConfig())

    def answer(self, body: JsonObject) -> JsonObject:
        """The verdict on a chat completion request, or the answers to its questions or to a benchmark's; raises
        ``BadRequest`` where there is none to give.
        """
        content = read_content(body)
        if (stage := answer_stage(content, self._eyes)) is not None:
            return stage
        if asks_questions(content.texts):
            return answer_questions(content.texts)
        if (comparison := read_comparison(content)) is not None:
            return answer_comparison(comparison, self._eyes.look(comparison.kind, comparison.pictures))
        request = read_request(content)
        sight = self._eyes.look(request.kind, request.pictures) if request.pictures else None
        match request.kind:
            case "image":
                return judge_image(request, sight)
            case "segment":
                return judge_segment(request, sight)
            case "video":
                return judge_video(request, sight)


def answer_comparison(asked: Comparison, sight: ImperfectSight) -> JsonObject:
    """The lists that a request asks for."""
    candidate, reference = (_said(text, asked.kind, sight) for text in (asked.candidate, asked.reference))
    if asked.wanted == "differences":
        return list_differences(candidate.claims, reference.claims, sight.verdict, sight.unknown, asked.most)
    return take_apart(candidate, reference, sight.verdict, sight.unknown, asked.most)


def judge_image(request: JudgeRequest, sight: ImperfectSight | None) -> Answer:
    """Correctness, Completeness and Text Quality of an image caption."""
    caption = parse_image(request.candidate)
    prose = read_prose([caption.sentences])
    if request.reference is None:
        return _quality_answer(caption.claims, None, sight, prose)
    told = parse_image(request.reference)
    return _quality_answer(caption.claims, told.claims, sight, prose, told.empty)


def judge_segment(request: JudgeRequest, sight: ImperfectSight | None) -> Answer:
    """The same of one segment of a video: only what lies in the frames' range is weighed, of either text."""
    caption = _read_video(request.candidate)
    if sight is None:
        # Nothing shows where shots begin: the reference's own segments stand in for them.
        told = _read_video(request.reference or "")
        window = Window(shots=tuple((s.start, s.end) for s in told.segments), limits=request.window)
    else:
        window = window_of(sight)
    claims = claims_in_window(request.candidate, window)
    parts = [segment.sentences for segment in caption.segments] or [parse_segment(request.candidate)]
    prose = read_prose(parts)
    if request.reference is None:
        return _quality_answer(claims, None, sight, prose)
    marked = claims_in_window(request.reference, window)
    return _quality_answer(claims, marked, sight, prose, empty_in_window(request.reference, window))


def judge_video(request: JudgeRequest, sight: ImperfectSight | None) -> Answer:
    """Reasonability, Correctness and Completeness of the description of a whole video."""
    caption = _read_video(request.candidate)
    told = None if request.reference is None else _read_video(request.reference)
    if sight is not None:
        shots = sight.shots
    else:
        assert told is not None  # read_request refuses requests without pictures and reference
        shots = tuple((segment.start, segment.end) for segment in told.segments)
    claims = caption.claims(shots)
    if not claims:
        return _silent("Reasonability", "Correctness", "Completeness")
    prose = read_prose([caption.stray, *(segment.sentences for segment in caption.segments), caption.summary])
    marked, empty = (None, ()) if told is None else (told.claims(shots), told.empty(shots))
    outcome, scores = _scores(claims, marked, sight, empty)
    segments = [
        (s.start, s.end) for s in caption.segments if any(sentence.claims for sentence in s.sentences)
    ]
    reason, splits = reasonability(segments, shots, prose.useful)
    analysis = _analysis([*outcome.problems, *splits, *prose.problems])
    return {"Analysis": analysis, "Reasonability": reason, **scores}


def _said(text: str, kind: Literal["image", "video"], sight: ImperfectSight) -> Said:
    if kind == "image":
        caption = parse_image(text)
        return Said(claims=caption.claims, prose=read_prose([caption.sentences]))
    told = _read_video(text)
    parts = [told.stray, *(segment.sentences for segment in told.segments), told.summary]
    return Said(claims=told.claims(sight.shots), prose=read_prose(parts))


def _read_video(text: str) -> VideoCaption:
    """A description by segments. Raises BadRequest for more of them than are worth comparing with every shot."""
    # Counted before they are parsed: a segment begins a line.
    count = sum(line.lstrip(" \t").startswith("[") for line in text.split("\n"))
    if count > _MOST_SEGMENTS:
        raise BadRequest(f"a description has {count:,} segments; at most {_MOST_SEGMENTS:,} are read")
    return parse_video(text)


def _quality_answer(
    claims: Sequence[Claim],
    reference: Sequence[Claim] | None,
    sight: ImperfectSight | None,
    prose: Prose,
    empty: Sequence[Slot] = (),
) -> Answer:
    if not claims:
        return _silent("Correctness", "Completeness", "Text Quality")
    outcome, scores = _scores(claims, reference, sight, empty)
    quality = text_quality(prose, len(contradictions(claims)))
    return {"Analysis": _analysis([*outcome.problems, *prose.problems]), **scores, "Text Quality": quality}


def _scores(
    claims: Sequence[Claim],
    reference: Sequence[Claim] | None,
    sight: ImperfectSight | None,
    empty: Sequence[Slot] = (),
) -> tuple[Adjudication, Mapping[str, int]]:
    """Correctness and completeness by what there is: witness and picture, the one, or the other."""
    if reference is None:
        assert sight is not None  # read_request refuses requests without pictures and reference
        outcome = impression(claims, sight)
        return outcome, {
            "Correctness": coarse_score(outcome.survived, outcome.armed),
            "Completeness": coarse_score(outcome.covered, outcome.supported),
        }
    if sight is None:
        outcome = adjudicate(claims, reference, taken_on_trust(reference, empty), (), empty)
    else:
        outcome = adjudicate(claims, reference, sight.verdict, sight.unknown, empty)
    return outcome, {"Correctness": outcome.correctness, "Completeness": outcome.completeness}


def _silent(*keys: str) -> Answer:
    return {"Analysis": "The text makes no claim that could be checked.", **dict.fromkeys(keys, 0)}


def _analysis(problems: Sequence[str]) -> str:
    """The problems as one short text."""
    if not problems:
        return "No problem was confirmed."
    text = ""
    for number, problem in enumerate(problems):
        if len(text) + len(problem) > _MAX_ANALYSIS:
            return f"{text}; and {len(problems) - number} more."
        text += f"; {problem}" if text else f"It {problem}"
    return text + "."
