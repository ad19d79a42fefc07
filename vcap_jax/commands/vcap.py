"""The console command ``vcap``: finds the command that is named and hands the rest to it."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from vcap_jax import __version__
from vcap_jax.commands import COMMANDS
from vcap_jax.run.command_line import guarded, say, tell


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``vcap NAME ...``; the exit status, 2 for a name that there is not."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        return guarded(lambda: say(listing()), goes_on=False)
    name, *rest = words
    if name == "--version":
        print(f"vcap {__version__}")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "vcap --help lists them"
        tell(f"error: there is no command {name}; {hint}")
        return 2
    status: int = importlib.import_module(f"vcap_jax.commands.{name.replace('-', '_')}").main(rest)
    return status


def listing() -> str:
    """Every command with what it does."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    last = "vcap COMMAND --help says how one is used; vcap --version"
    return f"usage: vcap COMMAND ...\n\n{lines}\n\n{last}"


if __name__ == "__main__":
    sys.exit(main())
