"""What the commands under ``launch/`` have in common: configuration arguments, and errors a user can act on."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # JAX is imported only once the arguments are understood and its environment is set
    from vcap_jax.config import RunConfig
    from vcap_jax.distributed import Processes

ROOT = Path(__file__).resolve().parent.parent


def config_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of what every command understands; the command adds its own arguments."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modality", choices=("image", "video"), help="what the data are (default: image)")
    parser.add_argument(
        "--config", action="append", type=Path, help="YAML file; given again, later files win"
    )
    parser.add_argument(
        "--help-config", action="store_true", help="list every key of the configuration and exit"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved configuration and exit"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser


def read_config(args: argparse.Namespace, say: Callable[[str], None] = print) -> RunConfig:
    """The configuration that the arguments ask for; without --config the embedded world's. Raises ConfigError."""
    from vcap_jax.config import RunConfig
    from vcap_jax.configuration import load_config

    modality = args.modality or "image"
    files = args.config
    if not files:
        files = [ROOT / "configs" / "embedded" / f"{modality}.yaml"]
        say(
            f"No --config given: this is the embedded world ({files[0].relative_to(ROOT)}), a small instance of the "
            f"real run.\nThe paper's run is --config configs/paper/{modality}.yaml."
        )
    overrides = list(args.overrides)
    if args.modality:
        overrides.append(f"modality={args.modality}")
    return load_config(RunConfig, files, overrides)


def run_command(args: argparse.Namespace, command: Callable[[RunConfig], int]) -> int:
    """Reads the configuration and calls ``command``; the exit status.

    Errors that a user can mend are printed without a trace; a run that stopped and can be continued says how.
    """
    return _run(args, lambda config, _: command(config), several=False)


def run_shared_command(args: argparse.Namespace, command: Callable[[RunConfig, Processes], int]) -> int:
    """``run_command`` for a command that several processes may do together, as ``config.distributed`` says."""
    return _run(args, command, several=True)


def speaker(processes: Processes) -> Callable[[str], None]:
    """Prints what a command says, at once; of all processes but the first, by number."""
    name = "" if processes.first else f"process {processes.index}: "

    def say(text: str) -> None:
        print(f"{name}{text}", flush=True)

    return say


@contextmanager
def _log_shown(processes: Processes) -> Iterator[None]:
    """What the package logs goes to standard error: choices such as the attention kernel, from the first process alone,
    and warnings."""
    logger, handler = logging.getLogger("vcap_jax"), logging.StreamHandler()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    # Libraries put handlers of their own on the root, which would say everything again.
    logger.propagate = False
    logger.setLevel(logging.INFO if processes.first else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _run(args: argparse.Namespace, command: Callable[[RunConfig, Processes], int], *, several: bool) -> int:
    # The driver's messages about machine features are noise for a user; errors still come through.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import jax

    from vcap_jax.config import RunConfig
    from vcap_jax.configuration import ConfigError, describe, dump_config
    from vcap_jax.distributed import ALONE, PeerFailed, joined
    from vcap_jax.errors import VCapError
    from vcap_jax.stopping import TrainingStopped

    if args.help_config:
        print(describe(RunConfig))
        return 0
    with ExitStack() as stack:
        processes = ALONE
        try:
            config = read_config(args)
            if args.print_config:
                print(dump_config(config), end="")
                return 0
            if config.compilation_cache:
                jax.config.update("jax_compilation_cache_dir", config.compilation_cache)
                # JAX leaves out what compiles within a second, which in the embedded world is nearly everything.
                jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
            if config.distributed.several and not several:
                raise ConfigError(["this command is for one process: leave distributed.* out"])
            processes = stack.enter_context(joined(config.distributed))
            stack.enter_context(_log_shown(processes))
            return command(config, processes)
        except (VCapError, FileNotFoundError) as error:
            # Before leaving the others, which may take long.
            processes.fail(error)
            print(f"error: {error}", file=sys.stderr, flush=True)
            if isinstance(error, TrainingStopped | PeerFailed):
                resume = hasattr(args, "resume") and not args.resume
                again = [sys.executable, *sys.argv, *(["--resume"] if resume else [])]
                print(f"continue with: {shlex.join(again)}", file=sys.stderr)
            return 1
