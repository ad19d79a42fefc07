"""That attention on this GPU computes what it should: cuDNN in bfloat16 against dense attention in float32.

First the patterns by themselves, with bounds from bfloat16's own rounding; then a small Qwen3-VL with pictures, where
cuDNN may be little farther from the float32 model than plain XLA in bfloat16 is, and captions may part only where two
tokens are equally good. And that every program with whole sequences in it really calls cuDNN. On Hopper also the kernel
for new tokens, against the plain softmax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.small_policy import policy_config
from tests.kernels.attention.new_tokens import Sizes, caches, error, plain
from vcap_jax.grpo.objective import ObjectiveConfig, step_totals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.kernels import attention
from vcap_jax.models import family
from vcap_jax.models.policy import split_model, vision_encoder
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisionInputs
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.rollout.placement import local_mesh
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.world.tokenizer import train_tokenizer, training_texts

RMS_BOUND, LARGEST_BOUND = 0.01, 0.03
"""Of an array's error, relative to the array's own root mean square and largest number. bfloat16 rounds by up to 0.004;
weights, outputs and gradients are each rounded once or twice on the way."""
EXCESS = 1.5
"""How much farther from float32 than plain XLA in bfloat16 cuDNN may be."""
END = 1


@dataclass(frozen=True)
class Check:
    """What was compared, how large the difference is, and how large it may be."""

    name: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        return bool(self.value <= self.bound)


GROUPS = ((640, 4, 192, (640, 333)), (512, 8, 128, (509, 0)), (2048, 8, 256, (2048, 1)))
"""Prompt tokens, captions, tokens of each, and the real prompt tokens of two groups."""


def attention_checks(kernel: attention.Kernel, groups: Sequence[Any] = GROUPS) -> Iterator[Check]:
    """The grouped pattern for uneven lengths and an empty group, forward and backward; vision's frames."""
    for prompt, group, tokens, lengths in groups:
        count = prompt + group * tokens

        def grouped(
            kernel: attention.Kernel, q: Any, k: Any, v: Any, of: Any = (lengths, prompt, group)
        ) -> Any:
            return attention.grouped(q, k, v, jnp.asarray(of[0], jnp.int32), of[1], of[2], kernel)

        arrays = [_normal(seed, (2, count, heads, 128)) for seed, heads in enumerate((16, 4, 4, 16))]
        yield from _against_dense(f"grouped {prompt} + {group} x {tokens}", kernel, grouped, arrays)

    def frames(kernel: attention.Kernel, q: Any, k: Any, v: Any) -> Any:
        return attention.frames(q, k, v, jnp.asarray((256, 100, 1), jnp.int32), kernel)

    arrays = [_normal(seed, (3, 256, 16, 72)) for seed in range(4)]
    yield from _against_dense("frames", kernel, frames, arrays)


NEW_TOKENS = (
    Sizes(1, 8, 32, 8, prompt=4096, start=2048, late=1024),
    Sizes(6, 8, 32, 8, prompt=1536, start=1024, late=512),
    Sizes(2, 16, 32, 8, prompt=300, start=100, late=30),
    Sizes(3, 1, 16, 8, prompt=640, start=64, late=64),
    Sizes(2, 4, 16, 8, prompt=576, start=0, late=1),
)
"""Prompts and captions of uneven lengths, every third caption ended; blocks whole and not, one token and thousands."""
NEW_TOKEN_BOUND = 2.0**-6
"""Of the largest error, relative to the largest number: bfloat16 rounds weights and output once each."""


def decode_checks(tokens: attention.TokenKernel, sizes: Sequence[Sizes] = NEW_TOKENS) -> Iterator[Check]:
    """New tokens over shared prompts, against the plain softmax in float64."""
    for of in sizes:
        arguments = caches(of)
        lowered = jax.jit(tokens.decode).lower(*arguments).compile()
        attention.require_decoding(
            attention.Paired(sequences=attention.CHUNKED, tokens=tokens), _text(lowered)
        )
        value = error(lowered(*arguments), plain(*arguments), arguments[2])
        name = f"new tokens, {of.groups} x {of.captions}, {of.prompt} + {of.start} + {of.late}"
        yield Check(name, value, NEW_TOKEN_BOUND)


