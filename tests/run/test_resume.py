"""Going on from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vcap_jax.data.manifest import Sample
from vcap_jax.parallel.processes import Processes
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.report.best_checkpoint import Best, read_best, write_best
from vcap_jax.report.evaluations import Results, evaluations_of
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.resume import resume
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.training.optimizer import OptimizerConfig, OptimizerPrograms, build_optimizer

WEIGHTS = 1 << 18


def bytes_of(arrays: Iterable[jax.Array]) -> int:
    return sum(array.nbytes for array in arrays)


def test_the_state_of_the_start_is_gone_before_that_of_the_checkpoint_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fills its devices could be trained, and not be resumed. Evaluations of steps to be done again go, and
    the note of a best checkpoint that somebody has removed."""
    held = jax.live_arrays()  # so that none of another test's goes meanwhile
    start = nnx.State({"w": nnx.Param(jnp.zeros(WEIGHTS, jnp.float32))})
    placement = Placement.build(MeshConfig(fsdp=1), jax.devices()[:1])
    programs = OptimizerPrograms(build_optimizer(OptimizerConfig(), 10))
    (tmp_path / "config.yaml").write_text("{}")
    folder = RunFolder(tmp_path, resumed=True)
    with Checkpointer(folder.checkpoints) as checkpoints:
        trained = programs.initial_state(jax.tree.map(lambda x: x + 1, start), placement)
        checkpoints.save(3, trained, {})
    del trained
    there: list[int] = []
    restore = Checkpointer.restore

    def watched(self: Checkpointer, *arguments: Any, **named: Any) -> Any:
        there.append(bytes_of(jax.live_arrays()) - bytes_of(held))
        return restore(self, *arguments, **named)

    for when, step in (("start", 0), ("step-2", 2), ("step-6", 6)):
        evaluated = Results(evaluator="judged", when=when, step=step, metrics={}, items=0, failed=0)
        evaluated.write(folder.evaluation("judged") / f"{when}.json")
    best = Best(metric="judged/reward", best_is="highest", step=6, value=0.5, low=0.4, high=0.6, n=9)
    write_best(folder, best)
    monkeypatch.setattr(Checkpointer, "restore", watched)
    monkeypatch.setattr("vcap_jax.run.resume.GroupIterator.set_state", lambda self, state: None)
    said: list[str] = []
    met: list[str] = []
    monkeypatch.setattr(Processes, "barrier", lambda self, what: met.append(what))
    context: Any = SimpleNamespace(
        config=RunConfig(),
        folder=folder,
        processes=Processes(),
        policy=SimpleNamespace(trainable=start),
        placement=placement,
        reader=lambda *, judged: lambda sample: sample,
        say=said.append,
    )
    logs: Any = []
    log: Any = SimpleNamespace(close=lambda: logs.append("closed"))
    evaluations: Any = SimpleNamespace(
        after_step=lambda step, params, *, total, log: logs.append((step, total, log))
    )
    with resume(
        context,
        [Sample(id="a", images=(Path("a.png"),))],
        programs,
        evaluations,
        lambda done: logs.append(done) or log,
        judged=True,
        groups_per_step=1,
        total_steps=9,
    ) as resumed:
        assert resumed.log is log
        resumed.between(4, resumed.state.params)
        assert logs == [0, (4, 9, log)]
        np.testing.assert_array_equal(resumed.state.params["w"].get_value()[:2], [1, 1])
    parameters = (
        4 * WEIGHTS
    )  # those of the start, which the run gives up later; its state is three times as much
    assert parameters <= there[0] < 1.5 * parameters
    # That of a step that is done again would be taken for one of the policy that it makes.
    assert [one.when for one in evaluations_of(folder)["judged"]] == ["start", "step-2"]
    assert met == ["opening the checkpoints"]
    assert said[0] == "evaluations of steps after 3 are made again: judged/step-6"
    # Another policy of step 6 would be called the best, whatever its value.
    assert read_best(folder) is None
    assert said[1] == f"the best checkpoint was of a step after 3 and counts no more: {best}"
