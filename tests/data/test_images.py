from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import Image

from vcap_jax.data.errors import MediaError
from vcap_jax.data.images import decode_image


def save(tmp_path: Path, image: Image.Image, name: str = "a.png", **options: object) -> Path:
    image.save(tmp_path / name, **options)
    return tmp_path / name


def test_colours_arrive_as_they_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode_image(save(tmp_path, Image.fromarray(pixels))), pixels)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("a.png", mode) for mode in ("1", "L", "LA", "P", "RGBA")),
        *(("a.tiff", mode) for mode in ("1", "L", "LA", "P", "RGBA", "CMYK", "LAB")),
        pytest.param(
            *("a.tiff", "YCbCr"),
            marks=pytest.mark.skipif(
                int(PIL.__version__.split(".")[0]) < 13,
                reason="Pillow before 13 cannot read what it writes here",
            ),
        ),
        *(("a.gif", mode) for mode in ("1", "L", "P")),
        ("a.webp", "RGBA"),
    ],
)
def test_every_mode_becomes_rgb_of_the_same_size(tmp_path: Path, name: str, mode: str) -> None:
    image = Image.new("LAB" if mode == "LAB" else "RGB", (9, 4), (200, 30, 90))
    pixels = decode_image(save(tmp_path, image.convert(mode), name))
    assert pixels.dtype == np.uint8
    assert pixels.shape == (4, 9, 3)


def test_sixteen_bit_grey_is_scaled_not_cut_off(tmp_path: Path) -> None:
    levels = np.array([[0, 128 * 257, 65_535]], np.uint16)
    pixels = decode_image(save(tmp_path, Image.fromarray(levels)))
    np.testing.assert_array_equal(pixels[0, :, 0], [0, 128, 255])
    # A dark one stays dark.
    night = decode_image(save(tmp_path, Image.fromarray(levels // 257)))
    np.testing.assert_array_equal(night[0, :, 0], [0, 0, 1])


def test_a_picture_of_too_many_pixels_is_to_be_scaled_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    with pytest.raises(MediaError, match=r"exceeds limit of 8 pixels.*: scale it down$"):
        decode_image(save(tmp_path, Image.new("RGB", (3, 3))))


def test_a_large_photograph_is_read_without_a_warning_of_an_attack(tmp_path: Path) -> None:
    """In a process of its own: pytest has filters of its own."""
    path = save(tmp_path, Image.new("RGB", (3, 3)))
    read = (
        "from PIL import Image; from vcap_jax.data.images import decode_image; Image.MAX_IMAGE_PIXELS = 5; "
    )
    command = [sys.executable, "-c", f"{read}print(decode_image({str(path)!r}).shape)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("(3, 3, 3)\n", "")


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    image.putpixel((1, 0), (255, 0, 0, 0))
    np.testing.assert_array_equal(decode_image(save(tmp_path, image))[0], [[255, 0, 0], [255] * 3])
    palette = Image.new("P", (1, 1))
    assert decode_image(save(tmp_path, palette, transparency=0)).min() == 255


def test_the_cameras_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the picture was taken with the camera on its side
    path = save(tmp_path, Image.new("RGB", (40, 20)), "a.jpg", exif=exif)
    assert decode_image(path).shape == (40, 20, 3)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in ("cut.png", "cut.jpg"):
        path = save(tmp_path, Image.fromarray(noise), name)
        path.write_bytes(path.read_bytes()[:1500])
        with pytest.raises(MediaError, match=name):
            decode_image(path)
    (tmp_path / "empty.png").touch()
    with pytest.raises(MediaError, match=r"empty\.png"):
        decode_image(tmp_path / "empty.png")
    with pytest.raises(MediaError, match=r"nowhere\.png: no such file"):
        decode_image(tmp_path / "nowhere.png")
    floating = save(tmp_path, Image.new("F", (3, 3)), "f.tiff")
    with pytest.raises(MediaError, match=r"f\.tiff.*floating-point"):
        decode_image(floating)


def test_whatever_pillow_raises_for_a_damaged_file_names_the_file(tmp_path: Path) -> None:
    path = save(tmp_path, Image.new("RGB", (8, 8)), "a.dds")
    header = bytearray(path.read_bytes())
    header[80:84] = bytes(4)  # flags of no pixel format: NotImplementedError
    path.write_bytes(header)
    with pytest.raises(MediaError, match=r"a\.dds: not a readable image"):
        decode_image(path)


def test_postscript_is_no_picture_and_nothing_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow would have Ghostscript run what stands in the file, for as long as that takes."""
    ghostscript, called = tmp_path / "bin" / "gs", tmp_path / "called"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch '{called}'\nexit 1\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    path = tmp_path / "a.png"
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(MediaError, match=r"a\.png: not a readable image"):
        decode_image(path)
    assert not called.exists()


def test_a_video_that_is_given_as_an_image_is_told_where_it_belongs(tmp_path: Path) -> None:
    path = tmp_path / "clip.MP4"
    path.write_bytes(b"\0\0\0\x18ftypisom")
    with pytest.raises(MediaError, match=r'clip\.MP4: not a readable image .*: give a video as "video"'):
        decode_image(path)
