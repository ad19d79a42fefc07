r"""Trains round after round, each from the base and on references by the round before: e1, e2, ...

    python launch/self_improve.py                                     # the embedded world, two rounds
    python launch/self_improve.py --modality video --rounds 3 --dir runs/clips
    python launch/self_improve.py --config configs/paper/image.yaml model.path=/models/Qwen3-VL-8B-Instruct \
        data.manifest=/data/train.jsonl 'judge.urls=[http://127.0.0.1:8000]'

Started again, it goes on where it stopped. DIR/e1, DIR/e2, ... are runs as launch/train.py makes them, DIR/pools has
what each but the first learned from, DIR/summary.json the table that is printed at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.run.command_line import config_parser, run_shared_command, speaker

if TYPE_CHECKING:
    from vcap_jax.parallel.processes import Processes
    from vcap_jax.run.config import RunConfig


def main(arguments: Sequence[str] | None = None) -> int:
    parser = config_parser(__doc__)
    parser.add_argument("--dir", type=Path, help="folder of all rounds (default: runs/NAME-self-improve)")
    parser.add_argument("--rounds", type=int, default=2, help="how many (default: 2)")
    args = parser.parse_intermixed_args(arguments)
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: give at least 1")

    def command(config: RunConfig, processes: Processes) -> None:
        from vcap_jax.parallel.processes import device_summary
        from vcap_jax.recipes.self_improve import self_improve
        from vcap_jax.run.checks import check_run
        from vcap_jax.run.folders import open_run

        root = args.dir or Path("runs") / f"{config.name}-self-improve"
        check_run(config, processes)  # before there is a folder
        config, folder = open_run(config, root, processes)
        say = speaker(processes)
        say(f"{args.rounds} rounds in {root} on {device_summary(processes)}")
        self_improve(config, folder, rounds=args.rounds, say=say, processes=processes)

    return run_shared_command(args, command)
