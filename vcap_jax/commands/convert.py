"""A run or checkpoint to a Hugging Face folder, and back.

    python launch/convert.py to-hf runs/embedded-image exported/             # the run's last checkpoint
    python launch/convert.py to-hf runs/embedded-image exported/ --step 100
    python launch/convert.py to-hf runs/with-lora adapter/ --adapter         # its adapters alone, for PEFT
    python launch/convert.py from-hf exported/ checkpoint/                   # an Orbax checkpoint of a HF folder

``to-hf`` writes config.json, safetensors, tokenizer and processor files, which PyTorch transformers loads as they
are. What the run froze is taken from what it started from, and LoRA adapters are merged into it.
``--adapter`` writes them alone; a run starts from such a folder with ``model.lora.adapter=FOLDER``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vcap_jax.run.command_line import command_parser, guarded, step_argument


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    to_hf = commands.add_parser("to-hf", help="run folder or checkpoint -> Hugging Face folder")
    to_hf.add_argument("source", type=Path, help="a run folder, or a folder written by from-hf")
    to_hf.add_argument("target", type=Path)
    to_hf.add_argument(
        "--step", type=step_argument, help="which of the run's checkpoints, or best (default: the last)"
    )
    to_hf.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        help="of the tensors (default: bfloat16; with --adapter float32)",
    )
    to_hf.add_argument("--family", help="as model.family, for a folder of from-hf (a run names its own)")
    to_hf.add_argument("--adapter", action="store_true", help="of a LoRA run, the adapters alone, for PEFT")
    from_hf = commands.add_parser("from-hf", help="Hugging Face folder -> checkpoint")
    from_hf.add_argument("source", type=Path)
    from_hf.add_argument("target", type=Path)
    from_hf.add_argument("--family", help="as model.family: import path of a family outside the package")
    args = parser.parse_args(arguments)

    def convert() -> None:
        from vcap_jax.export.hugging_face import adapter_to_peft, checkpoint_from_hf, checkpoint_to_hf

        if args.command == "from-hf":
            dtype, stated = checkpoint_from_hf(args.source, args.target, family=args.family)
            print(f"{args.source} -> {args.target}, in {dtype}")
            if stated not in (None, dtype):
                print(f"config.json says {stated}; it is {dtype} that holds the tensors as they are stored")
            return
        dtype = args.dtype or ("float32" if args.adapter else "bfloat16")
        if args.adapter:
            step, kept = adapter_to_peft(args.source, args.target, step=args.step, dtype=dtype), None
        else:
            step, kept = checkpoint_to_hf(
                args.source, args.target, step=args.step, dtype=dtype, family=args.family
            )
        at_step = "" if step is None else f" at step {step}"
        print(f"{args.source}{at_step} -> {args.target}")
        if kept is not None:
            print(
                f"rounded to {dtype}, the matrices hold {kept:.0%} of what the adapters add; --dtype float32 "
                "holds all of it, and --adapter writes them unmerged"
            )

    return guarded(convert, goes_on=False)
