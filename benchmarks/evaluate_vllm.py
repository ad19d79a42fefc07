"""Every public benchmark's whole pipeline against a real vLLM: captions, judgements, failures, tokens, cache.

    python benchmarks/evaluate_vllm.py --vllm /path/to/vllm-cpu-env/bin/vllm --out runs/evaluate-vllm

Two small random Qwen3-VLs are served by ``gpu_judge/serve.py``: one captions, the other judges. Scenes of the embedded
world are laid out as each benchmark publishes its data, other scenes for each, and ``vcap evaluate`` runs on them over
HTTP. The models know nothing, so **no score means anything**. What is shown is the machinery: whether every stage's
questions and schemas are taken and answered, how many requests there are, how many fail, how long it takes, and which
share of the prompts' tokens the judge's prefix cache had (vLLM's own counters, before and after).

Pictures are enlarged to 256 visual tokens. ``--captioner`` and ``--judge`` take servers that run already; their caches
may know the scenes, unless ``--seed`` is another one. Prints two tables and writes evaluate_vllm.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.scenes_as_benchmarks import (
    write_caparena,
    write_capmas,
    write_captionqa,
    write_choice_table,
    write_decapbench,
    write_dream1k,
    write_vcapsbench,
    write_vdc,
)
from benchmarks.serve_vllm import Served
from benchmarks.small_judge_model import write_judge
from vcap_jax.commands.evaluate import main as vcap_evaluate
from vcap_jax.evals.config import BENCHMARKS
from vcap_jax.system.json_values import JsonDict, JsonObject, as_number, as_object, as_text, read_json_object
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.scenes import Modality, Scene

Writer = Callable[[Path, Mapping[str, Scene]], None]
LEAST_PIXELS = 512 * 512
CAPTION_TOKENS = 128
STEP_TOKENS = 32_768
COUNTED = {
    "requests": "request_success",
    "prompt tokens": "prompt_tokens",
    "written tokens": "generation_tokens",
    "looked up": "prefix_cache_queries",
    "cached": "prefix_cache_hits",
}
"""What is told, and vLLM's counter of it."""


def table(name: str) -> Writer:
    """Writes VLMEvalKit's table ``name``."""
    return lambda folder, scenes: write_choice_table(folder / name, scenes)


LAYOUTS: Mapping[str, tuple[Modality, Writer]] = {
    "capmas": ("image", write_capmas),
    "decapbench": ("image", write_decapbench),
    "caparena-auto": ("image", write_caparena),
    "captionqa": ("image", write_captionqa),
    "prism-ai2d": ("image", table("AI2D_TEST.tsv")),
    "prism-mmstar": ("image", table("MMStar.tsv")),
    "prism-realworldqa": ("image", table("RealWorldQA.tsv")),
    "prism-vstar": ("image", table("VStarBench.tsv")),
    "vcapsbench": ("video", write_vcapsbench),
    "vdc": ("video", write_vdc),
    "dream1k": ("video", write_dream1k),
}
"""Of every benchmark what it captions, and who writes its files."""


def lay_out(name: str, folder: Path, *, samples: int, seed: int) -> None:
    """A benchmark's files, of scenes that no other benchmark of the same seed has."""
    modality, write = LAYOUTS[name]
    own = 1000 * seed + list(LAYOUTS).index(name)
    scenes: dict[str, Scene] = {
        f"{modality}-{k}": sample_scene(modality, own, k, "heldout") for k in range(samples)
    }
    write(folder, scenes)


