"""Many requests to served models at once: how many, who waits for whom, in which order, and what is held meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.captioning.engine import write_pictures
from tests.captioning.server import Captioning, served
from tests.captioning.test_by_endpoint import load
from tests.patience import GUARD_S
from vcap_jax.captioning import by_endpoint
from vcap_jax.captioning.by_endpoint import EndpointCaptioner
from vcap_jax.captioning.engines import Drawing
from vcap_jax.captioning.file import CaptionJob, write_caption_file
from vcap_jax.captioning.inputs import Inputs
from vcap_jax.captioning.parts import parts_folder
from vcap_jax.data.examples import Shown, media_loader
from vcap_jax.data.judge_media import JudgeMediaSettings
from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.videos import EvenFrames
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.rollout.config import RolloutConfig
from vcap_jax.system import in_work
from vcap_jax.system.shutdown import Stopped, stop_on_signal
from vcap_jax.world.dataset import write_dataset

ONCE = "judge.max_tries=1"
"""A request that is held for too long fails, and is not sent again."""


def captioner(url: str, *, concurrency: int = 64, threads: int = 2) -> EndpointCaptioner:
    judge = JudgeConfig(urls=(url,), concurrency=concurrency, ready_timeout_s=GUARD_S, deadline_s=GUARD_S)
    return EndpointCaptioner(judge, rollout=RolloutConfig(group_size=1), threads=threads, say=lambda _: None)


def asked(paths: list[Path]) -> list[Sample]:
    """Samples whose request is their number."""
    return [Sample(id=f"s{n}", images=(path,), prompt=str(n)) for n, path in enumerate(paths)]


def read(sample: Sample) -> Shown:
    loader = media_loader(
        image_prompt="i", video_prompt="v", settings=JudgeMediaSettings(), frames=EvenFrames()
    )
    return loader(sample)


class Together:
    """Holds requests until so many are there at once. then: called by the last of them."""

    def __init__(self, captioning: Captioning, count: int, then: Callable[[], object] = lambda: None) -> None:
        self._there, self._count, self._all, self._then = 0, count, asyncio.Event(), then
        captioning.before = self._wait

    async def _wait(self, body: dict) -> None:
        self._there += 1
        if self._there == self._count:
            self._then()
            self._all.set()
        await self._all.wait()


def test_as_many_inputs_are_asked_about_at_once_as_there_are_places(tmp_path: Path) -> None:
    """Pictures of all sizes and clips together, with several captions of each."""
    write_pictures(tmp_path / "pictures", 48)
    write_dataset(tmp_path / "clips", "video", "served", 2, seed=0)
    captioning = Captioning()
    Together(captioning, 100)
    paths = [*sorted(tmp_path.rglob("*.png")), *sorted(tmp_path.rglob("*.mp4"))]
    assert len(paths) == 50
    with served(captioning) as url, load(url, "judge.concurrency=100", ONCE) as served_model:
        found = list(served_model.stream(paths, n=2, temperature=0.7))
    assert sorted(caption.index for caption in found) == list(range(50))
    assert all(caption.failure is None for caption in found)


def test_an_answer_that_is_slow_keeps_no_caption_of_a_stream_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In however many parts the inputs are handed on."""
    monkeypatch.setattr("vcap_jax.captioning.captioner._READ", 8)
    paths = write_pictures(tmp_path, 50)
    captioning, released = Captioning(), threading.Event()

    async def before(body: dict) -> None:
        if body is captioning.bodies[0]:
            await asyncio.to_thread(released.wait, GUARD_S)

    captioning.before = before
    with served(captioning) as url, load(url, "judge.concurrency=2", ONCE) as served_model:
        stream = served_model.stream(paths)
        try:
            found = [next(stream) for _ in range(49)]
        finally:
            released.set()
        found += stream
    assert sorted(caption.index for caption in found) == list(range(50))
    assert all(caption.failure is None for caption in found)


def test_what_is_in_work_when_a_signal_comes_is_kept_and_gone_on_from(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 50)
    inputs, captioning, path = Inputs([tmp_path / "in"]), Captioning(), tmp_path / "out.jsonl"
    job = CaptionJob(inputs=inputs, counted=inputs.counted(), drawing=Drawing())
    with served(captioning) as url, load(url, "judge.concurrency=4") as served_model:
        assert write_caption_file(tmp_path / "whole.jsonl", served_model, job)
        captioning.bodies.clear()
        Together(captioning, 4, then=lambda: os.kill(os.getpid(), signal.SIGTERM))
        with stop_on_signal(), pytest.raises(Stopped, match=r"stopped with \d+ of 50 inputs captioned"):
            write_caption_file(path, served_model, job)
        (partial,) = parts_folder(path).glob("*.partial")
        # The signal may be seen a little later than it was sent.
        assert len(partial.read_bytes().splitlines()) == len(captioning.bodies) >= 4
        captioning.before = None
        assert write_caption_file(path, served_model, job)
    assert len(captioning.bodies) == 50
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_an_answer_that_is_slow_keeps_others_of_a_pool_waiting_for_their_turn_alone(tmp_path: Path) -> None:
    samples = asked(write_pictures(tmp_path, 40))
    captioning, others, enough = Captioning(), 0, asyncio.Event()

    async def before(body: dict) -> None:
        nonlocal others
        if body["messages"][0]["content"][-1]["text"] == "0":
            await enough.wait()
            return
        others += 1
        if others == 30:
            enough.set()

    captioning.before = before
    bad: list[BadSample] = []
    with served(captioning) as url, captioner(url, concurrency=2) as served_model:
        found = list(served_model.captions(samples, read, seed=0, on_bad=bad.append))
    assert [one.sample.id for one in found] == [sample.id for sample in samples]
    assert bad == []


