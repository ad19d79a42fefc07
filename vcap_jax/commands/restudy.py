"""Computes the rewards of a run anew from its stored judgements, with other weights: no judge is asked.

    python launch/restudy.py runs/mine/judgements.sqlite --correctness 0.1 --text-quality 0
    python launch/restudy.py runs/mine/judgements.sqlite --correctness 0.1 --out rewards.jsonl

Says what the other weights would have changed: the mean reward, and how captions of one group are ordered, which is all
that a policy learns from. --out writes a JSON line per candidate with the old and the new reward ("-": to standard
output, and all else to standard error). Weights that are not named are the run's own, of the config.yaml beside the
store; where there is none, the paper's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from yaml import YAMLError

from vcap_jax.configuration import ConfigError, load_config, parse_yaml
from vcap_jax.reward.aggregation import RewardWeights, comparable
from vcap_jax.reward.restudy import Coverage, Effect, Restudied, restudy
from vcap_jax.run.command_line import command_parser, guarded
from vcap_jax.system.files import naming, write_through
from vcap_jax.system.json_values import JsonDict


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("store", type=Path, help="judgements.sqlite of a run")
    names = tuple(asdict(RewardWeights()))
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="WEIGHT")
    parser.add_argument(
        "--out", metavar="FILE", help="a JSON line per candidate goes there; - is standard output"
    )
    options = parser.parse_args(arguments)
    given = [f"{name}={value}" for name in names if (value := getattr(options, name)) is not None]
    try:
        load_config(RewardWeights, [], given)
    except ConfigError as error:
        parser.error(str(error))
    config, store = options.store.with_name("config.yaml"), options.store.resolve()
    own_files = (store, Path(f"{store}-wal"), Path(f"{store}-shm"), config.resolve())
    out = None if options.out in (None, "-") else Path(options.out)
    if out is not None and out.resolve() in own_files:
        parser.error(f"--out {out} is a file that the rewards are computed from: name another")

    def show() -> None:
        own = run_weights(config) if config.is_file() else []
        weights = load_config(RewardWeights, [], [*own, *given])
        coverage, effect = Coverage(), Effect()

        def tell(lines: TextIO | None) -> None:
            for row in restudy(options.store, weights):
                coverage.add(row)
                effect.add(row)
                if lines is not None:
                    print(json.dumps(_line(row)), file=lines)

        def write(path: Path) -> None:
            with path.open("w", encoding="utf-8") as lines:
                tell(lines)

        if out is None:
            tell(None if options.out is None else sys.stdout)
        elif out.exists() and not out.is_file():  # a pipe or a device, in whose place no file is to be
            with naming(out):
                write(out)
        else:
            write_through(out, write)
        effect.close()
        say = sys.stderr if options.out == "-" else sys.stdout
        print(f"{coverage}\n{effect}", file=say)
        told = ", ".join(f"{name} {weight:g}" for name, weight in asdict(weights).items())
        whose = f"of {config}" if own else "the defaults"
        print(f"weights: {told}; those not named are {whose}", file=say)

    return guarded(show, goes_on=False)


def _line(row: Restudied) -> JsonDict:
    c = row.candidate
    return {
        "step": c.step + 1,  # as metrics.jsonl and samples.jsonl count; the store counts from 0
        "id": c.sample_id,
        "group": c.group,
        "place": c.index,
        "was": c.reward,
        "reward": None if row.reward is None else comparable(row.reward),
    }


def run_weights(config: Path) -> list[str]:
    """The weights that a run's config.yaml names, as settings, ``name=value``. Raises ConfigError."""
    try:
        row = parse_yaml(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, YAMLError) as error:
        raise ConfigError(f"{config} cannot be read: {error}") from error
    reward = row.get("reward") if isinstance(row, Mapping) else None
    weights = reward.get("weights") if isinstance(reward, Mapping) else None
    return [f"{name}={weight}" for name, weight in weights.items()] if isinstance(weights, Mapping) else []
