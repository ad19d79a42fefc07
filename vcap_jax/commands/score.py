r"""Scores captions that are there already by the reward of a training run, whoever wrote them. Started again, it asks
only what is not answered yet.

    python launch/score.py --captions captions.jsonl --config runs/mine/config.yaml --out scores/mine \
        data.manifest=/data/test.jsonl data.references=pools/test.jsonl
    python launch/score.py --captions captions.jsonl --config configs/paper/image.yaml --out scores/gpt \
        data.manifest=/data/test.jsonl data.references=pools/test.jsonl 'judge.urls=[http://127.0.0.1:8000]'

A line of the file has "id" and "captions", as launch/caption.py and evaluations write it; what launch/evaluate.py --by
takes is understood as well. OUT gets rewards.jsonl (a line for each caption: reward, scores, the judge's analysis, or
why there is none), rewards.html (the lowest and the highest rewards, with their pictures), summary.json (means over
samples with 95% intervals, failures, who judged) and judgements.sqlite (every answer; launch/restudy.py reckons with
other weights). What a reward is made of is said by reward.*, as in training; without data.references the manifest's own
references count. No policy is loaded; of videos, model.path says which frames are shown. Ends with 1 where a caption
could not be scored: the same command asks again for it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.run.command_line import config_parser, run_command, say

if TYPE_CHECKING:
    from vcap_jax.run.config import RunConfig


def main(arguments: Sequence[str] | None = None) -> int:
    parser = config_parser(__doc__)
    parser.add_argument("--captions", type=Path, help="a file of captions, as launch/caption.py writes it")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_intermixed_args(arguments)
    if None in (args.captions, args.out) and not (args.help_config or args.print_config):
        parser.error("give --captions, the file to score, and --out, the folder of the results")

    def command(config: RunConfig) -> int:
        from vcap_jax.recipes.score import ScoreRequest, score

        request = ScoreRequest(captions=args.captions, folder=args.out)
        summary = score(config, request, say=say)
        return 1 if summary["not_scored"] else 0

    return run_command(args, command)
