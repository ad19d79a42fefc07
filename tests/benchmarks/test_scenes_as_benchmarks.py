"""Scenes in the form in which public benchmarks have their data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scenes_as_benchmarks import write_capmas, write_decapbench, write_dream1k, write_vcapsbench
from vcap_jax.world.asking import read_question
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import count_facts, scene_facts
from vcap_jax.world.scenes import Modality, Scene
from vcap_jax.world.statements import read_statement, read_yes_no, relation


def scenes(modality: Modality, count: int = 3) -> dict[str, Scene]:
    return {f"{modality}-{k}": sample_scene(modality, 9, k) for k in range(count)}


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_references_say_everything_and_there_is_a_question_or_a_sentence_for_each_fact(
    tmp_path: Path,
) -> None:
    found = scenes("image")
    write_capmas(tmp_path / "capmas", found)
    write_decapbench(tmp_path / "decap", found)
    for row in rows_of(tmp_path / "capmas" / "data" / "data.jsonl"):
        scene = found[str(row["image"])]
        assert count_facts(scene, str(row["caption"])).coverage == 1
        asked = json.loads(
            (tmp_path / "capmas" / "data" / "COVERAGE_TEST_VQA" / f"{row['image']}.json").read_text()
        )
        assert len(asked["questions"]) == len(asked["answers"]) == len(scene_facts(scene))
        for text, letter in zip(asked["questions"], asked["answers"], strict=True):
            question, *options = text.split("\n")
            assert read_question(question) is not None
            assert any(option.startswith(f"{letter}) ") for option in options)
    for row in rows_of(tmp_path / "decap" / "IIW_400_data.jsonl"):
        facts = row["oracle_facts"]
        assert isinstance(facts, list)
        scene = found[str(row["image_name"]).removesuffix(".png")]
        assert dict(filter(None, map(read_statement, facts))) == scene_facts(scene)


def test_half_of_the_questions_about_a_clip_have_a_false_answer(tmp_path: Path) -> None:
    found = scenes("video")
    write_vcapsbench(tmp_path, found)
    for row in rows_of(tmp_path / "VCapsBench_100KQA.jsonl"):
        entries = row["qa"]
        assert isinstance(entries, list)
        answers = [entry.rsplit("*", 1)[1] for entry in entries]
        assert answers == (["yes", "no"] * len(answers))[: len(answers)]
        assert all(read_yes_no(entry.split("*")[1]) is not None for entry in entries)
        assert (tmp_path / "videos" / f"{row['video_id']}.mp4").exists()


def test_the_events_of_a_clip_are_entailed_by_its_reference(tmp_path: Path) -> None:
    write_dream1k(tmp_path, scenes("video"))
    text = (tmp_path / "DREAM-1k.jsonl").read_text()
    for row in map(json.loads, text.splitlines()):
        reference = row["messages"][1]["content"][0]["reference"]
        events = row["extra_info"]["events"]
        assert len(events) == row["extra_info"]["n_events"] > 5
        assert {relation(reference, event) for event in events} == {"entailment"}


def test_a_scene_of_the_other_modality_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="video-0 is no image"):
        write_capmas(tmp_path, scenes("video"))
    with pytest.raises(ValueError, match="image-0 is no video"):
        write_dream1k(tmp_path, scenes("image"))
