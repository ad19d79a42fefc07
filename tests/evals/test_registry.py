"""Evaluators by name and by import path: what fits, what does not, and what is made of their results."""

from __future__ import annotations

import pytest

from tests.evals import own_evaluators
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.evals.captioners import PoolCaptioner
from vcap_jax.evals.config import EvaluationConfig, EvaluatorConfig
from vcap_jax.evals.heldout import HeldOut
from vcap_jax.evals.judged import Judged
from vcap_jax.evals.protocol import EvaluatorError, EvaluatorTools
from vcap_jax.evals.registry import evaluated_by, load_evaluators, made_evaluators
from vcap_jax.run.config import RunConfig

OWN = "tests.evals.own_evaluators"
TOOLS = EvaluatorTools(modality="image")
NOBODY = PoolCaptioner(ReferencePool([PoolEntry(id="a", references=("A dog.",))]))


def listed(*names: str) -> EvaluationConfig:
    return EvaluationConfig(evaluators=tuple(EvaluatorConfig(use=f"{OWN}:{name}") for name in names))


def test_held_out_scenes_and_samples_are_what_a_run_has_by_default() -> None:
    assert load_evaluators(RunConfig().evaluation, "image") == {"heldout": HeldOut, "judged": Judged}
    assert RunConfig().evaluation.every is None


def test_an_evaluator_that_has_nothing_to_evaluate_is_left_out_and_says_why() -> None:
    said: list[str] = []
    assert not made_evaluators(EvaluationConfig(), TOOLS, said.append)
    assert not made_evaluators(listed("Elsewhere"), TOOLS, said.append)
    assert [line.partition(":")[0] for line in said] == [
        "no evaluation by heldout",
        "no evaluation by judged",
        "no evaluation by bare",
    ]
    assert said[2].endswith("it is for another data set")


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("held-out", "is no evaluator of this project: give one of heldout, judged, capmas,"),
        ("absent_package:Class", "absent_package cannot be imported.*PYTHONPATH"),
        (f"{OWN}:Absent", "has no Absent"),
        (f"{OWN}:function", "is not a class"),
        (f"{OWN}:Silent", "lacks evaluate"),
        (f"{OWN}:Nameless", "has no name"),
        (f"{OWN}:Modeless", "has no modality"),
        (f"{OWN}:Unmakeable", r"is not made from \(config, tools\)"),
        (f"{OWN}:Taken", "'heldout', an evaluator of this project; give another"),
    ],
)
def test_what_is_no_evaluator_is_refused_by_name(use: str, message: str) -> None:
    with pytest.raises(EvaluatorError, match=message) as raised:
        load_evaluators(EvaluationConfig(evaluators=(EvaluatorConfig(use=use),)), "image")
    assert use in str(raised.value)
    assert not raised.value.resumable  # the same command would be refused again


def test_two_of_one_name_and_another_modality_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 'bare' twice"):
        load_evaluators(listed("Bare", "Raising"), "image")
    with pytest.raises(ConfigError, match="words captions videos, and modality is image"):
        load_evaluators(listed("Videos"), "image")
    assert list(load_evaluators(listed("Videos"), "video")) == ["words"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Bare", "the evaluation 'bare' gave a dict, not an Evaluation"),
        ("Plain", "gave the metric 'words' of type float, not Value"),
        ("Infinite", "gave the metric 'words' with inf: a number is finite, or NaN"),
        ("Shared", "gave the share 'said', which is none of its metrics"),
        ("Raising", 'failed: KeyError: "of the user\'s" .*own_evaluators.py:[0-9]+, in evaluate'),
    ],
)
def test_what_an_evaluator_gives_is_held_against_its_promise(name: str, message: str) -> None:
    (named,) = made_evaluators(listed(name), TOOLS, print)
    with pytest.raises(EvaluatorError, match=message) as raised:
        evaluated_by(named, NOBODY)
    assert raised.value.resumable  # with the captions that are there


def test_an_evaluator_that_cannot_be_made_is_named_with_its_reason() -> None:
    with pytest.raises(EvaluatorError, match=f"{own_evaluators.__name__}:Unmade.*no such setting") as raised:
        made_evaluators(listed("Unmade"), TOOLS, print)
    assert not raised.value.resumable


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{use: heldout, options: {a: 1}}", "options .* are for a benchmark or an evaluator of your own"),
        ("{use: a:B, name: ../up}", "it names a folder"),
        ("{use: a:B, name: heldout}", "an evaluator of this project"),
        ("{use: heldout, captions: 0}", "evaluators.0.captions .*expected int >= 1"),
        ("{use: heldout, max_completion_length: 0}", "max_completion_length .*expected int >= 1"),
        ("{use: heldout, sampling: {temperature: 0}}", "set captions to 1"),
        ("{use: vdc, captions: 2, sampling: {temperature: 0}}", "set captions to 1"),
        ("{use: heldout, caption: 1}", "unknown key"),
        ("{}", "is required"),
    ],
)
def test_settings_that_cannot_work_are_refused(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(RunConfig, [], [f"evaluation.evaluators=[{entry}]"])


@pytest.mark.parametrize("captions", ["", ", captions: 1"])
def test_a_benchmark_draws_one_caption_so_it_may_be_greedy(captions: str) -> None:
    entry = f"{{use: vdc, sampling: {{temperature: 0}}, options: {{data: x}}{captions}}}"
    config = load_config(RunConfig, [], [f"evaluation.evaluators=[{entry}]"])
    assert config.evaluation.evaluators[0].sampling.temperature == 0


def test_evaluators_are_configured_on_the_command_line() -> None:
    greedy = "{use: heldout, name: greedy, captions: 1, sampling: {temperature: 0}}"
    config = load_config(
        RunConfig, [], ["evaluation.every=5", f"evaluation.evaluators=[{{use: heldout}},{greedy}]"]
    )
    assert list(load_evaluators(config.evaluation, "image")) == ["heldout", "greedy"]
    assert config.evaluation.evaluators[1].sampling.temperature == 0
