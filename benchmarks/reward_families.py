"""A few steps of a real run of the embedded world with every reward family: that each goes through, and what it says.

    python benchmarks/reward_families.py --out /tmp/families                     # images, two steps each
    python benchmarks/reward_families.py --out /tmp/families --modality video
    python benchmarks/reward_families.py --out /tmp/families judge my.package:Mine

Every run is ``launch/train.py`` in a folder of its own, with a compilation cache in common. Prints the last row's
components and writes ``families.json``. Ends with status 1 if a run fails, or scores nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from vcap_jax.report.metrics import read_metrics  # noqa: E402
from vcap_jax.reward.config import FAMILIES  # noqa: E402
from vcap_jax.reward.store import read_candidates  # noqa: E402

TINY = (
    "world.train_scenes=12",
    "world.heldout_scenes=4",
    "grpo.groups_per_step=4",
    "grpo.groups_per_micro_batch=2",
    "rollout.groups_per_batch=4",
    "rollout.group_size=4",
    "rollout.max_completion_length=112",
    "logging.save_every=1",
    "logging.samples_every=1",
)


def run(family: str, folder: Path, cache: Path, modality: str, steps: int, more: list[str]) -> dict[str, Any]:
    """One run; its last row's rewards, how many candidates its store holds and how many were masked."""
    began = time.monotonic()
    command = [sys.executable, str(ROOT / "launch" / "train.py"), "--modality", modality]
    command += ["--run-dir", str(folder), *TINY, f"max_steps={steps}", f"compilation_cache={cache}"]
    done = subprocess.run(
        [*command, f"reward.family={family}", *more], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{family}: status {done.returncode}\n{done.stdout}{done.stderr}")
    rows = read_metrics(folder / "metrics.jsonl")
    kept = [candidate for candidate, _ in read_candidates(folder / "judgements.sqlite")]
    rewards = {name: value for name, value in rows[-1].items() if name.startswith("reward/")}
    mean = rewards["reward/mean"]
    page = (folder / "samples.html").read_text()
    if len(rows) != steps or not math.isfinite(float(mean)) or {c.family for c in kept} != {family}:
        raise SystemExit(f"{family}: {len(rows)} rows, mean reward {mean}, {len(kept)} candidates kept")
    if missing := [name for name in kept[0].components if name.replace("_", " ").split("/")[-1] not in page]:
        raise SystemExit(f"{family}: samples.html does not show {missing}")
    return {
        "rewards": rewards,
        "candidates": len(kept),
        "masked": sum(candidate.reward is None for candidate in kept),
        "requests": sum(int(row["judge/requests"]) for row in rows),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--out", type=Path, required=True, help="new folder for the runs and the result")
    parser.add_argument("--modality", choices=("image", "video"), default="image")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", dest="more")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    results = {}
    for family in options.families:
        folder = options.out / family.replace(":", "-")
        results[family] = run(
            family, folder, options.out / "cache", options.modality, options.steps, options.more
        )
        shown = ", ".join(f"{name} {float(value):.3g}" for name, value in results[family]["rewards"].items())
        print(f"{family}: {shown}; {results[family]['seconds']} s", flush=True)
    (options.out / "families.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
