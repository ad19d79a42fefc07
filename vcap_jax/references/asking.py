"""Questions that a captioner is asked about each sample beside its request; the answers stand behind the reference.

A captioner leaves out by habit what it could tell if it were asked. A reference that mentions it says where to look.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from vcap_jax.data.manifest import Sample
from vcap_jax.run.config import ReferenceConfig
from vcap_jax.system.json_values import JsonDict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking:
    """questions: all of them. each: how many a sample is asked, drawn from its id."""

    questions: tuple[str, ...]
    each: int

    @classmethod
    def of(cls, config: ReferenceConfig) -> Asking | None:
        """As a run's references are to be made; None where nothing is asked."""
        each = config.questions_per_sample or len(config.questions)
        return cls(questions=config.questions, each=each) if config.questions else None

    def settings(self) -> JsonDict:
        """As a pool's header has it."""
        return {"questions": list(self.questions), "questions_per_sample": self.each}

    def items(self, samples: Sequence[Sample], *, seed: int, skip: int) -> list[Sample]:
        """``each`` items of every sample but for the first ``skip``: samples of their own, named ``ID?k``, so that they
        go through the same pipeline. A sample's questions are in the order of the list."""
        items = [
            dataclasses.replace(sample, id=f"{sample.id}?{k}", prompt=question)
            for sample in samples
            for k, question in enumerate(self._drawn(sample.id, seed))
        ]
        return items[skip:]

    def _drawn(self, identity: str, seed: int) -> list[str]:
        def lot(number: int) -> bytes:
            return hashlib.blake2b(f"question/{seed}/{identity}/{number}".encode(), digest_size=8).digest()

        chosen = sorted(range(len(self.questions)), key=lot)[: self.each]
        return [self.questions[number] for number in sorted(chosen)]


def with_answers(references: Sequence[str], answers: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Each reference with an answer to each question behind it.

    answers: to each question as many as there are references; where some were left out, the last stands for them.
    """
    return tuple(
        " ".join([text, *(said[min(number, len(said) - 1)] for said in answers)])
        for number, text in enumerate(references)
    )
