"""Finds and makes the evaluators that a configuration names."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from vcap_jax.configuration import ConfigError
from vcap_jax.evals.config import EVALUATORS, EvaluationConfig, EvaluatorConfig
from vcap_jax.evals.protocol import (
    Captioner,
    Evaluation,
    EvaluationFailed,
    Evaluator,
    EvaluatorError,
    EvaluatorTools,
    Item,
    NothingToEvaluate,
)
from vcap_jax.report.intervals import Value
from vcap_jax.system.errors import VCapError
from vcap_jax.system.plugins import is_a, named_object, users_code

_PROTOCOL = "see vcap_jax.evals.protocol.Evaluator"


def load_evaluator(config: EvaluatorConfig) -> type[Evaluator]:
    """The class that ``config.use`` names. Raises EvaluatorError for what is no evaluator."""
    where = _where(config)
    found = named_object(
        EVALUATORS.get(config.use, config.use),
        where=where,
        kind="evaluator",
        known=EVALUATORS,
        error=EvaluatorError,
    )
    if problem := _misfit(found, config):
        raise EvaluatorError(f"{where} {problem}; {_PROTOCOL}")
    return cast(type[Evaluator], found)


def load_evaluators(config: EvaluationConfig, modality: str) -> dict[str, type[Evaluator]]:
    """The configured classes by the names that they have in the run, in their order.

    Raises EvaluatorError for what is no evaluator, ConfigError for two of one name and one of another modality.
    """
    found: dict[str, type[Evaluator]] = {}
    for entry in config.evaluators:
        evaluator = load_evaluator(entry)
        name = entry.name or evaluator.name
        if name in found:
            raise ConfigError(f"evaluation.evaluators has {name!r} twice: give one of them another name")
        if evaluator.modality not in (None, modality):
            raise ConfigError(
                f"evaluation.evaluators: {name} captions {evaluator.modality}s, and modality is {modality}"
            )
        found[name] = evaluator
    return found


@dataclass(frozen=True)
class NamedEvaluator:
    """name: in the run. config: what it was made from."""

    name: str
    config: EvaluatorConfig
    evaluator: Evaluator


def made_evaluators(
    config: EvaluationConfig, tools: EvaluatorTools, say: Callable[[str], None]
) -> list[NamedEvaluator]:
    """The configured evaluators in their order. Those that have nothing to evaluate here are left out, which is said.

    Raises EvaluatorError for one that cannot be made, and what ``load_evaluators`` raises.
    """
    classes = load_evaluators(config, tools.modality)
    made: list[NamedEvaluator] = []
    for (name, evaluator), entry in zip(classes.items(), config.evaluators, strict=True):
        where, ours = f"{_where(entry)} cannot be made with these settings", entry.use in EVALUATORS
        passing = (NothingToEvaluate, VCapError)
        try:
            with users_code(where, evaluator.__module__, EvaluatorError, passing=passing, ours=ours):
                made.append(NamedEvaluator(name, entry, evaluator(entry, tools)))
        except NothingToEvaluate as nothing:
            if str(nothing):
                say(f"no evaluation by {name}: {nothing}")
    return made


def evaluated_by(named: NamedEvaluator, captioner: Captioner) -> Evaluation:
    """What the evaluator finds.

    Raises EvaluationFailed for other results and for whatever an evaluator of a user's own raises; errors with a remedy
    (VCapError) and those of this project's evaluators come through.
    """
    where = f"the evaluation {named.name!r}"
    module, ours = type(named.evaluator).__module__, named.config.use in EVALUATORS
    with users_code(f"{where} failed", module, EvaluationFailed, passing=(VCapError,), ours=ours):
        found = named.evaluator.evaluate(captioner)
    if problem := _misfit_result(found):
        raise EvaluationFailed(f"{where} gave {problem}; {_PROTOCOL}")
    return found


def _where(config: EvaluatorConfig) -> str:
    return f"evaluation.evaluators: use {config.use!r}"


def _misfit(found: object, config: EvaluatorConfig) -> str | None:
    """Why something is no evaluator; None if it is one."""
    if not isinstance(found, type):
        return "is not a class"
    if not callable(getattr(found, "evaluate", None)):
        return "lacks evaluate"
    name, modality = getattr(found, "name", None), getattr(found, "modality", "absent")
    if not isinstance(name, str):
        return "has no name, a text of its class"
    try:
        dataclasses.replace(config, name=config.name or name)
    except ValueError as error:
        return f"cannot be used: {error}"
    if modality not in (None, "image", "video"):
        return "has no modality, one of 'image', 'video' and None, on its class"
    try:
        inspect.signature(found).bind(None, None)
    except TypeError:
        return "is not made from (config, tools)"
    return None


def _misfit_result(found: object) -> str | None:
    """What is wrong with an evaluator's result, in words that follow "gave"; None if nothing is."""
    if not isinstance(found, Evaluation):
        return f"a {type(found).__name__}, not an Evaluation"
    for name, value in found.metrics.items():
        if not is_a(name, str) or not is_a(value, Value):
            return f"the metric {name!r} of type {type(value).__name__}, not Value"
        if infinite := [part for part in (value.value, value.low, value.high) if math.isinf(part)]:
            return f"the metric {name!r} with {infinite[0]}: a number is finite, or NaN where nothing is measured"
    if strange := [name for name in found.shares if name not in found.metrics]:
        return f"the share {strange[0]!r}, which is none of its metrics"
    if not is_a(found.items, tuple) or not all(is_a(item, Item) for item in found.items):
        return "items that are no tuple of Item"
    return None
