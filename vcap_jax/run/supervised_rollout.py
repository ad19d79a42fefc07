"""A rollout server that is kept running, as the judge's are: started again when it ends, or when its engine hangs.

    python -m vcap_jax.run.supervised_rollout --port=8100 --model=policy --folder=FOLDER --log=FILE \\
        --stall-timeout-s=300 -- vllm serve FOLDER ...

``launch/serve_rollout.py --supervise`` ends in it. Whoever draws captions with the server loses it for as long as a
start takes, waits for it, gives it the weights again and asks it again for what it owes (``rollout.vllm_engine``).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import aiohttp

from gpu_judge.vllm_server.readiness import NotReady, Server, shown
from gpu_judge.vllm_server.supervisor import Launch, Supervision, supervise_until_signalled
from vcap_jax.rollout.falls_asleep import fall_asleep
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import JsonObject, parse_json
from vcap_jax.system.sleep_mode import SleepModeError


@dataclass(frozen=True, kw_only=True)
class RolloutProbe(Server):
    """How a rollout server is asked; it listens on loopback alone, and knows no key.

    folder: of the model, as its command names it; the name is that of every rollout server.
    """

    folder: str
    task: ClassVar[str] = "draw captions"

    async def becomes_ready(self, session: aiohttp.ClientSession) -> None:
        """Nothing is drawn for it: the trainer may be giving it weights by now, and no request may be
        under way then. One that takes turns sleeps, unless it has been given some."""
        told = await self.told(session, "GET", "/v1/models")
        if not self._is_told(told):
            raise NotReady(
                f"/v1/models tells {shown(told)}, not {self.model!r} of {self.folder}: another server has the port"
            )
        if self.can_sleep:
            try:
                await fall_asleep(self.url, os.getpid())
            except SleepModeError as error:
                raise NotReady(str(error)) from error

    async def works(self, session: aiohttp.ClientSession) -> None:
        """A single token."""
        # After several, for a prompt of one token ends some servers (``VllmServer.check``).
        body: JsonObject = {"model": self.model, "prompt": "a b c", "max_tokens": 1, "temperature": 0.0}
        await self.told(session, "POST", "/v1/completions", body)

    def _is_told(self, models: bytes) -> bool:
        try:
            told = parse_json(models)
        except ValueError:
            return False
        listed = told.get("data") if isinstance(told, dict) else None
        wanted = (self.model, self.folder)
        return isinstance(listed, list) and any(
            isinstance(one, dict) and (one.get("id"), one.get("root")) == wanted for one in listed
        )


def keep_running(
    command: Sequence[str],
    environment: Mapping[str, str],
    probe: RolloutProbe,
    *,
    log: Path,
    supervision: Supervision,
) -> None:
    """Keeps the server of a command running until SIGTERM or SIGINT. log: what it says is added to it.

    Raises EndlessCrash for one that does not come up, StuckProcess for one that nothing ends, OSError for a log that
    cannot be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(f"== {shlex.join(command)}\n")
    name = f"rollout server at {probe.url}"
    launch = Launch(name=name, argv=tuple(command), environment=environment, probe=probe, log=log)
    asyncio.run(supervise_until_signalled([launch], supervision))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if a signal ended it. The server has this process's environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--sleep-mode", action="store_true")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--stall-timeout-s", type=float, required=True)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    url = f"http://127.0.0.1:{args.port}"
    probe = RolloutProbe(url=url, model=args.model, folder=args.folder, can_sleep=args.sleep_mode)
    supervision = replace(Supervision(), stall_timeout_s=args.stall_timeout_s)
    try:
        keep_running(args.command, dict(os.environ), probe, log=args.log, supervision=supervision)
    except (VCapError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
