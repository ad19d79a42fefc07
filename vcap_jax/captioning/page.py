"""captions.html: pictures and clips with their captions on one page that needs no other file."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from vcap_jax.captioning.caption import Caption
from vcap_jax.data.errors import MediaError
from vcap_jax.data.images import decode_image
from vcap_jax.data.videos import EvenFrames, choose_frames, index_video, read_frames
from vcap_jax.report.pages import page_templates, write_page
from vcap_jax.report.samples import SampleFrame, picture

_STRIP = 6
"""Frames that stand for a clip."""
_PICTURE, _FRAME = 384, 208
"""The longer side of a picture alone, and of one among several, in pixels."""


def write_caption_page(
    captions: Iterable[Caption], path: Path, *, title: str, total: int, failed: int, limit: int = 300
) -> None:
    """Writes the page of the first ``limit`` captions.

    Pictures are scaled down and embedded; a clip is a strip of frames with their times. title: above everything, who
    captioned. total: how many captions there are; failed: how many of them lack a text.
    """
    shown = [_shown(caption) for caption in islice(captions, limit)]
    templates = page_templates("vcap_jax.captioning")
    write_page(path, templates, "captions.html", title=title, shown=shown, total=total, failed=failed)


def _shown(caption: Caption) -> dict[str, object]:
    """With why there is no picture, for files that cannot be read any more."""
    try:
        return {"caption": caption, "frames": _frames(caption), "gone": ""}
    except MediaError as error:
        return {"caption": caption, "frames": (), "gone": str(error)}


def _frames(caption: Caption) -> tuple[SampleFrame, ...]:
    if caption.modality == "video":
        index = index_video(caption.files[0])
        chosen = choose_frames(index, EvenFrames(fps=_STRIP, most=_STRIP)).tolist()
        return tuple(
            picture(pixels, timestamp=index.times[i] - index.times[0], longest=_FRAME)
            for i, pixels in zip(chosen, read_frames(index, chosen), strict=True)
        )
    edge = _PICTURE if len(caption.files) == 1 else _FRAME
    return tuple(picture(decode_image(file), longest=edge) for file in caption.files)
