"""The server over HTTP, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from gpu_judge.openai_api import build_app
from gpu_judge.serve import main
from tests.gpu_judge.requests_of_the_world import MODEL, about
from vcap_jax.world.captions import full_caption
from vcap_jax.world.image_scenes import sample_image_scene

ROOT = Path(__file__).resolve().parents[2]
SCENE = sample_image_scene(0, 0)
GOOD = about(
    SCENE, full_caption(SCENE, np.random.default_rng(0)), full_caption(SCENE, np.random.default_rng(1))
)


def start(folder: Path, *extra: str) -> tuple[subprocess.Popen[str], str]:
    port_file = folder / "port"
    command = [sys.executable, str(ROOT / "gpu_judge" / "serve.py"), "--backend", "embedded", "--port", "0"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    process = subprocess.Popen(
        [*command, "--port-file", str(port_file), *extra],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    )
    deadline = time.monotonic() + 240
    while not port_file.exists():
        assert process.poll() is None, "the judge exited"
        assert time.monotonic() < deadline, "the judge did not start"
        time.sleep(0.02)
    return process, port_file.read_text().strip()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process, where = start(tmp_path_factory.mktemp("judge"))
    yield where
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0
    assert process.stdout is not None
    assert process.stdout.readline().strip() == f"judge ready at {where}"


def call(url: str, payload: Any = None, key: str | None = None, **more: str) -> tuple[int, dict[str, Any]]:
    data = (
        None if payload is None else payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    )
    headers = {"Content-Type": "application/json"} | (
        {} if key is None else {"Authorization": f"Bearer {key}"}
    )
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    try:
        with urlopen(Request(url, data, headers), timeout=120) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def test_health_and_models(address: str) -> None:
    assert call(f"{address}/health") == (200, {"status": "ok"})
    status, listing = call(f"{address}/v1/models")
    assert status == 200
    assert [model["id"] for model in listing["data"]] == [MODEL]


def test_a_judgement_end_to_end(address: str) -> None:
    status, answer = call(f"{address}/v1/chat/completions", GOOD, X_Request_Id="vcap-17")
    assert status == 200
    assert answer["id"] == "chatcmpl-vcap-17"  # so that the client can tell whose answer it has
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    verdict = json.loads(choice["message"]["content"])
    assert verdict == {
        "Analysis": "No problem was confirmed.",
        "Correctness": 10,
        "Completeness": 10,
        "Text Quality": 10,
    }
    assert answer["usage"]["total_tokens"] > 0


@pytest.mark.parametrize(
    ("payload", "status", "message"),
    [
        (b"{not json", 400, "not JSON"),
        ([1, 2], 400, "JSON object"),
        ({"messages": []}, 400, "'model' is missing"),
        ({**GOOD, "model": "gpt"}, 404, "no model 'gpt'"),
        ({**GOOD, "stream": True}, 400, "not streamed"),
        ({**GOOD, "n": 3}, 400, "one answer per request"),
        ({**GOOD, "messages": []}, 400, "at least one message"),
    ],
)
def test_errors_are_in_openais_format(address: str, payload: Any, status: int, message: str) -> None:
    code, answer = call(f"{address}/v1/chat/completions", payload)
    assert code == status
    assert message in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_unknown_routes_and_methods_too(address: str) -> None:
    assert call(f"{address}/v2/nothing")[1]["error"]["message"] == "GET /v2/nothing: Not Found"
    assert call(f"{address}/v1/chat/completions")[0] == 405


@pytest.mark.slow
def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, {str(ROOT / 'gpu_judge' / 'serve.py')!r}, '--port', '0', "
        f"'--port-file', {str(tmp_path / 'port')!r}, '--exit-with-parent', str(os.getpid())], "
        "stdout=subprocess.DEVNULL)\n"
        "print(p.pid, flush=True)\n"
        "import pathlib\n"
        f"while not pathlib.Path({str(tmp_path / 'port')!r}).exists(): time.sleep(0.02)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True
    )
    judge = int(parent.stdout)
    deadline = time.monotonic() + 120
    while _alive(judge) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(judge)


def test_it_ends_with_a_parent_that_was_gone_before_it_looked(tmp_path: Path) -> None:
    """A start takes a while, and a parent may be killed in it."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, str(ROOT / "gpu_judge" / "serve.py"), "--port", "0"]
    judge = subprocess.run([*command, "--exit-with-parent", str(gone.pid)], timeout=240, check=False)
    assert judge.returncode == 0


def _alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_broken_judge_is_a_server_error_not_a_verdict() -> None:
    class Broken:
        def answer(self, body: Any) -> Any:
            raise RuntimeError("no")

    async def ask() -> tuple[int, Any]:
        async with TestClient(TestServer(build_app(Broken(), MODEL))) as client:
            response = await client.post("/v1/chat/completions", json=GOOD)
            return response.status, await response.json()

    status, answer = asyncio.run(ask())
    assert status == 500
    assert answer["error"]["type"] == "server_error"


def test_a_key_is_asked_for_where_one_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    process, where = start(tmp_path, "--host", "0.0.0.0", "--api-key-env", "JUDGE_KEY")
    try:
        assert "0.0.0.0" not in where
        local = f"http://127.0.0.1:{where.rpartition(':')[2]}"
        assert call(f"{local}/health")[0] == 200
        for key in (None, "wrong", "s3cre", "s3crets"):
            assert call(f"{local}/v1/models", key=key)[0] == 401
            assert call(f"{local}/v1/chat/completions", GOOD, key=key)[0] == 401
        assert call(f"{local}/v1/models", key="s3cret")[0] == 200
        assert call(f"{local}/v1/chat/completions", GOOD, key="s3cret")[0] == 200
    finally:
        process.terminate()
        assert process.wait(timeout=120) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "reachable from other machines"),
        (["--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY, and that environment variable is not set"),
        (["--backend", "vllm", "--model", "x", "--gpus", "0", "--host", "0.0.0.0"], "--api-key-env"),
        (["--backend", "vllm", "--model", "x", "--gpus", "0,0"], "names a GPU twice"),
    ],
)
def test_what_cannot_be_served_is_refused_with_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "0", "--modality", "video"], "--modality, --gpus belong to --backend vllm"),
        (["--backend", "vllm"], "needs --model and --gpus"),
        (["--backend", "vllm", "--model", "x", "--gpus", "six"], "give numbers such as 6,7, or none"),
        (["--backend", "vllm", "--model", "x", "--gpus", "0", "--modal", "image"], "unrecognized arguments"),
    ],
)
def test_options_that_make_no_sense(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_the_judge_needs_no_jax() -> None:
    code = (
        "import sys, gpu_judge.serve, gpu_judge.embedded_server, gpu_judge.vllm_server.run\n"
        "import vcap_jax.world.image_perception, vcap_jax.world.video_perception\n"
        "bad = {'jax', 'torch', 'transformers', 'av'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=240)
