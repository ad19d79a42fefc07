"""Videos as one part of a request, and whether all of it arrived."""

import asyncio
from typing import Any

import pytest

from vcap_jax.data.media import JudgeFrame, JudgeVideo, TimeWindow
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.encoded_view import (
    EncodedView,
    PromptedVideo,
    check_video,
    collapsed,
    pair_times,
    runs,
    show,
)
from vcap_jax.reward.errors import MediaMismatch
from vcap_jax.reward.prompts import build_messages, video_parts
from vcap_jax.reward.scores import Scores, parse_scores
from vcap_jax.reward.templates import QUALITY_KEYS

PAD, START, END = 7, 5, 6


def video(indices: tuple[int, ...], fps: float = 2.0, total: int = 100) -> JudgeVideo:
    frames = tuple(f"frame{i}" for i in indices)
    return JudgeVideo(frames=frames, indices=indices, fps=fps, total_frames=total, duration=total / fps)


# The request


def test_frames_carry_their_exact_places() -> None:
    (part,), fields = video_parts(video((0, 12, 25, 37), fps=25.0, total=250))
    assert part["type"] == "video_url"
    assert part["video_url"]["url"] == "data:video/jpeg;base64,frame0,frame12,frame25,frame37"
    assert fields == {
        "media_io_kwargs": {
            "video": {
                "num_frames": -1,
                "fps": 25.0,
                "frames_indices": [0, 12, 25, 37],
                "total_num_frames": 250,
                "duration": 10.0,
            }
        },
        "mm_processor_kwargs": {"do_sample_frames": False},
    }


def test_a_single_frame_goes_twice_an_odd_number_as_it_is() -> None:
    (part,), fields = video_parts(video((4,)))
    assert part["video_url"]["url"].endswith(",frame4,frame4")
    assert fields["media_io_kwargs"]["video"]["frames_indices"] == [4, 4]
    (part,), fields = video_parts(video((4, 5, 9)))
    assert part["video_url"]["url"].endswith(",frame4,frame5,frame9")
    assert fields["media_io_kwargs"]["video"]["frames_indices"] == [4, 5, 9]


def test_the_same_frames_at_other_times_are_another_video() -> None:
    uuids = {
        video_parts(v)[0][0]["uuid"]
        for v in (video((0, 2)), video((0, 2), fps=4.0), video((0, 2), total=50), video((0, 2)))
    }
    assert len(uuids) == 3


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ((0, 1, 2, 3), ("0.2", "1.2")),  # the means 0.25 and 1.25, printed as Python prints them
        ((0, 1, 2), ("0.2", "1.0")),
        ((9,), ("4.5",)),
        ((0, 40), ("10.0",)),
    ],
)
def test_times_of_pairs(indices: tuple[int, ...], expected: tuple[str, ...]) -> None:
    assert pair_times(video(indices)) == expected


def test_impossible_videos_are_refused() -> None:
    with pytest.raises(ValueError, match="2 frames with 1 indices"):
        JudgeVideo(frames=("a", "b"), indices=(0,), fps=1.0, total_frames=2, duration=2.0)
    with pytest.raises(ValueError, match="has no frame 2"):
        video((0, 2), total=2)


class Clip:
    modality = "video"
    duration = 50.0

    def frames(self, window: TimeWindow | None = None) -> list[JudgeFrame]:
        return [JudgeFrame(url="data:a", seconds=0.0), JudgeFrame(url="data:b", seconds=1.0)]

    def video(self, window: TimeWindow | None = None) -> JudgeVideo:
        return video((0, 2))


def test_a_clip_is_shown_as_video_or_as_frames() -> None:
    as_video = show(Clip(), None, as_video=True)
    assert [part["type"] for part in as_video.parts] == ["video_url"]
    assert as_video.video == PromptedVideo(frames=2, pair_times=("0.5",))
    as_frames = show(Clip(), None, as_video=False)
    assert [part["type"] for part in as_frames.parts] == ["text", "image_url"] * 2
    assert (as_frames.pictures, as_frames.video, as_frames.fields) == (2, None, {})
    assert as_video.key != as_frames.key


# The prompt that came of it


def prompt(times: list[str], lengths: list[int]) -> tuple[list[int], str]:
    """Token ids and collapsed text as Qwen3-VL's processor makes them; a time is one token here."""
    ids, text = [1, START], "<|im_start|>user\n<|vision_start|>"
    for number, (time, length) in enumerate(zip(times, lengths, strict=True)):
        ids += [100 + number, START, *[PAD] * length, END]
        text += f"<{time} seconds><|vision_start|><|video_pad|><|vision_end|>"
    return [*ids, END, 2], text + "<|vision_end|>\nJudge this. <9.9 seconds>"


SENT = PromptedVideo(frames=5, pair_times=("0.2", "1.2", "2.0"))


def test_a_prompt_that_holds_everything() -> None:
    ids, text = prompt(["0.2", "1.2", "2.0"], [4, 4, 4])
    assert runs(ids, PAD) == [4, 4, 4]
    assert runs(collapsed(ids, PAD), PAD) == [1, 1, 1]
    check_video(SENT, ids, PAD, text)


