"""What the commands have in common: configuration arguments, and errors a user can act on."""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vcap_jax.system.home import HomeParser

if TYPE_CHECKING:  # JAX is imported only once the arguments are understood and its environment is set
    from vcap_jax.parallel.processes import Processes
    from vcap_jax.run.config import RunConfig

_OURS = "vcap_jax"
_SCRIPT = re.compile(r"python launch/(\w+)\.py")


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows ``description`` as it is written.

    A command that was started as ``vcap NAME`` says so where the description has ``python launch/NAME.py``.
    """
    prog = None
    if _as_vcap():
        prog = " ".join(["vcap", *sys.argv[1:2]])
        description = _SCRIPT.sub(lambda found: f"vcap {found[1].replace('_', '-')}", description or "")
    return HomeParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def page_argument(text: str) -> Path:
    """Of a file that a page is written to: new, or a page, which is replaced."""
    return _output(text, "an HTML page", lambda content: content.lstrip()[:9].lower() == b"<!doctype")


def json_argument(text: str) -> Path:
    """Of a file that JSON is written to: new, or JSON, which is replaced."""

    def is_json(content: bytes) -> bool:
        try:
            json.loads(content)
        except ValueError:
            return False
        return True

    return _output(text, "JSON", is_json)


def _output(text: str, kind: str, is_one: Callable[[bytes], bool]) -> Path:
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: name a file in it")
    if path.is_file() and (content := path.read_bytes()) and not is_one(content):
        raise argparse.ArgumentTypeError(
            f"{path} is there and is not {kind}: name another file, or move it away"
        )
    return path


def step_argument(text: str) -> int | Literal["best"]:
    """For an option that names one of a run's checkpoints: its step, or "best"."""
    if text == "best":
        return "best"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"give the step of a checkpoint, or best, not {text!r}") from None


def temperature_argument(text: str) -> float:
    """For an option that says how captions are drawn."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"give a number of at least 0, not {text!r}")
    return found


def seed_argument(text: str) -> int:
    """For an option that says which draws are made."""
    if not text.isdecimal() or not int(text) < 2**32:
        raise argparse.ArgumentTypeError(f"give a whole number from 0 to 2**32 - 1, not {text!r}")
    return int(text)


def add_endpoint_options(
    parser: argparse.ArgumentParser, role: str, help: str, *, required: bool = False
) -> None:
    """Options for who answers questions: --ROLE, --ROLE-model and --ROLE-key-env; see ``endpoint_settings``."""
    parser.add_argument(f"--{role}", required=required, help=help)
    parser.add_argument(f"--{role}-model", help=f"of the {role}'s server, if it serves several")
    parser.add_argument(f"--{role}-key-env", help=f"name of the variable that holds the {role}'s key")


def add_captioner_options(parser: argparse.ArgumentParser, by: str, *, required: bool = True) -> None:
    """Options for who captions: --by, and what follows from it. by: the help of --by."""
    parser.add_argument("--by", required=required, help=by)
    parser.add_argument(
        "--step", type=step_argument, help="which of a run's checkpoints, or best (default: the last)"
    )
    parser.add_argument("--served-model", help="of a captioner's endpoint, if it serves several")
    parser.add_argument("--api-key-env", help="name of the variable that holds that endpoint's key")


def endpoint_settings(args: argparse.Namespace, role: str) -> list[str]:
    """What the options of ``add_endpoint_options`` say, as settings of the section ``role``."""
    urls = getattr(args, role)
    # With quotes: an IPv6 address has brackets of its own.
    words = [] if urls is None else [f"{role}.urls={json.dumps([url.strip() for url in urls.split(',')])}"]
    for option, key in (("model", "model"), ("key_env", "api_key_env")):
        given = getattr(args, f"{role}_{option}")
        words += [] if given is None else [f"{role}.{key}={given}"]
    return words


def named_paths(words: Sequence[str]) -> dict[str, str]:
    """Of words [NAME=]PATH the paths by name: the one that is given, or the path's last part. Raises ConfigError for
    one name twice."""
    from vcap_jax.configuration import ConfigError

    found: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            name, path = Path(word).resolve().name, word
        if name in found:
            raise ConfigError(f"{name!r} stands for {found[name]} and {path}: name one NAME={path}")
        found[name] = path
    return found


def config_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of what every command understands; the command adds its own arguments."""
    parser = command_parser(description)
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
    from vcap_jax.configuration import load_config, shipped_configs
    from vcap_jax.run.config import RunConfig

    modality = args.modality or "image"
    files = args.config
    if not files:
        files = [shipped_configs() / "embedded" / f"{modality}.yaml"]
        say(
            f"No --config given: settings are those of the embedded world (configs/embedded/{modality}.yaml), a small "
            f"instance of the real run.\nThe paper's are --config configs/paper/{modality}.yaml."
        )
    overrides = list(args.overrides)
    if args.modality:
        overrides.append(f"modality={args.modality}")
    return load_config(RunConfig, files, overrides)


def run_command(args: argparse.Namespace, command: Callable[[RunConfig], int | None]) -> int:
    """Reads the configuration and calls ``command``; its exit status, 0 for None.

    What ends it early is told as ``guarded`` does.
    """
    return _run(args, lambda config, _: command(config), several=False)


def run_shared_command(
    args: argparse.Namespace, command: Callable[[RunConfig, Processes], int | None]
) -> int:
    """``run_command`` for a command that several processes may do together, as ``config.distributed`` says."""
    return _run(args, command, several=True)


