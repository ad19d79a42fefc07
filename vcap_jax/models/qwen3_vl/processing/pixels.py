"""From uint8 pictures to flattened uint8 patches: sizes, bicubic resizing, patching.

Sizes and layout equal the public Qwen2-VL image processor and Qwen3-VL video processor (transformers 5.23).
Resizing is Pillow's bicubic, within two grey levels of the torchvision antialiased bicubic that they use. After it
pixels are whole grey levels there too, so they stay uint8 here and the vision tower normalises them.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from vcap_jax.models.errors import InputError
from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings, PatchSettings, VideoSettings

MAX_ASPECT = 200


def image_size(height: int, width: int, settings: ImageSettings) -> tuple[int, int]:
    """Height and width an image is resized to: multiples of ``settings.factor``, within the pixel bounds. Raises
    InputError if the sides differ by more than a factor of 200, or one is empty."""
    _check_aspect(height, width)
    factor = settings.factor
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > settings.max_pixels:
        return _shrink(height, width, math.sqrt(height * width / settings.max_pixels), factor)
    if rows * columns < settings.min_pixels:
        return _grow(height, width, math.sqrt(settings.min_pixels / (height * width)), factor)
    return rows, columns


def video_size(frames: int, height: int, width: int, settings: VideoSettings) -> tuple[int, int]:
    """Height and width the frames of a video are resized to, within the bounds on frames x height x width. Raises
    InputError as for images, and for no frames.

    A single frame counts as a whole temporal patch, which it will be repeated to fill (the public processor refuses
    it).
    """
    if frames < 1:
        raise InputError("a video of no frames: give at least one")
    frames = max(frames, settings.temporal_patch_size)
    factor = settings.factor
    most = settings.max_pixels
    if settings.cap_pixels_per_frame:
        share = min(settings.max_video_tokens * factor**2, most // frames)
        most = max(share, int(settings.min_pixels * 1.05)) * frames
    if min(height, width) > 0 and (height < factor or width < factor):
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_aspect(height, width)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    depth = round(frames / settings.temporal_patch_size) * settings.temporal_patch_size
    if depth * rows * columns > most:
        return _shrink(height, width, math.sqrt(frames * height * width / most), factor)
    if depth * rows * columns < settings.min_pixels:
        return _grow(height, width, math.sqrt(settings.min_pixels / (frames * height * width)), factor)
    return rows, columns


def _check_aspect(height: int, width: int) -> None:
    if min(height, width) < 1:
        raise InputError(f"a picture of {height} x {width} pixels is empty")
    if (aspect := max(height, width) / min(height, width)) > MAX_ASPECT:
        raise InputError(
            f"a picture of which one side is {aspect:.1f} times the other is too long: it may be at most "
            f"{MAX_ASPECT} times; crop or split it"
        )


def _shrink(height: int, width: int, beta: float, factor: int) -> tuple[int, int]:
    rows = max(factor, math.floor(height / beta / factor) * factor)
    columns = max(factor, math.floor(width / beta / factor) * factor)
    return rows, columns


def _grow(height: int, width: int, beta: float, factor: int) -> tuple[int, int]:
    return math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor


def resize(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bicubic resize of a uint8 [H, W, 3] picture to uint8 [height, width, 3]: first to the width, then to the height,
    as torchvision does. Pillow 13 may take them the other way, which rounds in between to levels that differ by up to
    30."""
    for size in ((width, picture.shape[0]), (width, height)):
        if size != (picture.shape[1], picture.shape[0]):
            picture = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC))
    return picture


def patchify(frames: np.ndarray, settings: PatchSettings) -> np.ndarray:
    """Patches of one temporal patch.

    frames: uint8 [depth, H, W, 3], H and W multiples of ``settings.factor``.
    Returns uint8 [rows * columns, 3 * depth * patch * patch]: patches in merge-block order (the merge x merge
    patches of one visual token are neighbours), numbers of a patch in the order channel, time, row, column.
    """
    depth, height, width, _ = frames.shape
    size, merge = settings.patch_size, settings.merge_size
    rows, columns = height // size, width // size
    blocks = frames.reshape(depth, rows // merge, merge, size, columns // merge, merge, size, 3)
    # -> block row, block column, row in block, column in block, channel, time, pixel row, pixel column
    return blocks.transpose(1, 4, 2, 5, 7, 0, 3, 6).reshape(rows * columns, -1)


def unpatchify(patches: np.ndarray, rows: int, columns: int, settings: PatchSettings) -> np.ndarray:
    """The way back from ``patchify``: uint8 [depth, H, W, 3].

    patches: uint8 [rows * columns, 3 * depth * patch * patch].
    """
    size, merge = settings.patch_size, settings.merge_size
    blocks = patches.reshape(rows // merge, columns // merge, merge, merge, 3, -1, size, size)
    return blocks.transpose(5, 0, 2, 6, 1, 3, 7, 4).reshape(-1, rows * size, columns * size, 3)


def image_patches(image: np.ndarray, settings: ImageSettings) -> tuple[np.ndarray, tuple[int, int]]:
    """Patches and (rows, columns) in patches of a uint8 [H, W, 3] image. Raises InputError for a wrong type or shape,
    or a size that cannot be used.

    The image fills its temporal patch with itself, which the vision tower does: here it is one frame deep.
    """
    _check_pixels(image, 3, "image", "[H, W, 3]")
    height, width = image_size(image.shape[0], image.shape[1], settings)
    resized = resize(image, height, width)
    return patchify(resized[None], settings), (height // settings.patch_size, width // settings.patch_size)


def video_patches(
    frames: np.ndarray, settings: VideoSettings, *, resized: bool = False
) -> tuple[list[np.ndarray], tuple[int, int]]:
    """Patches of each temporal patch and (rows, columns) in patches, for uint8 [T, H, W, 3] frames. Raises InputError
    for a wrong type or shape, no frames, or a size that cannot be used.

    The last frame is repeated until the frames fill the last temporal patch.
    resized: the frames already have the size that ``video_size`` gives.
    """
    _check_pixels(frames, 4, "video", "[T, H, W, 3]")
    count, height, width = frames.shape[:3]
    depth = settings.temporal_patch_size
    if not resized:
        height, width = video_size(count, height, width, settings)
    elif height % settings.factor or width % settings.factor:
        raise InputError(f"resized frames of {height} x {width} pixels are no multiple of {settings.factor}")
    patches = []
    for start in range(0, count, depth):
        chosen = [resize(frames[min(i, count - 1)], height, width) for i in range(start, start + depth)]
        patches.append(patchify(np.stack(chosen), settings))
    return patches, (height // settings.patch_size, width // settings.patch_size)


def _check_pixels(pixels: np.ndarray, ndim: int, what: str, shape: str) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != ndim or pixels.shape[-1] != 3:
        raise InputError(
            f"{what} must be uint8 {shape}, got {pixels.dtype} {list(pixels.shape)}: decode it to RGB"
        )
