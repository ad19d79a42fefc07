r"""Fine-tunes a captioner on captions: next-token prediction, loss on the caption only.

    python launch/sft.py sft.captions=pools/base.jsonl                       # the embedded world, its backbone
    python launch/sft.py sft.captions=pools/base.jsonl --run-dir runs/sft --resume
    python launch/sft.py --config configs/paper/image.yaml model.path=/models/Qwen3-VL-8B-Instruct \
        data.manifest=/data/train.jsonl sft.captions=/data/captions.jsonl

Captions are a pool as launch/references.py writes it, or one JSON object per line with "id" and "references" of your
own; several captions of one picture are learned together and compute the picture once. Settings are ``sft.*``; model,
data, mesh and logging are those of training. Several processes share a run as they do in launch/train.py.
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
    parser.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/NAME-sft)")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in the folder, if there is one"
    )
    args = parser.parse_intermixed_args(arguments)

    def command(config: RunConfig, processes: Processes) -> None:
        from vcap_jax.recipes.sft import run_sft
        from vcap_jax.run.checks import check_sft_run
        from vcap_jax.run.folders import next_steps, open_told_run

        root = args.run_dir or Path("runs") / f"{config.name}-sft"
        check_sft_run(config, processes)  # before there is a folder, which another start would find used
        say = speaker(processes)
        config, folder = open_told_run(config, root, processes, say, resume=args.resume, work="supervised")
        run_sft(config, folder, say=say, processes=processes)
        if processes.first:
            say(next_steps(folder, config.modality))

    return run_shared_command(args, command)
