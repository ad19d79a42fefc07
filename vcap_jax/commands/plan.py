"""Plans a run for hardware that is not there: compiles its real programs and says whether they fit and how fast they
can be.

    python launch/plan.py --hardware h800x8 --modality image --policy-devices 6
    python launch/plan.py --hardware v5p-16 --modality video --json plan.json
    python launch/plan.py --hardware h100x1 --modality image 'model.lora={rank: 64, alpha: 128}'
    python launch/plan.py --hardware h800x8 --modality image --faster    # what would save time?

Any CPU machine will do; it needs the package's ``plan`` extra. The configuration is the paper's
(configs/paper, for TPUs configs/tpu) unless --config is given; anything in it can be set as section.key=value. No
weights are read: model.path may be a folder with a config.json, a run or a published size (8B).

Ends with 0 if every program of a step fits, 1 if one does not, 2 if there is no plan, 3 if what --programs names fits
and the other programs were not compiled.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from vcap_jax.run.command_line import command_parser, guarded, json_argument, tell


def _fraction(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"give a share above 0 and at most 1, not {text!r}")
    return share


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    from vcap_jax.system.hardware import known_names

    parser = command_parser(__doc__)
    parser.add_argument("--hardware", required=True, help=f"one of {', '.join(known_names())}")
    parser.add_argument("--modality", choices=("image", "video"), required=True)
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        help="YAML file; given again, later files win (default: the paper's, for TPUs those of configs/tpu)",
    )
    parser.add_argument(
        "--policy-devices",
        type=int,
        help="GPUs of the node for the policy, the others are the judge's (default: all)",
    )
    parser.add_argument(
        "--memory-fraction",
        type=_fraction,
        metavar="SHARE",
        help="of each device's memory that programs may use, above 0 and at most 1",
    )
    parser.add_argument(
        "--typical",
        action="store_true",
        help="captions of the estimated usual lengths, not the longest allowed",
    )
    parser.add_argument(
        "--programs", help="compile only these, by first word: vision,prefill,decode,gradient,..."
    )
    parser.add_argument("--no-trials", action="store_true", help="do not look for changes if it does not fit")
    parser.add_argument(
        "--faster",
        action="store_true",
        help="if it fits, look for changes that make a step quicker: each compiles some programs",
    )
    parser.add_argument("--json", type=json_argument, help="write the plan there as well")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser.parse_intermixed_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    from vcap_jax.plan import targets

    targets.prepare_environment()
    args = parse_arguments(arguments)
    from vcap_jax.configuration import load_config, shipped_configs
    from vcap_jax.plan.planning import make_plan
    from vcap_jax.plan.tables import as_json, render
    from vcap_jax.plan.trials import try_changes, try_speedups
    from vcap_jax.run.config import RunConfig
    from vcap_jax.system.hardware import hardware

    logging.getLogger("vcap_jax.parallel.sharding").setLevel(logging.WARNING)

    def make() -> int:
        machine = hardware(args.hardware)
        folder = "tpu" if machine.chip.platform == "tpu" else "paper"
        files = args.config or [shipped_configs() / folder / f"{args.modality}.yaml"]
        config = load_config(RunConfig, files, [*args.overrides, f"modality={args.modality}"])
        plan = make_plan(
            config,
            machine,
            policy_devices=args.policy_devices,
            fraction=args.memory_fraction,
            typical=args.typical,
            only=frozenset(args.programs.split(",")) if args.programs else None,
            say=tell,
        )
        trials = []
        given = {"fraction": args.memory_fraction, "policy_devices": args.policy_devices, "say": tell}
        if plan.peak > plan.capacity and not args.no_trials:
            trials = try_changes(plan, config, **given)
        elif args.faster and plan.fits and not plan.left_out:
            trials = try_speedups(plan, plan.config, **given)
        print(render(plan, trials))
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(as_json(plan, trials), indent=1) + "\n", encoding="utf-8")
        if not plan.fits:
            return 1
        return 3 if plan.left_out else 0

    return guarded(make, goes_on=False, failed=2)
