"""What the recipes' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reward.scripted_judge import ScriptedJudge


@pytest.fixture
def server() -> Iterator[ScriptedJudge]:
    judge = ScriptedJudge()
    yield judge
    judge.close()
