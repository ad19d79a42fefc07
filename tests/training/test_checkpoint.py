"""Checkpoints: what comes back, what is kept, what a kill leaves, and what an error says."""

from __future__ import annotations

import gc
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from vcap_jax.parallel.sharding import MeshConfig, make_mesh
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError, CheckpointGone


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    step: Any
    params: Any
    opt_state: Any


def example_state(seed: int = 0) -> State:
    params = {
        "layers": {"kernel": jax.random.normal(jax.random.key(seed), (2, 8, 16))},
        "half": jnp.arange(8, dtype=jnp.bfloat16),
    }
    return State(jnp.asarray(seed, jnp.int32), params, optax.adam(0.1).init(params))


def assert_equal(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ["lr[1e-5]", "what?", "a*b"])
def test_a_name_that_checkpoints_cannot_be_read_under_is_refused(tmp_path: Path, name: str) -> None:
    """Orbax would tell of a complete checkpoint and find none of its arrays."""
    with pytest.raises(CheckpointError, match=r"one of \* \? \[ in it, which Orbax takes for a pattern"):
        Checkpointer(tmp_path / name / "checkpoints")
    assert list(tmp_path.iterdir()) == []


def test_the_state_comes_back_bit_for_bit_and_the_last_ones_and_those_that_stay_are_kept(
    tmp_path: Path,
) -> None:
    rewards, staying = {1: 0.9, 2: 0.2, 3: 0.3, 4: 0.1}, [1]
    with Checkpointer(tmp_path, keep=2, stays=lambda: staying) as checkpoints:
        assert checkpoints.latest_step() is None
        for step, reward in rewards.items():
            checkpoints.save(step, example_state(step), {"seen": [step]}, {"reward": reward})
        checkpoints.wait()
        assert checkpoints.steps() == [1, 3, 4]
        with pytest.raises(CheckpointError, match="already has a checkpoint of step 4"):
            checkpoints.save(4, example_state(4), None, {"reward": 1.0})
    with Checkpointer(tmp_path, read_only=True) as checkpoints:
        state, data_state = checkpoints.restore(example_state())
        assert_equal(state, example_state(4))
        assert data_state == {"seen": [4]}
        assert checkpoints.meta(3) == {"reward": 0.3}
        state, data_state = checkpoints.restore(jax.eval_shape(example_state), step=1)
        assert_equal(state, example_state(1))
        assert data_state == {"seen": [1]}


