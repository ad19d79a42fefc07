"""Settings may stand on both sides of an option, in every command that takes them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import vcap_jax.configuration

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
SETTINGS = ["seed=3", "rollout.decode_steps_per_call=8", "max_steps=2"]


class Parsed(Exception):
    """Carries what a command understood."""


def overrides_of(script: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    def stop(first: Any, *rest: Any) -> None:
        raise Parsed(rest[1] if script == "serve_rollout.py" else first.overrides)

    monkeypatch.setattr(sys, "argv", [script, *arguments])
    names = runpy.run_path(str(LAUNCH / script))
    if "parse_arguments" in names:
        return list(names["parse_arguments"]().overrides)
    for name in ("run_command", "run_shared_command"):
        if name in names:
            monkeypatch.setitem(names["main"].__globals__, name, stop)
    monkeypatch.setattr(vcap_jax.configuration, "load_config", stop)
    with pytest.raises(Parsed) as parsed:
        names["main"]()
    return list(parsed.value.args[0])


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("train.py", ["--run-dir", "runs/x"]),
        ("sft.py", ["--resume"]),
        ("distill.py", ["--teacher", "self"]),
        ("self_improve.py", ["--rounds", "3"]),
        ("references.py", ["--out", "pool.jsonl"]),
        ("preflight.py", ["--devices", "6"]),
        ("plan.py", ["--hardware", "h800x8", "--modality", "image"]),
        ("reproduce.py", ["--out", "runs/x"]),
        ("serve_rollout.py", ["--port", "8100"]),
    ],
)
def test_settings_stand_on_both_sides_of_an_option(
    script: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = SETTINGS
    for arguments in ([first, *options, *others], [*options, *SETTINGS], [*SETTINGS, *options]):
        assert overrides_of(script, arguments, monkeypatch) == SETTINGS


def test_every_command_with_settings_is_here() -> None:
    taking = {
        path.name
        for path in LAUNCH.glob("*.py")
        if "config_parser(" in (text := path.read_text(encoding="utf-8")) or '"overrides"' in text
    }
    cases = test_settings_stand_on_both_sides_of_an_option.pytestmark[0].args[1]
    assert taking == {script for script, _ in cases}


def test_an_unknown_option_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        overrides_of("train.py", ["seed=3", "--run-directory", "x"], monkeypatch)
    assert "--run-directory" in capsys.readouterr().err
