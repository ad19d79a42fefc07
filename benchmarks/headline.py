"""The README's table: the default runs of the embedded world with several seeds, as mean and range.

    python benchmarks/headline.py                             # images and videos, seeds 0, 1, 2; half an hour
    python benchmarks/headline.py --modality image --seeds 5 --out runs/headline

Runs lie in OUT/MODALITY-SEED and are as launch/train.py makes them; started again, the program goes on where it
stopped, and complete ones are only read. OUT/headline.json holds every seed's figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS = {
    "references": "references",
    "start": "starting policy, which wrote them",
    "trained": "trained policy",
}


def summary_of(folder: Path, modality: str, seed: int) -> dict[str, Any]:
    """The summary of a run, which is made, or gone on with, if it is not complete."""
    path = folder / "summary.json"
    if not path.exists():
        command = [sys.executable, str(ROOT / "launch" / "train.py"), "--modality", modality]
        subprocess.run([*command, "--run-dir", str(folder), "--resume", f"seed={seed}"], check=True, cwd=ROOT)
    return json.loads(path.read_text(encoding="utf-8"))


def table(modality: str, summaries: list[dict[str, Any]]) -> str:
    """Mean and range over the seeds, as Markdown."""
    lines = [
        f"| {modality}s, {len(summaries)} seeds | facts covered, c / N | false claims, (n - c) / n |",
        "|---|---|---|",
    ]
    for row, name in ROWS.items():
        cells = [
            spread([summary[row][key] for summary in summaries]) for key in ("coverage", "hallucination")
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def spread(shares: list[float]) -> str:
    """``mean% (least to most)``."""
    mean, least, most = (100 * value for value in (sum(shares) / len(shares), min(shares), max(shares)))
    return f"{mean:.1f}% ({least:.1f} to {most:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modality", action="append", choices=("image", "video"), help="default: both")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("runs/headline"), help="folder of the runs")
    args = parser.parse_args()
    found = {
        modality: [summary_of(args.out / f"{modality}-{s}", modality, s) for s in range(args.seeds)]
        for modality in args.modality or ["image", "video"]
    }
    (args.out / "headline.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for modality, summaries in found.items():
        print(f"\n{table(modality, summaries)}")


if __name__ == "__main__":
    main()
