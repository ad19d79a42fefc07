"""Scenes of the embedded world as public benchmarks have their data: the same files, in the same form.

So what a benchmark says of captions can be held against the facts that are known and counted. The references are true
and complete captions of the scenes, their facts and questions those of the scenes.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vcap_jax.world.captions import full_caption, weak_caption, wrong_value
from vcap_jax.world.dataset import render, write_mp4, write_png
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.questions import question, scene_questions
from vcap_jax.world.scenes import ImageScene, Scene, VideoScene
from vcap_jax.world.statements import events_of, statement, yes_no

_SOURCES = ("movie_animation", "movie_live_action", "vertical_video", "videvo", "youtube")
_ASPECTS = ("background", "camera", "detailed", "main_object", "short")
_DOMAINS = ("natural", "document", "ecommerce", "embodiedai")
_BASELINES = ("GPT-4o-0806", "CogVLM2-llama3-chat-19B", "MiniCPM-V2.6-8B")


def write_capmas(folder: Path, scenes: Mapping[str, Scene]) -> None:
    """Image scenes as CapMAS: data.jsonl, a file of questions with options for each picture, images."""
    questions = folder / "data" / "COVERAGE_TEST_VQA"
    questions.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, scene in scenes.items():
        asked = scene_questions(scene)
        texts, answers = [], []
        for text, options, answer in asked:
            letters = [chr(ord("A") + k) for k in range(len(options))]
            lines = [f"{letter}) {option}" for letter, option in zip(letters, options, strict=True)]
            texts.append("\n".join([text, *lines]))
            answers.append(letters[options.index(answer)])
        (questions / f"{name}.json").write_text(json.dumps({"questions": texts, "answers": answers}))
        rows.append({"dataset": "IIW-400", "image": name, "caption": _reference(name, scene)})
        _picture(folder / "images" / f"{name}.png", scene)
    _lines(folder / "data" / "data.jsonl", rows)


def write_decapbench(folder: Path, scenes: Mapping[str, Scene]) -> None:
    """Image scenes as DeCapBench: their facts as sentences, images."""
    rows = []
    for name, scene in scenes.items():
        facts = [statement(slot, value) for slot, value in scene_facts(scene).items()]
        rows.append(
            {
                "image_name": f"{name}.png",
                "oracle_caption": _reference(name, scene),
                "oracle_facts": facts,
            }
        )
        _picture(folder / "images" / f"{name}.png", scene)
    _lines(folder / "IIW_400_data.jsonl", rows)


def write_vcapsbench(folder: Path, scenes: Mapping[str, Scene]) -> None:
    """Video scenes as VCapsBench: for each fact a question, every other one with a wrong value."""
    rows = []
    for name, scene in scenes.items():
        _clip(folder / "videos" / f"{name}.mp4", scene)
        generator = _generator(name)
        entries = []
        for number, (slot, value) in enumerate(scene_facts(scene).items()):
            true = number % 2 == 0
            told = value if true else wrong_value(slot, value, generator)
            entries.append(f"{slot[-1]}*{yes_no(question(scene, slot), told)}*{'yes' if true else 'no'}")
        rows.append({"video_id": name, "qa": entries})
    _lines(folder / "VCapsBench_100KQA.jsonl", rows)


def write_dream1k(folder: Path, scenes: Mapping[str, Scene]) -> None:
    """Video scenes as DREAM-1K: the events of a true and complete caption, shared out to the sources in turn."""
    rows = []
    for number, (name, scene) in enumerate(scenes.items()):
        _clip(folder / "videos" / f"{name}.mp4", scene)
        reference = _reference(name, scene)
        events = events_of(reference)
        video = {"type": "video", "video": {"video_file": f"{name}.mp4"}}
        rows.append(
            {
                "dataset": f"DREAM/{_SOURCES[number % len(_SOURCES)]}",
                "idx": name,
                "messages": [
                    {"role": "user", "content": [video]},
                    {"role": "assistant", "content": [{"type": "text", "text": "", "reference": reference}]},
                ],
                "extra_info": {"events": events, "n_events": len(events)},
            }
        )
    _lines(folder / "DREAM-1k.jsonl", rows)


def write_vdc(folder: Path, scenes: Mapping[str, Scene]) -> None:
    """Video scenes as VDC: their questions shared out to the aspects in turn, a file for each."""
    asked = {name: scene_questions(scene) for name, scene in scenes.items()}
    for number, aspect in enumerate(_ASPECTS):
        rows = [
            {name: [{"question": text, "answer": answer, "category": ""} for text, _, answer in some]}
            for name, questions in asked.items()
            if (some := questions[number :: len(_ASPECTS)])
        ]
        folder.mkdir(parents=True, exist_ok=True)
        _lines(folder / f"{aspect}.jsonl", rows)
    for name, scene in scenes.items():
        _clip(folder / "videos" / f"{name}.mp4", scene)


def write_caparena(folder: Path, scenes: Mapping[str, Scene]) -> None:
    """Image scenes as CapArena-Auto: a weak caption of each as one of the baselines', in turn."""
    entries = {}
    for number, (name, scene) in enumerate(scenes.items()):
        baseline = _BASELINES[number % len(_BASELINES)]
        captions = {
            "human": _reference(name, scene),
            baseline: weak_caption(scene, _generator(name)),
        }
        entries[f"{name}.png"] = {"captions": captions, "ref_model": baseline}
        _picture(folder / "all_images" / f"{name}.png", scene)
    (folder / "caparena_auto_600.json").write_text(json.dumps(entries))


