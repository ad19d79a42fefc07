"""DeCapBench: DCScore of detailed captions of the 400 ImageInWords pictures, against 21,215 facts that persons wrote.

Public implementation: github.com/MAGAer13/DeCapBench (Ye et al., "Painting with Words: Elevating Detailed Image
Captioning with Benchmark and Alignment Learning", ICLR 2025). The paper's average is the mean of precision and recall.

A caption is taken apart into facts (text, temperature 1). They are matched to the person's facts (text, temperature 1)
and verified by the picture and the person's caption (temperature 0.3), three times each; every pair of a matching and
a verification is a trial of the formula (``dcscore``), and a picture's score the mean over the nine.

``official`` differs in two things: among the facts that describe what is seen, the weight of those that share a match
counts the others too; and a caption without a fact, or without one that describes what is seen, has no score and is
left out. ``strict`` weighs among those facts alone, and gives such a caption 0. Facts are told apart by number; the
public code goes by their wording, so that two of the same wording become one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vcap_jax.data.manifest import Sample
from vcap_jax.evals.answers import Digit, chosen, typed
from vcap_jax.evals.asking import LONG, Asker, Stage, listed, numbered
from vcap_jax.evals.benchmarks.benchmark import Benchmark, Measured, Mode, Task
from vcap_jax.evals.benchmarks.dcscore import Trial, dcscore
from vcap_jax.evals.statistics import Statistic, average, mean
from vcap_jax.reward.failures import Failure

TRIES = 3
"""Matchings, and verifications, of a caption's facts."""

_NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Annotated:
    """What persons wrote of a picture: a caption, and the facts in it."""

    caption: str
    facts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact of a caption. relevance: 1 if it describes what is seen."""

    fact: str
    relevance: Digit


@dataclass(frozen=True, kw_only=True)
class Facts:
    """An answer of the first stage."""

    facts: list[Fact]


class DeCapBench(Benchmark[Annotated]):
    """See the module."""

    name = "decapbench"
    modality = "image"
    source = (
        "Take IIW_400_data.jsonl from github.com/MAGAer13/DeCapBench (no licence is stated) and the pictures of "
        "IIW-400, as images/, from github.com/google/imageinwords"
    )
    worst = "dcscore"

    def load(self) -> Iterable[Task[Annotated]]:
        prompt = self.caption_request()
        files = self.folder.media("image", "iiw_data/images", "images", "")
        for where, row in self.folder.objects(self.folder.file("IIW_400_data.jsonl")):
            name = self.folder.text(row, "image_name", where)
            facts = self.folder.texts(row, "oracle_facts", where)
            if not facts:
                raise self.folder.wrong(where, '"oracle_facts" is empty')
            caption = self.folder.text(row, "oracle_caption", where)
            images = (self.folder.picture(files, name),)
            sample = Sample(id=name, images=images, prompt=prompt, references=(caption,), origin=where)
            yield Task(sample=sample, row=Annotated(caption=caption, facts=facts))

    def make_stages(self) -> Iterable[Stage]:
        return (
            self.stage("decompose", "CAPTION", temperature=1.0, max_tokens=LONG),
            self.stage("match", "ORACLE_FACTS", "FACTS", temperature=1.0, max_tokens=LONG, caption="FACTS"),
            self.stage(
                "verify",
                "REFERENCE",
                "FACTS",
                temperature=0.3,
                max_tokens=LONG,
                caption="FACTS",
                at_once=True,
            ),
        )

    @classmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        precision, recall = mean("precision", scale=100), mean("recall", scale=100)
        return {
            "precision": precision,
            "recall": recall,
            "dcscore": mean("dcscore", scale=100),
            "average": average(precision, recall),
        }

    async def measure(self, task: Task[Annotated], caption: str, asker: Asker) -> Measured:
        split = await asker.ask(self.stages["decompose"], typed(Facts), {"CAPTION": caption})
        if isinstance(split, Failure):
            return Measured(lacking={"decompose": str(split)})
        facts = [Fact(fact=" ".join(f.fact.split()), relevance=f.relevance) for f in split.facts]
        facts = [fact for fact in facts if fact.fact]
        oracle = task.row.facts
        relevant = [fact.relevance == 1 for fact in facts]
        matchings: list[list[int | None]] | Failure = [[]]
        verified: list[list[bool]] | Failure = [[]]
        if facts:
            matchings, verified = await asyncio.gather(
                self._matched(task, facts, asker), self._verified(task, facts, asker)
            )
        if isinstance(matchings, Failure):
            return Measured(lacking={"match": str(matchings)})
        if isinstance(verified, Failure):
            return Measured(lacking={"verify": str(verified)})
        trials = [
            Trial(right=right, matched=matched, relevant=relevant, oracle=len(oracle))
            for right in verified
            for matched in matchings
        ]
        score = dcscore(trials, official=self.options.mode == "official")
        if score is None:
            return Measured(lacking={"dcscore": "the caption has no fact that describes what is seen"})
        wrong = [fact.fact for fact, right in zip(facts, verified[0], strict=True) if not right]
        missed = [fact for k, fact in enumerate(oracle) if k not in matchings[0]]
        notes = {"Wrong facts": "\n".join(wrong), "Facts not mentioned": "\n".join(missed)}
        return Measured(
            values={**vars(score), "dcscore": score.dcscore, "facts": len(facts)},
            notes={heading: text for heading, text in notes.items() if text},
        )

    async def _matched(
        self, task: Task[Annotated], facts: Sequence[Fact], asker: Asker
    ) -> list[list[int | None]] | Failure:
        """Of each matching, the number of each fact's counterpart."""
        numbers = {f"O{k}": k for k in range(len(task.row.facts))}
        names = numbered("P", (fact.fact for fact in facts))
        answers = await asker.several(
            TRIES,
            self.stages["match"],
            chosen(dict.fromkeys(names, (*numbers, _NONE))),
            {
                "ORACLE_FACTS": "\n".join(f"O{k}: {fact}" for k, fact in enumerate(task.row.facts)),
                "FACTS": listed(names),
            },
        )
        if isinstance(answers, Failure):
            return answers
        return [[numbers.get(answer[name]) for name in names] for answer in answers]

    async def _verified(
        self, task: Task[Annotated], facts: Sequence[Fact], asker: Asker
    ) -> list[list[bool]] | Failure:
        """Of each verification, whether each fact is right."""
        shown = await asker.view(self.pictures(task.sample))
        if isinstance(shown, Failure):
            return shown
        names = numbered("P", (fact.fact for fact in facts))
        answers = await asker.several(
            TRIES,
            self.stages["verify"],
            chosen(dict.fromkeys(names, ("1", "0"))),
            {"REFERENCE": task.row.caption, "FACTS": listed(names)},
            shown=shown,
        )
        if isinstance(answers, Failure):
            return answers
        return [[answer[name] == "1" for name in names] for answer in answers]
