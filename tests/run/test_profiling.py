from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from vcap_jax.models.family import Params
from vcap_jax.run.profiling import StepProfiles


@pytest.fixture
def told() -> Iterator[list[str]]:
    yield []
    with pytest.raises(RuntimeError):  # whatever a test did, nothing is being recorded any more
        jax.profiler.stop_trace()


def traces(folder: Path) -> set[str]:
    return {path.relative_to(folder).parts[0] for path in folder.rglob("*.xplane.pb")}


def test_the_steps_asked_for_are_recorded_and_no_others(tmp_path: Path, told: list[str]) -> None:
    params: Params = nnx.State({"a": jnp.ones(4)})
    with StepProfiles([2, 4], tmp_path, told.append) as profiles:
        work = profiles.between(lambda done, params: lambda: None)
        for done in range(4):
            after = work(done, params)
            assert after is not None  # what the work has asked for
            params = jax.tree.map(lambda leaf: leaf * 2, params)
        assert work(4, params) is not None
    assert traces(tmp_path) == {"step-2", "step-4"}
    assert [line.split(":")[0] for line in told] == [str(tmp_path / "step-2"), str(tmp_path / "step-4")]


def test_work_between_steps_is_in_no_trace_and_a_failed_step_is(tmp_path: Path, told: list[str]) -> None:
    at_work: list[set[str]] = []

    def steps() -> None:
        with StepProfiles([1, 2], tmp_path, None) as profiles:
            work = profiles.between(lambda done, params: at_work.append(traces(tmp_path)))
            for done in range(2):
                work(done, nnx.State({}))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        steps()
    # The first trace was written before the work, the second had not begun.
    assert at_work == [set(), {"step-1"}]
    assert traces(tmp_path) == {"step-1", "step-2"}
    assert not told


def test_nothing_is_recorded_unasked(tmp_path: Path, told: list[str]) -> None:
    def work(done: int, params: object) -> None:
        del done, params

    with StepProfiles([], tmp_path, told.append) as profiles:
        assert profiles.between(work) is work
    assert not list(tmp_path.iterdir())
