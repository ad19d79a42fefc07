"""Every number of a run's configuration is either usable or refused when it is loaded, under its full name."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.configuration.schema import fields_of, section_of
from vcap_jax.run.config import RunConfig

ZERO = """
    seed model.step model.lora.seed world.seed world.judge_perception.miss world.judge_perception.invent
    world.judge_perception.seed data.buckets.max_tokens data.buckets.max_frames data.buckets.max_patches
    data.judge_media.max_edge references.segments references.sampling.temperature references.sampling.top_k
    rollout.short_groups rollout.short_length rollout.single_groups rollout.sampling.top_k
    reward.weights.correctness reward.weights.completeness reward.weights.text_quality
    reward.weights.local reward.local.min_overlap reward.imitation.bleu judge.temperature judge.retry_temperature
    judge.backoff_s judge.max_backoff_s judge.max_retry_after_s judge.outage_timeout_s
    second_judge.judge.temperature second_judge.judge.retry_temperature second_judge.judge.backoff_s
    second_judge.judge.max_backoff_s second_judge.judge.max_retry_after_s second_judge.judge.outage_timeout_s
    grpo.objective.epsilon_low grpo.objective.epsilon_high grpo.objective.beta grpo.overlong.weight
    optimizer.warmup_ratio optimizer.min_lr_ratio optimizer.beta1 optimizer.beta2 optimizer.weight_decay
    sft.optimizer.warmup_ratio sft.optimizer.min_lr_ratio sft.optimizer.beta1 sft.optimizer.beta2
    sft.optimizer.weight_decay distributed.process_id distributed.local_devices logging.samples_per_step
    data.heldout_share data.heldout_seed evaluation.other_judge.temperature evaluation.other_judge.retry_temperature
    evaluation.other_judge.backoff_s evaluation.other_judge.max_backoff_s evaluation.other_judge.max_retry_after_s
    evaluation.other_judge.outage_timeout_s reward.claim_differences.omission reward.claim_differences.invention
    reward.balanced.precision reward.balanced.recall reward.balanced.text reward.balanced.shortest rollout.ahead
    rollout.vllm.outage_timeout_s references.questions_per_sample
"""
"""Where 0 is a number like others, or switches something off (rollout.sampling.temperature: for groups of one)."""
MINUS_ONE = ["mesh.fsdp", "world.judge_perception.seed"]
"""The devices left over (only one of mesh.*), and a seed that is hashed as it is written."""
INFINITE = ["rollout.vllm.importance_cap", "grpo.objective.epsilon_high"]
"""Bounds that may be absent."""
BESIDE = {
    "model.lora.": ["model.lora.rank=16"],
    "references.sampling.": ["references.sampling.top_k=50"],
    "second_judge.": ["second_judge.judge.urls=[http://127.0.0.1:8000]"],
    "evaluation.other_judge.": ["evaluation.other_judge.urls=[http://127.0.0.1:8000]"],
    "distributed.local_devices": ["distributed.automatic=true"],
    "distributed.process": [
        "distributed.coordinator=localhost:1",
        "distributed.processes=2",
        "distributed.process_id=1",
    ],
}
"""What must be set for a section that is absent by default."""


def numbers(schema: type = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in fields_of(schema).items():
        path, inside = prefix + name, section_of(field.annotation)
        if inside is not None:
            yield from numbers(inside, f"{path}.")
        elif {int, float} & set(types_in(field.annotation)):
            yield path, field.annotation


def types_in(annotation: Any) -> Iterator[Any]:
    """An annotation and all that it is made of."""
    yield annotation
    for part in typing.get_args(annotation):
        yield from types_in(part)


def accepts(path: str, annotation: Any, value: str) -> bool:
    """Whether a configuration with this value is loaded; a refusal must name the key, and nothing else be wrong."""
    beside = [line for start, lines in BESIDE.items() if path.startswith(start) for line in lines]
    shown = f"[{value}]" if typing.get_origin(annotation) is tuple else value
    try:
        load_config(RunConfig, [], [*beside, f"{path}={shown}"])
    except ConfigError as error:
        refusal = error
    else:
        return True
    assert len(refusal.problems) == 1, refusal
    assert path in refusal.problems[0], refusal
    return False


@pytest.mark.parametrize(
    ("path", "annotation"), list(numbers()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_number_is_usable_or_refused_by_name(path: str, annotation: Any) -> None:
    assert accepts(path, annotation, "0") == (path in ZERO.split())
    assert accepts(path, annotation, "-1") == (path in MINUS_ONE)
    assert not accepts(path, annotation, str(10**30))
    if float in set(types_in(annotation)):
        assert accepts(path, annotation, ".inf") == (path in INFINITE)
        for value in (".nan", "-.inf", "-1e308"):
            assert not accepts(path, annotation, value), value


def test_lists_of_exceptions_hold_nothing_that_is_gone() -> None:
    assert {*ZERO.split(), *MINUS_ONE, *INFINITE} <= {path for path, _ in numbers()}


def test_one_of_several_sections_of_a_class_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(RunConfig, [], ["sft.optimizer.learning_rate=0"])
    (problem,) = caught.value.problems
    assert problem == "sft.optimizer.learning_rate (command line): expected float > 0, given 0 (int)"


def test_a_list_without_brackets_is_told_how_to_write_it() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(RunConfig, [], ["judge.urls=http://a,http://b"])
    (problem,) = caught.value.problems
    assert problem.endswith("a list takes brackets: 'judge.urls=[http://a,http://b]'")
