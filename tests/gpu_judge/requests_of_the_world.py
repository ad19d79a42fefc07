"""Chat requests about scenes, built with the reward's own templates."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from vcap_jax.data.media import JudgeFrame, TimeWindow, frames_in_window
from vcap_jax.reward.prompts import build_messages, fill_instruction, media_parts, no_media_notice
from vcap_jax.reward.templates import InstructionName, load_instruction
from vcap_jax.world.dataset import render
from vcap_jax.world.scenes import ImageScene, Scene
from vcap_jax.world.vocabulary import VIDEO_FPS, VIDEO_FRAMES

MODEL = "embedded-judge"
TIMES = [frame / VIDEO_FPS for frame in range(VIDEO_FRAMES)]
load = lru_cache(load_instruction)


def data_url(picture: np.ndarray, kind: str = "PNG") -> str:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"


@lru_cache(maxsize=256)
def frames_of(scene: Scene) -> tuple[JudgeFrame, ...]:
    pixels = render(scene)
    if isinstance(scene, ImageScene):
        return (JudgeFrame(url=data_url(pixels)),)
    return tuple(JudgeFrame(url=data_url(p), seconds=t) for p, t in zip(pixels, TIMES, strict=True))


def body(
    name: InstructionName,
    frames: Sequence[JudgeFrame] | None,
    candidate: str,
    reference: str | None = None,
    window: TimeWindow | None = None,
) -> dict[str, Any]:
    """A request; without frames, the notice of the ablation stands in their place."""
    what = "picture" if name.startswith("image") else "frames"
    media = no_media_notice(what, window) if frames is None else media_parts(frames)
    text = fill_instruction(load(name), reference=reference, candidate=candidate)
    return {"model": MODEL, "messages": build_messages(media, text)}


def about(scene: Scene, candidate: str, reference: str | None) -> dict[str, Any]:
    """The request about a whole scene."""
    base = "image" if isinstance(scene, ImageScene) else "video_global"
    name: Any = base if reference is not None else f"{base}_no_reference"
    return body(name, frames_of(scene), candidate, reference)


def about_window(scene: Scene, window: TimeWindow, candidate: str, reference: str) -> dict[str, Any]:
    """The request about a segment."""
    frames = frames_of(scene)
    chosen = [frames[i] for i in frames_in_window(TIMES, window)]
    return body("video_segment", chosen, candidate, reference)
