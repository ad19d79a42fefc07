"""What a captioner is asked for beside whole samples: answers to questions, and windows of videos.

Answers stand behind the reference: a captioner leaves out by habit what it could tell if it were asked, and a reference
that mentions it says where to look. Windows get references of their own, drawn as the local term of the reward draws
them. The items of both are samples of their own, so that they go through the same pipeline as whole ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from vcap_jax.data.manifest import Sample
from vcap_jax.data.media import TimeWindow
from vcap_jax.reward.config import LocalConfig
from vcap_jax.reward.segments import parse_segments, sample_window
from vcap_jax.run.config import ReferenceConfig
from vcap_jax.system.digests import number_of
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
        return {"questions": list(self.questions), "questions_per_sample": self.each, "questions_told": True}

    def items(self, samples: Sequence[Sample], *, seed: int) -> list[Sample]:
        """``each`` items of every sample, named ``ID?k``. A sample's questions are in the order of the list."""
        return [
            dataclasses.replace(sample, id=f"{sample.id}?{k}", prompt=question)
            for sample in samples
            for k, question in enumerate(self._drawn(sample.id, seed))
        ]

    def _drawn(self, identity: str, seed: int) -> list[str]:
        def lot(number: int) -> int:
            return number_of(f"question/{seed}/{identity}/{number}")

        chosen = sorted(range(len(self.questions)), key=lot)[: self.each]
        return [self.questions[number] for number in sorted(chosen)]


def with_answers(references: Sequence[str], answers: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Each reference with an answer to each question behind it, a line each.

    answers: of each question as many as there are references, the question before each; where some were left out, the
    last stands for them.
    """
    return tuple(
        "\n".join([text, *(said[min(number, len(said) - 1)] for said in answers)])
        for number, text in enumerate(references)
    )


class WindowDraw:
    """Draws window k of a video: the same for the same seed, sample and k.

    Items are named ``ID#k``. What was drawn is kept by item, for a video's length is known only when its file has been
    read.
    """

    def __init__(self, local: LocalConfig, *, seed: int, prompt: str) -> None:
        self._local, self._seed, self._prompt = local, seed, prompt
        self._drawn: dict[str, TimeWindow] = {}

    def items(self, samples: Sequence[Sample], per_video: int, skip: int) -> list[Sample]:
        """``per_video`` items of every sample but for the first ``skip``."""
        items = [
            dataclasses.replace(sample, id=f"{sample.id}#{k}", prompt=self._prompt)
            for sample in samples
            for k in range(per_video)
        ]
        return items[skip:]

    def __call__(self, item: Sample, duration: float) -> TimeWindow:
        """The item's window; called by the threads that read files."""
        identity, _, k = item.id.rpartition("#")
        window = sample_window(
            seed=self._seed,
            step=int(k),
            sample_id=identity,
            duration=duration,
            fraction=self._local.fraction,
            min_seconds=self._local.min_seconds,
        )
        self._drawn[item.id] = window
        return window

    def drawn(self, item: Sample) -> TimeWindow:
        return self._drawn[item.id]


def description(caption: str) -> str:
    """The text of a window's caption without its times, which count from the window's beginning.

    A captioner trained on whole videos divides a window into segments as well: their texts are joined.
    """
    segments = parse_segments(caption).segments
    return " ".join(segment.text for segment in segments) if segments else caption.strip()
