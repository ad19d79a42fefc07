"""Studies to Label Studio and back, in its documented formats: the labelling configuration, tasks with annotations as
they are imported, and the JSON that it exports.

A task is an item. ``data`` has its captions as the Ranker's list and its propositions as what the Repeater repeats.
Whoever annotates can see all of it, so it is blind as our own pages are: captions are A, B, C, ... in an order of the
seed, and items and propositions go by aliases. The study tells what they stand for. Tasks that name the models
themselves, as those of before and of projects that were set up by hand do, are read without it.

Spans are regions of the label "evidence" in the caption, as predictions. Who annotated is written into the result too,
in a field of its own, since numbers of users differ between servers. Sources: labelstud.io, "Import pre-annotated
data", "Label Studio JSON format of annotated tasks", tags Repeater, Choices, Ranker, Labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, unquote

from pydantic import TypeAdapter, ValidationError

from vcap_jax.human_eval.assignment import AnnotatorView
from vcap_jax.human_eval.errors import RuleBroken, StudyError
from vcap_jax.human_eval.protocol import Ranking, Step1, Step2
from vcap_jax.human_eval.records import (
    Answer,
    Item,
    Proposition,
    Rankings,
    Records,
    find_span,
    first_problem,
    parse_row,
    ranks_of,
)
from vcap_jax.human_eval.study import Person, Study, grouped
from vcap_jax.system.json_values import JsonDict, JsonObject, as_list, as_object, as_whole

LOCAL_FILES = "/data/local-files/?d="
"""What Label Studio calls a file below its LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
_PERSON: TypeAdapter[str] = TypeAdapter(Person)
_EVERYBODY = "Label Studio"
"""Who is shown the tasks: a project has them once for all annotators, whose names have no blank."""
_Asked: TypeAlias = tuple[Item, list[Proposition], Mapping[str, str]]
"""What a task asks, in its order, and the models by what their captions are called in it."""


@dataclass(frozen=True, kw_only=True)
class Imported(Records):
    items: Mapping[str, Item]
    propositions: tuple[Proposition, ...]


def labelling_config(*, video: bool = False) -> str:
    """The configuration of a Label Studio project for such tasks."""
    media = (
        '<Video name="media" value="$video"/>'
        if video
        else '<Image name="media" value="$image" zoom="true"/>'
    )
    step1 = "".join(f'<Choice value="{label}" hotkey="{n}"/>' for n, label in enumerate(Step1, 1))
    step2 = "".join(f'<Choice value="{label}" hotkey="{n + 3}"/>' for n, label in enumerate(Step2, 1))
    rankers = "\n  ".join(
        f'<Header value="Rank by {ranking}, the best first"/>'
        f'<List name="captions_{ranking}" value="$captions"/>'
        f'<Ranker name="{ranking}" toName="captions_{ranking}"/>'
        for ranking in Ranking
    )
    return f"""<View>
  {media}
  <Repeater on="$propositions" indexFlag="{{{{idx}}}}" mode="pagination">
    <Text name="p_{{{{idx}}}}" value="$propositions[{{{{idx}}}}].text"/>
    <Choices name="s1_{{{{idx}}}}" toName="p_{{{{idx}}}}" choice="single-radio" required="true">{step1}</Choices>
    <Choices name="s2_{{{{idx}}}}" toName="p_{{{{idx}}}}" choice="single-radio" required="true"
      visibleWhen="choice-selected" whenTagName="s1_{{{{idx}}}}" whenChoiceValue="{Step1.CONSISTENT}">{step2}</Choices>
    <TextArea name="n_{{{{idx}}}}" toName="p_{{{{idx}}}}" placeholder="note" maxSubmissions="1"/>
    <Labels name="e_{{{{idx}}}}" toName="c_{{{{idx}}}}"><Label value="evidence"/></Labels>
    <Text name="c_{{{{idx}}}}" value="$propositions[{{{{idx}}}}].caption"/>
  </Repeater>
  {rankers}
  <TextArea name="annotator" toName="media" placeholder="your name" maxSubmissions="1"/>
</View>
"""


