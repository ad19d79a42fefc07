"""Kills and stops a real vLLM judge in the middle of a training step, and shows what that changes: nothing.

    python benchmarks/vllm_outage.py --vllm /path/to/vllm/bin/vllm --media FOLDER --out runs/outage

Four runs on the images of FOLDER with the small random judge: undisturbed, undisturbed again (so that the server is
known to repeat itself), with SIGKILL to all processes of the server in the second step, and with SIGTERM to the server
while it writes a long answer besides: until that is done it answers 500 to all that is new. serve.py restarts it. Ends
with status 1 unless the first three have the same metrics, bit for bit, and the last has lost no judgement. (An answer
that is written beside another may round differently.)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.judged_run import judge_server, options_parser, train_command, write_manifest
from benchmarks.serve_vllm import post
from benchmarks.small_judge_model import write_judge
from gpu_judge.vllm_server.processes import family
from vcap_jax.report.metrics import deterministic, read_metrics

LONG = 4000  # tokens: many seconds, in which all that is new is refused


def train(
    options: argparse.Namespace, name: str, manifest: Path, url: str, harm: Callable[[], None] | None = None
) -> list[dict[str, Any]]:
    """Three steps; ``harm`` is done to the server while the second is judged."""
    folder = options.out / name
    # One question at a time: the harm then surely comes in the middle of a step.
    command = train_command(folder, "image", manifest, url, options.groups)
    process = subprocess.Popen([*command, "max_steps=3", "judge.concurrency=1"])
    metrics = folder / "metrics.jsonl"
    while harm and not (metrics.exists() and metrics.read_bytes().count(b"\n")):
        if process.poll() is not None:
            raise SystemExit(f"the run {name} ended with status {process.returncode} before its second step")
        time.sleep(0.02)
    if harm:
        time.sleep(1.5)
        harm()
    if process.wait() != 0:
        raise SystemExit(f"the run {name} ended with status {process.returncode}")
    return read_metrics(metrics)


def kill(port: int) -> None:
    """Ends the server at once."""
    for pid in server_processes(port):
        os.kill(pid, signal.SIGKILL)


def stop(port: int, url: str) -> None:
    """Has the server end once it has written a long answer."""
    greeting = [{"role": "user", "content": "Are you there?"}]
    long = {"model": "small-judge", "messages": greeting, "max_tokens": LONG, "min_tokens": LONG}
    threading.Thread(target=post, args=(url, long), daemon=True).start()
    time.sleep(0.5)
    os.kill(os.getpgid(server_processes(port)[0]), signal.SIGTERM)


def server_processes(port: int) -> list[int]:
    """The vLLM server at the port with everything it has started."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # ended while we looked
        if "--served-model-name" in words and words[words.index("--port") + 1] == str(port):
            return family(int(entry.name))
    raise SystemExit(f"no vLLM server at port {port}")


def told(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of a whole run, what its judge cost it."""
    return {
        name: sum(row[f"judge/{name}"] for row in rows)
        for name in ("failed", "outages", "retries", "waited_s")
    }


def main() -> None:
    options = options_parser(__doc__).parse_args()
    options.out.mkdir(parents=True)
    write_judge(options.out / "small-judge", seed=0)
    manifest = write_manifest(options.media, "image", options.out)
    if manifest is None:
        raise SystemExit(f"no images in {options.media}")
    with judge_server(options, options.out / "small-judge") as url:
        first, again = (train(options, name, manifest, url) for name in ("first", "again"))
        killed = train(options, "killed", manifest, url, lambda: kill(options.port))
        stopped = train(options, "stopped", manifest, url, lambda: stop(options.port, url))
    result: dict[str, Any] = {
        "undisturbed_runs_equal": [*map(deterministic, first)] == [*map(deterministic, again)],
        "killed_run_equal": [*map(deterministic, first)] == [*map(deterministic, killed)],
        "rewards": [row["reward/mean"] for row in first],
        "killed": told(killed),
        "stopped": told(stopped),
    }
    print(json.dumps(result, indent=1))
    (options.out / "vllm_outage.json").write_text(json.dumps(result, indent=1) + "\n")
    met = result["killed"]["outages"] and result["stopped"]["outages"]
    lost = result["killed"]["failed"] or result["stopped"]["failed"]
    if lost or not (met and result["undisturbed_runs_equal"] and result["killed_run_equal"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
