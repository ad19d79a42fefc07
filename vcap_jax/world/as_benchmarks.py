"""Scenes of the embedded world as public benchmarks have their data: the same files, in the same form.

So what a benchmark says of captions can be held against the facts that are known and counted. The references are true
and complete captions of the scenes, their facts and questions those of the scenes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vcap_jax.world.captions import full_caption, wrong_value
from vcap_jax.world.dataset import write_mp4, write_png
from vcap_jax.world.events import events_of
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.questions import question, scene_questions
from vcap_jax.world.rendering import render
from vcap_jax.world.scenes import ImageScene, Scene, VideoScene
from vcap_jax.world.statements import statement, yes_no

_SOURCES = ("movie_animation", "movie_live_action", "vertical_video", "videvo", "youtube")


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
        if not isinstance(scene, VideoScene):
            raise ValueError(f"{name} is no video")
        generator = _generator(name)
        entries = []
        for number, (slot, value) in enumerate(scene_facts(scene).items()):
            true = number % 2 == 0
            told = value if true else wrong_value(slot, value, generator)
            entries.append(f"{slot[-1]}*{yes_no(question(scene, slot), told)}*{'yes' if true else 'no'}")
        rows.append({"video_id": name, "qa": entries})
        path = folder / "videos" / f"{name}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_mp4(path, render(scene))
    _lines(folder / "VCapsBench_100KQA.jsonl", rows)


def write_dream1k(folder: Path, scenes: Mapping[str, Scene]) -> None:
    """Video scenes as DREAM-1K: the events of a true and complete caption, shared out to the sources in turn."""
    rows = []
    for number, (name, scene) in enumerate(scenes.items()):
        if not isinstance(scene, VideoScene):
            raise ValueError(f"{name} is no video")
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
        path = folder / "videos" / f"{name}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_mp4(path, render(scene))
    _lines(folder / "DREAM-1k.jsonl", rows)


def _reference(name: str, scene: Scene) -> str:
    return full_caption(scene, _generator(name))


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def _picture(path: Path, scene: Scene) -> None:
    if not isinstance(scene, ImageScene):
        raise ValueError(f"{path.stem} is no image")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png(path, render(scene))


def _lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