def to_tasks(
    study: Study, answers: Iterable[Answer] = (), rankings: Iterable[Rankings] = ()
) -> list[JsonObject]:
    """Tasks to import, one for each item, with an annotation for each annotator who has answered or ranked: an item
    without propositions is only ranked."""
    by_item: dict[str, dict[str, list[Answer]]] = {}
    for answer in answers:
        by_item.setdefault(answer.image_id, {}).setdefault(answer.annotator, []).append(answer)
    ranked: dict[str, dict[str, Rankings]] = {}
    for order in rankings:
        ranked.setdefault(order.image_id, {})[order.annotator] = order
    view = AnnotatorView(study, _EVERYBODY)
    tasks: list[JsonObject] = []
    for item in study.items.values():
        asked, letters = view.propositions(item), view.letters(item)
        answered, orders = by_item.get(item.id, {}), ranked.get(item.id, {})
        annotations = [
            _annotation(annotator, asked, letters, answered.get(annotator, ()), orders.get(annotator))
            for annotator in sorted({*answered, *orders})
        ]
        spans = [(index, one.span.model_dump()) for index, one in enumerate(asked) if one.span is not None]
        evidence = [
            _result(f"e_{index}", f"c_{index}", "labels", {**span, "labels": ["evidence"]}, "prediction")
            for index, span in spans
        ]
        task: JsonDict = {"data": _data(view, item, asked, letters), "annotations": annotations}
        task["predictions"] = [{"model_version": "propositions", "result": evidence}] if evidence else []
        tasks.append(task)
    return tasks


def from_tasks(tasks: Sequence[object], where: str, study: Study | None = None) -> Imported:
    """Reads tasks as they are imported or exported. study: that ``to_tasks`` made them of, for those that name no
    models. Raises StudyError, naming ``where`` and the task, for anything that cannot be read or breaks the protocol.
    """
    view = None if study is None else AnnotatorView(study, _EVERYBODY)
    items: dict[str, Item] = {}
    propositions: list[Proposition] = []
    answers: list[Answer] = []
    rankings: list[Rankings] = []
    skipped = 0
    for number, task in enumerate(tasks, 1):
        place = f"{where}, task {number}"
        read = as_object(task, place)
        data = as_object(read.get("data"), f"{place}, data")
        named = "image_id" in data or "key" not in data
        item, asked, models = _named(data, read, place) if named else _of_study(data, view, place)
        known = item if study is None else study.items.get(item.id, item)
        if {c.model: c.text for c in known.captions} != {c.model: c.text for c in item.captions}:
            raise _changed(item, place)
        if item.id in items:
            raise StudyError(f'{place}: the item "{item.id}" occurs twice: keep one of the tasks')
        items[item.id] = item
        propositions += asked
        for annotation in as_list(read.get("annotations", []), f"{place}, annotations"):
            one = as_object(annotation, f"{place}, annotations")
            if one.get("was_cancelled"):
                skipped += 1
                continue
            given, order, left = _answered(one, item, asked, models, place)
            answers += given
            skipped += left
            if order is not None:
                rankings.append(order)
    grouped(propositions, items, where)
    return Imported(
        items=items,
        propositions=tuple(propositions),
        answers=tuple(answers),
        rankings=tuple(rankings),
        skipped=skipped,
    )


def _data(
    view: AnnotatorView, item: Item, asked: Sequence[Proposition], letters: Mapping[str, str]
) -> JsonObject:
    media = "image" if item.image is not None else "video"
    return {
        "key": view.alias(item.id),
        media: f"{LOCAL_FILES}{quote(item.media)}",
        "captions": [
            {"id": letter, "title": f"Caption {letter}", "body": item.caption(model)}
            for letter, model in letters.items()
        ],
        "propositions": [
            {
                "key": view.alias(one.prop_id),
                "kind": str(one.kind),
                "text": one.text,
                "caption": item.caption(one.model),
            }
            for one in asked
        ],
    }


def _annotation(
    annotator: str,
    asked: Sequence[Proposition],
    letters: Mapping[str, str],
    given: Sequence[Answer],
    order: Rankings | None,
) -> JsonObject:
    result: list[JsonObject] = [_textarea("annotator", "media", annotator)]
    by_prop = {answer.prop_id: answer for answer in given}
    for index, one in enumerate(asked):
        answer = by_prop.get(one.prop_id)
        if answer is None:
            continue
        for name, step in (("s1", answer.step1), ("s2", answer.step2)):
            if step is not None:
                result.append(_result(f"{name}_{index}", f"p_{index}", "choices", {"choices": [str(step)]}))
        if answer.note:
            result.append(_textarea(f"n_{index}", f"p_{index}", answer.note))
    annotation: JsonDict = {"result": result, "was_cancelled": False, "ground_truth": False}
    if order is not None:
        by_model = {model: letter for letter, model in letters.items()}
        for ranking in Ranking:
            value = {"ranker": {str(ranking): [by_model[model] for model in order.best_first(ranking)]}}
            result.append(_result(str(ranking), f"captions_{ranking}", "ranker", value))
    dated = given or (() if order is None else (order,))
    times = [one.timestamps for one in dated if one.timestamps is not None]
    if times:
        annotation["created_at"] = min(one.first for one in times)
        annotation["updated_at"] = max(one.last for one in times)
    return annotation


