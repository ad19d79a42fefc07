"""DREAM-1K by AutoDQ: are a video's events in its description, and are the described events in the video?

Wang et al., Tarsier: Recipes for Training and Evaluating Large Video Description Models (2024); public code
bytedance/tarsier. 1,000 clips of five sources. A model lists the events of a description (one call), says of each gold
event whether the description entails it (recall), and of each described event whether the reference entails it
(precision). Only entailment counts. Recall and precision are means over the clips of a source, then over the sources;
F1 is the harmonic mean of the two, not a mean of F1s. Beside it F1 of the clips with so many shots, subjects and
events, in the public code's buckets: there recall and precision are means over the bucket's clips.

official: texts are lower-cased before they are asked about; a description without events has precision 1, a clip
without gold events recall 1; a clip of which a stage failed is left out. strict: texts as they are; what has no events
has no precision or recall, and enters neither mean; a failed stage takes only its own value.

Two faults of ports are not here: an event list that cannot be read is a failure, not a list without events (worth 1),
and a verdict that cannot be read is none, not a 0. Figures of different judges are not comparable: one model's F1 was
42.0 and 31.5 with two providers of GPT-3.5.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

from vcap_jax.data.manifest import Sample
from vcap_jax.evals.answers import chosen, typed
from vcap_jax.evals.asking import Asker, Stage, listed, numbered
from vcap_jax.evals.benchmarks.benchmark import Benchmark, Measured, Mode, Task
from vcap_jax.evals.statistics import Statistic, average_of_present, harmonic, mean
from vcap_jax.reward.failures import Failure
from vcap_jax.system.json_values import JsonError, JsonObject, as_list, as_number, as_object, as_text

SOURCES = ("movie_animation", "movie_live_action", "vertical_video", "videvo", "youtube")
BUCKETS: Mapping[str, tuple[int, ...]] = {"shots": (1, 2, 3), "subjects": (1, 2, 3), "events": (3, 5, 7)}
"""The largest number of each bucket but the last, which has all above."""
_LEFT_OPEN = "<placeholder>"
"""In the published file, where the name of a video would be."""
RELATIONS = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True, kw_only=True)
class Clip:
    """source: one of ``SOURCES``. reference: the human's description. events: those of it. buckets: the clip's, of
    each kind of ``BUCKETS`` that its row counts."""

    source: str
    reference: str
    events: tuple[str, ...]
    buckets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Events:
    """Events of a description."""

    Events: list[str]


class Dream1k(Benchmark[Clip]):
    """Events of one description each."""

    name = "dream1k"
    modality = "video"
    worst = "f1"
    source = (
        "DREAM-1k.jsonl from https://github.com/bytedance/tarsier (data/annotations, Apache-2.0), the videos from "
        "https://huggingface.co/datasets/omni-research/DREAM-1K"
    )

    def load(self) -> Iterable[Task[Clip]]:
        """One task for each clip, in the order of the file; both published forms of a row are read."""
        path = self.folder.file("DREAM-1k.jsonl", "data/annotations/DREAM-1k.jsonl")
        files = self.folder.media("video", "videos")
        prompt = self.template("caption", plain=True).text
        try:
            for where, row in self.folder.objects(path):
                identity, video, clip = read_clip(row, where)
                sample = Sample(id=identity, video=files.expected(video), prompt=prompt, origin=str(path))
                yield Task(sample=sample, row=clip)
        except JsonError as error:
            raise self.folder.wrong(path, str(error)) from error

    def make_stages(self) -> Iterable[Stage]:
        """``events`` of the description; ``recall`` and ``precision`` ask for entailment, with one text."""
        events = self.stage("events", "CAPTION")
        entailment = self.template("entailment", "CAPTION", "EVENTS")
        return (
            events,
            Stage(name="recall", template=entailment),
            Stage(name="precision", template=entailment, caption="EVENTS"),
        )

    async def measure(self, task: Task[Clip], caption: str, asker: Asker) -> Measured:
        """recall, precision, f1 of the clip; the first two under its source and buckets, too."""
        clip, official = task.row, self.options.mode == "official"
        ours, theirs = (caption.lower(), clip.reference.lower()) if official else (caption, clip.reference)
        lacking: dict[str, str] = {}
        values: dict[str, float] = {}
        notes: dict[str, str] = {}
        answer = await asker.ask(self.stages["events"], typed(Events), {"CAPTION": ours})
        described = (
            answer if isinstance(answer, Failure) else tuple(filter(None, map(str.strip, answer.Events)))
        )
        for stage, text, events in (("recall", ours, clip.events), ("precision", theirs, described)):
            relations = await self._relations(stage, text, events, asker)
            if isinstance(relations, Failure):
                lacking[stage] = str(relations)
                continue
            if relations or official:
                entailed = sum(relation == "entailment" for relation, _ in relations)
                values[stage] = entailed / len(relations) if relations else 1.0
            notes[stage.capitalize()] = "\n".join(f"{relation}: {event}" for relation, event in relations)
        if official and lacking:
            return Measured(lacking=lacking, notes=notes)
        both = dict(values)
        for of in (clip.source, *clip.buckets):
            values |= {f"{name}/{of}": value for name, value in both.items()}
        if len(both) == 2:
            total = both["recall"] + both["precision"]
            values["f1"] = 2 * both["recall"] * both["precision"] / total if total else 0.0
        return Measured(values=values, lacking=lacking, notes=notes)

    async def _relations(
        self, stage: str, text: str, events: Sequence[str] | Failure, asker: Asker
    ) -> list[tuple[str, str]] | Failure:
        """Each event with its relation to the text."""
        if isinstance(events, Failure) or not events:
            return events if isinstance(events, Failure) else []
        asked = numbered("E", events)
        values = {"CAPTION": text, "EVENTS": listed(asked)}
        answer = await asker.ask(self.stages[stage], chosen(dict.fromkeys(asked, RELATIONS)), values)
        if isinstance(answer, Failure):
            return answer
        return [(answer[name], event) for name, event in zip(asked, events, strict=True)]

    @classmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        """f1, recall, precision, and f1 of each source and bucket, in %."""
        recalls = {source: mean(f"recall/{source}", scale=100) for source in SOURCES}
        precisions = {source: mean(f"precision/{source}", scale=100) for source in SOURCES}
        recall = average_of_present(*recalls.values())
        precision = average_of_present(*precisions.values())
        each = {f"f1/{source}": harmonic(recalls[source], precisions[source]) for source in SOURCES}
        for name in (name for kind in BUCKETS for name in buckets(kind)):
            each[f"f1/{name}"] = harmonic(
                mean(f"recall/{name}", scale=100), mean(f"precision/{name}", scale=100)
            )
        return {"f1": harmonic(recall, precision), "recall": recall, "precision": precision, **each}


def buckets(kind: str) -> tuple[str, ...]:
    """Names of a kind's buckets: "events_to_3", "events_4_to_5", "events_6_to_7", "events_from_8"."""
    ends = BUCKETS[kind]
    middle = (
        f"{kind}_{low + 1}_to_{high}" if high > low + 1 else f"{kind}_{high}" for low, high in pairwise(ends)
    )
    return (f"{kind}_to_{ends[0]}", *middle, f"{kind}_from_{ends[-1] + 1}")


