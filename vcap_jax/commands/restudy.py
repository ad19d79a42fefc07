"""Computes the rewards of a run anew from its stored judgements, with other weights: no judge is asked.

    python launch/restudy.py runs/mine/judgements.sqlite --correctness 0.1 --text-quality 0

Prints one JSON line per candidate with the old and the new reward, and on standard error what they are of and with
which weights. Weights that are not named are the run's own, of the config.yaml beside the store; where there is none,
the paper's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from yaml import YAMLError

from vcap_jax.configuration import ConfigError, load_config, parse_yaml
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.restudy import Coverage, restudy
from vcap_jax.run.command_line import command_parser, guarded


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("store", type=Path, help="judgements.sqlite of a run")
    names = tuple(asdict(RewardWeights()))
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="WEIGHT")
    options = parser.parse_args(arguments)
    given = [f"{name}={value}" for name in names if (value := getattr(options, name)) is not None]
    try:
        load_config(RewardWeights, [], given)
    except ConfigError as error:
        parser.error(str(error))

    def show() -> int:
        config = options.store.with_name("config.yaml")
        own = run_weights(config) if config.is_file() else []
        weights = load_config(RewardWeights, [], [*own, *given])
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
        told = ", ".join(f"{name} {weight:g}" for name, weight in asdict(weights).items())
        whose = f"of {config}" if own else "the defaults"
        print(f"weights: {told}; those not named are {whose}", file=sys.stderr)
        return 0

    return guarded(show, goes_on=False)


def run_weights(config: Path) -> list[str]:
    """The weights that a run's config.yaml names, as settings, ``name=value``. Raises ConfigError."""
    try:
        row = parse_yaml(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, YAMLError) as error:
        raise ConfigError(f"{config} cannot be read: {error}") from error
    reward = row.get("reward") if isinstance(row, Mapping) else None
    weights = reward.get("weights") if isinstance(reward, Mapping) else None
    return [f"{name}={weight}" for name, weight in weights.items()] if isinstance(weights, Mapping) else []
