"""Lays runs side by side: several seeds of one configuration as mean and range.

    python launch/runs.py runs
    python launch/runs.py runs/seed0 runs/seed1 runs/higher-rate --html runs/index.html

Folders are runs, or hold some, at whatever depth. Runs whose configurations differ in nothing that decides a result but
the seed are one arm. Of each arm stand the evaluations of its policy and the reward, at the start and now, and how far
it has come. Runs may be at work meanwhile. One that cannot be read is named, the rest is shown, and the exit status is
1.
"""

from __future__ import annotations

from collections.abc import Sequence

from vcap_jax.run.command_line import command_parser, guarded, page_argument, tell


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="runs, or folders of runs")
    parser.add_argument("--html", type=page_argument, metavar="FILE", help="write one HTML page, with curves")
    args = parser.parse_args(arguments)

    def work() -> int:
        from vcap_jax.report.arms import arms_of, find_runs, not_begun, read_run
        from vcap_jax.report.arms_page import as_text, write_arms_page
        from vcap_jax.report.run_folder import RunFolder
        from vcap_jax.run.folders import MAY_DIFFER
        from vcap_jax.run.judge_record import noted_judge
        from vcap_jax.system.errors import VCapError

        runs, broken = [], False
        folders = find_runs(args.folders)
        for folder in folders:
            try:
                judge = noted_judge(RunFolder(folder))
                runs.append(read_run(folder, MAY_DIFFER, judge=judge))
            except (VCapError, OSError) as error:
                tell(f"{folder} is left out: {error}")
                broken = True
        if waiting := not_begun(args.folders, folders):
            tell(f"not begun, without a step so far: {', '.join(map(str, waiting))}")
        if not runs:
            return 1
        arms = arms_of(runs)
        print(as_text(arms), end="")
        if args.html:
            write_arms_page(args.html, arms)
            print(args.html)
        return int(broken)

    return guarded(work, goes_on=False)
