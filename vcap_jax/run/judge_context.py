"""Whether the judge's context holds the longest question that a run may ask, and its answer."""

from __future__ import annotations

from vcap_jax.reward.family import load_family
from vcap_jax.run.config import RunConfig

_PIXELS_PER_TOKEN = 32 * 32
"""Of a Qwen3-VL judge."""
_FRAMES_PER_TOKEN = 2
_MARK_TOKENS = 12
"""The time of a pair of frames and the marks around it."""
_INSTRUCTION_TOKENS = 1024
_MULTIPLE = 1024
_SHOWN_BOTH = ("witness_adjudicator", "claim_differences", "balanced")
"""Families whose judge is given the caption, the reference and the picture."""


def context_warning(config: RunConfig, context: int | None) -> str | None:
    """What to say of a judge whose context may be too short; None if nothing. context: tokens of a question and its
    answer that the judge takes, None where it does not tell.

    An estimate: no caption need be as long as it may, and pictures count only where the settings bound them.
    """
    if context is None:
        return None
    parts = _parts(config)
    longest = sum(parts.values())
    if longest <= context:
        return None
    enough = -(-(longest + _INSTRUCTION_TOKENS) // _MULTIPLE) * _MULTIPLE
    listed = ", ".join(f"{tokens:,} {what}" for what, tokens in parts.items() if tokens)
    return (
        f"warning: the judge takes {context:,} tokens of a question and its answer (max_model_len), and the longest of "
        f"this run may want {longest:,}: {listed}. Captions beyond get no score and are masked. Start it with "
        f"--max-model-len {enough} (serve.py; of launch/h800_8x.sh --judge-max-model-len {enough}), or lower one of "
        "them"
    )


def _parts(config: RunConfig) -> dict[str, int]:
    """Tokens of the longest question and its answer, by what they are; at the least, of a family of the user's own."""
    reward, caption = config.reward, config.rollout.max_completion_length
    uses = reward.family in _SHOWN_BOTH and load_family(reward).uses_reference(reward)
    sees = reward.family in (*_SHOWN_BOTH, "judge") and reward.use_image
    return {
        "of a caption (rollout.max_completion_length)": caption,
        "of a reference": (config.references.max_completion_length or caption) if uses else 0,
        "of what it sees": _visual_tokens(config) if sees else 0,
        "of an answer (judge.max_tokens)": config.judge.max_tokens,
    }


def _visual_tokens(config: RunConfig) -> int:
    """Of the largest picture or video; 0 where the settings do not say."""
    data = config.data
    # The judge gets pictures as they are, and makes them as small as its own budget.
    most = data.judge_media.max_edge**2 // _PIXELS_PER_TOKEN or None
    if config.modality == "image":
        bounds = [b for b in (most, data.max_pixels and data.max_pixels // _PIXELS_PER_TOKEN) if b]
        return min(bounds, default=0)
    if data.max_frames is None or data.max_frame_tokens is None:
        return 0
    together = 1 if config.judge.video_input == "frames" else _FRAMES_PER_TOKEN
    of_each = min(data.max_frame_tokens, most or data.max_frame_tokens)
    return -(-data.max_frames // together) * (of_each + _MARK_TOKENS)
