"""VCapsBench: how many of about 20 questions about a video its caption answers, and how many of these rightly.

Public implementation: github.com/GXYM/VCapsBench (Zhang et al., arXiv 2505.23484): 5,677 videos, 109,796 questions of
21 dimensions, each a call of its own that sees the caption alone and says Yes, No or Unanswerable.

Of N questions n1 were answered rightly, n0 wrongly and n2 not at all:

    AR = n1 / N          accuracy rate
    IR = n0 / (N - n2)   inconsistency rate, the lower the better
    CR = 1 - n2 / N      coverage rate

so AR = CR (1 - IR). An answer that equals the right one is right, also where that is "Unanswerable".

``official`` splits an entry "dimension*question*answer" at every asterisk, so that a question with one in it loses its
end and its answer; ``strict`` splits at the first and the last, takes "Yes." for "Yes", and leaves out an entry whose
answer is none of the three, about which every caption would be wrong. In both modes an entry without two asterisks is
left out, which is told, and so is a question whose answer failed; the public code takes the answer of the question
before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from vcap_jax.data.manifest import Sample
from vcap_jax.evals.answers import Sentences, typed, word
from vcap_jax.evals.asking import Asker, Stage
from vcap_jax.evals.benchmarks.benchmark import Benchmark, Measured, Mode, Task
from vcap_jax.evals.statistics import Statistic, ratio
from vcap_jax.reward.failures import Failure

UNANSWERABLE = "unanswerable"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with its right answer: yes, no or unanswerable."""

    dimension: str
    question: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer from the caption."""

    analysis: Sentences
    answer: Annotated[Literal["Yes", "No", "Unanswerable"], word(str.capitalize)]


class VCapsBench(Benchmark[tuple[Asked, ...]]):
    """See the module."""

    name = "vcapsbench"
    modality = "video"
    source = (
        "Take VCapsBench_100KQA.jsonl and the videos, as videos/, from huggingface.co/datasets/somos99/VCapsBench "
        "(its page states the terms)"
    )
    worst = "accuracy"

    def load(self) -> Iterable[Task[tuple[Asked, ...]]]:
        prompt = self.caption_request()
        files = self.folder.media("video", "videos", "video", "")
        left_out = 0
        for where, row in self.folder.objects(
            self.folder.file("VCapsBench_100KQA.jsonl", "testing_5k.jsonl")
        ):
            name = self.folder.text(row, "video_id", where)
            entries = self.folder.texts(row, "qa", where)
            asked = [split_entry(entry, self.options.mode) for entry in entries]
            left_out += asked.count(None)
            sample = Sample(id=name, video=files.expected(name), prompt=prompt, origin=where)
            yield Task(sample=sample, row=tuple(one for one in asked if one is not None))
        if left_out:
            self.say(
                f"{self.name}: {left_out} entries are no DIMENSION*QUESTION*ANSWER, or have an answer that nobody can "
                "give, and are left out"
            )

    def make_stages(self) -> Iterable[Stage]:
        return (self.stage("question", "CAPTION", "QUESTION", role="reasoner", temperature=0.0),)

    @classmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        return {
            "ar": ratio("right", "questions", scale=100),
            "ir": ratio("wrong", "answered", scale=100),
            "cr": ratio("answered", "questions", scale=100),
        }

    async def measure(self, task: Task[tuple[Asked, ...]], caption: str, asker: Asker) -> Measured:
        replies = await asyncio.gather(*(self._reply(asked, caption, asker) for asked in task.row))
        counts = Counter[str]()
        wrong: list[str] = []
        failed: list[Failure] = []
        for asked, reply in zip(task.row, replies, strict=True):
            if isinstance(reply, Failure):
                failed.append(reply)
                continue
            outcome = outcome_of(reply.answer, asked.answer)
            counts[outcome] += 1
            if outcome == "wrong":
                wrong.append(f"{asked.question} {reply.answer}, it is {asked.answer}: {reply.analysis}")
        lacking = {"questions": f"{len(failed)} of {len(replies)} failed, {failed[0]}"} if failed else {}
        if not counts:
            return Measured(lacking=lacking or {"questions": "there is none"})
        asked_for = counts.total()
        return Measured(
            values={
                "questions": asked_for,
                "right": counts["right"],
                "wrong": counts["wrong"],
                "answered": counts["right"] + counts["wrong"],
                "accuracy": counts["right"] / asked_for,
            },
            lacking=lacking,
            notes={"Questions answered wrongly": "\n".join(wrong)} if wrong else {},
        )

    async def _reply(self, asked: Asked, caption: str, asker: Asker) -> Reply | Failure:
        values = {"CAPTION": caption, "QUESTION": asked.question}
        return await asker.ask(self.stages["question"], typed(Reply), values)


def split_entry(entry: str, mode: Mode) -> Asked | None:
    """An entry of the public file; None for one without two asterisks, and in ``strict`` for one whose answer is none
    that can be given: every caption would be wrong about it."""
    parts = (entry if mode == "official" else entry.rstrip(" .*\n")).split("*")
    if len(parts) < 3:
        return None
    question, answer = (parts[1], parts[2]) if mode == "official" else ("*".join(parts[1:-1]), parts[-1])
    answer = answer.strip().casefold()
    if mode == "strict" and answer not in ("yes", "no", UNANSWERABLE):
        return None
    return Asked(dimension=parts[0], question=question.strip(), answer=answer)


def outcome_of(answer: str, gold: str) -> Literal["right", "wrong", "unanswered"]:
    """What an answer counts as."""
    given = answer.casefold()
    if given == gold.casefold():
        return "right"
    return "unanswered" if given == UNANSWERABLE else "wrong"
