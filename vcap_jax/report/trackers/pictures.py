"""A sample as a tracker shows it: one picture, and a text of the best caption, the reference and their scores."""

from __future__ import annotations

import base64
import io

from PIL import Image

from vcap_jax.report.changes import by_reward
from vcap_jax.report.samples import Sample

_HEIGHT, _MOST = 192, 8


def strip(sample: Sample) -> Image.Image:
    """The sample's picture, or up to eight frames of its clip or pictures side by side, RGB."""
    frames = sample.frames
    if len(frames) > _MOST:
        step = (len(frames) - 1) / (_MOST - 1)
        frames = tuple(frames[round(i * step)] for i in range(_MOST))
    pictures = []
    for frame in frames:
        with Image.open(io.BytesIO(base64.b64decode(frame.url.partition(",")[2]))) as opened:
            pictures.append(opened.convert("RGB"))
    if len(pictures) == 1:
        return pictures[0]
    pictures = [p.resize((max(1, round(p.width * _HEIGHT / p.height)), _HEIGHT)) for p in pictures]
    whole = Image.new("RGB", (sum(p.width for p in pictures), _HEIGHT))
    left = 0
    for picture in pictures:
        whole.paste(picture, (left, 0))
        left += picture.width
    return whole


def described(sample: Sample) -> str:
    """In Markdown: which sample, its best caption with reward and scores, the reference."""
    best = by_reward(sample.candidates)[0]
    reward = "not scored" if best.reward is None else f"reward {best.reward:.3f}"
    scores = "".join(f", {name.replace('_', ' ')} {value:.3g}" for name, value in best.scores.items())
    lines = [f"**{sample.id}**, step {sample.step}: {reward}{scores}", best.caption or "(empty)"]
    if sample.reference:
        lines.append(f"*Reference:* {sample.reference}")
    return "\n\n".join(lines)
