"""Decoding the sampled frames of a video, one at a time.

A file is first read without decoding, which gives the time of every frame and where decoding can start; frame
counts and rates in headers are not trusted. (Only where packets are fields it is decoded for that: ``fields.py``.)
Then only the wanted frames are converted, jumping over stretches between them, so neither time nor memory grows with
the length of the video more than it must.
"""

from __future__ import annotations

import errno
import math
import re
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from av.sidedata.sidedata import SideData
from av.stream import Disposition

from vcap_jax.data.errors import MediaError
from vcap_jax.data.fields import close_as_fields, coded_as_fields, decoded_times
from vcap_jax.data.pyav import opened
from vcap_jax.data.storage import look, raise_if_away, raise_if_empty, raise_if_unread
from vcap_jax.models.family import FrameSampling

_VP8_SHOWN = 1 << 4
"""Bit of a VP8 packet's first byte: its frame is shown, and not only looked at by others (RFC 6386, section 9.1)."""

_DAMAGED = (av.FFmpegError, ValueError, OSError, EOFError, IndexError)
"""What PyAV raises for damaged files; IndexError where one seems to have a stream more than its beginning told of."""


_NAMED_PROFILES = ("png", "apng")
"""Codecs whose frames may bring a colour profile with a name. PyAV 18 frees that twice where it lists what a frame
brings, which ends the process."""


@dataclass(frozen=True, kw_only=True)
class Turned:
    """From a stored picture to the displayed one: rows and columns are exchanged, then left and right, then top and
    bottom."""

    diagonal: bool = False
    left_right: bool = False
    top_bottom: bool = False

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """pixels: [H, W, 3]."""
        if self.diagonal:
            pixels = pixels.swapaxes(0, 1)
        if self.left_right:
            pixels = pixels[:, ::-1]
        return pixels[::-1] if self.top_bottom else pixels


@dataclass(frozen=True, kw_only=True)
class VideoIndex:
    """What a file holds.

    ticks: presentation times of the frames in stream units, ascending; None where the file does not tell
        them.
    times: seconds of each frame from the first one.
    keys: indices of the frames at which decoding can start, ascending, the first always among them.
    fps: average frames per second; duration: seconds, the last frame's own included.
    height, width: as displayed; turned: from stored to displayed.
    """

    path: Path
    ticks: tuple[int, ...] | None
    times: tuple[float, ...]
    keys: tuple[int, ...]
    fps: float
    duration: float
    height: int
    width: int
    turned: Turned
    constant_rate: bool

    def __len__(self) -> int:
        return len(self.times)


def index_video(path: str | Path) -> VideoIndex:
    """Reads the frame times of a video.

    Raises:
        MediaError: missing, truncated or unreadable file, no video stream, no frames; names the file.
        StorageError: its storage does not answer.
    """
    source = Path(path)
    look(source)
    try:
        with opened(source) as container:
            return _index(source, container)
    except _DAMAGED as error:
        if isinstance(error, MediaError):
            raise
        raise _unreadable(source, error) from error


@dataclass(frozen=True, kw_only=True)
class EvenFrames:
    """So many frames per second, spread evenly from the first to the last, ``most`` at the most (implements
    ``FrameSampling``): for models whose own rule is not known here."""

    fps: float = 2.0
    most: int = 64

    def sample_indices(self, total_frames: int, source_fps: float) -> np.ndarray:
        if total_frames < 1 or not source_fps > 0:
            raise MediaError(f"a video of {total_frames} frames at {source_fps} frames per second")
        count = min(max(2, round(total_frames / source_fps * self.fps)), self.most, total_frames)
        return np.unique(np.linspace(0, total_frames - 1, count).round().astype(np.int64))


def choose_frames(index: VideoIndex, sampling: FrameSampling) -> np.ndarray:
    """Indices of the frames to look at, ascending: uniform in time, first and last included.

    At a constant rate exactly the public processor's choice. At a variable rate as many, each the frame
    nearest to its instant.
    """
    indices = sampling.sample_indices(len(index), index.fps)
    if index.constant_rate or len(indices) == 1:
        return indices
    times = np.asarray(index.times)
    instants = np.linspace(times[0], times[-1], len(indices))
    right = np.clip(np.searchsorted(times, instants), 1, len(times) - 1)
    nearest = np.where(instants - times[right - 1] <= times[right] - instants, right - 1, right)
    return np.unique(nearest)


