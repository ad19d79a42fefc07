r"""The README's table: the default runs of the embedded world with several seeds, as mean and range.

    python benchmarks/headline.py                             # images and videos, seeds 0, 1, 2; half an hour
    python benchmarks/headline.py --modality image --seeds 5 --out runs/headline
    python benchmarks/headline.py --modality image --rounds 4    # e1 to e4: each on references by the one before
    python benchmarks/headline.py --modality image --rounds 3 --out runs/claims \
        --config configs/rewards/claim_differences.yaml          # with another reward
    python benchmarks/headline.py --modality image --seeds 5 --out runs/more \
        --config configs/references/places.yaml references.questions_per_sample=4 max_steps=140 \
        --first configs/rewards/completeness.yaml --first-steps 200    # say more first, then say it right

Runs lie in OUT/MODALITY-SEED and are as launch/train.py makes them, rounds in OUT/rounds-MODALITY-SEED as
launch/self_improve.py does. With --first each run goes on from the policy of another, on the same references. That one
has the fragment in addition and lies in OUT/first-MODALITY-SEED. Started again, the program goes on where it stopped,
and complete runs are only read. Runs with another configuration are refused: they want an OUT of their own.
OUT/MODALITY-SEED.commit has the commits at which a run was started, with a "+" where files differed.
OUT/headline.json, or OUT/rounds.json, holds every seed's commits and figures; what it has of the other modality stays.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from vcap_jax.configuration import load_config  # noqa: E402
from vcap_jax.run.config import RunConfig  # noqa: E402
from vcap_jax.run.folders import check_resumption  # noqa: E402
from vcap_jax.studies.results import code_version  # noqa: E402
from vcap_jax.system.errors import VCapError  # noqa: E402

ROWS = {
    "references": "references",
    "start": "starting policy, which wrote them",
    "trained": "trained policy",
}
AFTER_FIRST = "policy after the first run"
Shares = dict[str, dict[str, Any]]
"""By row of the table, the facts of its captions."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the runs have beside the default: fragments of configurations, then single keys."""

    fragments: Sequence[Path] = ()
    overrides: Sequence[str] = ()

    def with_more(self, *overrides: str, fragment: Path | None = None) -> Settings:
        """These and, after them, more."""
        fragments = [*self.fragments, *([] if fragment is None else [fragment])]
        return replace(self, fragments=fragments, overrides=[*self.overrides, *overrides])


@dataclass(frozen=True)
class First:
    """A run before the run: a fragment that it has in addition, and how many steps it takes."""

    fragment: Path
    steps: int


def run_of(
    out: Path, modality: str, seed: int, settings: Settings = Settings(), first: First | None = None
) -> Shares:
    """The rows of a run, the default one but for ``settings``; it is made, or gone on with, if it is not complete.
    With ``first`` that run is made before it, which adds a row."""
    folder = folder_of(out, modality, seed)
    before: Shares = {}
    if first is not None:
        begun = folder_of(out, modality, seed, first=True)
        taken = settings.with_more(f"max_steps={first.steps}", fragment=first.fragment)
        before = _train(begun, modality, seed, taken)
        before[AFTER_FIRST] = before.pop(ROWS["trained"])
        settings = settings.with_more(
            f"model.path={begun}", f"data.references={begun / 'references' / 'train.jsonl'}"
        )
    rows = _train(folder, modality, seed, settings)
    # What the second run calls its start is the policy of the first.
    return rows if first is None else before | {ROWS["trained"]: rows[ROWS["trained"]]}


def _train(folder: Path, modality: str, seed: int, settings: Settings) -> Shares:
    """The rows of the run in ``folder``."""
    summary = _summary(folder, "train.py", modality, seed, settings, "--run-dir", str(folder), "--resume")
    return {name: summary[row] for row, name in ROWS.items()}


def rounds_of(out: Path, modality: str, seed: int, rounds: int, settings: Settings = Settings()) -> Shares:
    """The rows of so many rounds of self-improvement, made or gone on with in the same way."""
    folder = folder_of(out, modality, seed, rounds)
    rows: Shares = _summary(
        folder,
        "self_improve.py",
        modality,
        seed,
        settings,
        *("--dir", str(folder), "--rounds", str(rounds)),
        complete=lambda summary: f"e{rounds}" in summary["rows"],
    )["rows"]
    asked = {"base", *(f"e{number}" for number in range(1, rounds + 1))}
    return {name: row for name, row in rows.items() if name.split()[-1] in asked}


def folder_of(out: Path, modality: str, seed: int, rounds: int | None = None, *, first: bool = False) -> Path:
    """Where a run lies, or its rounds, or the run before it."""
    kind = "first-" if first else "" if rounds is None else "rounds-"
    return out.absolute() / f"{kind}{modality}-{seed}"


def commits_of(folder: Path) -> list[str]:
    """At which a run was started and gone on with; "unknown" of one that was made without a note of it."""
    note = folder.with_name(f"{folder.name}.commit")
    return note.read_text(encoding="utf-8").split() if note.exists() else ["unknown"]


