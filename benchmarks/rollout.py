"""Rollout of this package against transformers' generate and a vLLM server: same weights, same prompts, one machine.

    python benchmarks/rollout.py --torch-python /path/to/python --out runs/rollout
    python benchmarks/rollout.py --torch-python ... --vllm /opt/vllm/bin/vllm --out runs/rollout

The small random Qwen3-VL of ``small_policy.py`` in float32 draws G captions of exactly 192 tokens for each of a few
pictures, with the paper's sampling rules. --torch-python is an environment with torch and transformers; ``generate``
gets one picture at a time with num_return_sequences=G, vLLM all requests at once with n=G, this package all groups
as one step. Times are from the pictures' files to the last token, weights loaded and programs compiled; vLLM gets the
pictures as the rollout engine sends them, read and resized here and then as PNG, which its server prepares once more.
Greedy captions must be equal. The three never run side by side. This package and ``generate`` take turns, --rounds
times, vLLM draws as often before its server is stopped; the least time of each is reported, since what else a machine
does only adds to it. The vision tower's part is reported apart: this package and ``generate`` both run it once per
picture, and what the captions of a group share is in the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from benchmarks.small_policy import picture, write_policy
from benchmarks.vllm_parity import processor_of, rules_of, served
from vcap_jax.data.examples import Example, example_loader
from vcap_jax.data.manifest import read_manifest
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.policy import ModelConfig, Policy, vision_encoder
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.rollout.config import VllmConfig
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.rollout.slots import PromptGroups
from vcap_jax.rollout.vllm_request import group_request
from vcap_jax.rollout.vllm_server import VllmServer, rollout_session
from vcap_jax.run.model_loading import load_policy
from vcap_jax.training.compile_counter import CompileCounter

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Describe the image."
Readers = Sequence[Callable[[], Example]]
"""Of each picture: reads its file and makes a prompt of it, which is a part of the work that is timed."""
GREEDY = SamplingConfig(temperature=0.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
DRAWN = SamplingConfig(temperature=1.0, top_p=0.9, top_k=50, repetition_penalty=1.05)


@dataclass(frozen=True)
class Side:
    """greedy: a caption per picture; seconds: of all groups; vision: those of the vision tower among them, if known;
    tokens: of all their captions; turns: seconds of every time that the work was done."""

    greedy: list[list[int]]
    seconds: float
    tokens: int
    vision: float | None = None
    turns: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def quickest(sides: Sequence[Side]) -> Side:
    """Of several times of the same work."""
    least = min(sides, key=lambda side: side.seconds)
    return replace(least, turns=tuple(side.seconds for side in sides))


def prepare(folder: Path, visual_tokens: int, pictures: int) -> list[Path]:
    """The model and the pictures."""
    write_policy(folder / "model", visual_tokens=visual_tokens)
    files, rows = [], []
    for index in range(pictures):
        files.append(folder / f"{index:04}.png")
        picture(visual_tokens, seed=index).save(files[-1])
        rows.append(json.dumps({"id": files[-1].stem, "image": str(files[-1])}) + "\n")
    (folder / "manifest.jsonl").write_text("".join(rows))
    return files


def load(folder: Path) -> tuple[Policy, Readers]:
    """The policy on our side, and what makes its prompts."""
    placement = Placement.build(MeshConfig())
    policy = load_policy(ModelConfig(path=str(folder / "model")), placement=placement)
    reader = example_loader(policy.processor, image_prompt=PROMPT, video_prompt=PROMPT, judged=False)
    return policy, [partial(reader, sample) for sample in read_manifest(folder / "manifest.jsonl")]


class Ours:
    """The group sampler on the policy's prompts, warm: both programs have run once."""

    def __init__(self, policy: Policy, readers: Readers, options: argparse.Namespace) -> None:
        self._policy, self._readers = policy, readers
        self._encode = vision_encoder(policy.graphdef)
        self._greedy = self._sampler(GREEDY, 1, options.greedy_tokens, options.prefill_chunk)
        self._drawn = self._sampler(DRAWN, options.group_size, options.tokens, options.prefill_chunk)
        greedy, _ = self._draw(self._greedy)
        self._captions = [greedy[i][0].tolist() for i in range(len(readers))]
        self._draw(self._drawn)

    def _sampler(self, sampling: SamplingConfig, group: int, tokens: int, prefill_chunk: int) -> GroupSampler:
        processor = self._policy.processor
        config = RolloutConfig(
            group_size=group,
            max_completion_length=tokens,
            groups_per_batch=len(self._readers),
            prefill_chunk=prefill_chunk,
            sampling=sampling,
        )
        # Ends are banned, as they are for the others, so that every caption takes all its tokens.
        ends = processor.eos_token_ids
        banned = [*processor.banned_token_ids, *ends]
        return GroupSampler(self._policy.graphdef, config, end_ids=ends, banned_ids=banned)

    def _draw(self, sampler: GroupSampler) -> tuple[dict[int, np.ndarray], float]:
        """Captions, and the seconds that the vision tower took."""
        policy, prompts = self._policy, [read().prompt for read in self._readers]
        buckets = Buckets(token_multiple=64, patch_multiple=256)
        batch = policy.processor.collate(prompts, buckets)
        begin = time.perf_counter()
        features = jax.block_until_ready(self._encode(policy.trainable, policy.frozen, batch))
        vision = time.perf_counter() - begin
        groups = PromptGroups(batch, features, range(len(prompts)))
        found = sampler.stream_batches(policy.trainable, policy.frozen, [groups], seed=0, step=0)
        return {group.index: group.tokens for group in found}, vision

    def timed(self) -> Side:
        """Raises SystemExit if anything was compiled."""
        with CompileCounter() as compiles:
            begin = time.perf_counter()
            drawn, vision = self._draw(self._drawn)
            seconds = time.perf_counter() - begin
        if compiles.count:
            raise SystemExit("the timed step compiled: its time is not that of steady state")
        return Side(self._captions, seconds, sum(tokens.size for tokens in drawn.values()), vision)


