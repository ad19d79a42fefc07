"""What the benchmarks have in common: options, data, asking about every caption, and what is told of it."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import ClassVar, Generic, Literal, TypedDict, TypeVar, Unpack

from pydantic import Field

from vcap_jax.configuration import ConfigError, inline_yaml, load_config, settings
from vcap_jax.data.examples import media_loader
from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings
from vcap_jax.data.manifest import Sample
from vcap_jax.data.videos import EvenFrames
from vcap_jax.evals.asking import Asker, RoleName, Stage, with_store
from vcap_jax.evals.benchmarks.files import Folder
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.protocol import Captioner, Captions, Evaluation, EvaluatorTools, Item
from vcap_jax.evals.statistics import Statistic, evaluated
from vcap_jax.evals.templates import PromptTemplate, check_own_texts, load_template
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.system.digests import digest_of
from vcap_jax.system.json_values import JsonObject, JsonValue

A = TypeVar("A")
Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")

_SHOWN = 100
"""Characters of a request that are said."""

_MADE_OF = "Merged from"
"""Heading of the captions that the measured one is made of."""

Mode = Literal["official", "strict"]


@settings
class BenchmarkOptions:
    """Settings of a benchmark: an evaluator's ``options``."""

    data: str
    """Folder with the benchmark's public files."""
    mode: Mode = "strict"
    """official counts as the public code does, quirks included; strict counts what was measured."""
    prompts: str | None = None
    """Folder with texts of your own, BENCHMARK/STAGE.txt or STAGE.txt each, in place of those of this project."""
    limit: int | None = Field(default=None, ge=1)
    """The first so many pictures or videos, each with all that is asked about it; null takes all."""
    judge: str | None = None
    """Addresses of the judge, separated by commas; null asks the run's."""
    judge_model: str | None = None
    """What the judge's server calls its model; null takes the only one that it lists."""
    reasoner: str | None = None
    """Addresses of the model that answers questions from text alone; null asks the judge."""
    reasoner_model: str | None = None
    """What the reasoner's server calls its model."""
    api_key_env: str | None = None
    """NAME of the environment variable that holds the key of these addresses."""


