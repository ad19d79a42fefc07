"""CapMAS: CLAIR, Coverage and Factuality of detailed captions of 1,000 pictures.

Public implementation: github.com/adobe-research/CapMAS (Lee et al., "Toward Robust Hyper-Detailed Image Captioning",
ICML 2025). The paper's average is the mean of the three.

* **CLAIR**: from text alone, how likely caption and reference describe the same picture, 0 to 100; the mean.
* **Coverage**: all multiple-choice questions of a picture in one call, answered from the caption alone; "cannot tell"
  is wrong. Right answers over questions, of all pictures together.
* **Factuality**: the caption's propositions, each true or false by picture and reference. True ones over all, of all
  pictures together.

``official`` differs in one thing: an answer of CLAIR whose reason is null adds its score to the sum and leaves the
number that it is divided by. ``strict`` counts it in both. In both modes a judgement that failed is counted as failed
and scored nowhere, as the public code does for CLAIR; for Factuality it asks without end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Annotated, Literal

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.answers import Sentences, chosen, typed
from vcap_jax.evals.asking import LONG, Asker, Stage, listed, numbered
from vcap_jax.evals.benchmarks.benchmark import Benchmark, BenchmarkOptions, Measured, Mode, Task
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.protocol import Captions, Evaluation, EvaluatorTools
from vcap_jax.evals.statistics import Statistic, average, mean, ratio
from vcap_jax.reward.failures import Failure

_UNKNOWN = "?"
_MERGED = 5
_OPTION = re.compile(r"(?:^|(?<=\s))\(?([A-Z])[).:](?=\s)")
_MANY = tuple("ABCDEFGH")


@settings
class CapMasOptions(BenchmarkOptions):
    """Settings of capmas."""

    subset: Literal["all", "iiw400"] = "all"
    """all 1,000 pictures, or the 400 of ImageInWords, on which its authors report."""
    captions: Literal["single", "merge5"] = "single"
    """single asks for one caption; merge5, as its authors do, for five with different requests, which
    the reasoner merges into the one that is measured. Captions of a file are measured as they are."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What CapMAS knows of a picture: a person's caption, questions with their options, the right letters."""

    reference: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """An answer of CLAIR."""

    reason: Sentences | None
    score: Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True, kw_only=True)
class Propositions:
    """What a caption claims."""

    propositions: list[str]


@dataclass(frozen=True, kw_only=True)
class Merged:
    """One caption of several."""

    caption: Annotated[str, Field(min_length=1)]


