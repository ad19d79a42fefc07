"""Trains on photographs and clips with a real vLLM server as judge, and tells what the server's caches saved.

    python benchmarks/judged_run.py --vllm /path/to/vllm/bin/vllm --media FOLDER --out runs/judged

Writes a small random judge, serves it with ``gpu_judge/serve.py`` (on the CPU, unless ``--gpus`` says otherwise), and
runs two training steps on the images of FOLDER and two on its videos, with 8 candidates each and the embedded world's
tiny policy. Scores of a random judge mean nothing; requests, caches and failures are those of a real one. "Eligible"
are the prompt tokens that candidates 2..8 share with the first of their group, up to the last whole cache block.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.judge_client import counters, own_tokens
from benchmarks.small_judge_model import write_judge
from vcap_jax.report.metrics import read_metrics
from vcap_jax.reward.store import read_judgements

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {"image": {".png", ".jpg", ".jpeg", ".webp"}, "video": {".mp4", ".mov", ".mkv", ".webm"}}


@contextmanager
def judge_server(options: argparse.Namespace, model: Path, *more: str) -> Iterator[str]:
    """The address of a ready judge; it is ended and waited for afterwards. more: further options of serve.py."""
    port_file = options.out / "judge.address"
    port_file.unlink(missing_ok=True)
    serve = str(ROOT / "gpu_judge" / "serve.py")
    command = [sys.executable, serve, "--backend=vllm", f"--vllm={options.vllm}", f"--model={model}"]
    command += [f"--gpus={options.gpus}", "--modality=both", f"--port={options.port}"]
    command += [f"--port-file={port_file}", f"--log-dir={options.out / 'judge-logs'}"]
    # What the small judge and a machine without a GPU have room for.
    command += ["--media-cache-gb=1", "--max-model-len=16384", f"--image-pixels={512 * 512}"]
    command += ["--video-frames=32", "--frame-tokens=64", *more]
    process = subprocess.Popen(command)
    try:
        while not port_file.exists():
            if process.poll() is not None:
                raise SystemExit(f"serve.py ended with status {process.returncode}")
            time.sleep(0.5)
        yield port_file.read_text().split()[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=180)


def train_command(folder: Path, modality: str, manifest: Path, url: str, groups: int) -> list[str]:
    """A training run of few groups in ``folder``, judged at ``url``; a random judge gets little to write."""
    command = [sys.executable, str(ROOT / "launch" / "train.py")]
    command += [f"--modality={modality}", f"--run-dir={folder}"]
    command += [f"data.manifest={manifest}", f"judge.urls=[{url}]", "judge.deadline_s=300"]
    command += ["judge.max_tokens=200", "judge.max_analysis_chars=60", "reward.local.min_overlap=0.0"]
    for size in ("grpo.groups_per_step", "grpo.groups_per_micro_batch", "rollout.groups_per_batch"):
        command.append(f"{size}={groups}")
    return command


def write_manifest(media: Path, modality: str, out: Path) -> Path | None:
    """A manifest of the folder's files of one modality; None if it has none."""
    files = sorted(path for path in media.iterdir() if path.suffix.lower() in SUFFIXES[modality])
    if not files:
        return None
    manifest = out / f"{modality}s.jsonl"
    rows = [{"id": path.stem, modality: str(path.resolve())} for path in files]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def saved(store: Path, url: str, block: int) -> dict[str, float]:
    """Eligible and cached prompt tokens of candidates 2..8, from the run's own store of judgements."""
    passes: dict[tuple[str, str, str | None], list[tuple[int, int]]] = {}
    for key, judgement in read_judgements(store):
        shared = judgement.usage.prompt_tokens - own_tokens(url, key)
        group = (key.media, key.instruction, key.reference)
        passes.setdefault(group, []).append((judgement.usage.cached_tokens, shared // block * block))
    # The first of each pass is the one that found least.
    rest = [pair for group in passes.values() for pair in sorted(group)[1:]]
    eligible = sum(tokens for _, tokens in rest)
    cached = sum(min(pair) for pair in rest)
    return {"eligible_tokens": eligible, "cached_share_of_eligible": cached / max(eligible, 1)}


def options_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every trial with a judge of its own takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, help="the vllm executable of its own environment")
    parser.add_argument("--media", type=Path, required=True, help="folder of photographs and clips")
    parser.add_argument(
        "--out", type=Path, required=True, help="new folder for the judge, the runs and the result"
    )
    parser.add_argument("--gpus", default="none", help="for the judge, as serve.py takes them")
    parser.add_argument("--port", type=int, default=8300)
    parser.add_argument("--groups", type=int, default=2, help="groups per step")
    return parser


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument(
        "--block", type=int, default=128, help="tokens of a cache block: 128 on the CPU, 16 on CUDA"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    model = options.out / "small-judge"
    write_judge(model, seed=0)
    results: dict[str, Any] = {}
    begin = time.monotonic()
    with judge_server(options, model) as url:
        results["server_ready_s"] = round(time.monotonic() - begin, 1)
        for modality in SUFFIXES:
            manifest = write_manifest(options.media, modality, options.out)
            if manifest is None:
                print(f"no {modality}s in {options.media}: left out")
                continue
            before, began = counters(url), time.monotonic()
            folder = options.out / modality
            command = train_command(folder, modality, manifest, url, options.groups)
            subprocess.run([*command, "max_steps=2"], check=True)
            steps = read_metrics(folder / "metrics.jsonl")
            after = counters(url)
            results[modality] = {
                "files": manifest.read_text().count("\n"),
                "run_s": round(time.monotonic() - began, 1),
                "steps": len(steps),
                "requests": sum(row["judge/requests"] for row in steps),
                "failed_share": [row["judge/failed"] for row in steps],
                **saved(folder / "judgements.sqlite", url, options.block),
                "server": {name: after[name] - before.get(name, 0.0) for name in sorted(after)},
            }
            print(modality, json.dumps(results[modality], indent=1), flush=True)
    (options.out / "judged_run.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
