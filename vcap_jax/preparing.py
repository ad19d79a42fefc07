"""What every command begins with: the data, the starting policy, and the workplace made of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.captioners import load_captioner
from vcap_jax.config import RunConfig
from vcap_jax.data.examples import example_loader
from vcap_jax.data.manifest import Sample, read_manifest
from vcap_jax.embedded import EmbeddedData, prepare_embedded_data
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.sharding import Placement
from vcap_jax.workplace import Workplace, group_sampler


@dataclass(frozen=True)
class Prepared:
    """place: settings, folder, policy, devices. samples: of the run's modality, in the manifest's order.

    world: the scenes behind the samples, where they are the embedded world's; else None.
    """

    place: Workplace
    samples: list[Sample]
    world: EmbeddedData | None


def prepare(
    config: RunConfig, folder: RunFolder, say: Callable[[str], None], *, captioner: str | None = None
) -> Prepared:
    """Reads the manifest, or renders the embedded world into the folder, and loads the policy.

    captioner: a checkpoint to load in place of ``config.model.path`` (see ``load_captioner``).
    """
    world: EmbeddedData | None = None
    if config.data.manifest is not None:
        manifest = Path(config.data.manifest)
    else:
        say(f"rendering the embedded world into {folder.data}")
        world = prepare_embedded_data(folder.data, config.modality, config.world)
        manifest = world.train
    samples = _samples_of(read_manifest(manifest), config.modality, manifest)

    placement = Placement.build(config.mesh)
    policy = load_captioner(config, captioner or config.model.path, placement)
    load = example_loader(
        policy.processor,
        image_prompt=config.data.image_prompt,
        video_prompt=config.data.video_prompt,
        judge=config.data.judge_media,
        buckets=config.data.buckets,
    )
    place = Workplace(config, folder, policy, placement, group_sampler(policy, config.rollout), load, say)
    return Prepared(place, samples, world)


def _samples_of(samples: Sequence[Sample], modality: str, manifest: Path) -> list[Sample]:
    chosen = [sample for sample in samples if sample.modality == modality]
    if not chosen:
        raise ValueError(f"{manifest} has no {modality}s; choose the other modality or another manifest")
    return chosen
