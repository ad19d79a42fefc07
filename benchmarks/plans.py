"""The plans of the paper's two runs on the layouts they are meant for, written to docs/plans/.

    python benchmarks/plans.py                     # all: GPUs in about two minutes a plan, TPUs in ten and more
    python benchmarks/plans.py --only image-6xh800 video-6xh800

Each is one call of launch/plan.py, with what launch/h800_8x.sh or launch/tpu.sh runs on that layout; its table and JSON
are kept, and README.md there sums up what is kept. Needs the ``plan`` extra.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "plans"

NODE = ["--hardware", "h800x8"]
SHARED = [*NODE, "--policy-devices", "6"]
SLICE = ["--hardware", "v5p-16"]


def groups(at_once: int) -> list[str]:
    """Settings for six GPUs; the configurations are for eight."""
    return [f"rollout.groups_per_batch={at_once}", "grpo.groups_per_micro_batch=6"]


# Attention, computed once, waits there too.
WAITING = "model.remat=offload_attention"
OFFLOAD = ["rollout.offload=[optimizer,reference]", WAITING]
OFFLOAD_ALL = ["rollout.offload=[optimizer,reference,parameters]", WAITING]
SHORT = ["rollout.short_groups=32", "rollout.short_length=2048"]

# A micro-batch of one group for each four chips, which share its products.
TENSOR = ["mesh.tensor=4", "grpo.groups_per_micro_batch=2"]
# Images: of a layer all products and attention are kept, and nothing is computed twice but what is cheap.
KEPT = ["model.remat=dots_attention"]
# Videos: a whole step at once, which fits while the optimizer waits in the host's memory; of a
# layer attention is kept there for the backward pass, and the MLP's first product on the device.
WHOLE_STEP = ["model.remat=offload_mlp", "rollout.groups_per_batch=32", "rollout.offload=[optimizer]"]

PLANS = {
    "image-6xh800": [*SHARED, "--modality", "image", *groups(18)],
    "video-6xh800": [*SHARED, "--modality", "video", *groups(6)],
    "image-6xh800-offload": [*SHARED, "--modality", "image", *groups(36), *OFFLOAD],
    "video-6xh800-offload": [*SHARED, "--modality", "video", *groups(18), *OFFLOAD_ALL],
    "image-8xh800": [*NODE, "--modality", "image"],
    "video-8xh800": [*NODE, "--modality", "video"],
    "video-8xh800-short": [*NODE, "--modality", "video", *SHORT],
    "image-v5p-16": [*SLICE, "--config", "configs/tpu/image.yaml", "--modality", "image"],
    "image-v5p-16-tensor": [
        *SLICE,
        "--config",
        "configs/tpu/image.yaml",
        "--modality",
        "image",
        *TENSOR,
        *KEPT,
    ],
    "video-v5p-16": [*SLICE, "--config", "configs/tpu/video.yaml", "--modality", "video"],
    "video-v5p-16-tensor": [
        *(*SLICE, "--config", "configs/tpu/video.yaml", "--modality", "video"),
        *(*TENSOR, *WHOLE_STEP),
    ],
}
HEAD = """\
# Plans of the paper's runs

Written by `python benchmarks/plans.py`. Qwen3-VL-8B, every program of a step compiled for the
hardware, at the longest prompts and captions. Seconds and hours are the roofline's: programs one
after the other, each as long as its slowest unit (cores, memory, links) takes at its peak. Products
are counted from the compiled programs, attention kernels by formula from the shapes they are given:
two products forward and five backward (cuDNN, Splash), half of them where the mask is causal.

*At least* is a step whose programs read what comes in once, write what goes out once and compute
nothing twice. *Usual lengths* is the step at the roofline with captions spread around the estimated
mean, through the run's own scheduler; all else is as in the step with the longest. A dash: the plan
is older than the figure. With *offload* optimizer and reference (videos: parameters too) wait in
the host's memory while captions are drawn, and what attention gave until the backward pass; with
*short* twice the groups decode in caches for 2,048 tokens first
([rollout](../rollout.md#more-groups-while-captions-are-short)). Neither is turned on by itself.

Nobody reaches these times. Decoding goes through the run's own scheduler, with caches as long as
captions are by then; the tables of programs show a token with the largest ones.
"""


def seconds(figure: float | None) -> str:
    """Of a plan that was made before there was such a figure, a dash."""
    return "-" if figure is None else f"{figure:.0f}"


def summary() -> str:
    """A table of the plans that are kept, as Markdown."""
    lines = [
        *HEAD.splitlines(),
        "",
        "| plan | fits | peak, GiB of usable | at the peak | s a step | at least | usual lengths | h an epoch |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    ]
    for name in PLANS:
        file = FOLDER / f"{name}.json"
        if not file.exists():
            continue
        plan = json.loads(file.read_text(encoding="utf-8"))
        worst = max(plan["programs"], key=lambda program: program["peak"])
        hours = plan["step_seconds"] * plan["steps_per_epoch"] / 3600
        lines.append(
            f"| [{name}]({name}.md) | {'yes' if plan['fits'] else 'no'} | {plan['peak'] / 2**30:.1f} of "
            f"{plan['capacity'] / 2**30:.1f} | {worst['name']} | {plan['step_seconds']:.0f} | "
            f"{seconds(plan.get('floor_seconds'))} | {seconds(plan.get('usual_seconds'))} | {hours:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PLANS, default=list(PLANS))
    FOLDER.mkdir(parents=True, exist_ok=True)
    misfits = []
    for name in parser.parse_args().only:
        options = PLANS[name]
        json_file = FOLDER / f"{name}.json"
        command = [
            sys.executable,
            str(ROOT / "launch" / "plan.py"),
            *options,
            "--no-trials",
            "--json",
            str(json_file),
        ]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 1):
            print(f"{name}: launch/plan.py ended with {done.returncode}", file=sys.stderr)
            return done.returncode
        shown = f"    python launch/plan.py {' '.join(options)}"
        (FOLDER / f"{name}.md").write_text(f"# {name}\n\n{shown}\n\n{done.stdout}", encoding="utf-8")
        print(f"# {name}\n\n{done.stdout}", flush=True)
        misfits += [name] * done.returncode
        (FOLDER / "README.md").write_text(summary(), encoding="utf-8")
    if misfits:
        print(f"do not fit: {', '.join(misfits)}", file=sys.stderr)
    return 1 if misfits else 0


if __name__ == "__main__":
    sys.exit(main())
