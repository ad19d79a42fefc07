"""The command line of serve.py says what is so."""

from __future__ import annotations

import re

import pytest

from gpu_judge.options import parse_arguments, perception_options
from vcap_jax.world.noisy_perception import PerceptionConfig


def test_help_states_the_defaults_of_the_embedded_judges_perception(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {"miss-rate": 0.1, "invent-rate": 0.1, "attention": 9, "error-seed": 9}
    fields = perception_options(
        parse_arguments([word for n, v in names.items() for word in (f"--{n}", str(v))])
    )
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    for name, field in zip(names, fields, strict=True):
        found = re.search(rf"--{name} [A-Z_]+ [^()]*\(default: ([\d.]+)\)", told)
        assert found is not None, name
        assert float(found[1]) == getattr(PerceptionConfig(), field), name