def write_captionqa(folder: Path, scenes: Mapping[str, Scene]) -> None:
    """Image scenes as CaptionQA: their questions, shared out to the domains in turn, with the pictures in parquet."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    for number, domain in enumerate(_DOMAINS):
        rows = [
            {
                "id": f"{domain[:3]}_{name}",
                "images": [{"bytes": _png(name, scene), "path": f"{name}.png"}],
                "questions": [
                    {"question": text, "choices": list(options), "answer": answer, "category": [""]}
                    for text, options, answer in scene_questions(scene)
                ],
            }
            for name, scene in list(scenes.items())[number :: len(_DOMAINS)]
        ]
        if rows:
            table = pyarrow.Table.from_pylist(rows)
            parquet.write_table(table, folder / f"{domain}-00000-of-00001.parquet")


def write_choice_table(path: Path, scenes: Mapping[str, Scene]) -> None:
    """Image scenes as a table of VLMEvalKit: a row for each question, the picture in the first of its scene."""
    rows: list[dict[str, str]] = []
    for name, scene in scenes.items():
        first = str(len(rows))
        for number, (text, options, answer) in enumerate(scene_questions(scene)):
            lettered = {chr(ord("A") + k): option for k, option in enumerate(options)}
            picture = base64.b64encode(_png(name, scene)).decode() if number == 0 else first
            right = next(letter for letter, option in lettered.items() if option == answer)
            rows.append(
                {"index": str(len(rows)), "image": picture, "question": text, "answer": right, **lettered}
            )
    letters = sorted({column for row in rows for column in row if len(column) == 1})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["index", "image", "question", *letters, "answer"], delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)


def _reference(name: str, scene: Scene) -> str:
    return full_caption(scene, _generator(name))


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def _picture(path: Path, scene: Scene) -> None:
    if not isinstance(scene, ImageScene):
        raise ValueError(f"{path.stem} is no image")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png(path, render(scene))


def _png(name: str, scene: Scene) -> bytes:
    if not isinstance(scene, ImageScene):
        raise ValueError(f"{name} is no image")
    buffer = io.BytesIO()
    Image.fromarray(render(scene)).save(buffer, "PNG")
    return buffer.getvalue()


def _clip(path: Path, scene: Scene) -> None:
    if not isinstance(scene, VideoScene):
        raise ValueError(f"{path.stem} is no video")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_mp4(path, render(scene))


def _lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
