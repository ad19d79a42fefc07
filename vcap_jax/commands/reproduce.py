"""Puts the paper's claims to the test in the embedded world and writes one report of it all.

    python launch/reproduce.py                                        # --quick: the headline claims
    python launch/reproduce.py --full --out /data/studies             # every table that has a counterpart
    python launch/reproduce.py --full --only ablations --modality video
    python launch/reproduce.py --full --seeds 5 --settle 11           # and more seeds where these cannot tell
    python launch/reproduce.py --full --seeds 5 --settle 11 --anew    # and new ones where those cannot either
    python launch/reproduce.py --full --report-only                   # the report of what is there so far

Every run is a folder as launch/train.py, self_improve.py and distill.py make it. Started again, the program goes on
where it stopped; what is complete is not done again, and --full takes over the runs of --quick. OUT/report.html needs
no other file, OUT/report.json holds the same figures. OUT/results.jsonl keeps what a report is made of: with
--results such a file, of this machine or another, saves its runs. All three are written anew every ten minutes and at
the end.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.run.command_line import command_parser, guarded, say, tell
from vcap_jax.studies.arms import MODALITIES, STUDIES
from vcap_jax.system.host_limits import usable_cores

if TYPE_CHECKING:
    from vcap_jax.studies.tasks import Plan, Task


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="the headline claims, on images (default)")
    size.add_argument("--full", action="store_true", help="all studies, images and videos")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduction"), help="folder of everything")
    parser.add_argument(
        "--only", action="append", metavar="STUDY", help=f"again for more: {', '.join(STUDIES)}"
    )
    parser.add_argument(
        "--modality", action="append", choices=MODALITIES, help="again for more (default: all)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on (default: 3)")
    parser.add_argument(
        "--settle",
        type=int,
        metavar="SEEDS",
        help="then as many more for each claim of the paper that cannot be told as would tell it, if so many in all do",
    )
    parser.add_argument(
        "--anew",
        action="store_true",
        help="with --settle: then ask those that are open still anew, of seeds that no look has used",
    )
    parser.add_argument("--workers", type=int, help="runs at a time (default: one for each core, at most 4)")
    parser.add_argument(
        "--results",
        type=Path,
        action="append",
        metavar="FILE",
        help="a results.jsonl: what stands in it is not run again; again for more",
    )
    parser.add_argument("--report-only", action="store_true", help="run nothing")
    parser.add_argument("--list", action="store_true", help="print what there is to run and exit")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for every run")
    args = parser.parse_intermixed_args(arguments)
    if args.workers is not None and args.workers < 1:
        parser.error(f"--workers {args.workers}: give at least 1")
    if args.settle is not None and args.seeds < 2:
        parser.error(f"--settle {args.settle}: how many seeds tell a claim shows from --seeds 2 on")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    return guarded(lambda: _reproduce(args))


def _reproduce(args: argparse.Namespace) -> int:
    from vcap_jax.studies.collect import collect
    from vcap_jax.studies.report import write_report
    from vcap_jax.studies.results import known_keys, read_results
    from vcap_jax.studies.schedule import only_one, outstanding, work
    from vcap_jax.studies.settle import asking_anew, settling
    from vcap_jax.studies.tasks import plan

    if args.anew and args.settle is None:
        tell("--anew is a third look: give --settle SEEDS too, the most that a claim may take")
        return 2
    out = args.out.resolve()
    studies = plan(
        quick=not args.full,
        seeds=range(args.seeds),
        only=args.only or (),
        modalities=args.modality or MODALITIES,
        overrides=args.overrides,
    )
    known, others = read_results(args.results or ())
    if others:
        tell(f"{others} results are of another starting policy or world and left out")
    workers = args.workers or min(4, usable_cores())
    command = shlex.join(["python", "launch/reproduce.py", *sys.argv[1:]])
    now_and_then, unused = NowAndThen(), None

    def report() -> Path:
        return write_report(studies, out, command=command, known=known, unused=unused)

    def left(wanted: Plan) -> list[Task]:
        return outstanding(wanted, out, known_keys(wanted, known))

    def perform(wanted: Plan) -> bool:
        """Whether all that is wanted is there now."""
        if args.report_only or args.list:
            return not left(wanted)
        with only_one(out):
            outcome = work(
                wanted,
                out,
                workers=workers,
                say=say,
                on_done=lambda _: now_and_then(report),
                known=known_keys(wanted, known),
            )
        for key in outcome.blocked:
            tell(f"{key} was left out: it needs a run that failed")
        return not outcome.failed

    complete = perform(studies)
    if args.settle is not None and complete:
        studies = settling(studies, collect(studies, out, known), args.settle)
        for claim, seeds in studies.settled.items():
            say(f"looked at again with {seeds} seeds: {claim}")
        if not studies.settled:
            say(f"up to {args.settle} seeds would tell none of the paper's claims that are open")
        complete = perform(studies)
    elif args.settle is not None:
        tell("--settle has to wait: it starts from all runs of the first seeds")
    if args.anew and complete:
        unused = asking_anew(studies, collect(studies, out, known), args.settle)
        for claim, seeds in unused.settled.items():
            say(f"asked anew of {seeds} seeds that no look has used: {claim}")
        if not unused.settled:
            say(f"{args.settle} seeds would tell none of the paper's claims that are open still")
        complete = perform(unused)
    elif args.anew:
        tell("--anew has to wait: it starts from all runs of the second look")
    if args.list:
        for wanted in filter(None, (studies, unused)):
            _list(wanted, left(wanted))
        return 0
    path = report()
    print(f"{path} and {path.with_suffix('.json')}")
    return 0 if complete or args.report_only else 1


def _list(studies: Plan, left: Sequence[Task]) -> None:
    waiting = {task.key for task in left}
    for key, task in studies.tasks.items():
        print(f"{'to do' if key in waiting else 'complete':>8}  {key}  {task.folder}")


class NowAndThen:
    """Calls what it is given at most every ten minutes: a report takes seconds that the runs could use."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, act: Callable[[], object]) -> None:
        if time.monotonic() - self._last > 600:
            act()
            self._last = time.monotonic()
