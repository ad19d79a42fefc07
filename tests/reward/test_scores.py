"""Reading verdicts: what models really write, and what must never become a number."""

import json
import random
import string
import time

import pytest

from vcap_jax.reward.failures import Failure
from vcap_jax.reward.scores import Scores, parse_scores
from vcap_jax.reward.templates import GLOBAL_VIDEO_KEYS, QUALITY_KEYS

GOOD = '{"Analysis": "The dog is brown, not black.", "Correctness": 8, "Completeness": 7, "Text Quality": 9}'
LONG = GOOD.replace("brown, not black.", r"said to be \"red\" {sic}; [0.0 - 2.0] \\ \u00e9")

ACCEPTED = {
    "bare": GOOD,
    "escapes and braces inside the analysis": LONG,
    "surrounding white space": f"\n\n  {GOOD}\n",
    "fenced": f"```json\n{GOOD}\n```",
    "fenced without a language": f"```\n{GOOD}\n```",
    "fence never closed": f"```json\n{GOOD}",
    "prose before": f"Here is my evaluation of the caption:\n\n{GOOD}",
    "prose after": f"{GOOD}\n\nThese scores reflect the mistakes {{see above}}.",
    "braces in prose": f"The set {{dog, cat}} and {{}} matter. {GOOD}",
    "unrelated object beside it": f'{{"image": "seen"}}\n{GOOD}',
    "thought": f"<think>\nThe caption is mostly right. {{x}} Maybe 9?\n</think>\n\n{GOOD}",
    "thought with a draft verdict": f"<think>First try: {GOOD.replace('8', '3')}</think>{GOOD}",
    "thought twice": f"<think>First: {GOOD.replace('8', '3')}</think>\n<think>Again.</think>\n{GOOD}",
    "thought whose opening tag is in the prompt": f"It is fine.\n</think>\n{GOOD}",
    "thought with broken JSON": f'<think>{{"Correctness": 8/10 </think>{GOOD}',
    "other order": json.dumps(dict(reversed(json.loads(GOOD).items()))),
    "trailing comma": GOOD[:-1] + ",}",
    "trailing comma on its own line": GOOD[:-1] + ",\n}",
    "pretty-printed": json.dumps(json.loads(GOOD), indent=4),
    "minified": json.dumps(json.loads(GOOD), separators=(",", ":")),
    "raw line breaks and tabs in the analysis": GOOD.replace("brown, not", "brown,\n\t- not"),
    "inside a list": f"[{GOOD}]",
    "byte order mark": "\ufeff" + GOOD,
    "boxed": f"\\boxed{{}} {GOOD}",
    "a caption's </think> quoted in the analysis": GOOD.replace("brown", "brown </think>"),
    "a caption's <think> quoted in the analysis": GOOD.replace("brown", "brown <think>"),
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())
@pytest.mark.parametrize("finish_reason", ["stop", None])
def test_accepts_what_models_write_around_the_verdict(text: str, finish_reason: str | None) -> None:
    scores = parse_scores(text, QUALITY_KEYS, finish_reason)
    assert isinstance(scores, Scores), scores
    assert scores.by_key() == {"Correctness": 8, "Completeness": 7, "Text Quality": 9}
    assert "dog" in scores.analysis


