"""Whether the embedded judge, which knows only the embedded world, can see anything in a run's samples.

It answers about a photograph too, and its scores look like any others. So a run with pictures of its
own and no judge of its own is told that its rewards mean nothing: at its start, on its page of
samples, and in the model card of its exports.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vcap_jax.data.errors import MediaError
from vcap_jax.data.images import to_rgb
from vcap_jax.data.manifest import Sample
from vcap_jax.data.videos import index_video, read_frames
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.system.files import write_json
from vcap_jax.system.json_records import read_record
from vcap_jax.world.recognition import is_world_image, is_world_video
from vcap_jax.world.scenes import IMAGE_EDGE
from vcap_jax.world.vocabulary import VIDEO_FRAMES

_MOST = 64
"""Samples that are looked at, spread evenly over all."""
_EDGE = 2 * IMAGE_EDGE
_FILE = "judge_domain.json"


@dataclass(frozen=True, kw_only=True)
class JudgeDomain:
    """samples: that there are. looked_at: of them, readable ones only. strange: of those, not the embedded world's."""

    samples: int
    looked_at: int
    strange: int

    @property
    def warning(self) -> str | None:
        """One line for a user; None where the embedded judge can read everything."""
        if not self.strange:
            return None
        rewards = "These rewards mean" if self.strange == self.looked_at else "Some of these rewards mean"
        of = f"of {self.looked_at} samples"
        if self.looked_at < self.samples:
            of = f"of the {self.looked_at} samples looked at (there are {self.samples:,})"
        return (
            f"{rewards} nothing here: the embedded judge reads only pictures of the embedded world, and {self.strange} "
            f"{of} are not its own. Set judge.urls to a vision-language model."
        )


def check_judge_domain(ctx: RunContext, samples: Sequence[Sample]) -> None:
    """Looks at some of the samples, says the warning if there is one, and keeps it for page and card. For a run that
    asks a judge; nothing is done where ``judge.urls`` name one, or where the samples are rendered scenes.

    Of several processes the first one does it. A resumed run finds what was kept.
    """
    config, folder = ctx.config, ctx.folder
    if config.judge.urls or config.data.manifest is None or not ctx.processes.first:
        return
    path = folder.root / _FILE
    if not path.exists():
        domain = judge_domain(samples, threads=config.data.reading_threads)
        write_json(path, asdict(domain))
    if (warning := domain_warning(config, folder)) is not None:
        ctx.say(f"warning: {warning}")


def domain_warning(config: RunConfig, folder: RunFolder) -> str | None:
    """The warning that ``check_judge_domain`` has kept in a run's folder, if that run's judge is the embedded one."""
    path = folder.root / _FILE
    if config.judge.urls or not path.exists():
        return None
    return read_record(JudgeDomain, path).warning


def judge_domain(samples: Sequence[Sample], *, threads: int = 2) -> JudgeDomain:
    """Looks at up to 64 samples, spread evenly over all of them, the first and the last included.

    Files that cannot be read are left out: they are reported when their turn comes.
    """
    chosen = np.unique(np.linspace(0, len(samples) - 1, min(_MOST, len(samples))).round().astype(int))
    with ThreadPoolExecutor(threads) as pool:
        seen = [own for own in pool.map(_is_the_worlds, [samples[i] for i in chosen]) if own is not None]
    return JudgeDomain(samples=len(samples), looked_at=len(seen), strange=seen.count(False))


def _is_the_worlds(sample: Sample) -> bool | None:
    """None for a file that cannot be read."""
    if sample.video is None:
        # Of several pictures the embedded judge looks at the first.
        return _is_world_picture(sample.images[0])
    try:
        return _is_world_clip(sample.video)
    except MediaError:
        return None


def _is_world_picture(path: Path) -> bool | None:
    try:
        with Image.open(path) as image:
            # Most photographs are not square, and need not be decoded; a large JPEG is decoded small.
            if image.width != image.height:
                return False
            image.draft("RGB", (_EDGE, _EDGE))
            return is_world_image(np.asarray(to_rgb(image)))
    except Exception:
        return None  # Pillow raises nearly anything for damaged files, depending on the format


def _is_world_clip(path: Path) -> bool:
    index = index_video(path)
    if index.width != index.height:
        return False
    frames = np.unique(np.linspace(0, len(index) - 1, min(VIDEO_FRAMES, len(index))).round().astype(int))
    return is_world_video(list(read_frames(index, frames.tolist())))
