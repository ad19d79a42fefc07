"""The node that the scripts are tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.stand_ins import make_node


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """See ``make_node``."""
    return make_node(tmp_path)