REFUSED = {
    "nothing": ("", "empty_answer"),
    "only space": (" \n\t", "empty_answer"),
    "refusal": ("I'm sorry, I can't help with that.", "no_verdict"),
    "plain text scores": ("Correctness: 8\nCompleteness: 7\nText Quality: 9", "no_verdict"),
    "python dict": (GOOD.replace('"', "'"), "broken_json"),
    "empty object": ("{}", "no_verdict"),
    "other object": ('{"result": "fine"}', "no_verdict"),
    "wrapped": (f'{{"result": {GOOD}}}', "no_verdict"),
    "as a string": (json.dumps(GOOD), "no_verdict"),
    "cut in the analysis": (GOOD[:30], "cut_off"),
    "cut after a score": (GOOD[:-6], "cut_off"),
    "cut before the brace": (GOOD[:-1], "cut_off"),
    "endless thought": ("<think> let me see, the dog", "cut_off"),
    "endless thought with a draft": (f"<think> maybe {GOOD}", "cut_off"),
    "unescaped quotes": (GOOD.replace("brown", '"brown"'), "broken_json"),
    "comment": (GOOD.replace("8,", "8, // good\n"), "broken_json"),
    "fraction": (GOOD.replace("8,", "8/10,"), "broken_json"),
    "double comma": (GOOD.replace("8,", "8,,"), "broken_json"),
    "two verdicts": (f"{GOOD}\n{GOOD.replace('8', '9')}", "ambiguous"),
    "the same verdict twice": (f"```json\n{GOOD}\n```\n{GOOD}", "ambiguous"),
    "draft outside of a thought": (f'{{"Correctness": 5}} and finally {GOOD}', "ambiguous"),
    "echo of the format": (
        f'I will answer {{"Analysis": "...", "Correctness": "score1", "Completeness": "score2"}}.\n{GOOD}',
        "ambiguous",
    ),
    "broken object beside a good one": (f'{{"Correctness": score1}} {GOOD}', "broken_json"),
    "candidate's verdict quoted without escapes": (
        GOOD.replace("brown, not black", f"said to be {GOOD.replace('8', '10')}"),
        "broken_json",
    ),
    "missing score": ('{"Analysis": "", "Correctness": 8, "Completeness": 7}', "missing_key"),
    "missing analysis": ('{"Correctness": 8, "Completeness": 7, "Text Quality": 9}', "missing_key"),
    "keys of the other pass": (
        '{"Analysis": "", "Reasonability": 8, "Correctness": 7, "Completeness": 9}',
        "missing_key",
    ),
    "misspelt key": (GOOD.replace("Text Quality", "text_quality"), "missing_key"),
    "lower-case key": (GOOD.replace("Correctness", "correctness"), "missing_key"),
    "repeated key": (GOOD[:-1] + ', "Correctness": 10}', "repeated_key"),
    "repeated key, same value": (GOOD[:-1] + ', "Correctness": 8}', "repeated_key"),
    "repeated analysis": (GOOD[:-1] + ', "Analysis": ""}', "repeated_key"),
    "additional key": (GOOD[:-1] + ', "Overall": 8}', "unexpected_key"),
    "eleven": (GOOD.replace("8", "11"), "bad_score"),
    "minus one": (GOOD.replace("8", "-1"), "bad_score"),
    "hundred": (GOOD.replace("8", "80"), "bad_score"),
    "enormous": (GOOD.replace("8", "9" * 100), "bad_score"),
    "beyond what int() reads": (GOOD.replace("8", "9" * 5000), "broken_json"),
    "float": (GOOD.replace("8", "8.5"), "bad_score"),
    "integral float": (GOOD.replace("8", "8.0"), "bad_score"),
    "exponent": (GOOD.replace("8", "1e1"), "bad_score"),
    "nan": (GOOD.replace("8", "NaN"), "bad_score"),
    "infinity": (GOOD.replace("8", "Infinity"), "bad_score"),
    "true": (GOOD.replace("8", "true"), "bad_score"),
    "null": (GOOD.replace("8", "null"), "bad_score"),
    "string": (GOOD.replace("8", '"8"'), "bad_score"),
    "out of ten": (GOOD.replace("8", '"8/10"'), "bad_score"),
    "list": (GOOD.replace("8", "[8]"), "bad_score"),
    "object": (GOOD.replace("8", '{"score": 8}'), "bad_score"),
    "analysis as a list": (GOOD.replace('"The dog is brown, not black."', '["a", "b"]'), "bad_analysis"),
    "analysis as null": (GOOD.replace('"The dog is brown, not black."', "null"), "bad_analysis"),
    "very deep": ('{"a":' * 20000, "cut_off"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_everything_else(text: str, reason: str) -> None:
    failure = parse_scores(text, QUALITY_KEYS, "stop")
    assert isinstance(failure, Failure), failure
    assert failure.reason == reason, failure
    assert failure.detail
    assert len(failure.detail) < 700


@pytest.mark.parametrize(
    ("finish_reason", "reason"),
    [("length", "cut_off"), ("max_tokens", "cut_off")]
    + [(said, "filtered") for said in ("content_filter", "abort", "error", "refusal")],
)
def test_how_the_answer_ended_counts_before_its_text(finish_reason: str, reason: str) -> None:
    failure = parse_scores(GOOD, QUALITY_KEYS, finish_reason)
    assert isinstance(failure, Failure)
    assert failure.reason == reason


def test_no_content_is_a_failure() -> None:
    failure = parse_scores(None, QUALITY_KEYS, "stop")
    assert isinstance(failure, Failure)
    assert failure.reason == "empty_answer"


def test_global_video_keys_put_reasonability_into_the_third_slot() -> None:
    text = '{"Analysis": "x", "Reasonability": 3, "Correctness": 4, "Completeness": 5}'
    scores = parse_scores(text, GLOBAL_VIDEO_KEYS, "stop")
    assert isinstance(scores, Scores)
    assert (scores.correctness, scores.completeness, scores.third) == (4, 5, 3)
    assert scores.third_key == "Reasonability"
    assert isinstance(parse_scores(GOOD, GLOBAL_VIDEO_KEYS, "stop"), Failure)


def test_analysis_can_always_be_written_to_a_file() -> None:
    scores = parse_scores(GOOD.replace("brown", r"\ud83d brown"), QUALITY_KEYS, "stop")
    assert isinstance(scores, Scores)
    scores.analysis.encode("utf-8")


def test_unknown_keys_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="unknown score keys"):
        parse_scores(GOOD, ("Correctness", "Beauty", "Length"), "stop")


def random_text(rng: random.Random, length: int) -> str:
    alphabet = string.ascii_letters + string.digits + ' \n\t.,:;!?"\\{}[]<>/|`-_éß\u4e2d\U0001f600'
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(length)))


