"""The captioner that users meet, in Python and behind ``vcap caption``: loaded once, asked for anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, starmap
from pathlib import Path
from typing import TypeAlias, overload

import numpy as np
from PIL import Image

from vcap_jax.captioning.caption import Caption
from vcap_jax.captioning.engines import (
    Drawing,
    EndpointEngine,
    Engine,
    Part,
    Pixels,
    PolicyEngine,
    is_whole,
)
from vcap_jax.captioning.inputs import Inputs, is_bytes, is_several
from vcap_jax.captioning.settings import is_served
from vcap_jax.configuration import ConfigError
from vcap_jax.data.errors import MediaError
from vcap_jax.data.images import opened_image, upright_rgb
from vcap_jax.data.manifest import Sample, file_sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.report.best_checkpoint import AskedStep
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.system.closing import Closing
from vcap_jax.system.json_values import JsonDict
from vcap_jax.system.shutdown import requested

Input: TypeAlias = "str | Path | Image.Image | np.ndarray"
"""A picture or a clip: its path, or a picture in memory, of Pillow (turned as its camera has noted, like a file) or
pixels (uint8 [H, W, 3] or [H, W])."""

Batch: TypeAlias = (
    "list[str] | list[Path] | list[Image.Image] | list[np.ndarray] | list[Input] | tuple[Input, ...]"
)

_ONE = (str, Path, Image.Image, np.ndarray)
"""An input by itself, which ``caption`` takes and ``stream`` does not."""

_AHEAD = 32
"""Inputs that are laid out together, in groups decoded at a time: enough that batches of one size are full."""
_READ = 4096
"""Inputs that are handed on together to an engine that needs nothing laid out: it reads the last of them with few
beside each other, and is to do so seldom."""
_COUNTED = 4096
"""Inputs that are counted before it is said how many are decoded at a time: more need no closer count."""
_HELD_BYTES = 2**30
"""Of pictures in memory that are laid out together, but for the groups decoded at a time, which always are."""


@dataclass(frozen=True)
class _Indexed:
    index: int
    sample: Sample


class Captioner(Closing):
    """Captions pictures and clips by a policy on this machine's devices, or by a served model.

    Made by ``load``. May be used as a context manager; a served model's connections are closed then.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def load(
        cls,
        by: str | Path,
        *,
        step: AskedStep = None,
        prompt: str | None = None,
        settings: Sequence[str] = (),
        served_model: str | None = None,
        api_key_env: str | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> Captioner:
        """A captioner by the folder of a run, of a Hugging Face or Orbax checkpoint, "embedded", or the http address of
        an OpenAI-compatible server (several of one model: divided by commas).

        A run captions by its own settings, another checkpoint by those of its folder. step: which of a run's
        checkpoints, or "best", by default the last. prompt: the request, in place of the configured ones. settings:
        ``section.key=value`` as on the command line. served_model: of a server with several; api_key_env: name of the
        variable that holds its key. say: where messages go.

        Raises ConfigError for a folder that holds no captioner and for settings, JudgeUnavailable for a server that is
        not ready, and other VCapErrors, each of one line.
        """
        if not isinstance(by, str | os.PathLike):
            raise ConfigError(
                f"by is of type {type(by).__name__}: give the folder of a run or checkpoint, or the address of a server"
            )
        if isinstance(settings, str):
            raise ConfigError(f"settings is a text, {settings!r}: give a list of them, [{settings!r}]")
        words = list(settings)
        if prompt is not None:
            if not prompt.strip():
                raise ConfigError("prompt (--prompt) has no text: give the request, or leave it out")
            quoted = json.dumps(prompt, ensure_ascii=False)
            words += [f"data.image_prompt={quoted}", f"data.video_prompt={quoted}"]
        name = str(by)
        served = is_served(name)
        if served and step is not None:
            raise ConfigError(
                f"step (--step) chooses a run's checkpoint, and {name} is a server: leave it out"
            )
        for key, given in (("served_model", served_model), ("api_key_env", api_key_env)):
            if given is not None and not served:
                raise ConfigError(
                    f"{key} (--{key.replace('_', '-')}) is of a server, and {name} is none: leave it out"
                )
        if served:
            return cls(EndpointEngine(name, words, say, served_model=served_model, api_key_env=api_key_env))
        return cls(PolicyEngine(name, step, words, say))

    @property
    def name(self) -> str:
        """Who captions, in words."""
        return self._engine.name

    @overload
    def caption(
        self, inputs: Input, *, sample: bool = ..., temperature: float | None = ..., seed: int = ...
    ) -> str: ...
    @overload
    def caption(
        self, inputs: Batch, *, sample: bool = ..., temperature: float | None = ..., seed: int = ...
    ) -> list[str]: ...

    def caption(
        self,
        inputs: Input | Batch,
        *,
        sample: bool = False,
        temperature: float | None = None,
        seed: int = 0,
    ) -> str | list[str]:
        """The caption of a picture or clip; of several, captioned side by side, a list in their order.

        sample: draw it as the run's rollout does, not the likeliest token each time; temperature: in place of the
        run's, and drawing is meant. seed: of the draws, from 0 to 2**32 - 1.
        Raises MediaError for one that cannot be read, or that a served model says nothing of, naming it; ``stream``
        goes on without it. Raises TypeError for what is no input and no list, and ValueError as ``stream`` does.
        """
        if isinstance(inputs, _ONE):
            return self.caption([inputs], sample=sample, temperature=temperature, seed=seed)[0]
        found = list(self.stream(inputs, sample=sample, temperature=temperature, seed=seed))
        for caption in found:
            if caption.failure is not None:
                raise MediaError(caption.named_failure)
        return [caption.text for caption in sorted(found, key=lambda caption: caption.index)]

    def stream(
        self,
        inputs: Iterable[Input] | Inputs,
        *,
        n: int = 1,
        sample: bool = False,
        temperature: float | None = None,
        seed: int = 0,
    ) -> Iterator[Caption]:
        """Captions as they come, one entry for each input, those that cannot be read as well (``Caption.failure``).

        inputs: of any number, read as a stream; ``Inputs`` takes folders and manifests too. n: captions of each.
        sample, temperature, seed: as for ``caption``.

        What comes is not in the order of the inputs, as those of one size are captioned side by side: see
        ``Caption.index``. Captions depend on seed and index, not on what is captioned beside them.
        Raises ValueError for numbers that cannot be meant, ConfigError, which is one, for several captions that would
        all be the same, and TypeError for a picture or path by itself, a file's bytes and what cannot be gone through.
        """
        # A path has letters and a picture rows, which are no inputs; an array may hold several pictures.
        if isinstance(inputs, _ONE) and not (isinstance(inputs, np.ndarray) and inputs.ndim > 3):
            raise TypeError(f"inputs is a single {type(inputs).__name__}: give a list of them")
        if not is_several(inputs):
            raise TypeError(f"inputs is {_not_an_input(inputs)}, or a list of them")
        pixels: dict[Path, np.ndarray | MediaError] = {}
        samples = iter(inputs) if isinstance(inputs, Inputs) else _samples(inputs, pixels)
        drawing = Drawing(captions=n, sample=sample, temperature=temperature)
        yield from self.placed(enumerate(samples), drawing=drawing, seed=seed, pixels=pixels)

    def placed(
        self,
        samples: Iterable[tuple[int, Sample]],
        *,
        drawing: Drawing,
        seed: int = 0,
        total: int | None = None,
        pixels: dict[Path, np.ndarray | MediaError] | None = None,
    ) -> Iterator[Caption]:
        """``stream`` of samples with their indices. total: how many there are, if that is known. pixels: pictures that
        are in memory, by the name of their sample's file; forgotten once captioned. Ends early when a signal has come,
        with what was in work."""
        if not is_whole(seed) or not 0 <= seed < 2**32:
            raise ValueError(f"seed is {seed!r}: give a whole number from 0 to 2**32 - 1")
        pixels = {} if pixels is None else pixels
        source = starmap(_Indexed, samples)
        first: list[_Indexed] = []
        if total is None:
            first, ended = _next(source, _COUNTED, pixels)
            total = len(first) if ended else _COUNTED
        rollout = self._engine.rollout(drawing, total)
        # Names may occur twice, so inside they are the indices.
        in_work: dict[str, _Indexed] = {}
        parts = self._parts(chain(first, source), rollout.groups_per_batch, pixels, in_work)
        for done in self._engine.captions(parts, rollout, seed=seed, pixels=pixels):
            if isinstance(done, BadSample):
                one = in_work.pop(done.id)
                inside = f"sample {done.id} "
                reason = done.reason
                if reason.startswith(inside):
                    reason = f"{one.sample.id} {reason.removeprefix(inside)}"
                yield Caption.failed(one.index, one.sample, reason)
            else:
                yield _caption(in_work.pop(done.sample.id), done)

    def _parts(
        self,
        inputs: Iterator[_Indexed],
        groups: int,
        pixels: dict[Path, np.ndarray | MediaError],
        in_work: dict[str, _Indexed],
    ) -> Iterator[Part]:
        """What the engine captions side by side, as it asks for it; a signal ends it.

        groups: inputs decoded at a time. pixels: those of a part are forgotten when the next one is asked for. in_work:
        gets the inputs of each part, by their samples' ids.
        """
        alike = self._engine.alike
        most = _AHEAD * groups if alike else _READ
        while not requested() and (chunk := _next(inputs, most, pixels, least=groups)[0]):
            for part in _laid_out(chunk, pixels) if alike else [chunk]:
                if requested():
                    return
                in_work.update((str(one.index), one) for one in part)
                yield Part(
                    samples=[replace(one.sample, id=str(one.index)) for one in part],
                    indices=[one.index for one in part],
                )
            for one in chunk:
                for file in one.sample.files:
                    pixels.pop(file, None)

    def described(self, drawing: Drawing, total: int) -> JsonDict:
        """What the captions of ``total`` inputs depend on, beside the inputs and the seed, as JSON."""
        engine, rollout = self._engine, self._engine.rollout(drawing, total)
        return {
            "writer": engine.name,
            "weights": engine.weights(),
            "captions": rollout.group_size,
            "sampling": engine.rules(rollout),
            "max_completion_length": rollout.max_completion_length,
            **{name: getattr(engine.config.data, name) for name in engine.asking},
            "dtype": engine.config.model.dtype,
            **engine.shown(),
        }

    def close(self) -> None:
        """Closes a served model's connections."""
        self._engine.close()


