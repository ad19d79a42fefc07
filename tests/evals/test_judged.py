"""A user's held-out samples, scored by a scripted judge over HTTP: every figure by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.reward.scripted_judge import Reply, ScriptedJudge, candidate_of, never, prompt_text, verdict
from tests.sleeping import SharedDevices, Sleeper
from vcap_jax.data.errors import MediaError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.media import JudgeFrame, TimeWindow
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.evals.captioners import PoolCaptioner
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.judged import Judged, repetition
from vcap_jax.evals.protocol import Captions, EvaluatorTools, NothingToEvaluate, OwnData
from vcap_jax.evals.registry import made_evaluators
from vcap_jax.evals.statistics import changes_of_means
from vcap_jax.reward.config import JudgeConfig, RewardConfig
from vcap_jax.reward.session import RewardSession
from vcap_jax.system.shutdown import Stopped

NAMES = ("a", "b", "c", "d")
SAMPLES = tuple(Sample(id=name, images=(Path(f"{name}.png"),)) for name in NAMES)
POOL = ReferencePool(PoolEntry(id=name, references=(f"A weak {name}.",)) for name in NAMES)
CONFIG = EvaluatorConfig(use="judged")


class Picture:
    modality: Literal["image", "video"] = "image"
    duration = 0.0

    def frames(self, window: TimeWindow | None = None) -> Sequence[JudgeFrame]:
        return [JudgeFrame(url="data:x")]


class Given:
    """A captioner with its captions; a text says why there are none."""

    def __init__(self, captions: dict[str, Sequence[str] | str]) -> None:
        self._captions = captions

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        return [self._of(sample.id) for sample in samples]

    def _of(self, name: str) -> Captions:
        given = self._captions[name]
        if isinstance(given, str):
            return Captions(id=name, failure=given)
        cut = tuple("cut" in text for text in given)
        return Captions(
            id=name, texts=tuple(given), tokens=tuple(len(t.split()) + 1 for t in given), truncated=cut
        )


@pytest.fixture
def judge() -> Iterator[ScriptedJudge]:
    server = ScriptedJudge()
    yield server
    server.close()


@pytest.fixture
def other() -> Iterator[ScriptedJudge]:
    server = ScriptedJudge()
    yield server
    server.close()


def session(judge: ScriptedJudge, store: Path | None = None) -> RewardSession:
    settings = JudgeConfig(
        urls=(judge.url,), backoff_s=0.01, max_tries=2, store=None if store is None else str(store)
    )
    return RewardSession(RewardConfig(), settings, seed=0)


def test_a_judge_that_takes_turns_has_one_for_all_samples() -> None:
    devices = SharedDevices()
    sharing = ScriptedJudge(Sleeper("judge", devices))
    try:
        settings = JudgeConfig(urls=(sharing.url,), sleep_mode=True)
        with RewardSession(RewardConfig(), settings, seed=0) as asked:
            found = judged(session=asked).evaluate(Given(dict.fromkeys(NAMES, ("A caption.",))))
    finally:
        sharing.close()
    assert devices.did == ["judge wakes up", "judge sleeps"]
    assert (devices.wrong, found.failed, len(found.items)) == ([], 0, len(NAMES))


def judged(**own: Any) -> Judged:
    whole = OwnData(**{"samples": SAMPLES, "references": POOL, "media": lambda sample: Picture(), **own})
    return Judged(CONFIG, EvaluatorTools(modality="image", own=whole))


def by_words(body: dict[str, Any], n: int) -> Reply:
    """Correctness is the number of words; a caption of the word "broken" is answered with prose."""
    caption = candidate_of(body)
    if "broken" in caption:
        return Reply(content="I cannot say.")
    return verdict(
        Correctness=len(caption.split()), Completeness=5, **{"Text Quality": 10, "Analysis": caption}
    )


def test_every_figure_by_hand(judge: ScriptedJudge) -> None:
    judge.answer = by_words
    captions = {
        "a": ["two words", "now three words"],
        "b": ["broken", "cut now"],
        "c": ["broken"],
        "d": "no file",
    }
    with session(judge) as mine:
        found = judged(session=mine).evaluate(Given(captions))
    a, b, c, d = found.items
    assert (a.values["correctness"], a.values["completeness"], a.values["text_quality"]) == (2.5, 5, 10)
    assert (b.values["correctness"], b.values["judge_failed"]) == (2, 0.5)
    # What the judge did not answer is no reward of 0.
    rewards = [0.05 * correctness + 0.04 * 5 + 0.01 * 10 for correctness in (2.5, 2)]
    assert [a.values["reward"], b.values["reward"]] == pytest.approx(rewards)
    assert c.values == {"judge_failed": 1, "tokens": 2, "words": 1, "repetition": 0, "truncated": 0}
    assert (d.failure, d.values) == ("no file", {})
    assert found.failed == 1
    values = {name: value.value for name, value in found.metrics.items()}
    assert values["correctness"] == (2.5 + 2) / 2
    assert values["reward"] == pytest.approx((a.values["reward"] + b.values["reward"]) / 2)
    assert values["judge_failed"] == pytest.approx((0 + 0.5 + 1) / 3)
    assert values["tokens"] == pytest.approx((3.5 + 2.5 + 2) / 3)
    assert values["words"] == pytest.approx((2.5 + 1.5 + 1) / 3)
    assert values["truncated"] == pytest.approx((0 + 0.5 + 0) / 3)
    assert set(found.shares) == {"judge_failed", "repetition", "truncated"}
    assert found.metrics["reward"].n == 2  # of the three items without failure those that have a reward
    assert found.metrics["words"].n == 3
    assert a.notes == {"The judge's analysis": "two words"}
    assert c.notes["Not scored"].startswith("no_verdict: global pass: ")
    # The witness is the reference of the pool, the same at every evaluation.
    assert any("A weak a." in prompt_text(body) for body in judge.bodies)


def test_the_reward_is_that_of_the_run(judge: ScriptedJudge) -> None:
    """As the session scores the same caption in training."""
    from vcap_jax.reward.group import GroupForReward

    judge.answer = by_words
    group = GroupForReward(
        sample_id="a", step=7, index=0, media=Picture(), reference="A weak a.", captions=("three words now",)
    )
    with session(judge) as mine:
        (score,) = mine.submit(group).result(60).candidates
        found = judged(session=mine).evaluate(Given(dict.fromkeys(NAMES, ("three words now",))))
    assert {item.values["reward"] for item in found.items} == {score.reward}


def test_the_references_are_scored_as_captions_and_another_judge_is_heard(
    judge: ScriptedJudge, other: ScriptedJudge
) -> None:
    judge.answer = by_words
    other.answer = lambda body, n: verdict(Correctness=0, Completeness=0, **{"Text Quality": 0})
    with session(judge) as mine, session(other) as theirs:
        found = judged(session=mine, other=theirs).evaluate(PoolCaptioner(POOL))
    values = {name: value.value for name, value in found.metrics.items()}
    assert (values["correctness"], values["other/correctness"], values["other/reward"]) == (3, 0, 0)
    assert values["other/judge_failed"] == 0
    assert set(found.shares) == {"judge_failed", "other/judge_failed", "repetition"}
    assert "tokens" not in values  # of a pool nobody knows them
    assert "truncated" not in values
    assert len(other.bodies) == len(judge.bodies) == 4


def test_a_sample_without_a_reference_is_no_caption_of_no_words(judge: ScriptedJudge) -> None:
    pool = ReferencePool(entry for entry in POOL.entries() if entry.id != "b")
    with session(judge) as mine:
        found = judged(session=mine, references=pool).evaluate(PoolCaptioner(pool, each=0))
    assert (found.failed, found.items[1].failure) == (1, "no reference")
    assert (found.metrics["words"].value, found.metrics["judge_failed"].value) == (3, 0)


def test_what_the_store_knows_is_not_asked_again_and_is_no_step_of_the_training(
    judge: ScriptedJudge, tmp_path: Path
) -> None:
    from vcap_jax.reward.store import read_candidates

    captions = Given(dict.fromkeys(NAMES, ("some words",)))
    with session(judge, tmp_path / "store.sqlite") as mine:
        first = judged(session=mine).evaluate(captions)
    asked = len(judge.bodies)
    with session(judge, tmp_path / "store.sqlite") as mine:
        assert judged(session=mine).evaluate(captions) == first
    assert len(judge.bodies) == asked == 4
    assert list(read_candidates(tmp_path / "store.sqlite")) == []


def test_a_sample_whose_file_is_gone_for_the_judge_or_has_no_reference_is_not_scored(
    judge: ScriptedJudge,
) -> None:
    def media(sample: Sample) -> Picture:
        if sample.id == "a":
            raise MediaError("a.png is cut")
        return Picture()

    pool = ReferencePool(entry for entry in POOL.entries() if entry.id != "b")
    with session(judge) as mine:
        found = judged(session=mine, media=media, references=pool).evaluate(
            Given(dict.fromkeys(NAMES, ("some words",)))
        )
    assert found.items[0].notes == {"Not scored": "a.png is cut"}
    assert "no reference for the sample" in found.items[1].notes["Not scored"]
    assert [item.values["judge_failed"] for item in found.items] == [1, 1, 0, 0]
    assert "reward" not in found.items[0].values
    assert found.metrics["judge_failed"].value == 0.5


def test_differences_to_the_start_are_of_the_samples_that_both_have(judge: ScriptedJudge) -> None:
    judge.answer = by_words
    with session(judge) as mine:
        evaluator = judged(session=mine)
        start = evaluator.evaluate(
            Given({"a": ["one"], "b": ["one two"], "c": ["broken"], "d": ["one two three"]})
        )
        later = evaluator.evaluate(
            Given({"a": ["one two"], "b": ["one two three four"], "c": ["one two three"], "d": ["broken"]})
        )
    changes = changes_of_means(start, later)
    assert changes["correctness"].value == (1 + 2) / 2
    assert (changes["correctness"].n, changes["words"].n) == (2, 4)
    assert (changes["correctness"].low, changes["correctness"].high) == (1, 2)
    assert changes["words"].value == (1 + 2 + 2 - 2) / 4


def test_rows_of_one_picture_are_drawn_together(judge: ScriptedJudge) -> None:
    judge.answer = by_words
    rows = [
        replace(one, images=SAMPLES["abcd".index(of)].images) for one, of in zip(SAMPLES, "aabb", strict=True)
    ]
    captions = {"a": ["one"], "b": ["one"], "c": ["one two three"], "d": ["one two three"]}
    with session(judge) as mine:
        apart = judged(session=mine).evaluate(Given(captions))
        together = judged(session=mine, samples=tuple(rows)).evaluate(Given(captions))
    # A row more of a picture is no draw more: of two pictures one comes twice in half of the draws.
    found = together.metrics["correctness"]
    assert (found.value, found.low, found.high, found.n) == (2, 1, 3, 2)
    assert [item.of for item in together.items] == ["a", "a", "c", "c"]
    assert (together.measured["correctness"], apart.measured) == (4, {})
    assert apart.metrics["correctness"].n == 4
    assert not any('"of"' in item.line() for item in apart.items)
    # Resumed, after a start that did not say what its samples are of yet.
    changes = changes_of_means(apart, together)
    assert changes["correctness"].n == 2


def test_a_stop_is_heard_while_the_judge_hangs(judge: ScriptedJudge) -> None:
    judge.answer = lambda body, n: Reply(content="", hold=never)
    with session(judge) as mine, pytest.raises(Stopped, match="stopped in an evaluation"):
        judged(session=mine, stop=lambda: True).evaluate(Given(dict.fromkeys(NAMES, ("some words",))))


def test_repetition_is_the_share_of_four_grams_that_came_before() -> None:
    assert repetition("a b c") == 0
    assert repetition("a b c d e f g") == 0
    # a b c d, b c d a, c d a b, d a b c, a b c d: one of five.
    assert repetition("A b, c d. a b c d") == pytest.approx(1 / 5)
    assert repetition("red " * 103) == pytest.approx(0.99)
    assert repetition("红色的圆。" * 2) == pytest.approx(1 / 5)


def test_without_held_out_data_it_says_what_to_set_and_is_silent_in_the_embedded_world() -> None:
    with pytest.raises(NothingToEvaluate, match=r"data.heldout=FILE or data.heldout_share"):
        Judged(CONFIG, EvaluatorTools(modality="image"))
    said: list[str] = []
    world: Any = object()
    from vcap_jax.evals.config import EvaluationConfig

    assert not made_evaluators(
        EvaluationConfig(evaluators=(CONFIG,)), EvaluatorTools(modality="image", world=world), said.append
    )
    assert said == []