def test_all_processes_meet_before_orbax_begins_to_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may be held up, by a tracker or a disk, for longer than Orbax waits."""
    done: list[str] = []
    opened, saved = ocp.CheckpointManager.__init__, ocp.CheckpointManager.save

    def opening(self: Any, *arguments: Any, **named: Any) -> None:
        done.append("opens")
        opened(self, *arguments, **named)

    def saving(self: Any, step: int, **named: Any) -> bool:
        done.append(f"saves {step}")
        return saved(self, step, **named)

    monkeypatch.setattr(ocp.CheckpointManager, "__init__", opening)
    monkeypatch.setattr(ocp.CheckpointManager, "save", saving)
    with Checkpointer(tmp_path, meet=lambda what: done.append(f"meets at {what}")) as checkpoints:
        checkpoints.save(1, example_state())
        checkpoints.save(2, example_state())
    assert done == [
        "meets at opening the checkpoints",
        "opens",
        "meets at saving step 1",
        "saves 1",
        "meets at saving step 2",
        "saves 2",
    ]


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(64, 4096)).astype(np.float32)
    state = {"on_device": jnp.array(values), "on_host": values.copy()}
    overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        jax.block_until_ready(overwrite(state["on_device"]))
        state["on_host"][:] = -1
        restored, _ = checkpoints.restore(
            {"on_device": jax.ShapeDtypeStruct(values.shape, jnp.float32), "on_host": values}
        )
        np.testing.assert_array_equal(restored["on_device"], values)
        np.testing.assert_array_equal(restored["on_host"], values)
        assert isinstance(restored["on_host"], np.ndarray)


def test_restores_on_another_mesh_in_another_dtype_and_only_a_part(tmp_path: Path) -> None:
    written = make_mesh(MeshConfig(fsdp=8))
    read = make_mesh(MeshConfig(data=2, fsdp=2, tensor=1))
    params = example_state().params
    by_width = NamedSharding(written, Spec(None, "fsdp", None))
    kernel = jax.device_put(params["layers"]["kernel"], by_width)
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(7, State(jnp.zeros(()), {"layers": {"kernel": kernel}}, {}))
        checkpoints.wait()
        sharding = NamedSharding(read, Spec(None, None, "fsdp"))
        template = jax.ShapeDtypeStruct(kernel.shape, jnp.bfloat16, sharding=sharding)
        restored, _ = checkpoints.restore({"params": {"layers": {"kernel": template}}}, partial=True)
        restored = restored["params"]["layers"]["kernel"]
        assert restored.sharding == sharding
        np.testing.assert_array_equal(restored, params["layers"]["kernel"].astype(jnp.bfloat16))
        assert checkpoints.stored()["params.layers.kernel"].shape == kernel.shape


def test_errors_name_the_folder_what_differs_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        Checkpointer(tmp_path / "nowhere", read_only=True)
    with Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match=f"{tmp_path} holds no complete checkpoint"):
            checkpoints.restore({})
        with pytest.raises(TypeError, match="learning_rate"):
            checkpoints.save(1, {"learning_rate": 0.1})
        checkpoints.save(1, {"kernel": jnp.zeros((2, 3)), "old": jnp.zeros(4)})
        checkpoints.wait()
        with pytest.raises(CheckpointError, match=r"no checkpoint of step 5; there are \[1\]"):
            checkpoints.restore({}, step=5)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.restore({"kernel": jnp.zeros((2, 4)), "new": jnp.zeros(1)})
    message = str(caught.value)
    for part in (
        str(tmp_path / "1"),
        "missing: new (1,)",
        "not asked for: old (4,)",
        "shape: kernel is (2, 3), wanted (2, 4)",
        "start a new run folder",
    ):
        assert part in message


@pytest.mark.parametrize("read", ["restore", "meta", "ahead", "stored"])
def test_a_checkpoint_that_was_removed_since_it_was_listed_is_told(tmp_path: Path, read: str) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": jnp.ones(3)}, ahead={"y": np.ones(3)})
    with Checkpointer(tmp_path, read_only=True) as checkpoints:
        shutil.rmtree(tmp_path / "1")
        arguments = [{"x": jnp.zeros(3)}] if read == "restore" else []
        with pytest.raises(CheckpointGone, match=f"{tmp_path} no longer has the checkpoint of step 1"):
            getattr(checkpoints, read)(*arguments)


@pytest.mark.parametrize("left", ["nothing", "folders", "some", "all"])
def test_a_checkpoint_that_is_removed_while_it_is_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Its files go before its folder does. What no files can be the reason of comes as it is."""
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": jnp.ones(3)})

    def going(self: Any, step: int, **named: Any) -> Any:
        folder = tmp_path / str(step)
        files = [path for path in folder.rglob("*") if path.is_file()]
        if left == "nothing":
            shutil.rmtree(folder)
        elif left != "all":
            for file in files if left == "folders" else files[:1]:
                file.unlink()
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(ocp.CheckpointManager, "restore", going)
    with Checkpointer(tmp_path, read_only=True) as checkpoints:
        told = pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED")
        if left != "all":
            told = pytest.raises(CheckpointGone, match="it was removed while it was read")
        with told:
            checkpoints.restore({"x": jnp.zeros(3)})


# Orbax leaves reads that it no longer waits for.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "damaged", ["state/d/*", "state/ocdbt.process_0/d/*", "state/_METADATA", "data/metadata", "data"]
)
@pytest.mark.parametrize("left", [pytest.param(None, marks=pytest.mark.slow), b""], ids=["gone", "empty"])
def test_a_damaged_checkpoint_is_named_with_what_can_be_done(
    tmp_path: Path, damaged: str, left: bytes | None
) -> None:
    """As after a power cut or a copy that ended half way; it was a traceback, whose last line named no remedy."""
    state = {"x": jnp.arange(100_000.0), "y": jnp.ones(3)}
    with Checkpointer(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state, {"step": step})
    files = list((tmp_path / "2").glob(damaged))
    assert files
    for file in files:
        if file.is_dir():
            shutil.rmtree(file)
            continue
        file.unlink()
        if left is not None:
            file.write_bytes(left)
    whole = rf"{tmp_path}/2 is damaged or was not copied whole .*: copy it again"
    with Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(
            CheckpointError, match=rf"(?s){whole}, or remove it: step 1 is there too$"
        ) as told:
            checkpoints.restore(state)
        assert len(str(told.value)) < 400 + len(str(tmp_path)) * 3
        assert checkpoints.restore(state, 1)[1] == {"step": 1}
    gc.collect()  # or they would be told in another test


def test_a_checkpoint_that_is_removed_while_a_folder_is_opened_hinders_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"x": jnp.ones(3)})
    opened = ocp.CheckpointManager.__init__

    def going(self: Any, *arguments: Any, **named: Any) -> None:
        if (tmp_path / "1").exists():
            shutil.rmtree(tmp_path / "1")
            raise FileNotFoundError(tmp_path / "1")
        opened(self, *arguments, **named)

    monkeypatch.setattr(ocp.CheckpointManager, "__init__", going)
    with Checkpointer(tmp_path, read_only=True) as checkpoints:
        assert checkpoints.steps() == [2]


