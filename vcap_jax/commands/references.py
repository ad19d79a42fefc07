r"""Writes a pool of references for a manifest, from any captioner. Started again, it goes on where it stopped.

    python launch/references.py --out pools/base.jsonl                            # the embedded world, its backbone
    python launch/references.py --by runs/embedded-image --out pools/e1.jsonl     # by a run's last checkpoint
    python launch/references.py --config configs/paper/image.yaml --by /models/Qwen3-VL-8B-Instruct \
        --out pools/base.jsonl data.manifest=/data/train.jsonl references.per_sample=4
    python launch/references.py --by http://127.0.0.1:8000 --out pools/served.jsonl judge.concurrency=64
    python launch/references.py --shard 2/8 --out /shared/pools/base.jsonl ...       # one of eight processes

How captions are drawn is said by ``references.*`` (sampling, length, how many, windows of videos), which default to
``rollout.*``; ``seed`` is theirs too. An endpoint is treated as ``judge.*`` says (concurrency, deadlines, retries).
Train on the pool with data.references=POOL.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.captioning.parts import Shard
from vcap_jax.run.command_line import add_captioner_options, config_parser, run_command, say

if TYPE_CHECKING:
    from vcap_jax.run.config import RunConfig


def shard(text: str) -> Shard:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise ArgumentTypeError(f"{text!r} is no share: give INDEX/COUNT, from 0/COUNT on")
    return Shard(index=int(match[1]), count=int(match[2]))


def parse_arguments(arguments: Sequence[str] | None = None) -> Namespace:
    parser = config_parser(__doc__)
    parser.add_argument("--out", type=Path, help="the pool, a JSONL file")
    add_captioner_options(
        parser,
        "a Hugging Face folder, an Orbax checkpoint, a run folder, or the http address of a chat endpoint "
        "(default: model.path)",
        required=False,
    )
    parser.add_argument(
        "--ended-only",
        action="store_true",
        help="leave out captions that the token budget cut off: for pools to fine-tune on (launch/sft.py)",
    )
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="of a pool that is complete: try again the samples that got no references; the pool as it was stays in "
        "OUT.earlier-DIGEST",
    )
    parser.add_argument("--shard", type=shard, help="INDEX/COUNT: this process's share of the samples")
    args = parser.parse_intermixed_args(arguments)
    if args.out is None and not (args.help_config or args.print_config):
        parser.error("--out is required: where the pool goes")
    if args.out is not None and args.out.is_dir():
        parser.error(f"--out {args.out} is a folder: name a file in it, such as {args.out / 'pool.jsonl'}")
    if args.retry_failed and args.shard is not None:
        parser.error("--retry-failed goes over a whole pool: leave --shard out")
    if args.retry_failed and args.out is not None and _of_a_run(args.out):
        parser.error(
            f"--retry-failed would change {args.out}, which a run began with or goes on with: give a copy of it, "
            "and a new run the copy (data.references)"
        )
    return args


def _of_a_run(pool: Path) -> bool:
    """Whether a run has written the pool for itself (RUN/references/), or several runs that are done together
    (DIR/pools/, DIR/TEACHER/)."""
    from vcap_jax.report.run_folder import RunFolder

    return RunFolder(pool.absolute().parent.parent).kind.is_file()


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)

    def command(config: RunConfig) -> None:
        from vcap_jax.captioning.engines import served_endpoint
        from vcap_jax.captioning.settings import is_served
        from vcap_jax.references.command import PoolRequest, write_requested_pool

        endpoint = None
        if args.by is not None and is_served(args.by):
            endpoint = served_endpoint(config.judge, args.by, args.served_model, args.api_key_env)
        request = PoolRequest(
            path=args.out,
            captioner=None if endpoint is not None else args.by,
            step=args.step,
            endpoint=endpoint,
            shard=args.shard or Shard(),
            ended_only=args.ended_only,
            retry_failed=args.retry_failed,
        )
        write_requested_pool(config, request, say=say)

    return run_command(args, command)
