"""Set-up common to all tests: simulated devices, and what the `live` comparisons need."""

from __future__ import annotations

import gc
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import quick_compile, quick_yaml

if TYPE_CHECKING:
    from tests.reward.scripted_judge import ScriptedJudge

# The tests use small shapes on the CPU. Eight simulated devices serve the sharding tests; all these settings are
# read when JAX is first imported, which no test module has done yet.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
quick_compile.set_flags()
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    ).strip()
# Under JAX 0.11 and 0.12 a mesh of six devices needs it (parallel.sharding.flag_for_odd_meshes).
if quick_compile.known("--xla_enable_hlo_sharding_v3"):
    os.environ["XLA_FLAGS"] += " --xla_enable_hlo_sharding_v3=false"
# What one test has compiled no other compiles again, in this process, beside it, or in one that it starts.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    compiled = tempfile.TemporaryDirectory(prefix="vcap-jax-tests-compiled-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
quick_yaml.remember()
# Tests must neither reach for a model hub nor depend on being able to.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Their servers are on this machine, where no proxy leads.
for proxy in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(proxy, None)
    os.environ.pop(proxy.upper(), None)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Python looks for garbage while the files are read, and finds none. What they made stays to the end, and is not looked
# through again: of a worker's time that was a twentieth.
gc.disable()

TESTS = Path(__file__).parent
LONGEST_FIRST = (
    "launch/test_h800_8x.py",
    "recipes/test_grpo.py",
    "models/test_family.py",
    "rollout/test_sampler.py",
    "models/qwen3_vl/test_parity.py",
    "recipes/test_sft.py",
    "models/qwen3_5/test_parity.py",
    "grpo/test_update.py",
    "grpo/test_programs.py",
)
"""Files that take a worker long: begun early, none of them is left to one worker at the end. Others follow by name."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first. What is `long` is `slow`. Skips `live` tests by name where torch is missing;
    elsewhere makes the PyTorch packages importable first."""
    rank = {TESTS / name: place for place, name in enumerate(LONGEST_FIRST)}
    assert all(path.exists() for path in rank), "LONGEST_FIRST names a file that is gone"
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")
    live = [item for item in items if item.get_closest_marker("live")]
    if not live:
        return
    if importlib.util.find_spec("torch") is None:
        skip = pytest.mark.skip(reason="needs torch: bash tests/run.sh --live")
        for item in live:
            item.add_marker(skip)
    elif importlib.util.find_spec("torchvision") is not None:
        # transformers and TRL import torchvision on their way, and fail where its compiled part cannot load.
        from tests.live_reference import require_torchvision

        require_torchvision()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    # Tracing a model makes tens of thousands of objects that are not garbage; the usual 700 looks at them all the time.
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture
def server() -> Iterator[ScriptedJudge]:
    """A scripted judge over HTTP."""
    from tests.reward.scripted_judge import ScriptedJudge

    judge = ScriptedJudge()
    yield judge
    judge.close()
