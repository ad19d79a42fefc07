"""How pictures and frames become patches: the numbers of a checkpoint's preprocessor files.

A nested section of ``processor_config.json`` comes first, as in the public loader (transformers 5.23); else
images are described by ``preprocessor_config.json`` and videos by ``video_preprocessor_config.json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vcap_jax.models.errors import CheckpointError, InputError
from vcap_jax.models.qwen3_vl.config_json import typed
from vcap_jax.models.qwen3_vl.inputs import PixelScale
from vcap_jax.system.json_values import JsonDict, JsonObject, read_json_object

PROCESSOR_FILE = "processor_config.json"
IMAGE_FILE = "preprocessor_config.json"
VIDEO_FILE = "video_preprocessor_config.json"
PROCESSOR_CLASS = "Qwen3VLProcessor"
IMAGE_PROCESSOR_TYPE = "Qwen2VLImageProcessorFast"
VIDEO_PROCESSOR_TYPE = "Qwen3VLVideoProcessor"
_BICUBIC = 3  # PIL.Image.Resampling.BICUBIC


@dataclass(frozen=True, kw_only=True)
class PatchSettings:
    """What images and videos share.

    patch_size: pixels along one side of a patch.
    temporal_patch_size: frames in one patch (an image is repeated that often).
    merge_size: patches along one side of a merged visual token.
    mean, std: per channel, of pixels scaled by ``rescale_factor``.
    """

    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    rescale_factor: float = 1 / 255

    def __post_init__(self) -> None:
        for name in ("patch_size", "temporal_patch_size", "merge_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give a positive whole number")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(f"mean {self.mean} and std {self.std} must be three numbers each, std positive")
        if not all(map(math.isfinite, (*self.mean, *self.std, self.rescale_factor))):
            raise ValueError(
                f"mean {self.mean}, std {self.std} and rescale_factor {self.rescale_factor} must be finite"
            )

    @property
    def factor(self) -> int:
        """Height and width of a resized picture are multiples of this many pixels (one merged token)."""
        return self.patch_size * self.merge_size

    @property
    def scale(self) -> PixelScale:
        """How the vision tower normalises grey levels."""
        return PixelScale(tuple(self.mean), tuple(self.std), self.rescale_factor)


@dataclass(frozen=True, kw_only=True)
class ImageSettings(PatchSettings):
    """Images are resized so that height x width lies within [min_pixels, max_pixels].

    The defaults are those of the published Qwen3-VL checkpoints.
    """

    min_pixels: int = 65_536
    max_pixels: int = 16_777_216

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pixels(self.min_pixels, self.max_pixels)


@dataclass(frozen=True, kw_only=True)
class VideoSettings(PatchSettings):
    """Videos are sampled at ``fps``, at least ``min_frames`` and at most ``max_frames`` frames, and resized
    so that frames x height x width lies within [min_pixels, max_pixels].

    With ``cap_pixels_per_frame`` one frame is also held to ``max_video_tokens`` merged tokens (the names are
    those of the public video processor, which leaves the cap off unless asked). The defaults are those of the
    published Qwen3-VL checkpoints.
    """

    min_pixels: int = 4_096
    max_pixels: int = 25_165_824
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    cap_pixels_per_frame: bool = False
    max_video_tokens: int = 768

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pixels(self.min_pixels, self.max_pixels)
        if not 0 < self.fps < math.inf:
            raise ValueError(f"fps is {self.fps}: give frames per second above 0, and not endless")
        if not 1 <= self.min_frames <= self.max_frames:
            raise ValueError(
                f"min_frames {self.min_frames} must be at least 1 and at most max_frames {self.max_frames}"
            )
        if self.max_video_tokens < 1:
            raise ValueError(f"max_video_tokens is {self.max_video_tokens}: give a positive whole number")

    def sample_indices(self, total_frames: int, source_fps: float) -> np.ndarray:
        """Indices of the frames to look at: uniform over the whole video at about ``fps``, as by the public video
        processor's ``sample_frames`` (transformers 5.23).

        total_frames: frames in the video; source_fps: its frames per second.
        Returns int64 [n], increasing, first and last frame included (for n > 1),
        n = min(max(total / source_fps * fps, min_frames), max_frames, total).
        Raises InputError for no frames or a frame rate that is not positive.
        """
        if total_frames < 1:
            raise InputError("a video of no frames: give at least one")
        if not source_fps > 0:
            raise InputError(f"the video's frame rate is {source_fps}: it must be above 0")
        wanted = int(total_frames / source_fps * self.fps)
        count = min(max(wanted, self.min_frames), self.max_frames, total_frames)
        return np.linspace(0, total_frames - 1, count).round().astype(np.int64)

    def with_budget(self, *, max_frames: int, max_frame_tokens: int) -> VideoSettings:
        """Settings for at most ``max_frames`` frames of at most ``max_frame_tokens`` merged tokens each.

        The total budget is raised or lowered to exactly what that many such frames need; two frames share a
        temporal patch, so the prompt holds at most ``max_frames / 2 * max_frame_tokens`` visual tokens. The
        lower bound on pixels is lowered where it would overrule the cap.
        """
        frame_pixels = max_frame_tokens * self.factor**2
        # The public cap keeps every frame at 1.05 times the lower bound or more, even when that exceeds the
        # cap.
        return replace(
            self,
            max_frames=max_frames,
            min_frames=min(self.min_frames, max_frames),
            cap_pixels_per_frame=True,
            max_video_tokens=max_frame_tokens,
            max_pixels=max_frames * frame_pixels,
            min_pixels=min(self.min_pixels, int(frame_pixels / 1.05)),
        )


def _check_pixels(least: int, most: int) -> None:
    if not 0 < least <= most:
        raise ValueError(f"min_pixels {least} must be positive and at most max_pixels {most}")


# What the public classes assume when a file exists but leaves a key out; they differ from the published
# files.
_IMAGE_CLASS_DEFAULTS: JsonObject = {
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "patch_size": 14,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_VIDEO_CLASS_DEFAULTS: JsonObject = {
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    "patch_size": 16,
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
}


def load_image_settings(path: str | Path) -> ImageSettings:
    """Image settings of a checkpoint folder; the published defaults if it has no preprocessor file. Raises ValueError
    if a file is not JSON, or asks for something other than bicubic resizing, rescaling, normalising and RGB conversion.
    """
    found = _find(Path(path), "image_processor", IMAGE_FILE)
    if found is None:
        return ImageSettings()
    source, values = found
    merged = {**_IMAGE_CLASS_DEFAULTS, **values}
    with _named(source):
        # Older files name the bounds min_pixels and max_pixels; like the public class of images we let them overrule
        # "size".
        fields = _pixel_bounds(source, merged, older=True) | _patch_fields(source, merged)
        return ImageSettings(**typed(ImageSettings, fields, "image_processor"))


def load_video_settings(path: str | Path) -> VideoSettings:
    """Video settings of a checkpoint folder; the published defaults if it has no preprocessor file for videos: one for
    images does not describe them (its pixel bounds mean something else). Raises ValueError as for images."""
    found = _find(Path(path), "video_processor", VIDEO_FILE)
    if found is None:
        return VideoSettings()
    source, values = found
    merged = {**_VIDEO_CLASS_DEFAULTS, **values}
    if merged.get("num_frames") is not None:
        raise CheckpointError(
            f"{source}: num_frames is set; only sampling by fps is supported: remove the key"
        )
    if "fps" in values and values["fps"] is None:
        raise CheckpointError(
            f"{source}: fps is null; only sampling by fps is supported: set it, 2 as published"
        )
    names = ("fps", "min_frames", "max_frames", "cap_pixels_per_frame", "max_video_tokens")
    chosen: dict[str, Any] = {name: merged[name] for name in names if merged.get(name) is not None}
    with _named(source):
        fields = chosen | _pixel_bounds(source, merged, older=False) | _patch_fields(source, merged)
        return VideoSettings(**typed(VideoSettings, fields, "video_processor"))


def save_settings(path: str | Path, image: ImageSettings, video: VideoSettings) -> None:
    """Writes the two preprocessor files so that the public ``AutoProcessor`` builds a Qwen3-VL processor from
    them."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    image_values = {
        **_shared_json(image),
        "size": {"shortest_edge": image.min_pixels, "longest_edge": image.max_pixels},
        "image_processor_type": IMAGE_PROCESSOR_TYPE,
    }
    video_values = {
        **_shared_json(video),
        "size": {"shortest_edge": video.min_pixels, "longest_edge": video.max_pixels},
        "do_sample_frames": True,
        "fps": video.fps,
        "min_frames": video.min_frames,
        "max_frames": video.max_frames,
        "cap_pixels_per_frame": video.cap_pixels_per_frame,
        "max_video_tokens": video.max_video_tokens,
        "video_processor_type": VIDEO_PROCESSOR_TYPE,
    }
    # A nested processor_config.json would overrule the two files; ours carries only the class name.
    _write(folder / IMAGE_FILE, image_values)
    _write(folder / VIDEO_FILE, video_values)
    _write(folder / PROCESSOR_FILE, {"processor_class": PROCESSOR_CLASS})


