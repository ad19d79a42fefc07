"""A rollout server that is kept running: what it is asked, and that a hanging one is started again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from gpu_judge.vllm_server.readiness import NotReady
from tests.listening import ports_for_servers
from tests.patience import GUARD_S, until
from tests.rollout.rollout_server import RolloutServer
from tests.sleeping import SharedDevices, Sleeper
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.run.supervised_rollout import RolloutProbe
from vcap_jax.system.child_python import ROOT
from vcap_jax.world.backbone import BACKBONE_FOLDER

SERVER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
starts = sys.argv[2]
with open(starts, "a") as file:
    file.write("start\\n")
first = len(open(starts).readlines()) == 1
METRICS = "".join(f"vllm:{name} 1.0\\n" for name in (
    "num_requests_running", "num_requests_waiting", "prompt_tokens_total", "generation_tokens_total"))
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def reply(self, payload):
        raw = payload.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
    def do_GET(self):
        told = {"/health": "", "/v1/models": '{"data": [{"id": "policy", "root": "served"}]}', "/metrics": METRICS,
                "/load": json.dumps({"server_load": 1})}
        self.reply(told[self.path])
    def do_POST(self):
        if first:
            time.sleep(600)  # its engine hangs
        self.reply("{}")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

KEEP = """
import os, sys
from dataclasses import replace
from pathlib import Path
from tests.gpu_judge.vllm_server.supervising import QUICK
from vcap_jax.run.supervised_rollout import RolloutProbe, keep_running
port, log, *command = sys.argv[1:]
probe = RolloutProbe(url=f"http://127.0.0.1:{port}", model="policy", folder="served", can_sleep=False)
supervision = replace(QUICK, stall_timeout_s=0.1, confirm_s=0.1)
keep_running(command, dict(os.environ), probe, log=Path(log), supervision=supervision)
"""


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor.from_pretrained(BACKBONE_FOLDER)


def ask(probe: RolloutProbe, *what: Callable[[RolloutProbe, aiohttp.ClientSession], object]) -> None:
    async def all_of_it() -> None:
        async with aiohttp.ClientSession() as session:
            for one in what:
                await one(probe, session)  # type: ignore[misc]

    asyncio.run(all_of_it())


def test_a_server_that_hangs_is_started_again_and_ends_with_whoever_keeps_it(tmp_path: Path) -> None:
    (port,), starts = ports_for_servers(1), tmp_path / "starts"
    log = tmp_path / "logs" / "server.log"
    served = [sys.executable, "-c", SERVER, str(port), str(starts)]
    # A process of its own, as it is in use: this one has threads of JAX, beside which it must not fork.
    keeping = subprocess.Popen(
        [sys.executable, "-c", KEEP, str(port), str(log), *served],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    until(lambda: starts.exists() and starts.read_text().count("start") == 2, "a second start")
    keeping.send_signal(signal.SIGTERM)
    assert keeping.wait(GUARD_S) == 0
    assert log.read_text().startswith(f"== {sys.executable} -c ")


def test_nothing_is_drawn_for_a_server_to_be_ready(processor: Processor) -> None:
    """The trainer cannot have it forget its caches while a request is under way."""
    with RolloutServer(processor) as server:
        probe = RolloutProbe(url=server.url, model="policy", folder="served", can_sleep=False)
        ask(probe, RolloutProbe.becomes_ready)
        assert server.chats == []
        for other in (replace(probe, model="judge"), replace(probe, folder="mine")):
            with pytest.raises(NotReady, match="another server has the port"):
                ask(other, RolloutProbe.becomes_ready)
    with pytest.raises(NotReady, match="/v1/completions"):
        ask(probe, RolloutProbe.works)


def test_one_that_takes_turns_sleeps_unless_it_was_given_weights(processor: Processor) -> None:
    for version, state in (("default", "asleep"), ("vcap-rollout-x-3", "awake")):
        sleeper = Sleeper("rollout", SharedDevices(), state="awake")
        with RolloutServer(processor, sleeper=sleeper) as server:
            server.version = version
            ask(
                RolloutProbe(url=server.url, model="policy", folder="served", can_sleep=True),
                RolloutProbe.becomes_ready,
            )
            assert sleeper.state == state


def test_one_that_does_not_come_up_is_told(tmp_path: Path) -> None:
    options = [
        "--port=1",
        "--model=policy",
        "--folder=x",
        "--stall-timeout-s=300",
        f"--log={tmp_path / 'a.log'}",
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "vcap_jax.run.supervised_rollout",
            *options,
            "--",
            "/none/vllm",
            "serve",
            "--x=1",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert done.returncode == 1
    assert "error: rollout server at http://127.0.0.1:1 cannot be started" in done.stderr
