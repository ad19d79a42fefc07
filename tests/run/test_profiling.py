from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from vcap_jax.models.family import Params
from vcap_jax.run.profiling import StepProfiles
from vcap_jax.training.saving import no_work

NONE: Params = nnx.State({})


@pytest.fixture
def told() -> Iterator[list[str]]:
    yield []
    with pytest.raises(RuntimeError):  # whatever a test did, nothing is being recorded any more
        jax.profiler.stop_trace()


def traces(folder: Path) -> set[str]:
    return {path.relative_to(folder).parts[0] for path in folder.rglob("*.xplane.pb")}


def test_the_steps_asked_for_are_recorded_and_no_others(tmp_path: Path, told: list[str]) -> None:
    params: Params = nnx.State({"a": jnp.ones(4)})
    saved = []
    with StepProfiles([2, 4], 5, tmp_path, told.append) as profiles:
        work = profiles.between(no_work)
        for done in range(5):
            after = work(done, params)
            if after is not None:
                saved.append(done)  # as is done before what it asks for
                after()
            params = jax.tree.map(lambda leaf: leaf * 2, params)
    assert traces(tmp_path) == {"step-2", "step-4"}
    assert [line.partition(" gets ")[0] for line in told] == [
        str(tmp_path / "step-2"),
        str(tmp_path / "step-4"),
    ]
    assert saved == [1, 3]


def test_work_between_steps_is_in_no_trace_and_a_failed_step_is(tmp_path: Path, told: list[str]) -> None:
    seen: list[set[str]] = []

    def look() -> None:
        seen.append(traces(tmp_path))

    def work(done: int, params: Params) -> Callable[[], None]:
        look()
        return look

    def steps() -> None:
        with StepProfiles([1, 2], 5, tmp_path, None) as profiles:
            between = profiles.between(work)
            for done in range(2):
                after = between(done, NONE)
                assert after is not None
                after()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        steps()
    # The first trace was written before the work of the second step, which was not recorded when that was done.
    assert seen == [set(), set(), {"step-1"}, {"step-1"}]
    assert traces(tmp_path) == {"step-1", "step-2"}
    assert not told


def test_a_run_that_its_trace_has_ended_goes_on_without_one(tmp_path: Path, told: list[str]) -> None:
    for _ in range(2):
        with StepProfiles([1], 5, tmp_path, told.append) as profiles:
            after = profiles.between(no_work)(0, NONE)
            assert after is not None
            after()
    assert len(told) == len(list(tmp_path.rglob("*.xplane.pb"))) == 1


def test_a_step_after_the_last_is_told_and_not_recorded(tmp_path: Path, told: list[str]) -> None:
    with StepProfiles([5, 6], 5, tmp_path, told.append) as profiles:
        assert profiles.between(no_work)(5, NONE) is None
    assert told == ["logging.profile_steps: the run has no step 6, it ends with 5"]
    assert not list(tmp_path.iterdir())


def test_nothing_is_recorded_unasked(tmp_path: Path, told: list[str]) -> None:
    with StepProfiles([], 5, tmp_path, told.append) as profiles:
        assert profiles.between(no_work) is no_work
    assert not list(tmp_path.iterdir())
