"""Requests of the vLLM engine: the server gets the policy's own pixels, times and rules; bad answers are told apart."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.rollout.rollout_server import picture_of
from vcap_jax.models.message import ImagePart, TextPart, VideoPart
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.models.qwen3_vl.processing.pixels import patchify, resize, unpatchify
from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings
from vcap_jax.rollout.engine import RolloutError
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.rollout.vllm_request import GroupRules, group_request, group_seed, read_group
from vcap_jax.world.backbone import BACKBONE_FOLDER

TEXT = "Describe it."


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor.from_pretrained(BACKBONE_FOLDER)


@pytest.fixture(scope="module")
def rules(processor) -> GroupRules:
    return GroupRules(
        sampling=SamplingConfig(temperature=0.8, top_p=0.9, top_k=40, repetition_penalty=1.05),
        group_size=2,
        max_tokens=5,
        end_ids=processor.eos_token_ids,
        banned_ids=processor.banned_token_ids,
    )


def pictures(count: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("settings", [ImageSettings(), ImageSettings(merge_size=1)])
@pytest.mark.parametrize("depth", [1, 2])
def test_patches_give_their_pixels_back(settings, depth):
    frames = pictures(depth, 64, 96)
    patches = patchify(frames, settings)
    np.testing.assert_array_equal(unpatchify(patches, 4, 6, settings), frames)


def test_images_travel_resized_and_without_loss(processor):
    large, small = pictures(1, 150, 100)[0], pictures(1, 64, 64, seed=1)[0]
    prompt = processor.encode([ImagePart(large), ImagePart(small), TextPart(TEXT)])
    parts, media = processor.picture_parts(prompt)
    assert media is None
    sent = [picture_of(part["image_url"]["url"].removeprefix("data:image/png;base64,")) for part in parts]
    np.testing.assert_array_equal(sent[0], resize(large, *sent[0].shape[:2]))
    np.testing.assert_array_equal(sent[1], small)
    # What is sent is left alone by the processing that made it.
    again = processor.encode([*(ImagePart(picture) for picture in sent), TextPart(TEXT)])
    np.testing.assert_array_equal(again.tokens, prompt.tokens)
    for one, other in zip(again.frames, prompt.frames, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("times", [[0.0, 0.5, 1.0, 1.5], [3.21, 3.3, 61.04, 700.77, 705.0]])
def test_video_frames_travel_with_the_times_that_are_announced(processor, times):
    frames = pictures(len(times), 64, 64)
    prompt = processor.encode([VideoPart(frames, times), TextPart(TEXT)])
    (part,), media = processor.picture_parts(prompt)
    sent = np.stack([picture_of(data) for data in part["video_url"]["url"].split(",")[1:]])
    np.testing.assert_array_equal(sent[: len(times)], frames)
    video = media["video"]
    assert video["num_frames"] == -1
    assert video["do_sample_frames"] is False
    assert len(video["frames_indices"]) == len(sent) <= video["total_num_frames"]
    seconds = [index / video["fps"] for index in video["frames_indices"]]
    again = processor.encode([VideoPart(sent, seconds), TextPart(TEXT)])
    np.testing.assert_array_equal(again.tokens, prompt.tokens)


def test_a_request_holds_the_group_and_its_rules(processor, rules):
    prompt = processor.encode([ImagePart(pictures(1, 64, 64)[0]), TextPart(TEXT)])
    body = group_request(prompt, TEXT, rules, processor, model="policy", seed=7)
    (message,) = body["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]
    assert message["content"][-1]["text"] == TEXT
    assert (body["n"], body["max_tokens"], body["seed"]) == (2, 5, 7)
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.8, 0.9, 40)
    assert body["repetition_penalty"] == 1.05
    assert body["stop_token_ids"] == list(processor.eos_token_ids)
    assert {int(token) for token in body["logit_bias"]} == set(processor.banned_token_ids)
    assert set(body["logit_bias"].values()) == {-100.0}
    assert body["logprobs"] is body["return_token_ids"] is True
    assert body["top_logprobs"] == 0
    # Else a model that may think aloud would be asked another prompt than the policy was.
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_seeds_are_repeatable_and_far_apart():
    seeds = {group_seed(s, t, g) for s in range(3) for t in range(20) for g in range(32)}
    assert len(seeds) == 3 * 20 * 32
    assert group_seed(1, 2, 3) == group_seed(1, 2, 3)
    assert all(0 <= seed < 2**62 for seed in seeds)
    # Candidates take the numbers after a seed, and some generators look at the low half alone.
    low = sorted(seed % 2**32 for seed in seeds)
    assert min(b - a for a, b in itertools.pairwise(low)) > 8


@pytest.fixture
def answered(processor, rules):
    prompt = processor.encode([ImagePart(pictures(1, 64, 64)[0]), TextPart(TEXT)])
    end = rules.end_ids[0]
    captions = [([10, 11, end], "stop"), ([12, 13, 14, 15, 16], "length")]
    answer = {
        "prompt_token_ids": prompt.tokens.tolist(),
        "choices": [
            {
                "index": i,
                "token_ids": ids,
                "logprobs": {"content": [{"logprob": -0.5 * (k + 1)} for k in range(len(ids))]},
                "finish_reason": reason,
            }
            for i, (ids, reason) in enumerate(captions)
        ][::-1],
    }
    return prompt, answer


def test_a_group_is_read(answered, rules):
    prompt, answer = answered
    group = read_group(answer, prompt, rules, index=4, name="x")
    end = rules.end_ids[0]
    np.testing.assert_array_equal(group.tokens, [[10, 11, end, end, end], [12, 13, 14, 15, 16]])
    np.testing.assert_array_equal(group.lengths, [3, 5])
    np.testing.assert_array_equal(group.truncated, [False, True])
    np.testing.assert_allclose(group.logprobs[0], [-0.5, -1.0, -1.5, np.nan, np.nan])
    assert group.index == 4


def test_a_caption_that_ends_with_the_last_token_it_may_have_is_whole(answered, rules):
    prompt, answer = answered
    longest = answer["choices"][0]
    longest["token_ids"][-1], longest["finish_reason"] = rules.end_ids[0], "stop"
    group = read_group(answer, prompt, rules, index=0, name="x")
    assert group.lengths[1] == rules.max_tokens
    assert not group.truncated.any()


def broken(answer, change):
    answer = copy.deepcopy(answer)
    change(answer)
    return answer


def other_token(answer):
    answer["prompt_token_ids"][3] += 1


def shorter(answer):
    answer["prompt_token_ids"].pop()


def without_ids(answer):
    del answer["choices"][0]["token_ids"]


def no_token(answer):
    answer["choices"][0]["token_ids"][0] = 2**40


def without_logprobs(answer):
    answer["choices"][0]["logprobs"] = None


def one_logprob_less(answer):
    answer["choices"][0]["logprobs"]["content"].pop()


def infinite(answer):
    answer["choices"][0]["logprobs"]["content"][0]["logprob"] = -9999e999


def one_caption(answer):
    answer["choices"].pop()


def aborted(answer):
    answer["choices"][0]["finish_reason"] = "abort"


def no_end(answer):
    answer["choices"][0]["finish_reason"] = "stop"


def end_inside(answer):
    answer["choices"][1]["token_ids"][0] = answer["choices"][1]["token_ids"][-1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (other_token, r"at token 3 ours is \d+, the server's \d+"),
        (shorter, "the server's the end"),
        (without_ids, "return_token_ids"),
        (no_token, "return_token_ids"),
        (without_logprobs, "return_token_ids"),
        (one_logprob_less, "5 tokens with 4 log-probabilities"),
        (infinite, "finite"),
        (one_caption, "2 captions were asked for, 1 came back"),
        (aborted, "abort"),
        (no_end, "end tokens"),
        (end_inside, r"end tokens stand at \[0, 2\] of 3"),
    ],
)
def test_a_bad_answer_is_refused(answered, rules, change, told):
    prompt, answer = answered
    with pytest.raises(RolloutError, match=told) as error:
        read_group(broken(answer, change), prompt, rules, index=0, name="sample beach")
    assert "sample beach" in str(error.value)


def test_a_banned_token_is_refused(answered, rules):
    prompt, answer = answered
    with pytest.raises(RolloutError, match="logit_bias"):
        read_group(answer, prompt, replace(rules, banned_ids=(11,)), index=0, name="x")
