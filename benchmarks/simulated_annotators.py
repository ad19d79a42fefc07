"""Has simulated annotators decide a study of the embedded world, through the real interface, and holds the table
against the truth.

    python launch/propose.py STUDY --judge embedded --manifest RUN/data/heldout/manifest.jsonl \\
        --captions base=START.jsonl e1=TRAINED.jsonl --items 40
    python benchmarks/simulated_annotators.py STUDY --error 0.1

For each model: confirmed omissions and inconsistencies with their intervals, beside what annotators who err that often
find on average, and the mean ranks. launch/agreement.py STUDY writes the whole table afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.human_eval.simulated import annotate
from vcap_jax.human_eval.answers import StoredAnswers
from vcap_jax.human_eval.embedded import read_truth
from vcap_jax.human_eval.exchange import Records, records_of
from vcap_jax.human_eval.protocol import Kind
from vcap_jax.human_eval.results import results_of
from vcap_jax.human_eval.study import ANSWERS, Study, read_study


def decided(folder: Path, study: Study) -> Records | None:
    """What is decided so far; None where nobody has opened the study."""
    if not (folder / ANSWERS).exists():
        return None
    with StoredAnswers(folder / ANSWERS) as stored:
        return records_of(study, stored)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the study, with truth.jsonl")
    parser.add_argument("--error", type=float, default=0.1, help="share of wrong labels (default: 0.1)")
    args = parser.parse_args()
    study, truth = read_study(args.folder), read_truth(args.folder)
    records = decided(args.folder, study)
    if records is not None and records.answers:
        raise SystemExit(
            f"{args.folder} has answers already, of whatever errors: make the study anew in another folder, or move "
            f"its {ANSWERS} elsewhere"
        )
    asyncio.run(annotate(study, truth, args.error))
    records = decided(args.folder, study)
    assert records is not None, "annotators leave answers"
    propositions = [one for ones in study.propositions.values() for one in ones]
    results = results_of(study.items, study.propositions, records)
    print(f"{len(study.items)} items, {len(truth)} propositions, {len(records.answers)} answers")
    missed = 0
    for row in results.rows:
        cells = []
        for kind in Kind:
            verdicts = [
                truth[one.prop_id].confirmed
                for one in propositions
                if (one.model, one.kind) == (row.model, kind)
            ]
            # Who errs gives each of the four other labels alike.
            expected = sum(1 - args.error if one else args.error / 4 for one in verdicts)
            found = row.confirmed[kind]
            inside = found.low <= expected <= found.high
            missed += not inside
            cells.append(
                f"{kind} {found.value:.1f} ({found.low:.1f} to {found.high:.1f}), expected {expected:.1f}"
                + ("" if inside else " OUTSIDE")
            )
        ranks = ", ".join(f"{name} {rank.value:.2f}" for name, rank in row.mean_rank.items())
        print(f"{row.model}: {'; '.join(cells)}; ranks {ranks}")
    print(f"{missed} of {2 * len(results.rows)} expected values lie outside their interval")
    return 0


if __name__ == "__main__":
    sys.exit(main())
