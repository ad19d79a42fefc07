"""Settings may stand on both sides of an option, in every command that takes them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import vcap_jax.commands
import vcap_jax.configuration

COMMANDS = Path(vcap_jax.commands.__file__).parent
SETTINGS = ["seed=3", "rollout.decode_steps_per_call=8", "max_steps=2"]


class Parsed(Exception):
    """Carries what a command understood."""


def overrides_of(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    def stop(first: Any, *rest: Any) -> None:
        raise Parsed(rest[1] if name == "serve_rollout" else first.overrides)

    command = importlib.import_module(f"vcap_jax.commands.{name}")
    if hasattr(command, "parse_arguments"):
        return list(command.parse_arguments(arguments).overrides)
    for runner in ("run_command", "run_shared_command"):
        if hasattr(command, runner):
            monkeypatch.setattr(command, runner, stop)
    monkeypatch.setattr(vcap_jax.configuration, "load_config", stop)
    with pytest.raises(Parsed) as parsed:
        command.main(arguments)
    return list(parsed.value.args[0])


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", ["--run-dir", "runs/x"]),
        ("sft", ["--resume"]),
        ("distill", ["--teacher", "self"]),
        ("self_improve", ["--rounds", "3"]),
        ("references", ["--out", "pool.jsonl"]),
        ("score", ["--captions", "c.jsonl", "--out", "scores"]),
        ("evaluate", ["--benchmark", "capmas", "--by", "runs/x", "--data", "d"]),
        ("preflight", ["--devices", "6"]),
        ("plan", ["--hardware", "h800x8", "--modality", "image"]),
        ("reproduce", ["--out", "runs/x"]),
        ("serve_rollout", ["--port", "8100"]),
    ],
)
def test_settings_stand_on_both_sides_of_an_option(
    command: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = SETTINGS
    for arguments in ([first, *options, *others], [*options, *SETTINGS], [*SETTINGS, *options]):
        assert overrides_of(command, arguments, monkeypatch) == SETTINGS


def test_every_command_with_settings_is_here() -> None:
    taking = {
        path.stem
        for path in COMMANDS.glob("*.py")
        if "config_parser(" in (text := path.read_text(encoding="utf-8")) or '"overrides"' in text
    }
    cases = test_settings_stand_on_both_sides_of_an_option.pytestmark[0].args[1]
    assert taking == {command for command, _ in cases}


def test_an_unknown_option_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        overrides_of("train", ["seed=3", "--run-directory", "x"], monkeypatch)
    assert "--run-directory" in capsys.readouterr().err