@dataclass(frozen=True, kw_only=True)
class Task(Generic[R]):
    """A sample to be captioned, with what the benchmark knows of it. of: see ``Item``."""

    sample: Sample
    row: R
    of: str | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of a caption: values, parts that failed (by name, with the reason), and how, for reading. Where nothing
    was measured and something failed, the item is a failure."""

    values: Mapping[str, float] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


class _How(TypedDict, total=False):
    role: RoleName
    temperature: float
    max_tokens: int
    caption: str
    at_once: bool


class Benchmark(ABC, Generic[R]):
    """An evaluator (implements ``Evaluator``) of one caption per sample; of several the first is measured.

    source: where its files come from and under which licence, in a sentence. worst: the value by which items are
    ordered, low is bad. texts: folder of its questions, by default its name. options: the class of its settings.
    reading: raised when the same captions, questions and answers of judges would come to other figures than before.

    The constructor raises ConfigError, DataMissing and TemplateError: everything that can be known before work.
    """

    name: ClassVar[str]
    modality: ClassVar[Literal["image", "video"] | None]
    source: ClassVar[str]
    worst: ClassVar[str]
    texts: ClassVar[str] = ""
    reading: ClassVar[int] = 1
    options_class: ClassVar[type[BenchmarkOptions]] = BenchmarkOptions

    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None:
        self.options = read_options(self.options_class, config.options, self.name)
        self.say = tools.say
        self.folder = Folder(Path(self.options.data), self.name, self.source)
        self.endpoints = _endpoints(self.options, tools, self.name)
        self.templates: dict[str, PromptTemplate] = {}
        """The texts of its questions, and of what captions are asked for with, by stage."""
        self._captioning = tools.captioning
        self._request: PromptTemplate | None = None
        self._requests = tools.requests if tools.captioning else {}
        self.tasks = self._limited(tuple(self.load()))
        if not self.tasks:
            raise self.folder.wrong(self.folder.path, "there is no sample")
        self.samples = [task.sample for task in self.tasks]
        known: set[str] = set()
        for sample in self.samples:
            # One caption would be measured twice, or a sample by the caption of another.
            if sample.id in known:
                raise self.folder.wrong(self.folder.path, f"the sample {sample.id!r} is there twice")
            known.add(sample.id)
        if tools.captioning:
            self._check_media()
        self.stages = {stage.name: stage for stage in self.make_stages()}
        if self.options.prompts is not None:
            check_own_texts(self.options.prompts, self.templates, self.texts or self.name)

    @abstractmethod
    def load(self) -> Iterable[Task[R]]:
        """The samples in the order of the public files. Raises DataMissing."""

    @abstractmethod
    def make_stages(self) -> Iterable[Stage]:
        """The kinds of questions that are asked, with their templates (``template``)."""

    @abstractmethod
    async def measure(self, task: Task[R], caption: str, asker: Asker) -> Measured:
        """What the judges' answers say of a caption."""

    @classmethod
    @abstractmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        """The benchmark's figures, of the items' values."""

    @classmethod
    def cluster(cls, identity: str) -> str:
        """What is drawn again for intervals, by a sample's id: the sample, unless several are of one video."""
        return identity

    def hint(self, strange: Collection[str]) -> str:
        """What a user should know of captions by names that no sample has; "" where nothing is known of them."""
        del strange
        return ""

    def endpoints_by_temperature(self) -> list[dict[RoleName, JudgeConfig]]:
        """The endpoints at the temperatures that their stages name, in so many turns that each comes up with each: for
        whoever sees whether they are ready, since some models take but one."""
        usual = {role: config.temperature for role, config in self.endpoints.items()}
        asked: dict[RoleName, set[float]] = {role: set() for role in self.endpoints}
        for stage in self.stages.values():
            role: RoleName = stage.role if stage.role in self.endpoints else "judge"
            asked[role].add(usual[role] if stage.temperature is None else stage.temperature)
        turns: list[dict[RoleName, JudgeConfig]] = []
        for role, temperatures in asked.items():
            for turn, temperature in enumerate(sorted(temperatures) or [usual[role]]):
                turns += [{}] if turn == len(turns) else []
                turns[turn][role] = replace(self.endpoints[role], temperature=temperature)
        return turns

    def evaluate(self, captioner: Captioner) -> Evaluation:
        """See ``Evaluator``. Raises JudgeUnavailable and its kinds, and StoreError."""
        return self.score(captioner.captions(self.samples))

    def score(self, captions: Sequence[Captions]) -> Evaluation:
        """Measures captions of ``samples``, in their order."""
        with Asker(self.endpoints, say=self.say) as asker:

            async def work(pair: tuple[Task[R], Captions]) -> Item:
                task, given = pair
                item = Item(id=given.id, captions=given.texts, failure=given.failure, of=self._of(task))
                if given.failure is not None:
                    return item
                caption = await self.caption_of(given, asker)
                if caption != given.texts[0]:
                    made_of = {_MADE_OF: "\n\n".join(given.texts)}
                    if isinstance(caption, Failure):
                        return replace(item, captions=(), failure=f"merging: {caption}", notes=made_of)
                    item = replace(item, captions=(caption,), notes=made_of)
                found = await self.measure(task, caption, asker)
                found = replace(found, notes={**item.notes, **found.notes})
                if found.lacking and not found.values:
                    reasons = "; ".join(f"{part}: {reason}" for part, reason in found.lacking.items())
                    return replace(item, failure=reasons, notes=found.notes)
                return replace(item, **vars(found))

            pairs = list(zip(self.tasks, captions, strict=True))
            items = tuple(asker.each(pairs, work, what=f"captions by {self.name}", total=len(pairs)))
            return Evaluation(
                metrics=evaluated(items, self.statistics(self.options.mode), cluster=self.cluster),
                items=items,
                stages=asker.report(),
                about=self._about(asker.models),
            )

    async def caption_of(self, captions: Captions, asker: Asker) -> str | Failure:
        """The text that is measured: the first caption, or one that is made of all and stands in their place."""
        return captions.texts[0]

    def template(self, stage: str, *placeholders: str, plain: bool = False) -> PromptTemplate:
        """The text of NAME/STAGE, of this project or the user's own; its version is told with the results."""
        made = load_template(
            f"{self.texts or self.name}/{stage}", placeholders, self.options.prompts, plain=plain
        )
        self.templates[stage] = made
        return made

    def stage(self, name: str, *placeholders: str, **how: Unpack[_How]) -> Stage:
        """The kind of question that the text NAME/STAGE asks. how: see ``Stage``."""
        return Stage(name=name, template=self.template(name, *placeholders), **how)

    def caption_request(self) -> str:
        """What captions are asked for with, by a benchmark that leaves this to whoever captions.

        A text of the user's own (``options.prompts``), else what the captioner was trained to be asked, which is said,
        else this project's. Its version and where it is from are told with the results.
        """
        made = self.template("caption", plain=True)
        self._request = made if self._captioning else None
        used_to = self._requests.get(self.modality or "image")
        if made.own or used_to is None:
            return made.text
        self._request = self.templates["caption"] = replace(made, text=used_to, source="the captioner")
        self.say(
            f"{self.name}: captions are asked for with the captioner's own request, "
            f"{json.dumps(used_to[:_SHOWN], ensure_ascii=False)}; caption.txt in options.prompts is another"
        )
        return used_to

    def _limited(self, tasks: tuple[Task[R], ...]) -> tuple[Task[R], ...]:
        """Those of the first ``options.limit`` pictures or videos, which may have several captions each."""
        named = [self._of(task) or task.sample.id for task in tasks]
        first = set(list(dict.fromkeys(named))[: self.options.limit])
        return tuple(task for task, name in zip(tasks, named, strict=True) if name in first)

    def _of(self, task: Task[R]) -> str | None:
        """See ``Item.of``."""
        cluster = self.cluster(task.sample.id)
        return task.of or (None if cluster == task.sample.id else cluster)

    def drawn(self, role: RoleName) -> dict[str, JsonValue]:
        """What the settings of an endpoint say of its answers, and a stage of it leaves to them: the temperature."""
        stages = self.stages.values()
        asked = [s for s in stages if role == (s.role if s.role in self.endpoints else "judge")]
        left = any(stage.temperature is None for stage in asked)
        return {"temperature": self.endpoints[role].temperature} if left else {}

    @cached_property
    def data_digest(self) -> str:
        """Of what the public files say of the samples: questions, answers, references; wherever they lie."""
        rows = json.dumps([[task.sample.id, task.row] for task in self.tasks], default=_plain, skipkeys=True)
        return digest_of(rows)

    def _check_media(self) -> None:
        missing = [path for sample in self.samples for path in sample.files if not path.is_file()]
        if missing:
            others = f", and {len(missing) - 1} more are not" if len(missing) > 1 else ""
            raise self.folder.wrong(missing[0], f"is not there{others}")

    def pictures(self, sample: Sample) -> Callable[[], EncodedMedia]:
        """Reads what the judge is shown of a sample's images."""
        load = media_loader(
            image_prompt="", video_prompt="", settings=JudgeMediaSettings(), frames=EvenFrames()
        )
        return lambda: load(sample).media

    def _about(self, models: Mapping[RoleName, str]) -> JsonObject:
        asked: dict[str, JsonValue] = {
            role: {"model": model, "urls": list(self.endpoints[role].urls), **self.drawn(role)}
            for role, model in models.items()
        }
        request = self._request
        return {
            "benchmark": self.name,
            "mode": self.options.mode,
            "samples": len(self.samples),
            "data": self.data_digest,
            "reading": self.reading,
            "endpoints": asked,
            "prompts": {name: template.version for name, template in self.templates.items()},
            **({} if request is None else {"request": {"text": request.text, "from": request.source}}),
        }