def transformers(folder: Path, files: Sequence[Path], options: argparse.Namespace) -> Side:
    """``generate`` in a process of its own."""
    command = [options.torch_python, str(ROOT / "benchmarks" / "generate_worker.py")]
    command += [f"--model={folder / 'model'}", f"--prompt={PROMPT}", f"--group-size={options.group_size}"]
    command += [f"--tokens={options.tokens}", f"--greedy-tokens={options.greedy_tokens}"]
    command += [f"--threads={os.cpu_count()}", "--pictures", *map(str, files)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"'):
            found |= json.loads(line)
    return Side(found["greedy"], found["seconds"], found["tokens"], found["vision"])


def vllm(folder: Path, policy: Policy, readers: Readers, options: argparse.Namespace) -> Side:
    """A server of its own; requests as the rollout engine makes them, but no token ends a caption."""
    # Left alone, vLLM for CPUs keeps a core for its front end: on two cores half of the machine.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    options.more = ["--max-model-len=8192", "--no-enable-prefix-caching", *options.vllm_option]
    with served(folder / "model", "float32", options, folder / "vllm.log") as url:
        return asyncio.run(_ask(url, policy, readers, options))


async def _ask(url: str, policy: Policy, readers: Readers, options: argparse.Namespace) -> Side:
    async with rollout_session() as session:
        server = VllmServer(
            url, session, VllmConfig(timeout_s=1200, load_timeout_s=120, attempts=1), say=print
        )
        await server.check(policy.processor.eos_token_ids[0])

        async def one(index: int, sampling: SamplingConfig, captions: int, tokens: int) -> list[list[int]]:
            rules = rules_of(policy, sampling, captions, tokens)
            example = readers[index]()
            body = group_request(
                example.prompt,
                example.request,
                rules,
                processor_of(policy),
                model=server.model,
                seed=index,
            )
            # min_tokens bars ends of text from being drawn, as min_new_tokens does.
            answer: Mapping[str, Any] = await server.complete({**body, "min_tokens": tokens})
            return [choice["token_ids"] for choice in sorted(answer["choices"], key=lambda c: c["index"])]

        async def all_of(sampling: SamplingConfig, captions: int, tokens: int) -> list[list[list[int]]]:
            asked = (one(i, sampling, captions, tokens) for i in range(len(readers)))
            return list(await asyncio.gather(*asked))

        greedy = [captions[0] for captions in await all_of(GREEDY, 1, options.greedy_tokens)]
        await all_of(DRAWN, options.group_size, 8)
        sides = []
        for _ in range(options.rounds):
            begin = time.perf_counter()
            drawn = await all_of(DRAWN, options.group_size, options.tokens)
            seconds = time.perf_counter() - begin
            sides.append(
                Side(greedy, seconds, sum(len(caption) for captions in drawn for caption in captions))
            )
    return quickest(sides)


def same(ours: Side, theirs: Side, name: str) -> None:
    """Raises SystemExit unless the greedy captions are equal."""
    for index, (left, right) in enumerate(zip(ours.greedy, theirs.greedy, strict=True)):
        if left != right:
            place = next(i for i, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1])
            raise SystemExit(
                f"{name}: the greedy caption of picture {index} differs from ours at token {place}"
            )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-python", required=True, help="Python with torch and transformers")
    parser.add_argument("--vllm", help="the vllm executable; left out if not given")
    parser.add_argument(
        "--vllm-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="of vllm serve, again for more: --vllm-option=--no-enforce-eager",
    )
    parser.add_argument("--out", type=Path, required=True, help="new folder for models and the result")
    parser.add_argument("--visual-tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=192, help="of every caption")
    parser.add_argument("--greedy-tokens", type=int, default=32, help="of the captions that are compared")
    parser.add_argument("--pictures", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2, help="times that each side draws")
    parser.add_argument("--prefill-chunk", type=int, default=RolloutConfig().prefill_chunk)
    parser.add_argument("--port", type=int, default=8191)
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="SECONDS")
    options = parser.parse_args()
    options.cpu = True
    options.out.mkdir(parents=True)
    results = []
    print(
        f"{'visual tokens':>14}  {'side':<14}{'tokens/s':>10}{'ours / it':>11}{'seconds':>10}{'vision':>9}",
        flush=True,
    )
    for visual_tokens in options.visual_tokens:
        folder = options.out / str(visual_tokens)
        folder.mkdir()
        files = prepare(folder, visual_tokens, options.pictures)
        policy, readers = load(folder)
        here = Ours(policy, readers, options)
        turns = [(here.timed(), transformers(folder, files, options)) for _ in range(options.rounds)]
        mine = quickest([turn[0] for turn in turns])
        sides = {"transformers": quickest([turn[1] for turn in turns])}
        if options.vllm:
            sides["vllm"] = vllm(folder, policy, readers, options)
        for name, side in sides.items():
            same(mine, side, name)
        for name, side in {"this package": mine, **sides}.items():
            vision = "" if side.vision is None else f"{side.vision:.2f}"
            figures = f"{side.rate:>10.0f}{mine.rate / side.rate:>11.1f}{side.seconds:>10.2f}{vision:>9}"
            print(f"{visual_tokens:>14}  {name:<14}{figures}", flush=True)
            results.append(
                {
                    "visual_tokens": visual_tokens,
                    "side": name,
                    "seconds": side.seconds,
                    "vision_s": side.vision,
                    "tokens": side.tokens,
                    "tokens_per_s": side.rate,
                    "ratio": mine.rate / side.rate,
                    "turns_s": side.turns,
                }
            )
        (options.out / "rollout.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
