"""A judge with errors of perception: how often it errs, that it errs in the same way again, and what follows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from gpu_judge.embedded.judge import EmbeddedJudge
from gpu_judge.serve import main
from tests.gpu_judge.requests_of_the_world import about, body
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.report.run_folder import RunFolder, RunFolderError
from vcap_jax.run.config import RunConfig
from vcap_jax.world.captions import VALUES, full_caption, weak_caption, wrong_value
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.grammar import ATTRIBUTES, describe_image
from vcap_jax.world.judge_process import embedded_judge
from vcap_jax.world.noisy_perception import ImperfectSight, PerceptionConfig, imperfect
from vcap_jax.world.perception import Sight
from vcap_jax.world.scenes import IMAGE_PLACES, Modality, sample_image_scene, sample_scene


def sights(count: int, perception: PerceptionConfig) -> list[ImperfectSight]:
    """Of scenes whose facts are known; pixels do not matter here."""
    found = []
    for index in range(count):
        facts = scene_facts(sample_image_scene(60, index))
        places = {slot[0] for slot in facts if slot[0] != "scene"}
        sight = Sight(
            facts=facts, unknown=frozenset(), shots=(), prominence={(place,): 1.0 for place in places}
        )
        found.append(imperfect(sight, perception, index.to_bytes(16, "big")))
    return found


def share(outcomes: Sequence[bool | None], rate: float) -> None:
    """Within 4.5 standard errors of the rate."""
    spread = 4.5 * np.sqrt(rate * (1 - rate) / len(outcomes))
    assert abs(np.mean([bool(outcome) for outcome in outcomes]) - rate) <= spread, (rate, len(outcomes))


@pytest.mark.parametrize(("miss", "invent"), [(0.0, 0.0), (0.1, 0.02), (0.3, 0.25), (1.0, 1.0)])
def test_errors_come_at_their_rates(miss: float, invent: float) -> None:
    missed, confirmed, imagined = [], [], []
    for sight in sights(250, PerceptionConfig(miss=miss, invent=invent, seed=1)):
        for slot, value in sight.truth.items():
            missed.append(sight.verdict(slot, value) is False)
            confirmed += [sight.verdict(slot, v) for v in VALUES[str(slot[-1])] if v != value]
        empty = [(p, a) for p in IMAGE_PLACES for a in ATTRIBUTES if (p, a) not in sight.truth]
        imagined += [sight.verdict(slot, VALUES[slot[1]][0]) for slot in empty]
    share(missed, miss)
    share(confirmed, invent)
    share(imagined, invent)


def test_the_same_question_gets_the_same_answer_and_another_picture_or_seed_another() -> None:
    def errors(seed: int, picture: bytes) -> list[bool | None]:
        sight = sights(1, PerceptionConfig())[0]
        looked = imperfect(sight, PerceptionConfig(miss=0.5, invent=0.5, seed=seed), picture)
        return [looked.verdict((p, "colour"), v) for p in IMAGE_PLACES for v in VALUES["colour"]]

    assert errors(0, b"a") == errors(0, b"a")
    assert errors(0, b"a") != errors(0, b"b")
    assert errors(0, b"a") != errors(1, b"a")


def test_a_better_judge_errs_on_a_subset_of_what_a_worse_one_errs_on() -> None:
    rates = [(0.05, 0.05), (0.2, 0.1), (0.2, 0.4), (0.9, 0.9)]
    wrong = []
    for miss, invent in rates:
        wrong.append(
            {
                (number, slot, value)
                for number, sight in enumerate(sights(30, PerceptionConfig(miss=miss, invent=invent)))
                for slot in sight.truth
                for value in VALUES[str(slot[-1])]
                if sight.verdict(slot, value) != (sight.truth[slot] == value)
            }
        )
    for fewer, more in pairwise(wrong):
        assert fewer < more


def test_what_it_believes_unasked_is_what_it_would_confirm_when_asked() -> None:
    invented = 0
    for sight in sights(100, PerceptionConfig(miss=0.5, invent=0.1)):
        assert all(sight.verdict(slot, value) for slot, value in sight.facts.items())
        for slot in sight.truth.keys() - sight.facts.keys():
            assert not any(sight.verdict(slot, value) for value in VALUES[str(slot[-1])])
        invented += sum(sight.truth[slot] != value for slot, value in sight.facts.items())
    assert invented > 20


def test_what_pixels_do_not_decide_stays_undecided() -> None:
    sight = Sight(facts={}, unknown=frozenset({("center", "shape")}), shots=(), prominence={})
    looked = imperfect(sight, PerceptionConfig(miss=1, invent=1), b"")
    assert looked.verdict(("center", "shape"), "ring") is None
    assert looked.verdict(("center", "colour"), "red") is True


@pytest.mark.parametrize("modality", ["image", "video"])
def test_a_judge_that_sees_nothing_refutes_the_truth_and_one_that_imagines_confirms_falsehood(
    modality: Modality,
) -> None:
    rng = np.random.default_rng(0)
    blind = EmbeddedJudge(perception=PerceptionConfig(miss=1.0))
    dreamer = EmbeddedJudge(perception=PerceptionConfig(invent=1.0))
    for index in range(5):
        scene = sample_scene(modality, 61, index)
        full = full_caption(scene, rng)
        answer = blind.answer(about(scene, full, full))
        # No fact of the reference is supported, so none is missing; every claim was tested and fell.
        assert (answer["Correctness"], answer["Completeness"]) == (0, 5)
        if modality == "image":
            facts = scene_facts(scene)
            false = describe_image({slot: wrong_value(slot, v, rng) for slot, v in facts.items()}, rng)
            assert dreamer.answer(about(scene, false, full))["Correctness"] == 10
            assert EmbeddedJudge().answer(about(scene, false, full))["Correctness"] == 0


def test_errors_cost_the_true_caption_their_share_and_leave_the_order_of_captions_standing() -> None:
    rng = np.random.default_rng(1)
    judge = EmbeddedJudge(perception=PerceptionConfig(miss=0.2, invent=0.05, seed=3))
    earned: dict[str, list[float]] = {"full": [], "weak": [], "false": []}
    for index in range(60):
        scene = sample_image_scene(62, index)
        reference = weak_caption(scene, rng)
        facts = scene_facts(scene)
        false = describe_image({slot: wrong_value(slot, v, rng) for slot, v in facts.items()}, rng)
        captions = {"full": full_caption(scene, rng), "weak": weak_caption(scene, rng), "false": false}
        for name, caption in captions.items():
            answer = judge.answer(about(scene, caption, reference))
            earned[name].append(0.05 * int(answer["Correctness"]) + 0.04 * int(answer["Completeness"]))
    full, weak, false = (float(np.mean(earned[name])) for name in ("full", "weak", "false"))
    assert 0.75 < full < 0.85, "0.9 less a fifth of the 0.5 for correctness"
    assert full > weak > false


def test_without_a_picture_there_is_nothing_to_see_wrongly() -> None:
    rng = np.random.default_rng(2)
    scene = sample_image_scene(63, 0)
    request = body("image", None, weak_caption(scene, rng), weak_caption(scene, rng))
    wild = EmbeddedJudge(perception=PerceptionConfig(miss=0.9, invent=0.9))
    assert wild.answer(request) == EmbeddedJudge().answer(request)


def test_without_a_reference_it_weighs_what_it_notices_with_the_same_errors() -> None:
    rng = np.random.default_rng(3)
    scenes = [sample_image_scene(64, index) for index in range(40)]

    def completeness(perception: PerceptionConfig) -> float:
        judge = EmbeddedJudge(perception=perception)
        return float(
            np.mean([int(judge.answer(about(s, full_caption(s, rng), None))["Completeness"]) for s in scenes])
        )

    def of_one_object(attention: int) -> float:
        """Captions of the first two objects alone: one that notices more expects more."""
        judge = EmbeddedJudge(perception=PerceptionConfig(attention=attention))
        scores = []
        for scene in scenes:
            facts = scene_facts(scene)
            known = {item.place for item in scene.objects[:2]}
            part = describe_image({slot: v for slot, v in facts.items() if slot[0] in known}, rng)
            scores.append(int(judge.answer(about(scene, part, None))["Completeness"]))
        return float(np.mean(scores))

    assert completeness(PerceptionConfig()) == 8
    # It believes invented values of what it misses, and misses them in the caption.
    assert completeness(PerceptionConfig(miss=0.6, invent=0.3)) < 6
    assert of_one_object(9) < of_one_object(2)


def test_the_name_that_scores_are_stored_under_tells_every_judge_from_every_other() -> None:
    configs = [
        PerceptionConfig(),
        PerceptionConfig(miss=0.1),
        PerceptionConfig(invent=0.1),
        PerceptionConfig(miss=0.1, seed=1),
        PerceptionConfig(miss=0.1000001),
        PerceptionConfig(attention=3),
        PerceptionConfig(miss=0.1, attention=3),
    ]
    assert len({config.label for config in configs}) == len(configs)
    assert configs[0].label == "", "stores of judges without errors stay valid"
    # A seed of errors that never happen makes no other judge.
    assert PerceptionConfig(seed=4).label == ""


def test_the_server_that_a_run_starts_has_the_rates_in_its_name(tmp_path: Path) -> None:
    perception = PerceptionConfig(miss=0.25, invent=0.125, attention=4, seed=-7)
    with (
        embedded_judge(tmp_path / "log", perception) as url,
        urlopen(f"{url}/v1/models", timeout=300) as response,
    ):
        listed = [model["id"] for model in json.load(response)["data"]]
    assert listed == ["embedded-judge+miss=0.25+invent=0.125+seed=-7+attention=4"]


def test_a_run_is_not_resumed_with_another_judge(tmp_path: Path) -> None:
    begun = RunFolder.open(tmp_path / "run", load_config(RunConfig, [], ["world.judge_perception.miss=0.1"]))
    begun.metrics.write_text('{"step": 1}\n')
    other = load_config(RunConfig, [], ["world.judge_perception.miss=0.2"])
    with pytest.raises(RunFolderError, match=r"world\.judge_perception\.miss"):
        RunFolder.open(tmp_path / "run", other, resume=True, may_differ=("logging", "judge"))


def test_rates_are_refused_where_they_make_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--miss-rate", "1.5"]) == 2
    assert "miss (command line): expected float in [0, 1], given 1.5" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--backend", "vllm", "--model", "x", "--gpus", "0", "--miss-rate", "0.1"])
    assert "--miss-rate belong to --backend embedded" in capsys.readouterr().err
    with pytest.raises(
        ConfigError, match=r"world\.judge_perception\.invent .*expected float in \[0, 1\], given 2"
    ):
        load_config(RunConfig, [], ["world.judge_perception.invent=2"])
    with pytest.raises(ConfigError, match=r"judge\.urls names others"):
        load_config(RunConfig, [], ["world.judge_perception.miss=0.1", "judge.urls=[http://127.0.0.1:1]"])
    assert load_config(RunConfig, [], ["world.judge_perception.miss=0.1"]).world.judge_perception.miss == 0.1
