from __future__ import annotations

import io
import struct
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

import av
import numpy as np
import pytest
from PIL import ExifTags, Image, ImageCms

from tests.data.media_files import copy_packets, decode_video, level, write_video
from vcap_jax.data.errors import MediaError
from vcap_jax.data.videos import Turned, choose_frames, index_video, read_frames
from vcap_jax.models.qwen3_vl.processing.settings import VideoSettings


def assert_frames(frames: np.ndarray, indices: list[int]) -> None:
    expected = [level(i) for i in indices]
    np.testing.assert_allclose(frames.mean(axis=(1, 2, 3)), expected, atol=5)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.webm"])
@pytest.mark.parametrize("frames", [1, 2, 35])
def test_sampled_frames_are_the_ones_the_public_rule_asks_for(tmp_path: Path, name: str, frames: int) -> None:
    codec = {"a.webm": "libvpx", "a.avi": "mpeg4"}.get(name, "libx264")
    path = write_video(tmp_path / name, frames, fps=10, codec=codec)
    video = decode_video(path, VideoSettings(fps=2.0))
    expected = VideoSettings(fps=2.0).sample_indices(frames, 10.0).tolist()
    assert list(video.indices) == expected
    assert video.timestamps == tuple(i / 10 for i in expected)
    assert video.duration == pytest.approx(frames / 10)
    assert video.frames.shape == (len(expected), 32, 48, 3)
    assert_frames(video.frames, expected)


def test_frames_that_a_seek_labels_wrongly_are_counted_from_the_start(tmp_path: Path) -> None:
    """Of MPEG-1 in a program stream FFmpeg may give frames the next one's time after a seek: each was the one before
    it."""
    path = write_video(tmp_path / "a.mpg", 31, fps=25, size=(64, 80), codec="mpeg1video")
    index = index_video(path)
    for chosen in ([29, 30], [0, 10, 20, 30], [24], [12, 13]):
        assert_frames(np.stack(list(read_frames(index, chosen))), chosen)


def test_frames_of_a_file_without_times_of_showing_are_in_their_order(tmp_path: Path) -> None:
    """AVI has none, so what FFmpeg makes of packets is in another order where frames lean on later ones."""
    leaning = {"bf": "3", "b_strategy": "0", "sc_threshold": "0"}
    index = index_video(write_video(tmp_path / "a.avi", 30, options=leaning))
    for chosen in (list(range(0, 30, 4)), [1, 2, 3], [5], list(range(30))):
        assert_frames(np.stack(list(read_frames(index, chosen))), chosen)


@pytest.mark.parametrize("key_every", [1, 5, 1000])
def test_any_choice_of_frames_is_found_whatever_the_key_frames(tmp_path: Path, key_every: int) -> None:
    index = index_video(write_video(tmp_path / "a.mp4", 40, key_every=key_every))
    for chosen in ([0], [39], [7, 8, 9], [3, 30, 38], list(range(40))):
        assert_frames(np.stack(list(read_frames(index, chosen))), chosen)


def test_frames_are_read_one_at_a_time(tmp_path: Path) -> None:
    index = index_video(write_video(tmp_path / "a.mp4", 20))
    frames = read_frames(index, list(range(20)))
    assert next(frames).shape == (32, 48, 3)
    frames.close()  # type: ignore[attr-defined]


