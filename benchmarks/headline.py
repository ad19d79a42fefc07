r"""The README's table: the default runs of the embedded world with several seeds, as mean and range.

    python benchmarks/headline.py                             # images and videos, seeds 0, 1, 2; half an hour
    python benchmarks/headline.py --modality image --seeds 5 --out runs/headline
    python benchmarks/headline.py --modality image --rounds 4    # e1 to e4: each on references by the one before
    python benchmarks/headline.py --modality image --rounds 3 --out runs/claims \
        --config configs/rewards/claim_differences.yaml          # with another reward

Runs lie in OUT/MODALITY-SEED and are as launch/train.py makes them, rounds in OUT/rounds-MODALITY-SEED as
launch/self_improve.py does. Started again, the program goes on where it stopped, and complete ones are only read.
OUT/headline.json, or OUT/rounds.json, holds every seed's figures. Runs with another configuration want an OUT of their
own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS = {
    "references": "references",
    "start": "starting policy, which wrote them",
    "trained": "trained policy",
}
Shares = dict[str, dict[str, Any]]
"""By row of the table, the facts of its captions."""


def run_of(out: Path, modality: str, seed: int, fragments: Sequence[Path]) -> Shares:
    """The rows of a run, the default one but for ``fragments``; it is made, or gone on with, if it is not complete."""
    folder = out.absolute() / f"{modality}-{seed}"
    summary = _summary(
        folder,
        "train.py",
        *_configured(modality, seed, fragments),
        *("--run-dir", str(folder), "--resume"),
    )
    return {name: summary[row] for row, name in ROWS.items()}


def rounds_of(out: Path, modality: str, seed: int, rounds: int, fragments: Sequence[Path]) -> Shares:
    """The rows of so many rounds of self-improvement, made or gone on with in the same way."""
    folder = out.absolute() / f"rounds-{modality}-{seed}"
    rows: Shares = _summary(
        folder,
        "self_improve.py",
        *_configured(modality, seed, fragments),
        *("--dir", str(folder), "--rounds", str(rounds)),
        complete=lambda summary: f"e{rounds}" in summary["rows"],
    )["rows"]
    return rows


def _configured(modality: str, seed: int, fragments: Sequence[Path]) -> list[str]:
    # The scripts are run in the repository, wherever this was started.
    files = [ROOT / "configs" / "embedded" / f"{modality}.yaml", *(file.absolute() for file in fragments)]
    return ["--modality", modality, *(f"--config={file}" for file in files), f"seed={seed}"]


def _summary(
    folder: Path, script: str, *arguments: str, complete: Callable[[dict[str, Any]], bool] = bool
) -> dict[str, Any]:
    """What a script's work in ``folder`` left as its summary; the script is run unless that is ``complete``."""
    path = folder / "summary.json"
    if not path.exists() or not complete(json.loads(path.read_text(encoding="utf-8"))):
        subprocess.run([sys.executable, str(ROOT / "launch" / script), *arguments], check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def table(modality: str, seeds: list[Shares]) -> str:
    """Mean and range over the seeds, as Markdown."""
    columns = {"coverage": "facts covered, c / N", "hallucination": "false claims, (n - c) / n"}
    if all("invented_share" in row for shares in seeds for row in shares.values()):
        columns["invented_share"] = "claims of objects not there"
    lines = [
        f"| {' | '.join([f'{modality}s, {len(seeds)} seeds', *columns.values()])} |",
        f"|{'---|' * (1 + len(columns))}",
    ]
    common = [row for row in seeds[0] if all(row in shares for shares in seeds)]  # some may have more rounds
    for row in common:
        cells = [spread([shares[row][key] for shares in seeds]) for key in columns]
        lines.append(f"| {' | '.join([row, *cells])} |")
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
    parser.add_argument("--rounds", type=int, help="rounds of self-improvement, in place of the default run")
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        default=[],
        help="a fragment of a configuration; may be repeated",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/headline"), help="folder of the runs")
    args = parser.parse_args()
    if args.seeds < 1 or (args.rounds is not None and args.rounds < 1):
        parser.error("--seeds and --rounds: give at least 1")
    found = {
        modality: [
            run_of(args.out, modality, seed, args.config)
            if args.rounds is None
            else rounds_of(args.out, modality, seed, args.rounds, args.config)
            for seed in range(args.seeds)
        ]
        for modality in args.modality or ["image", "video"]
    }
    file = args.out / ("headline.json" if args.rounds is None else "rounds.json")
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for modality, seeds in found.items():
        print(f"\n{table(modality, seeds)}")


if __name__ == "__main__":
    main()
