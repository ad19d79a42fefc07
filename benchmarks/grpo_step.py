"""One GRPO step of this package against TRL's GRPOTrainer, on the CPU: same model, pictures, lengths and settings.

    python benchmarks/grpo_step.py --torch-python /path/to/python --out runs/step            # 1,024 visual tokens, G 8
    python benchmarks/grpo_step.py --torch-python /path/to/python --out runs/step --sweep    # how both grow

--torch-python is an environment with torch, transformers and trl (``pip install -e '.[parity]'`` makes one). Both train
the small random Qwen3-VL of ``small_policy.py`` in float32 with one prompt per step, KL term, frozen vision tower, and
captions of exactly 192 tokens; the reward is a count of letters, so that no judge is timed. A step is everything from
the pictures to the updated weights; the first ones, which compile, are left out. TRL and this package take turns,
--rounds times, each time in a process of its own. Of a side's rounds the one with the least median step is reported,
since what else a machine does only adds to it; the JSON has all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.small_policy import picture, write_policy
from vcap_jax.report.metrics import read_metrics

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Describe the image."
BETA, LEARNING_RATE = 0.04, 1e-5
WARM = 2
"""Steps before the timed ones: the first compiles, the second fills allocators."""


def prepare(folder: Path, visual_tokens: int, pictures: int) -> None:
    """The model for TRL, the same one for us, and pictures with a manifest."""
    write_policy(folder / "model", visual_tokens=visual_tokens)
    # The same files, but no token ends a caption. TRL is told so by min_new_tokens.
    shutil.copytree(folder / "model", folder / "endless")
    config = json.loads((folder / "model" / "config.json").read_text())
    ends = {"eos_token_id": [config["text_config"]["vocab_size"]]}
    (folder / "endless" / "generation_config.json").write_text(json.dumps(ends) + "\n")
    (folder / "pictures").mkdir()
    rows = []
    for index in range(pictures):
        path = folder / "pictures" / f"{index:04}.png"
        picture(visual_tokens, seed=index).save(path)
        rows.append(json.dumps({"id": path.stem, "image": str(path)}) + "\n")
    (folder / "manifest.jsonl").write_text("".join(rows))


def ours(folder: Path, run: str, group: int, tokens: int, steps: int) -> dict[str, Any]:
    """Seconds of each timed step of launch/train.py."""
    command = [sys.executable, str(ROOT / "launch" / "train.py"), "--run-dir", str(folder / run)]
    command += ["--config", str(ROOT / "configs" / "embedded" / "image.yaml"), f"max_steps={WARM + steps}"]
    command += [f"model.path={folder / 'endless'}", f"data.manifest={folder / 'manifest.jsonl'}"]
    command += [f"data.image_prompt={PROMPT}", "data.max_pixels=null"]
    command += ["data.buckets.tokens=[]", "data.buckets.patches=[]", "data.buckets.frames=[1]"]
    command += ["data.buckets.token_multiple=64", "data.buckets.patch_multiple=256"]
    command += ["reward.family=benchmarks.letter_reward:LetterReward"]
    command += [
        f"rollout.group_size={group}",
        f"rollout.max_completion_length={tokens}",
        "rollout.decode_steps_per_call=64",
    ]
    command += ["rollout.sampling={temperature: 1.0, top_p: 1.0, top_k: 0, repetition_penalty: 1.0}"]
    command += [f"grpo.{name}=1" for name in ("groups_per_step", "groups_per_micro_batch")]
    command += ["rollout.groups_per_batch=1", f"grpo.objective.beta={BETA}"]
    command += [f"optimizer.learning_rate={LEARNING_RATE}", "logging.save_every=100000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    rows = read_metrics(folder / run / "metrics.jsonl")
    timed = rows[WARM:]
    if any(row["compiles"] for row in timed):
        raise SystemExit("a timed step compiled: its time is not that of steady state")
    return {
        "step_seconds": [row["seconds/step"] for row in timed],
        "rollout_seconds": [row["seconds/rollout"] for row in timed],
        "update_seconds": [row["seconds/update"] for row in timed],
        "caption_tokens": timed[0]["length/mean"],
    }


def trl(folder: Path, python: str, group: int, tokens: int, steps: int) -> dict[str, Any]:
    """Seconds of each timed step of GRPOTrainer."""
    command = [python, str(ROOT / "benchmarks" / "trl_worker.py"), f"--model={folder / 'model'}"]
    command += [f"--pictures={folder / 'pictures'}", f"--prompt={PROMPT}", f"--group-size={group}"]
    command += [f"--tokens={tokens}", f"--beta={BETA}", f"--learning-rate={LEARNING_RATE}"]
    command += [f"--steps={1 + steps}", "--prompts-per-step=1", f"--threads={os.cpu_count()}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    times = [row["step_seconds"] for row in rows if "step_seconds" in row]
    logged = [row["log"] for row in rows if "log" in row]
    return {
        "step_seconds": times[1:],
        "caption_tokens": logged[-1]["completions/mean_length"],
        "peak_bytes": rows[len(times) - 1]["peak_bytes"],
    }


def least(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of several rounds of the same work."""
    return min(rounds, key=lambda side: statistics.median(side["step_seconds"]))


