"""What every command begins with: the data, the starting policy, and the run's context made of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from vcap_jax.configuration import ConfigError
from vcap_jax.data.holding_out import a_part, check_apart, divided
from vcap_jax.data.manifest import Sample, read_manifest
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.rollout.vllm_engine import VllmEngine
from vcap_jax.run.checkpoint_source import load_captioner, load_start
from vcap_jax.run.checks import check_same_attention, mesh_placement
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext, group_sampler
from vcap_jax.world.splits import EmbeddedData, prepare_embedded_data


@dataclass(frozen=True)
class Prepared:
    """ctx: settings, folder, policy, devices. samples: of the run's modality, in the manifest's order, without those
    held out.

    world: the scenes behind the samples, where they are the embedded world's; else None. heldout: samples of the user's
    own that are never trained on.
    """

    ctx: RunContext
    samples: list[Sample]
    world: EmbeddedData | None
    heldout: tuple[Sample, ...] = ()


def prepare(
    config: RunConfig,
    folder: RunFolder,
    say: Callable[[str], None],
    *,
    captioner: str | None = None,
    step: int | None = None,
    processes: Processes = ALONE,
    logprobs: bool = False,
) -> Prepared:
    """Reads the manifest, or renders the embedded world into the folder, and loads the policy.

    captioner, step: a checkpoint to load in place of what the run starts from (see ``load_captioner``).
    processes: those that share the work. logprobs: whether the run's sampler gives them, as training with it needs.
    Raises ConfigError for a mesh that does not fit the devices, UnsupportedAttention unless all processes compute
    attention alike, and what reading samples and policy raises.
    """
    samples, world = processes.led("samples", lambda: read_samples(config, folder, say))
    heldout = tuple(heldout_samples(config))
    if world is not None:
        # Scenes have names once they are rendered; a manifest's samples were compared before.
        check_apart(samples, heldout)
    placement = mesh_placement(config.mesh)
    if captioner is None:
        if config.model.step is not None:
            say(f"starting policy: {config.model.path} at step {config.model.step}")
        policy = load_start(config, placement)
    else:
        policy = load_captioner(config, captioner, placement, step=step)
    placement = placement.with_rules(policy.family.partition_rules)
    check_same_attention(f"{policy.attention} with {policy.decode_attention} for new tokens", processes)
    sampler = group_sampler(policy, config.rollout, processes, logprobs=logprobs)
    ctx = RunContext(config, folder, policy, placement, sampler, say, processes)
    return Prepared(ctx, samples, world, heldout)


@contextmanager
def drawing(prepared: Prepared) -> Iterator[Prepared]:
    """The same with those ready who draw captions, as ``rollout.engine`` says. Servers hold one policy at a time: of
    two that are prepared, one is done with before the other draws.

    Raises RolloutError for a server that does not answer, or that is not set up as it must be.
    """
    ctx = prepared.ctx
    if ctx.config.rollout.engine == "jax":
        ctx.say("captions are drawn by the JAX sampler")
        yield prepared
        return
    with VllmEngine(
        ctx.policy,
        ctx.config.rollout,
        seed=ctx.config.seed,
        dtype=ctx.config.model.dtype,
        say=ctx.say,
        turns=ctx.turns,
    ) as servers:
        for server in servers.connect():
            ctx.say(f"captions are drawn by vLLM at {server.url}, model {server.model}")
        yield replace(prepared, ctx=replace(ctx, servers=servers))


def read_samples(
    config: RunConfig, folder: RunFolder, say: Callable[[str], None]
) -> tuple[list[Sample], EmbeddedData | None]:
    """The samples of the run's modality to train on, and the scenes behind them where there is no manifest.

    Raises ManifestError for a manifest that cannot be used, ConfigError if it has nothing of the modality.
    """
    if config.data.manifest is not None:
        return manifest_samples(config, say), None
    say(f"scenes of the embedded world: {folder.data}")
    world = prepare_embedded_data(folder.data, config.modality, config.world)
    return read_manifest(world.train), world


def manifest_samples(config: RunConfig, say: Callable[[str], None]) -> list[Sample]:
    """The samples of ``config.data.manifest`` that are of the run's modality and not held out; says how many are left
    out.

    Raises ManifestError for a manifest that cannot be used, ConfigError if it has nothing of the modality.
    """
    chosen = _of_modality(config, say)
    trained, held = divided(chosen, config.data.heldout_share, config.data.heldout_seed)
    if held:
        shown = len(chosen) - len(held) - len(trained)
        too = f"; left out, as they show files of these: {shown}" if shown else ""
        say(f"held out of {config.data.manifest}: {len(held)} of {len(chosen)} samples{too}")
    return trained


def heldout_samples(config: RunConfig) -> list[Sample]:
    """The user's own samples that are never trained on, of the run's modality; none where none are configured.

    Raises ManifestError for a manifest that cannot be used, ConfigError if it has nothing of the modality, or so small
    a share of it is held out that no sample is.
    """
    data = config.data
    if data.heldout_share:
        everything = _of_modality(config, lambda _: None)
        trained, held = divided(everything, data.heldout_share, data.heldout_seed)
        if not (trained and held):
            which = "leaves nothing to train on" if held else "holds out none"
            raise ConfigError(
                f"data.heldout_share is {data.heldout_share:g}, which {which} of the "
                f"{len(everything)} samples of {data.manifest}: set another share, or name a manifest of its "
                "own, data.heldout=FILE"
            )
        return held
    if data.heldout is None:
        return []
    held = [sample for sample in read_manifest(data.heldout) if sample.modality == config.modality]
    if not held:
        raise ConfigError(f"{data.heldout} (data.heldout) has no {config.modality}s: name another manifest")
    return held


def _of_modality(config: RunConfig, say: Callable[[str], None]) -> list[Sample]:
    assert config.data.manifest is not None
    samples = read_manifest(config.data.manifest)
    chosen = [sample for sample in samples if sample.modality == config.modality]
    other = "image" if config.modality == "video" else "video"
    if not chosen:
        raise ConfigError(
            f"{config.data.manifest} has no {config.modality}s, only {len(samples)} {other}s: set "
            f"modality={other}, or name another manifest"
        )
    if left_out := len(samples) - len(chosen):
        them = f"1 {other}" if left_out == 1 else f"{left_out} {other}s"
        say(f"left out of {config.data.manifest}: {them}, because modality is {config.modality}")
    return taken_part(config, chosen, say)


def taken_part(config: RunConfig, samples: list[Sample], say: Callable[[str], None]) -> list[Sample]:
    """As many of the manifest's samples as ``data.max_samples`` allows; says how many are taken."""
    most = config.data.max_samples
    if most is None or len(samples) <= most:
        return samples
    say(f"taken of {config.data.manifest}: {most} of {len(samples)} samples (data.max_samples)")
    return a_part(samples, most)
