"""Kills the judge of a training run in the middle of a step, and shows what that changes: nothing.

    python benchmarks/judge_outage.py --work /tmp/outage

Three small runs of the embedded world with the same seed, each with a judge process of its own:

* undisturbed;
* the judge gets SIGKILL in the middle of a step and is started again after a while: the run waits and goes on;
* the judge gets SIGKILL and stays away beyond ``judge.outage_timeout_s``: the run ends with a status that is not 0 and
  the command to go on with; after the judge is back, that command finishes the run.

Compares every reward, score and loss in metrics.jsonl, and every reward in the store, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from vcap_jax.report.metrics import deterministic, read_metrics
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.restudy import restudy

ROOT = Path(__file__).resolve().parent.parent
SMALL = [
    "max_steps=4",
    "world.train_scenes=16",
    "world.heldout_scenes=4",
    "grpo.groups_per_step=8",
    "grpo.groups_per_micro_batch=4",
    "rollout.groups_per_batch=8",
    "rollout.max_completion_length=48",
    "logging.save_every=100",
    # One question at a time and no pause between tries: the kill then surely comes in the middle of a step.
    "judge.concurrency=1",
    "judge.backoff_s=0.1",
]


class Judge:
    """The embedded judge at a fixed port."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "gpu_judge.serve", "--backend", "embedded", "--port", str(self.port)]
        self._process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
        )

    def kill(self) -> None:
        self._process.kill()  # of one that has ended nothing
        self._process.wait()


def command(folder: Path, judge: Judge, *more: str) -> list[str]:
    train = [
        sys.executable,
        str(ROOT / "launch" / "train.py"),
        "--modality",
        "image",
        "--run-dir",
        str(folder),
    ]
    cache = f"compilation_cache={folder.parent / 'compiled'}"
    return [*train, *SMALL, cache, f"judge.urls=[{judge.url}]", *more]


def judged(folder: Path) -> int:
    """How many judgements the run has on disk."""
    store = folder / "judgements.sqlite"
    try:
        return sum(1 for _ in restudy(store, RewardWeights())) if store.exists() else 0
    except Exception:  # the file is just being made
        return 0


def run(folder: Path, judge: Judge, kill_after: int | None, away_s: float, *more: str) -> tuple[int, str]:
    """One run; with ``kill_after`` candidates scored the judge is killed, for ``away_s`` seconds."""
    process = subprocess.Popen(
        command(folder, judge, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
    reader.start()
    if kill_after is not None:
        while process.poll() is None and judged(folder) < kill_after:
            time.sleep(0.02)
        judge.kill()
        print(f"  killed the judge after {judged(folder)} scored candidates", flush=True)
        if away_s < 1e6:
            time.sleep(away_s)
            judge.start()
    code = process.wait()
    reader.join()
    return code, "".join(lines)


def results(folder: Path) -> dict[str, Any]:
    """Everything that must not depend on what happened to the judge."""
    rows = [deterministic(row) for row in read_metrics(folder / "metrics.jsonl")]
    rewards = [
        (c.step, c.group, c.sample_id, c.index, c.caption, c.reward)
        for c in (r.candidate for r in restudy(folder / "judgements.sqlite", RewardWeights()))
    ]
    return {"rows": rows, "rewards": rewards}


def compared(work: Path, judge: Judge) -> dict[str, Any]:
    """The three runs in ``work``, and what of the later two is as in the first."""
    report: dict[str, Any] = {}
    print("undisturbed", flush=True)
    code, output = run(work / "undisturbed", judge, None, 0)
    assert code == 0, output
    expected = results(work / "undisturbed")

    print("killed and back after 4 s", flush=True)
    code, output = run(work / "back", judge, 75, 4.0)
    assert code == 0, output
    said = [
        line.rstrip() for line in output.splitlines() if "does not answer" in line or "again after" in line
    ]
    report["back"] = {"same": results(work / "back") == expected, "said": said}

    print("killed and away", flush=True)
    code, output = run(work / "away", judge, 75, 1e9, "judge.outage_timeout_s=3")
    report["away"] = {
        "status": code,
        "said": [line for line in output.splitlines() if "judge at" in line or "error" in line],
    }
    report["away"]["command"] = next((x for x in output.splitlines() if x.startswith("go on with:")), None)
    stored = judged(work / "away")
    judge.start()
    resumed = subprocess.run(
        command(work / "away", judge, "judge.outage_timeout_s=3", "--resume"),
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    rows = read_metrics(work / "away" / "metrics.jsonl")
    report["away"] |= {
        "scored_before": stored,
        "store_hits_after": sum(int(row["judge/store_hits"]) for row in rows),
        "same": results(work / "away") == expected,
    }
    return report | {"candidates": len(expected["rewards"])}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="a folder that does not exist yet")
    work = parser.parse_args().work
    work.mkdir(parents=True)
    judge = Judge()
    try:
        report = compared(work, judge)
    finally:
        judge.kill()
    print(json.dumps(report, indent=1))
    (work / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["back"]["same"] and report["away"]["same"] and report["away"]["status"] else 1


if __name__ == "__main__":
    sys.exit(main())
