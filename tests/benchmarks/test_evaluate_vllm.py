"""benchmarks/evaluate_vllm.py without vLLM: data of every benchmark, vLLM's counters, tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.evaluate_vllm import LAYOUTS, by_stage, lay_out, overview, read_counters
from vcap_jax.evals.benchmarks.benchmark import Benchmark
from vcap_jax.evals.config import BENCHMARKS, EvaluatorConfig
from vcap_jax.evals.protocol import EvaluatorTools
from vcap_jax.evals.registry import load_evaluator
from vcap_jax.reward.config import JudgeConfig

PAGE = """
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
vllm:prompt_tokens_total{engine="0",model_name="m"} 1200.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.79e+09
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 7.0
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 6.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1200.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 900.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 5.0
"""


def test_every_registered_benchmark_has_data() -> None:
    assert set(LAYOUTS) == set(BENCHMARKS)


@pytest.mark.parametrize("name", ["capmas", "captionqa", "prism-vstar", "caparena-auto", "vdc"])
def test_a_benchmark_reads_what_was_laid_out(name: str, tmp_path: Path) -> None:
    if name == "captionqa":
        pytest.importorskip("pyarrow")
    lay_out(name, tmp_path, samples=2, seed=0)
    kind = load_evaluator(EvaluatorConfig(use=name))
    config = EvaluatorConfig(use=name, options={"data": str(tmp_path)})
    judge = JudgeConfig(urls=("http://127.0.0.1:9",))
    tools = EvaluatorTools(modality=LAYOUTS[name][0], judge=judge, say=lambda text: None)
    made = kind(config, tools)
    assert isinstance(made, Benchmark)
    assert len(made.tasks) == (2 * 5 if name == "vdc" else 2)
    assert all(path.is_file() for sample in made.samples for path in sample.files)


def test_counters_are_summed_over_their_labels_and_others_are_no_part_of_them() -> None:
    assert read_counters(PAGE) == {
        "requests": 8,
        "prompt tokens": 1200,
        "written tokens": 50,
        "looked up": 1200,
        "cached": 900,
    }
    with pytest.raises(SystemExit, match="prefix_cache_hits"):
        read_counters(PAGE.replace("vllm:prefix_cache_hits", "vllm:hits"))


def test_the_tables_have_a_line_for_each_benchmark_and_each_stage() -> None:
    counted = {"requests": 8.0, "prompt tokens": 1200.0, "looked up": 1200.0, "cached": 900.0}
    stage = {
        "questions": 3,
        "failed": {"cut_off": 1},
        "requests": 6,
        "prompt_tokens": 400,
        "cached_tokens": 100,
    }
    row = {
        "items": 2,
        "failed": 0,
        "captioner": counted,
        "judge": counted,
        "seconds": {"captions": 1.0, "scores": 4.0},
        "cost": {"questions": 3},
        "stages": {"answer": {**stage, "completion_tokens": 9}},
    }
    line = overview({"vdc": row}).splitlines()[-1]
    assert line == "| `vdc` | 2 | 0 | 8 | 1.0 | 3 | 1 | 8 | 4.0 | 2.0 | 1,200 | 75% |"
    assert by_stage({"vdc": row}).splitlines()[-1] == "| `vdc` | answer | 3 | 1 | 6 | 400 | 25% | 9 |"
