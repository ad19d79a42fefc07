from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

import av
import numpy as np
import pytest

from tests.data.media_files import level, write_video
from vcap_jax.data import videos
from vcap_jax.data.errors import MediaError
from vcap_jax.data.videos import choose_frames, index_video, read_frames
from vcap_jax.models.qwen3_vl.processing.settings import VideoSettings

KEY_EVERY = 5


class Bits:
    """Of a unit of H.264 (ITU-T H.264, section 7.2)."""

    def __init__(self) -> None:
        self.text = ""

    def u(self, width: int, *values: int) -> None:
        self.text += "".join(f"{value:0{width}b}" for value in values)

    def ue(self, *values: int) -> None:
        for value in values:
            self.u(2 * (value + 1).bit_length() - 1, value + 1)

    def unit(self, header: int, *, samples: bytes = b"", kinds: Sequence[str] = ()) -> bytes:
        """samples: of each macroblock, none of which is compressed; kinds: the bits that say so of it."""
        for kind in kinds:
            self.text += kind
            self.text += "0" * (-len(self.text) % 8) + "".join(f"{sample:08b}" for sample in samples)
        self.text += "1"
        self.text += "0" * (-len(self.text) % 8)
        content = int(self.text, 2).to_bytes(len(self.text) // 8)
        return b"\0\0\0\1" + bytes([header]) + re.sub(rb"\0\0(?=[\0-\3])", b"\0\0\3", content)


def parameters() -> bytes:
    """Of a stream of 16x32 pixels in two fields or one frame."""
    sequence = Bits()
    sequence.u(8, 77, 0, 30)  # Main profile
    sequence.ue(0, 0, 2, 1)  # four bits of frame_num, frames in their order, one to lean on
    sequence.u(1, 0)
    sequence.ue(0, 0)  # one macroblock wide, one high in a field
    sequence.u(1, 0, 1, 1, 0, 0)  # fields may be coded apart, and whole frames are pairs of macroblocks
    picture = Bits()
    picture.ue(0, 0)
    picture.u(1, 0, 0)
    picture.ue(0, 0, 0)
    picture.u(1, 0, 0, 0)
    picture.ue(0, 0, 0)
    picture.u(1, 1, 0, 0)  # slices say how they are filtered
    return b"\0\0\0\1\x09\x10" + sequence.unit(0x67) + picture.unit(0x68)


def coded(number: int, *, bottom: bool | None) -> bytes:
    """Frame ``number`` of grey ``level(number)``, or one of its two fields. bottom: which; None: the whole frame."""
    key = number % KEY_EVERY == 0 and not bottom
    picture = Bits()
    picture.ue(0, 7 if key else 5, 0)  # an I slice or a P slice
    picture.u(4, number % KEY_EVERY)
    picture.u(1, *([0] if bottom is None else [1, bottom]))
    if key:
        picture.ue(number // KEY_EVERY % 2)
    picture.u(1, *([0, 0] if key else [0, 0, 0]))
    picture.ue(0, 1)  # not filtered
    luma = round(16 + level(number) * 219 / 255)
    skipped, kind = ("", "000011010") if key else ("1", "000011111")  # none before, I_PCM
    kinds = [skipped + kind]
    if bottom is None:
        kinds.insert(0, skipped + "0" + kind)  # the upper one of a pair, which is not of fields
    slices = picture.unit(0x65 if key else 0x21, samples=bytes([luma] * 256 + [128] * 128), kinds=kinds)
    return (b"" if bottom else parameters()) + slices


def write_fields(
    path: Path,
    frames: int,
    *,
    joined: bool,
    whole: Callable[[int], bool] = lambda number: False,
    paused: Callable[[int], bool] = lambda number: False,
) -> Path:
    """A video of 30 frames a second, each in two fields where it is not ``whole``, and a second later where ``paused``.

    joined: a frame is written as one packet.
    """
    raw = path.with_suffix(".h264")
    parts = [
        [coded(i, bottom=None)] if whole(i) else [coded(i, bottom=False), coded(i, bottom=True)]
        for i in range(frames)
    ]
    raw.write_bytes(b"".join(b"".join(pair) for pair in parts))
    with av.open(str(raw)) as old, av.open(str(path), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for i, pair in enumerate([b"".join(pair)] if joined else pair for pair in parts):
            for k, data in enumerate(pair):
                packet = av.Packet(data)
                packet.stream, packet.time_base = stream, Fraction(1, 90_000)
                packet.pts = packet.dts = 3000 * i + 1500 * k + 90_000 * paused(i)
                packet.duration = 3000 // len(pair)
                packet.is_keyframe = i % KEY_EVERY == 0 and k == 0
                new.mux(packet)
    return path


def packets(path: Path) -> list[int | None]:
    with av.open(str(path)) as container:
        return [packet.pts for packet in container.demux(video=0) if packet.size]


def assert_whole(path: Path, frames: int) -> None:
    index = index_video(path)
    assert (len(index), index.constant_rate) == (frames, True)
    assert index.fps == pytest.approx(30, abs=0.1)
    assert index.duration == pytest.approx(frames / 30, abs=0.002)
    chosen = choose_frames(index, VideoSettings(fps=10.0)).tolist()
    assert chosen[-1] == frames - 1
    for wanted in (chosen, list(range(frames)), [frames - 1], [3, 4, 10], [KEY_EVERY]):
        found = [frame.mean() for frame in read_frames(index, wanted)]
        np.testing.assert_allclose(found, [level(i) for i in wanted], atol=1)


@pytest.mark.parametrize(
    ("name", "joined"), [("a.ts", True), ("a.ts", False), ("a.mkv", False), ("a.mp4", False)]
)
def test_frames_whose_fields_are_packets_are_counted_as_the_decoder_shows_them(
    tmp_path: Path, name: str, joined: bool
) -> None:
    """The second field has no time where MPEG-TS has one for the frame, and one of its own where each field has."""
    path = write_fields(tmp_path / name, 14, joined=joined)
    times = packets(path)
    assert len(times) == 28
    assert times.count(None) == (14 if joined else 0)
    assert_whole(path, 14)
    index = index_video(path)
    assert index.ticks is not None
    assert index.fps == 30.0 or name != "a.ts", "as a file of whole frames says, bit for bit"
    assert index.keys == (0, 5, 10)


@pytest.mark.parametrize("joined", [True, False])
def test_some_frames_may_be_coded_as_fields_and_others_whole(tmp_path: Path, joined: bool) -> None:
    path = write_fields(tmp_path / "a.ts", 14, joined=joined, whole=lambda i: i in (0, 1, 2, 3, 7))
    assert len(packets(path)) == 23
    assert_whole(path, 14)


def test_the_last_frame_lasts_as_long_as_its_two_fields(tmp_path: Path) -> None:
    index = index_video(write_fields(tmp_path / "a.ts", 14, joined=False, paused=lambda i: i > 7))
    assert not index.constant_rate
    assert index.duration == pytest.approx(14 / 30 + 1)


def test_fields_of_a_raw_stream_are_counted_as_frames(tmp_path: Path) -> None:
    write_fields(tmp_path / "a.mp4", 14, joined=True)
    index = index_video(tmp_path / "a.h264")
    assert len(packets(tmp_path / "a.h264")) == 28
    assert [round(frame.mean()) for frame in read_frames(index, [0, 7, 13])] == pytest.approx(
        [level(i) for i in (0, 7, 13)], abs=1
    )
    assert len(index) == 14


def test_interlaced_video_whose_packets_are_frames_is_not_decoded_to_count_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = [write_fields(tmp_path / f"joined.{ending}", 14, joined=True) for ending in ("mkv", "mp4")]
    whole = write_video(tmp_path / "whole.ts", 14, fps=30, options={"x264-params": "tff=1"})
    with av.open(str(whole)) as container:
        assert next(container.decode(video=0)).interlaced_frame

    def decoded(*_: object) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(videos, "decoded_times", decoded)
    for path in (*joined, whole):
        assert_whole(path, 14)


def test_a_truncated_file_of_fields_is_named(tmp_path: Path) -> None:
    path = write_fields(tmp_path / "cut.mkv", 120, joined=False)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(MediaError, match=r"cut\.mkv: truncated"):
        index_video(path)
