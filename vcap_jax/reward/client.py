"""An asynchronous client for OpenAI-compatible chat endpoints, made for judging.

Every question ends in bounded time with a value or a :class:`Failure`. Connection errors, deadlines, 408, 409,
429 and 5xx are tried again after a jittered exponential wait or the server's own Retry-After, and so are
answers that cannot be used. Any other 4xx is final, with the server's message in the failure.

While no endpoint answers, or all that comes is 429, or 503 from a server that is well, questions wait and no
try of theirs is lost; after ``judge.outage_timeout_s`` :class:`JudgeOutage` is raised. Beside it only settings
that cannot work are raised: a refused key, endpoints that serve different models, and :class:`MediaMismatch`
where the judge does not see what was sent.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Self, TypeVar

import aiohttp

from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.encoded_view import (
    IMAGE_PAD,
    VIDEO_PAD,
    EncodedView,
    check_pictures,
    check_same,
    check_video,
    collapsed,
    unverifiable,
)
from vcap_jax.reward.endpoint import Endpoint
from vcap_jax.reward.endpoints import EndpointPool, Lease
from vcap_jax.reward.errors import JudgeUnavailable, NotReachable
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.http_answers import Completion, Usage, error_message
from vcap_jax.reward.judge_turns import begin_turn, end_turn
from vcap_jax.reward.media_cache import Lru, address, media_uuids
from vcap_jax.reward.prompts import ChatMessage, content_hash
from vcap_jax.reward.question import AS_CONFIGURED, Drawing, Question, Reader, Verdict
from vcap_jax.reward.rate_limits import RateLimits, Refusals
from vcap_jax.reward.readiness import check_sight, look, shortest_context, wait_for_one, wait_until_ready
from vcap_jax.reward.role import JUDGE, Role, authorisation
from vcap_jax.reward.statistics import JudgeStatistics, StatisticsRecorder
from vcap_jax.reward.tries import HEADER, FailedAt, Try, backoff, new_identity, read_reply
from vcap_jax.system.clock import Clock
from vcap_jax.system.json_values import JsonObject

T = TypeVar("T")

_NOTHING: Lru[bool] = Lru(0)
_log = logging.getLogger(__name__)


class JudgeClient:
    """Use as ``async with JudgeClient(config) as judge``, inside one event loop.

    role: what messages call the servers. say: where those about waiting go, by default the log. rng: jitter of the
    waits; give a seeded one for repeatable tests. clock: all time that is measured or waited for.
    turns: with ``judge.sleep_mode``, whether questions wait for turns that somebody begins and ends; else all of its
    life is one.
    """

    def __init__(
        self,
        config: JudgeConfig,
        *,
        role: Role = JUDGE,
        say: Callable[[str], None] = _log.warning,
        rng: random.Random | None = None,
        clock: Clock | None = None,
        turns: bool = False,
    ) -> None:
        if not config.urls:
            raise JudgeUnavailable(
                f"{role.addresses} is empty: give the addresses of OpenAI-compatible endpoints"
            )
        self._config, self._most_outages = config, config.max_tries * len(config.urls)
        self._own_turn = config.sleep_mode and not turns
        self._headers = authorisation(config.api_key_env, role)
        self._rng = rng if rng is not None else random.Random()
        self._clock = Clock() if clock is None else clock
        self._session: aiohttp.ClientSession | None = None
        self._pool = EndpointPool(config, self._open, say, self._clock, role)
        self._limits = RateLimits(config, self._pool)
        addresses = tuple(endpoint.base for endpoint in self._pool.endpoints)
        self.recorder = StatisticsRecorder(addresses, self._clock.now)

    async def __aenter__(self) -> Self:
        # The endpoints' places are the limit. A connection serves one request: a kept one may have been closed by
        # the server a moment ago, and an answer on it could belong to a request before.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        if self._own_turn:
            try:
                await self.begin_turn()
            except BaseException as error:
                await self.__aexit__(error)
                raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if self._own_turn and self._session is not None:
                # What has ended it comes first.
                with suppress(JudgeUnavailable) if any(exc) else nullcontext():
                    await self.end_turn()
        finally:
            await self._pool.close()
            if self._session is not None:
                await self._session.close()
                self._session = None

    async def begin_turn(self) -> None:
        """With ``judge.sleep_mode``: wakes the servers up, and puts the questions that were held. Raises
        JudgeUnavailable for a server that has no sleep mode."""
        await begin_turn(self._pool, self._config)

    async def end_turn(self) -> None:
        """Has the servers sleep. Raises JudgeUnavailable for one that does not."""
        await end_turn(self._pool, self._config.deadline_s)

    @property
    def unreachable(self) -> str | None:
        """That no endpoint answers now, in words; None while one does. Safe to call from any thread."""
        return self._pool.unreachable

    @property
    def temperature(self) -> float:
        """At which questions that name none are answered, at the first try."""
        return self._config.temperature

    def statistics(self) -> JudgeStatistics:
        """Totals since the start; safe to call from any thread."""
        outages = {endpoint.base: endpoint.breaker.epoch for endpoint in self._pool.endpoints}
        return self.recorder.snapshot(outages, self._pool.waited_s)

    async def wait_until_ready(self, timeout_s: float, *, every: bool = True) -> str:
        """Wait until every endpoint is healthy, serves the same model and takes a question; the model's name. Without
        ``every`` one is enough, and others are left out until they are ready, whatever is wrong with them.

        A server without ``/health`` (hosted ones) counts as healthy. The wait is told. Raises JudgeUnavailable when
        the time is up, and at once where waiting cannot help: the key is refused, a web page answers, there are
        several models and none is named, the endpoints serve different ones.
        """
        return await (wait_until_ready if every else wait_for_one)(self._pool, timeout_s)

    async def look(self) -> str | None:
        """What keeps the endpoints from being ready now, None if nothing does; raises as ``wait_until_ready``."""
        return await look(self._pool)

    async def check_sight(self, shown: EncodedView) -> None:
        """Raises JudgeUnavailable where an endpoint takes a greeting, and refuses it with these pictures."""
        await check_sight(self._pool, shown)

    async def model(self) -> str:
        """The configured model, or the one that the servers list. Waits through an outage."""
        return await self._pool.model()

    async def context(self) -> int | None:
        """Tokens of a question and its answer; None where the servers do not tell."""
        return await shortest_context(self._pool)

    async def takes_video(self) -> bool:
        """Whether videos are sent as videos (``judge.video_input``). Waits through an outage."""
        if self._config.video_input == "auto":
            return (await self._pool.card()).vllm
        return self._config.video_input == "video"

    async def ask(
        self,
        messages: Sequence[ChatMessage],
        read: Reader[T],
        *,
        response_format: JsonObject | None = None,
        shown: EncodedView | None = None,
        route: str | None = None,
        prefix: str | None = None,
        drawing: Drawing = AS_CONFIGURED,
    ) -> Verdict[T]:
        """Put one question and read its answer.

        messages: OpenAI chat messages.
        read: turns (content, finish_reason) of the first choice into a value, or a Failure to be tried again.
        response_format: a ``json_schema`` format; sent as ``judge.response_format`` says.
        shown: the visual part of the messages, whose fields are sent and whose tokens are checked.
        route: decides which endpoint is preferred; by default the media in the messages.
        prefix: what the question shares with the others of its group, for ``judge.lead_request``.
        drawing: how the answer is drawn.
        """
        if route is None:
            route = content_hash(*(media_uuids(messages) or [repr(messages)]))
        question = Question(
            messages=messages,
            response_format=response_format,
            route=route,
            prefix=prefix,
            shown=shown,
            drawing=drawing,
        )
        self._pool.asking += 1
        try:
            return await self._ask(question, read)
        finally:
            self._pool.asking -= 1

    async def _ask(self, question: Question, read: Reader[T]) -> Verdict[T]:
        """``ask``, try after try. Nothing is lost to a judge that is dead or being stopped: that is looked at first."""
        config, order = self._config, self._pool.order(question.route)
        seconds, temperature, attempt, usage = 0.0, question.temperature(config), 0, Usage()
        counted_tries: list[Lease | None] = []  # None: a try whatever becomes of its endpoint
        excused_outages: set[tuple[str, int, int]] = set()
        failed = FailedAt(config, self._pool.endpoints)
        refusals = Refusals(self._limits)
        while True:
            lease, tried, took = await self._try(question, order, failed.tries, temperature, attempt)
            attempt += 1
            seconds += took
            endpoint = lease.endpoint
            waits = refusals.saw(endpoint, tried)
            if tried.completion is not None:
                usage = tried.completion.usage
                result = read(tried.completion.text, tried.completion.finish_reason)
                if not isinstance(result, Failure):
                    self.recorder.judgement(endpoint.base, None)
                    return Verdict(result=result, seconds=seconds, tries=attempt, usage=usage)
                failure = result
                temperature = max(config.retry_temperature, question.temperature(config))
            else:
                assert tried.failure is not None
                failure = tried.failure
            doubtful = tried.gone or tried.outcome in ("connection", "doubt")
            if not tried.limited:
                counted_tries.append(lease if doubtful else None)
            wait, shut = failed.saw(endpoint, tried, attempt)
            if doubtful and (tried.gone or len(counted_tries) >= config.max_tries):
                await self._pool.examine(endpoint, refused=failure.reason == "http_status")
            again = tried.again or failed.elsewhere or (tried.gone and lease.lost)
            counted_tries = self._without_lost(counted_tries, excused_outages)
            if (len(counted_tries) + refusals.count >= config.max_tries and not waits) or not again or shut:
                if tried.limited and not shut:
                    await refusals.give_up(endpoint, failure)
                self.recorder.judgement(endpoint.base, failure)
                return Verdict(result=failure, seconds=seconds, tries=attempt, usage=usage)
            self.recorder.retry(endpoint.base)
            count = max(1, len(counted_tries) + refusals.count)
            await self._clock.sleep(backoff(config, count, wait, self._rng.random()))

    def _without_lost(
        self, tries: list[Lease | None], excused_outages: set[tuple[str, int, int]]
    ) -> list[Lease | None]:
        """The tries that count: all but those whose endpoint went down meanwhile, in ``max_tries`` outages of each.

        The bound is for a question that brings its server down every time. Such a one may be the only one that is left
        to try a server that has come back, so each of its trials counts as an outage of its own.
        """
        counted: list[Lease | None] = []
        for lease in tries:
            if lease is None or not lease.lost:
                counted.append(lease)
            elif lease.outage_id in excused_outages or len(excused_outages) < self._most_outages:
                excused_outages.add(lease.outage_id)
            else:
                counted.append(None)
        return counted

    async def _try(
        self,
        question: Question,
        order: list[int],
        avoid: dict[Endpoint, float],
        temperature: float,
        attempt: int,
    ) -> tuple[Lease, Try, float]:
        """One try with its lease and the seconds it took."""
        lease = await self._pool.acquire(order, prefix=question.prefix, avoid=avoid)
        began = self._clock.now()
        tried = Try(outcome="abandoned")
        try:
            tried = await self._exchange(lease, question, temperature, attempt)
        finally:
            reason = "" if tried.failure is None else tried.failure.detail
            doubtful = self._pool.release(lease, tried.outcome, reason)
        if doubtful or tried.busy:
            await self._pool.examine(lease.endpoint)
        if tried.busy and lease.endpoint.breaker.closed:
            tried = replace(tried, limited=True)
        return lease, tried, self._clock.now() - began

    async def _exchange(self, lease: Lease, question: Question, temperature: float, attempt: int) -> Try:
        """The question; the leading one of a group first has the server read what the group shares."""
        endpoint = lease.endpoint
        vllm = endpoint.card_is_vllm
        body = question.body(self._config, await self.model(), temperature, attempt, vllm=vllm)
        if lease.leads is not None:
            lead = await self._send(endpoint, question, dict(body), answer=False)
            if lead.completion is None:
                return lead
            self._pool.end_lead(lease)
        return await self._send(endpoint, question, body, answer=True)

    async def _send(
        self, endpoint: Endpoint, question: Question, body: dict[str, object], *, answer: bool
    ) -> Try:
        """The question with its media, or only their names where the endpoint has them; again with them if
        it refuses that, as it does where it has lost them.

        answer: False has the prompt read and no more than one token written.
        """
        keeps, refusal = endpoint.keeps_media, None
        if not answer:
            body["max_tokens"] = 1
            body.pop("response_format", None)
        shown = question.shown
        seen = endpoint.seen.get(shown.key) if shown is not None else None
        if shown is not None and seen is None and (shown.video is not None or endpoint.card_is_vllm):
            body["return_token_ids"] = True
        for kept in (endpoint.kept, _NOTHING):
            addressed = address(question.messages, keeps=keeps, kept=kept)
            body["messages"] = addressed.messages
            tried, refused = await self._post(endpoint, body, named=bool(addressed.named))
            self.recorder.media(endpoint.base, sent=len(addressed.sent), named=len(addressed.named))
            if refused is None:
                break
            refusal = refused
            self.recorder.media(endpoint.base, resent=1)
        if tried.completion is None:
            return tried
        if keeps:
            endpoint.has_taken(addressed.sent, refusal, self._pool.say)
        if shown is not None:
            try:
                await self._check(endpoint, shown, tried.completion, seen)
            except (NotReachable, TimeoutError) as error:
                return Try(outcome="connection", failure=Failure(reason="connection", detail=str(error)))
        return tried

    async def _post(
        self, endpoint: Endpoint, body: Mapping[str, object], *, named: bool
    ) -> tuple[Try, str | None]:
        """One HTTP request; beside it the server's words if it refuses one with media that are only ``named``."""
        began = self._clock.now()
        self.recorder.request_begins(endpoint.base)
        tried = Try(outcome="abandoned")
        identity = new_identity()
        try:
            reply = await endpoint.chat(body, headers={HEADER: identity})
            if named and reply.status == 400:
                tried = Try(outcome="answered")
                return tried, error_message(reply.raw)
            tried = read_reply(reply, endpoint, identity)
        except TimeoutError as error:
            self._limits.late(endpoint)
            tried = Try(outcome="doubt", failure=Failure(reason="timeout", detail=str(error)))
        except NotReachable as error:
            tried = Try(outcome="connection", failure=Failure(reason="connection", detail=str(error)))
        finally:
            usage = None if tried.completion is None else tried.completion.usage
            self.recorder.request(endpoint.base, self._clock.now() - began, tried.failure, usage)
        return tried, None

    async def _check(
        self, endpoint: Endpoint, shown: EncodedView, completion: Completion, seen: Mapping[str, int] | None
    ) -> None:
        """Raises MediaMismatch unless the judge got what was sent, as far as its server tells."""
        tokens = completion.usage.media_tokens
        if seen is not None:
            check_same(shown, seen, tokens)
            return
        ids, model = completion.prompt_token_ids, await self.model()
        if shown.video is not None:
            if ids is None:
                raise unverifiable(shown.video, f"{endpoint.base} returns no prompt_token_ids")
            pad = await endpoint.placeholder(VIDEO_PAD, model)
            text = None if pad is None else await endpoint.text_of(collapsed(ids, pad), model)
            if pad is None or text is None:
                raise unverifiable(shown.video, f"{endpoint.base} does not know {VIDEO_PAD} as one token")
            check_video(shown.video, ids, pad, text)
        elif shown.pictures and ids is not None:
            pad = await endpoint.placeholder(IMAGE_PAD, model)
            if pad is not None:  # other models have other placeholders
                check_pictures(shown, ids, pad)
        endpoint.seen.put(shown.key, tokens)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("JudgeClient is used outside of `async with`")
        return self._session


async def model_now(config: JudgeConfig, *, role: Role = JUDGE, say: Callable[[str], None]) -> str | None:
    """The model that the endpoints serve now; None if they do not answer now. Nobody is waited for. Raises
    JudgeUnavailable where waiting cannot help."""
    async with JudgeClient(config, role=role, say=say) as client:
        return await client.model() if await client.look() is None else None
