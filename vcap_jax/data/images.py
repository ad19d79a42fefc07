"""Decoding image files to RGB.

Transparency is laid on white, as the public processors do; 16-bit grey is scaled to 8 bits; the orientation
that a camera wrote into the file is applied. An animation gives its first picture.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from vcap_jax.data.errors import MediaError
from vcap_jax.data.folders import VIDEO_SUFFIXES
from vcap_jax.data.storage import look, raise_if_away, raise_if_empty

# A photograph of 90 to 179 million pixels is read, and Pillow would warn of an attack. Larger ones are refused.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def decode_image(path: str | Path) -> np.ndarray:
    """Reads an image of any format, mode and size that Pillow knows: uint8 [H, W, 3] RGB.

    Raises:
        MediaError: missing, truncated or unreadable file; names it.
        StorageError: its storage does not answer.
    """
    source = Path(path)
    look(source)
    try:
        with opened_image(source) as opened:
            opened.load()
            return upright_rgb(opened)
    except MemoryError:
        raise
    except Exception as error:
        raise_if_away(source, error)
        raise_if_empty(source)
        # Depending on the format, Pillow raises nearly anything for damaged files: RuntimeError for AVIF,
        # NotImplementedError for DDS, TypeError for orientation among broken EXIF entries.
        remedy = "replace the file or drop the row"
        if source.suffix.lower() in VIDEO_SUFFIXES:
            remedy = 'give a video as "video"'
        elif isinstance(error, Image.DecompressionBombError):
            remedy = "scale it down"
        raise MediaError(f"{source}: not a readable image ({error}): {remedy}") from error


def opened_image(source: Path) -> Image.Image:
    """The file's picture, of which the header is read. PostScript is no picture here: it is a program, which another
    program would run. Raises what Pillow does."""
    Image.init()
    return Image.open(source, formats=[name for name in Image.OPEN if name != "EPS"])


def upright_rgb(image: Image.Image) -> np.ndarray:
    """A picture of any mode, turned as its camera has noted: uint8 [H, W, 3].

    Raises ValueError: floating-point pixels, whose range is not known. Damaged pictures raise whatever Pillow does.
    """
    return np.array(to_rgb(ImageOps.exif_transpose(image)))


def to_rgb(image: Image.Image) -> Image.Image:
    """An 8-bit RGB picture of any mode.

    Raises ValueError: floating-point pixels, whose range is not known.
    """
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range, save it as 8 or 16 bit")
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.int64)
        # "I" is 32 bits wide and may hold 8-bit levels; "I;16" always holds 16-bit ones.
        scale = 1 if image.mode == "I" and levels.max(initial=0) <= 255 else 257
        grey = np.clip((levels + scale // 2) // scale, 0, 255).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if "A" in image.getbands() or "a" in image.getbands() or image.info.get("transparency") is not None:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")
