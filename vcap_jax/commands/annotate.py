"""Lets people decide propositions about captions and rank the captions, in the browser; nothing leaves this machine.

    python launch/annotate.py --demo                         # an example of the embedded world, made on the spot
    python launch/annotate.py STUDY                          # a folder with items.jsonl and propositions.jsonl
    python launch/annotate.py STUDY --annotators anna ben chris --overlap 0.3
    python launch/annotate.py STUDY --export records/        # what is decided, as JSON Lines and for Label Studio
    python launch/annotate.py STUDY --import project.json    # answers of a Label Studio project, or of such a folder
    python launch/annotate.py STUDY --tasks project.json     # makes the study of a Label Studio project's tasks

It prints a link for everybody. Only this machine can open them; a tunnel (ssh -L 8077:127.0.0.1:8077 HOST) brings them
to others, or --host 0.0.0.0 --name ADDRESS inside a network that is trusted. Ctrl-C ends it, and the same command goes
on. No accelerator and no JAX are needed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.run.command_line import command_parser, guarded, say

if TYPE_CHECKING:  # the help is shown without importing what only the work needs
    from vcap_jax.human_eval.study import Settings, Study

DEMO = Path("runs/annotation-demo")
DEMO_IMAGES, DEMO_VIDEOS = 6, 2


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help=f"of the study (with --demo: {DEMO})")
    parser.add_argument("--demo", action="store_true", help="make the folder of the embedded world's scenes")
    parser.add_argument("--annotators", nargs="+", metavar="NAME", help="who annotates; kept in study.json")
    parser.add_argument("--adjudicator", metavar="NAME", help="who decides disputes; kept in study.json")
    parser.add_argument(
        "--overlap", type=float, help="share of items for several annotators; kept in study.json"
    )
    parser.add_argument("--overlap-size", type=int, help="how many annotators those have; kept in study.json")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to serve on (default: this machine alone)"
    )
    parser.add_argument("--port", type=int, default=8077, help="default: 8077; 0 takes a free one")
    parser.add_argument("--name", action="append", default=[], help="by which others ask for this machine")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write what is decided so far, and end")
    parser.add_argument(
        "--import", type=Path, dest="source", metavar="SOURCE", help="take answers in, and end"
    )
    parser.add_argument("--tasks", type=Path, metavar="FILE", help="make the study of these tasks, and end")
    args = parser.parse_args(arguments)
    if args.folder is None and not args.demo:
        parser.error("give the study's folder, or --demo")
    args.folder = args.folder or DEMO
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    ends = args.export is not None or args.source is not None or args.tasks is not None

    def work() -> None:
        from vcap_jax.human_eval.application.server import serve
        from vcap_jax.human_eval.errors import StudyError
        from vcap_jax.human_eval.study import ITEMS, check_video, read_study
        from vcap_jax.system.loopback import is_loopback

        if args.tasks is not None:
            _make(args)
            return
        if args.demo and not (args.folder / ITEMS).exists():
            _demo(args)
        study = read_study(args.folder, _settings(args))
        if ends:
            _exchange(args, study)
            return
        if not is_loopback(args.host) and not args.name:
            raise StudyError(
                f"--host {args.host} lets other machines in: say with --name by which name or address they ask for it, "
                "and requests under any other are refused"
            )
        for item in study.items.values():
            check_video(args.folder, item)
        serve(study, host=args.host, port=args.port, names=args.name, say=say)

    return guarded(work, goes_on=not ends)


def _settings(args: argparse.Namespace) -> Settings:
    from pydantic import ValidationError

    from vcap_jax.human_eval.errors import StudyError
    from vcap_jax.human_eval.records import first_problem
    from vcap_jax.human_eval.study import Settings, read_settings

    given = {name: getattr(args, name) for name in ("annotators", "adjudicator", "overlap", "overlap_size")}
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        settings = Settings.model_validate(read_settings(args.folder).model_dump() | changes)
    except ValidationError as error:
        # By the option: what study.json holds was checked when it was read.
        problem = re.sub(
            r'^"(\w+)[.\d]*": ', lambda found: f"--{found[1].replace('_', '-')}: ", first_problem(error)
        )
        raise StudyError(problem) from error
    if args.overlap and len(settings.annotators) == 1:
        raise StudyError(
            f"--overlap is {args.overlap:g}, and {settings.annotators[0]} alone is named: name more people"
        )
    return settings


def _demo(args: argparse.Namespace) -> None:
    from vcap_jax.human_eval.embedded import write_embedded_study
    from vcap_jax.human_eval.study import Settings

    settings = Settings(name="Embedded world", annotators=("anna", "ben"), adjudicator="carla", overlap=0.5)
    args.folder.mkdir(parents=True, exist_ok=True)
    write_embedded_study(args.folder, images=DEMO_IMAGES, videos=DEMO_VIDEOS, settings=settings)
    print(
        f"made an example in {args.folder}: {DEMO_IMAGES} pictures and {DEMO_VIDEOS} videos of the embedded world"
    )


def _make(args: argparse.Namespace) -> None:
    from vcap_jax.human_eval.errors import StudyError
    from vcap_jax.human_eval.exchange import read_tasks
    from vcap_jax.human_eval.label_studio import from_tasks
    from vcap_jax.human_eval.records import write_rows
    from vcap_jax.human_eval.study import ITEMS, PROPOSITIONS

    if (args.folder / ITEMS).exists():
        raise StudyError(f"{args.folder / ITEMS} is there already: name a new folder")
    found = from_tasks(read_tasks(args.tasks), str(args.tasks))
    write_rows(args.folder / PROPOSITIONS, found.propositions)
    write_rows(args.folder / ITEMS, found.items.values())  # last: where they are, a study is complete
    print(
        f"{len(found.items)} items and {len(found.propositions)} propositions in {args.folder}: put the media there, "
        f"and take {len(found.answers)} answers in with --import {args.tasks}"
    )


def _exchange(args: argparse.Namespace, study: Study) -> None:
    from vcap_jax.human_eval.answers import StoredAnswers
    from vcap_jax.human_eval.errors import StudyError
    from vcap_jax.human_eval.exchange import (
        SKIPPED,
        export_records,
        read_records,
        records_of,
        take_in,
        unranked,
    )
    from vcap_jax.human_eval.records import Records
    from vcap_jax.human_eval.store import AnswerStore
    from vcap_jax.human_eval.study import ANSWERS, read_settings
    from vcap_jax.system.file_locks import only_one

    path = args.folder / ANSWERS
    if args.source is not None:
        source = read_records(args.source, study)
        remedy = "end that one: while people are served nothing is taken in"
        with only_one(args.folder, StudyError, remedy), AnswerStore(path) as store:
            store.open_study(study)
            print(f"{take_in(study, store, source)} answers taken in from {args.source}")
        if source.skipped:
            print(f"{source.skipped} left out there: {SKIPPED}")
        if without := unranked(source):
            print(
                f"{without} items with answers have no rankings there: whoever gave these is asked for them here"
            )
        if not (source.answers or source.rankings or source.adjudicated):
            print(f"nothing was taken in: {args.source} holds no annotation that counts")
    elif study.settings != read_settings(args.folder):
        raise StudyError(
            "--export alone changes nothing, and would not keep these settings: leave them out, or start without it"
        )
    if args.export is not None:
        records = Records(answers=(), rankings=())
        if path.exists():  # read alone: people may be at work
            with StoredAnswers(path) as stored:
                records = records_of(study, stored)
        for written in export_records(study, records, args.export):
            print(written)
        print(f"{len(records.answers)} answers, {len(records.rankings)} rankings of items")
