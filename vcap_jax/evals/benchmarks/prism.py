"""Prism: a captioner describes an image, a language model answers questions from the description alone.

Four sets of multiple-choice questions, from the tables of VLMEvalKit: AI2D (3,088 questions), MMStar (1,500),
RealWorldQA (765) and V* (191). Qiao et al., Prism: A Framework for Decoupling and Assessing the Capabilities of VLMs
(2024). The figure is the share of right answers, over questions (micro).

One description of each image serves all its questions; ``query_aware`` asks for one per question, which tells the
captioner the question (not its options). Intervals are over pictures either way.

An answer is read by rule (``choices.read_choice``); where no rule reads it, the model is asked which option it means.
One that means none is wrong, and counted as ``unmatched``. No option is ever guessed: VLMEvalKit draws one at random,
without a seed, where its matcher fails, so its figures differ from run to run. Both modes are the same here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from vcap_jax.configuration import settings
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.answers import Sentences, chosen, typed
from vcap_jax.evals.asking import Asker, Stage
from vcap_jax.evals.benchmarks.benchmark import (
    Benchmark,
    BenchmarkOptions,
    Measured,
    Mode,
    Task,
    each_answered,
)
from vcap_jax.evals.benchmarks.choice_tables import ChoiceRow, read_table
from vcap_jax.evals.benchmarks.choices import READING, listed, read_choice
from vcap_jax.evals.statistics import Statistic, ratio
from vcap_jax.reward.failures import Failure

NONE = "none"


@settings
class PrismOptions(BenchmarkOptions):
    """Settings of the Prism benchmarks."""

    query_aware: bool = False
    """Show the captioner the question, one description for each."""
    pictures: str | None = None
    """Folder for the pictures, which the tables hold as text; null puts them beside the table."""


@dataclass(frozen=True)
class Answer:
    """A reasoner's answer."""

    Answer: Sentences


Rows = tuple[ChoiceRow, ...]
"""The questions about one description."""


class Prism(Benchmark[Rows]):
    """A description with its questions."""

    modality = "image"
    worst = "share"
    texts = "prism"
    reading = READING
    options_class = PrismOptions
    options: PrismOptions
    table: ClassVar[str]
    source = (
        "The tables of VLMEvalKit (https://opencompass.openxlab.space/utils/VLMEval/NAME.tsv; AI2D_TEST, MMStar, "
        "RealWorldQA, VStarBench) go there as they are; each data set has its own licence, see its authors' page"
    )

    def load(self) -> Iterable[Task[Rows]]:
        """One task for each image, or for each question where the captioner is told it."""
        pictures = self.options.pictures or self.folder.path / f"{Path(self.table).stem}-pictures"
        try:
            rows = read_table(self.folder.file(self.table), Path(pictures), self.say)
        except ManifestError as error:
            raise self.folder.wrong(self.table, str(error)) from error
        aware = self.options.query_aware
        by_description: dict[str, list[ChoiceRow]] = {}
        for row in rows:
            by_description.setdefault(row.index if aware else str(row.image), []).append(row)
        if aware:
            asking = self.template("caption_query_aware", "QUESTION", plain=True)
        else:
            asking = self.template("caption", plain=True)
        for several in by_description.values():
            first = several[0]
            prompt = asking.fill({"QUESTION": first.question} if aware else {}).text
            sample = Sample(id=first.index, images=(first.image,), prompt=prompt, origin=self.table)
            # Pictures are named by their content: questions about one picture are not independent.
            yield Task(sample=sample, row=tuple(several), of=first.image.stem)

    def hint(self, strange: Collection[str]) -> str:
        """Whether they are of other questions about the same pictures."""
        indices = {row.index for task in self.tasks for row in task.row}
        count = len(indices.intersection(strange))
        if not count:
            return ""
        return (
            f"; {count} are of other questions about pictures that have a caption already: options.query_aware=true "
            "has one for each question"
        )

    def make_stages(self) -> Iterable[Stage]:
        """``answer``: the question from the description; ``match``: which option an answer means."""
        return (
            self.stage("answer", "CAPTION", "QUESTION", role="reasoner", temperature=0.0),
            self.stage("match", "QUESTION", "ANSWER", role="reasoner", temperature=0.0, caption="ANSWER"),
        )

    async def measure(self, task: Task[Rows], caption: str, asker: Asker) -> Measured:
        """right, questions, unmatched: of the questions that were answered; share: right / questions."""
        ask = partial(self._answer, caption=caption, asker=asker)
        answered, lacking = await each_answered({row.index: row for row in task.row}, ask)
        if not answered:
            return Measured(lacking=lacking)
        right = sum(letter == row.answer for row, (_, letter) in answered)
        told = [
            f"{row.question} {given} ({letter or NONE}, it is {row.answer})"
            for row, (given, letter) in answered
        ]
        values = {
            "right": right,
            "questions": len(answered),
            "unmatched": sum(letter is None for _, (_, letter) in answered),
            "share": right / len(answered),
        }
        return Measured(values=values, lacking=lacking, notes={"Questions and answers": "\n".join(told)})

    async def _answer(self, row: ChoiceRow, caption: str, asker: Asker) -> tuple[str, str | None] | Failure:
        """The answer as given, and the letter that it means."""
        hint = f"Hint: {row.hint}\n" if row.hint else ""
        question = f"{hint}{row.question}\n{listed(row.options)}"
        answer = await asker.ask(
            self.stages["answer"], typed(Answer), {"CAPTION": caption, "QUESTION": question}
        )
        if isinstance(answer, Failure):
            return answer
        letter = read_choice(answer.Answer, row.options)
        if letter is not None or not answer.Answer.strip():
            return answer.Answer, letter
        shape = chosen({"Option": [*row.options, NONE]})
        meant = await asker.ask(self.stages["match"], shape, {"QUESTION": question, "ANSWER": answer.Answer})
        if isinstance(meant, Failure):
            return meant
        return answer.Answer, None if meant["Option"] == NONE else meant["Option"]

    @classmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        """accuracy: % of the questions; unmatched: % whose answer means no option."""
        return {
            "accuracy": ratio("right", "questions", scale=100),
            "unmatched": ratio("unmatched", "questions", scale=100),
        }


class PrismAi2d(Prism):
    """AI2D: diagrams of school science."""

    name = "prism-ai2d"
    table = "AI2D_TEST.tsv"


class PrismMmstar(Prism):
    """MMStar: questions that need the image."""

    name = "prism-mmstar"
    table = "MMStar.tsv"


class PrismRealWorldQa(Prism):
    """RealWorldQA: places and distances in photographs."""

    name = "prism-realworldqa"
    table = "RealWorldQA.tsv"


class PrismVStar(Prism):
    """V*: small things in large photographs."""

    name = "prism-vstar"
    table = "VStarBench.tsv"
