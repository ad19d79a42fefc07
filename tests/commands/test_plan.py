"""What the planner is asked."""

from __future__ import annotations

import pytest

from vcap_jax.commands.plan import parse_arguments

ASKED = ["--hardware=h800x8", "--modality=image"]


@pytest.mark.parametrize("share", ["92", "0", "-0.5", "nan", "most"])
def test_a_share_of_memory_that_is_none_is_refused_before_anything_is_compiled(
    share: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([*ASKED, f"--memory-fraction={share}"])
    assert f"give a share above 0 and at most 1, not '{share}'" in capsys.readouterr().err


def test_the_whole_memory_is_a_share() -> None:
    assert parse_arguments([*ASKED, "--memory-fraction=1"]).memory_fraction == 1.0
    assert parse_arguments(ASKED).memory_fraction is None