def _shared_json(settings: PatchSettings) -> JsonObject:
    return {
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": _BICUBIC,
        "rescale_factor": settings.rescale_factor,
        "image_mean": list(settings.mean),
        "image_std": list(settings.std),
        "patch_size": settings.patch_size,
        "temporal_patch_size": settings.temporal_patch_size,
        "merge_size": settings.merge_size,
        "processor_class": PROCESSOR_CLASS,
    }


@contextmanager
def _named(source: Path) -> Iterator[None]:
    """What is wrong with a value of ``source`` names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{source}: {error}; restore it from the checkpoint") from error


def _find(folder: Path, section: str, name: str) -> tuple[Path, JsonDict] | None:
    nested = folder / PROCESSOR_FILE
    if nested.exists():
        values = _read(nested).get(section)
        if isinstance(values, dict):
            return nested, values
    file = folder / name
    return (file, _read(file)) if file.exists() else None


def _read(path: Path) -> JsonDict:
    return read_json_object(path, CheckpointError, "restore it from the checkpoint")


def _write(path: Path, values: JsonObject) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _pixel_bounds(source: Path, values: Mapping[str, Any], *, older: bool) -> dict[str, Any]:
    """older: whether min_pixels and max_pixels go before "size"."""
    size = dict(values["size"])
    low = (values.get("min_pixels") if older else None) or size.get("shortest_edge")
    high = (values.get("max_pixels") if older else None) or size.get("longest_edge")
    if not low or not high:
        raise CheckpointError(
            f"{source}: size must have shortest_edge and longest_edge (pixel counts), got {size}"
        )
    return {"min_pixels": low, "max_pixels": high}


def _patch_fields(source: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ``PatchSettings``; ``typed`` finds out what is in them."""
    for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        if values.get(name) is False:
            raise CheckpointError(
                f"{source}: {name} is false, which Qwen3-VL input processing does not support"
            )
    if values.get("resample", _BICUBIC) != _BICUBIC:
        raise CheckpointError(
            f"{source}: resample is {values['resample']}; only bicubic ({_BICUBIC}) is supported"
        )
    fields: dict[str, Any] = {"mean": values["image_mean"], "std": values["image_std"]}
    for name in ("patch_size", "temporal_patch_size", "merge_size", "rescale_factor"):
        if values.get(name) is not None:
            fields[name] = values[name]
    return fields
