"""vLLM servers as the rollout engine: every step they are given the new weights and asked for its groups.

Weights and requests of different steps never mix. A step begins when every server holds its weights,
and nothing computed with older ones. It ends with the check that they still hold them.

Seeds depend on (run seed, step, group). But a server's arithmetic depends on what shares a batch. So a
resumed run's captions may differ from an undisturbed run's in a rare token. The JAX sampler is the
engine for runs that must repeat bit for bit.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp
import jax.numpy as jnp

from vcap_jax.data.examples import Example
from vcap_jax.models.family import Params, VllmFamily, VllmProcessor
from vcap_jax.models.policy import Policy
from vcap_jax.rollout.engine import RolloutBatch, RolloutError
from vcap_jax.rollout.sampler import RolloutConfig, SampledCaption, SampledGroup
from vcap_jax.rollout.vllm_request import GroupRules, group_request, group_seed, read_group
from vcap_jax.rollout.vllm_server import VllmServer
from vcap_jax.rollout.vllm_weights import WeightFiles
from vcap_jax.system.event_loop import LoopThread

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """A server that has been checked, for the log."""

    url: str
    model: str


class VllmEngine:
    """A ``RolloutEngine`` over the servers of ``config.vllm.urls``; a context manager.

    policy: model definition, frozen parameters and processor. seed: of the draws.
    dtype: of the weights that servers read (``ModelConfig.dtype``). say: where messages about waiting for servers go.

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
    ) -> None:
        processor = policy.processor
        if not (isinstance(policy.family, VllmFamily) and isinstance(processor, VllmProcessor)):
            raise RolloutError(
                f"rollout.engine is vllm, which does not know the model family {policy.family.name}; set "
                "rollout.engine=jax"
            )
        self._processor, self._settings, self._seed = processor, config.vllm, seed
        self._say = say
        self._rules = GroupRules(
            sampling=config.sampling,
            group_size=config.group_size,
            max_tokens=config.max_completion_length,
            end_ids=processor.eos_token_ids,
            banned_ids=processor.banned_token_ids,
        )
        self._weights = WeightFiles(
            Path(config.vllm.weights_dir), policy.graphdef, policy.frozen, dtype=jnp.dtype(dtype)
        )
        self._loop = LoopThread("rollout engine")
        self._session: aiohttp.ClientSession | None = None
        self._servers: Sequence[VllmServer] = ()
        self._adapters_kept: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connect(self) -> tuple[ServedModel, ...]:
        """Checks every server; RolloutError says what is wrong with the first that will not do."""
        return self._loop.run(self._connect())

    def stream(
        self,
        params: Params,
        batches: Iterable[RolloutBatch],
        *,
        step: int,
        ended: Callable[[SampledCaption], None] | None = None,
    ) -> Iterator[SampledGroup]:
        """See ``RolloutEngine``. All groups are under way at once, as far as ``concurrency`` allows. A server answers
        for a whole group, so its captions are told together."""
        version = f"{self._weights.folder.name}-step-{step}"
        self._load(params, version)
        arrived: queue.SimpleQueue[Future[SampledGroup]] = queue.SimpleQueue()
        futures: list[Future[SampledGroup]] = []
        try:
            for batch in batches:
                for index, example in zip(batch.indices, batch.examples, strict=True):
                    future = self._loop.submit(self._group(example, index, step))
                    future.add_done_callback(arrived.put)
                    futures.append(future)
            for _ in range(len(futures)):
                group = arrived.get().result()
                if ended is not None:
                    for caption in group.by_caption():
                        ended(caption)
                yield group
        finally:
            for future in futures:
                future.cancel()
        self._loop.run(self._expect(version))

    def measured(self) -> Mapping[str, float]:
        """See ``RolloutEngine``. ``rollout/adapters_kept``: the share of what adapters add that the servers' weights
        hold (``lora.Additions.kept``), where there are any that add something."""
        return {} if self._adapters_kept is None else {"rollout/adapters_kept": self._adapters_kept}

    def close(self) -> None:
        """Cancels what is under way, closes the connections, removes the weight files. May be called again."""
        if self._loop.closed:
            return
        self._loop.close(last=self._session.close if self._session is not None else None)
        self._weights.close()

    def _load(self, params: Params, version: str) -> None:
        folder, self._adapters_kept = self._weights.write(params, version)
        try:
            self._loop.run(self._load_everywhere(folder, version))
        finally:
            self._weights.remove(folder)

    async def _connect(self) -> tuple[ServedModel, ...]:
        settings = self._settings
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            self._slots = asyncio.Semaphore(settings.concurrency)
        servers = [
            VllmServer(
                url,
                self._session,
                timeout_s=settings.timeout_s,
                load_timeout_s=settings.load_timeout_s,
                attempts=settings.attempts,
                say=self._say,
            )
            for url in settings.urls
        ]
        token = self._processor.eos_token_ids[0]
        models = await asyncio.gather(*(server.check(token) for server in servers))
        self._servers = servers
        return tuple(ServedModel(s.url, model) for s, model in zip(servers, models, strict=True))

    async def _load_everywhere(self, folder: Path, version: str) -> None:
        if not self._servers:
            raise RolloutError("the rollout servers were not checked: call connect first")
        await asyncio.gather(*(server.load(folder, version) for server in self._servers))

    async def _expect(self, version: str) -> None:
        await asyncio.gather(*(server.expect(version) for server in self._servers))

    async def _group(self, example: Example, index: int, step: int) -> SampledGroup:
        # In turn, and not whoever is free: which server draws a group is part of what its captions depend on.
        server = self._servers[index % len(self._servers)]
        async with self._slots:
            body = await asyncio.to_thread(
                group_request,
                example.prompt,
                example.request,
                self._rules,
                self._processor,
                model=server.model,
                seed=group_seed(self._seed, step, index),
            )
            answer = await server.complete(body)
        name = f"sample {example.sample.id} at {server.url}"
        return read_group(answer, example.prompt, self._rules, index=index, name=name)
