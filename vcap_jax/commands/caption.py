r"""Captions pictures and clips: files, folders, manifests, in any mixture, by any captioner.

    python launch/caption.py --by runs/embedded-image photo.jpg                       # a run's last checkpoint
    python launch/caption.py --by /models/Qwen3-VL-8B-Instruct photos/ clip.mp4 --out captions.jsonl --page look.html
    python launch/caption.py --by runs/mine -n 4 --sample manifest.jsonl --out four.jsonl
    python launch/caption.py --by http://127.0.0.1:8000 photos/ --prompt "What is this?"
    python launch/caption.py --by runs/mine --shard 2/8 photos/ --out /shared/captions.jsonl   # one of eight processes

Captions are printed as they come; progress and what could not be read go to standard error. With --out they are kept
as JSON lines in the order of the inputs, and the same command goes on where it was stopped; --retry-failed tries again
what has no caption there. A run captions by its own settings, another checkpoint by those of its folder;
section.key=value changes any of them.

Ends with 0 if everything was captioned, 1 if something could not be (its row says why) or an input or a setting was
refused, 2 if an option was not understood.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.captioning.parts import Shard
from vcap_jax.commands.references import shard
from vcap_jax.run.command_line import (
    add_captioner_options,
    command_parser,
    guarded,
    page_argument,
    seed_argument,
    tell,
    temperature_argument,
)

if TYPE_CHECKING:
    from vcap_jax.captioning.caption import Caption
    from vcap_jax.captioning.captioner import Captioner
    from vcap_jax.captioning.file import CaptionJob

_SETTING = re.compile(r"[a-z_]+(\.[a-z_0-9]+)*=")


def _parser() -> ArgumentParser:
    parser = command_parser(__doc__)
    add_captioner_options(
        parser,
        'a run\'s folder, a Hugging Face or Orbax folder, "embedded", or the http address of a chat endpoint',
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT | section.key=value")
    parser.add_argument("--out", type=Path, help="keep the captions there, as JSON lines")
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="try again what has no caption in --out, or not all; others stay",
    )
    parser.add_argument(
        "--page",
        type=page_argument,
        metavar="FILE",
        help="make an HTML page of them, with the pictures in it",
    )
    parser.add_argument(
        "--page-limit", type=int, default=300, help="inputs on the page (default: the first 300)"
    )
    parser.add_argument("-n", type=int, default=1, help="captions of each input (default: 1); needs --sample")
    parser.add_argument(
        "--sample", action="store_true", help="draw captions as the run's rollout does (default: greedily)"
    )
    parser.add_argument("--temperature", type=temperature_argument, help="sample at this temperature")
    parser.add_argument("--seed", type=seed_argument, default=0, help="of the draws (default: 0)")
    parser.add_argument("--prompt", help="the request, in place of the configured ones")
    parser.add_argument("--max-tokens", type=int, help="of a caption (rollout.max_completion_length)")
    parser.add_argument("--batch", type=int, help="inputs decoded at a time (default: as many as have room)")
    parser.add_argument(
        "--shard", type=shard, help="INDEX/COUNT: this process's share of the inputs; needs --out"
    )
    parser.add_argument("--quiet", action="store_true", help="print no captions")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_intermixed_args(arguments)
    if args.n > 1 and not args.sample and args.temperature is None:
        parser.error(f"-n {args.n}: greedily they would all be the same; add --sample")
    if args.n > 1 and args.temperature == 0:
        parser.error(f"-n {args.n}: at temperature 0 they would all be the same; give a higher one")
    if args.n < 1 or args.page_limit < 1 or (args.batch is not None and args.batch < 1):
        parser.error("-n, --batch and --page-limit: give at least 1")
    if args.out is not None and args.out.is_dir():
        parser.error(
            f"--out {args.out} is a folder: name a file in it, such as {args.out / 'captions.jsonl'}"
        )
    if args.prompt is not None and not args.prompt.strip():
        parser.error("--prompt has no text: give the request, or leave it out")
    if args.page is not None and args.out is not None and args.page.resolve() == args.out.resolve():
        parser.error(f"--page {args.page} is --out as well: name another file")
    if args.shard is not None and args.out is None:
        parser.error("--shard: the shares are joined in a file; add --out")
    if args.retry_failed and args.out is None:
        parser.error("--retry-failed: what failed stands in a file; add --out")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return guarded(lambda: _caption(args), goes_on=args.out is not None)


def _caption(args: Namespace) -> int:
    from vcap_jax.captioning.inputs import Inputs

    named = [word for word in args.inputs if not _is_setting(word)]
    inputs = Inputs(named)
    counted = inputs.counted()
    tell(f"{counted}; {counted.left_out}" if counted.left_out else str(counted))
    # JAX and what it needs take seconds to import: not before the inputs are known to be there.
    from vcap_jax.captioning.captioner import Captioner
    from vcap_jax.captioning.engines import Drawing
    from vcap_jax.captioning.file import CaptionJob

    settings = [word for word in args.inputs if _is_setting(word)]
    if args.max_tokens is not None:
        settings.append(f"rollout.max_completion_length={args.max_tokens}")
    job = CaptionJob(
        inputs=inputs,
        counted=counted,
        drawing=Drawing(captions=args.n, sample=args.sample, temperature=args.temperature, groups=args.batch),
        seed=args.seed,
        shard=args.shard or Shard(),
    )
    with Captioner.load(
        args.by,
        step=args.step,
        prompt=args.prompt,
        settings=settings,
        served_model=args.served_model,
        api_key_env=args.api_key_env,
        say=tell,
    ) as captioner:
        tell(f"captions by {captioner.name}")
        return _to_file(args, captioner, job) if args.out is not None else _to_screen(args, captioner, job)


def _to_screen(args: Namespace, captioner: Captioner, job: CaptionJob) -> int:
    from vcap_jax.report.progress import PoolProgress
    from vcap_jax.system.shutdown import finishing

    progress = PoolProgress(tell, seconds=10)
    for_page: list[Caption] = []
    done = failed = 0
    with finishing("each caption in work"):
        for caption in captioner.placed(
            enumerate(job.inputs), drawing=job.drawing, seed=job.seed, total=job.counted.total
        ):
            done += 1
            failed += caption.failure is not None
            _show(caption, quiet=args.quiet)
            progress("captions", done, job.counted.total, done)
            if args.page is not None and caption.index < args.page_limit:
                for_page.append(caption)
    if args.page is not None:
        _write_page(args, captioner, sorted(for_page, key=lambda caption: caption.index), done, failed)
    return _status(failed, done)


def _to_file(args: Namespace, captioner: Captioner, job: CaptionJob) -> int:
    from vcap_jax.captioning.file import read_caption_file, write_caption_file
    from vcap_jax.report.progress import PoolProgress

    complete = write_caption_file(
        args.out,
        captioner,
        job,
        retry_failed=args.retry_failed,
        on_caption=lambda caption: _show(caption, quiet=args.quiet),
        on_progress=PoolProgress(tell, seconds=10),
    )
    if not complete:
        tell(f"share {job.shard.index} of {job.shard.count} is written; others are still at work")
        return 0
    failed = sum(caption.failure is not None for caption in read_caption_file(args.out))
    tell(f"{args.out}: {job.counted.total - failed} of {job.counted.total} inputs captioned")
    if args.page is not None:
        _write_page(args, captioner, read_caption_file(args.out), job.counted.total, failed)
    status = _status(failed, job.counted.total)
    if failed and not args.retry_failed:
        tell("the same command with --retry-failed tries them again")
    return status


def _write_page(
    args: Namespace, captioner: Captioner, captions: Iterable[Caption], total: int, failed: int
) -> None:
    from vcap_jax.captioning.page import write_caption_page

    title = f"Captions by {captioner.name}"
    write_caption_page(captions, args.page, title=title, total=total, failed=failed, limit=args.page_limit)
    tell(f"page: {args.page}")


def _show(caption: Caption, *, quiet: bool) -> None:
    if caption.failure is not None:
        tell(f"not captioned: {caption.named_failure}")
    if not quiet:
        for text in caption.texts:
            print(f"{caption.id}: {text}", flush=True)


def _status(failed: int, total: int) -> int:
    if failed:
        tell(
            f'{failed} of {total} inputs have no caption, or not all; they are named above and in the rows\' "failure"'
        )
    return 1 if failed else 0


def _is_setting(word: str) -> bool:
    return _SETTING.match(word) is not None and not Path(word).exists()
