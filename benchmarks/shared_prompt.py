"""What sharing a group's prompt saves: time and memory of update and rollout, with it and without.

    python benchmarks/shared_prompt.py --out runs/shared_prompt.json

The same captions of the same prompts go through the same programs twice: once as groups of G, once as G groups of one,
each with its own copy of the prompt, which is what a trainer does that repeats prompts. Gradients and greedy captions
are compared first; then both are timed in turns, and the quickest of each counts. Lengths have the proportions of the
paper's runs, scaled to what a CPU does in seconds. FLOPs are counted from the sizes (products with weights, attention
over the pairs that see each other, the vocabulary); bytes are XLA's own count of a program's temporaries.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.small_policy import policy_config
from vcap_jax.grpo.objective import ObjectiveConfig, step_totals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.models import family
from vcap_jax.models.policy import attention_kernel, split_model
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import PromptBatch
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.world.tokenizer import train_tokenizer, training_texts

END = 1
"""A token that is banned: every caption takes all its tokens, so that both ways do the same work."""


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens. paper: the lengths these stand for."""

    name: str
    prompt: int
    caption: int
    paper: str


SHAPES = (
    Shape("image", 2048, 384, "8,192 + 8 x 1,536"),
    Shape("image, longest", 3584, 1024, "14,000 + 8 x 4,096"),
    Shape("video", 6656, 512, "26,624 + 8 x 2,048"),
)


class Lengths(Protocol):
    """What FLOPs are counted from, in tokens."""

    @property
    def prompt(self) -> int: ...

    @property
    def caption(self) -> int: ...


def forward_flops(config: Qwen3VLConfig, shape: Lengths, group: int, copies: int) -> float:
    """Multiplications and additions of one group's forward pass with its prompt computed ``copies`` times."""
    text = config.text
    heads = (text.num_attention_heads + 2 * text.num_key_value_heads) * text.head_dim
    out = text.num_attention_heads * text.head_dim
    weights = text.hidden_size * (heads + out + 3 * text.intermediate_size)
    tokens = copies * shape.prompt + group * shape.caption
    pairs = copies * shape.prompt**2 / 2 + group * shape.caption * (shape.prompt + shape.caption / 2)
    layers = text.num_hidden_layers * (2 * tokens * weights + 4 * out * pairs)
    return layers + 2 * group * shape.caption * text.hidden_size * text.vocab_size


def prompts(shape: Shape, rows: int, vocabulary: int) -> family.PromptBatch:
    """The same text prompt ``rows`` times: the vision tower runs once per picture in any case."""
    tokens = np.random.default_rng(0).integers(2, vocabulary, shape.prompt, dtype=np.int32)
    positions = np.broadcast_to(np.arange(shape.prompt, dtype=np.int32), (rows, 3, shape.prompt))
    batch = PromptBatch(
        tokens=np.tile(tokens, (rows, 1)),
        positions=positions,
        lengths=np.full(rows, shape.prompt, np.int32),
        visual_index=np.full((rows, shape.prompt), -1, np.int32),
        vision=None,
    )
    return cast(family.PromptBatch, batch)  # as it is known outside its family


