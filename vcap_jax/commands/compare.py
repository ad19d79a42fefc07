r"""Lays results of vcap evaluate side by side, with paired differences and the published figures.

    python launch/compare.py results/base results/mine
    python launch/compare.py base=results/Qwen3-VL-8B-Instruct e1=results/e1 e2=results/e2 --html compared.html

Each folder is what vcap evaluate wrote (its --out), or a folder NAME in it. Differences are to the first folder, over
the samples that both have, drawn alike, with 95% bootstrap intervals. Results of different judges, modes, options or
texts of questions stand side by side without a difference, and what differs is said. The published figures name their
judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vcap_jax.run.command_line import command_parser, guarded, json_argument, named_paths, page_argument


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("folders", nargs="+", metavar="[NAME=]FOLDER", help="results of a captioner")
    parser.add_argument("--benchmark", help="only these, divided by commas")
    parser.add_argument("--json", type=json_argument, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--html", type=page_argument, metavar="FILE", help="write one HTML page")
    args = parser.parse_args(arguments)

    def work() -> None:
        from vcap_jax.evals.benchmarks.comparison import compare, read_results
        from vcap_jax.evals.benchmarks.comparison_page import as_text, write_page
        from vcap_jax.evals.protocol import EvaluatorError
        from vcap_jax.system.files import write_json

        folders = {label: Path(folder) for label, folder in named_paths(args.folders).items()}
        comparisons = compare(read_results(folders))
        if args.benchmark:
            wanted = {name.strip() for name in args.benchmark.split(",")}
            comparisons = [one for one in comparisons if one.benchmark in wanted]
            if missing := wanted - {one.benchmark for one in comparisons}:
                raise EvaluatorError(f"no folder has results of {', '.join(sorted(missing))}")
        print(as_text(comparisons), end="")
        if args.json:
            write_json(args.json, [comparison.row() for comparison in comparisons])
        if args.html:
            write_page(args.html, comparisons)

    return guarded(work, goes_on=False)
