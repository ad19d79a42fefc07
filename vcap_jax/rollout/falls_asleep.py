"""Has a rollout server that was just started sleep until its turn; runs beside one that takes turns.

    python -m vcap_jax.rollout.falls_asleep http://127.0.0.1:8100 PID

vLLM comes up awake. A server that is started again may do so in the turn of another, whose memory it would take.
PID: of the server, without which there is nothing to wait for.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

import aiohttp

from vcap_jax.system.after_process import runs
from vcap_jax.system.clock import Clock
from vcap_jax.system.sleep_mode import Limit, ServerGone, SleepMode, SleepModeError

_POLL_S = 0.5
_LIMIT = Limit(300.0, "a limit of this program")
_FRESH = "default"
"""What vLLM calls the weights that it came up with."""


async def fall_asleep(url: str, pid: int, *, clock: Clock | None = None) -> bool:
    """Returns when the server sleeps; True where this has had it sleep, and not whoever gave it weights, or its end.

    Raises SleepModeError for a server that does not sleep as asked.
    """
    clock = Clock() if clock is None else clock
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        mode = SleepMode(
            url,
            f"the rollout server at {url}",
            lambda: session,
            first=_LIMIT,
            limit=_LIMIT,
            start="launch/serve_rollout.py --sleep-mode",
            clock=clock,
        )
        while runs(pid):
            try:
                if await _weights(session, url) != _FRESH:
                    return False  # it is its turn already
                # Without its weights: it is given the policy's before it draws, and what is pinned for weights once
                # stays pinned.
                await mode.sleep(2)
                return True
            except (aiohttp.ClientError, ServerGone):
                await clock.sleep(_POLL_S)
    return False


async def _weights(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/weight_info", raise_for_status=True) as response:
        told = await response.json()
    return str(told["weight_version"])


def main(arguments: Sequence[str] | None = None) -> int:
    url, pid = sys.argv[1:] if arguments is None else arguments
    # The server takes the starting process's place, and waits for no child.
    if arguments is None and os.fork():
        os._exit(0)
    try:
        asyncio.run(fall_asleep(url, int(pid)))
    except SleepModeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
