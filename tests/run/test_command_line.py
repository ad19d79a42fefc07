"""What every command does around its own work: what is logged is shown, and errors a user can mend have no trace."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.kernels.attention import UnsupportedAttention
from vcap_jax.run.command_line import (
    add_endpoint_options,
    config_parser,
    endpoint_settings,
    guarded,
    json_argument,
    named_paths,
    page_argument,
    run_command,
)
from vcap_jax.run.config import RunConfig
from vcap_jax.system.shutdown import Stopped, TrainingStopped

ROOT = Path(__file__).resolve().parents[2]


def arguments():
    return config_parser("A command.").parse_args(
        ["--config", str(ROOT / "configs" / "embedded" / "image.yaml"), "compilation_cache=null"]
    )


def test_what_is_logged_is_shown_once_and_only_meanwhile(capsys) -> None:
    logger = logging.getLogger("vcap_jax.somewhere")

    def command(config: RunConfig) -> int:
        logger.info("attention: native")
        logger.warning("a remedy")
        return 0

    assert run_command(arguments(), command) == 0
    assert capsys.readouterr().err == "attention: native\na remedy\n"
    logger.info("nobody listens")
    assert "nobody listens" not in capsys.readouterr().err


def test_attention_that_cannot_be_had_is_an_error_without_a_trace(capsys) -> None:
    def command(config: RunConfig) -> int:
        raise UnsupportedAttention("install a compiler")

    assert run_command(arguments(), command) != 0
    err = capsys.readouterr().err
    assert "error: install a compiler" in err
    assert "Traceback" not in err


def test_other_errors_keep_their_trace() -> None:
    def command(config: RunConfig) -> int:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        run_command(arguments(), command)


def test_a_library_that_this_python_lacks_is_one_line_with_the_environment_that_has_it(capsys) -> None:
    def work() -> int:
        import no_such_library  # noqa: F401

        return 0

    status, err = told(capsys, work, again="the same")
    assert status == 1
    assert err.startswith(
        f"error: {sys.executable} lacks the module no_such_library: use the environment that"
    )
    assert ".venv/bin/python" in err
    assert "go on with" not in err

    def ours() -> int:
        import vcap_jax.no_such_room  # type: ignore[import-not-found]  # noqa: F401

        return 0

    with pytest.raises(ModuleNotFoundError):
        guarded(ours)


def told(capsys, work, **how) -> tuple[int, str]:
    status = guarded(work, **how)
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return status, err


def test_a_signal_ends_in_one_line_that_says_how_to_go_on(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["launch/train.py", "--run-dir", "runs/two words"])

    def command(config: RunConfig) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
        return 0

    args = arguments()
    args.resume = False
    assert run_command(args, command) == 128 + signal.SIGTERM
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("stopped; go on with: ")
    assert last.endswith("launch/train.py --run-dir 'runs/two words' --resume")


def test_a_command_that_cannot_go_on_says_so(capsys) -> None:
    def stop() -> int:
        raise Stopped("stopped")

    status, err = told(capsys, stop, goes_on=False)
    assert status == 130
    assert err == "stopped; the same command begins anew\n"


def test_a_full_disk_is_one_line_and_how_to_go_on(capsys) -> None:
    def write() -> int:
        with Path("/dev/full").open("w") as file:
            file.write("x")
        return 0

    status, err = told(capsys, write)
    assert status == 1
    first, second = err.splitlines()
    assert first == "error: no space left on device; free some space"
    assert second.startswith("go on with: ")


def test_every_error_of_ours_has_a_message_and_a_status_of_choice(capsys) -> None:
    def refuse() -> int:
        raise TrainingStopped("the judge is gone")

    assert told(capsys, refuse, goes_on=False, failed=2) == (2, "error: the judge is gone\n")


def test_readers_that_have_had_enough_are_no_error() -> None:
    """As in ``... | head -1``."""
    script = (
        "from vcap_jax.run.command_line import guarded\n"
        "def show():\n"
        "    for _ in range(100000): print('x' * 80)\n"
        "    return 0\n"
        "raise SystemExit(guarded(show, goes_on=False))\n"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -c "$1" | head -n 1', sys.executable, script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "x" * 80 + "\n"
    assert done.stderr == ""


def test_what_the_terminals_encoding_lacks_is_printed_as_an_escape() -> None:
    script = (
        "from vcap_jax.run.command_line import guarded, say\n"
        "def show():\n"
        "    say('caf\\u00e9 \\u4e2d \\U0001f408')\n"
        "    return 0\n"
        "raise SystemExit(guarded(show))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=True,
    )
    assert done.stdout.decode("latin-1") == "caf\u00e9 \\u4e2d \\U0001f408\n"


def test_paths_are_named_or_take_the_last_part(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert named_paths(["embedded", "mine=runs/x", "runs/y", str(odd)]) == {
        "embedded": "embedded", "mine": "runs/x", "y": "runs/y", "a=b": str(odd),
    }  # fmt: skip


def test_the_home_folder_is_meant_where_shells_do_not_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    parser = config_parser(None)
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--by")
    words = ["--run-dir=~/runs", "own=~/pool", "--by", "~/x", "name=a ~/b", "judge.model=~"]
    args = parser.parse_intermixed_args(words)
    assert (args.run_dir, args.by) == (Path("/home/me/runs"), "/home/me/x")
    assert args.overrides == ["own=/home/me/pool", "name=a ~/b", "judge.model=~"]


def test_a_judge_may_have_an_ipv6_address() -> None:
    parser = argparse.ArgumentParser()
    add_endpoint_options(parser, "judge", help="")
    args = parser.parse_args(["--judge", "http://[::1]:8000, http://b"])
    config = load_config(RunConfig, [], endpoint_settings(args, "judge"))
    assert config.judge.urls == ("http://[::1]:8000", "http://b")


def test_one_name_for_two_paths_is_refused() -> None:
    with pytest.raises(ConfigError, match="'x' stands for runs/x and other/x: name one NAME=other/x"):
        named_paths(["runs/x", "other/x"])


def test_what_a_page_or_json_is_written_over_is_one(tmp_path: Path) -> None:
    """And not, say, a photograph: --page is no switch."""
    photo, page, figures, new = (tmp_path / name for name in ("a.png", "b.html", "c.json", "d"))
    photo.write_bytes(b"\x89PNG\r\n")
    page.write_text("\n<!DOCTYPE html>\n<html></html>\n")
    figures.write_text("[1, 2]\n")
    for read, right, kind in ((page_argument, page, "an HTML page"), (json_argument, figures, "JSON")):
        assert read(str(right)) == right
        assert read(str(new)) == new
        for wrong in {photo, page, figures} - {right}:
            with pytest.raises(argparse.ArgumentTypeError, match=f"{wrong.name} is there and is not {kind}"):
                read(str(wrong))
        with pytest.raises(argparse.ArgumentTypeError, match="is a folder: name a file in it"):
            read(str(tmp_path))


def test_a_crash_of_machine_code_says_where() -> None:
    program = (
        "import os, signal\n"
        "from vcap_jax.run.command_line import guarded\n"
        "def work():\n"
        "    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "guarded(work)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in ended.stderr
    assert 'File "<string>", line 4 in work' in ended.stderr


def test_without_an_error_output_a_command_works() -> None:
    program = (
        "import sys\n"
        "sys.stderr = None\n"
        "from vcap_jax.run.command_line import guarded\n"
        "sys.exit(guarded(lambda: 7))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7
