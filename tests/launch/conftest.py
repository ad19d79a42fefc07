"""The node that the scripts are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch import preflight_server
from tests.launch.stand_ins import make_node


@pytest.fixture(scope="session")
def preflight() -> Iterator[None]:
    """See ``preflight_server``."""
    with preflight_server.serving():
        yield


@pytest.fixture
def node(tmp_path: Path, preflight: None) -> Path:
    """See ``make_node``."""
    return make_node(tmp_path)
