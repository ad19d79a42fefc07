"""The paper's table and figure of human evaluation, from a study's answers: what people confirmed, how they and the
reward rank the models, and how well everybody agrees.

    python launch/agreement.py STUDY                              # STUDY/agreement/agreement.html, .json, .svg, .png
    python launch/agreement.py STUDY --records records/           # answers that launch/annotate.py --export wrote
    python launch/agreement.py STUDY --records project.json --out tables/        # answers of a Label Studio project

May be called while people still annotate. No accelerator and no JAX are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vcap_jax.run.command_line import command_parser, guarded


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path, help="of the study")
    parser.add_argument(
        "--records", type=Path, help="answers from here, not those that were given in the study"
    )
    parser.add_argument("--out", type=Path, help="default: STUDY/agreement")
    parser.add_argument("--seed", type=int, default=0, help="of the intervals (default: 0)")
    args = parser.parse_args(arguments)

    def work() -> None:
        from vcap_jax.human_eval.agreement_report import percent, write_agreement
        from vcap_jax.human_eval.answers import StoredAnswers
        from vcap_jax.human_eval.exchange import SKIPPED, check_fit, read_records, records_of
        from vcap_jax.human_eval.results import results_of
        from vcap_jax.human_eval.reward_agreement import OVERALL
        from vcap_jax.human_eval.study import ANSWERS, read_study

        study = read_study(args.folder)
        if args.records is not None:
            records = read_records(args.records, study)
            check_fit(study, records)
            if records.skipped:
                print(f"{records.skipped} left out in {args.records}: {SKIPPED}")
        else:
            with StoredAnswers(args.folder / ANSWERS) as stored:
                records = records_of(study, stored)
        results = results_of(study.items, study.propositions, records, seed=args.seed)
        for path in write_agreement(results, args.out or args.folder / "agreement", name=study.settings.name):
            print(path)
        print(f"{len(records.answers)} answers about {results.answered} of {results.items} items")
        if results.mean_pairs:
            print(
                "people and reward order two captions alike: "
                f"{percent(results.mean_pairs[OVERALL]['counted'])}, ties counted"
            )

    return guarded(work, goes_on=False)
