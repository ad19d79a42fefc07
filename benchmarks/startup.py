"""How long a run takes to its first step, cold and with the persistent compilation cache.

    python benchmarks/startup.py --out runs/startup                      # the embedded image run
    python benchmarks/startup.py --out runs/startup --modality video

Starts launch/train.py for two steps three times: without a cache, with an empty one that it fills, and with the filled
one. Seconds are from the start of the process; compile seconds are JAX's own count of its backend's compilations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "startup-figures "

# Runs in the measured process: listens to JAX while launch/train.py does what it always does.
CHILD = """
import json, runpy, sys, time
begin = time.monotonic()
import jax
seen = {"compile_seconds": 0.0, "compilations": 0, "cache_hits": 0}
def duration(event, seconds, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        seen["compile_seconds"] += seconds
        seen["compilations"] += 1
def happened(event, **_):
    seen["cache_hits"] += event == "/jax/compilation_cache/cache_hits"
jax.monitoring.register_event_duration_secs_listener(duration)
jax.monitoring.register_event_listener(happened)
from vcap_jax.report.metrics import MetricsWriter
write = MetricsWriter.write
def first(self, row):
    if row["step"] <= 2:
        seen[f"step_{row['step']}_at_s"] = time.monotonic() - begin
        seen[f"step_{row['step']}_seconds"] = row["seconds/step"]
        seen[f"step_{row['step']}_compiles"] = row["compiles"]
        if row["step"] == 1:
            seen["by_end_of_step_1"] = {key: seen[key] for key in ("compile_seconds", "compilations", "cache_hits")}
    write(self, row)
MetricsWriter.write = first
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    if end.code:
        raise
print(MARK + json.dumps(seen))
"""


def start(out: Path, name: str, modality: str, cache: Path | None) -> dict[str, float]:
    """The figures of one start."""
    command = [sys.executable, "-c", CHILD.replace("MARK", repr(MARK)), str(ROOT / "launch" / "train.py")]
    command += [f"--modality={modality}", f"--run-dir={out / name}", "max_steps=2"]
    command += ["world.train_scenes=64", "world.heldout_scenes=16"]
    if cache is not None:
        command.append(f"compilation_cache={cache}")
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\nthe start {name!r} ended with status {done.returncode}")
    line = next(line for line in done.stdout.splitlines() if line.startswith(MARK))
    return json.loads(line.removeprefix(MARK))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="new folder for the runs and the result")
    parser.add_argument("--modality", choices=("image", "video"), default="image")
    options = parser.parse_args()
    options.out = options.out.absolute()  # training is started in the repository
    options.out.mkdir(parents=True)
    cache = options.out / "cache"
    starts = {"without a cache": None, "filling the cache": cache, "with the cache": cache}
    results = {}
    print(
        f"{'start':<20}{'step 1 at':>12}{'step 1':>10}{'step 2':>10}{'compiling':>12}{'programs':>10}{'hits':>8}"
    )
    for name, folder in starts.items():
        figures = start(options.out, name.replace(" ", "-"), options.modality, folder)
        results[name] = figures
        print(
            f"{name:<20}{figures['step_1_at_s']:>10.1f} s{figures['step_1_seconds']:>8.1f} s"
            f"{figures['step_2_seconds']:>8.1f} s{figures['compile_seconds']:>10.1f} s"
            f"{figures['compilations']:>10}{figures['cache_hits']:>8}",
            flush=True,
        )
    (options.out / "startup.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
