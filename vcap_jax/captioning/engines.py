"""Who captions, opened from its name: a run, a checkpoint folder, or the address of a served model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pydantic

from vcap_jax.captioning.by_endpoint import CAPTIONER, EndpointCaptioner, sent_rules, shown_rules, writer_name
from vcap_jax.captioning.settings import (
    ASKING,
    UNSEEN,
    checkpoint_config,
    endpoint_config,
    groups_side_by_side,
)
from vcap_jax.configuration import ConfigError
from vcap_jax.data.errors import MediaError
from vcap_jax.data.examples import example_loader, media_loader
from vcap_jax.data.images import decode_image
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.videos import EvenFrames
from vcap_jax.parallel.fingerprint import fingerprint
from vcap_jax.parallel.sharding import GROUP_AXES
from vcap_jax.report.best_checkpoint import AskedStep
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.client import model_now
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.run.checkpoint_source import checkpoint_source, load_captioner
from vcap_jax.run.checks import mesh_placement
from vcap_jax.run.compilation_cache import use_compilation_cache
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext, group_sampler
from vcap_jax.run.inputs import check_checkpoint
from vcap_jax.system.json_values import JsonDict
from vcap_jax.system.shutdown import requested

Pixels = Mapping[Path, np.ndarray | MediaError]
"""Pictures that are in memory, by the names that stand for them; why there is none of those that cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How captions are drawn. captions: of each input. sample: draw them as the run does, else the likeliest token each
    time. temperature: in place of the run's, and sampling is meant. groups: inputs decoded at a time, None for as many
    as have room. Raises ValueError for numbers that are none of these."""

    captions: int = 1
    sample: bool = False
    temperature: float | None = None
    groups: int | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.captions) or self.captions < 1:
            raise ValueError(
                f"n, captions of each input, is {self.captions!r}: give a whole number of at least 1"
            )
        wanted = self.temperature
        if wanted is not None and not (_is_number(wanted) and 0 <= wanted < math.inf):
            raise ValueError(
                f"temperature is {wanted!r}: give a number of at least 0, or None for the run's own"
            )
        if self.groups is not None and self.groups < 1:
            raise ValueError(f"{self.groups} inputs at a time: give at least 1")


def is_whole(value: object) -> bool:
    """Whether it is a whole number, of Python or NumPy; true and false are none."""
    return _is_number(value) and not isinstance(value, float | np.floating)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Inputs that are captioned side by side. samples: their ids differ. indices: of each, what its draws depend on
    beside the seed."""

    samples: Sequence[Sample]
    indices: Sequence[int]


class Engine(Protocol):
    """A captioner that is ready. config: its settings; asking: the names of those of ``config.data`` that it is asked
    by; name: in words. alike: whether the inputs of a part must be of one modality, and are best of one size."""

    config: RunConfig
    asking: tuple[str, ...]
    name: str
    alike: bool

    def weights(self) -> str | None:
        """Fingerprint of the parameters; None where they cannot be seen."""
        ...

    def rollout(self, drawing: Drawing, inputs: int) -> RolloutConfig:
        """The rules for so many inputs. Raises ConfigError for captions that would all be the same."""
        ...

    def rules(self, rollout: RolloutConfig) -> JsonDict:
        """The sampling rules of ``rollout`` that captions are drawn by."""
        ...

    def shown(self) -> JsonDict:
        """What decides how it sees an input beside the visual budget; empty for what is usual."""
        ...

    def captions(
        self, parts: Iterable[Part], rollout: RolloutConfig, *, seed: int, pixels: Pixels
    ) -> Iterator[Captioned | BadSample]:
        """One entry for each sample, in any order. parts: the next one is asked for once all files of the one before
        have been read, or its captions are there. What is in work when a signal comes is the last."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class PolicyEngine:
    """A policy on this process's devices (implements ``Engine``)."""

    asking: tuple[str, ...] = ASKING
    alike = True

    def __init__(self, by: str, step: AskedStep, settings: Sequence[str], say: Callable[[str], None]) -> None:
        """Raises ConfigError, CheckpointError and what else loading a policy raises."""
        check_checkpoint(by, step, key=CAPTIONER.addresses)
        source = checkpoint_source(by, step)
        self.name = str(source)
        self.config = config = checkpoint_config(source, settings)
        use_compilation_cache(config)
        placement = mesh_placement(config.mesh)
        policy = load_captioner(config, by, placement, step=source.step)
        placement = placement.with_rules(policy.family.partition_rules)
        sampler = group_sampler(policy, config.rollout)
        # Nothing is written into the folder.
        self._ctx = RunContext(config, RunFolder(source.folder), policy, placement, sampler, say)
        self._ways = int(np.prod([placement.mesh.shape[axis] for axis in GROUP_AXES]))
        self._params = self._ctx.own_params(policy.trainable)
        self._samplers: dict[RolloutConfig, GroupSampler] = {}
        self._not_of = config.modality if source.run else None

    def weights(self) -> str | None:
        return fingerprint(self._ctx.policy.trainable, self._ctx.policy.frozen)

    def rollout(self, drawing: Drawing, inputs: int) -> RolloutConfig:
        groups = drawing.groups or groups_side_by_side(self.config, drawing.captions, inputs, self._ways)
        return drawn_by(self.config, drawing, groups)

    def rules(self, rollout: RolloutConfig) -> JsonDict:
        return asdict(rollout.sampling)

    def shown(self) -> JsonDict:
        return {}

    def captions(
        self, parts: Iterable[Part], rollout: RolloutConfig, *, seed: int, pixels: Pixels
    ) -> Iterator[Captioned | BadSample]:
        if rollout not in self._samplers:
            self._samplers[rollout] = group_sampler(self._ctx.policy, rollout)
        data = self.config.data
        load = example_loader(
            self._ctx.policy.processor,
            image_prompt=data.image_prompt,
            video_prompt=data.video_prompt,
            buckets=data.buckets,
            judged=False,
            open_image=partial(opened, pixels),
        )
        captioner = self._ctx.captioner(self._samplers[rollout], load)
        bad: list[BadSample] = []
        for part in parts:
            self._tell_untaught(part.samples[0].modality)
            for done in captioner.run(
                self._params,
                part.samples,
                seed=seed,
                indices=part.indices,
                on_bad=bad.append,
                stop=requested,
            ):
                yield from bad
                bad.clear()
                yield done
            yield from bad
            bad.clear()

    def _tell_untaught(self, modality: str) -> None:
        """Once, where a run trained on the other one."""
        if self._not_of is not None and modality != self._not_of:
            self._ctx.say(f"{self.name} trained on {self._not_of}s: of {modality}s it learned nothing")
            self._not_of = None

    def close(self) -> None:
        """See ``Engine``."""


