"""One group as a chat request to a vLLM server, and the group in its answer. Pure functions.

The server is sent the pixels the policy sees: pictures are taken out of the encoded prompt, already resized, and
travel as PNG, so nothing is resized or compressed twice. That the server makes the same prompt of them is not
assumed: the token ids it reports, visual placeholders expanded, are compared with ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vcap_jax.models.errors import InputError
from vcap_jax.models.family import EncodedPrompt, VllmProcessor
from vcap_jax.rollout.config import RolloutConfig
from vcap_jax.rollout.engine import RolloutError
from vcap_jax.rollout.sampler import SampledGroup
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.system.json_values import JsonDict, JsonObject

BAN = -100.0
"""The lowest bias the protocol allows: e^-100 of the probability remains."""


@dataclass(frozen=True, kw_only=True)
class GroupRules:
    """What is the same in every request of a run.

    group_size: captions per prompt. max_tokens: of a caption, the end token included.
    end_ids: tokens that end a caption; banned_ids: tokens that are never drawn.
    """

    sampling: SamplingConfig
    group_size: int
    max_tokens: int
    end_ids: tuple[int, ...]
    banned_ids: tuple[int, ...]

    @classmethod
    def of(cls, config: RolloutConfig, processor: VllmProcessor) -> GroupRules:
        return cls(
            sampling=config.sampling,
            group_size=config.group_size,
            max_tokens=config.max_completion_length,
            end_ids=processor.eos_token_ids,
            banned_ids=processor.banned_token_ids,
        )


def group_seed(seed: int, step: int, group: int) -> int:
    """The seed of a group's request, a 62-bit hash of the run's seed, the step and the group's index in it.

    The server adds the candidate's number to it; hashing keeps neighbouring groups from meeting there, in all
    bits, since some of its generators look at the low 32 alone.
    """
    digest = hashlib.blake2b(f"{seed} {step} {group}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def group_request(
    prompt: EncodedPrompt, request: str, rules: GroupRules, processor: VllmProcessor, *, model: str, seed: int
) -> JsonObject:
    """The body of one ``/v1/chat/completions`` request for a whole group.

    request: the text that follows the pictures in ``prompt``. Raises RolloutError for a prompt that cannot be sent.
    """
    sampling = rules.sampling
    try:
        content, media = processor.picture_parts(prompt)
    except InputError as error:
        raise RolloutError(str(error)) from error
    body: JsonDict = {
        "model": model,
        "messages": [{"role": "user", "content": [*content, {"type": "text", "text": request}]}],
        "n": rules.group_size,
        "seed": seed,
        "max_tokens": rules.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": {str(token): BAN for token in rules.banned_ids},
        "stop_token_ids": list(rules.end_ids),
        "logprobs": True,
        "top_logprobs": 0,
        "return_token_ids": True,
        "chat_template_kwargs": dict(processor.template_settings),
    }
    return body | ({"media_io_kwargs": media} if media else {})


def read_group(
    answer: Mapping[str, Any], prompt: EncodedPrompt, rules: GroupRules, *, index: int, name: str
) -> SampledGroup:
    """The group in a server's answer. index: in the step; name: what errors call it.

    Raises RolloutError for an answer of another prompt, without ids or log-probabilities, or with a caption that
    breaks the rules it was drawn under.
    """
    try:
        _check_prompt(answer["prompt_token_ids"], prompt.tokens, name)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        drawn = [
            (
                np.asarray(choice["token_ids"], np.int32),
                np.asarray([entry["logprob"] for entry in choice["logprobs"]["content"]], np.float32),
                choice["finish_reason"],
            )
            for choice in choices
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RolloutError(
            f"{name}: the answer lacks token ids or log-probabilities ({error!r}); the server must know "
            "return_token_ids (vLLM 0.10 or newer)"
        ) from None
    if len(drawn) != rules.group_size:
        raise RolloutError(f"{name}: {rules.group_size} captions were asked for, {len(drawn)} came back")
    shape = (rules.group_size, rules.max_tokens)
    tokens = np.full(shape, rules.end_ids[0], np.int32)
    logprobs = np.full(shape, np.nan, np.float32)
    lengths = np.zeros(rules.group_size, np.int32)
    truncated = np.zeros(rules.group_size, bool)
    for g, (ids, values, reason) in enumerate(drawn):
        _check_caption(ids, values, reason, rules, f"{name}, caption {g}")
        tokens[g, : len(ids)], logprobs[g, : len(ids)], lengths[g] = ids, values, len(ids)
        truncated[g] = reason == "length"
    return SampledGroup(index, tokens, lengths, truncated, logprobs)


def _check_prompt(theirs: Sequence[int], ours: np.ndarray, name: str) -> None:
    if len(theirs) == len(ours) and np.array_equal(theirs, ours):
        return
    shorter = min(len(theirs), len(ours))
    different = np.flatnonzero(np.asarray(theirs[:shorter]) != ours[:shorter])
    place = int(different[0]) if different.size else shorter
    told = [ids[place] if place < len(ids) else "the end" for ids in (ours, theirs)]
    raise RolloutError(
        f"{name}: the server made another prompt: {len(theirs)} tokens, ours has {len(ours)}; at token {place} "
        f"ours is {told[0]}, the server's {told[1]}. Its folder must hold the policy's tokenizer, chat template and "
        "preprocessor files: start it with launch/serve_rollout.py and this run's configuration"
    )


def _check_caption(ids: np.ndarray, logprobs: np.ndarray, reason: str, rules: GroupRules, name: str) -> None:
    if len(ids) != len(logprobs) or not 0 < len(ids) <= rules.max_tokens:
        raise RolloutError(
            f"{name}: {len(ids)} tokens with {len(logprobs)} log-probabilities, expected as many of each, 1 to "
            f"{rules.max_tokens}"
        )
    if reason not in ("stop", "length"):
        raise RolloutError(f"{name}: the server ended it with {reason!r}, which is neither stop nor length")
    ended = np.isin(ids, rules.end_ids)
    if ended[:-1].any() or ended[-1] != (reason == "stop"):
        raise RolloutError(
            f"{name}: it finished by {reason!r} and its end tokens stand at {np.flatnonzero(ended).tolist()} of "
            f"{len(ids)}; the server ends captions by other rules"
        )
    banned = np.isin(ids, rules.banned_ids)
    if banned.any():
        raise RolloutError(f"{name}: token {ids[banned][0]} is banned, the server does not apply logit_bias")
    if not np.isfinite(logprobs).all() or (logprobs > 0).any():
        raise RolloutError(f"{name}: its log-probabilities are not all finite and at most 0")
