"""A study's answers as records, and records of other tools into a study."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from vcap_jax.human_eval.answers import Held, StoredAnswers, StoredVerdict
from vcap_jax.human_eval.errors import RuleBroken, StudyError
from vcap_jax.human_eval.label_studio import from_tasks, labelling_config, to_tasks
from vcap_jax.human_eval.progress import disputes
from vcap_jax.human_eval.protocol import Ranking
from vcap_jax.human_eval.records import Answer, Rankings, Records, Timestamps, ranks_of, read_rows, write_rows
from vcap_jax.human_eval.store import AnswerStore, GivenElsewhere
from vcap_jax.human_eval.study import Study
from vcap_jax.system.files import replace_file, write_json

ANNOTATIONS = "annotations.jsonl"
RANKINGS = "rankings.jsonl"
ADJUDICATIONS = "adjudications.jsonl"
TASKS = "label_studio.json"
CONFIG = "label_studio.xml"
SKIPPED = "annotations that were cancelled, propositions without a verdict, rankings that are not all three"
"""What ``Records.skipped`` counts."""


def records_of(study: Study, stored: StoredAnswers) -> Records:
    """Everything that is decided by now; of adjudications those of what is still disputed. Raises StudyError if an item
    that is assigned is not in the study, or not what it was."""
    stored.check(study)
    asked = {one.prop_id: one for rows in study.propositions.values() for one in rows}

    def answer(prop: str, annotator: str, held: Held) -> Answer:
        row = asked[prop].model_dump(exclude={"span", "ref_span"}) | {
            **vars(held.verdict),
            "annotator": annotator,
            "timestamps": Timestamps(first=held.first_at, last=held.last_at),
        }
        return Answer.model_validate(row)

    verdicts = stored.verdicts()
    disputed = {one.prop for one in disputes(verdicts)}
    rankings: dict[tuple[str, str], dict[str, object]] = {}
    for one in stored.rankings():
        about: dict[str, object] = {"image_id": one.item, "annotator": one.annotator}
        row = rankings.setdefault((one.item, one.annotator), about)
        row[one.ranking] = ranks_of(one.models, study.items[one.item].models)
        row["timestamps"] = Timestamps(first=one.at, last=one.at)
    return Records(
        answers=tuple(answer(one.prop, one.annotator, one.held) for one in verdicts),
        rankings=tuple(map(Rankings.model_validate, rankings.values())),
        adjudicated=tuple(
            answer(prop, who, held)
            for prop, (who, held) in sorted(stored.adjudications().items())
            if prop in disputed
        ),
    )


def export_records(study: Study, records: Records, folder: Path) -> list[Path]:
    """Writes records as JSON Lines and as Label Studio's tasks with a configuration for them; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / ANNOTATIONS, records.answers)
    write_rows(folder / RANKINGS, records.rankings)
    write_rows(folder / ADJUDICATIONS, records.adjudicated)
    write_json(folder / TASKS, to_tasks(study, records.answers, records.rankings))
    videos = any(item.video is not None for item in study.items.values())
    replace_file(folder / CONFIG, labelling_config(video=videos).encode())
    return [folder / name for name in (ANNOTATIONS, RANKINGS, ADJUDICATIONS, TASKS, CONFIG)]


def read_records(source: Path, study: Study) -> Records:
    """Records of a folder that ``export_records`` wrote, or of a JSON file that Label Studio exported, whose tasks may
    be the study's.

    Raises StudyError and ManifestError.
    """
    if source.is_dir():
        rankings, third = source / RANKINGS, source / ADJUDICATIONS
        return Records(
            answers=read_rows(Answer, source / ANNOTATIONS, "file of answers"),
            rankings=read_rows(Rankings, rankings, "file of rankings") if rankings.exists() else (),
            adjudicated=read_rows(Answer, third, "file of adjudications") if third.exists() else (),
        )
    return from_tasks(read_tasks(source), str(source), study)


def read_tasks(path: Path) -> list[object]:
    """The tasks of a JSON file. Raises StudyError."""
    try:
        tasks = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path} cannot be read ({error}): check the path") from error
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{path}: not valid JSON ({error}): export the project as JSON") from error
    if not isinstance(tasks, list):
        raise StudyError(f"{path}: a list of tasks is expected: export the project as JSON")
    return tasks