def test_no_more_wait_for_their_turn_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = asked(write_pictures(tmp_path, 30))
    begun: list[Future[Captioned]] = []
    first: list[Captioned] = []
    begun_before_it: list[int] = []

    class Loop:
        """Everything but the first sample has ended at once."""

        def submit(self, work: Coroutine[object, object, Captioned]) -> Future[Captioned]:
            future: Future[Captioned] = Future()
            begun.append(future)
            try:
                work.send(None)
            except StopIteration as ended:
                future.set_result(ended.value)
            return future

    class Ended(SimpleQueue):
        def get(self, *args: Any, **options: Any) -> Any:
            if self.empty():  # there is nothing to do but to wait for the first
                begun_before_it.append(len(begun))
                begun[0].set_result(first[0])
            return super().get(*args, **options)

    async def ask(self: object, sample: Sample, *rest: object, several: bool) -> Captioned:
        done = Captioned(sample, ("It.",), (), (False,))
        if sample.id == "s0":
            first.append(done)
            await asyncio.sleep(0)
        return done

    monkeypatch.setattr(by_endpoint, "_HELD", 3)
    monkeypatch.setattr(in_work, "queue", SimpleNamespace(SimpleQueue=Ended, Empty=queue.Empty))
    monkeypatch.setattr(EndpointCaptioner, "_ask", ask)
    served_model = captioner("http://127.0.0.1:9", concurrency=2)
    served_model._loop = Loop()  # type: ignore[assignment]
    found = list(served_model.captions(samples, read, seed=0, on_bad=lambda bad: None))
    assert [one.sample.id for one in found] == [sample.id for sample in samples]
    assert begun_before_it == [1 + 3 * 2]


def test_as_many_are_read_at_once_as_there_are_threads(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def wait_and_read(sample: Sample) -> Shown:
        together.wait(GUARD_S)
        return read(sample)

    samples = asked(write_pictures(tmp_path, 8))
    with served(Captioning()) as url, captioner(url, threads=8) as served_model:
        found = list(served_model.captions(samples, wait_and_read, seed=0, on_bad=lambda bad: None))
    assert len(found) == 8


@pytest.mark.parametrize(("settings", "ahead"), [(["data.threads=40"], 40), (["data.prefetch=3"], 3)])
def test_as_many_are_read_ahead_as_there_are_threads_or_as_is_asked_for(
    tmp_path: Path, settings: list[str], ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Spied(by_endpoint.GroupIterator):
        def __init__(self, samples: Any, load: Any, settings: Any, **more: Any) -> None:
            seen.append(settings.prefetch)
            super().__init__(samples, load, settings, **more)

    monkeypatch.setattr(by_endpoint, "GroupIterator", Spied)
    with served(Captioning()) as url, load(url, *settings) as served_model:
        served_model.caption(write_pictures(tmp_path, 2))
    assert seen == [ahead]


def test_what_a_policy_would_see_is_let_go_of_once_a_sample_is_asked_about(tmp_path: Path) -> None:
    class WithPixels:
        def __init__(self, sample: Sample) -> None:
            shown = read(sample)
            self.sample, self.request, self.media = sample, shown.request, shown.media
            alive.add(self)

    alive: weakref.WeakSet[WithPixels] = weakref.WeakSet()
    samples, at_once = asked(write_pictures(tmp_path, 20)), list[int]()

    captioning = Captioning()
    Together(captioning, 20, then=lambda: at_once.append(len(alive)))
    with served(captioning) as url, captioner(url, concurrency=20, threads=1) as served_model:
        found = list(served_model.captions(samples, WithPixels, seed=0, on_bad=lambda bad: None))
    assert len(found) == 20
    assert at_once[0] < 5


def test_pictures_in_memory_are_let_go_of_once_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vcap_jax.captioning.captioner._HELD_BYTES", 10 * 8 * 9 * 3)
    alive: weakref.WeakSet[np.ndarray] = weakref.WeakSet()
    most = 0

    class Picture(np.ndarray):
        """Known by what it is, not by what it shows."""

        __hash__ = object.__hash__  # type: ignore[assignment]
        __eq__ = object.__eq__  # type: ignore[assignment]

    def pictures() -> Iterator[np.ndarray]:
        nonlocal most
        for n in range(100):
            picture = np.full((9, 8, 3), n, np.uint8).view(Picture)
            alive.add(picture)
            most = max(most, len(alive))
            yield picture

    with served(Captioning()) as url, load(url) as served_model:
        assert len(list(served_model.stream(pictures()))) == 100
    assert most <= 12


def test_what_cannot_be_read_is_told_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not kept until something can be."""
    monkeypatch.setattr("vcap_jax.captioning.captioner._READ", 8)
    (path,) = write_pictures(tmp_path, 1)
    path.write_bytes(b"broken")
    with served(Captioning()) as url, load(url) as served_model:
        stream = served_model.stream(itertools.repeat(path))
        found = list(itertools.islice(stream, 20))
        stream.close()
    assert [caption.index for caption in found] == list(range(20))
    assert all("not a readable image" in str(caption.failure) for caption in found)
