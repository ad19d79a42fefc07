"""One judge server: its address, what it says of itself, its places, and the media it has been given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp

from vcap_jax.reward.breaker import CircuitBreaker
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.errors import JudgeUnavailable, NotReachable
from vcap_jax.reward.http_answers import (
    OVERLOADED,
    ServerCard,
    base_url,
    error_message,
    error_parameter,
    is_web_page,
    may_pass,
    read_completion,
    read_models,
    retry_after_seconds,
    short,
)
from vcap_jax.reward.media_cache import Lru
from vcap_jax.reward.prompts import ChatMessage, ContentPart
from vcap_jax.reward.question import newer_length, wants_newer_length
from vcap_jax.reward.role import Role, key_remedy
from vcap_jax.system.clock import Clock
from vcap_jax.system.connection_errors import broken_connection
from vcap_jax.system.proxies import https_proxy, without_secret
from vcap_jax.system.sleep_mode import Limit, ServerGone, SleepMode, SleepModeError

_PROBE_S = 10.0
_CONNECT_S = 10.0
# A server without /health (hosted ones) counts as healthy; what its model list says decides.
_HEALTHY = (200, 204, 401, 403, 404, 405)
_REMEMBERED = 16_384
_LOST = "cache miss"
"""What vLLM says of media that are named, and which it no longer has."""
_MOST_BYTES = 16 * 2**20
"""Of one answer; the longest that is asked for, the token ids of a long video's prompt, has about one."""

GREETED: ContentPart = {"type": "text", "text": "Are you there?"}
GREETING: list[ChatMessage] = [{"role": "user", "content": [GREETED]}]
"""A question that is put to a server before there is work for it; a judge may well refuse to answer it."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An HTTP answer as it came. retry_after: seconds, None where the server does not say. elsewhere: where it sends
    those who ask, None if it does not."""

    status: int
    raw: bytes
    retry_after: float | None = None
    elsewhere: str | None = None