class CapMas(Benchmark[Picture]):
    """See the module."""

    name = "capmas"
    modality = "image"
    source = (
        "Take data/data.jsonl and data/COVERAGE_TEST_VQA/ from github.com/adobe-research/CapMAS (Adobe Research "
        "License: no commercial use) and images_capmas.tar.gz, unpacked as images/, from huggingface.co/datasets/"
        "saehyungl/CapMAS"
    )
    worst = "average"
    reading = 2  # 1 offered other letters
    options_class = CapMasOptions
    options: CapMasOptions

    def __init__(self, config: EvaluatorConfig, tools: EvaluatorTools) -> None:
        super().__init__(config, tools)
        self._merging = self.options.captions == "merge5" and tools.captioning
        if self._merging:
            requests = [self.template(f"caption_{k}", plain=True).text for k in range(1, _MERGED + 1)]
            self.samples = [
                replace(sample, id=f"{sample.id}#{k}", prompt=request)
                for sample in self.samples
                for k, request in enumerate(requests, 1)
            ]

    def score(self, captions: Sequence[Captions]) -> Evaluation:
        """See ``Benchmark``. Of a picture to be captioned several times, all captions must be there."""
        if not self._merging:
            return super().score(captions)
        groups = [captions[k : k + _MERGED] for k in range(0, len(captions), _MERGED)]
        return super().score(
            [_together(task.sample.id, group) for task, group in zip(self.tasks, groups, strict=True)]
        )

    async def caption_of(self, captions: Captions, asker: Asker) -> str | Failure:
        """The only caption, or what is made of all."""
        if not self._merging:
            return await super().caption_of(captions, asker)
        several = "\n\n".join(f"{k}: {text}" for k, text in enumerate(captions.texts, 1))
        merged = await asker.ask(self.stages["merge"], typed(Merged), {"CAPTIONS": several})
        return merged if isinstance(merged, Failure) else merged.caption

    def load(self) -> Iterable[Task[Picture]]:
        files = self.folder.media("image", "images", "images_capmas", "")
        # Of merge5 the five requests are the protocol.
        several = self.options.captions == "merge5"
        prompt = self.template("caption", plain=True).text if several else self.caption_request()
        questions = self.folder.file("data/COVERAGE_TEST_VQA", "COVERAGE_TEST_VQA")
        for where, row in self.folder.objects(self.folder.file("data/data.jsonl", "data.jsonl")):
            if self.options.subset == "iiw400" and row.get("dataset") != "IIW-400":
                continue
            name = self.folder.text(row, "image", where)
            path = questions / f"{name}.json"
            if not path.is_file():
                raise self.folder.wrong(path, "there is no such file of questions")
            asked = self.folder.object(path)
            texts = self.folder.texts(asked, "questions", str(path))
            letters = self.folder.texts(asked, "answers", str(path))
            if len(texts) != len(letters):
                raise self.folder.wrong(path, f"{len(texts)} questions and {len(letters)} answers")
            reference = self.folder.text(row, "caption", where)
            images = (self.folder.picture(files, name),)
            sample = Sample(id=name, images=images, prompt=prompt, references=(reference,), origin=where)
            answers = tuple(letter.strip().upper() for letter in letters)
            yield Task(sample=sample, row=Picture(reference=reference, questions=texts, answers=answers))

    def make_stages(self) -> Iterable[Stage]:
        return (
            self.stage(
                "merge", "CAPTIONS", role="reasoner", temperature=0.0, max_tokens=LONG, caption="CAPTIONS"
            ),
            self.stage("clair", "REFERENCE", "CAPTION", temperature=0.0),
            self.stage("coverage", "QUESTIONS", "CAPTION", role="reasoner", temperature=0.0),
            self.stage("propositions", "CAPTION", temperature=0.0, max_tokens=LONG),
            self.stage(
                "factuality",
                "REFERENCE",
                "PROPOSITIONS",
                temperature=0.0,
                max_tokens=LONG,
                caption="PROPOSITIONS",
            ),
        )

    @classmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        clair = ratio("clair", "clair_counted", scale=100) if mode == "official" else mean("clair", scale=100)
        coverage = ratio("questions_right", "questions", scale=100)
        factuality = ratio("propositions_true", "propositions", scale=100)
        return {
            "clair": clair,
            "coverage": coverage,
            "factuality": factuality,
            "average": average(clair, coverage, factuality),
        }

    async def measure(self, task: Task[Picture], caption: str, asker: Asker) -> Measured:
        found = await asyncio.gather(
            self._clair(task, caption, asker),
            self._coverage(task, caption, asker),
            self._factuality(task, caption, asker),
        )
        values: dict[str, float] = {}
        lacking: dict[str, str] = {}
        notes: dict[str, str] = {}
        for name, part in zip(("clair", "coverage", "factuality"), found, strict=True):
            if isinstance(part, Failure):
                lacking[name] = str(part)
            else:
                values |= part.values
                notes |= part.notes
        if not lacking:
            coverage = values["questions_right"] / max(1, values["questions"])
            factuality = values["propositions_true"] / max(1, values["propositions"])
            values["average"] = (values["clair"] + coverage + factuality) / 3
        return Measured(values=values, lacking=lacking, notes=notes)

    async def _clair(self, task: Task[Picture], caption: str, asker: Asker) -> Measured | Failure:
        answer = await asker.ask(
            self.stages["clair"], typed(Likeness), {"REFERENCE": task.row.reference, "CAPTION": caption}
        )
        if isinstance(answer, Failure):
            return answer
        return Measured(
            values={"clair": answer.score / 100, "clair_counted": float(answer.reason is not None)},
            notes={"CLAIR": answer.reason} if answer.reason else {},
        )

    async def _coverage(self, task: Task[Picture], caption: str, asker: Asker) -> Measured | Failure:
        pairs = zip(task.row.questions, task.row.answers, strict=True)
        asked = {f"Q{number}": pair for number, pair in enumerate(pairs, 1)}
        options = {name: (*letters_of(*pair), _UNKNOWN) for name, pair in asked.items()}
        told = "\n\n".join(f"{name}: {question}" for name, (question, _) in asked.items())
        answers = await asker.ask(
            self.stages["coverage"], chosen(options), {"QUESTIONS": told, "CAPTION": caption}
        )
        if isinstance(answers, Failure):
            return answers
        wrong = [
            f"{question.splitlines()[0]} Told: {_option(question, answers[name])}. Right: {_option(question, answer)}."
            for name, (question, answer) in asked.items()
            if answers[name] != answer
        ]
        return Measured(
            values={"questions": len(asked), "questions_right": len(asked) - len(wrong)},
            notes={"Questions answered wrongly": "\n".join(wrong)} if wrong else {},
        )

    async def _factuality(self, task: Task[Picture], caption: str, asker: Asker) -> Measured | Failure:
        split = await asker.ask(self.stages["propositions"], typed(Propositions), {"CAPTION": caption})
        if isinstance(split, Failure):
            return split
        claims = numbered("P", filter(str.strip, split.propositions))
        if not claims:
            return Measured(values={"propositions": 0.0, "propositions_true": 0.0})
        shown = await asker.view(self.pictures(task.sample))
        if isinstance(shown, Failure):
            return shown
        verdicts = await asker.ask(
            self.stages["factuality"],
            chosen(dict.fromkeys(claims, ("true", "false"))),
            {"REFERENCE": task.row.reference, "PROPOSITIONS": listed(claims)},
            shown=shown,
        )
        if isinstance(verdicts, Failure):
            return verdicts
        false = [claim for name, claim in claims.items() if verdicts[name] == "false"]
        return Measured(
            values={"propositions": len(claims), "propositions_true": len(claims) - len(false)},
            notes={"False propositions": "\n".join(false)} if false else {},
        )


