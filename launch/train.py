"""Trains a captioner by GRPO on the witness-adjudicator reward.

    python launch/train.py --modality image                                  # the embedded world, minutes on a CPU
    python launch/train.py --modality video --run-dir runs/clips --resume    # go on with a run
    python launch/train.py --config configs/paper/image.yaml model.path=/models/Qwen3-VL-8B-Instruct \
        data.manifest=/data/coconut/manifest.jsonl 'judge.urls=[http://127.0.0.1:8000]'

Anything in the configuration can be set on the command line as section.key=value.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modality", choices=("image", "video"), help="what the data are (default: image)")
    parser.add_argument(
        "--config", action="append", type=Path, help="YAML file; given again, later files win"
    )
    parser.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/NAME)")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in the folder, if there is one"
    )
    parser.add_argument(
        "--help-config", action="store_true", help="list every key of the configuration and exit"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved configuration and exit"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser.parse_args(arguments)


def main() -> int:
    args = parse_arguments()
    # The driver's messages about machine features are noise for a user; errors still come through.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import jax

    from vcap_jax.config import RunConfig
    from vcap_jax.configuration import ConfigError, describe, dump_config, load_config
    from vcap_jax.data.errors import ManifestError, MediaError, NoUsableSamplesError
    from vcap_jax.grpo.trainer import TrainingStopped
    from vcap_jax.judge_process import JudgeStartError
    from vcap_jax.qwen3_vl.weights import CheckpointError
    from vcap_jax.report.run_folder import RunFolder, RunFolderError
    from vcap_jax.reward.errors import JudgeUnavailable
    from vcap_jax.reward.store import StoreError
    from vcap_jax.rollout.engine import RolloutError
    from vcap_jax.run import device_summary, run

    if args.help_config:
        print(describe(RunConfig))
        return 0
    modality = args.modality or "image"
    files = args.config
    if not files:
        files = [ROOT / "configs" / "embedded" / f"{modality}.yaml"]
        print(
            f"No --config given: this is the embedded world ({files[0].relative_to(ROOT)}), a small instance of the "
            f"real run.\nThe paper's run is --config configs/paper/{modality}.yaml."
        )
    overrides = list(args.overrides)
    if args.modality:
        overrides.append(f"modality={args.modality}")
    try:
        config = load_config(RunConfig, files, overrides)
        if args.print_config:
            print(dump_config(config), end="")
            return 0
        folder = RunFolder.open(
            args.run_dir or Path("runs") / config.name,
            config,
            resume=args.resume,
            may_differ=("logging", "judge"),
        )
        if config.compilation_cache:
            jax.config.update("jax_compilation_cache_dir", config.compilation_cache)
        print(f"run {folder.root} on {device_summary()}", flush=True)
        run(config, folder, say=lambda text: print(text, flush=True))
    except (
        CheckpointError,
        ConfigError,
        FileNotFoundError,
        JudgeStartError,
        JudgeUnavailable,
        ManifestError,
        MediaError,
        NoUsableSamplesError,
        RolloutError,
        RunFolderError,
        StoreError,
        TrainingStopped,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, TrainingStopped):
            again = [*sys.argv, *([] if args.resume else ["--resume"])]
            print(f"continue with: {shlex.join([sys.executable, *again])}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
