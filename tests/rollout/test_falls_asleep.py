"""A rollout server that takes turns and has just been started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from tests.fake_clock import FakeClock
from tests.rollout.rollout_server import RolloutServer
from tests.sleeping import SharedDevices, Sleeper
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.rollout.falls_asleep import fall_asleep, main
from vcap_jax.system.sleep_mode import SleepModeError
from vcap_jax.world.backbone import BACKBONE_FOLDER


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor.from_pretrained(BACKBONE_FOLDER)


def test_it_sleeps_as_soon_as_it_answers(processor: Processor) -> None:
    sleeper = Sleeper("rollout", SharedDevices(), state="awake")
    sleeper.away = 7  # it is still starting
    with RolloutServer(processor, sleeper=sleeper) as server:
        server.away = 3
        assert asyncio.run(fall_asleep(server.url, os.getpid(), clock=FakeClock()))
        assert (sleeper.state, sleeper.level) == ("asleep", 2)


def test_it_is_left_alone_once_it_was_given_weights(processor: Processor) -> None:
    sleeper = Sleeper("rollout", SharedDevices(), state="awake")
    with RolloutServer(processor, sleeper=sleeper) as server:
        server.version = "vcap-rollout-x-3"
        assert not asyncio.run(fall_asleep(server.url, os.getpid()))
        assert sleeper.state == "awake"


def test_nobody_waits_for_a_server_that_has_ended() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert main(["http://127.0.0.1:9", str(gone.pid)]) == 0


def test_one_that_keeps_its_memory_is_told(processor: Processor, capsys: pytest.CaptureFixture[str]) -> None:
    sleeper = Sleeper("rollout", SharedDevices(), state="awake", broken=["/sleep"])
    with RolloutServer(processor, sleeper=sleeper) as server:
        with pytest.raises(SleepModeError, match="does not fall asleep"):
            asyncio.run(fall_asleep(server.url, os.getpid()))
        assert main([server.url, str(os.getpid())]) == 1
    assert "error: the rollout server at" in capsys.readouterr().err
