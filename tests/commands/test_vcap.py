"""``vcap``: what it lists is what there is, under launch/ as well, and nothing is imported to say so."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from vcap_jax.commands import COMMANDS
from vcap_jax.commands.vcap import main

ROOT = Path(__file__).resolve().parents[2]
NOT_COMMANDS = {"make_backbone"}
"""Scripts of launch/ that are no commands of the package: those that once made the tiny models."""


def modules() -> set[str]:
    folder = ROOT / "vcap_jax" / "commands"
    return {path.stem for path in folder.glob("*.py")} - {"__init__", "vcap"}


def test_what_is_listed_is_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert {name.replace("-", "_") for name in COMMANDS} == modules()
    assert {path.stem for path in (ROOT / "launch").glob("*.py")} - NOT_COMMANDS == modules()
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in COMMANDS)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_script_is_the_command_of_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = name.replace("-", "_")
    path = ROOT / "launch" / f"{module}.py"
    assert runpy.run_path(str(path))["main"] is importlib.import_module(f"vcap_jax.commands.{module}").main
    assert len(path.read_text().splitlines()) <= 12


def test_an_unknown_command_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "error: there is no command trian; did you mean train?\n"
    assert main(["xyzzy"]) == 2
    assert "vcap --help lists them" in capsys.readouterr().err


def test_help_imports_no_library() -> None:
    heavy = "{'jax', 'numpy', 'flax', 'pydantic', 'matplotlib', 'aiohttp'}"
    code = f"import sys; from vcap_jax.commands.vcap import main; main([]); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    "words",
    [["--help"], ["target"], pytest.param(["train", "--print-config"], marks=pytest.mark.slow)],
    ids=" ".join,
)
@pytest.mark.parametrize("unbuffered", [pytest.param("", marks=pytest.mark.slow), "1"])
def test_a_reader_that_has_gone_ends_a_command_without_a_word(words: list[str], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "vcap_jax.commands.vcap", *words]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_help_speaks_of_the_program_that_was_called(tmp_path: Path) -> None:
    script = tmp_path / "vcap"
    script.write_text(
        f"#!{sys.executable}\nfrom vcap_jax.commands.vcap import main\nraise SystemExit(main())\n"
    )
    script.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    called = subprocess.run(
        [str(script), "self-improve", "--help"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert called.startswith("usage: vcap self-improve ")
    assert "    vcap self-improve --modality video" in called
    as_script = subprocess.run(
        [sys.executable, str(ROOT / "launch" / "self_improve.py"), "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "    python launch/self_improve.py --modality video" in as_script


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"reproduce", "theory"}))
def test_help_of_a_command_needs_no_library(name: str) -> None:
    """Nor does the one line that says which Python has them. The two that are left out draw and count themselves."""
    code = f"import importlib; importlib.import_module('vcap_jax.commands.{name.replace('-', '_')}')"
    hidden = "import sys; sys.modules.update(dict.fromkeys(['jax', 'numpy', 'PIL', 'matplotlib', 'flax']))\n"
    subprocess.run([sys.executable, "-c", hidden + code], cwd=ROOT, check=True)
