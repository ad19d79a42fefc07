"""Holds a served policy against the JAX sampler: the same captions, the same log-probabilities.

    python benchmarks/vllm_parity.py --vllm /opt/vllm/bin/vllm                    # the embedded model, 50 scenes each
    python benchmarks/vllm_parity.py --vllm ... --model runs/embedded-image --modalities image --dtypes float32

The model is exported by ``launch/convert.py`` and served by a real vLLM, started by ``launch/serve_rollout.py``, once
for each precision, in which the JAX side computes too. On every held-out scene:

* greedy: one caption by each side; the share of scenes with the same token ids. Where they part, the gap between the
  two sides' tokens in JAX log-probability is given: two arithmetics may part at a tie.
* log-probabilities of the server's greedy tokens, its own and JAX's, under the policy's distribution.
* log-probabilities of tokens the server drew with temperature, top-p, top-k and repetition penalty, under the
  distribution after those rules. A token at the border of top-k or top-p may be kept by one side alone; its share is
  given.

Prints a table and writes JSON. Exits with 1 if float32 captions differ, if any log-probability differs by more than
1e-3 in float32, or if the mean difference exceeds 2e-2 in bfloat16. There no bound holds for every token: a logit of
16 is known to 0.06. The share of tokens within the bound is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np
from flax import nnx

from vcap_jax.configuration import load_config
from vcap_jax.data.examples import Example, example_loader
from vcap_jax.data.manifest import read_manifest
from vcap_jax.grpo.sampled_logprobs import sampled_logprobs
from vcap_jax.models.family import VllmProcessor
from vcap_jax.models.policy import Policy
from vcap_jax.models.qwen3_vl.two_towers import TwoTowerModel
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.rollout.config import VllmConfig
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig, SampledGroup
from vcap_jax.rollout.sampling import SamplingConfig, sampling_scores
from vcap_jax.rollout.vllm_request import GroupRules, group_request, group_seed, read_group
from vcap_jax.rollout.vllm_server import VllmServer, rollout_session
from vcap_jax.run.config import RunConfig
from vcap_jax.run.model_loading import checkpoint_folder, load_policy
from vcap_jax.world.config import WorldConfig
from vcap_jax.world.splits import prepare_embedded_data

ROOT = Path(__file__).resolve().parent.parent
GREEDY = SamplingConfig(temperature=0.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
DRAWN = SamplingConfig(temperature=1.1, top_p=0.9, top_k=50, repetition_penalty=1.05)
DRAWN_CAPTIONS = 4
HEADER = (
    "modality",
    "dtype",
    "same captions",
    "greedy: mean",
    "max",
    "within",
    "drawn: mean",
    "max",
    "within",
)
LIMITS = {"float32": 1e-3, "bfloat16": 2e-2}


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """|difference| of log-probabilities in nats. within: share of tokens that differ by no more than the precision's
    bound; outside: share of tokens that JAX's rules exclude."""

    tokens: int
    mean: float
    p99: float
    largest: float
    within: float
    correlation: float
    outside: float


@dataclass(frozen=True, kw_only=True)
class Parity:
    """One modality in one precision. gaps: for each greedy caption that differs, by how much JAX prefers its own token
    where it does most, in nats."""

    modality: str
    dtype: str
    scenes: int
    same_captions: int
    gaps: tuple[float, ...]
    greedy: Agreement
    drawn: Agreement

    @property
    def holds(self) -> bool:
        sides = (self.greedy, self.drawn)
        if self.dtype == "bfloat16":
            return all(side.mean <= LIMITS[self.dtype] for side in sides)
        return self.same_captions == self.scenes and all(side.within == 1 for side in sides)