KILLED_WHILE_SAVING = """
import sys, jax, jax.numpy as jnp
from vcap_jax.training.checkpoint import Checkpointer

checkpoints = Checkpointer(sys.argv[1])
def state(seed):
    return {"x": jax.random.normal(jax.random.key(seed), (48, 1 << 18))}
checkpoints.save(1, state(1), {"step": 1})
checkpoints.wait()
checkpoints.save(2, state(2), {"step": 2})
print("saving", flush=True)
checkpoints.wait()
"""


@pytest.mark.slow
def test_a_kill_in_mid_save_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_WHILE_SAVING, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saving\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert [path.name for path in folder.iterdir() if path.name.isdigit()] == ["1"], "killed too late"
    with Checkpointer(folder) as checkpoints:
        assert checkpoints.steps() == [1]
        template = {"x": jax.ShapeDtypeStruct((48, 1 << 18), jnp.float32)}
        state, data_state = checkpoints.restore(template)
        assert data_state == {"step": 1}
        np.testing.assert_array_equal(state["x"], jax.random.normal(jax.random.key(1), (48, 1 << 18)))
        # The half-written folder is gone and in nobody's way.
        assert [path.name for path in folder.iterdir() if path.is_dir()] == ["1"]
        checkpoints.save(2, {"x": jnp.ones(3)})
        checkpoints.wait()
        assert checkpoints.latest_step() == 2


def in_a_process_of_its_own(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A limit on the size of files is a process's."""
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )


WRITTEN_WHERE_THERE_IS_NO_ROOM = """
import resource, sys, jax, jax.numpy as jnp
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.run.command_line import guarded

def save():
    with Checkpointer(sys.argv[1]) as checkpoints:
        checkpoints.save(1, {"x": jnp.ones(3)}, {"step": 1})
        checkpoints.wait()
        # Files of more than 64 KiB are refused, as all are by a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        checkpoints.save(2, {"x": jax.random.normal(jax.random.key(0), (1 << 18,))}, {"step": 2})
        checkpoints.wait()
    return 0

raise SystemExit(guarded(save))
"""


def test_a_disk_that_refuses_is_told_in_two_lines_and_costs_no_earlier_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    done = in_a_process_of_its_own(WRITTEN_WHERE_THERE_IS_NO_ROOM, folder)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first == (
        f"error: a checkpoint could not be written to {folder}: file too large; raise the limit on the size of files "
        "(ulimit -f). Those before it are whole"
    )
    assert second.startswith("go on with: ")
    with Checkpointer(folder) as checkpoints:
        assert checkpoints.steps() == [1]


WRITTEN_WHERE_THERE_IS_ROOM_AGAIN = """
import resource, sys, jax
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.training.saving import Place, save_before, save_step

def limit(most):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

def at(step):
    return {"x": jax.random.normal(jax.random.key(step), (1 << 18,))}

with Checkpointer(sys.argv[1]) as checkpoints:
    for step, next_step in ((2, 2), (4, 5)):
        limit(1 << 16)
        save_step(checkpoints, step, 9, at(step), Place(step), every=2, stop=False)
        print(checkpoints.steps())
        for _ in range(2):
            save_step(checkpoints, step + 1, 9, at(step), Place(step), every=2, stop=False)
        limit(resource.RLIM_INFINITY)
        save_before(checkpoints, next_step, at(next_step), Place(next_step))
"""


@pytest.mark.slow
def test_a_checkpoint_that_the_disk_refused_does_not_cost_the_next_one(tmp_path: Path) -> None:
    """Where a run ends the steps since the last checkpoint are in memory alone, and there may be room again."""
    folder = tmp_path / "checkpoints"
    done = in_a_process_of_its_own(WRITTEN_WHERE_THERE_IS_ROOM_AGAIN, folder)
    assert (done.returncode, done.stdout) == (0, "[]\n[2]\n"), done.stderr
    told = [line for line in done.stderr.splitlines() if "could not be written" in line]
    assert [line.rpartition(". ")[2] for line in told] == [
        "Make room before the next one",
        "There was room for step 2",
        "Make room before the next one",
        "There was room for step 5",
    ]
    with Checkpointer(folder) as checkpoints:
        assert checkpoints.steps() == [2, 5]


def test_another_step_that_stays_lets_the_one_before_go(tmp_path: Path) -> None:
    staying = [1]
    with Checkpointer(tmp_path, keep=1, stays=lambda: staying) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"a": np.zeros(1)})
        assert checkpoints.steps() == [1, 3]
        staying[:] = [3]
        checkpoints.save(4, {"a": np.zeros(1)})
        assert checkpoints.steps() == [3, 4]
    with Checkpointer(tmp_path, keep=1, stays=lambda: staying) as checkpoints:
        checkpoints.save(5, {"a": np.zeros(1)})
        assert checkpoints.steps() == [3, 5]
