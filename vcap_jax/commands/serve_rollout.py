r"""Starts a vLLM server that draws captions for a training run (``rollout.engine=vllm``).

    python launch/serve_rollout.py --config configs/paper/image.yaml --vllm /opt/vllm/bin/vllm --port 8100 \
        model.path=/models/Qwen3-VL-8B-Instruct -- --gpu-memory-utilization 0.5
    python launch/train.py --config configs/paper/image.yaml model.path=/models/Qwen3-VL-8B-Instruct \
        rollout.engine=vllm 'rollout.vllm.urls=[http://127.0.0.1:8100]'

Give both commands the same configuration: the server takes the model, the visual budget, the precision and the lengths
from it. What follows -- goes to ``vllm serve`` as it is. vLLM needs an environment of its own. The server listens on
loopback alone, because whoever reaches it can replace its weights; it serves one run at a time. With --supervise it is
started again when it ends or hangs; without, it takes this command's place.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from vcap_jax.run.command_line import command_parser, guarded, read_config


def main(arguments: Sequence[str] | None = None) -> int:
    own, more = list(sys.argv[1:] if arguments is None else arguments), []
    if "--" in own:
        cut = own.index("--")
        own, more = own[:cut], own[cut + 1 :]
    parser = command_parser(__doc__)
    parser.add_argument("--modality", choices=("image", "video"), help="as for train.py")
    parser.add_argument("--config", action="append", type=Path, help="as for train.py")
    parser.add_argument("--vllm", default="vllm", help="the vllm executable (default: the one on PATH)")
    parser.add_argument("--cpu", action="store_true", help="vLLM's CPU build: leave out what it cannot do")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument(
        "--sleep-mode",
        action="store_true",
        help="it shares the policy's GPU: it sleeps until the trainer wakes it up (rollout.vllm.sleep_mode)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the model's folder is made, and left (default: in /tmp, and removed when the server has ended)",
    )
    parser.add_argument(
        "--supervise",
        action="store_true",
        help="stay beside the server, and start it again when it ends or its engine hangs",
    )
    parser.add_argument(
        "--log", type=Path, help="with --supervise: of the server's output (default: rollout-PORT.log)"
    )
    parser.add_argument(
        "--stall-timeout-s",
        type=float,
        help="with --supervise: seconds without a token, while requests wait, until a server that draws none when "
        "asked is started again (default: 300)",
    )
    parser.add_argument(
        "--print", action="store_true", help="make the folder, print the command, start nothing"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    args = parser.parse_intermixed_args(own)
    if not 0 < args.port <= 65535:
        parser.error(f"--port {args.port}: give one from 1 to 65535")
    if not args.supervise and (args.log is not None or args.stall_timeout_s is not None):
        parser.error("--log and --stall-timeout-s are for a server with --supervise: add it")
    if args.stall_timeout_s is not None and not args.stall_timeout_s > 0:
        parser.error(f"--stall-timeout-s is {args.stall_timeout_s:g}: give seconds above 0")
    # The policy is only read and written here; the accelerator is the server's.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    def serve() -> None:
        from vcap_jax.configuration import ConfigError
        from vcap_jax.models.family import VllmFamily
        from vcap_jax.models.registry import family_at
        from vcap_jax.run.rollout_server import (
            SERVER_ENVIRONMENT,
            export_policy,
            new_folder,
            serve_command,
            server_environment,
            supervised,
        )
        from vcap_jax.system.after_process import remove_after
        from vcap_jax.system.child_python import child_environment

        config = read_config(args, say=lambda _: None)
        executable = shutil.which(args.vllm)
        if executable is None:
            raise ConfigError(
                f"there is no {args.vllm}: install vLLM into an environment of its own and give its executable "
                "with --vllm"
            )
        if not (args.folder and args.print) and _is_taken(args.port):
            raise ConfigError(
                f"port {args.port} is in use: end the server that listens there, or give another with --port"
            )
        folder = args.folder or new_folder(args.port)
        if not (args.folder or args.print):
            remove_after(folder, os.getpid())
        export_policy(config, folder)
        family = family_at(folder, config.model.family)
        if not isinstance(family, VllmFamily):
            raise ConfigError(f"vLLM draws no captions of the model family {family.name}; draw them in JAX")
        command = serve_command(
            config,
            folder,
            port=args.port,
            vllm=executable,
            cpu=args.cpu,
            sleep_mode=args.sleep_mode,
            more=[
                *(family.vllm_cpu_options if args.cpu else ()),
                # Whether its engine hangs is told from the requests that it has.
                *(["--enable-server-load-tracking"] if args.supervise else []),
                *more,
            ],
        )
        settings = " ".join(f"{key}={value}" for key, value in SERVER_ENVIRONMENT.items())
        beside = shlex.quote(str(Path(executable).absolute().parent))
        print(f'PATH={beside}:"$PATH" {settings} {shlex.join(command)}', flush=True)
        if not args.print:
            environment = server_environment(Path(executable), os.environ)
            if args.supervise:
                log = args.log or Path(f"rollout-{args.port}.log")
                stall_s = 300.0 if args.stall_timeout_s is None else args.stall_timeout_s
                command = supervised(
                    command,
                    folder,
                    port=args.port,
                    sleep_mode=args.sleep_mode,
                    log=log,
                    stall_timeout_s=stall_s,
                )
                # In this process's place, so that nothing of the policy stays in memory.
                os.execve(sys.executable, command, environment)
            if args.sleep_mode:
                url, pid = f"http://127.0.0.1:{args.port}", str(os.getpid())
                subprocess.run(
                    [sys.executable, "-m", "vcap_jax.rollout.falls_asleep", url, pid],
                    check=True,
                    env=child_environment(),
                )
            # The server takes this process's place, so signals and its exit status are its own.
            os.execve(executable, command, environment)

    return guarded(serve, goes_on=False)


def _is_taken(port: int) -> bool:
    """Whether a server listens there: its folder must stay, and another cannot have the port."""
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
