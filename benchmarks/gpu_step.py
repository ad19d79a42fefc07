"""Whole training steps of Qwen3-VL-2B on the GPU that is here: docs/one_gpu.md's run, without its judge; beside TRL.

    python benchmarks/gpu_step.py --out runs/gpu_step
    python benchmarks/gpu_step.py --out runs/gpu_step --torch-python venv/bin/python     # and TRL, on the same GPU

Weights are random, of the published shapes. 8 pictures of 1,280 visual tokens a step, 8 captions of exactly 1,024
each, all of the decoder trained with the KL term; the reward is a count of letters, so that no judge is timed. JAX may
take --memory of the card, as when a judge is on it too. The first steps, which compile, are left out. What follows is
given to launch/train.py behind the settings of docs/one_gpu.md, and wins over them.

TRL has weights and Adam's moments in bfloat16 (ours are float32), and 8 captions in a pass, with gradient
checkpointing; it writes captions with `generate`, since no vLLM is needed to run this. Writes gpu_step.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jax.profiler import ProfileData  # noqa: E402

from benchmarks import gpu_trace  # noqa: E402
from benchmarks.gpu_repeats import killed_in_the_end  # noqa: E402
from benchmarks.small_policy import picture  # noqa: E402
from vcap_jax.report.metrics import read_metrics  # noqa: E402

PROMPT = "Describe this image in detail."
VISUAL_TOKENS, TOKENS, PROMPTS, GROUP = 1280, 1024, 8, 8
BETA, LEARNING_RATE = 0.001, 5e-7
WARM = 2
"""Steps before the timed ones: the first compiles, the second fills allocators."""
PARTS = ("step", "rollout", "update")
SETTINGS = (
    "reward.family=benchmarks.letter_reward:LetterReward",
    "rollout.offload=[optimizer,reference]",
    "rollout.groups_per_batch=8",
    "grpo.groups_per_micro_batch=1",
    # Captions are all as long as they may be: neither smaller programs nor shorter padding would ever be used.
    "rollout.shrink=1",
    "grpo.caption_buckets=[]",
    "logging.save_every=100000",
    "logging.print_every=1",
)


class Failed(RuntimeError):
    """A side gave no measurement; the message has the end of what it said."""


def prepare(folder: Path, size: str) -> None:
    """The checkpoint for TRL, the same one without an end of captions for us, and pictures with a manifest.

    size: of a published checkpoint, or "small".
    """
    model, endless, pictures = folder / "model", folder / "endless", folder / "pictures"
    for unfinished in (model, endless, pictures):
        shutil.rmtree(unfinished, ignore_errors=True)
    command = [sys.executable, str(ROOT / "benchmarks" / "small_policy.py"), f"--out={model}"]
    command += [f"--visual-tokens={VISUAL_TOKENS}", *([] if size == "small" else [f"--size={size}"])]
    # On the CPU: the GPU's memory is for what is measured.
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    shutil.copytree(model, endless, copy_function=os.link)
    vocabulary = json.loads((model / "config.json").read_text())["text_config"]["vocab_size"]
    (endless / "generation_config.json").unlink()
    (endless / "generation_config.json").write_text(json.dumps({"eos_token_id": [vocabulary]}) + "\n")
    pictures.mkdir()
    rows = []
    for index in range(PROMPTS):
        path = pictures / f"{index:04}.png"
        picture(VISUAL_TOKENS, seed=index).save(path)
        rows.append(json.dumps({"id": path.stem, "image": str(path)}) + "\n")
    (folder / "size.txt").write_text(f"{size}\n")
    (folder / "manifest.jsonl").write_text("".join(rows))  # the last, so that what it lies beside is complete


def ours(
    folder: Path, steps: int, memory: float, more: Sequence[str], limit_s: float, trace: bool = False
) -> dict[str, Any]:
    """Seconds of each timed step of launch/train.py. trace: one more is recorded, after them. Raises Failed."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, str(ROOT / "launch" / "train.py"), f"--run-dir={run}"]
    command += [f"--config={ROOT / 'configs' / name}" for name in ("paper/image.yaml", "one_gpu.yaml")]
    command += [f"model.path={folder / 'endless'}", f"data.manifest={folder / 'manifest.jsonl'}"]
    command += [f"data.image_prompt={PROMPT}", f"rollout.max_completion_length={TOKENS}"]
    command += ["rollout.sampling={temperature: 1.0, top_p: 1.0, top_k: 50, repetition_penalty: 1.0}"]
    command += [f"compilation_cache={folder / 'compiled'}", f"max_steps={WARM + steps + 2}", *SETTINGS]
    command += [f"logging.profile_steps=[{WARM + steps + 1}]"] if trace else []
    command += more
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": str(memory),
    }
    log, begin = folder / "run.log", time.monotonic()
    rows: list[dict[str, Any]] = []

    def at_work() -> bool:
        time.sleep(0.5)
        if (run / "metrics.jsonl").exists():
            rows[:] = (dict(row) for row in read_metrics(run / "metrics.jsonl"))
        return process.poll() is None and time.monotonic() - begin < limit_s

    with log.open("w") as out, killed_in_the_end(command, environment, out) as process:
        # Ended after the last timed step: a checkpoint of the whole state, 25 GB, is nothing that is measured here. It
        # is written before a step that is recorded.
        while at_work() and len(rows) < WARM + steps:
            pass
        while trace and at_work() and not list(run.rglob("*.trace.json.gz")):  # the last file of a trace
            pass
    if len(rows) < WARM + steps:
        raise Failed(
            f"launch/train.py: {len(rows)} steps in {time.monotonic() - begin:.0f} s, then nothing more (status "
            f"{process.returncode}):\n{log.read_text()[-6000:]}"
        )
    timed = rows[WARM : WARM + steps]
    return {
        **{f"{part}_seconds": [row[f"seconds/{part}"] for row in timed] for part in PARTS},
        "compiles": [row["compiles"] for row in timed],
        "first_steps_seconds": [row["seconds/step"] for row in rows[:WARM]],
        "caption_tokens": timed[-1]["length/mean"],
        "memory_fraction": memory,
        **({"trace": traced(run / "profile")} if trace else {}),
    }


