"""The embedded judge as a process, asked what no client of ours would ask."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.gpu_judge.hostile_bodies import CAPTION, HOSTILE, IMAGE, Hostile, dumped, pictured, png
from tests.gpu_judge.requests_of_the_world import about, body
from tests.gpu_judge.sending import send
from vcap_jax.data.judge_media import JudgeMediaSettings, encode_picture
from vcap_jax.data.media import JudgeFrame
from vcap_jax.world.captions import full_caption
from vcap_jax.world.judge_process import embedded_judge

QUICK = [one for one in HOSTILE if 408 not in one.status]  # the others wait for seconds; see test_bodies.py
TRUTH = full_caption(IMAGE, np.random.default_rng(0))
GOOD = Hostile(name="good", make=lambda tiny: dumped(about(IMAGE, TRUTH, TRUTH)), status=(200,))
MOST_BYTES = 700 * 2**20


@dataclass(frozen=True)
class Server:
    address: str
    pid: int

    def peak(self) -> int:
        """Bytes that it has held at most."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with embedded_judge(tmp_path_factory.mktemp("judge") / "log", timeout_s=240) as address:
        yield Server(address, _child())


def _child() -> int:
    """The judge among this process's children."""
    for entry in Path("/proc").iterdir():
        try:
            status = (entry / "status").read_text()
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"PPid:\t{os.getpid()}\n" in status and b"gpu_judge.serve" in words:
            return int(entry.name)
    raise AssertionError("the judge is not running")


@pytest.mark.parametrize("hostile", QUICK, ids=lambda hostile: hostile.name)
def test_each_body_gets_its_4xx(server: Server, hostile: Hostile) -> None:
    reply = send(server.address, hostile, hostile.make(True), timeout_s=120)
    assert reply.status in hostile.status, reply
    assert 10 < len(reply.message) <= 1000


@pytest.mark.slow
def test_all_at_once_fit_into_memory_and_a_good_request_is_judged_among_them(server: Server) -> None:
    asked = [*QUICK, GOOD]
    bodies = [one.make(True) for one in asked]
    start = threading.Barrier(len(asked))

    def one(number: int) -> int:
        start.wait()
        return send(server.address, asked[number], bodies[number], timeout_s=240).status

    with ThreadPoolExecutor(len(asked)) as threads:
        statuses = list(threads.map(one, range(len(asked))))
    unexpected = {h.name: s for h, s in zip(asked, statuses, strict=True) if s not in h.status}
    assert not unexpected
    assert server.peak() < MOST_BYTES


def test_what_a_run_sends_is_judged(server: Server) -> None:
    settings = JudgeMediaSettings()
    photo = np.kron(
        np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8), np.ones((100, 100, 1), np.uint8)
    )
    picture = encode_picture(photo, settings).as_frame()
    frame = encode_picture(photo[:1080, :1920], settings).as_frame()
    clip = [JudgeFrame(url=frame.url, seconds=k / 2) for k in range(200)]
    for asked in (
        body("image", [picture], CAPTION, CAPTION),
        body("video_global", clip, CAPTION, CAPTION),
    ):
        raw = dumped(asked)
        reply = send(server.address, GOOD, raw, timeout_s=240)
        assert reply.status == 200, reply
    assert server.peak() < MOST_BYTES


@pytest.mark.slow
def test_the_largest_pictures_are_judged_within_memory(server: Server) -> None:
    for raw in (pictured(png(5_700, 5_700)), pictured(png(8_100, 8_100, depth=8, colours=2))):
        assert send(server.address, GOOD, raw, timeout_s=240).status == 200
    assert server.peak() < MOST_BYTES