def _text(program: jax.stages.Compiled) -> str:
    found = program.as_text()
    assert found is not None  # CPU and GPU give it
    return found


def _normal(seed: int, shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), jnp.bfloat16)


def _against_dense(
    name: str, kernel: attention.Kernel, pattern: Callable[..., Any], arrays: list[jax.Array]
) -> list[Check]:
    def both(kernel: attention.Kernel) -> Any:
        def run(*arrays: jax.Array) -> Any:
            out, pull = jax.vjp(lambda *qkv: pattern(kernel, *qkv), *arrays[:3])
            return (out, *pull(arrays[3].astype(out.dtype)))

        return jax.jit(run)

    lowered = both(kernel).lower(*arrays).compile()
    attention.require_kernel(kernel, _text(lowered))
    with jax.default_matmul_precision("highest"):
        expected = both(attention.kernel("dense"))(*(x.astype(jnp.float32) for x in arrays))
    checks = []
    for what, ours, theirs in zip(
        ("output", "d queries", "d keys", "d values"), lowered(*arrays), expected, strict=True
    ):
        ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
        error = np.where(np.isfinite(ours), ours - theirs, np.inf)
        checks.append(Check(f"{name}, {what}, rms", float(_rms(error) / _rms(theirs)), RMS_BOUND))
        largest = float(np.abs(error).max() / np.abs(theirs).max())
        checks.append(Check(f"{name}, {what}, largest", largest, LARGEST_BOUND))
    return checks


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


@dataclass(frozen=True)
class Outcome:
    """What a model makes of the same prompts: greedy captions [B, G, T], log-probabilities of given ones, gradients."""

    captions: np.ndarray
    logprobs: np.ndarray
    gradients: list[np.ndarray]
    score: Callable[[np.ndarray], np.ndarray]


def model_checks(kernel: attention.Kernel) -> list[Check]:
    """A small Qwen3-VL with pictures: ``kernel`` and blocks in plain XLA, both in bfloat16, against dense float32."""
    config = Qwen3VLConfig.from_dict(policy_config(train_tokenizer(training_texts())))
    # Wider than the usual start, so that tokens differ in probability.
    config = dataclasses.replace(config, text=dataclasses.replace(config.text, initializer_range=0.1))
    with jax.default_matmul_precision("highest"):
        exact = outcome(config, attention.kernel("dense"), jnp.float32)
    # Blocks smaller than the sequences, and no path with all scores in memory.
    plain = outcome(config, attention.Chunked(queries=256, scores=1 << 17, whole=0), jnp.bfloat16)
    ours = outcome(config, kernel, jnp.bfloat16)
    checks = []
    for what, of in (
        ("log-probabilities", lambda o: [o.logprobs]),
        ("gradients", lambda o: o.gradients),
    ):
        errors = [
            _rms(np.concatenate([(a - b).ravel() for a, b in zip(of(o), of(exact), strict=True)]))
            for o in (ours, plain)
        ]
        checks.append(
            Check(f"model, {what}, error relative to plain bfloat16's", errors[0] / errors[1], EXCESS)
        )
    band = 6 * _rms(plain.logprobs - exact.logprobs)
    checks.append(Check("model, captions part only at ties", _largest_gap(exact, ours, plain), band))
    return checks


def _largest_gap(exact: Outcome, ours: Outcome, plain: Outcome) -> float:
    """Where captions part: how much more probable one of the two tokens is, in float32."""
    with jax.default_matmul_precision("highest"):
        scored = [exact.score(o.captions) for o in (ours, plain)]
    gap = 0.0
    for place in np.ndindex(ours.captions.shape[:2]):
        apart = np.flatnonzero(ours.captions[place] != plain.captions[place])
        if len(apart):
            gap = max(gap, float(abs(scored[0][place][apart[0]] - scored[1][place][apart[0]])))
    return gap