def traced(folder: Path) -> dict[str, Any]:
    """What the GPU did in the recorded step, told as well: all of it, and each program; or why that is not known."""
    try:
        (file,) = folder.rglob("*.xplane.pb")
        ran = gpu_trace.kernels(ProfileData.from_file(str(file)))
    except ValueError as error:
        print(f"trace: {error}", flush=True)
        return {"failed": str(error)}
    programs = gpu_trace.of_programs(ran)
    for name, found in programs.items():
        print(f"{name}\n{gpu_trace.table(found)}", flush=True)
    return {"whole": gpu_trace.summary(ran), "programs": programs}


def trl(folder: Path, python: str, steps: int, limit_s: float) -> dict[str, Any]:
    """Seconds of each timed step of GRPOTrainer. Raises Failed."""
    command = [python, str(ROOT / "benchmarks" / "trl_worker.py"), f"--model={folder / 'model'}"]
    command += [f"--pictures={folder / 'pictures'}", f"--prompt={PROMPT}", f"--group-size={GROUP}"]
    command += [f"--tokens={TOKENS}", f"--beta={BETA}", f"--learning-rate={LEARNING_RATE}"]
    command += [
        f"--steps={1 + steps}",
        f"--prompts-per-step={PROMPTS}",
        f"--threads={os.cpu_count()}",
        "--gpu",
    ]
    log, said = folder / "trl.log", folder / "trl.jsonl"
    with log.open("w") as err, said.open("w") as out:
        try:
            subprocess.run(command, check=True, stdout=out, stderr=err, timeout=limit_s)
        except (OSError, subprocess.SubprocessError) as error:
            raise Failed(f"TRL: {error}\n{said.read_text()[-2000:]}\n{log.read_text()[-4000:]}") from error
    rows = [json.loads(line) for line in said.read_text().splitlines() if line.startswith('{"')]
    times = [row["step_seconds"] for row in rows if "step_seconds" in row]
    logged = [row["log"] for row in rows if "log" in row]
    return {
        "step_seconds": times[1:],
        "first_steps_seconds": times[:1],
        "caption_tokens": logged[-1]["completions/mean_length"],
        "peak_bytes": rows[len(times) - 1]["peak_bytes"],
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder; checkpoint and pictures that lie there are used again, if they are of this size",
    )
    parser.add_argument("--prepare", action="store_true", help="only write checkpoint and pictures")
    parser.add_argument("--size", choices=("2B", "4B"), default="2B", help="of the policy")
    parser.add_argument("--small", action="store_true", help="benchmarks/small_policy.py's own size instead")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each side")
    parser.add_argument("--memory", type=float, default=0.5, help="share of the card that JAX may take")
    parser.add_argument(
        "--trace", action="store_true", help="then say what the GPU does in a step of this package"
    )
    parser.add_argument("--torch-python", metavar="PYTHON", help="Python with torch, transformers and trl")
    parser.add_argument("--limit-s", type=float, default=1800, help="seconds for each side")
    parser.add_argument("settings", nargs="*", help="section.key=value for launch/train.py")
    options = parser.parse_intermixed_args()
    # Stopped by a time limit, it takes its runs with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out = options.out.absolute()  # processes are started in the repository
    size = "small" if options.small else options.size
    if not (options.out / "manifest.jsonl").exists():
        options.out.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        prepare(options.out, size)
        print(f"checkpoint and pictures took {time.monotonic() - begin:.0f} s", flush=True)
    noted = options.out / "size.txt"
    if (there := noted.read_text().strip() if noted.exists() else "unknown") != size:
        parser.error(
            f"--out {options.out} holds a checkpoint of another size ({there}, not {size}): name another folder"
        )
    if options.prepare:
        return 0
    result: dict[str, Any] = {"size": size, "settings": options.settings}
    sides = {
        "this package": lambda: ours(
            options.out, options.steps, options.memory, options.settings, options.limit_s, options.trace
        )
    }
    if options.torch_python is None:
        print("TRL: not run, no --torch-python was given", flush=True)
    else:
        sides["TRL"] = lambda: trl(options.out, options.torch_python, options.steps, options.limit_s)
    failed = False
    for name, measure in sides.items():
        try:
            found = result[name] = measure()
        except Failed as error:
            failed, result[name] = True, {"failed": str(error)}
            print(f"{name} FAILED: {error}", flush=True)
        else:
            if found["caption_tokens"] != TOKENS:
                raise SystemExit(f"{name}: captions of {found['caption_tokens']} tokens, not {TOKENS}")
            parts = ", ".join(
                f"{part} {statistics.median(found[f'{part}_seconds']):.2f} s"
                for part in PARTS
                if f"{part}_seconds" in found
            )
            print(f"{name}: {parts}; before: {found['first_steps_seconds']}", flush=True)
        (options.out / "gpu_step.json").write_text(json.dumps(result, indent=1) + "\n")
    if not failed and "TRL" in result:
        middle = [statistics.median(result[name]["step_seconds"]) for name in ("TRL", "this package")]
        print(f"TRL / this package: {middle[0] / middle[1]:.1f}", flush=True)
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