def read_counters(text: str) -> dict[str, float]:
    """The counters of ``COUNTED`` in a Prometheus page, each summed over its labels."""
    found: dict[str, float] = {}
    for name, counter in COUNTED.items():
        values = re.findall(rf"^vllm:{counter}_total(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        if not values:
            raise SystemExit(f"the server counts no vllm:{counter}_total: is it a vLLM of another release?")
        found[name] = sum(map(float, values))
    return found


@contextmanager
def counted(url: str, into: dict[str, float]) -> Iterator[None]:
    """Puts into a mapping what the server counted meanwhile."""

    def now() -> dict[str, float]:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            return read_counters(answer.read().decode())

    before = now()
    yield
    # vLLM counts a request a moment after it was answered.
    time.sleep(1)
    after = now()
    if any(after[name] < before[name] for name in COUNTED):
        raise SystemExit(f"the server at {url} began anew while it was counted: its log says why")
    into |= {name: value - before[name] for name, value in after.items()}


def evaluated(name: str, data: Path, out: Path, captioner: str, judge: str, more: Sequence[str]) -> JsonDict:
    """What ``vcap evaluate`` found, and what both servers counted. Raises SystemExit if it failed."""
    by, of = dict[str, float](), dict[str, float]()
    words = ["--benchmark", name, "--by", captioner, "--data", str(data), "--judge", judge, "--out", str(out)]
    words += ["--temperature", "1", f"rollout.max_completion_length={CAPTION_TOKENS}", *more]
    with counted(captioner, by), counted(judge, of):
        status = vcap_evaluate(words)
    if status != 0:
        raise SystemExit(f"vcap evaluate {' '.join(words)}: status {status}")
    row = read_json_object(out / name / "results.json")
    kept = ("items", "valid", "incomplete", "failed", "captions_failed", "stages", "cost", "seconds")
    found: JsonDict = {key: row[key] for key in kept}
    return found | {"captioner": dict(by), "judge": dict(of)}


def share(row: JsonObject, part: str, whole: str) -> str:
    """A share of two counts in %, or nothing where there is nothing to share."""
    total = as_number(row[whole], whole)
    return f"{as_number(row[part], part) / total:.0%}" if total else ""


def count(row: JsonObject, name: str) -> str:
    """A count with commas."""
    return f"{as_number(row[name], name):,.0f}"


def overview(rows: Mapping[str, JsonDict]) -> str:
    """A line for each benchmark."""
    head = ["", "items", "failed", "captions: requests", "seconds", "judge: questions", "failed", "requests"]
    head += ["seconds", "requests/s", "prompt tokens", "of them cached"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, row in rows.items():
        by, of = as_object(row["captioner"], name), as_object(row["judge"], name)
        seconds, stages = as_object(row["seconds"], name), as_object(row["stages"], name)
        scored = as_number(seconds["scores"], name)
        failed = sum(failures(as_object(stage, name)) for stage in stages.values())
        cells = [f"`{name}`", count(row, "items"), count(row, "failed"), count(by, "requests")]
        cells += [
            f"{as_number(seconds['captions'], name):.1f}",
            count(as_object(row["cost"], name), "questions"),
        ]
        cells += [str(failed), count(of, "requests"), f"{scored:.1f}"]
        cells += [f"{as_number(of['requests'], name) / scored:.1f}", count(of, "prompt tokens")]
        lines.append([*cells, share(of, "cached", "looked up")])
    return listed(lines)


def by_stage(rows: Mapping[str, JsonDict]) -> str:
    """A line for each stage, of what its answered questions cost."""
    head = ["", "stage", "questions", "failed", "requests", "prompt tokens", "of them cached", "written"]
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
    for name, row in rows.items():
        for stage, value in as_object(row["stages"], name).items():
            one = as_object(value, stage)
            cells = [f"`{name}`", stage, count(one, "questions"), str(failures(one)), count(one, "requests")]
            cells += [count(one, "prompt_tokens"), share(one, "cached_tokens", "prompt_tokens")]
            lines.append([*cells, count(one, "completion_tokens")])
    return listed(lines)


def failures(stage: JsonObject) -> int:
    """Questions without an answer."""
    return int(sum(as_number(number, "failed") for number in as_object(stage["failed"], "failed").values()))


def listed(lines: Sequence[Sequence[str]]) -> str:
    """A table as documents have it."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def told_failures(rows: Mapping[str, JsonDict]) -> str:
    """One failure of each stage in words."""
    told = []
    for name, row in rows.items():
        for stage, value in as_object(row["stages"], name).items():
            if example := as_text(as_object(value, stage)["example"], "example"):
                told.append(f"{name}, {stage}: {example:.300}")
    return "\n".join(told)


@contextmanager
def servers(args: argparse.Namespace, work: Path) -> Iterator[tuple[str, str]]:
    """The addresses of captioner and judge; those that are not given are started, and ended."""
    # Left alone, vLLM for CPUs keeps a core for its front end: on two cores half of the machine.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    with ExitStack() as stack:
        started: list[Served | str] = []
        for seed, (role, given) in enumerate((("judge", args.judge), ("captioner", args.captioner))):
            if given is not None:
                started.append(given)
                continue
            work.mkdir(exist_ok=True)
            model = work / role
            write_judge(model, args.model_seed + seed, least_pixels=LEAST_PIXELS)
            # vLLM 0.32 for CPUs dies of a prompt that is read in parts where its request has a seed ("CPU Generator
            # does not use offset"): whatever comes at once must fit one step.
            extra = f"--extra=--block-size {args.block_size} --max-num-batched-tokens {STEP_TOKENS}"
            server = Served(work, model, args.vllm, args.dtype, extra, name=f"random-{role}")
            stack.callback(stopped, server.process)
            started.append(server)
        judge, captioner = (one if isinstance(one, str) else one.address() for one in started)
        yield captioner, judge


def stopped(process: subprocess.Popen[bytes]) -> None:
    """Ends a server that was started here."""
    if process.poll() is None:
        process.terminate()
        process.wait(timeout=180)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", type=Path, help="the vllm executable")
    parser.add_argument("--captioner", help="address of a vLLM that captions (default: one is started)")
    parser.add_argument("--judge", help="address of a vLLM that judges (default: one is started)")
    parser.add_argument("--benchmark", default=",".join(BENCHMARKS), help="names, divided by commas")
    parser.add_argument(
        "--samples", type=int, default=4, help="pictures or clips of each benchmark (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the scenes (default: 0)")
    parser.add_argument("--model-seed", type=int, default=0, help="of the weights (default: 0)")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--block-size",
        type=int,
        default=32,
        help="tokens of a block of the prefix cache (default: 32; CPUs take no 16)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="a new folder: data, results, servers with their logs, evaluate_vllm.json",
    )
    parser.add_argument("settings", nargs="*", metavar="judge.key=value", help="for vcap evaluate")
    args = parser.parse_intermixed_args()
    if args.vllm is None and None in (args.captioner, args.judge):
        parser.error("name the vllm executable with --vllm")
    args.out.mkdir(parents=True)
    # As an exception, so that servers that were started are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows: dict[str, JsonDict] = {}
    with servers(args, args.out / "servers") as (by, judge):
        for name in args.benchmark.split(","):
            lay_out(name, args.out / "data" / name, samples=args.samples, seed=args.seed)
            rows[name] = evaluated(name, args.out / "data", args.out / "results", by, judge, args.settings)
            (args.out / "evaluate_vllm.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(
        f"\nScores of random models mean nothing.\n\n{overview(rows)}\n\n{by_stage(rows)}\n\n{told_failures(rows)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
