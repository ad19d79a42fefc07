"""Whether a run repeats bit for bit on the GPU that is here: whole, whole again, and killed half-way and resumed.

    python benchmarks/gpu_repeats.py --out runs/gpu_repeats
    python benchmarks/gpu_repeats.py --out runs/gpu_repeats --steps 200 model.dtype=bfloat16 model.attention=cudnn

The default image run of the embedded world, its first --steps steps. What follows is given to launch/train.py. Prints
how many rows of metrics.jsonl are the same, apart from times; status 1 if not all are.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from vcap_jax.report.metrics import deterministic, read_metrics  # noqa: E402


def start(run: Path, settings: Sequence[str], log: Path, *, resume: bool = False) -> subprocess.Popen[bytes]:
    """launch/train.py in a process group of its own."""
    command = [sys.executable, str(ROOT / "launch" / "train.py"), f"--run-dir={run}", *settings]
    command += ["--resume"] if resume else []
    with log.open("a") as out:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def rows_of(run: Path) -> list[Mapping[str, Any]]:
    """The rows there are by now, without times."""
    file = run / "metrics.jsonl"
    return [deterministic(row) for row in read_metrics(file)] if file.exists() else []


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits. Raises SystemExit with the log's end if the run failed."""
    if process.wait():
        raise SystemExit(f"a run ended with status {process.returncode}:\n{log.read_text()[-4000:]}")


def killed(run: Path, settings: Sequence[str], log: Path, at: int) -> int:
    """Kills a run once it has ``at`` rows, or a few more, and resumes it. Returns the rows it had."""
    process = start(run, settings, log)
    while process.poll() is None and len(rows_of(run)) < at:
        time.sleep(0.05)
    if process.poll() is not None:
        raise SystemExit(f"the run ended before it could be killed:\n{log.read_text()[-4000:]}")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    had = len(rows_of(run))
    finish(start(run, settings, log, resume=True), log)
    return had


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="new folder for the runs and the result")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("settings", nargs="*", help="section.key=value for launch/train.py")
    options = parser.parse_intermixed_args()
    options.out.mkdir(parents=True)
    half = max(options.steps // 2, 2)
    settings = [f"max_steps={options.steps}", f"logging.save_every={max(half // 2, 1)}", *options.settings]
    found: dict[str, Any] = {"steps": options.steps, "settings": options.settings}
    for name in ("whole", "again", "killed"):
        run, log, begin = options.out / name, options.out / f"{name}.log", time.monotonic()
        if name == "killed":
            found["killed at"] = killed(run, settings, log, half)
        else:
            finish(start(run, settings, log), log)
        seconds = time.monotonic() - begin
        expected, got = rows_of(options.out / "whole"), rows_of(run)
        same = sum(a == b for a, b in zip(expected, got, strict=False))
        found[name] = {"seconds": seconds, "rows": len(got), "same": same}
        apart = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
        if apart is not None:
            columns = [key for key in expected[apart] if expected[apart][key] != got[apart].get(key)]
            found[name] |= {"first_apart": apart + 1, "columns": columns[:8]}
        print(f"{name}: {same} of {len(got)} rows as in the first run, {seconds:.0f} s", flush=True)
    found["step_seconds"] = [
        dict(row)["seconds/step"] for row in read_metrics(options.out / "whole" / "metrics.jsonl")
    ]
    (options.out / "gpu_repeats.json").write_text(json.dumps(found, indent=1) + "\n")
    runs = (found[name] for name in ("whole", "again", "killed"))
    return 0 if all(run["rows"] == run["same"] == options.steps for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
