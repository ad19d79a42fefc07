"""vLLM servers as the rollout engine: they are given the weights and asked for groups.

Weights and requests of different steps never mix. Groups are asked for when every server holds their
weights, and a group counts only if its server still holds them after its answer. A server that is lost,
or was started anew, is waited for, given the weights again, and asked again for the groups that it owes.

Seeds depend on (run seed, step, group). But a server's arithmetic depends on what shares a batch. So a
resumed run's captions may differ from an undisturbed run's in a rare token. The JAX sampler is the
engine for runs that must repeat bit for bit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import queue
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import aiohttp
import jax
import jax.numpy as jnp

from vcap_jax.data.examples import Example
from vcap_jax.models.family import Params, VllmFamily, VllmProcessor
from vcap_jax.models.policy import Policy
from vcap_jax.rollout.config import RolloutConfig
from vcap_jax.rollout.engine import ReadSamples, RolloutBatch, RolloutError
from vcap_jax.rollout.sampler import SampledCaption, SampledGroup
from vcap_jax.rollout.vllm_request import GroupRules, group_request, group_seed, read_group
from vcap_jax.rollout.vllm_server import ServerLost, ServerWaits, VllmServer, rollout_session
from vcap_jax.rollout.vllm_turns import ServerTurns
from vcap_jax.rollout.vllm_weights import WeightFiles
from vcap_jax.system.closing import Closing
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.turns import Turns

_log = logging.getLogger(__name__)

_READ_TOGETHER = 8
"""Samples that are read at a time where captions alone are wanted."""


@dataclass(frozen=True)
class _Asked:
    """A group that a server is to draw. index: what its draws depend on; place: what it is known by; tries: how often
    its server was lost with it."""

    example: Example
    index: int
    place: int
    server: VllmServer
    tries: int = 0


class _Done(NamedTuple):
    """asked: the group that has come or been lost; None once a server is back that was lost. server: whose."""

    server: VllmServer
    asked: _Asked | None
    result: Future[SampledGroup | None]


class VllmEngine(Closing):
    """A ``RolloutEngine`` over the servers of ``config.vllm.urls``; a context manager.

    policy: model definition, frozen parameters and processor. seed: of the draws.
    dtype: of the weights that servers read (``ModelConfig.dtype``). say: where messages about waiting for servers go.
    turns: on the devices that the servers share with the policy, where they do (``rollout.vllm.sleep_mode``). They then
    sleep, without weights, whenever they draw nothing.

    For a run of one process, which holds all weights (``run.checks``). Raises RolloutError for a weights folder
    that cannot be made.
    """

    def __init__(
        self,
        policy: Policy,
        config: RolloutConfig,
        *,
        seed: int,
        dtype: str,
        say: Callable[[str], None] = _log.warning,
        turns: Turns | None = None,
    ) -> None:
        processor = policy.processor
        if not (isinstance(policy.family, VllmFamily) and isinstance(processor, VllmProcessor)):
            raise RolloutError(
                f"rollout.engine is vllm, which does not know the model family {policy.family.name}; set "
                "rollout.engine=jax"
            )
        self._processor, self._settings, self._seed = processor, config.vllm, seed
        self._say = say
        self._rules = GroupRules.of(config, processor)
        self._weights = WeightFiles(
            Path(config.vllm.weights_dir), policy.graphdef, policy.frozen, dtype=jnp.dtype(dtype)
        )
        self._loop = LoopThread("rollout engine")
        self._waits = ServerWaits(self._loop, say, config.vllm.outage_timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self._servers: Sequence[VllmServer] = ()
        self._given: list[weakref.ref[jax.Array]] | None = None
        self._version, self._versions = "", 0
        self._adapters_kept: float | None = None
        self._start = policy.trainable if config.vllm.sleep_mode else None
        self._turns = ServerTurns(Turns() if turns is None else turns, self._weights, self._loop)

    def connect(self) -> Sequence[VllmServer]:
        """Checks every server, and returns them; RolloutError says what is wrong with the first that will not do. One
        that is still starting is waited for (``outage_timeout_s``). Servers that take turns are given the starting
        policy for it, for they may have slept without weights."""
        self._loop.run(self._found())
        start, self._start = self._start, None
        if start is None:
            return self._loop.run(self._checked())
        with self._written(start), self._turn():
            return self._loop.run(self._checked())

    def stream(
        self,
        params: Params,
        batches: Iterable[RolloutBatch],
        *,
        step: int,
        ended: Callable[[SampledCaption], None] | None = None,
    ) -> Iterator[SampledGroup]:
        """See ``RolloutEngine``. So many groups are under way at once as ``concurrency`` allows. A server answers
        for a whole group, so its captions are told together. Before servers that take turns wake up, their weights are
        written and all batches are made: from then on nothing is computed here, and ``params`` may be gone."""

        def asked() -> Iterator[list[_Asked]]:
            for batch in batches:
                pairs = zip(batch.indices, batch.examples, strict=True)
                yield [self._asked(example, index, index) for index, example in pairs]

        for group in self._groups(params, asked(), self._rules, seed=self._seed, step=step, looked_at=True):
            if ended is not None:
                for caption in group.by_caption():
                    ended(caption)
            yield group

    def captions(
        self, params: Params, samples: Iterable[ReadSamples], rules: GroupRules, *, seed: int
    ) -> Iterator[SampledGroup]:
        """See ``CaptionSource``, by these rules."""

        def asked() -> Iterator[list[_Asked]]:
            for read in samples:
                drawn = zip(read.examples, read.indices, read.places, strict=True)
                yield [self._asked(*one) for one in drawn]

        yield from self._groups(params, asked(), rules, seed=seed, step=0)

    def drawing(self, config: RolloutConfig) -> VllmCaptions:
        """Captions of samples by the rules of ``config``. Raises RolloutError for rules that servers refuse."""
        if config.sampling.temperature == 0 and config.group_size > 1:
            raise RolloutError(
                f"{config.group_size} captions of each sample at temperature 0 would all be the same, and vLLM refuses "
                "to draw them: ask for 1"
            )
        return VllmCaptions(self, GroupRules.of(config, self._processor))

    def measured(self) -> Mapping[str, float]:
        """See ``RolloutEngine``. ``rollout/adapters_kept``: the share of what adapters add that the servers' weights
        hold (``lora.Additions.kept``), where there are any that add something."""
        kept = self._turns.adapters_kept if self._settings.sleep_mode else self._adapters_kept
        return {} if kept is None else {"rollout/adapters_kept": kept}

    def close(self) -> None:
        """Cancels what is under way, closes the connections, removes the weight files. May be called again."""
        if self._loop.closed:
            return

        async def last() -> None:
            try:
                await self._turns.asleep()  # whoever drew may have been ended in the middle
            finally:
                if self._session is not None:
                    await self._session.close()

        try:
            self._loop.close(last)
        finally:
            self._weights.close()

    def _asked(self, example: Example, index: int, place: int) -> _Asked:
        # In turn, and not whoever is free: which server draws a group is part of what its captions depend on.
        return _Asked(example, index, place, self._servers[index % len(self._servers)])

    def _groups(
        self,
        params: Params,
        batches: Iterator[list[_Asked]],
        rules: GroupRules,
        *,
        seed: int,
        step: int,
        looked_at: bool = False,
    ) -> Iterator[SampledGroup]:
        """The groups of ``batches``, by servers that are given these parameters. looked_at: making a batch is work for
        the devices, to be done before it is the servers' turn on them."""
        if not self._settings.sleep_mode:
            self._give(params)
            yield from self._answered(params, batches, rules, seed=seed, step=step)
            return
        with self._written(params):
            if looked_at:
                batches = iter(list(batches))
            with self._turn():
                yield from self._answered(params, batches, rules, seed=seed, step=step)

    def _written(self, params: Params) -> AbstractContextManager[None]:
        self._next_version()
        return self._turns.written(params, self._version)

    def _turn(self) -> AbstractContextManager[None]:
        """The turn of servers that take turns; they are given the weights that were written for it."""
        return self._turns.turn(
            self._servers,
            lambda folder: self._waits.run(self._load_into(self._servers, folder, self._version)),
        )

    def _answered(
        self, params: Params, batches: Iterator[list[_Asked]], rules: GroupRules, *, seed: int, step: int
    ) -> Iterator[SampledGroup]:
        """The groups of ``batches``, which are read while fewer than ``concurrency`` are under way."""
        arrived: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        owed: dict[VllmServer, list[_Asked]] = {}
        """Of servers that are waited for: the groups that they were lost with."""
        futures: set[Future[SampledGroup | None]] = set()

        def begin(
            work: Coroutine[object, object, SampledGroup | None], server: VllmServer, asked: _Asked | None
        ) -> None:
            future = self._loop.submit(work)
            futures.add(future)
            future.add_done_callback(lambda done: arrived.put(_Done(server, asked, done)))

        def ask(asked: _Asked) -> None:
            begin(self._group(asked, rules, group_seed(seed, step, asked.index)), asked.server, asked)

        more = True
        try:
            while True:
                while more and len(futures) + sum(map(len, owed.values())) < self._settings.concurrency:
                    batch = next(batches, None)
                    more = batch is not None
                    for asked in batch or ():
                        ask(asked)
                if not futures:
                    break
                done = self._waits.next(arrived)
                futures.discard(done.result)
                if done.asked is None:  # the server is back
                    done.result.result()
                    self._give_again(params, done.server, len(owed[done.server]))
                    for asked in owed.pop(done.server):
                        ask(asked)
                    continue
                try:
                    group = done.result.result()
                except ServerLost as error:
                    again = self._once_more(done.asked, error)
                    if done.server not in owed:
                        begin(self._waits.back(done.server, error), done.server, None)
                    owed.setdefault(done.server, []).append(again)
                    continue
                assert group is not None
                yield group
        finally:
            for future in futures:
                future.cancel()

    def _once_more(self, asked: _Asked, error: ServerLost) -> _Asked:
        if asked.tries + 1 >= self._settings.attempts:
            raise RolloutError(
                f"sample {asked.example.sample.id}: its group was sent {self._settings.attempts} times "
                f"(rollout.vllm.attempts), and its server was lost each time, last: {error}. Continue with --resume"
            ) from error
        return dataclasses.replace(asked, tries=asked.tries + 1)

    # -- weights -----------------------------------------------------------------------------------------------

    def _give(self, params: Params) -> None:
        """Gives all servers these parameters, unless they are the ones that they were given last."""
        leaves = jax.tree.leaves(params)
        if self._given is not None and list(map(id, leaves)) == [id(ref()) for ref in self._given]:
            return
        if not self._servers:
            raise RolloutError("the rollout servers were not checked: call connect first")
        self._given = None
        self._next_version()
        self._load(params, self._servers)
        self._given = [weakref.ref(leaf) for leaf in leaves]

    def _next_version(self) -> None:
        self._version = f"{self._weights.folder.name}-{self._versions}"
        self._versions += 1

    def _give_again(self, params: Params, server: VllmServer, groups: int) -> None:
        """Gives a server that is back the parameters it had, if it lost them. groups: that it owes."""
        try:
            self._loop.run(server.expect(self._version))
            told = "with its weights"
        except ServerLost:
            if self._turns.folder is None:
                self._load(params, [server])
            else:
                self._waits.run(self._load_into([server], self._turns.folder, self._version))
            told = "and was given the weights again"
        self._say(f"the rollout server at {server.url} is back {told}: {groups} groups are asked of it again")

    def _load(self, params: Params, servers: Sequence[VllmServer]) -> None:
        folder, self._adapters_kept = self._weights.write(params, self._version)
        try:
            self._waits.run(self._load_into(servers, folder, self._version))
        finally:
            self._weights.remove(folder)

    async def _load_into(self, servers: Sequence[VllmServer], folder: Path, version: str) -> None:
        async def surely(server: VllmServer) -> None:
            for _ in range(self._settings.attempts - 1):
                try:
                    await server.load(folder, version)
                except ServerLost as error:
                    await self._waits.back(server, error)
                else:
                    return
            await server.load(folder, version)

        await asyncio.gather(*map(surely, servers))

    # -- in the event loop -------------------------------------------------------------------------------------

    async def _found(self) -> None:
        settings = self._settings
        if self._session is None:
            self._session = rollout_session()
            self._slots = asyncio.Semaphore(settings.concurrency)
        servers = [
            VllmServer(url, self._session, settings, say=self._say, others=self._weights.of_another_run)
            for url in settings.urls
        ]
        await asyncio.gather(*map(self._waits.there, servers))
        await asyncio.gather(*(server.check_alone() for server in servers))
        await asyncio.gather(*(server.check_sleep_mode() for server in servers))
        self._servers = servers

    async def _checked(self) -> Sequence[VllmServer]:
        token = self._processor.eos_token_ids[0]
        await asyncio.gather(*(server.check(token) for server in self._servers))
        return self._servers

    async def _group(self, asked: _Asked, rules: GroupRules, seed: int) -> SampledGroup:
        server, example = asked.server, asked.example
        async with self._slots:
            body = await asyncio.to_thread(
                group_request,
                example.prompt,
                example.request,
                rules,
                self._processor,
                model=server.model,
                seed=seed,
            )
            # Before: one that was started anew must not begin with the weights it came up with, and answer when it has
            # been given the right ones. After: another run may have given it its own.
            await server.expect(self._version)
            answer = await server.complete(body)
            await server.expect(self._version)
        name = f"sample {example.sample.id} at {server.url}"
        return read_group(answer, example.prompt, rules, index=asked.place, name=name)


@dataclass(frozen=True)
class VllmCaptions:
    """Captions by the servers of ``engine`` (implements ``CaptionSource``). rules: how they are drawn."""

    engine: VllmEngine
    rules: GroupRules

    @property
    def groups(self) -> int:
        """See ``CaptionSource``: so many are read together that no server waits for the next."""
        return _READ_TOGETHER

    def captions(
        self, params: Params, samples: Iterable[ReadSamples], *, seed: int
    ) -> Iterator[SampledGroup]:
        yield from self.engine.captions(params, samples, self.rules, seed=seed)
