"""YAML that has been read or written before, without PyYAML.

The tests' configurations are nearly all alike, and PyYAML takes as long for each as most tests take for all else.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable

import yaml


def remember() -> None:
    """Of all that is read from text, or written to it, in this process."""
    yaml.load, yaml.dump = _remembered(yaml.load), _remembered(yaml.dump)


def _remembered(function: Callable[..., object]) -> Callable[..., object]:
    known: dict[bytes, bytes] = {}

    @functools.wraps(function)
    def call(given: object, *more: object, **settings: object) -> object:
        if more or "stream" in settings or not isinstance(given, str | dict | list | int | float | None):
            return function(given, *more, **settings)
        key = pickle.dumps((given, settings))
        if key not in known:
            known[key] = pickle.dumps(function(given, **settings))
        return pickle.loads(known[key])  # its own: whoever reads it may change it

    return call