def read_frames(index: VideoIndex, indices: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields the frames with the given ascending indices as uint8 [H, W, 3] RGB.

    Raises:
        MediaError: the file is damaged or ends before a wanted frame; names it.
        StorageError: its storage does not answer.
    """
    found = 0
    try:
        if index.ticks is not None:
            for frame in _by_time(index, indices):
                yield frame
                found += 1
        # A file whose seeking is inexact, or without times, is decoded from its start.
        if found == len(indices):
            return
        decoded = yield from _by_count(index, indices, found)
    except _DAMAGED as error:
        raise _unreadable(index.path, error) from error
    if decoded is not None:
        raise MediaError(
            f"{index.path}: damaged or truncated, {decoded} of its {len(index)} frames can be decoded: "
            "replace the file or drop the row"
        )


def _unreadable(source: Path, error: Exception) -> MediaError:
    look(source)
    if isinstance(error, OSError) and error.errno == errno.EIO:
        # FFmpeg says so of damaged files too: the system is asked. On a network it may still know a file's name,
        # size and times when it cannot read it.
        raise_if_unread(source)
    else:
        raise_if_away(source, error)
    raise_if_empty(source)
    reason = getattr(error, "strerror", None) or error  # without FFmpeg's number, and the name once more
    return MediaError(f"{source}: not a readable video ({reason}): replace the file or drop the row")


def _moving(source: Path, container: av.container.InputContainer) -> av.video.VideoStream:
    """The first stream of moving pictures. The cover of a song, or of a film, is a video stream as well."""
    covers = Disposition.attached_pic | Disposition.timed_thumbnails
    for stream in container.streams.video:
        if not stream.disposition & covers:
            context: object = stream.codec_context
            if context is None:
                raise MediaError(
                    f"{source}: its pictures are in a format that nothing here decodes: encode the video anew "
                    "(ffmpeg -i FILE -c:v libx264 NEW.mp4), replace a damaged file or drop the row"
                )
            return stream
    raise MediaError(f"{source}: holds no video stream: replace the file or drop the row")


def _index(source: Path, container: av.container.InputContainer) -> VideoIndex:
    stream = _moving(source, container)
    codec = stream.codec_context.name
    count, end, last = 0, 0, (-math.inf, 0)
    shown: dict[int, bool] = {}
    # AVI has no presentation times: FFmpeg counts its packets, which are in another order where there are B-frames.
    counts = container.format.name == "avi"
    timed = not counts or not stream.codec_context.has_b_frames
    hides = codec == "vp8"
    for packet in container.demux(stream):
        if packet.size == 0 or packet.is_discard or (hides and not memoryview(packet)[0] & _VP8_SHOWN):
            continue
        count += 1
        if packet.pts is None or packet.pts in shown:
            timed = False
        else:
            shown[packet.pts] = packet.is_keyframe
            end = max(end, packet.pts + (packet.duration or 0))
            last = max(last, (packet.pts, packet.duration or 0))
    if count == 0:
        raise MediaError(f"{source}: a video of no frames: replace the file or drop the row")
    unit = float(stream.time_base) if stream.time_base else 0.0
    promised = _declared_seconds(stream)
    length = (end - min(shown)) * unit if timed else 0.0
    declared, spare = stream.frames, max(2, stream.frames // 100)
    # A clip that was cut without encoding counts the frames that its edit list hides, and is as long as it says.
    as_long = promised > 0 and length + spare * length / count >= promised
    if declared > count + spare and not as_long:
        raise MediaError(
            f"{source}: truncated, {count} of {declared} frames are there: replace the file or drop the row"
        )
    # Where the clock of MPEG-TS starts anew, what comes before has negative times: the end alone tells too little. In a
    # file that begins late Matroska may count its DURATION from 0: so does the length alone.
    there = max(end * unit, length)
    if not declared and timed and there < 0.95 * promised - 1.0:
        raise MediaError(
            f"{source}: truncated, {there:.1f} of {promised:.1f} seconds are there: "
            "replace the file or drop the row"
        )
    first, second = _first_frames(source)
    if first is None:
        raise MediaError(f"{source}: a video of no frames: replace the file or drop the row")
    rate = float(stream.average_rate or 0.0)
    fields = coded_as_fields(codec, first) and not counts
    if fields and (not timed or close_as_fields(sorted(shown), first, second)):
        count, own = decoded_times(_decoded(source))
        timed = own is not None
        if own is not None:
            shown = {tick: shown.get(tick, False) for tick in own}
            last = (own[-1], end - own[-1])
            if count > 1 and stream.time_base:  # the file's rate may be that of its fields
                rate = float((count - 1) / ((own[-1] - own[0]) * stream.time_base))
    elif timed and first.pts in shown:
        # Frames that lean on what was cut away before them are never shown.
        shown = {tick: key for tick, key in shown.items() if tick >= first.pts}
        count = len(shown)
    ticks = tuple(sorted(shown)) if timed else None
    span = (ticks[-1] - ticks[0]) * unit if ticks else 0.0
    fps = rate if rate > 0 else ((count - 1) / span if span > 0 else 24.0)
    times = tuple(i / fps for i in range(count))
    constant = True
    if ticks:
        seconds = [(tick - ticks[0]) * unit for tick in ticks]
        constant = all(abs(a - b) < 0.5 / fps for a, b in zip(seconds, times, strict=True))
        if not constant:
            times = tuple(seconds)
            fps = (count - 1) / span
    duration = times[-1] + 1 / fps
    if ticks and last[1] > 0:
        told = span + last[1] * unit
        if promised > times[-1]:
            told = min(told, promised)
        # The last frame may be held. Where it is not, a constant rate tells the end more exactly than its packets.
        if not constant or told > times[-1] + 1.5 / fps:
            duration = told
    turned = _turned(first, codec)
    height, width = (first.width, first.height) if turned.diagonal else (first.height, first.width)
    return VideoIndex(
        path=source,
        ticks=ticks,
        times=times,
        keys=_key_indices(ticks, shown),
        fps=fps,
        duration=duration,
        height=height,
        width=width,
        turned=turned,
        constant_rate=constant,
    )


def _declared_seconds(stream: av.video.VideoStream) -> float:
    """How long the file says the video stream is; 0 where it does not say. Matroska keeps it in a tag."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    tag = re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d+)?)", stream.metadata.get("DURATION", ""))
    if tag is None:
        return 0.0
    return int(tag[1]) * 3600 + int(tag[2]) * 60 + float(tag[3])


