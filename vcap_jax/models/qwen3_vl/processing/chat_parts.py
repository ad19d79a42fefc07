"""The pictures of an encoded prompt as parts of a chat request to a vLLM server: already resized, and without loss."""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from vcap_jax.models.errors import InputError
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt
from vcap_jax.models.qwen3_vl.processing.chat_template import VISION_START
from vcap_jax.models.qwen3_vl.processing.pixels import unpatchify
from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings
from vcap_jax.system.json_values import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Prompts announce a frame pair as <12.3 seconds>, in tenths: an index on a clock of ten ticks per second.
_TICKS = 10
_ANNOUNCED = re.compile(rf"<(\d+)\.(\d) seconds>{re.escape(VISION_START)}")


def picture_parts(
    prompt: EncodedPrompt,
    settings: ImageSettings,
    tokenizer: PreTrainedTokenizerBase,
    image_token_id: int,
    video_token_id: int,
) -> tuple[list[JsonObject], JsonObject | None]:
    """Content parts for the pictures of ``prompt``, and the request's ``media_io_kwargs`` for a video (else None).

    A video is one part: its frames as PNG, with an index for each on a clock of tenths of a second, from which the
    server computes the times that our prompt announces. Raises InputError if times and frames do not match.
    """
    if not prompt.frames:
        return [], None
    pictures = [
        unpatchify(patches, int(rows), int(columns), settings)
        for patches, (rows, columns) in zip(prompt.frames, prompt.grids, strict=True)
    ]
    if np.isin(prompt.tokens, image_token_id).any():
        urls = [f"data:image/png;base64,{_png(picture[0])}" for picture in pictures]
        return [{"type": "image_url", "image_url": {"url": url}} for url in urls], None
    frames = np.concatenate(pictures)
    depth = len(pictures[0])
    text = tokenizer.decode(_collapsed(prompt.tokens, video_token_id))
    ticks = [int(whole) * _TICKS + int(tenth) for whole, tenth in _ANNOUNCED.findall(text)]
    if len(ticks) != len(pictures):
        raise InputError(
            f"a video prompt has {len(pictures)} frame pairs but announces {len(ticks)} times; its layout is not "
            "the one this engine can send"
        )
    indices = [tick for tick in ticks for _ in range(depth)]
    # Declared as JPEG because that is the one name for a sequence of pictures; each is read by its own header.
    url = "data:video/jpeg;base64," + ",".join(_png(frame) for frame in frames)
    video: JsonObject = {
        # The server would otherwise keep 32 frames and drop the rest without a word.
        "num_frames": -1,
        "fps": _TICKS,
        "frames_indices": indices,
        "total_num_frames": max(indices[-1] + 1, len(frames)),
        "duration": (indices[-1] + 1) / _TICKS,
        "do_sample_frames": False,
    }
    return [{"type": "video_url", "video_url": {"url": url}}], {"video": video}


def _collapsed(tokens: np.ndarray, placeholder: int) -> np.ndarray:
    """``tokens`` with every run of ``placeholder`` cut to one."""
    repeated = (tokens[1:] == placeholder) & (tokens[:-1] == placeholder)
    return tokens[np.concatenate([[True], ~repeated])]


def _png(picture: np.ndarray) -> str:
    buffer = io.BytesIO()
    # The picture crosses one machine's loopback: time matters more than size.
    Image.fromarray(picture).save(buffer, "PNG", compress_level=1)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