class Endpoint:
    """Used inside one event loop; ``session`` gives the open HTTP session.

    kept: uuids of media that the server has been given. warm: prefixes that it has computed. leads: prefixes
    that it is computing for the first time. seen: media tokens of the prompts that were checked, by media.
    told_lost: when the user was told that it does not answer; None while there is nothing to take back.
    echoes: it has given back the identity of a request. greeted: it takes a greeting, as far as is known.
    introduction: held while it is asked what it is. With ``judge.sleep_mode`` it sleeps outside of turns; can_sleep: it
    has said that it can.
    """

    def __init__(
        self,
        url: str,
        config: JudgeConfig,
        session: Callable[[], aiohttp.ClientSession],
        clock: Clock,
        role: Role,
    ) -> None:
        self.base = base_url(url)
        self.root = self.base.removesuffix("/v1")
        self._proxy = https_proxy(self.base)
        self.breaker = CircuitBreaker(config.breaker_failures, clock.now)
        self.places = asyncio.Semaphore(config.concurrency)
        self.card: ServerCard | None = None
        self.kept: Lru[bool] = Lru(_REMEMBERED)
        self.warm: Lru[bool] = Lru(_REMEMBERED)
        self.seen: Lru[Mapping[str, int]] = Lru(_REMEMBERED)
        self.leads: dict[str, asyncio.Event] = {}
        self.probing: asyncio.Task[None] | None = None
        self.told_lost: float | None = None
        self.echoes, self.greeted = False, True
        self.introduction = asyncio.Lock()
        self._session, self._clock, self._role = session, clock, role
        self._deadline_s, self._temperature = config.deadline_s, config.temperature
        self._by_uuid = {"auto": None, "always": True, "never": False}[config.media_uuid]
        self._named_model, self._key_remedy = config.model, key_remedy(config.api_key_env, role)
        self._placeholders: dict[str, int | None] = {}
        self._sleep_mode: SleepMode | None = None
        if config.sleep_mode:
            self._sleep_mode = SleepMode(
                self.root,
                f"{role.who} at {self.base}",
                session,
                first=Limit(config.ready_timeout_s, f"{role.settings}.ready_timeout_s"),
                limit=Limit(config.deadline_s, f"{role.settings}.deadline_s"),
                start="gpu_judge/serve.py --sleep-mode",
                clock=clock,
                key=self._key_remedy,
            )
        self._its_turn = self.can_sleep = self._newer_length = False
        self._turning = asyncio.Lock()

    @property
    def card_is_vllm(self) -> bool:
        return self.card is not None and self.card.vllm

    @property
    def keeps_media(self) -> bool:
        """Whether it takes a medium's uuid in its place."""
        return self.card_is_vllm if self._by_uuid is None else self._by_uuid

    def has_taken(self, uuids: Iterable[str], refusal: str | None, say: Callable[[str], None]) -> None:
        """It has been given these media. refusal: what it first said to their names alone, if it refused those."""
        for uuid in uuids:
            self.kept.put(uuid, True)
        if refusal is not None and _LOST not in refusal.lower() and self.keeps_media:
            self._by_uuid = False
            say(
                f"{self._role.who} at {self.base} takes no media by name alone ({' '.join(refusal.split())}): from "
                f"now on they go with every request, as with {self._role.settings}.media_uuid=never"
            )

    def forget(self) -> None:
        """The server may have been started anew: nothing it was given can be relied on."""
        for memory in (self.kept, self.warm, self.seen):
            memory.clear()
        self.card, self.echoes, self.can_sleep, self._newer_length = None, False, False, False
        self._placeholders.clear()

    async def begin_turn(self) -> None:
        """Wakes it up. Raises NotReachable for a server that is not there, JudgeUnavailable for one that cannot sleep
        or wake up."""
        self._its_turn = True
        await self._wake_up()

    async def end_turn(self) -> None:
        """Has it sleep. Raises NotReachable for a server that is not there, JudgeUnavailable for one that keeps its
        memory."""
        self._its_turn = False
        for memory in (self.kept, self.warm):  # its caches do not outlive its sleep
            memory.clear()
        async with self._turning:
            with _as_judge_errors():
                assert self._sleep_mode is not None
                await self._sleep_mode.sleep(1)

    async def _wake_up(self) -> None:
        """Where it has turns and this is one: it may have been started anew, and sleep."""
        async with self._turning:
            if self._sleep_mode is None or not self._its_turn:
                return
            with _as_judge_errors():
                if not self.can_sleep:
                    await self._sleep_mode.check()
                    self.can_sleep = True
                await self._sleep_mode.wake_up()

    async def introduce(self) -> None:
        """Asks the server what it is: ``card``. Raises NotReachable, and JudgeUnavailable for an answer that waiting
        cannot mend.
        """
        reply = await self._get(f"{self.base}/models")
        self._check_key(reply)
        if reply.elsewhere is not None:
            raise NotReachable(
                f"/models answers {reply.status} and sends us to {reply.elsewhere}, where no question is put: if "
                f"that is the judge, name its address in {self._role.addresses}"
            )
        missing = reply.status in (404, 405)
        # 5xx is how a proxy says that the server behind it is not up yet; and who has named the model may ask a server
        # without a list of its own.
        if is_web_page(reply.raw) and reply.status < 500 and not (missing and self._named_model):
            raise JudgeUnavailable(
                f"{self.root} answers with a web page, not the OpenAI API: no {self.base.removeprefix(self.root)}"
                f"/models there; check {self._role.addresses}"
            )
        if missing:
            self.card = ServerCard(models=(), vllm=False)
            return
        if reply.status != 200:
            raise NotReachable(f"/models answers {reply.status}: {error_message(reply.raw)}")
        card = read_models(reply.raw)
        if card is None:
            raise JudgeUnavailable(
                f"{self.base}/models lists no models: {short(reply.raw)}; check {self._role.addresses}, or set "
                f"{self._role.model}"
            )
        self.card = card

    async def probe(self) -> str | None:
        """None if the server is healthy and lists its models, else what was seen. Raises JudgeUnavailable for an
        answer that waiting cannot mend.
        """
        try:
            health = await self._get(f"{self.root}/health")
            if health.status not in _HEALTHY and health.elsewhere is None:
                return f"/health answers {health.status}: {error_message(health.raw)}"
            await self._wake_up()
            await self.introduce()
        except NotReachable as error:
            return str(error)
        return None

    async def greet(self, model: str) -> str | None:
        """None if the server takes a chat question to ``model``, whatever it makes of it; else what was seen. Raises
        JudgeUnavailable where waiting cannot help: the key is refused, or nobody there answers chat questions.
        """
        try:
            reply = await self.chat(self.greeting(model))
        except NotReachable as error:
            return str(error)
        except TimeoutError as error:
            if await self._sleeps():
                raise JudgeUnavailable(
                    f"{self.root} is asleep: set {self._role.settings}.sleep_mode=true if it shares the policy's GPUs, "
                    f"or wake it up (curl -X POST {self.root}/wake_up)"
                ) from error
            return str(error)
        self._check_key(reply)
        if reply.status >= 500:
            return f"/chat/completions answers {reply.status}: {error_message(reply.raw)}"
        where = f"{self.base}/chat/completions"
        if reply.status in (404, 405):
            raise JudgeUnavailable(
                f"{where} answers {reply.status}: {error_message(reply.raw)}. Check {self._role.addresses} and "
                f"{self._role.model}"
            )
        if reply.status == 400 and error_parameter(reply.raw) == "temperature":
            raise JudgeUnavailable(
                f"{where} refuses temperature {self._temperature:g}, at which it is to be asked: "
                f"{error_message(reply.raw)}. Name another model ({self._role.model}), or, where the temperature is "
                "yours to set, one that it takes"
            )
        if reply.status == 200 and read_completion(reply.raw) is None:
            raise JudgeUnavailable(
                f"{where} answers with no chat completion: {short(reply.raw)}. Check {self._role.addresses}"
            )
        return None

    async def limits(self, model: str) -> bool:
        """Whether it takes no chat question now, not even a greeting: it says that too much is asked, or nothing."""
        try:
            return (await self.chat(self.greeting(model))).status in OVERLOADED
        except (NotReachable, TimeoutError):
            return True

    def greeting(self, model: str) -> dict[str, object]:
        return {"model": model, "messages": GREETING, "temperature": self._temperature, "max_tokens": 1}

    async def chat(self, body: Mapping[str, object], *, headers: Mapping[str, str] | None = None) -> Reply:
        """``post`` of a chat question, with the limit of its answer under the name that the server wants."""
        sent = newer_length(body) if self._newer_length else body
        reply = await self.post("chat/completions", sent, headers=headers)
        if reply.status == 400 and sent is body and wants_newer_length(error_message(reply.raw)):
            self._newer_length = True
            reply = await self.post("chat/completions", newer_length(body), headers=headers)
        return reply

    async def post(
        self, path: str, body: Mapping[str, object], *, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One POST below the base address (or, with a leading slash, below the server's root); nobody is sent on, since
        what is asked is for this server's eyes.

        A body beyond ``_MOST_BYTES`` is cut off there, and the connection closed.

        Raises NotReachable for every kind of broken connection and TimeoutError at the deadline.
        """
        url = self.root + path if path.startswith("/") else f"{self.base}/{path}"
        return await self._exchange("POST", url, self._deadline_s, body, headers)

    async def _get(self, url: str) -> Reply:
        try:
            return await self._exchange("GET", url, _PROBE_S)
        except TimeoutError as error:
            raise NotReachable(str(error)) from error

    async def _exchange(
        self,
        method: str,
        url: str,
        limit_s: float,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        request = self._session().request
        try:
            async with (
                self._clock.deadline(limit_s),
                request(
                    method,
                    url,
                    json=body,
                    timeout=timeout,
                    headers=headers,
                    allow_redirects=False,
                    proxy=self._proxy,
                ) as response,
            ):
                raw = await _bounded(response)
                told = response.headers
                return Reply(
                    status=response.status,
                    raw=raw,
                    retry_after=retry_after_seconds(told.get("Retry-After")),
                    elsewhere=told.get("Location", "nowhere") if 300 <= response.status < 400 else None,
                )
        except (aiohttp.InvalidURL, UnicodeError) as error:  # a host's name with an empty label
            raise JudgeUnavailable(f"{url} is no address; check {self._role.addresses}") from error
        except aiohttp.ClientError as error:
            through = f" (through HTTPS_PROXY, {without_secret(self._proxy)})" if self._proxy else ""
            raise NotReachable(f"{broken_connection(error)}{through}") from error
        except TimeoutError as error:
            raise TimeoutError(f"no answer in {limit_s:g} s") from error

    async def _sleeps(self) -> bool:
        """Whether it says so; a server that answers no such question does not."""
        try:
            reply = await self._get(f"{self.root}/is_sleeping")
        except NotReachable:
            return False
        return _field(reply, "is_sleeping") is True

    async def placeholder(self, token: str, model: str) -> int | None:
        """The id of a special token of the server's tokenizer; None where it is not one token or the server
        has no /tokenize. Raises NotReachable for an error that may pass.
        """
        if token not in self._placeholders:
            body = {"model": model, "prompt": token, "add_special_tokens": False}
            tokens = _field(await self._converted("/tokenize", body), "tokens")
            self._placeholders[token] = None
            if isinstance(tokens, list) and len(tokens) == 1 and isinstance(tokens[0], int):
                self._placeholders[token] = tokens[0]
        return self._placeholders[token]

    async def text_of(self, tokens: list[int], model: str) -> str | None:
        """The text of token ids, special ones included; None where the server has no /detokenize. Raises NotReachable
        for an error that may pass."""
        text = _field(await self._converted("/detokenize", {"model": model, "tokens": tokens}), "prompt")
        return text if isinstance(text, str) else None

    async def _converted(self, path: str, body: Mapping[str, object]) -> Reply:
        """What the tokenizer answers. An error that may pass says nothing about what the server can do."""
        reply = await self.post(path, body)
        if may_pass(reply.status):
            raise NotReachable(f"{path} answers {reply.status}: {error_message(reply.raw)}")
        return reply

    def _check_key(self, reply: Reply) -> None:
        if reply.status in (401, 403):
            raise JudgeUnavailable(
                f"{self.base} refuses the key ({reply.status}: {error_message(reply.raw)}): {self._key_remedy}"
            )


@contextmanager
def _as_judge_errors() -> Iterator[None]:
    try:
        yield
    except ServerGone as error:
        raise NotReachable(str(error)) from error
    except SleepModeError as error:
        raise JudgeUnavailable(str(error)) from error


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body, or what fits of one that would fill the memory until the deadline."""
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > _MOST_BYTES:
            break
    return bytes(raw)


def _field(reply: Reply, name: str) -> object:
    if reply.status != 200:
        return None
    try:
        return json.loads(reply.raw).get(name)
    except (ValueError, RecursionError, AttributeError):
        return None
