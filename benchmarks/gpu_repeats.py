"""Whether a run repeats bit for bit on the GPU that is here: whole, whole again, and killed half-way and resumed.

    python benchmarks/gpu_repeats.py --out runs/gpu_repeats
    python benchmarks/gpu_repeats.py --out runs/gpu_repeats --modality video
    python benchmarks/gpu_repeats.py --out runs/gpu_repeats --steps 200 model.dtype=bfloat16 model.attention=cudnn

The default run of the embedded world, its first --steps steps. What follows is given to launch/train.py. Prints
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from vcap_jax.report.metrics import deterministic, read_metrics  # noqa: E402


@contextmanager
def killed_in_the_end(
    command: Sequence[str], environment: Mapping[str, str], out: IO[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, all of which ends with the block. environment: on top of this process's own."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdout=out, stderr=out, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def training(
    run: Path, settings: Sequence[str], log: Path, *, resume: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """launch/train.py."""
    command = [sys.executable, str(ROOT / "launch" / "train.py"), f"--run-dir={run}", *settings]
    command += ["--resume"] if resume else []
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with log.open("a") as out, killed_in_the_end(command, {"PYTHONPATH": paths}, out) as process:
        yield process


def rows_of(run: Path) -> list[Mapping[str, Any]]:
    """The rows there are by now, without times."""
    file = run / "metrics.jsonl"
    return [deterministic(row) for row in read_metrics(file)] if file.exists() else []


def finish(run: Path, settings: Sequence[str], log: Path, *, resume: bool = False) -> None:
    """A run to its end. Raises SystemExit with the log's end if it failed."""
    with training(run, settings, log, resume=resume) as process:
        if process.wait():
            raise SystemExit(f"a run ended with status {process.returncode}:\n{log.read_text()[-4000:]}")


def killed(run: Path, settings: Sequence[str], log: Path, at: int) -> int:
    """Kills a run once it has ``at`` rows, or a few more, and resumes it. Returns the rows it had."""
    with training(run, settings, log) as process:
        while process.poll() is None and len(rows_of(run)) < at:
            time.sleep(0.05)
        if process.poll() is not None:
            raise SystemExit(f"the run ended before it could be killed:\n{log.read_text()[-4000:]}")
    had = len(rows_of(run))
    finish(run, settings, log, resume=True)
    return had


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="new folder for the runs and the result")
    parser.add_argument("--modality", choices=("image", "video"), default="image")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("settings", nargs="*", help="section.key=value for launch/train.py")
    options = parser.parse_intermixed_args()
    # Stopped by a time limit, it takes the run with it, which is in a process group of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.steps < 3:
        parser.error("--steps: give at least 3, so that a run can be killed before its end")
    options.out = options.out.absolute()  # training is started in the repository
    if options.out.exists():
        parser.error(f"--out {options.out} is there already: name a new folder")
    options.out.mkdir(parents=True)
    half = max(options.steps // 2, 2)
    settings = [f"max_steps={options.steps}", f"logging.save_every={max(half // 2, 1)}", *options.settings]
    settings.insert(0, f"--modality={options.modality}")
    found: dict[str, Any] = {
        "modality": options.modality,
        "steps": options.steps,
        "settings": options.settings,
    }
    for name in ("whole", "again", "killed"):
        run, log, begin = options.out / name, options.out / f"{name}.log", time.monotonic()
        if name == "killed":
            found["killed at"] = killed(run, settings, log, half)
        else:
            finish(run, settings, log)
        seconds = time.monotonic() - begin
        expected, got = rows_of(options.out / "whole"), rows_of(run)
        same = sum(a == b for a, b in zip(expected, got, strict=False))
        found[name] = {"seconds": seconds, "rows": len(got), "same": same}
        apart = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
        said = ""
        if apart is not None:
            columns = [key for key in expected[apart] if expected[apart][key] != got[apart].get(key)]
            found[name] |= {"first_apart": apart + 1, "columns": columns[:8]}
            said = f"; step {apart + 1} is the first apart: {', '.join(columns[:8])}"
        print(f"{name}: {same} of {len(got)} rows as in the first run, {seconds:.0f} s{said}", flush=True)
        if name == "whole":
            found["step_seconds"] = [dict(row)["seconds/step"] for row in read_metrics(run / "metrics.jsonl")]
        (options.out / "gpu_repeats.json").write_text(json.dumps(found, indent=1) + "\n")
    runs = (found[name] for name in ("whole", "again", "killed"))
    return 0 if all(run["rows"] == run["same"] == options.steps for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
