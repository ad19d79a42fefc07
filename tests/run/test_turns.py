"""What must be so of servers that share the policy's devices before a run's first work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from tests.patience import GUARD_S
from tests.sleeping import SharedDevices, Sleeper
from vcap_jax.configuration import ConfigError
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.rollout.config import VllmConfig
from vcap_jax.rollout.sampler import RolloutConfig
from vcap_jax.run.config import RunConfig
from vcap_jax.run.turns import all_asleep, check_shares, kept_by_jax
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.sleep_mode import SleepModeError


@contextmanager
def served(routes: list[web.RouteDef], *middlewares: Middleware) -> Iterator[str]:
    loop = LoopThread("server")

    async def start() -> web.AppRunner:
        app = web.Application(middlewares=middlewares)
        app.router.add_routes(routes)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = loop.run(start(), GUARD_S)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        loop.run(runner.cleanup(), GUARD_S)
        loop.close()


def config(judge: str, *rollout: str, engine: str = "vllm") -> RunConfig:
    return RunConfig(
        judge=JudgeConfig(urls=(judge,), sleep_mode=True),
        rollout=RolloutConfig(engine=engine, vllm=VllmConfig(urls=rollout, sleep_mode=True)),  # type: ignore[arg-type]
    )


def test_servers_that_a_killed_run_left_awake_sleep_before_anything_else() -> None:
    devices = SharedDevices()
    judge, rollout = Sleeper("judge", devices, state="awake"), Sleeper("rollout", devices)
    said: list[str] = []
    with ExitStack() as stack:
        at_judge, at_rollout = (stack.enter_context(served(s.routes())) for s in (judge, rollout))
        gone = "http://127.0.0.1:9"
        all_asleep(config(f"{at_judge}/v1", at_rollout, gone), said.append)
        assert (judge.state, judge.level, rollout.state) == ("asleep", 1, "asleep")
        assert said == [f"the judge at {at_judge}/v1 was awake: it sleeps until its turn"]
        rollout.restart()
        all_asleep(config(at_judge, at_rollout), said.append)
        assert (rollout.state, rollout.level) == ("asleep", 2)
        # Whoever does not take turns is left alone.
        rollout.restart()
        all_asleep(config(at_judge, at_rollout, engine="jax"), said.append)
        all_asleep(RunConfig(judge=JudgeConfig(urls=(at_judge,))), said.append)
        assert rollout.state == "awake"


def test_a_server_without_sleep_mode_is_refused_with_the_command_that_starts_one() -> None:
    with (
        served([]) as url,
        pytest.raises(SleepModeError, match=r"start it with gpu_judge/serve\.py --sleep-mode"),
    ):
        all_asleep(config(url, engine="jax"), print)


def test_the_judges_key_is_for_the_judge_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = SharedDevices()
    judge, rollout = Sleeper("judge", devices, state="awake"), Sleeper("rollout", devices, state="awake")
    brought: list[tuple[str, str | None]] = []

    @web.middleware
    async def keyed(request: web.Request, handler: Handler) -> web.StreamResponse:
        key = request.headers.get("Authorization")
        brought.append((f"http://{request.host}", key))
        if key != "Bearer right" and brought[-1][0] == at_judge:
            return web.Response(status=401)
        return await handler(request)

    with served(judge.routes(), keyed) as at_judge, served(rollout.routes(), keyed) as at_rollout:
        keyless = config(at_judge, at_rollout)
        turns = replace(keyless, judge=replace(keyless.judge, api_key_env="SOME_KEY"))
        monkeypatch.setenv("SOME_KEY", "right")
        all_asleep(turns, print)
        assert judge.state == rollout.state == "asleep"
        assert set(brought) == {(at_judge, "Bearer right"), (at_rollout, None)}
        monkeypatch.setenv("SOME_KEY", "wrong")
        with pytest.raises(SleepModeError, match=r"refuses the key \(.*401\): check what SOME_KEY holds"):
            all_asleep(turns, print)
        with pytest.raises(SleepModeError, match=r"refuses the key \(.*401\): set judge\.api_key_env"):
            all_asleep(keyless, print)


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, 0.75),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.6"}, 0.6),
        ({"XLA_CLIENT_MEM_FRACTION": "0.5", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 0.5),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "BFC", "XLA_CLIENT_MEM_FRACTION": "0.5"}, 0.5),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_CLIENT_MEM_FRACTION": "0.05"}, None),
    ],
)
def test_jax_keeps_what_it_once_had(environment: dict[str, str], share: float | None) -> None:
    assert kept_by_jax(environment) == share


def test_a_server_that_takes_memory_which_jax_keeps_is_refused_with_what_would_fit() -> None:
    shares = {"the judge at X": 0.35, "the rollout server at Y": 0.5}
    check_shares(shares, 0.5)
    check_shares(shares, None)
    with pytest.raises(
        ConfigError, match=r"JAX keeps 0\.6 .* the rollout server at Y takes 0\.5 .* 0\.40 at most"
    ):
        check_shares(shares, 0.6)
