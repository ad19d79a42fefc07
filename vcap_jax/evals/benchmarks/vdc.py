"""VDC: questions about five aspects of a video, answered from a caption of each aspect.

Chai et al., AuroraCap: Efficient, Performant Video Detailed Captioning and a New Benchmark (2024); public code
rese1f/aurora, post_eval. 1,027 videos, 96,902 questions. One caption for each aspect, asked for with one of the
aspect's prompts, which a seed draws. A model answers each question from the caption, a model compares the answer with
the right one: yes or no, and 0 to 5. Of a video the share of yes (accuracy) and the mean score; of an aspect the mean
over its videos; the average is the mean of the five accuracies.

official leaves out videos whose accuracy or score is 0, and those where a question failed: a caption that is right
nowhere costs nothing. strict takes all videos (what others call all_videos), each over the questions that were judged.

``main_object.jsonl`` has four videos twice, of which the later counts, and two without questions, which are left out.
The ports in public harnesses are not usable: one lets the answers of a caption overwrite each other, another needs a
server at a fixed address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.answers import Sentences, typed, word
from vcap_jax.evals.asking import Asker, Stage
from vcap_jax.evals.benchmarks.benchmark import (
    Benchmark,
    BenchmarkOptions,
    Measured,
    Mode,
    Task,
    each_answered,
)
from vcap_jax.evals.statistics import Statistic, average, mean
from vcap_jax.reward.failures import Failure
from vcap_jax.system.digests import number_of
from vcap_jax.system.json_values import JsonValue

ASPECTS = ("background", "camera", "detailed", "main_object", "short")


@settings
class VdcOptions(BenchmarkOptions):
    """Settings of vdc."""

    seed: int = 0
    """Draws the prompt of each caption from its aspect's pool."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with the right answer."""

    text: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Aspect:
    """Of a video. name: one of ``ASPECTS``."""

    name: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Answer:
    """An answer from the caption."""

    Answer: Sentences


@dataclass(frozen=True)
class Comparison:
    """An answer beside the right one."""

    Verdict: Annotated[Literal["yes", "no"], word(str.lower)]
    Score: Annotated[float, Field(ge=0, le=5)]


class Vdc(Benchmark[Aspect]):
    """A caption of one aspect of one video."""

    name = "vdc"
    modality = "video"
    worst = "accuracy"
    options_class = VdcOptions
    options: VdcOptions
    source = (
        "background.jsonl, camera.jsonl, detailed.jsonl, main_object.jsonl and short.jsonl from "
        "https://github.com/rese1f/aurora (post_eval), the videos from "
        "https://huggingface.co/datasets/wchai/Video-Detailed-Caption (Apache-2.0)"
    )

    def load(self) -> Iterable[Task[Aspect]]:
        """Video after video, each with its aspects."""
        files = self.folder.media("video", "videos")
        pools = {aspect: self.template(aspect, plain=True).text.splitlines() for aspect in ASPECTS}
        asked = {aspect: self._questions(aspect) for aspect in ASPECTS}
        videos = dict.fromkeys(video for questions in asked.values() for video in questions)
        for video in videos:
            for aspect in ASPECTS:
                if questions := asked[aspect].get(video):
                    prompt = drawn_prompt(pools[aspect], f"{self.options.seed}/{aspect}/{video}")
                    file = files.expected(f"{video}.mp4")
                    sample = Sample(id=f"{aspect}:{video}", video=file, prompt=prompt, origin=aspect)
                    yield Task(sample=sample, row=Aspect(name=aspect, questions=questions))

    def _questions(self, aspect: str) -> dict[str, tuple[Question, ...]]:
        path = self.folder.file(f"{aspect}.jsonl", f"post_eval/{aspect}.jsonl")
        found: dict[str, tuple[Question, ...]] = {}
        for where, row in self.folder.objects(path):
            for video, questions in row.items():
                if not isinstance(questions, list):
                    raise self.folder.wrong(where, f"of {video} there is no list of questions")
                found[video] = tuple(self._question(question, where) for question in questions)
        return found

    def _question(self, row: JsonValue, where: str) -> Question:
        if not isinstance(row, dict):
            raise self.folder.wrong(where, f"{row!r:.80} is no question")
        text = self.folder.text
        return Question(text=text(row, "question", where), answer=text(row, "answer", where))

    def make_stages(self) -> Iterable[Stage]:
        """``answer`` from the caption; ``compare`` with the right answer."""
        return (
            self.stage("answer", "CAPTION", "QUESTION", role="reasoner", temperature=0.0),
            self.stage("compare", "QUESTION", "RIGHT_ANSWER", "ANSWER", temperature=0.0, caption="ANSWER"),
        )

    async def measure(self, task: Task[Aspect], caption: str, asker: Asker) -> Measured:
        """accuracy, score; both under the aspect's name, and under official/ASPECT where that counts them."""
        aspect = task.row

        async def one(question: Question) -> tuple[str, Comparison] | Failure:
            answer = await asker.ask(
                self.stages["answer"], typed(Answer), {"CAPTION": caption, "QUESTION": question.text}
            )
            if isinstance(answer, Failure):
                return answer
            values = {
                "QUESTION": question.text,
                "RIGHT_ANSWER": question.answer,
                "ANSWER": answer.Answer,
            }
            compared = await asker.ask(self.stages["compare"], typed(Comparison), values)
            return compared if isinstance(compared, Failure) else (answer.Answer, compared)

        numbered = {str(number): question for number, question in enumerate(aspect.questions, 1)}
        answered, lacking = await each_answered(numbered, one)
        if not answered:
            return Measured(lacking=lacking)
        judged = [comparison for _, (_, comparison) in answered]
        told = [
            f"{question.text} {answer} ({comparison.Verdict}, it is: {question.answer})"
            for question, (answer, comparison) in answered
        ]
        accuracy = sum(one.Verdict == "yes" for one in judged) / len(judged)
        score = sum(one.Score for one in judged) / len(judged)
        values = {"accuracy": accuracy, "score": score, "questions": float(len(judged))}
        values |= {f"accuracy/{aspect.name}": accuracy, f"score/{aspect.name}": score}
        if accuracy and score and not lacking:
            values |= {f"official/accuracy/{aspect.name}": accuracy, f"official/score/{aspect.name}": score}
        return Measured(values=values, lacking=lacking, notes={"Questions and answers": "\n".join(told)})

    @classmethod
    def cluster(cls, identity: str) -> str:
        """The video: its five captions are not independent."""
        return identity.partition(":")[2]

    @classmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        """accuracy (the average) and accuracy/ASPECT in %, score and score/ASPECT from 0 to 5."""
        prefix = "official/" if mode == "official" else ""
        accuracies = {aspect: mean(f"{prefix}accuracy/{aspect}", scale=100) for aspect in ASPECTS}
        scores = {aspect: mean(f"{prefix}score/{aspect}") for aspect in ASPECTS}
        return {
            "accuracy": average(*accuracies.values()),
            **{f"accuracy/{aspect}": statistic for aspect, statistic in accuracies.items()},
            "score": average(*scores.values()),
            **{f"score/{aspect}": statistic for aspect, statistic in scores.items()},
        }


def drawn_prompt(pool: Sequence[str], key: str) -> str:
    """A line of the pool, the same for the same key; blank lines are none."""
    lines = [line for line in pool if line.strip()]
    return lines[number_of(key) % len(lines)].strip()
