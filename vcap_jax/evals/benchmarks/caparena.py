"""CapArena-Auto: pairwise battles of captions against three baselines, judged with the image in view.

Cheng et al., CapArena: Benchmarking and Analyzing Detailed Image Captioning in the LLM Era (2025); public code
njucckevin/CapArena. 600 images, 200 for each baseline. Of each baseline wins minus losses, in % of its images, so -100
to 100 (the public (wins - losses) / 2 with 200 images); the score is the mean over the baselines.

official asks one order of each pair. Which one is drawn by the sample's id here; in public it is drawn without a seed,
so the judge's preference for a place stays in the figure and changes with every run. strict asks both orders and takes
their mean; ``consistent`` says how often both agree. In public a battle without a judgment, or with one that carries
markup, counts as a tie; here it leaves the count, in both modes.

The mean number of words stands beside the score, because judges like length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from vcap_jax.data.manifest import Sample
from vcap_jax.evals.answers import Shape
from vcap_jax.evals.asking import Asker, Stage
from vcap_jax.evals.benchmarks.benchmark import Benchmark, Measured, Mode, Task
from vcap_jax.evals.statistics import Statistic, average_of_present, mean
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.json_objects import head
from vcap_jax.reward.prompts import object_schema
from vcap_jax.system.digests import number_of
from vcap_jax.system.json_values import JsonError, JsonObject, JsonValue, as_object, as_text
from vcap_jax.system.words import word_count

BASELINES: Mapping[str, str] = {
    "gpt": "GPT-4o-0806",
    "cog": "CogVLM2-llama3-chat-19B",
    "cpm": "MiniCPM-V2.6-8B",
}
"""The baselines by their short names."""

Judgment = Literal["first", "second", "tie"]

# "Caption 1 is the slightly better one than caption 2", but not "Caption 1 is worse".
_BETTER = (
    r"\s+(?:wins|is\s+(?:(?:the|slightly|somewhat|marginally|clearly|much|significantly)\s+)*"
    r"(?:better|best|preferred|superior|winner))(?:\s+(?:one|caption|overall))*(?:\s+(?:than|to)\s+(?:caption\s*)?[12])?"
)
_JUDGMENT = re.compile(rf"(?:caption\s*)?(1|2)(?:{_BETTER})?|tie", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Battle:
    """baseline: short name. opponent: its caption. reference: the human's."""

    baseline: str
    opponent: str
    reference: str


class CapArenaAuto(Benchmark[Battle]):
    """Battles of one caption each."""

    name = "caparena-auto"
    modality = "image"
    worst = "points"
    reading = 2  # 1 took "Caption 1 is worse" for a judgment that it is better
    source = (
        "caparena_auto_600.json and the 600 images: links in the README of https://github.com/njucckevin/CapArena "
        "(no licence file; images of DOCCI, CC BY 4.0)"
    )

    def load(self) -> Iterable[Task[Battle]]:
        """One task for each image, by its file name."""
        path = self.folder.file("caparena_auto_600.json")
        files = self.folder.media("image", "all_images")
        prompt = self.caption_request()
        try:
            for name, entry in self.folder.object(path).items():
                yield Task(
                    sample=Sample(id=name, images=(files.expected(name),), prompt=prompt, origin=str(path)),
                    row=_battle(as_object(entry, f"{path}: {name}"), f"{path}: {name}"),
                )
        except JsonError as error:
            raise self.folder.wrong(path, str(error)) from error

    def make_stages(self) -> Iterable[Stage]:
        """``compare``: the image, the reference, two captions; at the public temperature."""
        return (self.stage("compare", "REFERENCE", "FIRST", "SECOND", temperature=0.1, caption="SECOND"),)

    async def measure(self, task: Task[Battle], caption: str, asker: Asker) -> Measured:
        """points: 1 a win, 0 a tie, -1 a loss; the same under the baseline's name; words; consistent."""
        battle, words = task.row, float(word_count(caption))
        view = await asker.view(self.pictures(task.sample))
        if isinstance(view, Failure):
            return Measured(lacking={"image": str(view)})
        orders = (True, False) if self.options.mode == "strict" else (first_place(task.sample.id),)
        points: list[int] = []
        told: list[str] = []
        for ours_first in orders:
            pair = (caption, battle.opponent) if ours_first else (battle.opponent, caption)
            asked = {"REFERENCE": battle.reference, "FIRST": pair[0], "SECOND": pair[1]}
            verdict = await asker.ask(self.stages["compare"], JUDGMENT, asked, shown=view)
            if isinstance(verdict, Failure):
                return Measured(lacking={"compare": str(verdict)})
            judgment, reason = verdict
            points.append(points_of(judgment, ours_first=ours_first))
            place = "first" if ours_first else "second"
            told.append(f"This caption {place}, better: {judgment}. {reason}")
        result = sum(points) / len(points)
        values = {"points": result, f"points/{battle.baseline}": result, "words": words}
        if len(points) > 1:
            values["consistent"] = float(len(set(points)) == 1)
        return Measured(
            values=values, notes={f"Against {battle.baseline}": "\n".join(told), "Opponent": battle.opponent}
        )

    @classmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        """score and score/BASELINE from -100 to 100; words: mean number; consistent: % (strict)."""
        each = {f"score/{name}": mean(f"points/{name}", scale=100) for name in BASELINES}
        found = {"score": average_of_present(*each.values()), **each, "words": mean("words")}
        return found | ({"consistent": mean("consistent", scale=100)} if mode == "strict" else {})


def first_place(identity: str) -> bool:
    """Whether the captioner's caption comes first where one order is asked: by the sample's id."""
    return number_of(identity, size=1) % 2 == 0


def points_of(judgment: Judgment, *, ours_first: bool) -> int:
    """1 for a win of the captioner, -1 for a loss, 0 for a tie."""
    if judgment == "tie":
        return 0
    return 1 if (judgment == "first") == ours_first else -1


def _battle(entry: JsonObject, where: str) -> Battle:
    captions = as_object(entry.get("captions"), f"{where}: captions")
    model = as_text(entry.get("ref_model"), f"{where}: ref_model")
    short = next((name for name, long in BASELINES.items() if model in (name, long)), None)
    if short is None:
        raise JsonError(f"{where}: ref_model is {model!r}, none of {', '.join(BASELINES.values())}")
    opponent = captions.get(model, captions.get(short, captions.get(BASELINES[short])))
    return Battle(
        baseline=short,
        opponent=as_text(opponent, f"{where}: the caption of {model}"),
        reference=as_text(captions.get("human"), f"{where}: the human caption"),
    )


def _read_judgment(row: JsonObject) -> tuple[Judgment, str] | Failure:
    given, reason = row["Judgment"], row["Reason"]
    found = _JUDGMENT.fullmatch(given.strip(" *_`.\"'<>\n")) if isinstance(given, str) else None
    if found is None or not isinstance(reason, str):
        return Failure(reason="bad_answer", detail=f"{head(repr(given))} is neither caption and no tie")
    places: Mapping[str | None, Judgment] = {"1": "first", "2": "second", None: "tie"}
    return places[found[1]], reason


_PROPERTIES: dict[str, JsonValue] = {
    "Reason": {"type": "string", "maxLength": 2000},
    "Judgment": {"type": "string", "enum": ["Caption 1", "Caption 2", "Tie"]},
}
JUDGMENT: Shape[tuple[Judgment, str]] = Shape(schema=object_schema(_PROPERTIES), read=_read_judgment)
"""The judgment of a pair, and why."""
