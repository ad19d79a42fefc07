"""Kills a real vLLM rollout server in the middle of a step, and shows that nothing of the run is lost.

    python benchmarks/vllm_rollout_outage.py --vllm /path/to/vllm/bin/vllm --cpu --out runs/rollout-outage

Trains the embedded image model for three steps with ``rollout.engine=vllm``: references, held-out captions and what is
trained on are the server's. Once its requests of the second step are under way all processes of the server get SIGKILL,
and ``launch/serve_rollout.py`` is started again. Prints what the run said of it. Ends with status 1 unless the run ends
by itself, with all its steps and every caption scored, and says that the server was given the weights again.
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
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu_judge.vllm_server.processes import family
from vcap_jax.report.metrics import read_metrics

ROOT = Path(__file__).resolve().parent.parent
STEPS = 3
SMALL = ["world.train_scenes=24", "world.heldout_scenes=8", "grpo.groups_per_step=8"]
# A small embedding cache; and the server must not take the machine's whole memory for its keys and values.
MORE = ['--limit-mm-per-prompt={"image":1}', "--max-model-len=1024"]


class RolloutServer:
    """``launch/serve_rollout.py`` in a process group of its own. more: further options of it."""

    def __init__(self, options: argparse.Namespace, *more: str) -> None:
        self.url = f"http://127.0.0.1:{options.port}"
        self._command = [sys.executable, str(ROOT / "launch" / "serve_rollout.py"), "--modality=image"]
        self._command += [f"--vllm={options.vllm}", f"--port={options.port}"]
        self._command += [*(["--cpu"] if options.cpu else []), *more]
        self._log, self._starts = options.out, 0
        self._wait_s = options.start_timeout

    def start(self) -> None:
        """Returns when it answers."""
        self._starts += 1
        folder = self._log / f"served-{self._starts}"
        with (self._log / f"server-{self._starts}.log").open("wb") as log:
            command = [*self._command, f"--folder={folder}", "--", *MORE]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + self._wait_s
        while not self.asked("/health"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not come up: see {log.name}")
            time.sleep(1)

    def kill(self) -> None:
        """SIGKILL to it and to all that it has started."""
        for pid in family(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def asked(self, path: str) -> str | None:
        """What it answers; None if it does not."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return str(answer.read().decode()) or "ok"
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None

    def busy(self) -> bool:
        """Whether captions are being drawn."""
        running = re.findall(
            r"^vllm:num_requests_running\{.*\} ([0-9.]+)$", self.asked("/metrics") or "", re.MULTILINE
        )
        return any(float(count) > 0 for count in running)


def trained(options: argparse.Namespace, server: RolloutServer) -> tuple[Path, str]:
    """The run's folder and what it said; the server was killed in its second step and started again."""
    folder, said = options.out / "run", options.out / "run.log"
    command = [sys.executable, str(ROOT / "launch" / "train.py"), "--run-dir", str(folder), *SMALL]
    command += [f"max_steps={STEPS}", "rollout.engine=vllm", f"rollout.vllm.urls=[{server.url}]"]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") and server.busy()):
        if process.poll() is not None:
            raise SystemExit(f"the run ended with status {process.returncode}: see {said}")
        time.sleep(0.02)
    server.kill()
    print(f"killed after step {len(read_metrics(metrics))}", flush=True)
    server.start()
    if process.wait() != 0:
        raise SystemExit(f"the run ended with status {process.returncode}: see {said}")
    return folder, said.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", default="vllm", help="the vllm executable")
    parser.add_argument("--cpu", action="store_true", help="the server computes on the CPU")
    parser.add_argument("--port", type=int, default=8191)
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    server = RolloutServer(options)
    begin = time.monotonic()
    server.start()
    print(f"the server was ready after {time.monotonic() - begin:.0f} s", flush=True)
    try:
        folder, said = trained(options, server)
    finally:
        if server.process.poll() is None:
            server.kill()
    told = [line for line in said.splitlines() if "rollout server" in line]
    print("\n".join(told))
    rows = read_metrics(folder / "metrics.jsonl")
    steps, failed = [row["step"] for row in rows], [float(row["judge/failed"]) for row in rows]
    given_again = any("was given the weights again" in line for line in told)
    result = {
        "steps": steps,
        "given_the_weights_again": given_again,
        "seconds_of_steps": [round(float(row["seconds/step"]), 1) for row in rows],
        "failed_judgements": failed,
        "mismatch_mean": [row["rollout/mismatch_mean"] for row in rows],
    }
    print(json.dumps(result, indent=1))
    (options.out / "vllm_rollout_outage.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if steps == list(range(1, STEPS + 1)) and not any(failed) and given_again else 1


if __name__ == "__main__":
    sys.exit(main())