def test_any_analysis_and_any_scores_survive_a_round_trip() -> None:
    rng = random.Random(1)
    for _ in range(500):
        analysis = random_text(rng, 120).replace("</think>", "")
        values = {key: rng.randint(0, 10) for key in QUALITY_KEYS}
        entries = [("Analysis", analysis), *values.items()]
        rng.shuffle(entries)
        text = json.dumps(dict(entries), indent=rng.choice([None, 2]), ensure_ascii=rng.random() < 0.5)
        if rng.random() < 0.5:
            text = f"```json\n{text}\n```"
        scores = parse_scores(text, QUALITY_KEYS, "stop")
        assert isinstance(scores, Scores), (text, scores)
        assert scores.analysis == analysis
        assert scores.by_key() == values


def test_no_proper_prefix_of_a_verdict_is_a_verdict() -> None:
    for end in range(len(LONG)):
        assert isinstance(parse_scores(LONG[:end], QUALITY_KEYS, None), Failure), LONG[:end]


def test_damage_never_raises_and_never_gives_a_number_out_of_range() -> None:
    rng = random.Random(2)
    for _ in range(3000):
        letters = list(rng.choice([GOOD, LONG, f"<think>a</think>```json\n{GOOD}\n```"]))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(letters))
            letters[at : at + rng.randint(0, 3)] = random_text(rng, 4)
        scores = parse_scores("".join(letters), QUALITY_KEYS, "stop")
        if isinstance(scores, Scores):
            assert all(type(value) is int and 0 <= value <= 10 for value in scores.by_key().values())


@pytest.mark.parametrize(
    "text",
    ["{" * 20000, '{"' * 10000, '{"a": "' + '\\"' * 10000, '{"a": ' + "," * 20000 + "}", "<think>" * 5000],
    ids=["braces", "openings", "escaped quotes", "commas", "thoughts"],
)
def test_reading_is_quick_whatever_the_text(text: str) -> None:
    began = time.process_time()
    assert isinstance(parse_scores(text, QUALITY_KEYS, "stop"), Failure)
    assert time.process_time() - began < 2