def _textarea(name: str, to_name: str, text: str) -> JsonObject:
    return _result(name, to_name, "textarea", {"text": [text]})


def _result(name: str, to_name: str, kind: str, value: JsonObject, origin: str = "manual") -> JsonDict:
    named: JsonDict = {"id": name, "from_name": name, "to_name": to_name}
    return {**named, "type": kind, "value": value, "origin": origin}


def _of_study(data: JsonObject, view: AnnotatorView | None, place: str) -> _Asked:
    """What a blind task asks, in its own order."""
    if view is None:
        raise StudyError(
            f"{place}: it names no models, which only the study knows that it was exported from: copy that study's "
            "folder, and take the answers in there with --import"
        )
    item = view.study.items.get(view.items.get(str(data["key"]), ""))
    if item is None:
        raise StudyError(
            f"{place}: it is of no item of {view.study.folder}: name the study that it was exported from, with the "
            "seed that it had"
        )
    letters = view.letters(item)
    for row in _rows(data.get("captions"), f"{place}, captions"):
        model = letters.get(str(row.get("id")))
        if model is None or item.caption(model) != row.get("body"):
            raise _changed(item, place)
    by_key = {view.alias(one.prop_id): one for one in view.study.propositions[item.id]}
    asked = []
    for row in _rows(data.get("propositions"), f"{place}, propositions"):
        one = by_key.get(str(row.get("key")))
        if one is None or one.text != row.get("text"):
            raise _changed(item, place)
        asked.append(one)
    return item, asked, letters


def _changed(item: Item, place: str) -> StudyError:
    return StudyError(
        f'{place}: the captions or propositions of "{item.id}" are not what they were when it was exported: put them '
        "back"
    )


def _named(data: JsonObject, task: JsonObject, place: str) -> _Asked:
    """What a task asks that names the models itself."""
    media = "video" if "video" in data else "image"
    captions = [
        {"model": row.get("id"), "text": row.get("body"), "reward": row.get("reward")}
        for row in _rows(data.get("captions"), f"{place}, captions")
    ]
    path = str(data.get(media, ""))
    if path.startswith(LOCAL_FILES):  # as in an address, where "#", "&" and "%" mean something else
        path = unquote(path.removeprefix(LOCAL_FILES))
    item = parse_row(Item, {"id": data.get("image_id"), media: path, "captions": captions}, place)
    asked = []
    evidence = _evidence(task, place)
    for index, row in enumerate(_rows(data.get("propositions"), f"{place}, propositions")):
        plain = {key: value for key, value in row.items() if key != "caption"}
        for key, model in (("span", row.get("model")), ("ref_span", row.get("ref_model"))):
            span = evidence.get(index, plain.get(key)) if key == "span" else plain.get(key)
            if span is not None:
                value = as_object(span, f"{place}, {key}")
                plain[key] = find_span(
                    item.caption(str(model)), as_whole(value.get("start"), place), as_whole(value.get("end"), place),
                    str(value.get("text")),
                ).model_dump()  # fmt: skip
        asked.append(parse_row(Proposition, plain, f"{place}, proposition {index}"))
    return item, asked, {model: model for model in item.models}


def _evidence(task: JsonObject, place: str) -> dict[int, object]:
    """Regions of the predictions by the number of their proposition."""
    found: dict[int, object] = {}
    for prediction in _rows(task.get("predictions", []), f"{place}, predictions"):
        for region in _rows(prediction.get("result", []), f"{place}, predictions"):
            kind, _, index = str(region.get("from_name")).partition("_")
            if kind == "e" and index.isdecimal() and len(index) < 10 and region.get("type") == "labels":
                found[int(index)] = region.get("value")
    return found


