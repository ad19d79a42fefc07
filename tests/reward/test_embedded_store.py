"""The whole way with the embedded judge as a process: store, resuming, other weights, a judge that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.listening import ports_for_servers
from tests.patience import GUARD_S, until
from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings, VideoSource, encode_picture
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.config import JudgeConfig, LocalConfig, RewardConfig
from vcap_jax.reward.group import GroupForReward, GroupScores
from vcap_jax.reward.restudy import restudy
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.world.captions import full_caption
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.judge_process import embedded_judge
from vcap_jax.world.video_rendering import render_video
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import VIDEO_FPS

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = JudgeMediaSettings()


def image_group(number: int, captions: int = 4) -> GroupForReward:
    scene = sample_image_scene(5, number)
    texts = [
        full_caption(sample_image_scene(5, number + k), np.random.default_rng(k)) for k in range(captions - 1)
    ]
    media = EncodedMedia(
        modality="image", duration=0.0, pictures=(encode_picture(render_image(scene), SETTINGS),)
    )
    return GroupForReward(
        sample_id=f"image {number}",
        step=0,
        index=number,
        media=media,
        reference=texts[1],
        captions=(*texts, ""),
    )


def video_group(number: int) -> GroupForReward:
    scene = sample_video_scene(5, number)
    frames, fps = render_video(scene), VIDEO_FPS
    pictures = tuple(
        encode_picture(frame, SETTINGS, seconds=k / fps, index=k) for k, frame in enumerate(frames)
    )
    media = EncodedMedia(
        modality="video",
        duration=len(frames) / fps,
        pictures=pictures,
        source=VideoSource(frames=len(frames), fps=fps),
    )
    texts = [full_caption(sample_video_scene(5, number + k), np.random.default_rng(k)) for k in range(3)]
    return GroupForReward(
        sample_id=f"video {number}",
        step=0,
        index=number,
        media=media,
        reference=texts[1],
        captions=tuple(texts),
    )


@cache
def groups() -> list[GroupForReward]:
    """Four of pictures, two of clips; drawn by the first test that asks."""
    return [*(image_group(k) for k in range(4)), *(video_group(k) for k in range(2))]


REWARD = RewardConfig(local=LocalConfig(min_overlap=0.0))


def run(judge: JudgeConfig, reward: RewardConfig = REWARD) -> tuple[list[GroupScores], JudgeStatistics]:
    with RewardSession(reward, judge, seed=3) as session:
        session.wait_until_ready(GUARD_S)
        futures = [session.submit(group) for group in groups()]
        return [future.result(GUARD_S) for future in futures], session.statistics()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_judge(tmp_path_factory.mktemp("judge") / "log") as address:
        yield address


def test_a_second_run_asks_nothing_and_gets_the_same_rewards(url: str, tmp_path: Path) -> None:
    judge = JudgeConfig(urls=(url,), store=str(tmp_path / "judgements.sqlite"))
    first, cold = run(judge)
    assert cold.store_hits == 0
    assert cold.requests == cold.judged > 20
    again, warm = run(judge)
    assert (warm.requests, warm.judged, warm.store_hits) == (0, 0, cold.judged)
    assert [g.rewards for g in again] == [g.rewards for g in first]
    scores = [[(c.verdicts, c.components) for c in g.candidates] for g in first]
    assert [[(c.verdicts, c.components) for c in g.candidates] for g in again] == scores
    assert [g.window for g in again] == [g.window for g in first]
    assert any(len({*g.rewards}) > 1 for g in first)


def test_other_weights_need_no_judge_and_agree_with_one(url: str, tmp_path: Path) -> None:
    path = tmp_path / "judgements.sqlite"
    run(JudgeConfig(urls=(url,), store=str(path)))
    weights = RewardWeights(correctness=0.02, completeness=0.08, text_quality=0.0, local=0.3)
    asked, _ = run(
        JudgeConfig(urls=(url,)), RewardConfig(weights=weights, local=LocalConfig(min_overlap=0.0))
    )
    expected = {(g.sample_id, place): r for g in asked for place, r in enumerate(g.rewards)}
    studied = {(row.candidate.sample_id, row.candidate.index): row.reward for row in restudy(path, weights)}
    assert studied == expected
    assert len(studied) == 4 * 4 + 2 * 3


@pytest.mark.slow
def test_another_instruction_reference_or_temperature_is_asked_again(url: str, tmp_path: Path) -> None:
    judge = JudgeConfig(urls=(url,), store=str(tmp_path / "judgements.sqlite"))
    _, cold = run(judge)
    without = RewardConfig(use_reference=False, local=LocalConfig(min_overlap=0.0))
    _, changed = run(judge, without)
    assert changed.store_hits == 0
    assert changed.judged > 0
    shorter = JudgeConfig(urls=(url,), store=judge.store, max_analysis_chars=1500)
    _, schema = run(shorter)
    assert (schema.store_hits, schema.judged) == (0, cold.judged)
    for temperature in (0.3, 0.5):
        _, drawn = run(JudgeConfig(urls=(url,), store=judge.store, temperature=temperature))
        assert (drawn.store_hits, drawn.judged) == (0, cold.judged)


class JudgeProcess:
    """An embedded judge at a fixed port, to be killed and started again. Ends with the test."""

    def __init__(self, folder: Path) -> None:
        (self.port,), self._folder = ports_for_servers(1), folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "gpu_judge.serve", "--backend", "embedded", "--port", str(self.port)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        with (self._folder / f"judge-{len(self._processes)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )

    def check(self) -> None:
        """Fails if the judge that was started last is not running."""
        log = self._folder / f"judge-{len(self._processes) - 1}.log"
        assert self._processes[-1].poll() is None, log.read_text()

    def kill(self) -> None:
        self._processes[-1].kill()
        self._processes[-1].wait(GUARD_S)

    def __enter__(self) -> JudgeProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait(GUARD_S)


def none_failed(futures: list[Future[GroupScores]]) -> None:
    """Raises what went wrong, so that nobody waits for what will not come."""
    for future in futures:
        if future.done():
            future.result()


@pytest.mark.long
def test_a_judge_killed_in_the_middle_is_waited_for_and_the_rewards_are_those_of_an_undisturbed_run(
    url: str, tmp_path: Path
) -> None:
    expected, _ = run(JudgeConfig(urls=(url,)))
    said: list[str] = []
    with JudgeProcess(tmp_path) as process:
        # One request at a time, so that the kill comes in the middle.
        judge = JudgeConfig(
            urls=(f"http://127.0.0.1:{process.port}",),
            concurrency=1,
            backoff_s=0.05,
            max_tries=2,
            store=str(tmp_path / "s.sqlite"),
        )
        with RewardSession(REWARD, judge, seed=3, say=said.append) as session:
            session.wait_until_ready(GUARD_S)
            said.clear()  # on a busy machine it was waited for
            futures = [session.submit(group) for group in groups()]
            until(
                lambda: session.statistics().judged >= 5,
                "five judgements",
                check=lambda: (process.check(), none_failed(futures)),
            )
            process.kill()
            until(lambda: said, "word of the outage", check=lambda: none_failed(futures))
            process.start()
            until(
                lambda: all(future.done() for future in futures),
                "all groups to be scored",
                check=lambda: (process.check(), none_failed(futures)),
            )
            scores = [future.result() for future in futures]
            seen = session.statistics()
    assert [g.rewards for g in scores] == [g.rewards for g in expected]
    assert seen.failed == 0
    assert seen.outages >= 1
    assert seen.waited_s > 0
    assert "does not answer (" in said[0]
    assert "answers again after" in said[-1]


def test_an_interrupted_run_pays_only_for_what_was_not_judged(url: str, tmp_path: Path) -> None:
    judge = JudgeConfig(urls=(url,), store=str(tmp_path / "s.sqlite"), concurrency=1)
    expected, undisturbed = run(JudgeConfig(urls=(url,)))
    with RewardSession(REWARD, judge, seed=3) as session:
        futures = [session.submit(group) for group in groups()]
        until(
            lambda: session.statistics().judged >= 7,
            "seven judgements",
            check=lambda: none_failed(futures),
        )
    rest, seen = run(judge)
    assert seen.store_hits >= 7
    assert seen.store_hits + seen.judged == undisturbed.judged
    assert [g.rewards for g in rest] == [g.rewards for g in expected]


def test_frames_for_the_embedded_judge_keep_their_times(url: str) -> None:
    """It gets timestamped pictures; the same frames would make a video with the same times elsewhere."""
    group: Any = video_group(0)
    video = group.media.video()
    times = [frame.seconds for frame in group.media.frames()]
    assert [index / video.fps for index in video.indices] == pytest.approx(times)