def guarded(
    work: Callable[[], int | None], *, goes_on: bool = True, again: str | None = None, failed: int = 1
) -> int:
    """Calls ``work`` as the whole of a command. Returns its exit status, 0 for None, or that of ``report``.

    goes_on: whether the same command, given again, resumes what a signal ended. again: the command
    that resumes it, if it is not this process's own. failed: the exit status of errors.
    """
    from vcap_jax.system.shutdown import stop_on_signal

    _print_anything()
    _tell_crashes()
    with stop_on_signal():
        try:
            return _flushed(work())
        except BaseException as error:
            return report(error, (again or _again()) if goes_on else None, failed=failed)


def report(error: BaseException, again: str | None, *, failed: int = 1) -> int:
    """Tells the user in a line or a few what ended a command. Returns the exit status.

    After a signal it is 128 + the signal's number. After what a user, a disk or a network can cause
    it is ``failed``. Anything else is a defect, or a library's way to exit, and is raised again.

    again: the command that resumes the work; None if it would begin anew.
    """
    from vcap_jax.system.errors import VCapError, system_message
    from vcap_jax.system.shutdown import Stopped, exit_status, stopped_by

    if stopped_by(error):
        how = "the same command begins anew" if again is None else f"go on with: {again}"
        how_far = error if isinstance(error, Stopped) else "stopped"
        tell(f"{how_far}; {how}")
        return exit_status()
    if isinstance(error, BrokenPipeError):
        # Whoever read the output has had enough; Python would complain once more when it flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, VCapError):
        text, resumable = str(error), error.resumable
    elif isinstance(error, OSError):
        text, resumable = system_message(error) or str(error), True
    elif isinstance(error, ModuleNotFoundError) and not (error.name or _OURS).startswith(_OURS):
        # Most often a clone's script was started with the system's Python.
        text, resumable = (
            (
                f"{sys.executable} lacks the module {error.name}: use the environment that `bash launch/quickstart.sh` "
                f"makes, such as .venv/bin/python {sys.argv[0]} ..., or install the package into this one"
            ),
            False,
        )
    else:
        raise error
    tell(f"error: {text}")
    if resumable and again is not None:
        tell(f"go on with: {again}")
    return failed


def _again(args: argparse.Namespace | None = None) -> str:
    """The command as it was given, which --resume lets go on where it has that option."""
    resume = hasattr(args, "resume") and not args.resume  # type: ignore[union-attr]
    return shlex.join([*_called(None), *sys.argv[1:], *(["--resume"] if resume else [])])


def other_command(name: str, *words: str) -> str:
    """``vcap NAME WORDS`` as whoever called this command would call it."""
    return shlex.join([*_called(name), *words])


def _called(name: str | None) -> list[str]:
    """How the command of that name is called, this one if None: as this one was."""
    if _as_vcap():
        return ["vcap"] if name is None else ["vcap", name]
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    script = sys.argv[0]
    if name is not None:
        script = str(Path(script).with_name(f"{name.replace('-', '_')}.py"))
    return [str(python), script]


def _as_vcap() -> bool:
    return Path(sys.argv[0]).stem == "vcap"


def _flushed(status: int | None) -> int:
    """The exit status of work that is done, once what it printed is written: Python would tell of a reader that has
    gone after the command could."""
    print(end="", flush=True)
    return status or 0


def _tell_crashes() -> None:
    """A crash of a library's machine code, such as a driver's, ends the process with the stack of each thread."""
    if not faulthandler.is_enabled():
        # The error output may be no file, or none.
        with suppress(OSError, ValueError, RuntimeError, AttributeError):
            faulthandler.enable()


def _print_anything() -> None:
    """What the locale's encoding lacks is printed as an escape, as on the error output: a caption, or the name of a
    file, ends no command."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Prints what a command says, at once."""
    print(text, flush=True)


def tell(text: str) -> None:
    """Prints beside what a command says, such as progress, at once: on the error output."""
    print(text, file=sys.stderr, flush=True)


def speaker(processes: Processes) -> Callable[[str], None]:
    """Prints what a command says, at once; of all processes but the first, by number."""
    name = "" if processes.first else f"process {processes.index}: "

    return lambda text: say(f"{name}{text}")


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


def _run(
    args: argparse.Namespace, command: Callable[[RunConfig, Processes], int | None], *, several: bool
) -> int:
    # The driver's messages about machine features are noise for a user; errors still come through.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from vcap_jax.system.shutdown import finishing, stop_on_signal

    _print_anything()
    _tell_crashes()
    with stop_on_signal(), ExitStack() as stack:
        processes: Processes | None = None
        try:
            with finishing("the start"):  # machine code that is being loaded may not survive an exception
                from vcap_jax.parallel.processes import joined
                from vcap_jax.run.compilation_cache import check_shared_cache

                config = _configured(args)
            if config is None:
                return _flushed(None)
            if config.distributed.several and not several:
                from vcap_jax.configuration import ConfigError

                raise ConfigError("this command is for one process: leave distributed.* out")
            processes = stack.enter_context(joined(config.distributed))
            stack.enter_context(_log_shown(processes))
            check_shared_cache(config, processes, speaker(processes))
            return command(config, processes) or 0
        except BaseException as error:
            if processes is not None:
                processes.fail(error)  # before leaving the others, which may take long
            return report(error, _again(args))


def _configured(args: argparse.Namespace) -> RunConfig | None:
    """The configuration that was asked for; None if it was only to be shown."""
    from vcap_jax.configuration import describe, dump_config
    from vcap_jax.run.compilation_cache import use_compilation_cache
    from vcap_jax.run.config import RunConfig

    if args.help_config:
        print(describe(RunConfig))
        return None
    config = read_config(args)
    if args.print_config:
        print(dump_config(config), end="")
        return None
    use_compilation_cache(config)
    return config