def test_a_variable_rate_is_sampled_evenly_in_time(tmp_path: Path) -> None:
    # Twenty frames in the first second, then one a second.
    ticks = [50 * i for i in range(20)] + [1000 * i for i in range(1, 11)]
    index = index_video(write_video(tmp_path / "a.mkv", 30, ticks=ticks))
    assert not index.constant_rate
    assert index.duration == pytest.approx(10, rel=0.1)
    assert index.duration == pytest.approx(10.1), "the last packet says how long its frame is shown"
    # The rate in the file's header, ten a second, is not that of its frames.
    assert index.fps == pytest.approx(2.9)
    indices = choose_frames(index, VideoSettings(fps=0.5)).tolist()
    assert len(indices) == 5
    times = [index.times[i] for i in indices]
    assert times[0] == 0
    assert times[-1] == pytest.approx(10.0)
    np.testing.assert_allclose(np.diff(times), 10 / (len(times) - 1), atol=1.0)
    assert_frames(np.stack(list(read_frames(index, indices))), indices)


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [
        ([100] * 9 + [3000], 3.9),
        ([100, 1000, 50, 3000], 4.15),
        ([40, 5000], 5.04),
        ([4000], 4.0),
        ([1000, 3000, 100], 4.1),
    ],
)
def test_a_last_frame_that_is_held_is_shown_as_long_as_the_file_says(
    tmp_path: Path, shown: list[int], seconds: float
) -> None:
    path = tmp_path / "a.gif"
    first, *others = (Image.new("RGB", (48, 32), (level(i),) * 3) for i in range(len(shown)))
    first.save(path, save_all=True, append_images=others, duration=shown)
    index = index_video(path)
    assert index.times[-1] == pytest.approx(sum(shown[:-1]) / 1000)
    assert index.duration == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ("00:00:23.000", 23.0),
        ("00:00:10.000", 10.0),  # what lies behind the end of the stream is not shown
        ("00:00:01.000", 23.0),  # there are frames after that
    ],
)
def test_a_constant_rate_that_ends_on_a_held_frame_is_as_long_as_its_stream(
    tmp_path: Path, seconds: str, told: float
) -> None:
    """A screen recording that ends still."""
    moving, path = write_video(tmp_path / "moving.mkv", 31), tmp_path / "held.mkv"
    with av.open(str(moving)) as old, av.open(str(path), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(old.streams.video[0]):
            if packet.size:
                packet.stream, packet.duration = stream, 20_000 if packet.pts == 3000 else 100
                new.mux(packet)
    data = path.read_bytes()
    place = data.index(b"00:00:23.0")
    path.write_bytes(data[:place] + seconds.encode() + data[place + len(seconds) :])
    index = index_video(path)
    assert index.constant_rate
    assert (index.times[-1], index.duration) == (3.0, pytest.approx(told))
    assert index_video(moving).duration == 3.0 + 1 / 10, "bit for bit"


@pytest.mark.parametrize(
    ("matrix", "corner"),
    [
        # The camera's picture has its light at the lower right. Rows a b, c d of ISO 14496-12, section 6.2.2.
        ((1, 0, 0, 1), "lower right"),
        ((0, 1, -1, 0), "lower left"),  # a quarter turn clockwise
        ((-1, 0, 0, -1), "upper left"),
        ((0, -1, 1, 0), "upper right"),
        ((-1, 0, 0, 1), "lower left"),  # a mirror
        ((1, 0, 0, -1), "upper right"),
        ((0, 1, 1, 0), "lower right"),
        ((0, -1, -1, 0), "upper left"),
    ],
)
def test_how_a_camera_was_held_is_applied(
    tmp_path: Path, matrix: tuple[int, int, int, int], corner: str
) -> None:
    path = write_video(tmp_path / "a.mp4", 4, left_half_black=True, upper_half_black=True)
    data = bytearray(path.read_bytes())
    a, b, c, d = (number << 16 for number in matrix)
    place = data.index(b"tkhd") + 4 + 40
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    (last,) = decode_video(path, VideoSettings()).frames[-1:]
    assert last.shape == ((32, 48, 3) if a else (48, 32, 3))
    rows, columns = last.mean(axis=(1, 2)), last.mean(axis=(0, 2))
    light = f"{'upper' if rows[0] > rows[-1] else 'lower'} {'left' if columns[0] > columns[-1] else 'right'}"
    assert light == corner


@pytest.mark.parametrize(("orientation", "red"), [(1, (5, 5)), (3, (-5, -5)), (6, (5, -5)), (8, (-5, 5))])
def test_a_clip_of_a_cameras_jpegs_with_exif_is_read_and_turned(
    orientation: int, red: tuple[int, int], tmp_path: Path
) -> None:
    """PyAV 18 knows no EXIF of frames, and lists nothing that is beside it."""
    picture, exif, data = Image.new("RGB", (64, 32)), Image.Exif(), io.BytesIO()
    picture.paste((255, 0, 0), (0, 0, 16, 16))
    exif[ExifTags.Base.Orientation], exif[ExifTags.Base.Make] = orientation, "A camera"
    picture.save(data, "JPEG", exif=exif)
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuvj420p"
        packet = av.Packet(data.getvalue())
        packet.stream, packet.pts, packet.dts, packet.time_base = stream, 0, 0, Fraction(1, 10)
        container.mux(packet)
    index = index_video(path)
    (pixels,) = read_frames(index, [0])
    assert pixels.shape[:2] == (index.height, index.width) == ((64, 32) if orientation > 4 else (32, 64))
    assert pixels[red][0] > 200


@pytest.mark.slow
def test_a_colour_profile_of_a_png_does_not_end_the_process(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", icc_profile=profile)
    again = "from vcap_jax.data.videos import index_video; import gc, sys\nfor _ in range(20): "
    command = [
        sys.executable,
        "-c",
        again + "index_video(sys.argv[1]); gc.collect()",
        str(tmp_path / "a.png"),
    ]
    assert subprocess.run(command, check=False).returncode == 0


def test_a_raw_stream_without_times_is_counted(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.h264", 15)
    video = decode_video(path, VideoSettings(fps=4.0))
    assert_frames(video.frames, list(video.indices))
    assert video.indices[-1] == 14


@pytest.mark.parametrize("turned", [Turned(), Turned(diagonal=True, left_right=True)])
def test_frames_of_another_size_are_brought_to_that_of_the_first(tmp_path: Path, turned: Turned) -> None:
    """Whichever way round they are shown."""
    small = write_video(tmp_path / "a.h264", 4, size=(32, 48), upper_half_black=True)
    large = write_video(tmp_path / "b.h264", 4, size=(64, 96), upper_half_black=True)
    small.write_bytes(small.read_bytes() + large.read_bytes())
    index = index_video(small)
    assert (len(index), index.height, index.width) == (8, 32, 48)
    if turned.diagonal:
        index = replace(index, turned=turned, height=48, width=32)
    first, last = read_frames(index, [3, 7])
    assert first.shape == last.shape == (index.height, index.width, 3)
    np.testing.assert_allclose(first.astype(int), last.astype(int), atol=24)


def test_the_number_of_frames_is_capped(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 60)
    assert len(decode_video(path, VideoSettings(fps=10.0, max_frames=7)).frames) == 7


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "noise.mp4").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "empty.mp4").touch()
    write_video(tmp_path / "none.mp4", 0)
    for name in ("noise.mp4", "empty.mp4", "none.mp4", "missing.mp4"):
        with pytest.raises(MediaError, match=name):
            index_video(tmp_path / name)


def test_a_title_that_is_not_utf8_keeps_nobody_from_the_pictures(tmp_path: Path) -> None:
    written, path = write_video(tmp_path / "plain.avi", 12), tmp_path / "latin.avi"
    with av.open(str(written)) as source, av.open(str(path), "w") as target:
        target.metadata["title"] = "CAFE"
        copied = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = copied
                target.mux(packet)
    content = path.read_bytes()
    assert content.count(b"CAFE") == 1
    path.write_bytes(content.replace(b"CAFE", b"CAF\xe9"))
    index = index_video(path)
    assert_frames(np.stack(list(read_frames(index, range(12)))), list(range(12)))


def test_a_format_that_nothing_decodes_is_named(tmp_path: Path) -> None:
    path = write_video(tmp_path / "odd.avi", 12, codec="mpeg4")
    path.write_bytes(path.read_bytes().replace(b"FMP4", b"ZZZZ"))
    with pytest.raises(MediaError, match=r"odd\.avi: its pictures are in a format that nothing here decodes"):
        index_video(path)


def test_a_stream_that_the_beginning_does_not_tell_of_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyAV looks for the stream of a packet among those that were there when the file was opened."""
    path = write_video(tmp_path / "clip.flv", 12)

    def opened(*_: object, **__: object) -> NoReturn:
        raise IndexError("list index out of range")

    index = index_video(path)
    monkeypatch.setattr(av, "open", opened)
    with pytest.raises(MediaError, match=r"clip\.flv: not a readable video"):
        index_video(path)
    with pytest.raises(MediaError, match=r"clip\.flv: not a readable video"):
        list(read_frames(index, [0]))


def test_what_ffmpeg_says_is_told_without_its_number(tmp_path: Path) -> None:
    torn = tmp_path / "torn.mp4"
    torn.write_bytes(b"\0\0\0\x18ftypmp42")
    with pytest.raises(MediaError) as refused:
        index_video(torn)
    reason = "not a readable video (Invalid data found when processing input)"
    assert str(refused.value) == f"{torn}: {reason}: replace the file or drop the row"


def test_a_truncated_file_without_frame_count_is_named_too(tmp_path: Path) -> None:
    path = write_video(tmp_path / "cut.mkv", 60, size=(64, 64), key_every=1)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(MediaError, match=r"cut\.mkv: truncated"):
        decode_video(path, VideoSettings(fps=10))


@pytest.mark.parametrize(("name", "begin"), [("a.ts", 2**33 // 90 - 3500), ("a.mkv", 60_000)])
def test_a_file_whose_clock_does_not_begin_at_0_is_whole(tmp_path: Path, name: str, begin: int) -> None:
    """Of MPEG-TS it may start anew on the way, after 26.5 hours. Matroska's length is that from 0 to the end."""
    path = write_video(tmp_path / name, 40, ticks=[begin + 100 * i for i in range(40)])
    with av.open(str(path)) as container:
        times = [packet.pts for packet in container.demux(video=0) if packet.size]
    assert (min(times) < 0 < max(times)) if name == "a.ts" else (min(times) == begin)
    index = index_video(path)
    assert (len(index), index.duration) == (40, pytest.approx(4.0))
    assert_frames(np.stack(list(read_frames(index, [0, 20, 39]))), [0, 20, 39])


def test_another_frame_never_stands_for_one_that_the_decoder_leaves_out(tmp_path: Path) -> None:
    """As it does without a word where HEVC has lost packets. Here frames of MPEG-4 say that they are not coded."""

    def change(number: int, data: bytes) -> bytes:
        bit = data.index(b"\0\0\1\xb6") + 5  # ISO 14496-2, section 6.2.5: after a time of four bits
        return data[:bit] + bytes([data[bit] & ~0x40]) + data[bit + 1 :] if number in (7, 8) else data

    whole = write_video(tmp_path / "a.mkv", 30, codec="mpeg4", key_every=1)
    index = index_video(copy_packets(whole, tmp_path / "damaged.mkv", change=change))
    assert_frames(np.stack(list(read_frames(index, [6, 9, 29]))), [6, 9, 29])
    for wanted in ([7], [6, 8, 29], [0, 7, 9]):
        with pytest.raises(
            MediaError, match=r"damaged\.mkv: damaged or truncated, 28 of its 30 frames can be"
        ):
            list(read_frames(index, wanted))


@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_truncated_file_is_named(tmp_path: Path, front: bool, share: float) -> None:
    """Both with the table of contents at the end of the file (lost) and at its front (promising more)."""
    path = write_video(tmp_path / "cut.mp4", 60, size=(64, 64), key_every=1)
    if front:
        import av

        moved = tmp_path / "cut_front.mp4"
        with (
            av.open(str(path)) as source,
            av.open(str(moved), "w", options={"movflags": "faststart"}) as target,
        ):
            stream = target.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(source.streams.video[0]):
                if packet.size:
                    packet.stream = stream
                    target.mux(packet)
        path = moved
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(MediaError, match="cut"):
        decode_video(path, VideoSettings(fps=10))


def test_a_clip_that_was_cut_without_encoding_is_whole(tmp_path: Path) -> None:
    """Its file holds frames from the last key frame on, and an edit list hides those before the cut."""
    whole = write_video(tmp_path / "a.mp4", 60, key_every=1000)
    cut = copy_packets(whole, tmp_path / "cut.mp4", start=4.5, anew=True)
    with av.open(str(cut)) as container:
        assert container.streams.video[0].frames == 60
    index = index_video(cut)
    assert (len(index), index.duration) == (15, pytest.approx(1.5))
    frames = np.stack(list(read_frames(index, [0, 7, 14])))
    assert_frames(frames, [45, 52, 59])


@pytest.mark.parametrize("ending", ["ts", "mkv"])
def test_frames_that_lean_on_what_was_cut_away_are_not_counted(tmp_path: Path, ending: str) -> None:
    """At the border of an open group of pictures, where broadcasts are cut."""
    options = {"x264-params": "open-gop=1:keyint=12:min-keyint=12:bframes=3:b-adapt=0:scenecut=0"}
    whole = write_video(tmp_path / f"a.{ending}", 40, options=options)
    cut = copy_packets(whole, tmp_path / f"cut.{ending}", start=2.0)
    with av.open(str(cut)) as container:
        stored = [packet.pts for packet in container.demux(container.streams.video[0]) if packet.size]
    assert min(stored) < stored[0]
    index = index_video(cut)
    assert len(index) < len(stored)
    chosen = [0, len(index) // 2, len(index) - 1]
    begin = 40 - len(index)
    assert_frames(np.stack(list(read_frames(index, chosen))), [begin + i for i in chosen])


def test_frames_that_are_never_shown_are_not_counted(tmp_path: Path) -> None:
    """VP8 keeps what other frames are made of as frames of their own."""
    whole = write_video(tmp_path / "a.webm", 30, codec="libvpx")
    hidden = copy_packets(
        whole,
        tmp_path / "hidden.webm",
        change=lambda i, data: bytes([data[0] & ~16]) + data[1:] if i in (7, 15) else data,
    )
    index = index_video(hidden)
    assert len(index) == 28
    shown = [i for i in range(30) if i not in (7, 15)]
    assert_frames(
        np.stack(list(read_frames(index, [0, 6, 7, 14, 27]))), [shown[i] for i in (0, 6, 7, 14, 27)]
    )


def test_a_cover_is_no_video(tmp_path: Path) -> None:
    song, cover = tmp_path / "song.mp4", tmp_path / "cover.jpg"
    with av.open(str(tmp_path / "song.mp3"), "w") as container:
        stream = container.add_stream("mp3", rate=44_100, layout="mono")
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 44_100), np.int16), format="s16", layout="mono")
        silence.sample_rate = 44_100
        container.mux(stream.encode(silence))
        container.mux(stream.encode(None))
    Image.new("RGB", (64, 48)).save(cover)
    # An ID3v2.3 tag with one frame, the attached picture (https://id3.org/id3v2.3.0).
    body = b"\0image/jpeg\0\3\0" + cover.read_bytes()
    frame = b"APIC" + struct.pack(">IH", len(body), 0) + body
    size = bytes((len(frame) >> shift) & 127 for shift in (21, 14, 7, 0))
    song.write_bytes(b"ID3\3\0\0" + size + frame + (tmp_path / "song.mp3").read_bytes())
    with av.open(str(song)) as container:
        assert len(container.streams.video) == 1
    with pytest.raises(MediaError, match=r"song\.mp4: holds no video stream"):
        index_video(song)


def test_a_name_with_a_colon_is_a_files_not_a_protocols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(tmp_path / "a.mp4", 3).rename(tmp_path / "12:30.mp4")
    monkeypatch.chdir(tmp_path)
    index = index_video("12:30.mp4")
    assert len(list(read_frames(index, [0, 2]))) == 2


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp4"])
@pytest.mark.parametrize("form", ["hls", "concat"])
def test_a_list_of_other_files_is_no_video(form: str, name: str, tmp_path: Path) -> None:
    """What it names the manifest has not named; and where a playlist does not end, FFmpeg would wait for more."""
    write_video(tmp_path / "clip.ts", 4)
    lists = {
        "hls": "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:100000\n#EXTINF:1.0,\nclip.ts\n",
        "concat": "ffconcat version 1.0\nfile clip.ts\n",
    }
    path = tmp_path / name
    path.write_text(lists[form])
    with pytest.raises(MediaError, match=r"list\.(m3u8|mp4): not a readable video"):
        index_video(path)
