"""Small picture and video files for the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from vcap_jax.data.videos import choose_frames, index_video, read_frames
from vcap_jax.models.qwen3_vl.processing.settings import VideoSettings


def level(index: int) -> int:
    """Brightness of frame ``index``: tells frames apart after lossy compression."""
    return 8 + 11 * index % 240


def write_video(
    path: Path,
    frames: int,
    *,
    fps: int = 10,
    ticks: Sequence[int] | None = None,
    key_every: int = 12,
    size: tuple[int, int] = (32, 48),
    codec: str = "libx264",
    left_half_black: bool = False,
    upper_half_black: bool = False,
    options: Mapping[str, str] | None = None,
) -> Path:
    """A video whose frame i is grey of ``level(i)``. ticks: times in 1/1000 s, for a variable rate. options: of the
    codec."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps, options=dict(options or {}))
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        stream.gop_size = key_every
        if ticks is not None:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(frames):
            pixels = np.full((*size, 3), level(i), np.uint8)
            if left_half_black:
                pixels[:, : size[1] // 2] = 0
            if upper_half_black:
                pixels[: size[0] // 2] = 0
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = i if ticks is None else ticks[i]
            frame.time_base = Fraction(1, fps) if ticks is None else Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def copy_packets(
    source: Path,
    target: Path,
    *,
    start: float = 0.0,
    anew: bool = False,
    change: Callable[[int, bytes], bytes] = lambda number, data: data,
) -> Path:
    """A video's packets in another file, without encoding, from the key frame at or before ``start`` seconds.

    anew: count times from ``start``, as ``ffmpeg -ss START -c copy`` does. change: gives the bytes of each packet by
    its number.
    """
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        video = old.streams.video[0]
        stream = new.add_stream_from_template(video)
        assert video.time_base is not None
        begin = round(start / video.time_base)
        packets = [packet for packet in old.demux(video) if packet.size]
        first = max(i for i, packet in enumerate(packets) if packet.is_keyframe and packet.pts <= begin)
        for number, packet in enumerate(packets[first:]):
            copy = av.Packet(change(number, bytes(packet)))
            copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
            if anew:
                copy.pts, copy.dts = packet.pts - begin, packet.dts - begin
            copy.duration, copy.is_keyframe, copy.stream = packet.duration, packet.is_keyframe, stream
            new.mux(copy)
    return target


@dataclass(frozen=True, kw_only=True)
class DecodedVideo:
    """Sampled frames.

    frames: uint8 [T, H, W, 3] RGB; timestamps: [T] seconds from the first frame of the video; indices: [T]
    which frames of the video they are; fps: of the video, not of the sample; duration: of the whole video in
    seconds.
    """

    frames: np.ndarray
    timestamps: tuple[float, ...]
    indices: tuple[int, ...]
    fps: float
    duration: float


def decode_video(path: str | Path, settings: VideoSettings) -> DecodedVideo:
    """Samples and decodes a video at its own size. The sampled frames are held together.

    Raises:
        MediaError: as ``index_video`` and ``read_frames``.
    """
    index = index_video(path)
    indices = choose_frames(index, settings)
    frames = np.stack(list(read_frames(index, indices.tolist())))
    return DecodedVideo(
        frames=frames,
        timestamps=tuple(index.times[i] for i in indices),
        indices=tuple(int(i) for i in indices),
        fps=index.fps,
        duration=index.duration,
    )