def _caption(one: _Indexed, done: Captioned) -> Caption:
    return Caption(
        index=one.index,
        id=one.sample.id,
        modality=one.sample.modality,
        files=one.sample.files,
        texts=done.captions,
        tokens=done.lengths,
        truncated=done.truncated,
        failure=done.lacking or None,
    )


def _next(
    source: Iterator[_Indexed], most: int, pixels: Pixels, *, least: int = 1
) -> tuple[list[_Indexed], bool]:
    """The next inputs, and whether there are no more: ``most``, or fewer where pictures in memory fill the room, but
    at least so many."""
    found: list[_Indexed] = []
    held = 0
    while len(found) < most and (held < _HELD_BYTES or len(found) < least):
        one = next(source, None)
        if one is None:
            return found, True
        found.append(one)
        pictures = (pixels.get(file) for file in one.sample.files)
        held += sum(picture.nbytes for picture in pictures if isinstance(picture, np.ndarray))
    return found, False


def _samples(inputs: Iterable[Input], pixels: dict[Path, np.ndarray | MediaError]) -> Iterator[Sample]:
    """A sample for each; pictures in memory are put into ``pixels`` under a name of their own."""
    for index, item in enumerate(inputs):
        if isinstance(item, str | Path):
            path = Path(item)
            yield file_sample(path, str(item))
            continue
        name = Path(f"picture {index}")
        try:
            pixels[name] = _rgb(item, str(name))
        except MediaError as error:
            pixels[name] = error
        yield Sample(id=str(name), images=(name,))


