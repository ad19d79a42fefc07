"""Decoding and updates of Qwen3-VL-8B's width on one GPU, against the card's limits and against transformers.

    python benchmarks/gpu.py --out runs/gpu                                 # where a GPU is
    python benchmarks/gpu.py --out runs/gpu --torch-python venv/bin/python  # beside transformers, on the same GPU
    python benchmarks/gpu.py --out runs/gpu --compile-for h100x1            # no GPU: compiled, not timed

First attention is checked on this GPU, and a wrong result ends everything with status 1. Then decoding (time per token
against the bytes a token cannot do without) and the gradient of one group (against the card's bfloat16 operations; what
is computed again does not count) at the paper's lengths, with random weights in bfloat16 and as many layers as
fit. Every part is a process of its own. Writes gpu.json with the device's name, and every measurement at once to
PART.json. What fails is a row that says so, and the rest is measured all the same. Status 2: something did not fit or
failed, and the table says what.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

GROUPS = (1, 2, 4, 8)
"""That are decoded side by side."""
PARTS = ("correctness", "decode", "update")
SIDE = "transformers"


def worker(arguments: Sequence[str], environment: dict[str, str]) -> int:
    """One part in a process of its own, so that it has the GPU's whole memory. Returns the exit status.

    environment: where the caller's own says nothing.
    """
    command = [sys.executable, "-m", "benchmarks.gpu_worker", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment | os.environ, check=False).returncode


def read(file: Path) -> dict[str, Any]:
    """What a part has written."""
    return json.loads(file.read_text())


def transformers_rows(python: str, rows: list[dict[str, Any]], attention: str) -> Iterator[dict[str, Any]]:
    """The same work by transformers: one group's captions as separate sequences. rows: ours."""
    from vcap_jax.models.qwen3_vl.published import CONFIGS

    tasks = [
        {"part": row["part"], "layers": row["layers"]}
        | {key: row["sizes"][key] for key in ("prompt", "caption", "captions")}
        for row in rows
        if "failed" not in row and row["sizes"]["groups"] == 1
    ]
    job = {"config": CONFIGS["8B"], "attention": attention, "tasks": tasks}
    command = [python, str(ROOT / "benchmarks" / "gpu_torch_worker.py")]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        yield {"failed": f"{' '.join(command)}: {error}", "task": {}}
        return
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        with contextlib.suppress(BrokenPipeError):  # it has ended; its status says so
            process.stdin.write(json.dumps(job))
            process.stdin.close()
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        yield {"failed": f"{' '.join(command)} ended with status {process.returncode}", "task": {}}


def line(row: dict[str, Any]) -> str:
    """A measurement for people."""
    head = f"{row['part']:<8}{row['modality']:<16}{row['shape']:<26}"
    if "failed" in row:
        return f"{head}FAILED: {row['failed']}"
    head += f"{row['layers']:>3} layers "
    if row["part"] == "decode":
        share = f"{100 * row['bandwidth_share']:.0f}%" if "bandwidth_share" in row else "unknown card"
        return head + (
            f"{1e3 * row['seconds_per_token']:>7.2f} ms a token {row['tokens_per_second']:>8.0f} tokens/s "
            f"{sum(row['must_read'].values()) / 1e9:>6.1f} GB a token, {share} of the bandwidth"
        )
    share = f"{100 * row['utilisation']:.0f}%" if "utilisation" in row else "unknown card"
    return head + (
        f"{row['seconds']:>8.3f} s {row['model_flops'] / 1e12:>7.0f} TFLOP {row['flops_per_second'] / 1e12:>5.0f} "
        f"TFLOP/s, {share} of the card's"
    )


def side_line(row: dict[str, Any], ours: dict[str, Any] | None) -> str:
    """A measurement of transformers beside ours."""
    task = row["task"]
    head = f"{SIDE} {task.get('part', '')} {task.get('prompt', 0):,} + {task.get('caption', 0):,}: "
    if "failed" in row or ours is None:
        return head + f"FAILED: {row.get('failed')}"
    key = "seconds_per_token" if task["part"] == "decode" else "seconds"
    return head + f"{row[key]:.4f} s against {ours[key]:.4f} s: {row[key] / ours[key]:.1f} times as long"


