"""Checkpoints of a run: Orbax, asynchronous, atomic, the last few kept.

A checkpoint is a folder named after its step with the array state, the place in the data, a small JSON of facts and,
in a run that draws ahead, what is drawn of the next step. It appears under that name only when it is complete, so a run
killed in the middle of a save finds the previous one. Arrays are stored under their pytree paths, not under the classes
that hold them: state written by one program can be read into any tree with the same paths, on another mesh or in
another dtype.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict
from orbax.checkpoint import checkpoint_managers as policies

from vcap_jax.system.closing import Closing
from vcap_jax.system.errors import VCapError, system_message
from vcap_jax.system.files import taken_for_a_pattern
from vcap_jax.system.json_values import JsonObject, JsonValue
from vcap_jax.training.abandoned import drop_abandoned
from vcap_jax.training.stored_tree import Leaf, abstract, own_copy, paths, restore_args

_SLOW_STORAGE_S = 6 * 3600
"""After that long a save is taken for lost. Orbax's own 20 minutes are too few for the 100 GB of an 8B model on storage
that takes less than 80 MB/s, which would never get a checkpoint."""

State = TypeVar("State")
"""A pytree of arrays."""

HostArrays: TypeAlias = Mapping[str, np.ndarray]
"""By name."""

_STATE, _DATA, _META, _AHEAD = "state", "data", "meta", "ahead"

# Orbax warns when a save is waited for and when a folder is opened for reading: both are what was asked.
_EXPECTED = ("Waiting for previous save", "read_only=True", "directory is read only")


def _worth_showing(record: logging.LogRecord) -> bool:
    if any(text in str(record.msg) for text in _EXPECTED):
        return False
    # Its threads log what the disk refuses with a traceback each, before it is raised here and told in one line.
    error = record.exc_info[1] if record.exc_info else None
    return error is None or system_message(error) is None


logging.getLogger("absl").addFilter(_worth_showing)
_log = logging.getLogger(__name__)


class CheckpointError(VCapError, RuntimeError):
    """A checkpoint that is not there, or that does not fit; the message names the folder and the remedy."""


class CheckpointGone(CheckpointError):
    """A checkpoint that was removed while it was read, as a run removes its older ones."""


class DiskError(CheckpointError):
    """A checkpoint that could not be written; a run goes on from the one before it."""

    resumable = True


@dataclass(frozen=True)
class _Stays(policies.PreservationPolicy):
    """Keeps the checkpoints of the steps that it is given."""

    steps: Callable[[], Collection[int]]

    def should_preserve(
        self,
        checkpoints: Sequence[policies.PolicyCheckpointInfo],
        *,
        context: policies.PreservationContext,
    ) -> Sequence[bool]:
        del context
        staying = set(self.steps())
        return [checkpoint.step in staying for checkpoint in checkpoints]


class Checkpointer(Closing):
    """The checkpoints of one run.

    folder: made if absent, unless read_only. keep: how many of the latest stay. stays: gives, whenever one is written,
    the steps that stay whatever their age; the same in all processes. read_only: never changes the folder; for looking
    into a run that another process may be writing. meet: returns when all processes of the run are at what it is given
    (``Processes.barrier``; by default there is one); they open the folder and save together. Use as a context manager,
    or call ``close``.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        keep: int = 3,
        stays: Callable[[], Collection[int]] = tuple,
        read_only: bool = False,
        meet: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.folder = Path(folder).absolute()
        if not read_only and (wrong := taken_for_a_pattern(self.folder)) is not None:
            raise CheckpointError(f"{wrong}; choose another name")
        if read_only and not self.folder.is_dir():
            raise CheckpointError(f"{self.folder} does not exist: give the checkpoints folder of a run")
        drop_abandoned()
        self._meet = meet
        self._failed: DiskError | None = None
        self._told: DiskError | None = None
        meet("opening the checkpoints")
        options = ocp.CheckpointManagerOptions(
            async_options=ocp.AsyncOptions(timeout_secs=_SLOW_STORAGE_S),
            create=not read_only,
            read_only=read_only,
            # All processes would have to meet for it; one alone may look into a run.
            save_root_metadata=not read_only,
            # What a killed process left half written. A reader must not touch it: it may be in work.
            cleanup_tmp_directories=not read_only,
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(n=keep), _Stays(stays)]),
        )
        try:
            self._manager = _manager(self.folder, options)
        except FileNotFoundError:
            if not read_only or not self.folder.is_dir():
                raise
            # The run has removed a checkpoint between Orbax's list of them and its look at each.
            self._manager = _manager(self.folder, options)

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending; waits for one that is being written."""
        # Orbax counts a step as soon as its save begins.
        self._settle()
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        """The newest complete checkpoint's step, or None; waits like ``steps``."""
        return max(self.steps(), default=None)

    def save(
        self,
        step: int,
        state: object,
        data_state: JsonValue = None,
        meta: JsonObject | None = None,
        ahead: HostArrays | None = None,
    ) -> None:
        """Starts writing a checkpoint and returns as soon as the arrays are copied: they may be donated then.

        state: any pytree of arrays. data_state, meta: what JSON can hold. ahead: arrays of this host that belong to
        what comes next, None for none. Waits for an earlier save that is still being written. If the disk refused that
        one, this one is waited for too, and if it is written the run goes on with a word about the other.
        Raises DiskError if the disk refuses, CheckpointError if the step is already there (replacing it would
        leave a moment without it), TypeError if a leaf of ``state`` is not an array.
        """
        tree = unflatten_dict({path: own_copy(path, leaf) for path, leaf in paths(state).items()})
        if step in self.steps():
            raise CheckpointError(
                f"{self.folder} already has a checkpoint of step {step}: resume from it or use another folder"
            )
        items = {
            _STATE: ocp.args.PyTreeSave(tree),
            _DATA: ocp.args.JsonSave({"value": data_state}),
            _META: ocp.args.JsonSave(dict(meta or {})),
        }
        if ahead is not None:
            items[_AHEAD] = ocp.args.PyTreeSave({name: np.array(array) for name, array in ahead.items()})
        # Orbax waits for the other processes too, but for minutes only and without a word, and one of them may still be
        # busy with its log.
        self._meet(f"saving step {step}")
        earlier, self._failed, self._told = self._failed, None, None
        with self._writing():
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)
        if earlier is not None:
            self.wait()
            _log.warning("%s. There was room for step %d", earlier, step)

    def wait(self) -> None:
        """Returns when everything is written; raises DiskError if the disk refused the last save."""
        self._settle()
        self._raise()

    def notice(self) -> None:
        """A word as soon as the disk has refused a save that was being written: there is time to make room before the
        next one, which waits for it. Of several processes none is told before."""
        if self._failed is None and jax.process_count() == 1:
            try:
                with self._writing():
                    self._manager.check_for_errors()
            except DiskError as error:
                self._failed = error
        if self._failed is not self._told:
            self._told = self._failed
            _log.warning("%s. Make room before the next one", self._failed)

    def _raise(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _settle(self) -> None:
        """Waits for a save that is being written, and keeps what the disk refuses for the next one, which may have
        room: what is in memory then is worth more. Of several processes all end, for they wait for this one's part."""
        try:
            with self._writing():
                self._manager.wait_until_finished()
        except DiskError as error:
            self._failed = error
            if jax.process_count() > 1:
                raise

    def close(self) -> None:
        """Waits and ends the background threads; raises as ``wait``."""
        with self._writing():
            self._manager.close()
        self._raise()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What the disk refuses comes out of Orbax as errors of its own, of TensorStore's and of the system's."""
        try:
            yield
        except Exception as error:
            refused = system_message(error)
            if refused is None:
                raise
            raise DiskError(
                f"a checkpoint could not be written to {self.folder}: {refused}. Those before it are whole"
            ) from error

    def restore(
        self, template: State, step: int | None = None, *, partial: bool = False
    ) -> tuple[State, JsonValue]:
        """(state, data state) of a step, by default the latest.

        template: a pytree of arrays or jax.ShapeDtypeStruct with the paths and shapes to read. Every array
            comes in its template's dtype and sharding (without one: the first device; numpy arrays come as
            numpy). Abstract leaves cost no memory (``sharding.Placement.abstract``).
        partial: the template may name only a part of what is stored, for instance ``{"params": ...}``;
            nothing else is read.
        Raises CheckpointError if there is no such checkpoint, or if paths or shapes differ (all are listed); as all
        that read do, if it is damaged, and CheckpointGone if it is removed meanwhile.
        """
        step = self.existing_step(step)
        wanted = paths(template)
        state = ocp.args.PyTreeRestore(
            item=unflatten_dict({path: abstract(leaf) for path, leaf in wanted.items()}),
            restore_args=unflatten_dict({path: restore_args(leaf) for path, leaf in wanted.items()}),
            partial_restore=partial,
        )
        with self._reading(step):
            self._check(step, wanted, partial)
            restored = self._manager.restore(
                step, args=ocp.args.Composite(**{_STATE: state, _DATA: ocp.args.JsonRestore()})
            )
            data_state: JsonValue = restored[_DATA]["value"]
            arrays = flatten_dict(restored[_STATE])
        leaves = [arrays[path] for path in wanted]
        return jax.tree.unflatten(jax.tree.structure(template), leaves), data_state

    def meta(self, step: int | None = None) -> dict[str, JsonValue]:
        """What was saved as ``meta`` with a step, by default the latest. Raises CheckpointError if absent."""
        args = ocp.args.Composite(**{_META: ocp.args.JsonRestore()})
        step = self.existing_step(step)
        with self._reading(step):
            return dict(self._manager.restore(step, args=args)[_META])

    def ahead(self, step: int | None = None) -> HostArrays | None:
        """What was saved as ``ahead`` with a step, by default the latest; None if nothing was."""
        step = self.existing_step(step)
        with self._reading(step):
            metadata = self._manager.item_metadata(step).get(_AHEAD)
            if metadata is None:
                return None
            numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in metadata.tree}
            args = ocp.args.Composite(**{_AHEAD: ocp.args.PyTreeRestore(restore_args=numpy)})
            return dict(self._manager.restore(step, args=args)[_AHEAD])

    def stored(self, step: int | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        """Dotted path -> shape and dtype of every array of a step, by default the latest."""
        step = self.existing_step(step)
        with self._reading(step):
            metadata = self._manager.item_metadata(step)[_STATE]
            if metadata is None:  # which Orbax logs, and no more
                raise FileNotFoundError(f"{_STATE} has no _METADATA")
            leaves = jax.tree_util.tree_flatten_with_path(metadata.tree)[0]
        return {
            ".".join(str(key.key) for key in path): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for path, leaf in leaves
        }

    @contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        """Of a checkpoint that is removed while it is read, or is damaged, Orbax raises whatever it happens to meet."""
        folder = self.folder / str(step)
        before = _files(folder)
        try:
            if not before:  # of which Orbax would say that it holds nothing
                raise FileNotFoundError(folder)
            yield
        except Exception as error:
            # Its files go one by one, in any order, and the folder last.
            if before and before <= _files(folder):
                if not _of_damage(error):
                    raise
                others = [other for other in self.steps() if other != step]
                other = f", or remove it: step {others[-1]} is there too" if others else ""
                why = textwrap.shorten(str(error), 160, placeholder=" ...")
                raise CheckpointError(
                    f"{folder} is damaged or was not copied whole ({why}): copy it again{other}"
                ) from error
            raise CheckpointGone(
                f"{self.folder} no longer has the checkpoint of step {step}: it was removed while it was read. Name "
                "a later step, or leave it out for the last"
            ) from error

    def existing_step(self, step: int | None = None) -> int:
        """``step``, or the latest if None. Raises CheckpointError if there is no complete checkpoint of it."""
        steps = self.steps()
        if not steps:
            raise CheckpointError(
                f"{self.folder} holds no complete checkpoint: start the run anew, or give another folder"
            )
        if step is None:
            return steps[-1]
        if step not in steps:
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step}; there are {steps}")
        return step

    def _check(self, step: int, wanted: Mapping[tuple[str, ...], Leaf], partial: bool) -> None:
        stored = self.stored(step)
        names = {".".join(path): leaf for path, leaf in wanted.items()}
        absent = sorted(names.keys() - stored.keys())
        problems = [f"missing: {name} {tuple(names[name].shape)}" for name in absent]
        if not partial:
            extra = sorted(stored.keys() - names.keys())
            problems += [f"not asked for: {name} {tuple(stored[name].shape)}" for name in extra]
        for name in sorted(names.keys() & stored.keys()):
            here, there = tuple(names[name].shape), tuple(stored[name].shape)
            if here != there:
                problems.append(f"shape: {name} is {there}, wanted {here}")
        if problems:
            raise CheckpointError(
                f"{self.folder / str(step)} does not fit this model and optimizer; resume with the "
                "configuration that wrote it, or start a new run folder:\n  " + "\n  ".join(problems)
            )


def _manager(folder: Path, options: ocp.CheckpointManagerOptions) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
        folder,
        options=options,
        item_names=(_STATE, _DATA, _META, _AHEAD),
        item_handlers={
            _STATE: ocp.PyTreeCheckpointHandler(),
            _DATA: ocp.JsonCheckpointHandler(),
            _META: ocp.JsonCheckpointHandler(),
            _AHEAD: ocp.PyTreeCheckpointHandler(),
        },
    )


def _of_damage(error: Exception) -> bool:
    """Whether files that are not whole may be why: neither Orbax nor TensorStore has an error of its own for that."""
    return isinstance(error, ValueError | KeyError | FileNotFoundError) or type(error) is Exception


def _files(folder: Path) -> set[Path]:
    """Of a checkpoint; none of one that is going."""
    try:
        return {path for path in folder.rglob("*") if path.is_file()}
    except FileNotFoundError:
        return set()
