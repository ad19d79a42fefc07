"""Sends the embedded judge what no client of ours would: bombs, malformed JSON, wrong types, bodies without end.

    python benchmarks/hostile_requests.py                  # each alone, all at once, and what must go on working
    python benchmarks/hostile_requests.py --only JPEG

Starts the server as a process of its own on 127.0.0.1. Meanwhile another thread asks ``/health`` every 50 ms, on a new
connection each time. Required is:

* every body (``tests/gpu_judge/hostile_bodies.py``) gets the 4xx that it should, alone and among all the others;
* the process never holds more than 1 GiB (``VmHWM`` of ``/proc/PID/status``);
* ``/health`` answers within 1 s and the longest stall of this process, which a thread measures that does nothing else;
* a photograph of 24 megapixels, a clip of 200 frames of 1920 x 1080 and pictures at the limits are judged, and a small
  good request gets the same verdict before, among and after the hostile ones.

Exits with 1 if any of this does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from PIL import Image

from benchmarks.stalls import Stalls
from tests.gpu_judge.hostile_bodies import (
    CAPTION,
    HOSTILE,
    IMAGE,
    Hostile,
    dumped,
    frames_of,
    jpeg,
    pictured,
    png,
)
from tests.gpu_judge.requests_of_the_world import about, body
from tests.gpu_judge.sending import send
from vcap_jax.data.judge_media import JudgeMediaSettings, encode_picture
from vcap_jax.data.media import JudgeFrame
from vcap_jax.world.captions import full_caption
from vcap_jax.world.judge_process import embedded_judge

_MOST_BYTES = 1024**3
_MOST_HEALTH_S = 1.0
_POLL_S = 0.05
_TIMEOUT_S = 120.0
_SMALL, _CLIP = "good: a small picture", "good: 200 frames of 1920 x 1080"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one body, or of all at once.

    sent: bytes. status, message: of the answer. seconds: until it came. peak, health_s: in that time, the bytes that
    the server held at most, and the slowest answer of ``/health``.
    """

    name: str
    sent: int
    expected: tuple[int, ...]
    status: int
    message: str
    seconds: float
    peak: int
    health_s: float

    @property
    def holds(self) -> bool:
        return self.status in self.expected