def _first_frames(source: Path) -> tuple[av.VideoFrame | None, av.VideoFrame | None]:
    """The first shows the size of the pictures, and how they are to be turned; the second, which is decoded only where
    there may be fields, how far frames are apart. (Raw streams cannot be rewound.)"""
    with opened(source) as container:
        stream = _moving(source, container)
        frames = container.decode(stream)
        first = next(frames, None)
        if first is None or not coded_as_fields(stream.codec_context.name, first):
            return first, None
        return first, next(frames, None)


def _decoded(source: Path) -> Iterator[av.VideoFrame]:
    """All frames, from the start."""
    with opened(source) as container:
        stream = _moving(source, container)
        stream.thread_type = "AUTO"
        yield from container.decode(stream)


def _turned(frame: av.VideoFrame, codec: str) -> Turned:
    """As its camera noted, mirrored pictures too: a point x, y is shown at a x + c y, b x + d y."""
    matrix = None if codec in _NAMED_PROFILES else _matrix(frame)
    angle = math.radians(frame.rotation)
    a, b, c, d = math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)
    if isinstance(matrix, SideData):
        a, b, _, c, d, *_ = np.frombuffer(bytes(matrix), np.int32).tolist()
    diagonal = abs(b) + abs(c) > abs(a) + abs(d)
    across, down = (c, b) if diagonal else (a, d)
    return Turned(diagonal=diagonal, left_right=across < 0, top_bottom=down < 0)


def _matrix(frame: av.VideoFrame) -> object:
    try:
        return frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV 18 lists nothing beside a kind that it does not know: EXIF of a camera's JPEGs, stereo clips of phones.
        # The frame still tells its turn, though not whether it is mirrored.
        return None


def _key_indices(ticks: tuple[int, ...] | None, shown: dict[int, bool]) -> tuple[int, ...]:
    if ticks is None:
        return (0,)
    keys = [i for i, tick in enumerate(ticks) if shown[tick]]
    return tuple(keys) if keys and keys[0] == 0 else (0, *keys)


_LABELS_WRONGLY = ("mpeg", "mpeg1video")
"""Format and codec of which FFmpeg may give frames the next one's time after a seek (seen with 8.1)."""


def _by_time(index: VideoIndex, indices: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields wanted frames as long as they are found at their times; stops at the first that is not."""
    assert index.ticks is not None
    with opened(index.path) as container:
        stream = _moving(index.path, container)
        stream.thread_type = "AUTO"
        decoder = container.decode(stream)
        last = -1
        for wanted in indices:
            key = index.keys[bisect_right(index.keys, wanted) - 1]
            if key > last + 1:
                if (container.format.name, stream.codec_context.name) == _LABELS_WRONGLY:
                    return
                container.seek(index.ticks[key], stream=stream)
                decoder = container.decode(stream)
            tick = index.ticks[wanted]
            frame = next((f for f in decoder if f.pts is not None and f.pts >= tick), None)
            if frame is None or frame.pts != tick:
                return
            yield _pixels(frame, index)
            last = wanted


def _by_count(
    index: VideoIndex, indices: Sequence[int], found: int
) -> Generator[np.ndarray, None, int | None]:
    """Yields the wanted frames from number ``found`` on, counting frames from the start of the file.

    Returns how many frames can be decoded, where a wanted one is not among them.
    """
    wanted = set(indices[found:])
    decoded, whole = 0, True
    for number, frame in enumerate(_decoded(index.path)):
        decoded = number + 1
        if whole and number in wanted:
            # A decoder may leave out damaged frames without a word: what follows is later than its number says.
            whole = index.ticks is None or frame.pts is None or frame.pts <= index.ticks[number]
            if whole:
                yield _pixels(frame, index)
        if whole and decoded > indices[-1]:
            return None
    return decoded


def _pixels(frame: av.VideoFrame, index: VideoIndex) -> np.ndarray:
    pixels = index.turned(frame.to_ndarray(format="rgb24"))
    if pixels.shape[:2] != (index.height, index.width):
        # A stream may change its size on the way; everything is brought to the first frame's.
        stored = (index.width, index.height) if index.turned.diagonal else (index.height, index.width)
        resized = frame.reformat(width=stored[1], height=stored[0], format="rgb24")
        pixels = index.turned(resized.to_ndarray())
    return np.ascontiguousarray(pixels)
