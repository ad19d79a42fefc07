"""Servers that share the policy's devices: what must be so of them before a run's first work."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping

import aiohttp
import jax

from vcap_jax.configuration import ConfigError
from vcap_jax.reward.http_answers import base_url
from vcap_jax.reward.role import JUDGE, authorisation, key_remedy
from vcap_jax.rollout.vllm_server import first_answer_limit
from vcap_jax.run.config import RunConfig
from vcap_jax.system.clock import Clock
from vcap_jax.system.sleep_mode import Level, Limit, ServerGone, SleepMode
from vcap_jax.system.waiting import Waiting, telling

FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Where the environment says which share of each GPU JAX takes: the name, and the one before it."""
_DEFAULT_FRACTION = 0.75


def all_asleep(config: RunConfig, say: Callable[[str], None]) -> None:
    """Has the servers sleep that take turns with the policy; a killed run may have left one awake.

    One that does not answer holds no memory, and is waited for when its turn comes. Nothing is asked where nobody takes
    turns. Raises SleepModeError for a server without sleep mode or one that refuses the judge's key, JudgeUnavailable
    where that is not set, ConfigError for a server that takes memory which JAX keeps.
    """
    shares = asyncio.run(_asleep(config, say))
    if shares and jax.local_devices()[0].platform == "gpu":
        check_shares(shares, kept_by_jax(os.environ))


def kept_by_jax(environment: Mapping[str, str]) -> float | None:
    """The share of each GPU that JAX takes and never gives back; None of allocators other than its own."""
    if environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default").lower() not in ("default", "bfc"):
        return None
    for name in FRACTIONS:
        try:
            return float(environment[name])
        except (KeyError, ValueError):  # JAX says itself what it cannot read
            continue
    return _DEFAULT_FRACTION


def check_shares(shares: Mapping[str, float], kept: float | None) -> None:
    """Raises ConfigError if a server takes memory that JAX keeps. shares: of each GPU, by server; kept: by JAX."""
    if kept is None:
        return
    for who, share in shares.items():
        if share + kept > 1:
            raise ConfigError(
                f"JAX keeps {kept:g} of each GPU's memory ({FRACTIONS[1]}), and {who} takes {share:g} when it "
                f"is awake: start it with --gpu-memory-utilization {1 - kept:.2f} at most, or give JAX less"
            )


def _sharing(
    config: RunConfig, judging: aiohttp.ClientSession, session: aiohttp.ClientSession
) -> Iterator[tuple[SleepMode, Level]]:
    """The servers that take turns with the policy, and the level of their sleep. judging: the session that has the
    judge's key."""
    judge, vllm = config.judge, config.rollout.vllm
    for url in judge.urls if judge.sleep_mode else ():
        mode = SleepMode(
            base_url(url).removesuffix("/v1"),
            f"the judge at {url}",
            lambda: judging,
            first=Limit(judge.ready_timeout_s, "judge.ready_timeout_s"),
            limit=Limit(judge.deadline_s, "judge.deadline_s"),
            start="gpu_judge/serve.py --sleep-mode",
            clock=Clock(),
            key=key_remedy(judge.api_key_env, JUDGE),
        )
        yield mode, 1
    for url in vllm.urls if config.rollout.engine == "vllm" and vllm.sleep_mode else ():
        mode = SleepMode(
            url.rstrip("/"),
            f"the rollout server at {url}",
            lambda: session,
            first=first_answer_limit(vllm),
            limit=Limit(vllm.load_timeout_s, "rollout.vllm.load_timeout_s"),
            start="launch/serve_rollout.py --sleep-mode",
            clock=Clock(),
        )
        yield mode, 2


def _session(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), headers=headers)


async def _asleep(config: RunConfig, say: Callable[[str], None]) -> dict[str, float]:
    """The share of each GPU's memory that servers take when they are awake, of those that answer and tell."""
    shares: dict[str, float] = {}
    key = authorisation(config.judge.api_key_env if config.judge.sleep_mode else None, JUDGE)
    async with _session(key) as judging, _session({}) as session:
        for mode, level in _sharing(config, judging, session):
            waiting = Waiting(mode.who, say, limit_s=mode.first.seconds, setting=mode.first.setting)
            try:
                async with telling(waiting, lambda: "it is asked whether it sleeps", Clock()):
                    share = await mode.check()
                    if not await mode.sleeps():
                        await mode.sleep(level)
                        say(f"{mode.who} was awake: it sleeps until its turn")
            except ServerGone:
                continue
            if share is not None:
                shares[mode.who] = share
    return shares
