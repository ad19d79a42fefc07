"""Kills a real vLLM judge in the middle of a training step, and shows what that changes: nothing.

    python benchmarks/vllm_outage.py --vllm /path/to/vllm/bin/vllm --media FOLDER --out runs/outage

Three runs on the images of FOLDER with the small random judge: undisturbed, undisturbed again (so that the server is
known to repeat itself), and with SIGKILL to all processes of the server in the second step. serve.py restarts it. Ends
with status 1 unless all three have the same metrics, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.judged_run import judge_server, options_parser, train_command, write_manifest
from benchmarks.small_judge_model import write_judge
from gpu_judge.vllm_server.processes import family
from vcap_jax.report.metrics import deterministic, read_metrics


def train(
    options: argparse.Namespace, name: str, manifest: Path, url: str, kill: bool
) -> list[dict[str, Any]]:
    """Three steps; with ``kill`` the server dies while the second is judged."""
    folder = options.out / name
    # One question at a time: the kill then surely comes in the middle of a step.
    command = train_command(folder, "image", manifest, url, options.groups)
    process = subprocess.Popen([*command, "max_steps=3", "judge.concurrency=1"])
    metrics = folder / "metrics.jsonl"
    while kill and not (metrics.exists() and metrics.read_bytes().count(b"\n")):
        if process.poll() is not None:
            raise SystemExit(f"the run {name} ended with status {process.returncode} before its second step")
        time.sleep(0.02)
    if kill:
        time.sleep(1.5)
        for pid in server_processes(options.port):
            os.kill(pid, signal.SIGKILL)
    if process.wait() != 0:
        raise SystemExit(f"the run {name} ended with status {process.returncode}")
    return read_metrics(metrics)


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


def main() -> None:
    options = options_parser(__doc__).parse_args()
    options.out.mkdir(parents=True)
    write_judge(options.out / "small-judge", seed=0)
    manifest = write_manifest(options.media, "image", options.out)
    if manifest is None:
        raise SystemExit(f"no images in {options.media}")
    with judge_server(options, options.out / "small-judge") as url:
        first, again, killed = (
            train(options, name, manifest, url, name == "killed") for name in ("first", "again", "killed")
        )
    result = {
        "undisturbed_runs_equal": [*map(deterministic, first)] == [*map(deterministic, again)],
        "killed_run_equal": [*map(deterministic, first)] == [*map(deterministic, killed)],
        "rewards": [row["reward/mean"] for row in first],
        "outages": sum(row["judge/outages"] for row in killed),
        "retries": sum(row["judge/retries"] for row in killed),
        "waited_s": sum(row["judge/waited_s"] for row in killed),
    }
    print(json.dumps(result, indent=1))
    (options.out / "vllm_outage.json").write_text(json.dumps(result, indent=1) + "\n")
    if not (result["undisturbed_runs_equal"] and result["killed_run_equal"] and result["outages"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
