"""One question of a run's own kind to its judge before any other work. What is refused then, or answered so that
nothing can be made of it, would be so for every caption, hours later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from vcap_jax.data.judge_media import EncodedMedia, VideoSource, encode_picture
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.encoded_view import show
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools, load_family, made_family, scores_by
from vcap_jax.reward.group import GroupPrompt
from vcap_jax.reward.open_group import OpenGroup
from vcap_jax.run.config import RunConfig

SHOWN_BOTH = ("witness_adjudicator", "claim_differences", "balanced")
"""Families whose judge is given the caption, the reference and the picture."""
TRIAL = "Everything is grey."
"""The caption that is asked about, and the reference."""

_OF_THE_REFERENCE = ("no_reference", "no_reference_segment")
"""The judge finds in it nothing to hold a caption against, and no part of a window: that is right, here."""
_REMEDIES = {
    "http_status": "If the form of the answer is refused, set judge.response_format=json_object",
    "cut_off": "Raise judge.max_tokens; a model that thinks first needs thousands, or a server that keeps it from that",
    "timeout": "Raise judge.deadline_s",
    "connection": "Look at its server's log",
}
_REMEDY = "Ask a model that answers in JSON (judge.model), or set judge.response_format"


def sees(config: RunConfig) -> bool:
    """Whether the judge is shown pictures, as far as that is known of a family."""
    return config.reward.family in (*SHOWN_BOTH, "judge") and config.reward.use_image


async def try_question(config: RunConfig, client: JudgeClient, say: Callable[[str], None]) -> None:
    """Shows the judge a picture or a clip on which there is nothing, and has it judge a caption of that. A family of
    the user's own, and one that asks about something else, is not tried.

    An answer that is of no use is told. Raises JudgeUnavailable where pictures or the question are refused.
    """
    grey = _grey(config)
    if sees(config):
        as_video = config.modality == "video" and await client.takes_video()
        await client.check_sight(show(grey, None, as_video=as_video))
    if config.reward.family not in (*SHOWN_BOTH, "judge"):
        return
    reward = config.reward
    reference = TRIAL if load_family(reward).uses_reference(reward) else None
    prompt = GroupPrompt(sample_id="a trial", step=0, index=0, media=grey, reference=reference)
    family = made_family(reward, FamilyTools(seed=config.seed, judge=client, judge_config=config.judge))
    scores = await scores_by(family, reward.family, OpenGroup.ended(prompt.with_captions((TRIAL,))))
    failure = scores.candidates[0].failure
    if failure is None or failure.reason in _OF_THE_REFERENCE:
        return
    if failure.reason == "http_status":
        raise JudgeUnavailable(f"the judge refuses a trial question: {_told(failure)}")
    say(f"warning: nothing can be made of the judge's answer to a trial question: {_told(failure)}")


def _told(failure: Failure) -> str:
    return f"{failure.detail} ({failure.reason}). {_REMEDIES.get(failure.reason, _REMEDY)}"


def _grey(config: RunConfig) -> EncodedMedia:
    """A picture or a clip on which there is nothing."""
    encoded = encode_picture(np.full((64, 64, 3), 128, np.uint8), config.data.judge_media)
    if config.modality == "image":
        return EncodedMedia(modality="image", duration=0.0, pictures=(encoded,))
    frames = tuple(dataclasses.replace(encoded, seconds=float(k), index=k) for k in range(4))
    source = VideoSource(frames=len(frames), fps=1.0)
    return EncodedMedia(modality="video", duration=float(len(frames)), pictures=frames, source=source)
