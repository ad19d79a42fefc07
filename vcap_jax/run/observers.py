"""What a user looks at while a run goes on: samples of groups on a page, and plots."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import replace

from PIL import Image

from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.grpo.records import GroupRecord, StepReport
from vcap_jax.report.evaluations import evaluations_of
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.pages import told_if_not_drawn
from vcap_jax.report.plots import plot_run
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.samples import (
    Sample,
    SampleCandidate,
    SampleFact,
    SampleFrame,
    SampleRows,
    SamplesWriter,
    evenly,
)
from vcap_jax.report.samples_page import write_samples_page
from vcap_jax.report.world_facts import fact_list
from vcap_jax.reward.group import GroupScores
from vcap_jax.run.config import RunConfig
from vcap_jax.run.judge_domain import domain_warning
from vcap_jax.world.splits import EmbeddedData

_MOST_FRAMES = 16
_LONGEST, _LONGEST_OF_SEVERAL = 512, 288
"""Pixels of a picture's longer side on a page: frames are shown small, and 150 groups of 16 of them stand on one."""


class Shown:
    """Which samples a run has shown: how often, and at which step the last time."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, int]] = {}

    def add(self, identity: str, step: int) -> None:
        """A sample is shown at a step; steps never go back."""
        self._shown[identity] = (self._shown.get(identity, (0, 0))[0] + 1, step)

    def choose(self, identities: Sequence[str], most: int) -> list[int]:
        """Chooses at most ``most`` of a step's groups to show; returns their positions in the step.

        identities: the groups' samples. Each sample is taken once. Those shown least often come first,
        among them those shown longest ago, then in the step's order.
        """
        first: dict[str, int] = {}
        for index, identity in enumerate(identities):
            first.setdefault(identity, index)
        order = sorted(first, key=lambda identity: (*self._shown.get(identity, (0, 0)), first[identity]))
        return [first[identity] for identity in order[:most]]


class RunObserver:
    """Called after every step; writes samples and redraws the pictures as often as the configuration says.

    world: where given, facts of the captions are shown as true, false or missing. done: steps of earlier
    processes; samples logged after them are dropped, for they will be written again. total: steps of the whole run.
    say: where it is told that something could not be drawn.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        world: EmbeddedData | None,
        *,
        done: int,
        total: int,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._folder, self._world, self._total = config, folder, world, total
        self._say = say
        self._writer = SamplesWriter(folder.samples)
        self._writer.truncate_after(done)
        self._rows = SampleRows(folder.samples)
        # From what is written, so that a resumed run goes on like one left alone.
        self._shown = Shown()
        for sample in self._rows.update():
            self._shown.add(sample.id, sample.step)

    def __call__(self, report: StepReport) -> list[Sample]:
        """Shows what is due after the step; the samples that are shown."""
        logging = self._config.logging
        shown: list[Sample] = []
        if report.step in (1, self._total) or report.step % logging.samples_every == 0:
            chosen = self._shown.choose([r.sample_id for r in report.records], logging.samples_per_step)
            shown = [self._sample(report, report.records[index]) for index in chosen]
            self._writer.write(shown)
            for index in chosen:
                self._shown.add(report.records[index].sample_id, report.step)
        if report.step % logging.plot_every == 0:
            self._draw()
        return shown

    def close(self) -> None:
        self._draw()
        self._writer.close()

    def _draw(self) -> None:
        folder = self._folder
        with told_if_not_drawn(folder.plots, self._say):
            rows = read_metrics(folder.metrics)
            if rows:
                plot_run(rows, folder.plots, title=folder.title, evaluations=evaluations_of(folder))
        with told_if_not_drawn(folder.samples_page, self._say):
            samples = self._rows.update()
            if samples:
                warning = domain_warning(self._config, folder)
                write_samples_page(samples, folder.samples_page, title=folder.title, warning=warning)

    def _sample(self, report: StepReport, record: GroupRecord) -> Sample:
        identity = record.sample_id
        facts = self._facts(identity)
        return Sample(
            step=report.step,
            id=identity,
            frames=frames_of(record.example.media),
            candidates=tuple(
                replace(
                    shown_candidate(record.scores, g, caption),
                    advantage=float(report.advantages.advantages[record.index, g]),
                    truncated=bool(record.truncated[g]),
                    facts=facts(caption),
                )
                for g, caption in enumerate(record.captions)
            ),
            reference=record.reference,
            prompt=record.example.sample.prompt or "",
            reference_facts=facts(record.reference) if record.reference else (),
        )

    def _facts(self, identity: str) -> Callable[[str], tuple[SampleFact, ...]]:
        if self._world is None:
            return lambda caption: ()
        scene = self._world.train_scenes[identity]
        return lambda caption: fact_list(scene, caption)


def shown_candidate(scores: GroupScores, place: int, caption: str) -> SampleCandidate:
    """A group's caption number ``place`` with what it earned, for a page."""
    score, window = scores.candidates[place], scores.window
    return SampleCandidate(
        caption=caption,
        reward=score.reward,
        full_reward=scores.full_reward,
        scores=dict(score.components),
        notes=dict(score.notes),
        failure=None if score.failure is None else str(score.failure),
        segment=None if window is None else (window.start, window.end),
    )


def frames_of(media: EncodedMedia) -> tuple[SampleFrame, ...]:
    """The pictures the judge saw, shrunk for the page; of a long video an evenly spaced choice."""
    pictures = evenly(media.pictures, _MOST_FRAMES)
    frames = []
    longest = _LONGEST if len(pictures) == 1 else _LONGEST_OF_SEVERAL
    for encoded in pictures:
        image = Image.open(io.BytesIO(encoded.data))
        data, mime = encoded.data, encoded.mime
        if max(image.size) > longest:
            image.thumbnail((longest, longest))
            buffer = io.BytesIO()
            image.convert("RGB").save(buffer, "JPEG", quality=82)
            data, mime = buffer.getvalue(), "image/jpeg"
        url = f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"
        frames.append(SampleFrame(url=url, width=image.width, height=image.height, timestamp=encoded.seconds))
    return tuple(frames)
