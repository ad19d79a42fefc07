r"""Says of policies of the embedded world what they see, what they would say, and what they say.

    python launch/probe.py embedded runs/embedded-image
    python launch/probe.py start=embedded trained=runs/embedded-image --scenes 256 --out probed.json

Each is a run, an exported or a Hugging Face folder, or "embedded". All are shown the same scenes.

sees: share of short questions that it answers rightly, by kind. prefers: led through full, true captions, how often no
other value is more probable than the true one. greedy, sampled: of its own captions, the share of facts they tell, the
share of claims that are false, the share that are of objects where nothing lies, and how often each kind of fact is
mentioned. The column "taught" has captions as the
starting policy was taught to give them, of the same scenes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vcap_jax.run.command_line import command_parser, guarded, json_argument, named_paths, step_argument


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("policies", nargs="+", metavar="[NAME=]POLICY", help="what is probed")
    parser.add_argument("--modality", choices=("image", "video"), default="image", help="(default: image)")
    parser.add_argument("--scenes", type=int, default=64, help="how many are shown (default: 64)")
    parser.add_argument(
        "--step", type=step_argument, help="checkpoint of those that are runs: its step, or best"
    )
    parser.add_argument("--out", type=json_argument, metavar="FILE", help="write all figures as JSON")
    parser.add_argument(
        "--pictures", type=Path, default=Path("runs/probe"), help="where the pictures are kept"
    )
    args = parser.parse_args(arguments)
    if args.scenes < 1:
        parser.error(f"--scenes {args.scenes}: give at least 1")

    def work() -> None:
        from vcap_jax.recipes.teaching.probing import side_by_side, table
        from vcap_jax.report.summary import write_summary

        found = side_by_side(
            named_paths(args.policies), args.modality, args.scenes, args.pictures, step=args.step, say=print
        )
        print(table(found))
        if args.out:
            write_summary(args.out, found)

    return guarded(work, goes_on=False)
