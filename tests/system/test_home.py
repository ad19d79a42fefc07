"""``~/`` is the home folder wherever a path may stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.system.home import HomeParser, at_home


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("~/runs/e1", "{home}/runs/e1"),
        ("model.path=~/runs/e1", "model.path={home}/runs/e1"),
        ("e1=~/runs/e1", "e1={home}/runs/e1"),
        ("~", "~"),
        ("~else/runs", "~else/runs"),
        ("runs/~/e1", "runs/~/e1"),
        ("name=what is ~/here", "name=what is ~/here"),
        ("", ""),
    ],
)
def test_a_command_takes_it_in_every_place(
    word: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a word of its own, as the next word of an option, and behind the option's sign of equality."""
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = value.format(home=tmp_path)
    parser = HomeParser()
    parser.add_argument("given")
    parser.add_argument("--to")
    read = parser.parse_args([word, f"--to={word}"])
    assert (read.given, read.to) == (expected, expected)
    assert parser.parse_args([word, "--to", word]).to == expected


def test_a_path_is_at_home_only_with_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert at_home("~/a") == f"{tmp_path}/a"
    assert at_home("model=~/a") == "model=~/a"
