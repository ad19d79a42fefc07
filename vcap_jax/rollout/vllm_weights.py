"""A step's weights as files that a rollout server on the same machine reads."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from vcap_jax.models.family import GraphDef, Params, VllmFamily, family_of
from vcap_jax.rollout.engine import RolloutError
from vcap_jax.system.errors import system_message
from vcap_jax.system.file_locks import taken
from vcap_jax.system.private_folders import ExposedFolder, private_folder

VERSIONS = "vcap-rollout-"
"""What the names of all weights begin with that runs give to servers."""


class WrittenWeights(NamedTuple):
    """folder: of a version. adapters_kept: the share of what adapters add that its numbers keep, see
    ``lora.Additions.kept``; None where they add nothing."""

    folder: Path
    adapters_kept: float | None


class WeightFiles:
    """Writes Hugging Face folders into a folder of its own under ``root``, one per version, and removes them.

    Nobody but this user can enter that folder: servers must run under the same user, or root. What killed runs of this
    host have left under ``root`` is removed: in memory-backed files it is memory that nobody would give back.

    graphdef, frozen: what the trained parameters are merged with (see ``vcap_jax.models.policy``).
    dtype: of the files: what the policy's products compute in. Parameters that are trained themselves are rounded to it
        for every product here too, so the server holds the very numbers that products use. Adapters are not: here
        their products are added to those of the base, and the sums are rounded; there they are added to the base's
        matrices, and these are rounded. In bfloat16 both lose much of young adapters, but not the same: the two are
        different policies. ``write`` says how much of them the files keep.

    Raises RolloutError if ``root`` cannot be made, or if another user could exchange what is written there.
    """

    def __init__(self, root: Path, graphdef: GraphDef, frozen: Params, *, dtype: np.dtype) -> None:
        self._graphdef, self._frozen, self._dtype = graphdef, frozen, dtype
        try:
            self.folder, self._lock = _own_folder(root)
            _remove_abandoned(root)
        except ExposedFolder as error:
            raise RolloutError(
                f"{error}, so others could exchange the weights that the rollout servers read; set "
                "rollout.vllm.weights_dir to a memory-backed folder of your own, or to /dev/shm"
            ) from None
        except OSError as error:
            raise RolloutError(
                f"{root} cannot be written ({error}); set rollout.vllm.weights_dir to a memory-backed folder"
            ) from None

    def of_another_run(self, version: str) -> Path | None:
        """The folder of the run whose weights have this name, if that is another, which is still at work with it."""
        for folder in self.folder.parent.glob(f"{VERSIONS}*"):
            if folder != self.folder and version.startswith(f"{folder.name}-") and taken(folder):
                return folder
        return None

    def write(self, params: Params, version: str) -> WrittenWeights:
        """Writes one version into a folder that appears complete or not at all.

        Raises RolloutError if there is not enough space, or it cannot be written.
        """
        model = nnx.merge(self._graphdef, params, self._frozen)
        size = sum(leaf.size for leaf in jax.tree.leaves((params, self._frozen))) * self._dtype.itemsize
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise RolloutError(
                f"{self.folder} has {free / 1e9:.1f} GB free, the weights need {size / 1e9:.1f} GB; "
                f"remove what killed runs left in {self.folder.parent}/{VERSIONS}*, or set "
                "rollout.vllm.weights_dir to a larger folder"
            )
        unfinished, finished = self.folder / f".{version}", self.folder / version
        family = family_of(self._graphdef)
        assert isinstance(family, VllmFamily)  # the engine refuses others
        try:
            unfinished.mkdir(mode=0o700)
            kept = family.save_for_vllm(model, unfinished, dtype=self._dtype)
            for file in unfinished.iterdir():
                file.chmod(0o600)
            return WrittenWeights(unfinished.replace(finished), kept)
        except OSError as error:  # others may have filled it meanwhile
            shutil.rmtree(unfinished, ignore_errors=True)
            raise RolloutError(
                f"the weights cannot be written into {self.folder} ({system_message(error) or error}); free some space "
                "there, or set rollout.vllm.weights_dir to a larger folder"
            ) from error

    def remove(self, folder: Path) -> None:
        """Removes a version that every server has read."""
        shutil.rmtree(folder)

    def close(self) -> None:
        """Removes everything that was written."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _prefix() -> str:
    """Of the folders of this host's runs, whose locks can be asked for here."""
    return f"{VERSIONS}{socket.gethostname()}-"


def _own_folder(root: Path) -> tuple[Path, int | None]:
    """A new one, and its lock, which ends with this process. It has its name once it is locked."""
    made = private_folder(root, f".{VERSIONS}")
    lock = os.open(made, os.O_RDONLY)
    with suppress(OSError):  # where the file system knows no locks nobody ever finds an abandoned folder
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return made.rename(root / f"{_prefix()}{made.name.rpartition('-')[2]}"), lock


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{_prefix()}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # a run is at work with it, or there are no locks
            continue
        finally:
            os.close(lock)
