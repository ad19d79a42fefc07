r"""Trains a captioner by GRPO on the witness-adjudicator reward.

    python launch/train.py --modality image                                  # the embedded world, minutes on a CPU
    python launch/train.py --modality video --run-dir runs/clips --resume    # go on with a run
    python launch/train.py --config configs/paper/image.yaml model.path=/models/Qwen3-VL-8B-Instruct \
        data.manifest=/data/coconut/manifest.jsonl 'judge.urls=[http://127.0.0.1:8000]'

Anything in the configuration can be set on the command line as section.key=value. Several processes share a run when
each is started with the same command and, in addition,

    distributed.coordinator=HOST:PORT distributed.processes=4 distributed.process_id=0      # 1, 2, 3 for the others
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
    parser.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/NAME)")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in the folder, if there is one"
    )
    args = parser.parse_intermixed_args(arguments)

    def command(config: RunConfig, processes: Processes) -> None:
        from vcap_jax.recipes.grpo import run
        from vcap_jax.run.checks import check_run
        from vcap_jax.run.folders import next_steps, open_told_run

        root = args.run_dir or Path("runs") / config.name
        check_run(config, processes)  # before there is a folder, which another start would find used
        say = speaker(processes)
        config, folder = open_told_run(config, root, processes, say, resume=args.resume)
        run(config, folder, say=say, processes=processes)
        if processes.first:
            say(next_steps(folder, config.modality))

    return run_shared_command(args, command)
