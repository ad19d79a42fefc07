"""``~/`` for the home folder where shells leave it as it is: in quotes, in files, and behind ``--option=`` and
``key=``."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

_KEYS = re.compile(r"^(?:[^\s=]*=)*")


def at_home(path: str) -> str:
    """The path, with the home folder where it begins with ``~/``."""
    return f"{Path.home()}{path[1:]}" if path.startswith("~/") else path


class HomeParser(argparse.ArgumentParser):
    """Takes ``~/`` for the home folder, also as the value of ``--option=`` and ``key=``."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def,override]
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([_value_at_home(word) for word in words], namespace)


def _value_at_home(word: str) -> str:
    keys = _KEYS.match(word)
    assert keys is not None  # it matches nothing, too
    return keys[0] + at_home(word[keys.end() :])
