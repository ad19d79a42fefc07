"""The command line of ``serve.py``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from gpu_judge.vllm_server.settings import ServeSettings
from vcap_jax.system.home import HomeParser


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line; ends the process with status 2 where it makes no sense.

    Options of one backend alone are in the result only if they were given.
    """
    parser, of_vllm = _parser()
    options = parser.parse_args(arguments)
    other, names = ("vllm", of_vllm) if options.backend == "embedded" else ("embedded", list(_EMBEDDED_ONLY))
    given = [name for name in names if hasattr(options, name)]
    if given:
        listed = ", ".join("--" + name.replace("_", "-") for name in given)
        parser.error(f"{listed} belong to --backend {other}")
    if options.backend == "vllm":
        missing = [f"--{name}" for name in ("model", "gpus") if not hasattr(options, name)]
        if missing:
            parser.error(f"--backend vllm needs {' and '.join(missing)}")
    return options


def serve_settings(options: argparse.Namespace) -> ServeSettings:
    """The settings of the vllm backend. Raises SettingsError and AccessError."""
    given = {f.name: getattr(options, f.name) for f in fields(ServeSettings) if hasattr(options, f.name)}
    return ServeSettings(
        **{name: value for name, value in given.items() if value is not None or name == "gpus"}
    )


def perception_options(options: argparse.Namespace) -> dict[str, float | int]:
    """What was said about the embedded judge's perception, by the names of ``PerceptionConfig``."""
    return {field: getattr(options, name) for name, field in _EMBEDDED_ONLY.items() if hasattr(options, name)}


_EMBEDDED_ONLY = {
    "miss_rate": "miss",
    "invent_rate": "invent",
    "attention": "attention",
    "error_seed": "seed",
}
"""Option -> field of ``PerceptionConfig``."""


class _Shape(TypedDict, total=False):
    """How ``argparse`` reads an option."""

    type: Callable[[str], object]
    choices: Sequence[str]
    metavar: str
    action: Literal["store_true"]


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the names of the vllm backend's own options."""
    parser = HomeParser(
        prog="serve.py",
        description="Serve a judge of captions in OpenAI's chat format.",
        allow_abbrev=False,
        epilog="gpu_judge/README.md says more, with examples.",
    )
    parser.add_argument("--backend", choices=("embedded", "vllm"), default="embedded")
    parser.add_argument("--host", default="127.0.0.1", help="any but loopback requires --api-key-env")
    parser.add_argument("--port", type=int, default=8000, help="of the first server; 0 takes free ports")
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the key clients must bring"
    )
    parser.add_argument("--model-name", help="name to serve the model under")
    parser.add_argument(
        "--port-file", type=Path, help="write the addresses here, one per line, once all of them judge"
    )
    parser.add_argument(
        "--exit-with-parent", type=int, metavar="PID", help="end when the starting process, PID, is gone"
    )

    embedded = parser.add_argument_group(
        "embedded backend",
        "How well it sees; part of the name it is served under.",
        argument_default=argparse.SUPPRESS,
    )
    embedded.add_argument(
        "--miss-rate", type=float, help="share of visible facts it does not see (default: 0)"
    )
    embedded.add_argument(
        "--invent-rate", type=float, help="share of false claims it sees confirmed (default: 0)"
    )
    embedded.add_argument(
        "--attention", type=int, help="objects it notices where no reference points (default: 3)"
    )
    embedded.add_argument("--error-seed", type=int, help="of its errors (default: 0)")

    vllm = parser.add_argument_group(
        "vllm backend", "Defaults are those of the paper's runs.", argument_default=argparse.SUPPRESS
    )

    names = []

    def add(name: str, help: str, **more: Unpack[_Shape]) -> None:
        names.append(vllm.add_argument(name, help=help, default=argparse.SUPPRESS, **more).dest)

    add("--model", "folder of a Qwen3-VL checkpoint", type=Path)
    add("--modality", "what is judged (default: image)", choices=("image", "video", "both"))
    add(
        "--gpus",
        "numbers as nvidia-smi has them, such as 6,7: a server on each; none: on the CPU",
        type=_gpus,
    )
    add("--tensor-parallel-size", "so many neighbouring GPUs share a server (default: 1)", type=int)
    add("--quantization", "as vLLM names them, such as fp8")
    add("--dtype", "as vLLM names them (default: auto)")
    add("--max-model-len", "tokens of prompt and answer (default: what the modality needs)", type=int)
    add("--image-pixels", "budget of one image (default: 6422528)", type=int)
    add("--images-per-prompt", "pictures of one request at most (default: 8)", type=int)
    add("--video-frames", "frames of one video (default: 200)", type=int)
    add("--frame-tokens", "visual tokens of one frame before two are merged (default: 256)", type=int)
    add(
        "--media-cache-gb",
        "preprocessed media in each of two processes (default: 8; 16 with video)",
        type=float,
    )
    add("--max-queued", "requests in flight per server, beyond which it answers 503 (default: 256)", type=int)
    add("--gpu-memory-utilization", "share of each GPU (default: 0.9)", type=float)
    add("--cpu-cache-gb", "keys and values without a GPU (default: 2)", type=int)
    add("--seed", "of the server's sampling (default: 0)", type=int)
    add(
        "--sleep-mode",
        "sleep once it has judged, until a trainer wakes it up (judge.sleep_mode); on loopback only",
        action="store_true",
    )
    add("--drain-s", "seconds for requests in flight after SIGTERM (default: 60)", type=int)
    add(
        "--vllm",
        "the vllm executable of its own environment (default: on PATH or beside this Python)",
        type=Path,
    )
    add("--extra", 'further vLLM options as one word, such as --extra="--max-num-seqs 64"', type=_words)
    add("--print", "print the vLLM command lines and start nothing", action="store_true")
    add("--check", "as --print, with status 2 if anything to start them is missing", action="store_true")
    add("--log-dir", "folder for the servers' logs (default: judge-logs)", type=Path)
    add("--start-timeout-s", "seconds from start to the first judgement (default: 1800)", type=float)
    add(
        "--stall-timeout-s",
        "seconds without a token, while requests wait, until a server that does not judge when asked is started again "
        "(default: 300)",
        type=float,
    )
    return parser, names


def _gpus(text: str) -> tuple[int, ...] | None:
    if text.strip().lower() == "none":
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers such as 6,7, or none") from error


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
