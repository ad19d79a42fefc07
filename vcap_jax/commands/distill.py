r"""Best-of-N distillation: fine-tunes the base on the best of N captions of each teacher.

    python launch/distill.py                                         # self-distillation in the embedded world
    python launch/distill.py --teacher self --teacher e1=runs/embedded-image-self-improve/e1 \
        --teacher e2=runs/embedded-image-self-improve/e2
    python launch/distill.py --config configs/paper/image.yaml model.path=/models/Qwen3-VL-8B-Instruct \
        --teacher e1=runs/e1 data.manifest=/data/train.jsonl data.references=pools/base.jsonl \
        'judge.urls=[http://127.0.0.1:8000]'

A teacher is "self" or NAME=CHECKPOINT (a Hugging Face folder, an Orbax checkpoint, a run). Candidates are drawn as in
training (``rollout.sampling``), scored by the configured reward with the references of ``data.references`` (or the
base's), and the best is learned as ``sft.*`` says. Started again, it goes on where it stopped. Several processes share
the work as they do in launch/train.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.run.command_line import config_parser, run_shared_command, speaker

if TYPE_CHECKING:
    from vcap_jax.parallel.processes import Processes
    from vcap_jax.run.config import RunConfig


def teacher(text: str) -> tuple[str, str | None]:
    name, equals, source = text.partition("=")
    if text == "self":
        return "self", None
    if not (name and equals and source) or "/" in name or name == "self":
        raise argparse.ArgumentTypeError(f'{text!r} is no teacher: give "self" or NAME=CHECKPOINT')
    return name, source


def main(arguments: Sequence[str] | None = None) -> int:
    parser = config_parser(__doc__)
    parser.add_argument("--dir", type=Path, help="folder of all stages (default: runs/NAME-distill)")
    parser.add_argument(
        "--teacher",
        action="append",
        type=teacher,
        help='"self" or NAME=CHECKPOINT, again for more (default: self)',
    )
    parser.add_argument("--candidates", type=int, default=8, help="N, captions per sample (default: 8)")
    args = parser.parse_intermixed_args(arguments)
    if args.candidates < 1:
        parser.error(f"--candidates {args.candidates}: give at least 1")

    def command(config: RunConfig, processes: Processes) -> None:
        from vcap_jax.parallel.processes import device_summary
        from vcap_jax.recipes.distill import Teacher, check_distillation, distill
        from vcap_jax.run.folders import open_run
        from vcap_jax.run.inputs import check_checkpoint

        root = args.dir or Path("runs") / f"{config.name}-distill"
        teachers = [Teacher(name=name, source=source) for name, source in args.teacher or [("self", None)]]
        # Before there is a folder.
        check_distillation(config, [teacher.name for teacher in teachers], args.candidates, processes)
        for name, source in args.teacher or []:
            if source is not None:
                check_checkpoint(source, key=f"--teacher {name}")
        config, folder = open_run(config, root, processes, work="distillation")
        say = speaker(processes)
        say(f"distillation in {root} on {device_summary(processes)}")
        distill(config, folder, teachers, candidates=args.candidates, say=say, processes=processes)

    return run_shared_command(args, command)
