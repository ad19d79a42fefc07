"""The captions of an evaluation: who writes them, and whether those that are there are by who is asked for.

Parameters are compared by their fingerprint, for which a captioner must be loaded. So that a second start need not
load it, names, sizes and times of its files are noted beside the captions; as long as these are the same, so is it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from vcap_jax.captioning.captioner import Captioner
from vcap_jax.captioning.engines import Drawing, serving_now
from vcap_jax.captioning.settings import is_served
from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.captions_file import CaptionsFile
from vcap_jax.evals.protocol import Captions
from vcap_jax.recipes.evaluation_request import (
    CAPTIONER,
    EvaluationRefused,
    EvaluationRequest,
    Say,
    remember,
)
from vcap_jax.report.progress import PoolProgress
from vcap_jax.run.checkpoint_source import checkpoint_files
from vcap_jax.system.files import write_json
from vcap_jax.system.json_values import read_json_object
from vcap_jax.system.shutdown import Stopped, requested

CHECKPOINT = "checkpoint.json"
"""In an evaluation's folder, the digest of the files that its captioner was read from."""


def captions_are_of(request: EvaluationRequest, folder: Path, say: Say) -> bool:
    """Whether the captions in ``folder``, if there are any, are by the captioner that is asked for, as far as that can
    be told without loading it; False where it must be loaded to tell.

    What is not there to be compared is taken at its word, which is said: an address that does not answer now, a
    checkpoint that was removed. Raises EvaluationRefused for an address where another model answers.
    """
    path = folder / CAPTIONER
    if not path.exists():
        return True
    writer = str(read_json_object(path).get("writer"))
    if is_served(request.by):
        now = asyncio.run(
            serving_now(request.by, request.captioner, request.served_model, request.api_key_env, say)
        )
        if now is None:
            say(f"{request.by} does not answer now; the captions in {folder} are by {writer}")
        elif now != writer:
            raise EvaluationRefused(
                f"{folder} holds captions by {writer}, and now {now} captions: name another --out, or move it away"
            )
        return True
    files = _files(request)
    if files is None:
        say(f"{request.by}: the checkpoint is gone; the captions in {folder} are by {writer}")
        return True
    noted = folder / CHECKPOINT
    return noted.exists() and read_json_object(noted).get("files") == files


def _files(request: EvaluationRequest) -> str | None:
    if is_served(request.by):
        return None
    try:
        return checkpoint_files(request.by, request.step)
    except ConfigError:  # what a run started from is gone
        return None


class RequestedCaptioner:
    """A policy or a served model, drawn from as the request says."""

    def __init__(self, request: EvaluationRequest, say: Say) -> None:
        self._request, self._say = request, say

    def __enter__(self) -> Self:
        request = self._request
        # Before they are read: what is written over them meanwhile must not pass for what was read.
        self._files = _files(request)
        self._captioner = Captioner.load(
            request.by,
            step=request.step,
            settings=request.captioner,
            served_model=request.served_model,
            api_key_env=request.api_key_env,
            say=self._say,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._captioner.close()

    def remember(self, folder: Path, samples: int) -> None:
        """Notes what the captions in ``folder`` depend on, beside what the request says. Raises EvaluationRefused for
        captions that are there and depend on something else: they must not be mixed, nor taken for this captioner's.
        """
        drawing = Drawing(temperature=self._request.temperature)
        now = self._captioner.described(drawing, samples)
        remember(folder / CAPTIONER, now)
        if self._files is not None:
            write_json(folder / CHECKPOINT, {"files": self._files})

    def fill(
        self, captions: CaptionsFile, name: str, samples: Sequence[Sample], *, seed: int | None = None
    ) -> None:
        """Captions what is missing of ``samples``. name: whom for. seed: by default the request's. Raises Stopped."""
        request = self._request
        drawing = Drawing(temperature=request.temperature)
        index_of = {sample.id: index for index, sample in enumerate(samples)}
        missing = captions.missing(samples)
        progress = PoolProgress(self._say, seconds=10)
        done = len(samples) - len(missing)
        placed = ((index_of[sample.id], sample) for sample in missing)
        seed = request.seed if seed is None else seed
        found = self._captioner.placed(placed, drawing=drawing, seed=seed, total=len(missing))
        for here, caption in enumerate(found, 1):
            captions.add(
                Captions(id=caption.id, failure=caption.failure)
                if caption.failure is not None
                else Captions(
                    id=caption.id,
                    texts=caption.texts,
                    tokens=caption.tokens,
                    truncated=caption.truncated,
                )
            )
            progress(f"captions for {name}", done + here, len(samples), here)
        if requested():
            raise Stopped(
                f"stopped with {len(samples) - len(captions.missing(samples))} of {len(samples)} captions for "
                f"{name}"
            )
