"""Who looks for the tests of a module finds them under its name, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
OF_SEVERAL_MODULES = {
    # Whole ways, as a user goes them.
    "captioning/test_many_requests.py",
    "commands/test_overrides.py",
    "evals/benchmarks/test_embedded_world.py",
    "evals/test_add_an_evaluation.py",
    "gpu_judge/test_hostile_bodies.py",
    "gpu_judge/test_serve_errors.py",
    "human_eval/test_browser.py",
    "human_eval/test_kill.py",
    "human_eval/test_simulated.py",
    "launch/test_scripts.py",
    "parallel/test_several_processes.py",
    "plan/test_counts.py",
    "plan/test_gpu_compile.py",
    "plan/test_plan.py",
    "recipes/test_own_data.py",
    "reward/test_embedded_store.py",
    "reward/test_families_embedded.py",
    "reward/test_faults.py",
    "run/test_chained_runs.py",
    "run/test_shared_commands.py",
    "studies/test_end_to_end.py",
    # What holds for all modules of a room, or of all the settings.
    "configuration/test_bounds.py",
    "docs/test_documents.py",
    "docs/test_figures.py",
    "kernels/attention/test_kernels.py",
    "reward/test_imports.py",
    "run/test_fragments.py",
    # Equality with a public implementation or with the theory.
    "gpu_judge/test_hypergeometric.py",
    "models/qwen3_vl/processing/test_processing_parity.py",
    "models/qwen3_5/test_parity.py",
    "models/qwen3_vl/test_parity.py",
    "sft/test_live.py",
    # One kind of step, through the objective, the programs and the update.
    "grpo/test_judge_of_a_run.py",
    "grpo/test_lora_step.py",
    "grpo/test_rollout_weights.py",
    # What the tests are made with.
    "reward/test_scripted_judge.py",
    "test_fake_clock.py",
    "test_mirror.py",
    "test_quick_compile.py",
}
FILES = sorted(str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py"))


def modules(file: str) -> list[Path]:
    """Modules, packages and scripts of the name that a file of tests has."""
    path = Path(file)
    name = path.stem.removeprefix("test_")
    folders = (ROOT / "vcap_jax" / path.parent, ROOT / path.parent)
    return [found for folder in folders for found in (*folder.glob(name), *folder.glob(f"{name}.*"))]


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_tests_has_the_name_of_what_it_tests(file: str) -> None:
    assert bool(modules(file)) != (file in OF_SEVERAL_MODULES), (
        f"tests/{file}: name it after the module it tests, in the folder of the same name; if it tests several, "
        "name it in OF_SEVERAL_MODULES, and if it does so no more, not"
    )


def test_exceptions_are_files() -> None:
    assert set(FILES) >= OF_SEVERAL_MODULES
