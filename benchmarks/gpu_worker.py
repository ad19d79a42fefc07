"""One part of benchmarks/gpu.py in a process of its own; started by it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """The command: correctness, decode, update, or compile. Status 1 if a check fails or nothing can be done here, 2 if
    a row says that it failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("correctness", "decode", "update", "compile"))
    parser.add_argument("--program", action="append", default=[], help="of compile: decode, update")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--remat", required=True)
    parser.add_argument("--modality", action="append", required=True)
    parser.add_argument("--groups", action="append", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--for", dest="hardware")
    options = parser.parse_args()
    if options.part == "compile":
        # Before anything imports jax.
        from vcap_jax.plan.targets import prepare_environment

        prepare_environment()
    from benchmarks.gpu_measure import NoGpu
    from vcap_jax.kernels.attention import UnsupportedAttention
    from vcap_jax.plan.targets import MissingPlugin

    try:
        found = {"correctness": correctness, "compile": compile_ahead}.get(options.part, timed)(options)
    except (NoGpu, MissingPlugin, UnsupportedAttention) as error:
        print(error, file=sys.stderr)
        return 1
    write(options.out, found)
    if found.get("failed_checks"):
        return 1
    return 2 if any("failed" in row for row in found["rows"]) else 0


def write(file: Path, found: dict[str, Any]) -> None:
    """What there is by now; the file is whole whenever the process ends."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found, indent=1) + "\n")
    unfinished.replace(file)


def chosen(shapes: Any, options: argparse.Namespace) -> list[Any]:
    """Of the modalities and numbers of groups asked for; an update is always of one group."""
    from benchmarks.gpu_programs import UPDATES

    found = [shape for shape in shapes if shape.modality.split(",")[0] in options.modality]
    return [shape for shape in found if shape.groups in options.groups or shapes is UPDATES]


def correctness(options: argparse.Namespace) -> dict[str, Any]:
    """Prints every check as it is made, the quickest first."""
    import jax

    from benchmarks.gpu_correctness import attention_checks, decode_checks, model_checks
    from benchmarks.gpu_measure import gpu
    from vcap_jax.kernels import attention

    # Programs are compiled once to look into them, and again when they are called: then they are found there.
    jax.config.update("jax_compilation_cache_dir", str(options.out.with_suffix(".compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    device, kernel = gpu(), attention.kernel("cudnn")
    parts = [lambda: attention_checks(kernel), lambda: model_checks(kernel)]
    capability = getattr(device, "compute_capability", None)
    if capability == attention.HOPPER:
        parts.insert(0, lambda: decode_checks(attention.Hopper()))
    else:
        print(f"compute capability {capability}: the kernel for new tokens, of Hopper alone, was not checked")
    checks = []
    for part in parts:
        for check in part():
            checks.append(check)
            print(
                f"{'ok' if check.passed else 'WRONG':<7}{check.name:<62}{check.value:>10.5f}  "
                f"(at most {check.bound:.5f})",
                flush=True,
            )
    failed = sum(not check.passed for check in checks)
    print(
        f"correctness on {device.device_kind}: {len(checks) - failed} of {len(checks)} checks passed",
        flush=True,
    )
    listed = [{"name": c.name, "value": c.value, "bound": c.bound, "passed": c.passed} for c in checks]
    return {"device": device.device_kind, "checks": listed, "failed_checks": failed, "rows": []}


def timed(options: argparse.Namespace) -> dict[str, Any]:
    """Prints and writes every measurement as it is made."""
    import jax

    from benchmarks.gpu import line
    from benchmarks.gpu_measure import gpu, rows
    from benchmarks.gpu_programs import DECODING, UPDATES
    from benchmarks.gpu_trace import table

    shapes = chosen(DECODING if options.part == "decode" else UPDATES, options)
    found: list[dict[str, Any]] = []
    result = {"device": gpu().device_kind, "jax": jax.__version__, "remat": options.remat, "rows": found}
    write(options.out, result)
    for row in rows(
        options.part,
        shapes,
        options.remat,
        options.repeats,
        lambda note: print(note, file=sys.stderr, flush=True),
        options.layers,
        options.trace,
    ):
        found.append(row)
        print(line(row), flush=True)
        if "trace" in row:
            print(table(row["trace"]), flush=True)
        write(options.out, result)
    return result


def compile_ahead(options: argparse.Namespace) -> dict[str, Any]:
    """Prints and writes every program as it is compiled."""
    import jax

    from benchmarks.gpu_compile import compile_line, compile_rows
    from benchmarks.gpu_programs import DECODING, UPDATES

    found: list[dict[str, Any]] = []
    result = {
        "compiled_for": options.hardware,
        "jax": jax.__version__,
        "remat": options.remat,
        "rows": found,
    }
    for row in compile_rows(
        options.hardware, options.program, chosen(DECODING, options), chosen(UPDATES, options), options.remat
    ):
        found.append(row)
        print(compile_line(row), flush=True)
        write(options.out, result)
    return result


if __name__ == "__main__":
    sys.exit(main())
