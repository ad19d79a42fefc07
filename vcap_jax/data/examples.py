"""One sample read from disk and made ready: the encoded prompt for the policy, the pictures for the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vcap_jax.data.images import decode_image
from vcap_jax.data.judge_media import (
    EncodedMedia,
    EncodedPicture,
    JudgeMediaSettings,
    VideoSource,
    encode_picture,
)
from vcap_jax.data.manifest import Sample
from vcap_jax.data.media import TimeWindow, frames_in_window
from vcap_jax.data.videos import VideoIndex, choose_frames, index_video, read_frames
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.family import EncodedPrompt, FrameSampling, Processor
from vcap_jax.models.message import ImagePart, TextPart, VideoPart


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a served model is asked about a sample: the request, and the pictures before it."""

    sample: Sample
    request: str
    media: EncodedMedia


@dataclass(frozen=True, kw_only=True)
class Example(Shown):
    """The visual prompt of one group.

    request: the text in it, after the pictures. media: what the judge sees, without pictures where none is asked.
    suffixes: int32 [S] each, where several requests are made about the same pictures: how the prompt goes on for each
        (``Processor.suffix``). It then ends with the pictures, and each caption of the group answers one of them.
    """

    prompt: EncodedPrompt
    suffixes: tuple[np.ndarray, ...] = ()


def example_loader(
    processor: Processor,
    *,
    image_prompt: str,
    video_prompt: str,
    judge: JudgeMediaSettings | None = None,
    buckets: Buckets | None = None,
    window: Callable[[Sample, float], TimeWindow] | None = None,
    judged: bool = True,
    requests: Callable[[Sample], Sequence[str]] | None = None,
    open_image: Callable[[Path], np.ndarray] = decode_image,
) -> Callable[[Sample], Example]:
    """A function that reads and encodes a sample; safe to call from several threads.

    image_prompt, video_prompt: the text that follows the pictures of a row without a prompt of its own.
    judge: how pictures are compressed for the judge.
    buckets: refuse a prompt that no bucket holds, so that it is reported by name like a damaged file.
    window: chooses, from a sample and the seconds of its video, the stretch that is read as a clip of its own, its
        times counted from where it begins; None reads all of a video.
    judged: False compresses nothing for a judge, where none is asked about the samples.
    requests: what a sample is asked, if several things; see ``Example.suffixes``.
    open_image: gives the pixels of a sample's picture, uint8 [H, W, 3].

    The function raises MediaError for a file that cannot be read, InputError for one that cannot become a
    prompt.
    """
    settings = (judge or JudgeMediaSettings()) if judged else None

    def load(sample: Sample) -> Example:
        default = image_prompt if sample.modality == "image" else video_prompt
        asked = () if requests is None else requests(sample)
        text = TextPart(asked[0] if asked else sample.prompt or default)
        if sample.video is None:
            example = _load_images(sample, text, processor, settings, open_image)
        else:
            example = _load_video(sample, text, processor, settings, window)
        if asked:
            suffixes = tuple(map(processor.suffix, asked))
            prompt = processor.without_suffix(example.prompt, suffixes[0])
            example = replace(example, prompt=prompt, suffixes=suffixes)
        if buckets is not None:
            processor.padded_sizes([example.prompt], buckets, [f"sample {sample.id}"])
        return example

    return load


def media_loader(
    *,
    image_prompt: str,
    video_prompt: str,
    settings: JudgeMediaSettings,
    frames: FrameSampling,
    open_image: Callable[[Path], np.ndarray] = decode_image,
) -> Callable[[Sample], Shown]:
    """A function that reads and compresses a sample for a served model; safe to call from several threads.

    As ``example_loader``, with no policy's prompt beside it. frames: which ones of a video are shown.
    """

    def load(sample: Sample) -> Shown:
        request = sample.prompt or (image_prompt if sample.modality == "image" else video_prompt)
        if sample.video is None:
            media = _media_of_images([encode_picture(open_image(path), settings) for path in sample.images])
            return Shown(sample=sample, request=request, media=media)
        index = index_video(sample.video)
        indices = choose_frames(index, frames).tolist()
        pictures = [
            encode_picture(pixels, settings, seconds=index.times[i] - index.times[0], index=i)
            for i, pixels in zip(indices, read_frames(index, indices), strict=True)
        ]
        media = _media_of_video(index, pictures, len(index), index.duration, settings.quality)
        return Shown(sample=sample, request=request, media=media)

    return load


def _media_of_images(pictures: Sequence[EncodedPicture]) -> EncodedMedia:
    return EncodedMedia(modality="image", duration=0.0, pictures=tuple(pictures))


def _media_of_video(
    index: VideoIndex, pictures: Sequence[EncodedPicture], frames: int, duration: float, quality: int
) -> EncodedMedia:
    """frames, duration: of the video, or of the stretch of it that is looked at."""
    source = VideoSource(frames=frames, fps=index.fps if index.constant_rate else None)
    return EncodedMedia(
        modality="video", duration=duration, pictures=tuple(pictures), source=source, quality=quality
    )


def _load_images(
    sample: Sample,
    text: TextPart,
    processor: Processor,
    judge: JudgeMediaSettings | None,
    open_image: Callable[[Path], np.ndarray],
) -> Example:
    pictures = [open_image(path) for path in sample.images]
    prompt = processor.encode([*(ImagePart(pixels) for pixels in pictures), text])
    media = _media_of_images([] if judge is None else [encode_picture(pixels, judge) for pixels in pictures])
    return Example(sample=sample, request=text.text, prompt=prompt, media=media)


def _load_video(
    sample: Sample,
    text: TextPart,
    processor: Processor,
    judge: JudgeMediaSettings | None,
    window: Callable[[Sample, float], TimeWindow] | None,
) -> Example:
    assert sample.video is not None
    index = index_video(sample.video)
    first, count, duration = 0, len(index), index.duration
    if window is not None:
        stretch = window(sample, index.duration)
        inside = frames_in_window(index.times, stretch)
        first, count, duration = inside[0], len(inside), stretch.seconds
    stretched = replace(index, times=index.times[first : first + count])
    indices = [first + i for i in choose_frames(stretched, processor.video).tolist()]
    times = [index.times[i] - index.times[first] for i in indices]
    height, width = processor.video_frame_size(len(indices), index.height, index.width)
    # Each frame is brought to the policy's size and compressed for the judge as it comes out of the decoder:
    # at its own size only one is ever held.
    frames = np.empty((len(indices), height, width, 3), np.uint8)
    pictures: list[EncodedPicture] = []
    for place, pixels in enumerate(read_frames(index, indices)):
        frames[place] = processor.resize(pixels, height, width)
        if judge is not None:
            index_in_clip = indices[place] - first
            pictures.append(encode_picture(pixels, judge, seconds=times[place], index=index_in_clip))
    prompt = processor.encode([VideoPart(frames, times, resized=True), text])
    quality = (judge or JudgeMediaSettings()).quality
    media = _media_of_video(index, pictures, count, duration, quality)
    return Example(sample=sample, request=text.text, prompt=prompt, media=media)