def partner(task: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Our row for the work of a task."""
    keys = ("prompt", "caption")
    for row in rows:
        same = row["part"] == task.get("part") and row.get("sizes", {}).get("groups") == 1
        if same and all(row["sizes"][key] == task[key] for key in keys) and "failed" not in row:
            return row
    return None


def chosen(options: argparse.Namespace) -> list[str]:
    """The shapes, as the worker takes them."""
    return [f"--modality={m}" for m in options.modality] + [f"--groups={n}" for n in options.groups]


def save(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """What there is by now."""
    (options.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")


def measure(options: argparse.Namespace) -> int:
    """All parts on the GPU that is here. Returns the exit status."""
    # JAX takes that much of the card at the start; cuBLAS, cuDNN and the driver need the rest.
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
    result: dict[str, Any] = {"rows": [], SIDE: None}
    for part in [part for part in PARTS if part in options.parts]:
        file = options.out / f"{part}.json"
        file.unlink(missing_ok=True)
        common = [part, f"--out={file}", f"--remat={options.remat}", f"--repeats={options.repeats}"]
        common += ["--trace"] if options.trace else []
        common += [] if options.layers is None else [f"--layers={options.layers}"]
        status = worker([*common, *chosen(options)], environment)
        if file.exists():
            found = read(file)
            result |= {key: value for key, value in found.items() if key != "rows"}
            result["rows"] += found["rows"]
            save(options, result)
        if not file.exists() or (part == "correctness" and status):
            print(f"{part} ended with status {status}; nothing after it was run", flush=True)
            return 1
        if status not in (0, 2):
            lost = f"its process ended with status {status}, and what it had not measured is missing"
            result["rows"].append({"part": part, "modality": "", "shape": "", "failed": lost})
            print(line(result["rows"][-1]), flush=True)
            save(options, result)
    if options.torch_python is None:
        print(f"{SIDE}: not run, no --torch-python was given", flush=True)
    else:
        result[SIDE] = []
        for row in transformers_rows(options.torch_python, result["rows"], options.torch_attention):
            result[SIDE].append(row)
            print(side_line(row, partner(row["task"], result["rows"])), flush=True)
            save(options, result)
    return 2 if any("failed" in row for row in [*result["rows"], *(result[SIDE] or [])]) else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--modality", nargs="+", choices=("image", "video"), default=["image", "video"])
    parser.add_argument(
        "--groups", nargs="+", type=int, choices=GROUPS, default=list(GROUPS), help="decoded side by side"
    )
    parser.add_argument(
        "--remat",
        default="layer",
        help="what the update computes again, as model.remat (the paper's runs: layer)",
    )
    parser.add_argument(
        "--layers",
        type=int,
        help="so many instead of as many as fit, which is asked of the compiler and takes it twice as long again",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="run each program once more under the profiler: where its time goes",
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each program")
    parser.add_argument(
        "--compile-for", metavar="GPU", help="one GPU, as launch/target.py names it (h100x1); times nothing"
    )
    parser.add_argument(
        "--torch-python", metavar="PYTHON", help="of an environment with torch and transformers"
    )
    parser.add_argument(
        "--torch-attention", default="sdpa", help="or flash_attention_2, where it is installed"
    )
    options = parser.parse_args()
    options.out = options.out.absolute()  # processes are started in the repository
    options.out.mkdir(parents=True, exist_ok=True)
    if options.compile_for is None:
        return measure(options)
    if options.layers is not None or options.trace:
        parser.error("--layers and --trace are for a GPU that is here, not for --compile-for")
    parts = [part for part in options.parts if part != "correctness"]
    arguments = [
        f"--out={options.out / 'compiled.json'}",
        f"--remat={options.remat}",
        f"--for={options.compile_for}",
    ]
    arguments += [f"--program={part}" for part in parts]
    return worker(["compile", *arguments, *chosen(options)], {})


if __name__ == "__main__":
    sys.exit(main())