def _together(identity: str, captions: Sequence[Captions]) -> Captions:
    failed = [one.failure for one in captions if one.failure is not None]
    if failed:
        return Captions(
            id=identity, failure=f"{len(failed)} of its {len(captions)} captions failed: {failed[0]}"
        )
    return Captions(id=identity, texts=tuple(one.texts[0] for one in captions))


def _option(question: str, letter: str) -> str:
    """A letter with its option, where that can be made out."""
    return "nothing" if letter == _UNKNOWN else _options(question).get(letter, letter)


def letters_of(question: str, answer: str) -> tuple[str, ...]:
    """The letters of the options that stand in a question's text. Where the right one cannot be made out A to H are
    offered, or all: which letters there are must not tell it."""
    found = tuple(_options(question))
    return found if answer in found else _MANY if answer in _MANY else tuple(ascii_uppercase)


def _options(question: str) -> dict[str, str]:
    """The options in a question's text by their letters, on lines of their own or in one: from A, as they follow."""
    starts: list[re.Match[str]] = []
    for found in _OPTION.finditer(question):
        if found[1] == ascii_uppercase[len(starts) :][:1]:
            starts.append(found)
    ends = [found.start() for found in starts[1:]] + [len(question)]
    return {found[1]: question[found.start() : end].strip() for found, end in zip(starts, ends, strict=False)}
