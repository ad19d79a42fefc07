"""A step's experience: which prompts share a batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.signals import ask_to_stop
from vcap_jax.data.batching import PromptBatcher
from vcap_jax.data.examples import Example
from vcap_jax.data.pipeline import GroupBatch
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.grpo.collect import Collector
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt
from vcap_jax.models.qwen3_vl.processing import collate, padded_sizes
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.reward.group import CandidateScore, GroupPrompt, GroupScores
from vcap_jax.rollout.engine import RolloutBatch
from vcap_jax.rollout.slots import SampledCaption, SampledGroup
from vcap_jax.system.shutdown import Stopped, finishing


def example(tokens: int) -> Example:
    prompt = EncodedPrompt(
        tokens=np.arange(tokens, dtype=np.int32),
        positions=np.zeros((3, tokens), np.int32),
        frames=(),
        grids=np.zeros((0, 2), np.int32),
        is_visual=np.zeros(tokens, bool),
    )
    named: Any = SimpleNamespace(id=f"{tokens} tokens")
    nothing: Any = SimpleNamespace()
    return Example(sample=named, request="", prompt=prompt, media=nothing)


class Engine:
    """Yields the groups of every batch, the last one first, their captions too; a group's token is its index. Those of
    odd indices are cut off."""

    def __init__(self, captions: int) -> None:
        self.captions = captions
        self.batches: list[RolloutBatch] = []

    def stream(
        self,
        params: Any,
        batches: Iterable[RolloutBatch],
        *,
        step: int,
        ended: Callable[[SampledCaption], None] | None = None,
    ) -> Iterator[SampledGroup]:
        assert ended is not None
        for batch in batches:
            self.batches.append(batch)
            for index in reversed(batch.indices):
                tokens = np.full((self.captions, 1), index, np.int32)
                lengths = np.ones(self.captions, np.int32)
                for place in reversed(range(self.captions)):
                    ended(SampledCaption(index, place, tokens[place] + 10 * place))
                cut_off = np.full(self.captions, index % 2 == 1)
                yield SampledGroup(index, tokens, lengths, cut_off, np.float32(-tokens))

    def measured(self) -> dict[str, float]:
        return {"rollout/own": 0.5}


class Session:
    unreachable: str | None = None
    takes_turns = False

    def __init__(self) -> None:
        self.asked: list[GroupPrompt] = []
        self.told: list[tuple[int, int, str]] = []

    def open(self, prompt: GroupPrompt, size: int) -> Any:
        self.asked.append(prompt)
        return SimpleNamespace(
            end=lambda place, text: self.told.append((prompt.index, place, text)),
            scores=self.scores(prompt, size),
        )

    def scores(self, prompt: GroupPrompt, size: int) -> Future[GroupScores]:
        future: Future[GroupScores] = Future()
        candidates = (CandidateScore(reward=1.0),) * size
        future.set_result(GroupScores(sample_id=prompt.sample_id, step=prompt.step, candidates=candidates))
        return future


def collect(
    tokens: list[int], indices: tuple[int, ...], session: Session | None = None, captions: int = 1
) -> tuple[Engine, Any]:
    engine = Engine(captions)
    collector = collector_of(engine, session)
    batch = GroupBatch(examples=tuple(map(example, tokens)), indices=indices, skipped=())
    return engine, collector.scored(collector.draw(None, batch, step=1))


def collector_of(engine: Engine, session: Session | None = None, *, looks_first: bool = False) -> Collector:
    policy = SimpleNamespace(
        processor=SimpleNamespace(collate=partial(collate, merge_size=2), padded_sizes=padded_sizes),
        frozen=None,
        texts=lambda tokens, lengths: tuple(f"caption {row[0]}" for row in tokens),
    )
    return Collector(
        policy=policy,  # type: ignore[arg-type]
        engine=engine,
        session=session or Session(),  # type: ignore[arg-type]
        pool=None,
        batcher=PromptBatcher(policy, Buckets(token_multiple=10), 2, lambda batch: batch),  # type: ignore[arg-type]
        seed=0,
        group_size=engine.captions,
        looks_first=looks_first,
    )


def test_prompts_of_one_size_share_a_batch_and_the_largest_come_first() -> None:
    engine, _ = collect([15, 35, 11, 31, 12], (0, 1, 2, 3, 4))
    assert [tuple(batch.indices) for batch in engine.batches] == [(1, 3), (0, 2), (4,)]
    # In their order they would have been three batches of 40, 40 and 20 tokens.
    assert [batch.prompt.tokens.shape for batch in engine.batches] == [(2, 40), (2, 20), (2, 20)]
    assert [e.sample.id for e in engine.batches[0].examples] == ["35 tokens", "31 tokens"]


def test_prompts_of_one_size_stay_in_their_order() -> None:
    engine, _ = collect([13, 18, 11, 20], (0, 1, 2, 3))
    assert [tuple(batch.indices) for batch in engine.batches] == [(0, 1), (2, 3)]


def test_records_are_in_the_order_of_the_groups_and_each_is_its_own() -> None:
    """Of the second of two processes, whose indices do not begin at 0."""
    engine, rollout = collect([15, 35, 11, 31, 12], (5, 6, 7, 8, 9))
    assert [record.index for record in rollout.records] == [5, 6, 7, 8, 9]
    assert [record.sample_id for record in rollout.records] == [f"{n} tokens" for n in (15, 35, 11, 31, 12)]
    assert [int(record.tokens[0, 0]) for record in rollout.records] == [5, 6, 7, 8, 9]
    assert [bool(record.truncated[0]) for record in rollout.records] == [True, False, True, False, True]
    assert [float(record.sampler_logprobs[0, 0]) for record in rollout.records] == [-5, -6, -7, -8, -9]
    assert rollout.measured == {"rollout/own": 0.5}
    assert [record.scores.sample_id for record in rollout.records] == [r.sample_id for r in rollout.records]
    assert list(rollout.batches) == engine.batches


def test_a_group_goes_to_the_reward_with_its_index_which_names_it_where_a_sample_occurs_twice() -> None:
    session = Session()
    collect([12, 35, 12], (3, 4, 5), session)
    asked = sorted((group.index, group.sample_id) for group in session.asked)
    assert asked == [(3, "12 tokens"), (4, "35 tokens"), (5, "12 tokens")]


def test_a_caption_goes_to_the_reward_when_it_ends_and_stands_at_its_place() -> None:
    session = Session()
    _, rollout = collect([12, 35], (3, 4), session, captions=2)
    assert session.told == [
        (3, 1, "caption 13"),
        (3, 0, "caption 3"),
        (4, 1, "caption 14"),
        (4, 0, "caption 4"),
    ]
    assert [record.captions for record in rollout.records] == [
        ("caption 3", "caption 13"),
        ("caption 4", "caption 14"),
    ]


def test_the_reference_that_is_compared_with_follows_from_the_seed_and_the_step() -> None:
    pool = ReferencePool([PoolEntry(id="9 tokens", references=tuple(f"reference {k}" for k in range(50)))])
    batch = GroupBatch(examples=(example(9),), indices=(0,), skipped=())
    for seed, step in itertools.product((0, 1), (0, 7)):
        session = Session()
        collector = replace(collector_of(Engine(1), session), pool=pool, seed=seed)
        rollout = collector.scored(collector.draw(None, batch, step=step))
        (prompt,) = session.asked
        assert prompt.references == pool["9 tokens"].references
        assert prompt.reference == rollout.records[0].reference == pool.pick("9 tokens", seed, step)


def test_the_second_judge_is_given_every_group_whole() -> None:
    heard: dict[int, Any] = {}

    def consider(group: Any, scores: Future[GroupScores]) -> None:
        heard[group.index] = (group.captions, scores.result().sample_id)

    second: Any = SimpleNamespace(consider=consider)
    batch = GroupBatch(examples=(example(12), example(35)), indices=(3, 4), skipped=())
    replace(collector_of(Engine(2)), second_judge=second).draw(None, batch, step=1)
    assert heard == {
        3: (("caption 3", "caption 13"), "12 tokens"),
        4: (("caption 4", "caption 14"), "35 tokens"),
    }


class Gone(Session):
    """Its judge does not answer any more; a run that asks it has just been asked to end."""

    unreachable = "the judge at http://x does not answer (connection refused)"

    def scores(self, prompt: GroupPrompt, size: int) -> Future[GroupScores]:
        ask_to_stop()
        return Future()


def test_a_run_that_was_asked_to_end_does_not_wait_for_a_judge_that_is_gone() -> None:
    def step() -> None:
        with finishing("the step in work"), pytest.raises(JudgeUnavailable) as ended:
            collect([9], (0,), Gone())
        assert str(ended.value) == f"the run was asked to end while {Gone.unreachable}"

    with pytest.raises(Stopped):
        step()


def test_room_is_made_with_the_first_pictures_or_with_the_last_where_the_engine_needs_the_devices() -> None:
    def seen(looks_first: bool) -> list[int]:
        engine, batches = Engine(1), list[int]()
        batch = GroupBatch(examples=tuple(map(example, (15, 35, 11))), indices=(0, 1, 2), skipped=())
        collector_of(engine, looks_first=looks_first).draw(
            None, batch, step=1, make_room=lambda: batches.append(len(engine.batches))
        )
        return batches

    assert seen(False) == [0]
    assert seen(True) == [1]  # the engine has one batch, and the second is the last


class InTurns(Session):
    """Its judge answers in its turn, once that has begun."""

    takes_turns = True

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Future[GroupScores], GroupScores]] = []
        self.turns = 0

    def scores(self, prompt: GroupPrompt, size: int) -> Future[GroupScores]:
        future: Future[GroupScores] = Future()
        self.held.append((future, super().scores(prompt, size).result()))
        return future

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.turns += 1
        for future, scores in self.held:
            future.set_result(scores)
        yield
        assert all(future.done() for future, _ in self.held)


def test_a_judge_that_takes_turns_has_its_own_when_all_captions_are_drawn() -> None:
    session, engine = InTurns(), Engine(2)
    collector = collector_of(engine, session)
    batch = GroupBatch(examples=tuple(map(example, (15, 35))), indices=(0, 1), skipped=())
    drawn = collector.draw(None, batch, step=1)
    assert session.turns == 0
    assert not any(group.scores.done() for group in drawn.judged)
    judged = collector.judged(drawn)
    assert session.turns == 1
    assert judged.judge_seconds > drawn.judge_seconds == 0
    rollout = collector.scored(replace(judged, judge_seconds=100.0))
    assert [record.scores.rewards for record in rollout.records] == [[1.0, 1.0]] * 2
    assert rollout.judge_seconds >= 100
    # Of any other judge nothing is waited for.
    plain = collector_of(Engine(1))
    drawn = plain.draw(None, GroupBatch(examples=(example(15),), indices=(0,), skipped=()), step=1)
    assert plain.judged(drawn) is drawn
