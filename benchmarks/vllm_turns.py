"""Trains with a real vLLM rollout server and a real vLLM judge that take turns, and kills one in its sleep.

    python benchmarks/vllm_turns.py --vllm /path/to/vllm/bin/vllm --cpu --out runs/turns

Three steps of the embedded image model. Both servers have ``sleep_mode``; the judge is small and random, so its scores
mean nothing. On the CPU vLLM goes through the states of sleep mode and keeps its memory: what is shown is who is asked
when, not what memory is free. In the second step, while the judge has its turn, all processes of the sleeping rollout
server get SIGKILL, and it is started again. Both servers are asked all the time whether they sleep.

Ends with status 1 unless the run ends by itself with all its steps, was never seen with both awake, leaves both asleep,
and says that it has waited for the lost server.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.judged_run import judge_server
from benchmarks.small_judge_model import write_judge
from benchmarks.vllm_rollout_outage import SMALL, STEPS, RolloutServer
from vcap_jax.report.metrics import read_metrics

ROOT = Path(__file__).resolve().parent.parent
LITTLE = ["judge.max_tokens=200", "judge.max_analysis_chars=60", "judge.deadline_s=300"]


class Watch:
    """Asks servers whether they sleep, again and again."""

    def __init__(self, urls: dict[str, str]) -> None:
        self._urls, self._end = urls, threading.Event()
        self.looks: list[dict[str, str]] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(0.01):
            self.looks.append({name: state(url) for name, url in self._urls.items()})

    def end(self) -> None:
        self._end.set()
        self._thread.join()

    @property
    def changes(self) -> list[str]:
        """What was seen of rollout server and judge, without repetitions: "A" awake, "s" asleep, "-" not there."""
        seen = ["".join(look.values()) for look in self.looks]
        return [now for now, before in zip(seen, ["", *seen], strict=False) if now != before]


def state(url: str) -> str:
    """Of a server: "A" awake, "s" asleep, "-" not there."""
    try:
        with urllib.request.urlopen(f"{url}/is_sleeping", timeout=30) as answer:
            return "s" if json.loads(answer.read())["is_sleeping"] else "A"
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return "-"


def trained(options: argparse.Namespace, rollout: RolloutServer, judge: str) -> tuple[Path, str]:
    """The run's folder and what it said; the rollout server was killed in the judge's turn of the second step."""
    folder, said = options.out / "run", options.out / "run.log"
    command = [sys.executable, str(ROOT / "launch" / "train.py"), "--run-dir", str(folder), *SMALL, *LITTLE]
    command += [f"max_steps={STEPS}", "rollout.engine=vllm", f"rollout.vllm.urls=[{rollout.url}]"]
    command += ["rollout.vllm.sleep_mode=true", "rollout.vllm.outage_timeout_s=1800"]
    command += [f"judge.urls=[{judge}]", "judge.sleep_mode=true"]
    command += ["rollout.offload=[optimizer,reference,parameters]"]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") and state(judge) == "A"):
        if process.poll() is not None:
            raise SystemExit(f"the run ended with status {process.returncode}: see {said}")
        time.sleep(0.01)
    rollout.kill()
    print(f"killed after step {len(read_metrics(metrics))}, in the judge's turn", flush=True)
    rollout.start()
    if process.wait() != 0:
        raise SystemExit(f"the run ended with status {process.returncode}: see {said}")
    return folder, said.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, help="the vllm executable")
    parser.add_argument("--cpu", action="store_true", help="the servers compute on the CPU")
    parser.add_argument(
        "--port", type=int, default=8195, help="of the rollout server; the judge's is the next"
    )
    parser.add_argument("--start-timeout", type=float, default=1200.0, metavar="SECONDS")
    parser.add_argument("--gpus", default="none", help="of the judge, as serve.py takes them")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    if options.cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    write_judge(options.out / "small-judge", seed=0)
    rollout = RolloutServer(options, "--sleep-mode")
    rollout.start()
    at_judge = argparse.Namespace(**(vars(options) | {"port": options.port + 1}))
    try:
        with judge_server(at_judge, options.out / "small-judge", "--sleep-mode") as judge:
            while state(rollout.url) != "s":
                time.sleep(0.1)
            began = {"rollout": state(rollout.url), "judge": state(judge)}
            watch = Watch({"rollout": rollout.url, "judge": judge})
            folder, said = trained(options, rollout, judge)
            ended = {"rollout": state(rollout.url), "judge": state(judge)}
            watch.end()
    finally:
        if rollout.process.poll() is None:
            rollout.kill()
    told = [line for line in said.splitlines() if "rollout server" in line or "the judge at" in line]
    print("\n".join(told))
    rows = read_metrics(folder / "metrics.jsonl")
    both = sum(list(look.values()) == ["A", "A"] for look in watch.looks)
    result: dict[str, Any] = {
        "steps": [row["step"] for row in rows],
        "states_before_and_after": [began, ended],
        "looks": len(watch.looks),
        "looks_with_both_awake": both,
        "changes_of_rollout_and_judge": watch.changes,
        "waited_for_the_lost_server": any(line.startswith("lost: rollout server") for line in told),
        "failed_judgements": [float(row["judge/failed"]) for row in rows],
        "mismatch_mean": [row["rollout/mismatch_mean"] for row in rows],
    }
    print(json.dumps(result, indent=1))
    (options.out / "vllm_turns.json").write_text(json.dumps(result, indent=1) + "\n")
    asleep = all(value == "s" for value in (*began.values(), *ended.values()))
    done = result["steps"] == list(range(1, STEPS + 1)) and result["waited_for_the_lost_server"]
    return 0 if done and asleep and not both else 1


if __name__ == "__main__":
    sys.exit(main())
