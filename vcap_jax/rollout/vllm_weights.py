"""A step's weights as files that a rollout server on the same machine reads."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from vcap_jax.policy import Params
from vcap_jax.qwen3_vl.weights import save_pretrained
from vcap_jax.rollout.engine import RolloutError


class WeightFiles:
    """Writes Hugging Face folders into a folder of its own under ``root``, one per version, and removes them.

    graphdef, frozen: what the trained parameters are merged with (see ``vcap_jax.policy``).
    dtype: of the files: what the policy's products compute in, so that the server holds the numbers they use.

    Raises RolloutError if ``root`` cannot be made.
    """

    def __init__(self, root: Path, graphdef: Any, frozen: Params, *, dtype: Any) -> None:
        self._graphdef, self._frozen, self._dtype = graphdef, frozen, dtype
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(dir=root, prefix="run-"))
        except OSError as error:
            raise RolloutError(
                f"{root} cannot be written ({error}); set rollout.vllm.weights_dir to a memory-backed folder"
            ) from None
        # The server may run under another user.
        self.folder.chmod(0o755)

    def write(self, params: Params, version: str) -> Path:
        """Writes one version and returns its folder, which appears complete or not at all.

        Raises RolloutError if there is not enough space.
        """
        model = nnx.merge(self._graphdef, params, self._frozen)
        size = sum(leaf.size for leaf in jax.tree.leaves((params, self._frozen))) * self._dtype.itemsize
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise RolloutError(
                f"{self.folder} has {free / 1e9:.1f} GB free, the weights need {size / 1e9:.1f} GB; "
                "set rollout.vllm.weights_dir to a larger folder"
            )
        unfinished, finished = self.folder / f".{version}", self.folder / version
        save_pretrained(model, unfinished, dtype=self._dtype)
        return unfinished.replace(finished)

    def remove(self, folder: Path) -> None:
        """Removes a version that every server has read."""
        shutil.rmtree(folder)

    def close(self) -> None:
        """Removes everything that was written."""
        shutil.rmtree(self.folder, ignore_errors=True)
