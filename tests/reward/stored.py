"""Judgements and candidates as runs store them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.patience import GUARD_S
from vcap_jax.reward.http_answers import Usage
from vcap_jax.reward.scores import Scores
from vcap_jax.reward.store import (
    Judgement,
    JudgementKey,
    JudgementStore,
    StoredCandidate,
)

KEY = JudgementKey(
    model="judge",
    instruction="image",
    version="v1",
    media="m",
    reference="A witness.",
    candidate="A cat.",
    prompt="p",
)


def judgement(correctness: int = 9, completeness: int = 8, third: int = 7) -> Judgement:
    scores = Scores(
        analysis="héllo \u2603",
        correctness=correctness,
        completeness=completeness,
        third=third,
        third_key="Text Quality",
    )
    usage = Usage(prompt_tokens=100, cached_tokens=64, completion_tokens=9)
    return Judgement(answer=scores.as_answer(), usage=usage, seconds=1.5, tries=2)


def key(number: int) -> JudgementKey:
    return replace(KEY, candidate=f"A cat {number}.", prompt=f"p{number}")


def candidate(**fields: Any) -> StoredCandidate:
    given: dict[str, Any] = {
        "step": 0,
        "group": 3,
        "sample_id": "a",
        "index": 0,
        "caption": "y",
        "family": "witness_adjudicator",
        "components": {},
        "verdicts": {"global": None},
        "reward": 0.0,
    }
    return StoredCandidate(**{**given, **fields})


def put(path: Path, *groups: list[StoredCandidate]) -> None:
    with JudgementStore(path) as store:
        for group in groups:
            store.put_group(group).result(GUARD_S)
