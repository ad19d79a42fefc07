"""What every command begins with: the data, the starting policy, and the run's context made of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vcap_jax.configuration import ConfigError
from vcap_jax.data.examples import Example, example_loader
from vcap_jax.data.manifest import Sample, read_manifest
from vcap_jax.data.media import TimeWindow
from vcap_jax.models.family import Processor
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.checkpoint_source import load_captioner, load_start
from vcap_jax.run.checks import check_same_attention, mesh_placement
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext, group_sampler
from vcap_jax.world.splits import EmbeddedData, prepare_embedded_data


@dataclass(frozen=True)
class Prepared:
    """ctx: settings, folder, policy, devices. samples: of the run's modality, in the manifest's order.

    world: the scenes behind the samples, where they are the embedded world's; else None.
    """

    ctx: RunContext
    samples: list[Sample]
    world: EmbeddedData | None


def prepare(
    config: RunConfig,
    folder: RunFolder,
    say: Callable[[str], None],
    *,
    captioner: str | None = None,
    step: int | None = None,
    judged: bool = True,
    processes: Processes = ALONE,
) -> Prepared:
    """Reads the manifest, or renders the embedded world into the folder, and loads the policy.

    captioner, step: a checkpoint to load in place of what the run starts from (see ``load_captioner``).
    judged: whether a judge will be asked about the samples. processes: those that share the work.
    Raises ConfigError for a mesh that does not fit the devices, UnsupportedAttention unless all processes compute
    attention alike, and what reading samples and policy raises.
    """
    samples, world = processes.led("samples", lambda: read_samples(config, folder, say))
    placement = mesh_placement(config.mesh)
    if captioner is None:
        if config.model.step is not None:
            say(f"starting policy: {config.model.path} at step {config.model.step}")
        policy = load_start(config, placement)
    else:
        policy = load_captioner(config, captioner, placement, step=step)
    placement = placement.with_rules(policy.family.partition_rules)
    check_same_attention(policy.attention, processes)
    load = sample_reader(config, policy.processor, judged=judged)
    sampler = group_sampler(policy, config.rollout, processes)
    ctx = RunContext(config, folder, policy, placement, sampler, load, say, processes)
    return Prepared(ctx, samples, world)


def read_samples(
    config: RunConfig, folder: RunFolder, say: Callable[[str], None]
) -> tuple[list[Sample], EmbeddedData | None]:
    """The samples of the run's modality, and the scenes behind them where there is no manifest.

    Raises ManifestError for a manifest that cannot be used, ConfigError if it has nothing of the modality.
    """
    if config.data.manifest is not None:
        return manifest_samples(config, say), None
    say(f"scenes of the embedded world: {folder.data}")
    world = prepare_embedded_data(folder.data, config.modality, config.world)
    return read_manifest(world.train), world


def manifest_samples(config: RunConfig, say: Callable[[str], None]) -> list[Sample]:
    """The samples of ``config.data.manifest`` that are of the run's modality; says how many are not.

    Raises ManifestError for a manifest that cannot be used, ConfigError if it has nothing of the modality.
    """
    assert config.data.manifest is not None
    samples = read_manifest(config.data.manifest)
    chosen = [sample for sample in samples if sample.modality == config.modality]
    other = "image" if config.modality == "video" else "video"
    if not chosen:
        raise ConfigError(
            [
                (
                    f"{config.data.manifest} has no {config.modality}s, only {len(samples)} {other}s: set "
                    f"modality={other}, or name another manifest"
                )
            ]
        )
    if left_out := len(samples) - len(chosen):
        them = f"1 {other}" if left_out == 1 else f"{left_out} {other}s"
        say(f"left out of {config.data.manifest}: {them}, because modality is {config.modality}")
    return chosen


def sample_reader(
    config: RunConfig,
    processor: Processor,
    *,
    window: Callable[[Sample, float], TimeWindow] | None = None,
    judged: bool = True,
) -> Callable[[Sample], Example]:
    """Reads and encodes a sample as the configuration says; ``window``, ``judged``: see ``example_loader``."""
    return example_loader(
        processor,
        image_prompt=config.data.image_prompt,
        video_prompt=config.data.video_prompt,
        judge=config.data.judge_media,
        buckets=config.data.buckets,
        window=window,
        judged=judged,
    )