def _answered(
    annotation: JsonObject,
    item: Item,
    asked: Sequence[Proposition],
    models: Mapping[str, str],
    place: str,
) -> tuple[list[Answer], Rankings | None, int]:
    """The answers of one annotation, its rankings if all three are there, and how much it leaves open.
    models: by what the captions are called in the task."""
    values: dict[str, JsonObject] = {}
    asked_for = {f"{field}_{index}" for field in ("s1", "s2", "n") for index in range(len(asked))}
    asked_for |= {"annotator", *Ranking}
    for result in _rows(annotation.get("result", []), f"{place}, result"):
        name = str(result.get("from_name"))
        if name not in asked_for:  # a region, of which there may be many, or a field of others
            continue
        if name in values:
            raise StudyError(f"{place}: two results of {name}: leave one out")
        values[name] = as_object(result.get("value"), f"{place}, value")
    annotator = _annotator(annotation, values, place)
    times = _times(annotation)
    answers = []
    for index, one in enumerate(asked):
        step1 = _single(values.get(f"s1_{index}"), "choices", place)
        if step1 is None:
            if f"s2_{index}" in values:
                raise StudyError(
                    f"{place}, proposition {index}: a step 2 without step 1: answer that, or leave it out"
                )
            continue
        row = one.model_dump(mode="json", exclude={"span", "ref_span"}) | {
            "step1": step1,
            "step2": _single(values.get(f"s2_{index}"), "choices", place),
            "note": _single(values.get(f"n_{index}"), "text", place) or "",
            "annotator": annotator,
            "timestamps": times,
        }
        answers.append(parse_row(Answer, row, f"{place}, proposition {index}"))
    orders = {ranking: _order(values.get(str(ranking)), place) for ranking in Ranking}
    rankings = None
    if all(orders.values()):
        try:
            ranks = {
                str(ranking): {models[one]: rank for one, rank in ranks_of(order, tuple(models)).items()}
                for ranking, order in orders.items()
            }
        except RuleBroken as error:
            raise StudyError(f"{place}: {error}") from error
        row = {"image_id": item.id, "annotator": annotator, **ranks, "timestamps": times}
        rankings = parse_row(Rankings, row, place)
    left = len(asked) - len(answers) + (rankings is None and any(orders.values()))
    return answers, rankings, left


def _annotator(annotation: JsonObject, values: Mapping[str, JsonObject], place: str) -> str:
    if name := (_single(values.get("annotator"), "text", place) or "").strip():
        for part in name.split("@", 1):  # of an address, as servers export for those who typed none
            try:
                _PERSON.validate_python(part)
            except ValidationError as error:
                raise StudyError(f"{place}, annotator {name!r}: {first_problem(error)}") from error
        return name
    who = annotation.get("completed_by")
    if isinstance(who, dict):
        who = who.get("email") or who.get("id")
    if not isinstance(who, int | str) or not str(who):
        raise StudyError(f'{place}: an annotation without "completed_by": say who annotated')
    return f"user-{who}" if isinstance(who, int) else who


def _times(annotation: JsonObject) -> JsonObject | None:
    """The ``timestamps`` of a row, still to be checked; None where there are none."""
    first, last = annotation.get("created_at"), annotation.get("updated_at")
    if not isinstance(first, str) or not first.strip():
        return None
    return {"first": first, "last": last if isinstance(last, str) and last.strip() else first}


def _order(value: JsonObject | None, place: str) -> list[str]:
    """A ranking, best first: under the Ranker's name, or bare as the documentation of the tag shows it."""
    if value is None:
        return []
    ranker = value.get("ranker")
    if isinstance(ranker, dict):
        if len(ranker) != 1:
            raise StudyError(f"{place}: a ranking with {len(ranker)} lists; there must be one")
        ranker = next(iter(ranker.values()))
    return [str(one) for one in as_list(ranker, f"{place}, ranker")]


def _single(value: JsonObject | None, key: str, place: str) -> str | None:
    if value is None:
        return None
    found = value.get(key)
    chosen = [found] if isinstance(found, str) else as_list(found, f"{place}, {key}")
    if len(chosen) != 1:
        raise StudyError(f"{place}: {len(chosen)} values where one is chosen: {chosen}")
    return str(chosen[0])


def _rows(value: object, place: str) -> list[JsonDict]:
    return [as_object(one, place) for one in as_list(value, place)]
