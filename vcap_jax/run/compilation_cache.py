"""Compiled programs that are kept for the next start (``compilation_cache``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.run.config import RunConfig

if TYPE_CHECKING:
    from vcap_jax.parallel.processes import Processes


def use_compilation_cache(config: RunConfig) -> None:
    """Keeps compiled programs where the configuration says."""
    import jax

    if config.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", config.compilation_cache)
        # JAX leaves out what compiles within a second, which in the embedded world is nearly everything.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def check_shared_cache(config: RunConfig, processes: Processes, say: Callable[[str], None]) -> None:
    """Turns the cache off where the processes of a run do not have one folder; they must all call it, before anything
    is compiled.

    JAX writes from the first process alone. At the next start it alone would find the programs that all compile
    together; and on GPUs processes that compile wait for each other's share of the measuring of kernels.
    """
    if processes.count == 1 or not config.compilation_cache:
        return
    if not seen_by_all(Path(config.compilation_cache), processes):
        import jax

        jax.config.update("jax_compilation_cache_dir", None)
        if processes.first:
            say(
                f"compiled programs are not kept: compilation_cache, {config.compilation_cache}, is not one folder for "
                f"all {processes.count} processes. Name one on storage that they share"
            )


def seen_by_all(folder: Path, processes: Processes) -> bool:
    """Whether the folder is the same one for all processes."""
    mark = ""
    if processes.first:
        folder.mkdir(parents=True, exist_ok=True)
        mark = f".seen-{secrets.token_hex(8)}"
        (folder / mark).touch()
    try:
        mark = processes.all_gather_objects("compilation cache, marked", mark)[0]
        return all(processes.all_gather_objects("compilation cache, seen", (folder / mark).exists()))
    finally:
        if processes.first:
            (folder / mark).unlink(missing_ok=True)
