"""Benchmarks in the embedded world: what they say of captions is what is counted of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scenes_as_benchmarks import write_capmas, write_decapbench, write_dream1k, write_vcapsbench
from gpu_judge.embedded.judge import EmbeddedJudge
from tests.evals.benchmarks.by_stage import Given
from tests.reward.fault_server import FaultServer
from vcap_jax.evals.benchmarks.benchmark import Benchmark
from vcap_jax.evals.benchmarks.capmas import CapMas
from vcap_jax.evals.benchmarks.decapbench import DeCapBench
from vcap_jax.evals.benchmarks.dream1k import Dream1k
from vcap_jax.evals.benchmarks.vcapsbench import VCapsBench
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.protocol import Evaluation, EvaluatorTools
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.world.captions import WeakSettings, full_caption, weak_caption
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import FactCount, caption_claims, count_facts, scene_facts
from vcap_jax.world.scenes import Modality, Scene, VideoScene
from vcap_jax.world.statements import read_statement, read_yes_no, statement, yes_no
from vcap_jax.world.video_grammar import parse_video, shot_of
from vcap_jax.world.vocabulary import Claim

COUNT = 8


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer(EmbeddedJudge()) as serving:
        yield serving


def scenes(modality: Modality) -> dict[str, Scene]:
    return {f"heldout-{k}": sample_scene(modality, 0, k, "heldout") for k in range(COUNT)}


def evaluated(
    kind: type[Benchmark[object]],
    write: Callable[[Path, Mapping[str, Scene]], None],
    found: Mapping[str, Scene],
    captions: Mapping[str, str],
    folder: Path,
    server: FaultServer,
) -> Evaluation:
    write(folder, found)
    config = EvaluatorConfig(use=kind.name, options={"data": str(folder)})
    judge = JudgeConfig(urls=(server.url,), backoff_s=0.001)
    tools = EvaluatorTools(modality=kind.modality or "image", judge=judge, say=lambda text: None)
    benchmark = kind(config, tools)
    by_id = {sample.id: captions[sample.id.removesuffix(".png")] for sample in benchmark.samples}
    return benchmark.evaluate(Given(by_id))


def weak(found: Mapping[str, Scene]) -> dict[str, str]:
    settings = WeakSettings(omit_object=0.2, omit_fact=0.3, wrong_fact=0.3, invent_object=0.5)
    return {
        name: weak_caption(scene, np.random.default_rng(k), settings)
        for k, (name, scene) in enumerate(found.items())
    }


def full(found: Mapping[str, Scene]) -> dict[str, str]:
    return {
        name: full_caption(scene, np.random.default_rng(k)) for k, (name, scene) in enumerate(found.items())
    }


def counted(found: Mapping[str, Scene], captions: Mapping[str, str]) -> FactCount:
    total = FactCount(total=0, claims=0, correct=0)
    for name, scene in found.items():
        total += count_facts(scene, captions[name])
    return total


def test_capmas_counts_what_is_true_of_weak_captions(server: FaultServer, tmp_path: Path) -> None:
    found = scenes("image")
    captions = weak(found)
    truth = counted(found, captions)
    result = evaluated(CapMas, write_capmas, found, captions, tmp_path, server)  # type: ignore[type-abstract]
    assert 0 < truth.correct < truth.claims
    assert result.metrics["coverage"].value == pytest.approx(100 * truth.coverage)
    assert result.metrics["factuality"].value == pytest.approx(100 * (1 - truth.hallucination))


def test_full_captions_are_covered_and_true(server: FaultServer, tmp_path: Path) -> None:
    found = scenes("image")
    result = evaluated(CapMas, write_capmas, found, full(found), tmp_path / "a", server)  # type: ignore[type-abstract]
    assert (result.metrics["coverage"].value, result.metrics["factuality"].value) == (100, 100)
    assert result.metrics["clair"].value > 90
    score = evaluated(DeCapBench, write_decapbench, found, full(found), tmp_path / "b", server)  # type: ignore[type-abstract]
    assert score.metrics["dcscore"].value == pytest.approx(100, abs=1e-3)


def test_decapbench_finds_precision_and_recall_of_weak_captions(server: FaultServer, tmp_path: Path) -> None:
    found = scenes("image")
    captions = weak(found)
    result = evaluated(DeCapBench, write_decapbench, found, captions, tmp_path, server)  # type: ignore[type-abstract]
    for item in result.items:
        count = count_facts(found[item.id.removesuffix(".png")], captions[item.id.removesuffix(".png")])
        assert item.values["precision"] == pytest.approx(1 - count.hallucination)
        assert item.values["recall"] == pytest.approx(count.coverage)


@pytest.mark.slow
def test_vcapsbench_covers_what_captions_of_videos_say(server: FaultServer, tmp_path: Path) -> None:
    found = scenes("video")
    best = evaluated(VCapsBench, write_vcapsbench, found, full(found), tmp_path / "a", server)  # type: ignore[type-abstract]
    assert [best.metrics[name].value for name in ("ar", "ir", "cr")] == [100, 0, 100]
    worse = evaluated(VCapsBench, write_vcapsbench, found, weak(found), tmp_path / "b", server)  # type: ignore[type-abstract]
    ar, ir, cr = (worse.metrics[name].value / 100 for name in ("ar", "ir", "cr"))
    assert 0 < ar < cr < 1
    assert ir > 0
    assert ar == pytest.approx(cr * (1 - ir))


def sayings(scene: VideoScene, caption: str) -> list[set[Claim]]:
    """What each sentence of a caption's segments claims."""
    shots = [shot.seconds for shot in scene.shots]
    return [
        {((shot_of(segment.start, segment.end, shots), *slot), value) for slot, value in sentence.claims}
        for segment in parse_video(caption).segments
        for sentence in segment.sentences
        if sentence.claims
    ]


def test_dream1k_finds_the_events_that_captions_of_videos_tell(server: FaultServer, tmp_path: Path) -> None:
    found = scenes("video")
    best = evaluated(Dream1k, write_dream1k, found, full(found), tmp_path / "a", server)  # type: ignore[type-abstract]
    assert [best.metrics[name].value for name in ("f1", "recall", "precision")] == [100, 100, 100]
    captions, rng = weak(found), np.random.default_rng(0)
    worse = evaluated(Dream1k, write_dream1k, found, captions, tmp_path / "b", server)  # type: ignore[type-abstract]
    for item in worse.items:
        scene = found[item.id]
        assert isinstance(scene, VideoScene)
        facts, told = set(scene_facts(scene).items()), set(caption_claims(scene, captions[item.id]))
        # An event is recalled if all that it says is told, and holds if nothing that it says is wrong.
        real, claimed = (sayings(scene, text) for text in (full_caption(scene, rng), captions[item.id]))
        assert item.values["recall"] == pytest.approx(np.mean([one <= told for one in real]))
        assert item.values["precision"] == pytest.approx(np.mean([one <= facts for one in claimed]))
    assert 0 < worse.metrics["recall"].value < worse.metrics["precision"].value < 100


def test_statements_and_yes_no_questions_are_read_as_they_are_put() -> None:
    for slot, value in ((("top left", "colour"), "red"), (("scene", "background"), "white")):
        assert read_statement(statement(slot, value)) == (slot, value)
    assert read_statement("The cat is red.") is None
    assert read_yes_no(yes_no("What colour is the background?", "red")) == (
        "What colour is the background?",
        "red",
    )
    assert read_yes_no("Is it red?") is None