def _not_an_input(value: object) -> str:
    """What is said of it after "is"."""
    held = " (of a file's bytes Pillow makes one, by Image.open(io.BytesIO(...)))" if is_bytes(value) else ""
    return f"of type {type(value).__name__}: give a path, a Pillow image{held} or a NumPy array"


def _rgb(picture: Image.Image | np.ndarray, name: str) -> np.ndarray:
    """uint8 [H, W, 3]. Raises MediaError for an array of another kind, and for anything else."""
    if isinstance(picture, Image.Image):
        try:
            return upright_rgb(picture)
        except MemoryError:
            raise
        except Exception as error:  # of any kind for damaged files, which Pillow reads as late as here
            raise MediaError(f"{name}: not a usable picture ({error})") from error
    if not isinstance(picture, np.ndarray):
        raise MediaError(f"{name} is {_not_an_input(picture)}")
    if picture.dtype != np.uint8 or picture.shape[2:] not in ((), (3,)) or picture.ndim < 2:
        raise MediaError(
            f"{name}: an array of {picture.dtype} {list(picture.shape)}: give uint8 [height, width, 3] or "
            "[height, width]"
        )
    return picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=2)


def _laid_out(inputs: Sequence[_Indexed], pixels: Pixels) -> Iterator[list[_Indexed]]:
    """Pictures, then clips, as far as there are any."""
    pictures = [one for one in inputs if one.sample.modality == "image"]
    clips = [one for one in inputs if one.sample.modality == "video"]
    if pictures:
        yield _by_size(pictures, pixels)
    if clips:
        yield clips


def _by_size(inputs: Sequence[_Indexed], pixels: Pixels) -> list[_Indexed]:
    """Pictures of one size beside each other, so that batches are padded little and share their programs. Only headers
    are read."""

    def area(one: _Indexed) -> int:
        total = 0
        for file in one.sample.files:
            held = pixels.get(file)
            if isinstance(held, MediaError):
                return 0  # told of when it is read
            if held is not None:
                height, width = held.shape[:2]
            else:
                try:
                    with opened_image(file) as opened:
                        width, height = opened.size
                except Exception:
                    return 0  # of any kind for damaged files; told of when it is read
            total += width * height
        return total

    if len(inputs) < 3:
        return list(inputs)
    with ThreadPoolExecutor(8) as pool:
        areas = list(pool.map(area, inputs))
    return [inputs[i] for i in sorted(range(len(inputs)), key=lambda i: (areas[i], i))]