def made_at(out: Path, modality: str, seed: int, rounds: int | None, first: First | None) -> list[str]:
    """The commits of what a seed's rows are of: a run with the one before it, or rounds."""
    folders = [folder_of(out, modality, seed, rounds)]
    if first is not None:
        folders.insert(0, folder_of(out, modality, seed, first=True))
    return list(dict.fromkeys(commit for folder in folders for commit in commits_of(folder)))


def head() -> str:
    """The commit of this clone, with a "+" where files differ; "unknown" outside of one."""
    return code_version().partition(" at ")[2] or "unknown"


def _summary(
    folder: Path,
    script: str,
    modality: str,
    seed: int,
    settings: Settings,
    *more: str,
    complete: Callable[[dict[str, Any]], bool] = bool,
) -> dict[str, Any]:
    """What a script's work in ``folder`` left as its summary; the script is run unless that is ``complete``. Raises
    VCapError where a run with another configuration lies there."""
    # The scripts are run in the repository, wherever this was started.
    files = [
        ROOT / "configs" / "embedded" / f"{modality}.yaml",
        *(file.absolute() for file in settings.fragments),
    ]
    keys = [f"seed={seed}", *settings.overrides]
    check_resumption(load_config(RunConfig, files, [*keys, f"modality={modality}"]), folder)
    path = folder / "summary.json"
    if not path.exists() or not complete(json.loads(path.read_text(encoding="utf-8"))):
        commits = commits_of(folder) if folder.exists() else []
        folder.parent.mkdir(parents=True, exist_ok=True)
        note = "\n".join(dict.fromkeys([*commits, head()])) + "\n"
        folder.with_name(f"{folder.name}.commit").write_text(note, encoding="utf-8")
        words = ["--modality", modality, *(f"--config={file}" for file in files), *keys, *more]
        subprocess.run([sys.executable, str(ROOT / "launch" / script), *words], check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def table(modality: str, seeds: list[Shares]) -> str:
    """Mean and range over the seeds, as Markdown."""
    columns = {
        "coverage": "facts covered, c / N",
        "hallucination": "false claims, (n - c) / n",
        "invented_share": "claims of objects not there",
    }
    lines = [
        f"| {' | '.join([f'{modality}s, {len(seeds)} seeds', *columns.values()])} |",
        f"|{'---|' * (1 + len(columns))}",
    ]
    for row in seeds[0]:
        cells = [spread([shares[row][key] for shares in seeds]) for key in columns]
        lines.append(f"| {' | '.join([row, *cells])} |")
    return "\n".join(lines)


def spread(shares: Sequence[float | None]) -> str:
    """``mean% (least to most)`` of the seeds that claim anything, and how many do not."""
    told = [100 * share for share in shares if share is not None]
    without = f"{len(shares) - len(told)} without claims"
    if not told:
        return without
    text = f"{sum(told) / len(told):.1f}% ({min(told):.1f} to {max(told):.1f})"
    return text if len(told) == len(shares) else f"{text}, {without}"


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
    parser.add_argument(
        "--first",
        type=Path,
        metavar="FRAGMENT",
        help="train with this fragment in addition first, and from there without it",
    )
    parser.add_argument("--first-steps", type=int, metavar="N", help="steps of the run with --first")
    parser.add_argument("--out", type=Path, default=Path("runs/headline"), help="folder of the runs")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="single keys of the configuration, after all fragments",
    )
    args = parser.parse_args()
    if args.seeds < 1 or (args.rounds is not None and args.rounds < 1):
        parser.error("--seeds and --rounds: give at least 1")
    if (args.first is None) != (args.first_steps is None) or (args.first and args.rounds):
        parser.error("--first and --first-steps: give both, or neither, and not with --rounds")
    settings = Settings(fragments=args.config, overrides=args.overrides)
    first = None if args.first is None else First(args.first, args.first_steps)
    found: dict[str, list[Shares]] = {}
    commits: dict[str, list[list[str]]] = {}
    try:
        for modality in args.modality or ["image", "video"]:
            found[modality] = [
                run_of(args.out, modality, seed, settings, first)
                if args.rounds is None
                else rounds_of(args.out, modality, seed, args.rounds, settings)
                for seed in range(args.seeds)
            ]
            commits[modality] = [
                made_at(args.out, modality, seed, args.rounds, first) for seed in range(args.seeds)
            ]
    except VCapError as error:
        raise SystemExit(f"error: {error}") from error
    file = args.out / ("headline.json" if args.rounds is None else "rounds.json")
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for modality, seeds in found.items():
        pairs = zip(commits[modality], seeds, strict=True)
        known[modality] = [{"commits": at, **shares} for at, shares in pairs]
    file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    for modality, seeds in found.items():
        print(f"\n{table(modality, seeds)}")
        if any(at != [head()] for at in commits[modality]):
            told = ", ".join(f"seed {seed}: {' '.join(at)}" for seed, at in enumerate(commits[modality]))
            print(f"not all made at this commit, {head()}: {told}")


if __name__ == "__main__":
    main()