def captions(shape: Shape, group: int, vocabulary: int, shared: bool) -> CaptionBatch[np.ndarray]:
    """The captions of one group, as one group of G or as G groups of one."""
    rng = np.random.default_rng(1)
    batch = CaptionBatch(
        tokens=rng.integers(2, vocabulary, (1, group, shape.caption), dtype=np.int32),
        lengths=rng.integers(shape.caption // 2, shape.caption + 1, (1, group), dtype=np.int32),
        advantages=rng.normal(size=(1, group)).astype(np.float32),
        contributes=np.ones((1, group), bool),
    )
    return batch if shared else jax.tree.map(lambda x: np.swapaxes(x, 0, 1), batch)


def seconds(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The quickest of several calls of each, in turns, all of which have been compiled."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            begin = time.perf_counter()
            jax.block_until_ready(call())
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def update(
    graphdef: Any, config: Qwen3VLConfig, trainable: Any, frozen: Any, shape: Shape, group: int, repeats: int
) -> dict[str, Any]:
    """Gradient of one group's captions."""
    programs = UpdatePrograms(
        graphdef, ObjectiveConfig(beta=0.0), optax.sgd(1.0), temperature=1.0, logprob_chunk=512
    )
    zeros = jax.tree.map(jnp.zeros_like, trainable)
    vocabulary = config.text.vocab_size
    figures: dict[str, Any] = {}
    calls, gradients = {}, {}
    for name, shared in (("shared", True), ("unshared", False)):
        batch = captions(shape, group, vocabulary, shared)
        prompt = prompts(shape, 1 if shared else group, vocabulary)
        totals = step_totals(jnp.asarray(batch.lengths), jnp.asarray(batch.contributes))
        more = (prompt, None, batch, totals, None, None)
        memory = programs.accumulate.lower(trainable, frozen, zeros, *more).compile().memory_analysis()
        assert memory is not None  # CPU and GPU tell it

        def call(more: Any = more, programs: UpdatePrograms = programs) -> Any:
            # The sum that is added to is donated, so every call brings its own.
            return programs.accumulate(trainable, frozen, jax.tree.map(jnp.copy, zeros), *more)

        calls[name] = call
        gradients[name] = jax.tree.leaves(call()[0])
        figures[name] = {
            "temporary_bytes": memory.temp_size_in_bytes,
            # Forward and twice as much backward; nothing is computed again without rematerialisation.
            "flops": 3 * forward_flops(config, shape, group, 1 if shared else group),
        }
    for name, least in seconds(calls, repeats).items():
        figures[name]["seconds"] = least
    scale = max(float(jnp.abs(x).max()) for x in gradients["unshared"])
    pairs = zip(gradients["shared"], gradients["unshared"], strict=True)
    figures["gradient_difference"] = max(float(jnp.abs(a - b).max()) for a, b in pairs) / scale
    return figures


def rollout(
    graphdef: Any, config: Qwen3VLConfig, trainable: Any, frozen: Any, shape: Shape, group: int, repeats: int
) -> dict[str, Any]:
    """Prefill and greedy decoding of one group's captions."""
    figures: dict[str, Any] = {}
    calls, drawn = {}, {}
    for name, shared in (("shared", True), ("unshared", False)):
        rows = 1 if shared else group
        sampler = GroupSampler(
            graphdef,
            RolloutConfig(
                group_size=group // rows,
                max_completion_length=shape.caption,
                groups_per_batch=rows,
                sampling=SamplingConfig(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0),
            ),
            end_ids=[END],
            banned_ids=[END],
        )
        prompt = jax.tree.map(jnp.asarray, prompts(shape, rows, config.text.vocab_size))

        def call(
            sampler: GroupSampler = sampler, prompt: family.PromptBatch = prompt, rows: int = rows
        ) -> Any:
            groups = sampler.stream(trainable, frozen, prompt, None, seed=0, step=0, group_ids=range(rows))
            return [found.tokens for found in sorted(groups, key=lambda found: found.index)]

        calls[name] = call
        drawn[name] = np.concatenate(call())
        figures[name] = {"flops": forward_flops(config, shape, group, 1 if shared else group)}
    for name, least in seconds(calls, repeats).items():
        figures[name]["seconds"] = least
    figures["same_captions"] = bool((drawn["shared"] == drawn["unshared"]).all())
    return figures


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--only", choices=[shape.name for shape in SHAPES], action="append")
    parser.add_argument("--attention", default="auto", help="the kernel, as model.attention names it")
    options = parser.parse_args()
    config = Qwen3VLConfig.from_dict(policy_config(train_tokenizer(training_texts())))
    kernel = attention_kernel(options.attention, config, jnp.float32, jax.devices()[0])
    print(f"attention: {kernel.name}")
    model = Qwen3VL(config, rngs=nnx.Rngs(0), dtype=jnp.float32, kernel=kernel)
    graphdef, trainable, frozen = split_model(cast(family.CaptionModel, model), ("visual",))
    results = []
    print(f"{'':<16}{'':<10}{'shared':>10}{'unshared':>10}{'ratio':>8}{'FLOP ratio':>12}{'memory ratio':>14}")
    for shape in SHAPES:
        if options.only and shape.name not in options.only:
            continue
        for name, measure in (("update", update), ("rollout", rollout)):
            figures = measure(graphdef, config, trainable, frozen, shape, options.group, options.repeats)
            results.append({"shape": asdict(shape), "what": name, "attention": kernel.name, **figures})
            shared, unshared = figures["shared"], figures["unshared"]
            line = f"{shape.name:<16}{name:<10}{shared['seconds']:>8.2f} s{unshared['seconds']:>8.2f} s"
            line += (
                f"{unshared['seconds'] / shared['seconds']:>8.2f}{unshared['flops'] / shared['flops']:>12.2f}"
            )
            if "temporary_bytes" in shared:
                line += f"{unshared['temporary_bytes'] / shared['temporary_bytes']:>14.2f}"
            print(line, flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
