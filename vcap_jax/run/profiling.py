"""Traces of chosen steps by JAX's profiler, in the run's folder: what devices did when, for xprof and Perfetto."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import jax

from vcap_jax.models.family import Params
from vcap_jax.training.saving import AfterKeeping


class StepProfiles:
    """Records steps from the end of the work between steps before them to the beginning of that after them.

    The state before such a step is saved first: on GPUs the end of a trace can end the process
    (jax-ml/jax, issue 40260). A step that was begun to be recorded is not recorded again, so that the run can go on.

    steps: from 1. total: of the run. folder: gets ``step-N``, in it files of each process. say: is told of each trace;
    None where another process tells. A context manager: a trace whose step ends in an error is kept as well.
    """

    def __init__(
        self, steps: Collection[int], total: int, folder: Path, say: Callable[[str], None] | None
    ) -> None:
        self._steps = frozenset(step for step in steps if step <= total)
        self._folder, self._say = folder, say
        self._recording: Path | None = None
        if say is not None and len(self._steps) < len(set(steps)):
            say(f"logging.profile_steps: the run has no step {max(steps)}, it ends with {total}")

    def between(self, work: Callable[[int, Params], AfterKeeping]) -> Callable[[int, Params], AfterKeeping]:
        """``work`` between steps, as ``Training.between``, with traces ended before it and begun after it."""

        def ended_and_begun(done: int, params: Params) -> AfterKeeping:
            if self._recording is not None:
                jax.block_until_ready(params)
            self._end()
            after = work(done, params)
            return after if done + 1 not in self._steps else partial(self._begin, done + 1, after)

        return ended_and_begun if self._steps else work

    def _begin(self, step: int, after: AfterKeeping) -> None:
        if after is not None:
            after()
        folder = self._folder / f"step-{step}"
        begun = folder / f"begun-{jax.process_index()}"
        if begun.exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        begun.touch()
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every call of Python would be most of the file, and slow the step
        jax.profiler.start_trace(folder, profiler_options=options)
        self._recording = folder

    def _end(self) -> None:
        recorded, self._recording = self._recording, None
        if recorded is None:
            return
        # Told before: there may be no after.
        if self._say is not None:
            self._say(f"{recorded} gets what the devices did in the step; to look at it: xprof {recorded}")
        jax.profiler.stop_trace()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
