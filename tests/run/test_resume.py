"""Going on from a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vcap_jax.data.config import DataConfig
from vcap_jax.data.errors import MediaError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import GroupIterator, PipelineSettings
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


def context_of(
    config: RunConfig,
    folder: RunFolder,
    start: Any,
    placement: Placement,
    read: Callable[[Sample], Sample],
    say: Callable[[str], None],
) -> Any:
    return SimpleNamespace(
        config=config,
        folder=folder,
        processes=Processes(),
        policy=SimpleNamespace(trainable=start),
        placement=placement,
        reader=lambda *, judged: read,
        say=say,
    )


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
    context = context_of(RunConfig(), folder, start, placement, lambda sample: sample, said.append)
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


def test_steps_order_of_the_data_and_what_was_drawn_ahead_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the run's seed, to a sample that cannot be read, of which other processes are told."""
    config = RunConfig(seed=5, data=DataConfig(on_bad_sample="refuse"))
    many = [Sample(id=str(i), images=(Path(f"{i}.png"),)) for i in range(8)]
    alone = GroupIterator(many, lambda sample: sample, PipelineSettings(batch_groups=1, seed=5))
    order = [next(alone).examples[0].id]
    place = alone.get_state()
    order += [next(alone).examples[0].id for _ in range(3)]

    def read(sample: Sample) -> Sample:
        if sample.id == order[3]:
            raise MediaError("broken")
        return sample

    start = nnx.State({"w": nnx.Param(jnp.zeros(4, jnp.float32))})
    placement = Placement.build(MeshConfig(fsdp=1), jax.devices()[:1])
    programs = OptimizerPrograms(build_optimizer(OptimizerConfig(), 10))
    (tmp_path / "config.yaml").write_text("{}")
    folder = RunFolder(tmp_path, resumed=True)
    with Checkpointer(folder.checkpoints) as checkpoints:
        state = programs.initial_state(start, placement)
        trained = dataclasses.replace(state, step=state.step + 3)
        checkpoints.save(3, trained, place, ahead={"tokens": np.arange(4)})
    failed: list[BaseException] = []
    monkeypatch.setattr(Processes, "fail", lambda self, error: failed.append(error))
    context = context_of(config, folder, start, placement, read, lambda text: None)
    done: Any = []
    log: Any = SimpleNamespace(close=lambda: None)
    evaluations: Any = SimpleNamespace(after_step=lambda step, params, *, total, log: None)

    def goes_on() -> None:
        with resume(
            context,
            many,
            programs,
            evaluations,
            lambda step: done.append(step) or log,
            judged=True,
            groups_per_step=1,
            total_steps=9,
        ) as resumed:
            assert done == [3]
            assert resumed.ahead is not None
            np.testing.assert_array_equal(resumed.ahead["tokens"], np.arange(4))
            found: list[Any] = [next(resumed.data).examples[0] for _ in range(2)]
            assert [sample.id for sample in found] == order[1:3]
            next(resumed.data)

    with pytest.raises(MediaError, match=f"sample {order[3]}: broken") as raised:
        goes_on()
    assert failed == [raised.value]