class Health:
    """Asks ``/health`` all the time, as a context; what it took, and what went wrong."""

    def __init__(self, address: str) -> None:
        self._url, self._end = f"{address}/health", threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._since: list[float] = [0.0]
        self.times: list[float] = []
        self.errors: list[str] = []

    def _poll(self) -> None:
        while not self._end.wait(_POLL_S):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=30) as response:
                    response.read()
            except (OSError, urllib.error.URLError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            self.times.append(time.monotonic() - began)

    def __enter__(self) -> Health:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def slowest_since(self, mark: int) -> float:
        """Of the answers after the first ``mark`` ones; waits for the one that may be on its way."""
        now = len(self.times)
        while len(self.times) <= now:
            time.sleep(_POLL_S / 5)
        return max(self.times[mark:])


class Memory:
    """What a process holds at most, from the kernel's own mark."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def peak(self) -> int:
        """Bytes, since the last call of :meth:`begin`."""
        lines = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

    def begin(self) -> None:
        """Sets the mark to what is held now."""
        (self._folder / "clear_refs").write_text("5")


@dataclass(frozen=True)
class Server:
    """A judge that is being watched."""

    address: str
    health: Health
    memory: Memory


@contextmanager
def watched_judge(log: Path) -> Iterator[Server]:
    """A freshly started judge, asked for its health until the context closes."""
    with embedded_judge(log) as address, Health(address) as health:
        yield Server(address, health, Memory(_listener(address)))


@contextmanager
def bodies_on_disk(hostile: Sequence[Hostile]) -> Iterator[dict[str, Path]]:
    """The bodies as files, by name, so that sending them takes no memory here."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for number, one in enumerate(hostile):
            paths[one.name] = Path(folder) / str(number)
            paths[one.name].write_bytes(one.make(False))
        yield paths


def photograph(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Shapes with soft edges under noise, uint8 [H, W, 3]: as JPEG about as large as a camera's picture."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    smooth += rng.integers(-12, 13, (height, width, 1), dtype=np.int16)
    return np.clip(smooth, 0, 255).astype(np.uint8)


def good_ones() -> list[Hostile]:
    """What a user may send, by the way in which a run sends it."""
    settings = JudgeMediaSettings()
    picture = encode_picture(photograph(6000, 4000), settings).as_frame()
    frames = [encode_picture(photograph(1920, 1080, k), settings).as_frame() for k in range(4)]
    clip = [JudgeFrame(url=frames[k % 4].url, seconds=k / 2) for k in range(200)]
    truth = full_caption(IMAGE, np.random.default_rng(0))
    raw = {
        _SMALL: dumped(about(IMAGE, truth, truth)),
        "good: a photograph of 24 megapixels": dumped(body("image", [picture], CAPTION, CAPTION)),
        _CLIP: dumped(body("video_global", clip, CAPTION, CAPTION)),
        "limit: PNG, 66 megapixels": pictured(png(8_100, 8_100, depth=8, colours=2)),
        "limit: PNG, 32 megapixels with alpha": pictured(png(5_700, 5_700, depth=8, colours=6)),
        "limit: JPEG, 26 megapixels, progressive": pictured(jpeg(5_100, progressive=True), "image/jpeg"),
        "limit: a clip of 504 megapixels": frames_of(30, png(4_100, 4_100)),
    }
    return [Hostile(name=name, make=partial(_whole, sent), status=(200,)) for name, sent in raw.items()]


def _whole(sent: bytes, tiny: bool) -> bytes:
    """A body that has one size alone."""
    del tiny
    return sent


def measure(server: Server, one: Hostile, path: Path) -> Outcome:
    """Sends one body while nothing else is asked."""
    server.memory.begin()
    asked = len(server.health.times)
    began = time.monotonic()
    reply = send(server.address, one, path, timeout_s=_TIMEOUT_S)
    seconds = time.monotonic() - began
    slowest = server.health.slowest_since(asked)
    return Outcome(
        name=one.name,
        sent=path.stat().st_size,
        expected=one.status,
        status=reply.status,
        message=reply.message,
        seconds=seconds,
        peak=server.memory.peak(),
        health_s=slowest,
    )


def at_once(server: Server, several: Sequence[Hostile], paths: dict[str, Path]) -> list[Outcome]:
    """Sends all bodies at the same time. Peak and slowest answer of ``/health`` are of the whole."""
    server.memory.begin()
    asked = len(server.health.times)
    start = threading.Barrier(len(several))

    def one_of(one: Hostile) -> Outcome:
        start.wait()
        began = time.monotonic()
        reply = send(server.address, one, paths[one.name], timeout_s=_TIMEOUT_S)
        return Outcome(
            name=one.name,
            sent=paths[one.name].stat().st_size,
            expected=one.status,
            status=reply.status,
            message=reply.message,
            seconds=time.monotonic() - began,
            peak=0,
            health_s=0.0,
        )

    with ThreadPoolExecutor(len(several)) as threads:
        outcomes = list(threads.map(one_of, several))
    peak, slowest = server.memory.peak(), server.health.slowest_since(asked)
    return [replace(outcome, peak=peak, health_s=slowest) for outcome in outcomes]


def line(outcome: Outcome) -> str:
    """One row of the table."""
    return (
        f"{outcome.name:<42}{outcome.sent:>13,}{outcome.status:>8}{outcome.seconds:>9.2f}"
        f"{outcome.peak / 2**20:>10.0f}{1000 * outcome.health_s:>11.0f}  {'' if outcome.holds else 'FAILS '}"
        f"{' '.join(outcome.message.split())[:70]}"
    )


HEADER = f"{'body':<42}{'bytes':>13}{'status':>8}{'s':>9}{'peak MiB':>10}{'health ms':>11}  answer"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", help="bodies whose names contain this")
    parser.add_argument("--output", type=Path, default=Path("runs/hostile_requests.json"))
    options = parser.parse_args(arguments)
    hostile = [one for one in HOSTILE if options.only in one.name]
    if not hostile:
        parser.error(
            f"no body is named like {options.only!r}; there are: {', '.join(h.name for h in HOSTILE)}"
        )
    good = good_ones()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    log = options.output.with_suffix(".log")
    with bodies_on_disk([*good, *hostile]) as paths, Stalls() as stalls:
        print(f"{len(hostile)} bodies, each alone\n\n{HEADER}", flush=True)
        alone = []
        with watched_judge(log) as server:
            for one in [*good, *hostile, good[0]]:
                alone.append(measure(server, one, paths[one.name]))
                print(line(alone[-1]), flush=True)
        # A clip that fills most of what is held at once may have to wait too long for its place among all these.
        several = [*hostile, *(one for one in good if one.name != _CLIP)]
        print(f"\n{len(several)} at once, to a server that has seen none of them\n\n{HEADER}", flush=True)
        with watched_judge(log) as fresh:
            together = at_once(fresh, several, paths)
            after = measure(fresh, good[0], paths[good[0].name])
        for outcome in [*together, after]:
            print(line(outcome), flush=True)
    outcomes = [*alone, *together, after]
    times = [*server.health.times, *fresh.health.times]
    errors = [*server.health.errors, *fresh.health.errors]
    highest, slowest, stalled = max(outcome.peak for outcome in outcomes), max(times), stalls.longest_s
    verdicts = {outcome.message for outcome in outcomes if outcome.name == _SMALL}
    print(
        f"\nanswered as they should: {sum(o.holds for o in outcomes)} of {len(outcomes)}"
        f"\nmost memory: {highest / 2**20:.0f} MiB, all at once {together[0].peak / 2**20:.0f} MiB"
        f"\n/health: {len(times)} answers, median {1000 * float(np.median(times)):.0f} ms, slowest "
        f"{1000 * slowest:.0f} ms, errors {len(errors)}; this process stalled for {1000 * stalled:.0f} ms"
        f"\nverdicts on the small good request: {len(verdicts)}"
    )
    summary = {
        "highest_bytes": highest,
        "health": {"answers": len(times), "slowest_s": slowest, "errors": errors},
        "stall_s": stalled,
        "alone": [asdict(outcome) for outcome in alone],
        "at_once": [asdict(outcome) for outcome in together],
    }
    options.output.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\n{options.output}")
    answered = all(outcome.holds for outcome in outcomes) and len(verdicts) == 1
    awake = slowest < _MOST_HEALTH_S + stalled and not errors
    return int(not (answered and awake and highest < _MOST_BYTES))


def _listener(address: str) -> int:
    """The process that listens at an address of this machine."""
    port = int(address.rsplit(":", 1)[1])
    sockets = {
        row.split()[9]
        for row in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if int(row.split()[1].split(":")[1], 16) == port and row.split()[3] == "0A"
    }
    for entry in Path("/proc").iterdir():
        try:
            if any(
                f"socket:[{number}]" == str(fd.readlink())
                for fd in (entry / "fd").iterdir()
                for number in sockets
            ):
                return int(entry.name)
        except OSError:
            continue
    raise RuntimeError(f"nobody listens at {address}")


if __name__ == "__main__":
    sys.exit(main())