def in_turns(
    sides: Mapping[str, Callable[[int], dict[str, Any]]], rounds: int, tokens: int, where: str
) -> dict[str, list[dict[str, Any]]]:
    """What each side measures in each round, one after the other, with a line for each on standard error.

    sides: are given the number of the round. tokens: that a caption must have; raises SystemExit if it has not.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, measure in sides.items():
            begin = time.monotonic()
            side = measure(number)
            if side["caption_tokens"] != tokens:
                raise SystemExit(f"captions of {side['caption_tokens']} tokens, not {tokens}")
            found[name].append(side)
            print(
                f"{where}, round {number + 1} of {rounds}: {name} {statistics.median(side['step_seconds']):.2f} s "
                f"a step, {time.monotonic() - begin:.0f} s in all",
                file=sys.stderr,
                flush=True,
            )
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-python", required=True, help="Python with torch, transformers and trl")
    parser.add_argument("--out", type=Path, required=True, help="new folder for models, runs and the result")
    parser.add_argument("--tokens", type=int, default=192, help="of every caption")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each side in a round")
    parser.add_argument("--rounds", type=int, default=2, help="times that each side runs")
    parser.add_argument("--sweep", action="store_true", help="256 to 4,096 visual tokens, and G from 4 to 16")
    options = parser.parse_args()
    options.out = options.out.absolute()  # training is started in the repository
    settings = [(1024, 8)]
    if options.sweep:
        settings = [(256, 8), (1024, 4), (1024, 8), (1024, 16), (4096, 8)]
    options.out.mkdir(parents=True)
    results = []
    print(
        f"{'visual tokens':>14}{'G':>4}{'TRL':>10}{'ours':>10}{'rollout':>10}{'update':>10}{'TRL / ours':>12}",
        flush=True,
    )
    for visual_tokens, group in settings:
        folder = options.out / f"{visual_tokens}-{group}"
        folder.mkdir()
        prepare(folder, visual_tokens, pictures=4)
        work = (group, options.tokens, options.steps)

        def run_trl(number: int, folder: Path = folder, work: tuple[int, int, int] = work) -> dict[str, Any]:
            del number
            return trl(folder, options.torch_python, *work)

        def run_ours(number: int, folder: Path = folder, work: tuple[int, int, int] = work) -> dict[str, Any]:
            return ours(folder, f"run-{number}", *work)

        found = in_turns(
            {"TRL": run_trl, "this package": run_ours},
            options.rounds,
            options.tokens,
            f"{visual_tokens:,} visual tokens, G {group}",
        )
        theirs, mine = map(least, found.values())
        middle = {name: statistics.median(mine[f"{name}_seconds"]) for name in ("step", "rollout", "update")}
        ratio = statistics.median(theirs["step_seconds"]) / middle["step"]
        results.append(
            {
                "visual_tokens": visual_tokens,
                "group": group,
                "trl": theirs,
                "ours": mine,
                "ratio": ratio,
                "rounds": found,
            }
        )
        print(
            f"{visual_tokens:>14}{group:>4}{statistics.median(theirs['step_seconds']):>8.2f} s"
            f"{middle['step']:>8.2f} s{middle['rollout']:>8.2f} s{middle['update']:>8.2f} s{ratio:>12.1f}",
            flush=True,
        )
        (options.out / "grpo_step.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