def _plain(value: object) -> object:
    """What JSON has no form for: of a picture its name, of a dataclass its fields."""
    if isinstance(value, PurePath):
        return value.name
    return vars(value) if is_dataclass(value) else str(value)


async def each_answered(
    questions: Mapping[str, Q], ask: Callable[[Q], Coroutine[object, object, A | Failure]]
) -> tuple[list[tuple[Q, A]], dict[str, str]]:
    """The questions about a caption with their answers, those that have one; and why the others, by name, have none."""
    answers = await asyncio.gather(*map(ask, questions.values()))
    pairs = list(zip(questions, answers, strict=True))
    lacking = {f"question {name}": str(answer) for name, answer in pairs if isinstance(answer, Failure)}
    return [(questions[name], answer) for name, answer in pairs if not isinstance(answer, Failure)], lacking


def read_options(kind: type[T], given: Mapping[str, str | int | float | bool], name: str) -> T:
    """Options of a benchmark. Raises ConfigError for unknown keys, with the nearest one, and values that do not fit."""
    if "data" not in given:
        raise ConfigError(f"{name}: options.data is missing: the folder with the benchmark's public files")
    try:
        return load_config(kind, (), [f"{key}={inline_yaml(value)}" for key, value in given.items()])
    except ConfigError as error:
        raise ConfigError(f"options of the benchmark {name}: {error}") from error


def _endpoints(options: BenchmarkOptions, tools: EvaluatorTools, name: str) -> dict[RoleName, JudgeConfig]:
    for role, urls in (("judge", options.judge), ("reasoner", options.reasoner)):
        if urls is None and getattr(options, f"{role}_model") is not None:
            raise ConfigError(
                f"{name}: options.{role}_model is of the addresses in options.{role}, and there are none: give them"
            )
    if options.api_key_env is not None and options.judge is None and options.reasoner is None:
        raise ConfigError(
            f"{name}: options.api_key_env is the key for options.judge and options.reasoner, and there is neither"
        )
    judge = _endpoint(tools.judge, options.judge, options.judge_model, options.api_key_env)
    if judge is None:
        raise ConfigError(
            f"{name} asks a judge, and there is none: give its address (--judge, or options.judge in a run)"
        )
    reasoner = _endpoint(
        tools.reasoner or (judge if options.reasoner else None),
        options.reasoner,
        options.reasoner_model,
        options.api_key_env,
    )
    found: dict[RoleName, JudgeConfig] = {"judge": judge}
    if reasoner is not None:
        found["reasoner"] = reasoner
    if tools.store is not None:
        found = {role: with_store(config, str(tools.store)) for role, config in found.items()}
    return found


def _endpoint(
    base: JudgeConfig | None, urls: str | None, model: str | None, key: str | None
) -> JudgeConfig | None:
    if urls is None:
        return base
    own = JudgeConfig() if base is None else base
    addresses = tuple(url.strip() for url in urls.split(",") if url.strip())
    # How it is asked is as ``base`` says; what ``base`` says of its own servers holds for no other ones.
    return replace(
        own,
        urls=addresses,
        model=model,
        api_key_env=key,
        sleep_mode=False,
        media_uuid="auto",
        video_input="auto",
    )
