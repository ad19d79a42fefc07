"""Teaches the embedded world's starting policy: a tiny Qwen3-VL that sees, and captions by a weak habit.

    python launch/make_backbone.py --out vcap_jax/world/backbone     # both modalities, on two idle cores

Three stages. The vision tower learns to look by throw-away linear probes. The decoder learns to answer short
questions, each about one fact or one place. Then it takes to a habit: captions that mention what is prominent and
mistake what looks alike. No text that it learns from states more than half of its scene's facts: every one is counted.
card.json beside the weights says how much any stated, what the policy sees, and what it says.

A stage that is done is kept in --work and not taught again. Deterministic for a given machine. Scenes are those of the
splits "teaching" and "teaching-check"; runs have others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import RawDescriptionHelpFormatter
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.run.command_line import guarded
from vcap_jax.system.home import HomeParser

if TYPE_CHECKING:  # the help is shown without importing what only the work needs
    from vcap_jax.models.family import CaptionModel, Processor
    from vcap_jax.recipes.teaching.stages import Course

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Reads the arguments and teaches."""
    from vcap_jax.recipes.teaching.stages import Course

    parser = HomeParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the policy")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/teaching"), help="pictures, and what stages leave"
    )
    parser.add_argument(
        "--modalities", nargs="+", choices=("image", "video"), default=Course.modalities, help="in turn"
    )
    for field in fields(Course):
        if field.name != "modalities":
            kind = type(field.default)
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    args = vars(parser.parse_args())
    out, work = args.pop("out"), args.pop("work")
    course = Course(**{**args, "modalities": tuple(args["modalities"])})
    return guarded(lambda: teach(course, work, out), goes_on=True)


def teach(course: Course, work: Path, out: Path) -> int:
    """Teaches; intermediate policies in float32, the last in bfloat16."""
    import jax
    import jax.numpy as jnp

    # A setting of JAX, which names it at run time only.
    if jax.config.jax_platforms in (None, "cpu"):  # type: ignore[attr-defined]
        jax.config.update("jax_num_cpu_devices", min(2, os.cpu_count() or 1))

    from vcap_jax.export.hugging_face import write_new
    from vcap_jax.recipes.teaching import program
    from vcap_jax.world.backbone import backbone_config

    def save(model: CaptionModel, processor: Processor, folder: Path) -> None:
        dtype = jnp.bfloat16 if folder == out else jnp.float32
        write_new(folder, model, backbone_config(processor.tokenizer), processor, dtype=dtype)

    def say(text: str) -> None:
        print(text, flush=True)

    program.teach(course, work, out, save=save, commit=commit(), say=say)
    return 0


def commit() -> str:
    """The repository's, with a plus if files differ from it."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+"],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
