"""Serves a judge at an OpenAI-compatible address.

    python gpu_judge/serve.py --backend embedded --port 8000
    python gpu_judge/serve.py --backend vllm --model /models/Qwen3-VL-8B-Instruct --gpus 6,7

Prints the addresses once they judge. Ends on SIGTERM or SIGINT after finishing what it has begun.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ in (None, ""):
    # Run as a script: make the project importable, and this folder's modules only as part of it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from gpu_judge.addresses import read_api_key
from gpu_judge.options import parse_arguments, perception_options, serve_settings
from gpu_judge.vllm_server.settings import SettingsError
from vcap_jax.system.errors import VCapError

if TYPE_CHECKING:
    from gpu_judge.vllm_server.supervisor import Supervision


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return _vllm(options) if options.backend == "vllm" else _embedded(options)
    except VCapError as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 2


# Each backend is imported when it is asked for: the embedded one starts in a trainer's path, vLLM's needs no numpy.
def _embedded(options: argparse.Namespace) -> int:
    key = read_api_key(options.host, options.api_key_env)
    if not 0 <= options.port <= 65535:
        raise SettingsError(f"--port is {options.port}: give a port from 1 to 65535, or 0 for a free one")
    from gpu_judge import embedded_server
    from vcap_jax.configuration import ConfigError, load_config
    from vcap_jax.world.noisy_perception import PerceptionConfig

    try:
        said = [f"{name}={value}" for name, value in perception_options(options).items()]
        perception = load_config(PerceptionConfig, [], said)
    except ConfigError as error:
        raise SettingsError(str(error)) from error
    return embedded_server.run(
        host=options.host,
        port=options.port,
        port_file=options.port_file,
        model_name=options.model_name,
        key=key,
        parent=options.exit_with_parent,
        perception=perception,
    )


def _vllm(options: argparse.Namespace) -> int:
    settings = serve_settings(options)
    supervision = _supervision(options, settings.drain_s)
    from gpu_judge.vllm_server import run

    check = getattr(options, "check", False)
    if check or getattr(options, "print", False):
        return run.print_commands(settings, options.port_file, check=check)
    return run.run(
        settings,
        supervision,
        log_dir=getattr(options, "log_dir", Path("judge-logs")),
        port_file=options.port_file,
        parent=options.exit_with_parent,
    )


def _supervision(options: argparse.Namespace, drain_s: float) -> Supervision:
    """How long is waited for what. Raises SettingsError for seconds that are none: with NaN for ever."""
    from gpu_judge.vllm_server.supervisor import Supervision

    given = {
        name: getattr(options, name)
        for name in ("start_timeout_s", "stall_timeout_s")
        if hasattr(options, name)
    }
    for name, seconds in given.items():
        if not seconds > 0:
            raise SettingsError(f"--{name.replace('_', '-')} is {seconds:g}: give seconds above 0")
    return Supervision(drain_s=drain_s, **given)


if __name__ == "__main__":
    sys.exit(main())
