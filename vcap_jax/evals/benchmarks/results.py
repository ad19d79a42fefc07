"""What an evaluation by a benchmark leaves: results.json, items.jsonl and worst.html."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vcap_jax.data.examples import media_loader
from vcap_jax.data.judge_media import JudgeMediaSettings
from vcap_jax.data.manifest import Sample
from vcap_jax.data.videos import EvenFrames
from vcap_jax.evals.asking import StageReport
from vcap_jax.evals.protocol import Captions, Evaluation, Item
from vcap_jax.report.intervals import Value
from vcap_jax.report.pages import page_templates, write_page
from vcap_jax.system.files import replace_file, write_json
from vcap_jax.system.json_values import JsonDict, JsonObject, as_object, as_whole
from vcap_jax.system.words import word_count

REQUEST, RESULTS, ITEMS, WORST = "request.json", "results.json", "items.jsonl", "worst.html"

_ASKED = ("benchmark", "mode", "samples", "data", "reading", "endpoints", "prompts", "request", "stages")
_FRAMES = 6
_EDGE = 360
_WORST = 40


def results_row(
    evaluation: Evaluation,
    captions: Sequence[Captions],
    *,
    captioner: JsonObject,
    seconds: Mapping[str, float],
) -> dict[str, object]:
    """An evaluation without its items, as JSON holds it. captions: that were asked for; empty where the items hold
    answers.

    metrics: each with its interval, and ``n``, the number of pictures or videos that it is over. items: asked for;
    failed: without any value; incomplete: that lack a part. captions_failed, words_per_caption: of what was measured,
    which may be merged of several captions. captions_cut_off: see ``cut_off``. stages, cost: questions to judges, in
    all starts. seconds: of the last start.
    """
    measured = [item.captions for item in evaluation.items] if captions else []
    lengths = [word_count(text) for texts in measured for text in texts[:1]]
    return {
        **evaluation.about,
        "captioner": captioner,
        "metrics": {name: value.row() for name, value in evaluation.metrics.items()},
        "items": len(evaluation.items),
        "valid": len(evaluation.items) - evaluation.failed - evaluation.incomplete,
        "incomplete": evaluation.incomplete,
        "failed": evaluation.failed,
        "captions_failed": sum(not texts for texts in measured),
        "captions_cut_off": cut_off(captions),
        "words_per_caption": sum(lengths) / len(lengths) if lengths else None,
        "stages": {name: stage.row() for name, stage in evaluation.stages.items()},
        "cost": cost(evaluation.stages),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def asked(row: JsonObject) -> JsonDict:
    """What ``Evaluation.asked`` was of the evaluation that left this results.json."""
    return {key: row[key] for key in _ASKED if key in row}


def cut_off(captions: Sequence[Captions]) -> int | None:
    """How many of them end at the limit of their length and not where the captioner ended; None where nobody knows."""
    known = [one.truncated for one in captions if one.truncated]
    return sum(map(any, known)) if known else None


def lost(row: JsonObject, *, captions: bool = True) -> bool:
    """Whether something failed in the evaluation that left this results.json: a question or, where these count, a
    caption."""
    stages = as_object(row.get("stages", {}), "stages")
    asked = any(as_object(stage, name).get("failed") for name, stage in stages.items())
    return asked or (captions and any(row.get(name) for name in ("failed", "incomplete", "captions_failed")))


def unmeasured(row: JsonObject) -> str:
    """Of the evaluation that left this results.json: why there is a figure that nothing was measured of; "" if there is
    none that failures took. Single failures leave figures of what is left."""
    metrics = as_object(row.get("metrics", {}), "metrics")
    if all(as_object(of, name).get("value") is not None for name, of in metrics.items()):
        return ""
    for name, of in as_object(row.get("stages", {}), "stages").items():
        stage = as_object(of, name)
        failed = sum(as_whole(count, name) for count in as_object(stage.get("failed", {}), name).values())
        if failed and failed == stage.get("questions"):
            return f"none of the {failed} questions of the stage {name} was answered ({stage.get('example'):.300})"
    if row.get("failed") and row.get("failed") == row.get("items"):
        return f"all {row.get('failed')} samples failed, see {ITEMS}"
    return ""


def scored_by(endpoints: JsonObject, where: object) -> str:
    """Who scored, in words, by the endpoints of a results.json. Raises JsonError, which begins with ``where``."""
    found = []
    for role, of in endpoints.items():
        asked = as_object(of, f"{where}: {role}")
        drawn = f" at temperature {asked['temperature']}" if asked.get("temperature") else ""
        found.append(f"{role} {asked.get('model')}{drawn}")
    return ", ".join(found) or "no judge"


def cost(stages: Mapping[str, StageReport]) -> JsonDict:
    """Requests and tokens of all stages together."""
    names = ("questions", "requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    return {name: sum(getattr(stage, name) for stage in stages.values()) for name in names}


def write_results(folder: Path, evaluation: Evaluation, row: Mapping[str, object]) -> None:
    """Writes items.jsonl, then results.json, which says that all is there; each whole or not at all. Results of an
    earlier scoring go first: its figures must not stand beside other items, whenever this is ended."""
    (folder / RESULTS).unlink(missing_ok=True)
    replace_file(folder / ITEMS, "".join(item.line() for item in evaluation.items).encode())
    write_json(folder / RESULTS, row)


def write_worst_page(
    path: Path,
    items: Sequence[Item],
    samples: Sequence[Sample],
    *,
    title: str,
    by: str,
) -> None:
    """One page, readable without any other file: items with the lowest value ``by``, then some of those that failed."""
    of = {sample.id: sample for sample in samples}
    measured = sorted((item for item in items if by in item.values), key=lambda item: item.values[by])
    others = [item for item in items if by not in item.values]
    load = media_loader(
        image_prompt="",
        video_prompt="",
        settings=JudgeMediaSettings(max_edge=_EDGE),
        frames=EvenFrames(most=_FRAMES),
    )

    def pictures(sample: Sample) -> list[str]:
        try:
            return [frame.url for frame in load(sample).media.frames()]
        except Exception:  # captions that somebody else wrote need no media, and a page can do without
            return []

    shown = [
        {"item": item, "pictures": pictures(of[item.id]), "reference": of[item.id].references}
        for item in [*measured[:_WORST], *others[: _WORST // 2]]
    ]
    templates = page_templates("vcap_jax.evals.benchmarks")
    counts = {"total": len(items), "failed": len(others)}
    write_page(path, templates, "worst.html", title=title, by=by, shown=shown, **counts)


def spread(value: Value, clusters: int, sign: str = "") -> str:
    """The interval of a value, and ``n`` where it is of fewer than ``clusters``; a single one has no interval. sign: as
    in a format of a number."""
    parts = [] if value.n == 1 else [f"{value.low:{sign}.2f} to {value.high:{sign}.2f}"]
    parts += [f"n={value.n}"] if value.n < max(2, clusters) else []
    return ", ".join(parts)


def told(evaluation: Evaluation, say: Callable[[str], None]) -> None:
    """Says the figures, a line each, and what failed."""
    for name, value in evaluation.metrics.items():
        figure = "nothing measured"
        if not math.isnan(value.value):
            figure = f"{value.value:7.2f}  ({spread(value, evaluation.clusters)})"
        say(f"  {name:<16} {figure}")
    for name, stage in evaluation.stages.items():
        if stage.failed:
            lost = f"{sum(stage.failed.values())} of {stage.questions}"
            say(f"  {lost} questions of the stage {name} failed, such as {stage.example:.200}")
    if evaluation.failed or evaluation.incomplete:
        say(
            f"  of {len(evaluation.items)} samples {evaluation.failed} failed and {evaluation.incomplete} lack a part; "
            "they enter no figure that they have no value for"
        )