def outcome(config: Qwen3VLConfig, kernel: attention.Kernel, dtype: Any) -> Outcome:
    """Runs the trainer's and the sampler's own programs. Raises UnsupportedAttention if one lacks the kernel."""
    model = Qwen3VL(config, rngs=nnx.Rngs(0), dtype=dtype, kernel=kernel)
    graphdef, trainable, frozen = split_model(cast(family.CaptionModel, model), ("visual",))
    programs = UpdatePrograms(
        graphdef, ObjectiveConfig(beta=0.0), optax.sgd(1.0), temperature=1.0, logprob_chunk=64
    )
    encode = vision_encoder(graphdef)
    prompt, batch = _prompts(config), _captions(config)
    features = encode(trainable, frozen, prompt)
    totals = step_totals(batch.lengths, batch.contributes)
    zeros = jax.tree.map(jnp.zeros_like, trainable)
    update = (trainable, frozen, zeros, prompt, features, batch, totals, None, None, None)
    sampler = GroupSampler(
        graphdef,
        RolloutConfig(
            group_size=2,
            max_completion_length=64,
            groups_per_batch=len(prompt.lengths),
            sampling=SamplingConfig(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0),
        ),
        end_ids=[END],
        banned_ids=[END],
        mesh=local_mesh(devices=jax.devices()[:1]),
    )
    for lowered in (
        encode.lower(trainable, frozen, prompt),
        programs.logprobs.lower(trainable, frozen, prompt, features, batch.tokens),
        programs.accumulate.lower(*update),
        sampler.abstract_calls(trainable, frozen, prompt, features).fill(),
    ):
        attention.require_kernel(kernel, _text(lowered.compile()))

    def score(tokens: np.ndarray) -> np.ndarray:
        return np.asarray(programs.logprobs(trainable, frozen, prompt, features, jnp.asarray(tokens)))

    groups = sampler.stream(trainable, frozen, prompt, features, seed=0, step=0, group_ids=range(3))
    captions = np.stack([group.tokens for group in sorted(groups, key=lambda group: group.index)])
    logprobs = score(np.asarray(batch.tokens))
    gradients = programs.accumulate(*update)[0]
    return Outcome(captions, logprobs, [np.asarray(x, np.float32) for x in jax.tree.leaves(gradients)], score)


PROMPT, VISUAL = 320, 256


def _prompts(config: Qwen3VLConfig) -> family.PromptBatch:
    """Three prompts of uneven lengths, each with a picture of noise."""
    rng, lengths = np.random.default_rng(2), np.asarray((320, 300, 261), np.int32)
    side = int((VISUAL * config.vision.spatial_merge_size**2) ** 0.5)
    vision = config.vision
    patches = rng.integers(0, 256, (3, 1, side**2, vision.in_channels * vision.patch_size**2), np.uint8)
    visual = np.full((3, PROMPT), -1, np.int32)
    visual[:, 2 : 2 + VISUAL] = np.arange(VISUAL)
    batch = PromptBatch(
        tokens=rng.integers(2, config.text.vocab_size, (3, PROMPT), dtype=np.int32),
        positions=np.ascontiguousarray(np.broadcast_to(np.arange(PROMPT, dtype=np.int32), (3, 3, PROMPT))),
        lengths=lengths,
        visual_index=visual,
        vision=VisionInputs(patches=patches, grids=np.full((3, 1, 2), side, np.int32)),
    )
    return cast(family.PromptBatch, batch)  # as it is known outside its family


def _captions(config: Qwen3VLConfig) -> CaptionBatch:
    rng = np.random.default_rng(3)
    return CaptionBatch(
        tokens=jnp.asarray(rng.integers(2, config.text.vocab_size, (3, 2, 64), dtype=np.int32)),
        lengths=jnp.asarray(rng.integers(20, 65, (3, 2), dtype=np.int32)),
        advantages=jnp.asarray(rng.standard_normal((3, 2)).astype(np.float32)),
        contributes=jnp.ones((3, 2), bool),
    )