def check_fit(study: Study, records: Records, beside: Iterable[StoredVerdict] = ()) -> None:
    """Raises StudyError unless all answers, rankings and adjudications are about this study's items, each once, and
    RuleBroken unless adjudications are by a third person and of disputes. beside: other answers that count."""
    asked = {one.prop_id: one for rows in study.propositions.values() for one in rows}
    for answer in (*records.answers, *records.adjudicated):
        one = asked.get(answer.prop_id)
        if one is None or (one.image_id, one.text) != (answer.image_id, answer.text):
            raise StudyError(
                f'the answer to "{answer.prop_id}" is to no proposition of this study: leave it out'
            )
    for order in records.rankings:
        item = study.items.get(order.image_id)
        if item is None or set(item.models) != set(order.accuracy):
            raise StudyError(
                f'{order.annotator} ranks captions of "{order.image_id}" that this study does not have: leave it out'
            )

    said = Counter(f'{one.annotator} answers "{one.prop_id}"' for one in records.answers)
    said += Counter(f'{one.annotator} ranks the captions of "{one.image_id}"' for one in records.rankings)
    said += Counter(f'somebody adjudicates "{one.prop_id}"' for one in records.adjudicated)
    for what, times in said.items():
        if times > 1:
            raise StudyError(f"{what} {times} times: leave all but one out, as by cancelling an annotation")

    labels: dict[str, dict[str, str]] = {}
    for stored in beside:
        labels.setdefault(stored.prop, {})[stored.annotator] = stored.held.verdict.label
    for answer in records.answers:
        labels.setdefault(answer.prop_id, {})[answer.annotator] = answer.verdict.label
    for third in records.adjudicated:
        theirs, what = labels.get(third.prop_id, {}), f'{third.annotator} adjudicates "{third.prop_id}"'
        if third.annotator in theirs:
            raise RuleBroken(f"{what} and has answered it: a third person decides, so leave one of both out")
        if len(set(theirs.values())) < 2:
            raise RuleBroken(f"{what}, about which nobody disagrees: leave it out")


def unranked(records: Records) -> int:
    """How many items of an annotator have answers and no rankings."""
    answered = {(one.annotator, one.image_id) for one in records.answers}
    return len(answered - {(one.annotator, one.image_id) for one in records.rankings})


def take_in(study: Study, store: AnswerStore, records: Records) -> int:
    """Stores what was said elsewhere, all of it or nothing; how many answers. Raises what ``check_fit`` raises,
    RuleBroken for what the protocol does not allow, and Conflict for what was answered here."""
    check_fit(study, records, store.verdicts())
    grouped: dict[tuple[str, str], dict[str, Held]] = {}
    for answer in records.answers:
        grouped.setdefault((answer.annotator, answer.image_id), {})[answer.prop_id] = _held(answer)
    ranked = {(one.annotator, one.image_id): one for one in records.rankings}
    given = []
    # An item may have no propositions, and rankings all the same.
    for annotator, item in dict.fromkeys((*grouped, *ranked)):
        verdicts, order = grouped.get((annotator, item), {}), ranked.get((annotator, item))
        orders = None if order is None else {ranking: order.best_first(ranking) for ranking in Ranking}
        if orders is not None and len(verdicts) < len(study.propositions[item]):
            raise RuleBroken(f'{annotator} ranks "{item}" before all its propositions are decided')
        when = "" if order is None or order.timestamps is None else order.timestamps.last
        given.append(
            GivenElsewhere(annotator=annotator, item=item, verdicts=verdicts, rankings=orders, ranked_at=when)
        )
    store.take_in(given, {one.prop_id: (one.annotator, _held(one)) for one in records.adjudicated})
    return len(records.answers)


def _held(answer: Answer) -> Held:
    if answer.timestamps is None:
        return Held(verdict=answer.verdict)
    return Held(verdict=answer.verdict, first_at=answer.timestamps.first, last_at=answer.timestamps.last)
