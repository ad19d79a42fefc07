"""Captions by a served model: what is asked, greedily and sampled, of pictures and clips, broken ones among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captioning.engine import ReadingEngine, write_pictures
from tests.captioning.server import Captioning, served
from tests.patience import GUARD_S
from vcap_jax.captioning.captioner import Captioner
from vcap_jax.captioning.engines import Drawing
from vcap_jax.captioning.file import CaptionJob, read_caption_file, write_caption_file
from vcap_jax.captioning.inputs import Inputs
from vcap_jax.configuration import ConfigError
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.world.dataset import write_dataset


def load(url: str, *settings: str, prompt: str | None = None) -> Captioner:
    patience = [f"judge.{name}={GUARD_S}" for name in ("ready_timeout_s", "deadline_s")]
    return Captioner.load(url, settings=[*patience, "judge.backoff_s=0.01", *settings], prompt=prompt)


def test_pictures_and_clips_are_asked_about(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "pictures", 3)
    paths[1].write_bytes(b"broken")
    write_dataset(tmp_path / "clips", "video", "served", 1, seed=0)
    captioning = Captioning()
    with (
        served(captioning) as url,
        load(url, "data.max_frames=3", prompt='It\'s what?\nSay "it": é') as captioner,
    ):
        assert captioner.name == "a-captioner behind an endpoint"
        found = sorted(captioner.stream(Inputs([tmp_path])), key=lambda caption: caption.index)
        assert captioner.caption(paths[0]).startswith("Picture ")
        again = captioner.caption([paths[0], paths[2]], seed=1)
    assert [caption.modality for caption in found] == ["video", "image", "image", "image"]
    assert [caption.failure is None for caption in found] == [True, True, False, True]
    assert "001.png: not a readable image" in str(found[2].failure)
    greedy = captioning.bodies[:3]
    assert {(body["temperature"], body["max_tokens"]) for body in greedy} == {(0.0, 2048)}
    contents = [body["messages"][0]["content"] for body in greedy]
    assert all(content[-1]["text"] == 'It\'s what?\nSay "it": é' for content in contents)
    assert sorted(sum(part["type"] == "image_url" for part in content) for content in contents) == [1, 1, 3]
    assert again[0].split(",")[0] == found[1].text.split(",")[0], "the same picture"
    assert again[0] != found[1].text, "another seed"


def test_of_a_clip_as_many_frames_are_sent_as_its_rate_asks_for(tmp_path: Path) -> None:
    """Six seconds of two frames each."""
    write_dataset(tmp_path, "video", "served", 1, seed=0)
    captioning = Captioning()
    with served(captioning) as url, load(url, "data.fps=0.5") as captioner:
        captioner.caption(tmp_path / "videos" / "served-000000.mp4")
    content = captioning.bodies[0]["messages"][0]["content"]
    assert sum(part["type"] == "image_url" for part in content) == 3


def test_a_caption_that_is_asked_for_again_is_drawn_as_the_first_time(tmp_path: Path) -> None:
    """The judge's temperature of a second try is no captioner's."""
    (path,) = write_pictures(tmp_path, 1)
    captioning = Captioning()
    captioning.said = None

    async def speak_at_the_second_try(_: dict) -> None:
        captioning.said = None if len(captioning.bodies) == 1 else "A picture."

    captioning.before = speak_at_the_second_try
    with served(captioning) as url, load(url) as captioner:
        assert captioner.caption(path) == "A picture."
    assert [body["temperature"] for body in captioning.bodies] == [0.0, 0.0]


def test_several_are_drawn_with_seeds_of_their_own_and_failures_are_told(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 2)
    captioning = Captioning()
    with served(captioning) as url, load(url, "judge.max_tries=2") as captioner:
        first, second = sorted(
            captioner.stream(paths, n=3, temperature=0.6), key=lambda caption: caption.index
        )
        assert len(set(first.texts)) == len(set(second.texts)) == 3
        assert {body["temperature"] for body in captioning.bodies} == {0.6}
        assert len({body["seed"] for body in captioning.bodies}) == 6
        captioning.speechless = {first.text.split()[1].rstrip(",")}
        captioning.bodies.clear()
        found = sorted(captioner.stream(paths), key=lambda caption: caption.index)
    assert "empty_answer" in str(found[0].failure)
    assert found[1].failure is None
    # Whoever is asked again is asked by the same rules.
    assert [body["temperature"] for body in captioning.bodies] == [0.0] * 3


def test_thoughts_are_no_caption(tmp_path: Path) -> None:
    """vLLM is asked for none, as a policy is here; what others think aloud is left out."""
    (path,) = write_pictures(tmp_path, 1)
    captioning = Captioning()
    with served(captioning) as url, load(url, "judge.max_tries=1") as captioner:
        plain = captioner.caption(path)
        assert "chat_template_kwargs" not in captioning.bodies[0], "a hosted server would refuse it"
        for thoughts in ("<think>Is it red?</think>\n\n", "It may be red.\n</think>"):
            captioning.thoughts = thoughts
            assert captioner.caption(path) == plain
        captioning.thoughts = "<think>Is it red? "
        (found,) = captioner.stream([path])
        assert "empty_answer" in str(found.failure)
    captioning.owned_by = "vllm"
    with served(captioning) as url, load(url) as captioner:
        assert captioner.caption(path) == plain


@pytest.mark.parametrize("finish", ["abort", "error", "refusal", "content_filter"])
def test_a_caption_that_the_server_ended_is_none(tmp_path: Path, finish: str) -> None:
    captioning = Captioning()
    captioning.finish = finish
    with served(captioning) as url, load(url, "judge.max_tries=1") as captioner:
        (found,) = captioner.stream(write_pictures(tmp_path, 1))
    assert not found.texts
    assert f"filtered: the server ended the caption with '{finish}'" in str(found.failure)


@pytest.mark.parametrize("finish", ["length", "max_tokens"])
def test_a_caption_at_its_limit_is_cut_off_by_whatever_name(tmp_path: Path, finish: str) -> None:
    captioning = Captioning()
    captioning.finish = finish
    with served(captioning) as url, load(url) as captioner:
        (found,) = captioner.stream(write_pictures(tmp_path, 1))
    assert found.truncated == (True,)


@pytest.mark.parametrize("content", [None, "<think>Is it red? "])
def test_one_that_is_cut_off_in_its_thoughts_is_none_and_is_tried_again_when_asked(
    tmp_path: Path, content: str | None
) -> None:
    write_pictures(tmp_path / "in", 2)
    inputs, path, captioning = Inputs([tmp_path / "in"]), tmp_path / "out.jsonl", Captioning()
    job = CaptionJob(inputs=inputs, counted=inputs.counted(), drawing=Drawing())
    captioning.said, captioning.finish = content, "length"
    with served(captioning) as url, load(url, "rollout.max_completion_length=9") as captioner:
        assert write_caption_file(path, captioner, job)
        rows = list(read_caption_file(path))
        assert [row.texts for row in rows] == [(), ()]
        assert all(
            "cut_off: its 9 tokens were used up before any text: raise" in str(row.failure) for row in rows
        )
        assert len(captioning.bodies) == 2, (
            "with its own seed it would be cut off again: it is asked for once"
        )
        captioning.said, captioning.finish = "", "stop"
        assert write_caption_file(path, captioner, job, retry_failed=True)
    assert all(caption.text.startswith("Picture ") for caption in read_caption_file(path))


def test_a_request_goes_ahead_only_where_a_picture_is_captioned_more_than_once(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 2)
    captioning = Captioning()
    captioning.owned_by = "vllm"

    def ahead() -> int:
        return sum(body["max_tokens"] == 1 for body in captioning.bodies)

    with served(captioning) as url, load(url) as captioner:
        captioner.caption(paths)
        assert (len(captioning.bodies), ahead()) == (2, 0)
        list(captioner.stream(paths, n=3, temperature=0.6))
        assert (len(captioning.bodies), ahead()) == (2 + 2 * 4, 2)
        captioning.bodies.clear()
        list(captioner.stream([paths[0], paths[0], paths[1]]))
    assert len(captioning.bodies) - ahead() == 3


def test_a_sample_that_lacks_some_of_its_captions_has_failed(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 1)
    captioning = Captioning()
    captioning.lost = {2, 3}
    with served(captioning) as url, load(url, "judge.max_tries=1") as captioner:
        (found,) = captioner.stream(paths, n=4, temperature=0.6)
    assert len(found.texts) == 2
    assert str(found.failure).startswith("2 of 4 captions are lacking: http_status")


def test_what_is_not_sent_is_neither_noted_nor_taken(tmp_path: Path) -> None:
    (path,) = write_pictures(tmp_path, 1)
    captioning = Captioning()
    with served(captioning) as url:
        with load(url, "rollout.sampling.top_p=0.7") as captioner:
            captioner.caption(path, temperature=0.4)
            noted = captioner.described(Drawing(temperature=0.4), 1)["sampling"]
        (body,) = captioning.bodies
        assert noted == {"temperature": 0.4, "top_p": 0.7}
        assert {name: body[name] for name in ("temperature", "top_p")} == noted
        assert not {"top_k", "repetition_penalty"} & body.keys()
        for setting in ("rollout.sampling.top_k=5", "rollout.sampling={repetition_penalty: 1.2}"):
            with pytest.raises(ConfigError, match=r"a served model is asked for temperature and top_p alone"):
                load(url, setting)


def test_captions_of_pictures_that_were_sent_otherwise_are_others(tmp_path: Path) -> None:
    (path,) = write_pictures(tmp_path, 1)
    captioning, edge = Captioning(), "data.judge_media.max_edge=4"
    with (
        served(captioning) as url,
        load(url) as usual,
        load(url, edge) as small,
        load(url, "judge.video_input=frames") as frames,
    ):
        assert usual.caption(path).split(",")[0] != small.caption(path).split(",")[0]
        noted = [one.described(Drawing(), 1) for one in (usual, small, frames)]
    assert not {"judge_media", "video_input"} & noted[0].keys(), "the default is not noted"
    assert noted[1] == {**noted[0], "judge_media": {"max_edge": 4}}
    assert noted[2] == {**noted[0], "video_input": "frames"}


def test_sizes_of_a_policys_pictures_are_neither_noted_nor_taken(tmp_path: Path) -> None:
    with served(Captioning()) as url:
        with load(url, "data.max_frames=7", "data.max_pixels=null") as captioner:
            noted = captioner.described(Drawing(), 1)
        for setting in ("data.max_pixels=4096", "data={max_frame_tokens: 64}"):
            with pytest.raises(
                ConfigError, match=r"data\.max_.*: a served model .* data\.judge_media\.max_edge"
            ):
                load(url, setting)
    assert (noted["max_frames"], noted["fps"]) == (7, None)
    assert not {"max_pixels", "max_frame_tokens"} & noted.keys()
    of_a_policy = Captioner(ReadingEngine()).described(Drawing(), 1)
    assert {"max_pixels", "max_frames", "max_frame_tokens", "fps"} <= of_a_policy.keys()


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(JudgeUnavailable, match=r"the captioner at http://127\.0\.0\.1:9/v1 is not"):
        Captioner.load("http://127.0.0.1:9", settings=["judge.ready_timeout_s=0.2"])