def export(model: Path, target: Path, dtype: str) -> None:
    """Any model folder or run through ``launch/convert.py`` to a Hugging Face folder."""

    def convert(*arguments: str) -> None:
        command = [sys.executable, str(ROOT / "launch" / "convert.py"), *arguments]
        subprocess.run(command, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})

    if (model / "config.json").exists():
        with tempfile.TemporaryDirectory() as folder:
            convert("from-hf", str(model), folder + "/checkpoint")
            convert("to-hf", folder + "/checkpoint", str(target), "--dtype", dtype)
    else:
        convert("to-hf", str(model), str(target), "--dtype", dtype)


@contextmanager
def served(folder: Path, dtype: str, args: argparse.Namespace, log: Path) -> Iterator[str]:
    """A rollout server on ``folder``; its address. Raises RuntimeError with the log's end if it does not come up."""
    command = [
        sys.executable,
        str(ROOT / "launch" / "serve_rollout.py"),
        f"--vllm={args.vllm}",
        f"--port={args.port}",
        f"--folder={folder.parent / 'served'}",
        f"model.path={folder}",
        f"model.dtype={dtype}",
        *(["--cpu"] if args.cpu else []),
        "--",
        # Both modalities from one server.
        '--limit-mm-per-prompt={"image":1,"video":1}',
        "--max-model-len=1024",
        *args.more,
    ]
    url = f"http://127.0.0.1:{args.port}"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + args.start_timeout
            while not _healthy(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                    raise RuntimeError(f"the server did not come up; the end of {log}:\n{tail}")
                time.sleep(2)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def processor_of(policy: Policy) -> VllmProcessor:
    """The input side of a policy that vLLM serves. Raises SystemExit for one of another family."""
    processor = policy.processor
    if not isinstance(processor, VllmProcessor):
        raise SystemExit(f"vLLM does not know the model family {policy.family.name}")
    return processor


def rules_of(policy: Policy, sampling: SamplingConfig, captions: int, tokens: int) -> GroupRules:
    config = RolloutConfig(sampling=sampling, group_size=captions, max_completion_length=tokens)
    return GroupRules.of(config, processor_of(policy))


async def ask(url: str, policy: Policy, examples: Sequence[Example], rules: GroupRules) -> list[SampledGroup]:
    """The server's captions of all examples, through the requests of the rollout engine."""
    async with rollout_session() as session:
        server = VllmServer(url, session, VllmConfig(load_timeout_s=60, attempts=1), say=print)
        await server.check(policy.processor.eos_token_ids[0])

        async def one(index: int, example: Example) -> SampledGroup:
            body = group_request(
                example.prompt,
                example.request,
                rules,
                processor_of(policy),
                model=server.model,
                seed=group_seed(0, 0, index),
            )
            name = f"scene {example.sample.id}"
            return read_group(await server.complete(body), example.prompt, rules, index=index, name=name)

        return list(await asyncio.gather(*(one(i, example) for i, example in enumerate(examples))))


class JaxSide:
    """Greedy captions and log-probabilities of given captions, batch by batch. tokens: of a caption at most."""

    def __init__(self, policy: Policy, config: RunConfig, tokens: int) -> None:
        self._policy, self._config, self._tokens = policy, config, tokens
        self._rows = 8
        rollout = RolloutConfig(
            group_size=1, max_completion_length=tokens, groups_per_batch=self._rows, sampling=GREEDY
        )
        processor = policy.processor
        self._sampler = GroupSampler(
            policy.graphdef, rollout, end_ids=processor.eos_token_ids, banned_ids=processor.banned_token_ids
        )
        self._model = nnx.jit(lambda model, vision: model.encode_vision(vision))
        self._logprobs = jax.jit(self._program, static_argnums=(4,))

    def batches(self, examples: Sequence[Example]) -> Iterator[tuple[int, int, Any, Any]]:
        for first in range(0, len(examples), self._rows):
            part = examples[first : first + self._rows]
            prompt = self._policy.processor.collate(
                [e.prompt for e in part], self._config.data.buckets, batch_size=self._rows
            )
            yield first, len(part), prompt, self._model(self._policy.merge(), prompt.vision)

    def greedy(self, examples: Sequence[Example]) -> list[np.ndarray]:
        captions: list[np.ndarray] = [np.empty(0)] * len(examples)
        for first, count, prompt, features in self.batches(examples):
            groups = self._sampler.stream(
                self._policy.trainable,
                self._policy.frozen,
                prompt,
                features,
                seed=0,
                step=0,
                group_ids=range(count),
            )
            for group in groups:
                captions[first + group.index] = group.tokens[0, : group.lengths[0]]
        return captions

    def logprobs(
        self, examples: Sequence[Example], captions: np.ndarray, sampling: SamplingConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of captions [N, G, T], under the rules, and of the likeliest token in each place: [N, G, T] both."""
        parts = []
        for first, count, prompt, features in self.batches(examples):
            rows = np.zeros((self._rows, *captions.shape[1:]), np.int32)
            rows[:count] = captions[first : first + count]
            state = (self._policy.trainable, self._policy.frozen)
            pair = self._logprobs(state, prompt, features, rows, sampling)
            parts.append([np.asarray(x)[:count] for x in pair])
        given, best = zip(*parts, strict=True)
        return np.concatenate(given), np.concatenate(best)

    def _program(
        self, state: Any, prompt: Any, features: Any, rows: jax.Array, sampling: SamplingConfig
    ) -> tuple[jax.Array, jax.Array]:
        model: object = nnx.merge(self._policy.graphdef, *state)
        if not isinstance(model, TwoTowerModel):
            raise SystemExit(f"{type(model).__name__} gives no logits: this needs a Qwen3-VL or a Qwen3.5")
        hidden, banned = model.caption_hidden(prompt, features, rows), self._policy.processor.banned_token_ids

        def of(tokens: jax.Array, rules: SamplingConfig) -> jax.Array:
            return sampled_logprobs(
                hidden,
                model.head(),
                tokens,
                prompt.tokens,
                prompt.lengths,
                rules,
                banned=banned,
                chunk=rows.shape[-1],
            )

        likeliest = sampling_scores(model.logits(hidden), GREEDY, banned=banned).argmax(-1)
        return of(rows, sampling), of(likeliest, GREEDY)


def given_logprobs(groups: Sequence[SampledGroup]) -> np.ndarray:
    """[N, G, T], the server's own."""
    rows = []
    for group in groups:
        assert group.logprobs is not None  # ``read_group`` refuses an answer without
        rows.append(group.logprobs)
    return np.stack(rows)


def agreement(ours: np.ndarray, groups: Sequence[SampledGroup], dtype: str) -> Agreement:
    """ours: [N, G, T]."""
    theirs = given_logprobs(groups)
    real = np.isfinite(theirs)
    x, y = ours[real].astype(np.float64), theirs[real].astype(np.float64)
    kept = np.isfinite(x)
    difference = np.abs(x - y)[kept]
    return Agreement(
        tokens=int(real.sum()),
        mean=float(difference.mean()),
        p99=float(np.quantile(difference, 0.99)),
        largest=float(difference.max()),
        within=float((difference <= LIMITS[dtype]).mean()),
        correlation=float(np.corrcoef(x[kept], y[kept])[0, 1]),
        outside=float(1 - kept.mean()),
    )


def compare(
    url: str, folder: Path, modality: str, dtype: str, args: argparse.Namespace, data: Path
) -> Parity:
    config = load_config(
        RunConfig,
        [ROOT / "configs" / "embedded" / f"{modality}.yaml"],
        [
            f"model.path={folder}",
            f"model.dtype={dtype}",
            f"model.param_dtype={dtype}",
            f"model.frozen_dtype={dtype}",
        ],
    )
    world = prepare_embedded_data(
        data / modality, config.modality, WorldConfig(train_scenes=1, heldout_scenes=args.scenes)
    )
    policy = load_policy(config.model, placement=Placement.build(MeshConfig()))
    load = example_loader(
        policy.processor, image_prompt=config.data.image_prompt, video_prompt=config.data.video_prompt
    )
    examples = [load(sample) for sample in read_manifest(world.heldout)]
    tokens = config.rollout.max_completion_length
    ours = JaxSide(policy, config, tokens)
    theirs = asyncio.run(ask(url, policy, examples, rules_of(policy, GREEDY, 1, tokens)))
    captions = np.stack([group.tokens for group in theirs])
    logprobs, best = ours.logprobs(examples, captions, GREEDY)
    real = np.isfinite(given_logprobs(theirs))
    gaps = [float((mine - given)[ok].max()) for mine, given, ok in zip(best, logprobs, real, strict=True)]
    pairs = zip(ours.greedy(examples), theirs, strict=True)
    same = [np.array_equal(caption, group.tokens[0, : group.lengths[0]]) for caption, group in pairs]
    drawn = asyncio.run(ask(url, policy, examples, rules_of(policy, DRAWN, DRAWN_CAPTIONS, tokens)))
    drawn_logprobs, _ = ours.logprobs(examples, np.stack([group.tokens for group in drawn]), DRAWN)
    return Parity(
        modality=modality,
        dtype=dtype,
        scenes=len(examples),
        same_captions=sum(same),
        gaps=tuple(gap for gap, equal in zip(gaps, same, strict=True) if not equal),
        greedy=agreement(logprobs, theirs, dtype),
        drawn=agreement(drawn_logprobs, drawn, dtype),
    )


def main() -> int:
    own, more = sys.argv[1:], []
    if "--" in own:
        cut = own.index("--")
        own, more = own[:cut], own[cut + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="embedded", help="a model folder or a run folder")
    parser.add_argument("--vllm", default="vllm", help="the vllm executable")
    parser.add_argument("--cpu", action="store_true", help="the server computes on the CPU")
    parser.add_argument("--port", type=int, default=8190)
    parser.add_argument(
        "--url", help="a server that already serves --model, in the one precision of --dtypes"
    )
    parser.add_argument("--scenes", type=int, default=50)
    parser.add_argument("--modalities", nargs="+", choices=("image", "video"), default=["image", "video"])
    parser.add_argument("--dtypes", nargs="+", choices=tuple(LIMITS), default=list(LIMITS))
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--output", type=Path, default=Path("vllm_parity.json"))
    args = parser.parse_args(own)
    args.more = more
    if args.url and len(args.dtypes) > 1:
        parser.error("a running server has one precision: give it with --dtypes")
    # As an exception, so that a server that was started is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows: list[Parity] = []
    print("  ".join(f"{h:>13}" for h in HEADER), flush=True)
    with tempfile.TemporaryDirectory(prefix="vcap-parity-") as name, ExitStack() as stack:
        work = Path(name)
        for dtype in args.dtypes:
            folder, url = checkpoint_folder(args.model), args.url
            if url is None:
                folder = work / dtype / "exported"
                folder.parent.mkdir()
                export(checkpoint_folder(args.model), folder, dtype)
                url = stack.enter_context(
                    served(folder, dtype, args, args.output.with_suffix(f".{dtype}.log"))
                )
            for modality in args.modalities:
                rows.append(compare(url, folder, modality, dtype, args, work / "data"))
                print_row(rows[-1])
                table = [asdict(row) | {"holds": row.holds} for row in rows]
                args.output.write_text(json.dumps(table, indent=2) + "\n")
            stack.close()
    return 0 if all(row.holds for row in rows) else 1


def print_row(row: Parity) -> None:
    cells = [row.modality, row.dtype, f"{row.same_captions}/{row.scenes}"]
    for side in (row.greedy, row.drawn):
        cells += [f"{side.mean:.1e}", f"{side.largest:.1e}", f"{side.within:.2%}"]
    print("  ".join(f"{c:>13}" for c in cells), "" if row.holds else "  LIMIT EXCEEDED", flush=True)
    if row.gaps:
        print(
            f"    greedy captions part where JAX prefers its own by at most {max(row.gaps):.1e} nats",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
