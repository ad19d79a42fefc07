"""What a plan refuses before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from tests.plan.tiny_run import tiny_run
from vcap_jax.plan.planning import make_plan
from vcap_jax.system.hardware import hardware


def test_a_program_that_no_step_has_is_named_with_those_there_are(tmp_path: Path) -> None:
    devices = jax.devices()[:2]
    with pytest.raises(ValueError, match=r"no program gradients in a step; there are .*decode.*gradient"):
        make_plan(
            tiny_run(tmp_path),
            hardware("h100x2"),
            only=frozenset({"gradients", "decode"}),
            devices=(devices, devices),
        )
