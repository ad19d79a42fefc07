"""A rollout server's start: its folder, its environment, and that it takes the command's place."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from vcap_jax.commands import serve_rollout
from vcap_jax.system import after_process


class Started(Exception):
    """In place of the server: what would have been started."""

    def __init__(self, executable: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__()
        self.executable, self.command, self.environment = executable, command, environment
        self.served = command[command.index("--") + 1 :] if "--" in command else command
        self.folder = Path(self.served[2])
        self.files = {file.name for file in self.folder.iterdir()}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Those that are removed with the server."""
    removed: list[Path] = []

    def execve(*given: object) -> None:
        raise Started(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(after_process, "remove_after", lambda folder, pid: removed.append(folder))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    vllm = tmp_path / "env" / "vllm"
    vllm.parent.mkdir()
    vllm.touch(mode=0o755)
    return removed


def start(tmp_path: Path, *more: str, port: int = 1) -> Started:
    with pytest.raises(Started) as started:
        serve_rollout.main(
            ["--modality=image", f"--vllm={tmp_path / 'env' / 'vllm'}", f"--port={port}", *more]
        )
    return started.value


def test_servers_that_die_at_their_start_leave_one_folder_at_most(
    tmp_path: Path, folders: list[Path]
) -> None:
    """A loop that starts them again and again would fill the disk with copies of the model."""
    other = start(tmp_path, port=11).folder
    first = start(tmp_path).folder
    second = start(tmp_path)
    assert "model.safetensors" in second.files
    assert sorted((tmp_path / "tmp").iterdir()) == sorted([other, second.folder])
    assert folders == [other, first, second.folder]
    assert second.folder.stat().st_mode & 0o077 == 0


def test_what_others_have_put_there_stays(tmp_path: Path, folders: list[Path]) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    link = tmp_path / "tmp" / "vcap-rollout-policy-1-link"
    link.symlink_to(mine)
    start(tmp_path)
    assert mine.exists()
    assert link.is_symlink()


def test_a_folder_that_was_named_is_left(tmp_path: Path, folders: list[Path]) -> None:
    named = tmp_path / "named"
    assert start(tmp_path, f"--folder={named}").folder == named
    assert folders == []


def test_a_server_that_is_still_starting_keeps_its_folder(tmp_path: Path, folders: list[Path]) -> None:
    """Nothing listens at its port yet, nor while its supervisor starts it again."""
    living, ended = subprocess.Popen(["sleep", "600"]), subprocess.Popen(["true"])
    ended.wait()
    names = [tmp_path / "tmp" / f"vcap-rollout-policy-1-{process.pid}-x" for process in (living, ended)]
    for name in names:
        name.mkdir()
    try:
        start(tmp_path)
        assert [name.exists() for name in names] == [True, False]
    finally:
        living.kill()
        living.wait()


def test_a_running_server_keeps_its_folder(
    tmp_path: Path, folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        kept = tmp_path / "tmp" / f"vcap-rollout-policy-{port}-x"
        kept.mkdir()
        vllm = tmp_path / "env" / "vllm"
        for more in ([], [f"--folder={tmp_path / 'named'}"]):
            assert serve_rollout.main(["--modality=image", f"--vllm={vllm}", f"--port={port}", *more]) != 0
            assert f"port {port} is in use" in capsys.readouterr().err
    assert kept.exists()


def test_the_server_finds_what_lies_beside_it(
    tmp_path: Path, folders: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FlashInfer calls ninja by its name."""
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("VLLM_API_KEY", "of another server")
    environment = start(tmp_path).environment
    assert environment["PATH"] == f"{tmp_path / 'env'}:/usr/bin"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert not {"JAX_PLATFORMS", "VLLM_API_KEY"} & environment.keys()
    beside = shlex.quote(str(tmp_path / "env"))
    assert f'PATH={beside}:"$PATH" VLLM_SERVER_DEV_MODE=1' in capsys.readouterr().out


def test_a_server_may_be_kept_running(tmp_path: Path, folders: list[Path]) -> None:
    """By a process in this one's place, which has the server's environment and nothing of the policy in its memory."""
    plain = start(tmp_path)
    kept = start(tmp_path, "--supervise", "--sleep-mode", f"--log={tmp_path / 'a b.log'}")
    assert kept.executable == sys.executable
    assert kept.environment == plain.environment
    assert [word for word in kept.served if word not in plain.command] == [
        str(kept.folder),
        "--enable-sleep-mode",
        "--enable-server-load-tracking",
    ]
    options = kept.command[3 : list(kept.command).index("--")]
    assert options == [
        "--port=1",
        "--model=policy",
        f"--folder={kept.folder}",
        f"--log={tmp_path / 'a b.log'}",
        "--stall-timeout-s=300",
        "--sleep-mode",
    ]
    assert folders == [plain.folder, kept.folder], "it goes when the process is gone"
    done = subprocess.run([*kept.command[:3], "--help"], capture_output=True, text=True, check=True, cwd="/")
    assert "--stall-timeout-s" in done.stdout


@pytest.mark.parametrize(
    "more",
    [
        ["--log=a.log"],
        ["--stall-timeout-s=9"],
        ["--supervise", "--stall-timeout-s=0"],
        ["--port=0"],
        ["--port=65536"],
    ],
)
def test_what_nobody_would_heed_is_refused(
    tmp_path: Path, folders: list[Path], capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    vllm = tmp_path / "env" / "vllm"
    with pytest.raises(SystemExit, match="2"):
        serve_rollout.main(["--modality=image", f"--vllm={vllm}", "--port=1", *more])
    assert "error: --" in capsys.readouterr().err