@pytest.mark.parametrize(
    ("times", "lengths", "message"),
    [
        (
            ["0.2", "1.2"],
            [4, 4],
            r"5 frames in 3 pairs were sent.*holds 2 pairs \(8 visual tokens\).*dropped",
        ),
        (["0.2", "1.2", "2.0", "3.0"], [4] * 4, r"holds 4 pairs \(16 visual tokens\)"),
        (["0.2", "1.2", "2.0"], [4, 4, 3], r"holds 3 pairs \(11 visual tokens\)"),
        (["0.2", "1.0", "2.0"], [4, 4, 4], r"announces 1.0 s for 1.2 s; serve the judge with --media-io"),
    ],
)
def test_what_was_dropped_resampled_or_moved_is_named(
    times: list[str], lengths: list[int], message: str
) -> None:
    ids, text = prompt(times, lengths)
    with pytest.raises(MediaMismatch, match=message):
        check_video(SENT, ids, PAD, text)


def test_a_video_without_times_is_refused() -> None:
    ids, _ = prompt(["0.2", "1.2", "2.0"], [4, 4, 4])
    with pytest.raises(MediaMismatch, match=r"announces no time s for 0\.2 s"):
        check_video(SENT, ids, PAD, "<|video_pad|>" * 3)


# Through the client


class Vllm:
    """A server that answers with the prompt of ``times``, whatever it was sent."""

    def __init__(self, judge: Any, replies: Any, times: list[str]) -> None:
        ids, text = prompt(times, [4] * len(times))
        judge.owned_by = "vllm"
        judge.tokenize = lambda body: {"tokens": [PAD] if body["prompt"] == "<|video_pad|>" else [1, 2]}
        judge.detokenize = lambda body: {"prompt": text}
        self.reply = replies.verdict()
        self.reply.prompt_token_ids = ids
        judge.answer = lambda body, n: self.reply


def ask(config: Any, shown: EncodedView, times: int = 1) -> list[Any]:
    async def run() -> list[Any]:
        async with JudgeClient(config) as client:
            assert await client.takes_video()
            return [
                (
                    await client.ask(
                        build_messages(shown.parts, f"judge {k}"),
                        lambda text, finish: parse_scores(text, QUALITY_KEYS, finish),
                        shown=shown,
                    )
                ).result
                for k in range(times)
            ]

    return asyncio.run(run())


def test_a_video_goes_once_with_its_places_every_time(judge: Any, settings: Any, replies: Any) -> None:
    Vllm(judge, replies, ["0.5"])
    results = ask(settings(), show(Clip(), None, as_video=True), times=3)
    assert all(isinstance(result, Scores) for result in results)
    first, second, third = judge.bodies
    assert first["messages"][0]["content"][0]["video_url"]["url"].startswith("data:video/jpeg;base64,")
    assert second["messages"][0]["content"][0]["video_url"] is None
    for body in judge.bodies:
        assert body["media_io_kwargs"]["video"]["frames_indices"] == [0, 2]
        assert body["mm_processor_kwargs"] == {"do_sample_frames": False}
    assert first["return_token_ids"] is True
    assert "return_token_ids" not in second | third


def test_a_resampled_video_ends_the_run(judge: Any, settings: Any, replies: Any) -> None:
    Vllm(judge, replies, ["0.5", "1.5"])
    with pytest.raises(MediaMismatch, match=r"2 frames in 1 pairs were sent.*holds 2 pairs"):
        ask(settings(), show(Clip(), None, as_video=True))


@pytest.mark.parametrize("missing", ["ids", "tokenize"])
def test_a_video_that_cannot_be_verified_is_not_trusted(
    judge: Any, settings: Any, replies: Any, missing: str
) -> None:
    server = Vllm(judge, replies, ["0.5"])
    if missing == "ids":
        server.reply.prompt_token_ids = None
    else:
        judge.tokenize = lambda body: {"tokens": [1, 2, 3]}
    with pytest.raises(MediaMismatch, match=r"cannot be seen.*judge\.video_input to frames"):
        ask(settings(), show(Clip(), None, as_video=True))


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("path", ["tokenize", "detokenize"])
def test_a_video_is_asked_about_again_where_its_check_fails_for_the_moment(
    judge: Any, settings: Any, replies: Any, path: str, status: int
) -> None:
    """A server that ends has answered the question, and refuses what is asked next: the run was over."""
    Vllm(judge, replies, ["0.5"])
    answers = iter([lambda body: status, getattr(judge, path)])
    setattr(judge, path, lambda body: next(answers)(body))
    (result,) = ask(settings(), show(Clip(), None, as_video=True))
    assert isinstance(result, Scores)
    assert len(judge.bodies) == 2


def test_what_is_wrong_with_a_check_for_good_is_told_by_its_address(
    judge: Any, settings: Any, replies: Any
) -> None:
    Vllm(judge, replies, ["0.5"])
    judge.detokenize = lambda body: 500
    (result,) = ask(settings(max_tries=2), show(Clip(), None, as_video=True))
    assert (result.reason, result.detail) == ("connection", "/detokenize answers 500: not now")


def test_other_servers_get_frames(judge: Any, settings: Any) -> None:
    async def takes(config: Any) -> bool:
        async with JudgeClient(config) as client:
            return await client.takes_video()

    assert asyncio.run(takes(settings())) is False
    assert asyncio.run(takes(settings(video_input="video"))) is True
    judge.owned_by = "vllm"
    assert asyncio.run(takes(settings())) is True
    assert asyncio.run(takes(settings(video_input="frames"))) is False
