"""Asking judges many questions: a benchmark's stages, by the trainer's own client and store.

::

    with Asker({"judge": judge, "reasoner": reasoner}, say=print) as asker:
        results = asker.each(items, work, what="items")

``work`` is a coroutine for one item that awaits ``asker.ask`` as often as it needs to, one question after the other or
several at once. So many items are in work as the servers have places, and no more are held. An answer is on disk
before the work goes on, so a second start asks nothing that was answered. A question that could not be answered ends
in a ``Failure``: a value, counted by stage, never a score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Self, TypeVar

from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.evals.answers import Answered, Shape, read_answer
from vcap_jax.evals.templates import PromptTemplate
from vcap_jax.report.progress import PoolProgress
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.encoded_view import EncodedView, show
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.judge_query import Form, JudgeQuery, Pass, Unreadable
from vcap_jax.reward.prompts import content_hash, schema_format
from vcap_jax.reward.question import Drawing, Verdict
from vcap_jax.reward.role import Role
from vcap_jax.reward.store import JudgementStore
from vcap_jax.system.digests import number_of
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.in_work import as_they_end, until_ended
from vcap_jax.system.json_values import JsonDict, JsonObject
from vcap_jax.system.shutdown import raise_if_requested

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - an item
R = TypeVar("R")

LONG = 4096
"""Tokens of an answer that lists what a caption says."""

RoleName = Literal["judge", "reasoner"]
"""Who is asked: the one that judges, with or without the picture, or the one that answers questions from text."""

ROLES: Mapping[RoleName, Role] = {
    "judge": Role(who="the judge", settings="judge", addresses="--judge"),
    "reasoner": Role(who="the reasoner", settings="reasoner", addresses="--reasoner"),
}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A kind of question.

    name: in reports. template: its text. role: who is asked. temperature, max_tokens: None for what the settings of
    the endpoint say. caption: the template's placeholder that holds the text in question, for the store's readers.
    at_once: several questions about one picture are put at once; where the server keeps pictures, a first request
    brings it for all (``judge.lead_request``). Text needs none: a server's cache shares what is still being read.
    """

    name: str
    template: PromptTemplate
    role: RoleName = "judge"
    temperature: float | None = None
    max_tokens: int | None = None
    caption: str = "CAPTION"
    at_once: bool = False


@dataclass(kw_only=True)
class StageReport:
    """How a stage went, over all starts: what the store knew counts with what it cost when it was asked.

    questions: put. failed: of them without an answer, by reason; what they had cost before is not known. requests:
    HTTP requests. prompt_tokens, cached_tokens, completion_tokens: of the last try of each question, 0 where the
    server does not tell. example: a failure in words, "" if there is none.
    """

    questions: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    example: str = ""

    @property
    def failure_rate(self) -> float:
        """Share of the questions without an answer; 0 where nothing was asked."""
        return sum(self.failed.values()) / self.questions if self.questions else 0.0

    def add(self, verdict: Verdict[T]) -> None:
        """Counts one more question."""
        self.questions += 1
        if isinstance(verdict.result, Failure):
            reason = verdict.result.reason
            self.failed[reason] = self.failed.get(reason, 0) + 1
            self.example = self.example or str(verdict.result)
        self.requests += verdict.tries
        self.prompt_tokens += verdict.usage.prompt_tokens
        self.cached_tokens += verdict.usage.cached_tokens
        self.completion_tokens += verdict.usage.completion_tokens

    def row(self) -> JsonDict:
        """As JSON holds it."""
        return {**vars(self), "failed": dict(self.failed), "failure_rate": self.failure_rate}


