"""Computes the rewards of a run anew from its stored judgements, with other weights: no judge is asked.

    python launch/restudy.py runs/mine/judgements.sqlite --correctness 0.1 --text-quality 0

Prints one JSON line per candidate with the old and the new reward, and on standard error what they are of.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.restudy import Coverage, restudy
from vcap_jax.run.command_line import command_parser, guarded


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("store", type=Path, help="judgements.sqlite of a run")
    defaults = asdict(RewardWeights())
    for name, weight in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=weight)
    options = parser.parse_args(arguments)
    try:
        weights = load_config(RewardWeights, [], [f"{name}={getattr(options, name)}" for name in defaults])
    except ConfigError as error:
        parser.error(str(error))

    def show() -> int:
        coverage = Coverage()
        for row in restudy(options.store, weights):
            coverage.add(row)
            c = row.candidate
            line = {
                "step": c.step,
                "id": c.sample_id,
                "group": c.group,
                "place": c.index,
                "was": c.reward,
                "reward": row.reward,
            }
            print(json.dumps(line))
        print(coverage, file=sys.stderr)
        return 0

    return guarded(show, goes_on=False)
