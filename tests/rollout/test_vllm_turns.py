"""Rollout servers that share the policy's devices: asleep without weights, but for their turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jax
import numpy as np
import pytest

from tests.patience import GUARD_S
from tests.rollout.rollout_server import RolloutServer
from tests.sleeping import SharedDevices, Sleeper
from tests.tiny_policy import tiny_model
from vcap_jax.data.examples import Example
from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.models.message import ImagePart, TextPart
from vcap_jax.models.policy import Policy, split_model
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.rollout.config import RolloutConfig, VllmConfig
from vcap_jax.rollout.engine import ReadSamples, RolloutBatch, RolloutError
from vcap_jax.rollout.falls_asleep import fall_asleep
from vcap_jax.rollout.vllm_engine import VllmEngine
from vcap_jax.system.turns import Turns
from vcap_jax.world.backbone import BACKBONE_FOLDER

MEDIA = EncodedMedia(modality="image", duration=0.0, pictures=())
TEXT = "Describe it."
TURN = ["rollout wakes up", "rollout sleeps"]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(*split_model(tiny_model(), ("visual",)), Processor.from_pretrained(BACKBONE_FOLDER))


@pytest.fixture(scope="module")
def examples(policy: Policy) -> list[Example]:
    rng = np.random.default_rng(0)

    def example(index: int) -> Example:
        part = ImagePart(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        return Example(
            sample=Sample(id=f"s{index}", images=(Path("x.png"),)),
            request=TEXT,
            prompt=policy.processor.encode([part, TextPart(TEXT)]),
            media=MEDIA,
        )

    return [example(i) for i in range(4)]


@pytest.fixture
def devices() -> Iterator[SharedDevices]:
    made = SharedDevices()
    yield made
    assert made.wrong == []


@pytest.fixture
def server(policy: Policy, devices: SharedDevices) -> Iterator[RolloutServer]:
    with RolloutServer(policy.processor, sleeper=Sleeper("rollout", devices)) as made:
        yield made


def engine(
    policy: Policy,
    folder: Path,
    *servers: RolloutServer,
    turns: Turns | None = None,
    say: Callable[[str], None] = print,
    **settings: Any,
) -> VllmEngine:
    vllm = VllmConfig(
        urls=tuple(server.url for server in servers),
        weights_dir=str(folder),
        timeout_s=GUARD_S,
        sleep_mode=True,
        **settings,
    )
    config = RolloutConfig(group_size=3, max_completion_length=6, engine="vllm", vllm=vllm)
    return VllmEngine(policy, config, seed=0, dtype="float32", say=say, turns=turns)


def batches(examples: list[Example]) -> list[RolloutBatch]:
    return [
        RolloutBatch(examples[:2], range(2), None, None),
        RolloutBatch(examples[2:], range(2, 4), None, None),
    ]


def test_servers_sleep_but_for_their_turns_and_get_the_weights_in_each(
    policy: Policy, examples: list[Example], server: RolloutServer, devices: SharedDevices, tmp_path: Path
) -> None:
    turns = Turns()
    with engine(policy, tmp_path, server, turns=turns) as rollout:
        (served,) = rollout.connect()
        assert (served.model, devices.did, len(server.weights)) == ("policy", TURN, 1)
        groups = []
        for group in rollout.stream(policy.trainable, batches(examples), step=0):
            assert turns.whose == f"the rollout servers at {server.url}"
            groups.append(group.index)
        assert (sorted(groups), turns.whose) == ([0, 1, 2, 3], None)
        # The same parameters again, which servers that are always awake would still have.
        drawing = rollout.drawing(RolloutConfig(group_size=2, max_completion_length=4))
        read = [ReadSamples(examples, range(4), 0)]
        assert len(list(drawing.captions(policy.trainable, read, seed=1))) == 4
        assert devices.did == TURN * 3
        assert len(server.weights) == 3
        assert server.sleeper is not None
        assert (server.sleeper.state, server.sleeper.level) == ("asleep", 2)
    assert not list(tmp_path.iterdir())


def test_captions_are_those_of_servers_that_are_always_awake(
    policy: Policy, examples: list[Example], server: RolloutServer, tmp_path: Path
) -> None:
    def drawn(rollout: VllmEngine) -> dict[int, list[list[int]]]:
        with rollout:
            rollout.connect()
            groups = rollout.stream(policy.trainable, batches(examples), step=3)
            return {group.index: group.tokens.tolist() for group in groups}

    sharing = drawn(engine(policy, tmp_path, server))
    with RolloutServer(policy.processor) as plain:
        config = RolloutConfig(
            group_size=3,
            max_completion_length=6,
            engine="vllm",
            vllm=VllmConfig(urls=(plain.url,), weights_dir=str(tmp_path), timeout_s=GUARD_S),
        )
        assert drawn(VllmEngine(policy, config, seed=0, dtype="float32")) == sharing


def test_the_turn_begins_when_all_pictures_are_looked_at_and_parameters_may_be_gone_by_then(
    policy: Policy, examples: list[Example], server: RolloutServer, devices: SharedDevices, tmp_path: Path
) -> None:
    params = jax.tree.map(lambda x: x + 0, policy.trainable)

    def looked_at() -> Iterator[RolloutBatch]:
        for number, batch in enumerate(batches(examples)):
            devices.tell(f"batch {number}")
            if number == 1:  # as ``make_room`` does
                jax.tree.map(lambda x: x.delete(), params)
            yield batch

    said: list[str] = []
    with engine(policy, tmp_path, server, say=said.append) as rollout:
        rollout.connect()
        devices.did.clear()
        server.crash_at = len(server.chats) + 2
        groups = list(rollout.stream(params, looked_at(), step=0))
    # A lost server is given the turn's weights again, though nobody else has them any more.
    assert any("was given the weights again" in line for line in said)
    assert sorted(group.index for group in groups) == [0, 1, 2, 3]
    assert devices.did == ["batch 0", "batch 1", *TURN]


def test_a_server_that_was_killed_in_its_sleep_is_waited_for(
    policy: Policy, examples: list[Example], server: RolloutServer, tmp_path: Path
) -> None:
    said: list[str] = []
    with engine(policy, tmp_path, server, say=said.append) as rollout:
        rollout.connect()
        assert server.sleeper is not None
        server.version, server.away, server.sleeper.away = "default", 2, 3
        groups = list(rollout.stream(policy.trainable, batches(examples), step=0))
    assert sorted(group.index for group in groups) == [0, 1, 2, 3]
    assert any(line.startswith("lost: rollout server at") and "is_sleeping" in line for line in said)
    assert server.sleeper.state == "asleep"


def test_a_server_that_comes_up_in_its_turn_is_not_had_to_sleep_while_it_reads_the_weights(
    policy: Policy, server: RolloutServer, devices: SharedDevices, tmp_path: Path
) -> None:
    slept: list[bool] = []

    async def just_started() -> None:  # as ``serve_rollout --sleep-mode`` starts beside every server
        slept.append(await fall_asleep(server.url, os.getpid()))

    assert server.sleeper is not None
    server.sleeper.restart()
    server.beside_reading = just_started
    with engine(policy, tmp_path, server) as rollout:
        rollout.connect()
    assert (slept, devices.did, server.sleeper.state) == ([False], TURN[1:], "asleep")


def test_a_server_that_fell_asleep_while_it_read_the_weights_is_given_them_again(
    policy: Policy, server: RolloutServer, devices: SharedDevices, tmp_path: Path
) -> None:
    async def asked_a_moment_before() -> None:
        async with aiohttp.ClientSession() as session, session.post(f"{server.url}/sleep?level=2"):
            pass

    said: list[str] = []
    assert server.sleeper is not None
    server.sleeper.restart()
    server.beside_reading = asked_a_moment_before
    with engine(policy, tmp_path, server, say=said.append) as rollout:
        rollout.connect()
    assert (len(server.weights), devices.did) == (2, ["rollout sleeps", *TURN])
    assert [line.partition("; ")[0] for line in said] == [
        f"lost: {server.url} fell asleep while it read its weights, and has dropped them"
    ]


def test_whoever_stops_in_the_middle_leaves_the_servers_asleep(
    policy: Policy, examples: list[Example], server: RolloutServer, devices: SharedDevices, tmp_path: Path
) -> None:
    turns = Turns()
    with engine(policy, tmp_path, server, turns=turns) as rollout:
        rollout.connect()
        groups = rollout.stream(policy.trainable, batches(examples), step=0)
        next(groups)
        groups.close()  # type: ignore[attr-defined]
        assert (devices.did, turns.whose) == (TURN * 2, None)
        kept = rollout.stream(policy.trainable, batches(examples), step=0)
        next(kept)
    assert devices.did == TURN * 3
    del kept


def test_servers_without_sleep_mode_are_refused_before_anything_is_given_to_them(
    policy: Policy, tmp_path: Path
) -> None:
    for sleeper in (None, Sleeper("rollout", SharedDevices(), enabled=False)):
        with (
            RolloutServer(policy.processor, sleeper=sleeper) as plain,
            engine(policy, tmp_path, plain) as rollout,
        ):
            with pytest.raises(RolloutError, match=r"start it with launch/serve_rollout\.py --sleep-mode"):
                rollout.connect()
            assert plain.weights == []


def test_a_server_that_keeps_its_memory_ends_the_run(
    policy: Policy, examples: list[Example], server: RolloutServer, tmp_path: Path
) -> None:
    assert server.sleeper is not None
    with engine(policy, tmp_path, server) as rollout:
        rollout.connect()
        server.sleeper.broken = {"/sleep"}
        with pytest.raises(RolloutError, match=r"does not fall asleep.*--resume"):
            list(rollout.stream(policy.trainable, batches(examples), step=0))