class Asker:
    """Asks the endpoints of some roles; use as a context manager, which waits until they answer.

    endpoints: by role; a role that is not there is the judge's. The store that an endpoint's ``store`` names keeps the
    answers. say: where progress and waiting are told.

    Raises JudgeUnavailable and StoreError for endpoints and files that cannot be used.
    """

    def __init__(self, endpoints: Mapping[RoleName, JudgeConfig], *, say: Callable[[str], None]) -> None:
        self._endpoints, self._say = dict(endpoints), say
        self._queries: dict[RoleName, JudgeQuery] = {}
        self._clients: dict[RoleName, JudgeClient] = {}
        self._reports: dict[str, StageReport] = {}
        self.models: dict[RoleName, str] = {}
        """What each role's endpoints serve, once they have answered."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        try:
            stores: dict[str, JudgementStore] = {}
            self._loop = LoopThread("asker of judges")
            self._stack.callback(self._loop.close, self._close)
            for role, config in self._endpoints.items():
                client = JudgeClient(config, role=ROLES[role], say=self._say)
                self._loop.run(client.__aenter__())
                self._clients[role] = client
                if config.store is not None and config.store not in stores:
                    stores[config.store] = self._stack.enter_context(JudgementStore(config.store))
                store = None if config.store is None else stores[config.store]
                self._queries[role] = JudgeQuery(client, store)
                ready = self._loop.submit(client.wait_until_ready(config.ready_timeout_s))
                look = partial(raise_if_requested, f"stopped while {ROLES[role].who} was waited for")
                self.models[role] = until_ended(ready, look).result()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    async def _close(self) -> None:
        for client in self._clients.values():
            await client.__aexit__()

    def each(
        self, items: Iterable[I], work: Callable[[I], Coroutine[object, object, R]], *, what: str, total: int
    ) -> list[R]:
        """What ``work`` gives for each item, in their order. what, total: for the progress that is told.

        The next item begins when any is done: one that waits for its server keeps no other waiting. Raises what
        ``work`` raises, JudgeOutage and its kinds, and Stopped if a signal has come.
        """
        progress = PoolProgress(self._say, seconds=10)
        found: dict[int, R] = {}

        def look() -> None:
            # An outage may be waited for much longer than whoever stops the run will wait.
            raise_if_requested(f"stopped after {len(found)} of {total} {what}")

        begun = (self._loop.submit(work(item)) for item in items)
        places = max(config.concurrency * len(config.urls) for config in self._endpoints.values())
        with closing(as_they_end(begun, places + 1, look=look)) as ended:
            for number, result in ended:
                found[number] = result
                progress(what, len(found), total, len(found))
        return [found[number] for number in range(len(found))]

    async def ask(
        self,
        stage: Stage,
        shape: Shape[T],
        values: Mapping[str, str],
        *,
        shown: EncodedView | None = None,
        sample: int = 0,
    ) -> T | Failure:
        """One question of a stage.

        values: by the template's placeholders. shown: the picture, None for a question about text alone. sample:
        number of the answer, where several are drawn.
        """
        role: RoleName = stage.role if stage.role in self._queries else "judge"
        filled = stage.template.fill(values)
        seen = "" if shown is None else shown.key
        shared = content_hash(seen, filled.shared)
        drawn = stage.temperature is not None and stage.temperature > 0
        asked = Pass(
            form=_form(stage, shape),
            fill=lambda _: filled.text,
            reference=None,
            shown=shown,
            route=shared if shown is None else shown.key,
            prefix=shown.key if shown is not None and stage.at_once else None,
            drawing=Drawing(
                temperature=stage.temperature,
                max_tokens=stage.max_tokens,
                seed=number_of(f"{sample}/{seen}/{filled.text}", size=4) >> 2 if drawn else None,
            ),
            sample=sample,
        )
        subject = values.get(stage.caption, "")
        verdict = await self._queries[role].ask(asked, subject)
        self._reports.setdefault(stage.name, StageReport()).add(verdict)
        return verdict.result if isinstance(verdict.result, Failure) else verdict.result.value

    async def several(
        self,
        count: int,
        stage: Stage,
        shape: Shape[T],
        values: Mapping[str, str],
        *,
        shown: EncodedView | None = None,
    ) -> list[T] | Failure:
        """``count`` answers to one question, or the first failure."""

        async def one(sample: int) -> T | Failure:
            return await self.ask(stage, shape, values, shown=shown, sample=sample)

        answers = await asyncio.gather(*map(one, range(count)))
        failed = [answer for answer in answers if isinstance(answer, Failure)]
        return failed[0] if failed else [a for a in answers if not isinstance(a, Failure)]

    async def view(self, load: Callable[[], EncodedMedia]) -> EncodedView | Failure:
        """What the judge is shown; ``load`` runs in a worker thread. A Failure for media that cannot be read."""
        try:
            return await asyncio.to_thread(lambda: show(load(), None, as_video=False))
        except Exception as error:  # whatever a decoder raises about one file must not end the work
            return Failure(reason="media", detail=f"{type(error).__name__}: {error}")

    def report(self) -> dict[str, StageReport]:
        """How the stages went, by name, in the order in which they began."""
        return dict(self._reports)


def _form(stage: Stage, shape: Shape[T]) -> Form[Answered[T]]:
    def unpack(row: JsonObject) -> Answered[T]:
        value = shape.read(row)
        if isinstance(value, Failure):  # it was read once, under the same schema
            raise Unreadable(f"a stored answer of {stage.template.name} cannot be read: {value}")
        return Answered(row=row, value=value)

    drawn = [] if stage.temperature is None else [f"T={stage.temperature:g}"]
    return Form(
        name=stage.template.name,
        version=content_hash(stage.template.text, shape.text, *drawn),
        response_format=schema_format(stage.name, shape.schema),
        read=lambda content, finish: read_answer(content, finish, shape),
        pack=lambda answered: answered.row,
        unpack=unpack,
    )


def numbered(letter: str, texts: Iterable[str]) -> dict[str, str]:
    """Texts by the names that a question gives them: "Q1", "Q2", ..."""
    return {f"{letter}{number}": " ".join(text.split()) for number, text in enumerate(texts, 1)}


def listed(texts: Mapping[str, str]) -> str:
    """Named texts as a question has them, a line each: "Q1: ..." """
    return "\n".join(f"{name}: {text}" for name, text in texts.items())


def with_store(config: JudgeConfig, path: str) -> JudgeConfig:
    """The endpoint with a file for its answers, unless it names one."""
    return config if config.store is not None else replace(config, store=path)