def read_clip(row: JsonObject, where: str) -> tuple[str, str, Clip]:
    """A row's id, the name of its video and what is known of it. Raises JsonError.

    The older form has ``text`` {prompt, response}, the newer one ``messages``, the last of them with the ``reference``.
    Where neither names the video, it is ``vid``.mp4.
    """
    source = as_text(row.get("dataset"), f"{where}: dataset").rpartition("/")[2]
    if source not in SOURCES:
        raise JsonError(f"{where}: dataset is {source!r}, none of {', '.join(SOURCES)}")
    extra = as_object(row.get("extra_info"), f"{where}: extra_info")
    events = [
        as_text(event, f"{where}: events") for event in as_list(extra.get("events"), f"{where}: events")
    ]
    video, reference = f"{row.get('vid', row.get('idx'))}.mp4", row.get("text")
    if isinstance(reference, Mapping):
        reference = reference.get("response")
    for message in as_list(row.get("messages", []), f"{where}: messages"):
        for part in as_list(as_object(message, f"{where}: messages").get("content"), f"{where}: content"):
            content = as_object(part, f"{where}: content")
            reference = content.get("reference") or reference
            if isinstance(content.get("video"), Mapping):
                name = as_object(content["video"], where).get("video_file")
                if name != _LEFT_OPEN:
                    video = PurePosixPath(as_text(name, f"{where}: video_file")).name
    counted = {kind: extra.get(f"n_{kind}") for kind in BUCKETS}
    clip = Clip(
        source=source,
        reference=as_text(reference, f"{where}: reference"),
        events=tuple(events),
        buckets=tuple(
            buckets(kind)[bisect_left(BUCKETS[kind], as_number(count, f"{where}: n_{kind}"))]
            for kind, count in counted.items()
            if count is not None
        ),
    )
    return str(row.get("idx", row.get("vid"))), video, clip
