"""The messages on which our input processing and the public one are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from tests.models.qwen3_vl.processing.tiny_tokenizer import tiny_tokenizer
from vcap_jax.data.images import to_rgb
from vcap_jax.models.message import ImagePart, Part, TextPart, VideoPart
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings, VideoSettings


@dataclass(frozen=True)
class Clip:
    """The frames of a video file, of which those at ``indices`` are given, or those the processor samples."""

    frames: np.ndarray
    fps: float
    indices: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Case:
    """A message: images in any Pillow mode, clips and texts. budget: frames and tokens per frame, if set."""

    content: tuple[Image.Image | Clip | str, ...]
    budget: tuple[int, int] | None = None

    def processor(self) -> Processor:
        # Small bounds keep the golden files small; both ends of them are met by some picture.
        image = ImageSettings(min_pixels=4 * 32 * 32, max_pixels=12 * 32 * 32)
        video = VideoSettings(min_pixels=4 * 32 * 32, max_pixels=24 * 32 * 32)
        if self.budget is not None:
            video = video.with_budget(max_frames=self.budget[0], max_frame_tokens=self.budget[1])
        return Processor(tiny_tokenizer(), image=image, video=video)

    def encode(self) -> EncodedPrompt:
        processor = self.processor()
        parts: list[Part] = []
        for item in self.content:
            if isinstance(item, str):
                parts.append(TextPart(item))
            elif isinstance(item, Clip):
                indices = np.asarray(
                    item.indices or processor.video.sample_indices(len(item.frames), item.fps)
                )
                parts.append(VideoPart(item.frames[indices], indices / item.fps))
            else:
                parts.append(ImagePart(np.asarray(to_rgb(item))))
        return processor.encode(parts)


def pixels(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    """A picture with smooth shading, hard edges and a little noise, uint8 [height, width, 3]."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    rng = np.random.default_rng(seed)
    shading = np.stack([x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1), (x + y) % 256], -1)
    squares = ((x // 9 + y // 7 + seed) % 2)[..., None] * 60
    return np.clip(shading + squares - 30 + rng.normal(0, 6, shading.shape), 0, 255).astype(np.uint8)


def picture(height: int, width: int, mode: str = "RGB", *, seed: int = 0) -> Image.Image:
    colours = Image.fromarray(pixels(height, width, seed=seed))
    if mode == "RGBA":
        colours.putalpha(Image.fromarray(pixels(height, width, seed=seed + 1)[..., 0]))
        return colours
    return colours.convert(mode)


def clip(frames: int, height: int, width: int, fps: float, indices: tuple[int, ...] | None = None) -> Clip:
    return Clip(np.stack([pixels(height, width, seed=i) for i in range(frames)]), fps, indices)


CASES: dict[str, Case] = {
    "text": Case(("Say which is the larger one.\nAnd why?",)),
    "image": Case((picture(70, 90), "Describe the image.")),
    "odd_images": Case(
        (
            picture(61, 83, "L"),
            picture(40, 40, "RGBA"),
            "and the flat one",
            picture(1, 99),
            picture(150, 9),
            picture(33, 47, "P"),
            picture(200, 333),
        )
    ),
    "odd_video": Case((clip(37, 50, 66, 29.97, (0, 9, 18, 27, 36)), "Describe the video.")),
    "sampled_video": Case((clip(53, 20, 90, 12.5), "When does it change?")),
    "capped_video": Case((clip(40, 100, 160, 10.0), "Describe the video."), budget=(7, 6)),
    "mixed": Case(
        (
            picture(64, 64, seed=3),
            "first",
            clip(9, 32, 96, 24.0, (0, 4, 8)),
            "then",
            picture(100, 30, seed=4),
            clip(8, 64, 64, 2.0, (0, 1, 2, 3, 4, 5, 6, 7)),
        )
    ),
}
