"""Settings in, served judge out: looks around, checks, then supervises until told to end."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gpu_judge.addresses import local_url_of, read_api_key, url_of
from gpu_judge.lifetime import check_port_file, remove_port_file, write_port_file
from gpu_judge.vllm_server import checks
from gpu_judge.vllm_server.checkpoint import Checkpoint, read_checkpoint
from gpu_judge.vllm_server.command import KEY_VARIABLE, ServerCommand, build_commands, listed_ports
from gpu_judge.vllm_server.installation import Installation, check_versions, find_executable, inspect
from gpu_judge.vllm_server.readiness import Probe, expected_video_tokens
from gpu_judge.vllm_server.settings import ServeSettings
from gpu_judge.vllm_server.supervisor import Launch, Supervision, supervise_until_signalled
from vcap_jax.system.errors import VCapError

T = TypeVar("T")


def print_commands(settings: ServeSettings, port_file: Path | None = None, *, check: bool = False) -> int:
    """Prints what would be started, a line for each server, ready for a shell; the exit status.

    Needs neither vLLM nor the checkpoint nor a GPU: what is missing to start the lines here is told on stderr, and with
    ``check`` the status is 2 then. Raises SettingsError where there is no such command line.
    """
    missing: list[str] = []

    def tried(look: Callable[[], T], otherwise: T) -> T:
        try:
            return look()
        except VCapError as error:
            missing.append(str(error))
            return otherwise

    tried(lambda: read_api_key(settings.host, settings.api_key_env), None)
    tried(lambda: check_port_file(port_file), None)
    found = tried(lambda: inspect(find_executable(settings.vllm)), None)
    checkpoint = tried(lambda: read_checkpoint(settings.model), None)
    missing += look_for_problems(settings, found, checkpoint)
    executable = settings.vllm or Path("vllm") if found is None else found.executable
    ports = tried(lambda: _ports(settings), listed_ports(settings))
    commands = build_commands(settings, checkpoint or Checkpoint(), executable, ports)
    if checkpoint is None:
        missing.append(
            "the lines are those for a checkpoint as it is published: print them again where --model is"
        )
    for command in commands:
        print(command.shell())
    for what in dict.fromkeys(missing):
        print(f"serve.py: to start this here: {what}", file=sys.stderr)
    return 2 if check and missing else 0


def run(
    settings: ServeSettings,
    supervision: Supervision,
    *,
    log_dir: Path,
    port_file: Path | None,
    parent: int | None,
) -> int:
    """Serves until SIGTERM or SIGINT; the exit status.

    0: asked to end. 1: no server comes up or is left, or what must be written cannot be. 2: nothing was started, the
    messages on stderr say why.
    """
    try:
        check_port_file(port_file)
        key = read_api_key(settings.host, settings.api_key_env)
        installation = inspect(find_executable(settings.vllm))
        checkpoint = read_checkpoint(settings.model)
        problems = look_for_problems(settings, installation, checkpoint)
        if problems:
            return _refuse(problems)
        commands = build_commands(settings, checkpoint, installation.executable, _ports(settings))
    except VCapError as error:
        return _refuse([str(error)])
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        launches = [_launch(command, settings, checkpoint, key, log_dir) for command in commands]
    except OSError as error:
        return _refuse([f"--log-dir {log_dir} cannot be written ({error}): name another folder"])
    addresses = [url_of(settings.host, command.port) for command in commands]

    def all_ready() -> None:
        write_port_file(port_file, addresses)
        for address in addresses:
            print(f"judge ready at {address}", flush=True)

    try:
        remove_port_file(port_file)
        asyncio.run(supervise_until_signalled(launches, supervision, parent=parent, all_ready=all_ready))
    except VCapError as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 1
    return 0


def look_for_problems(
    settings: ServeSettings, installation: Installation | None, checkpoint: Checkpoint | None
) -> list[str]:
    """Everything that is known to fail here, each with its remedy; of what is None nothing is known."""
    problems: list[str] = []
    if installation is not None:
        problems += check_versions(installation) + checks.check_build(settings, installation)
        problems += checks.check_compiler(settings, installation)
    if settings.gpus is not None:
        cuda = None if installation is None else installation.cuda
        try:
            problems += checks.check_gpus(settings, checkpoint, checks.query_gpus(), cuda)
        except checks.CheckError as error:
            problems.append(str(error))
        if checkpoint is not None:
            problems += checks.check_heads(settings, checkpoint)
    problems += checks.check_host_memory(settings, checks.read_meminfo())
    return problems + checks.check_ports(settings.host, listed_ports(settings))


def _launch(
    command: ServerCommand, settings: ServeSettings, checkpoint: Checkpoint, key: str | None, log_dir: Path
) -> Launch:
    environment = command.environment_upon(os.environ)
    # A key in our own environment is not meant for this server unless named.
    environment.pop(KEY_VARIABLE, None)
    if key is not None:
        environment[KEY_VARIABLE] = key
    log = log_dir / f"vllm-{command.port}.log"
    with log.open("a") as file:
        file.write(f"== {shlex.join(command.argv)}\n")
    return Launch(
        name=command.name,
        argv=command.argv,
        environment=environment,
        log=log,
        probe=Probe(
            url=local_url_of(settings.host, command.port),
            model=settings.served_name,
            key=key,
            modality=settings.modality,
            video_token_id=checkpoint.video_token_id,
            video_tokens=expected_video_tokens(checkpoint.pixels_per_token, checkpoint.temporal_patch),
            can_sleep=settings.sleep_mode,
        ),
    )


def _ports(settings: ServeSettings) -> tuple[int, ...]:
    if settings.port == 0:
        return checks.free_ports(settings.host, settings.server_count)
    return listed_ports(settings)


def _refuse(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"serve.py: {problem}", file=sys.stderr)
    return 2