class EndpointEngine:
    """A served model (implements ``Engine``)."""

    asking: tuple[str, ...] = tuple(name for name in ASKING if name not in UNSEEN)
    alike = False

    def __init__(
        self,
        by: str,
        settings: Sequence[str],
        say: Callable[[str], None],
        *,
        served_model: str | None = None,
        api_key_env: str | None = None,
    ) -> None:
        """Raises ConfigError, and JudgeUnavailable if the server does not become ready."""
        self.config = config = endpoint_config(settings)
        self._endpoint = served_endpoint(config.judge, by, served_model, api_key_env)
        self._say = say
        self._open: dict[RolloutConfig, EndpointCaptioner] = {}
        self.name = self._captioner(config.rollout).name

    def _captioner(self, rollout: RolloutConfig) -> EndpointCaptioner:
        if rollout not in self._open:
            captioner = EndpointCaptioner(
                self._endpoint,
                rollout=rollout,
                threads=self.config.data.reading_threads,
                prefetch=self.config.data.prefetch,
                say=self._say,
            )
            self._open[rollout] = captioner.__enter__()
        return self._open[rollout]

    def weights(self) -> str | None:
        return None

    def rollout(self, drawing: Drawing, inputs: int) -> RolloutConfig:
        del inputs
        return drawn_by(self.config, drawing, drawing.groups or 1)

    def rules(self, rollout: RolloutConfig) -> JsonDict:
        return sent_rules(rollout.sampling)

    def shown(self) -> JsonDict:
        return shown_rules(self.config.data.judge_media, self._endpoint)

    def captions(
        self, parts: Iterable[Part], rollout: RolloutConfig, *, seed: int, pixels: Pixels
    ) -> Iterator[Captioned | BadSample]:
        data = self.config.data
        load = media_loader(
            image_prompt=data.image_prompt,
            video_prompt=data.video_prompt,
            settings=data.judge_media,
            frames=EvenFrames(fps=data.fps or EvenFrames.fps, most=data.max_frames or EvenFrames.most),
            open_image=partial(opened, pixels),
        )
        # The draws depend on the samples' ids, which are made of their indices.
        samples = (part.samples for part in parts)
        return self._captioner(rollout).as_they_come(samples, load, seed=seed)

    def close(self) -> None:
        for captioner in self._open.values():
            captioner.__exit__()
        self._open.clear()


async def serving_now(
    by: str,
    settings: Sequence[str],
    served_model: str | None,
    api_key_env: str | None,
    say: Callable[[str], None],
) -> str | None:
    """The ``name`` of the engine for what answers at an address now, by its answer or by ``served_model``; None if
    nothing answers and none is named. Raises ConfigError, and JudgeUnavailable where waiting cannot help."""
    endpoint = served_endpoint(endpoint_config(settings).judge, by, served_model, api_key_env)
    model = await model_now(endpoint, role=CAPTIONER, say=say) or served_model
    return None if model is None else writer_name(model)


def served_endpoint(judge: JudgeConfig, by: str, model: str | None, api_key_env: str | None) -> JudgeConfig:
    """The captioner behind the addresses ``by``, treated as ``judge`` says. Raises ConfigError for what is none."""
    urls = tuple(url.strip() for url in by.split(","))
    try:
        return replace(judge, urls=urls, model=model, api_key_env=api_key_env)
    except pydantic.ValidationError as error:
        raise ConfigError(
            f"{CAPTIONER.addresses} {by}: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        ) from error


def drawn_by(config: RunConfig, drawing: Drawing, groups: int) -> RolloutConfig:
    """The rules that captions are drawn by. Raises ConfigError for several captions that would all be the same."""
    rules = config.rollout.sampling
    if drawing.temperature is not None:
        rules = replace(rules, temperature=float(drawing.temperature))
    elif not drawing.sample:
        rules = replace(rules, temperature=0.0)
    if rules.temperature == 0 and drawing.captions > 1:
        raise ConfigError(
            f"{drawing.captions} captions of each input would all be the same at temperature 0: draw them at a higher "
            "one, by sample (--sample) or temperature (--temperature), or ask for one"
        )
    return replace(
        config.rollout,
        group_size=int(drawing.captions),
        groups_per_batch=groups,
        # These groups fit with captions of any length.
        short_groups=0,
        single_groups=0,
        short_length=0,
        sampling=rules,
        engine="jax",
    )


def opened(pixels: Pixels, path: Path) -> np.ndarray:
    """A picture in memory or on disk, uint8 [H, W, 3]. Raises MediaError."""
    held = pixels.get(path)
    if held is None:
        return decode_image(path)
    if isinstance(held, MediaError):
        raise held
    return held
