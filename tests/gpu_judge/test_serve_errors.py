"""What a user, a disk or a network can do to serve.py: each is one line with its remedy, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_judge.addresses import ListenError
from gpu_judge.lifetime import PortFileError, check_port_file, remove_port_file, write_port_file
from gpu_judge.serve import main
from gpu_judge.vllm_server import checkpoint, checks, run
from gpu_judge.vllm_server.checkpoint import CheckpointError, read_checkpoint
from tests.gpu_judge.vllm_fakes import CONFIG, SERVER, give_orders, write_checkpoint, write_installation

EMBEDDED = ["--backend", "embedded"]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def vllm_line(folder: Path, *extra: str) -> list[str]:
    """A command line that would start a fake server."""
    executable = write_installation(folder / "env", SERVER)
    give_orders(executable)
    line = ["--backend", "vllm", "--gpus", "none", "--model", str(write_checkpoint(folder / "model"))]
    line += ["--vllm", str(executable), "--port", "0", "--media-cache-gb", "0.01", "--cpu-cache-gb", "1"]
    return [*line, *extra]


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands on stderr: one line of serve.py's."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("serve.py: ")]
    return line


def test_a_port_in_use(taken: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_the_other = tmp_path / "port"
    of_the_other.write_text(f"http://127.0.0.1:{taken}\n")
    assert main([*EMBEDDED, "--port", str(taken), "--port-file", str(of_the_other)]) == 1
    assert f"port {taken} is in use: end what listens there (ss -ltnp)" in told(capsys)
    assert of_the_other.exists()
    of_the_other.write_text("http://127.0.0.1:1\n")  # of one that is no more
    assert main([*EMBEDDED, "--port", str(taken), "--port-file", str(of_the_other)]) == 1
    assert not of_the_other.exists()


@pytest.mark.parametrize("port", ["-1", "65536", "99999999999999999999"])
def test_a_port_that_does_not_exist(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EMBEDDED, "--port", port]) == 2
    assert f"--port is {port}: give a port from 1 to 65535" in told(capsys)


@pytest.mark.parametrize("host", ["203.0.113.7", "x" * 300, "a..b"])
def test_a_host_that_is_not_ours(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "key")
    open_to_others = ["--host", host, "--api-key-env", "JUDGE_KEY"]
    assert main([*EMBEDDED, *open_to_others, "--port", "0"]) == 1
    assert f"cannot listen on {host}:0: " in told(capsys)
    assert main(vllm_line(tmp_path, *open_to_others)) == 2
    assert f"cannot listen on {host}:0: " in told(capsys)
    with pytest.raises(ListenError, match="check --host and --port"):
        checks.free_ports(host, 2)


@pytest.mark.parametrize("key", ["two\nlines", " s3cret", "schlüssel", "tab\t"])
def test_a_key_that_no_header_holds(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    assert main([*EMBEDDED, "--host", "0.0.0.0", "--api-key-env", "JUDGE_KEY"]) == 2
    line = told(capsys)
    assert "the key in JUDGE_KEY has white space around it" in line
    assert key.strip() not in line


@pytest.mark.parametrize("backend", ["embedded", "vllm"])
def test_a_port_file_that_cannot_be_written(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [*EMBEDDED, "--port", "0"] if backend == "embedded" else vllm_line(tmp_path)
    assert main([*line, "--port-file", str(tmp_path)]) == 2
    assert "is a folder: name a file in it" in told(capsys)
    missing = tmp_path / "none" / "port"
    assert main([*line, "--port-file", str(missing)]) == 2
    assert f"--port-file {missing}: {missing.parent} does not exist" in told(capsys)

    # What only shows when it is written, as on a full disk.
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("gpu_judge.lifetime.replace_file", full)
    monkeypatch.chdir(tmp_path)
    port = tmp_path / "port"
    port.write_text("http://of.an.earlier.start\n")
    assert main([*line, "--port-file", str(port)]) == 1
    assert f"--port-file {port} cannot be written (No space left on device)" in told(capsys)
    assert not port.exists()


def test_port_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_port_file(None)
    remove_port_file(None)
    write_port_file(None, ["http://a"])
    remove_port_file(tmp_path / "port")  # there is none yet
    check_port_file(tmp_path / "port")
    write_port_file(tmp_path / "port", ["http://a", "http://b"])
    assert (tmp_path / "port").read_text() == "http://a\nhttp://b\n"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PortFileError, match="cannot be written to: make it"):
        check_port_file(tmp_path / "port")
    remove_port_file(tmp_path / "port")
    assert not (tmp_path / "port").exists()
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(PortFileError, match=r"cannot be removed \(Permission denied\): remove it"):
        remove_port_file(tmp_path / "port")


@pytest.mark.parametrize("command", ["--print", "--check", "--port=-1"])
def test_what_serves_nothing_leaves_the_addresses_of_an_earlier_start(command: str, tmp_path: Path) -> None:
    port = tmp_path / "port"
    port.write_text("http://of.an.earlier.start\n")
    main(vllm_line(tmp_path, "--port-file", str(port), command))
    assert port.read_text() == "http://of.an.earlier.start\n"


@pytest.mark.parametrize("more", [[], ["--check"]])
@pytest.mark.parametrize("option", ["--stall-timeout-s", "--start-timeout-s"])
@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_timeout_that_is_none(
    seconds: str, option: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(vllm_line(tmp_path, option, seconds, *more)) == 2
    assert f"{option} is {seconds}: give seconds above 0" in told(capsys)


def test_a_log_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(vllm_line(tmp_path, "--log-dir", str(tmp_path / "file" / "logs"))) == 2
    assert "cannot be written" in told(capsys)
    (tmp_path / "closed").symlink_to(tmp_path / "closed")
    assert main(vllm_line(tmp_path, "--log-dir", str(tmp_path / "closed"))) == 2
    assert f"--log-dir {tmp_path / 'closed'} cannot be written" in told(capsys)


def refused(*_: Any, **__: Any) -> Any:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("what", ["is_dir", "read_bytes", "open"])
def test_a_checkpoint_that_may_not_be_read(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "model")
    monkeypatch.setattr(checkpoint.Path, what, refused)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\): let this user read it"):
        read_checkpoint(folder)


def _written(name: str, content: str | bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def _config(**changes: Any) -> Callable[[Path], Any]:
    return _written("config.json", json.dumps({**CONFIG, **changes}))


@pytest.mark.parametrize(
    "harm",
    [
        _config(text_config=[1]),
        _config(vision_config="x"),
        _config(text_config={**CONFIG["text_config"], "num_attention_heads": 0}),
        _config(text_config={"num_hidden_layers": 1, "num_attention_heads": 0, "hidden_size": 8}),
        _config(vision_config={**CONFIG["vision_config"], "patch_size": 0}),
        _config(vision_config={**CONFIG["vision_config"], "spatial_merge_size": float("inf")}),
        _written("config.json", 100_000 * "["),
        _written("model.safetensors.index.json", '{"weight_map": ["x"]}'),
        _written("model.safetensors.index.json", '{"weight_map": {"a": 5}}'),
        _written("model.safetensors.index.json", '{"weight_map": {"a": {}}}'),
        _written("preprocessor_config.json", '{"size": [1]}'),
        _written("preprocessor_config.json", '{"min_pixels": "many"}'),
        _written("model.safetensors", bytes([200] * 7) + b"\0" + bytes(100)),
        _written("model.safetensors", (100_000).to_bytes(8, "little") + 100_000 * b"["),
    ],
)
def test_a_checkpoint_of_any_content_is_refused_by_its_folder(
    harm: Callable[[Path], Any], tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "model")
    harm(folder)
    with pytest.raises(CheckpointError, match=str(folder)):
        read_checkpoint(folder)


def test_an_nvidia_smi_that_may_not_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(checks.CheckError, match="nvidia-smi cannot be run"):
        checks.query_gpus()


def test_an_executable_that_disappears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = vllm_line(tmp_path, "--log-dir", str(tmp_path / "logs"))
    looked = run.look_for_problems

    def look_and_lose(*given: Any) -> list[str]:
        problems = looked(*given)
        (tmp_path / "env" / "vllm").unlink()
        return problems

    monkeypatch.setattr(run, "look_for_problems", look_and_lose)
    assert main(line) == 1
    assert "cannot be started: " in told(capsys)
