"""The command line of serve.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_judge.options import parse_arguments, serve_settings
from vcap_jax.world.noisy_perception import PerceptionConfig


def test_help_tells_the_defaults_of_the_embedded_judges_perception(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    told = [
        float(found[1])
        for option in ("miss-rate", "invent-rate", "attention", "error-seed")
        if (found := re.search(rf"--{option} [A-Z_]+ [^()]*\(default: (\d+)\)", text))
    ]
    default = PerceptionConfig()
    assert told == [default.miss, default.invent, default.attention, default.seed]


def test_a_checkpoint_may_be_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells leave ``~/`` alone behind ``--model=``."""
    monkeypatch.setenv("HOME", "/home/me")
    options = parse_arguments(["--backend=vllm", "--gpus=0", "--model=~/models/judge"])
    assert serve_settings(options).model == Path("/home/me/models/judge")
