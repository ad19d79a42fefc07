"""Propositions by a judge over HTTP: what is kept, what is taken out and why, failures, a second start."""

from __future__ import annotations

import json
from pathlib import Path

from tests.evals.benchmarks.by_stage import ByStage, block
from tests.human_eval.small_study import CAPTIONS, change_row, write_small_study
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.commands import propose
from vcap_jax.human_eval.embedded import write_embedded_study
from vcap_jax.human_eval.propose import (
    Check,
    Missing,
    Proposals,
    Wrong,
    judge_media,
    sorted_out,
    stages,
    verdicts_on,
)
from vcap_jax.human_eval.records import Item
from vcap_jax.human_eval.study import Settings, read_study
from vcap_jax.reward.failures import Failure
from vcap_jax.world.vocabulary import VIDEO_FPS, VIDEO_FRAMES


def item() -> Item:
    captions = [{"model": model, "text": text} for model, text in CAPTIONS.items()]
    return Item.model_validate({"id": "a", "image": "a.png", "captions": captions})


def test_quotes_become_spans_and_what_the_texts_rule_out_is_taken_out():
    dented = Missing(statement="The door is dented.", reference_quote="a dented door")
    proposals = Proposals(
        missing=[dented, dented, Missing(statement="  ", reference_quote="")],
        inconsistent=[
            Wrong(statement="It is new.", caption_quote=" It is old.", reference_quote=""),
            Wrong(statement="It is blue.", caption_quote="a blue car", reference_quote="A red car"),
        ],
    )
    kept, rejected = sorted_out(item(), "base", "tuned", proposals)
    assert [(one.kind, one.text) for one in kept] == [
        ("missing", "The door is dented."),
        ("inconsistent", "It is new."),
    ]
    assert kept[0].span is None
    span = kept[0].ref_span
    assert span is not None
    assert CAPTIONS["tuned"][span.start : span.end] == "a dented door"
    span = kept[1].span
    assert span is not None
    assert CAPTIONS["base"][span.start : span.end] == "It is old."  # behind an emoji
    assert [(one.by, one.why.split(" ")[0]) for one in rejected] == [
        ("rule", "it"),
        ("rule", "it"),
        ("rule", "the"),
    ]
    assert "a blue car" in rejected[2].why


def proposing(prompt: str) -> object:
    if "dented" in block(prompt, "caption"):  # the candidate is "tuned"
        wrong = [{"statement": "The car is green.", "caption_quote": "red car", "reference_quote": ""}]
        return {
            "missing": [{"statement": "The car is old.", "reference_quote": "It is old."}],
            "inconsistent": wrong,
        }
    return {
        "missing": [{"statement": "The door is dented.", "reference_quote": "dented"}],
        "inconsistent": [],
    }


def verifying(prompt: str) -> object:
    lines = block(prompt, "statements").splitlines()
    verdicts = [
        {"number": n, "reason": "the car is red" if "green" in line else "seen", "keep": "green" not in line}
        for n, line in enumerate(lines, 1)
    ]
    return {"verdicts": verdicts}


def run(folder: Path, server: ScriptedJudge, *settings: str) -> int:
    words = ["backoff_s=0.001", "max_backoff_s=0.001", *settings]
    return propose.main([str(folder), "--judge", server.url, *(f"judge.{word}" for word in words)])


def test_names_of_an_item_and_its_models_may_be_long():
    models = ("qwen3-vl-235b-instruct-with-the-long-prompt", "ours-after-two-rounds-of-self-improvement")
    captions = [{"model": model, "text": "A dog."} for model in models]
    one = Item(id=f"folder/{'x' * 180}.png", image="a.png", captions=captions)
    proposals = Proposals(
        missing=[Missing(statement="The image shows a cat.", reference_quote="")], inconsistent=[]
    )
    kept, _ = sorted_out(one, *models, proposals)
    assert kept[0].prop_id == f"{one.id}/{models[0]}/{models[1]}/0"


def test_a_study_is_made_and_a_second_start_asks_nothing(tmp_path, server):
    folder = write_small_study(tmp_path)
    (folder / "propositions.jsonl").unlink()
    judge = ByStage(server, {"propose": proposing, "verify": verifying})
    assert run(folder, server) == 0
    study = read_study(folder)
    assert [one.text for one in study.propositions["a"]] == ["The door is dented.", "The car is old."]
    rejected = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    assert [(one["by"], one["why"]) for one in rejected] == [("verifier", "the car is red")] * 2
    told = json.loads((folder / "propose.json").read_text())
    assert (told["pairs"], told["failed"], told["kept"]) == (4, {}, {"missing": 4, "inconsistent": 0})
    assert sorted(set(judge.stages())) == ["propose", "verify"]
    first, before = len(judge.asked), (folder / "propositions.jsonl").read_bytes()
    assert run(folder, server) == 0
    assert len(judge.asked) == first
    assert (folder / "propositions.jsonl").read_bytes() == before
    # The picture comes first in each question.
    content = judge.asked[0][2]["messages"][0]["content"]  # type: ignore[index]
    assert content[0]["type"] == "image_url"


def test_the_truth_goes_with_the_propositions_that_it_was_of(tmp_path, server):
    """Those of the embedded judge; a rehearsal would look for verdicts that are not there."""
    folder = write_small_study(tmp_path)
    (folder / "truth.jsonl").write_text("{}\n")
    change_row(folder / "items.jsonl", 0, image="gone.png")
    assert run(folder, server) == 1
    assert (folder / "truth.jsonl").exists()
    change_row(folder / "items.jsonl", 0, image="a.png")
    ByStage(server, {"propose": proposing, "verify": verifying})
    assert run(folder, server) == 0
    assert not (folder / "truth.jsonl").exists()


def test_failures_are_counted_and_only_they_are_asked_again(tmp_path, server, capsys):
    folder = write_small_study(tmp_path)
    judge = ByStage(server, {"propose": proposing, "verify": lambda prompt: {"verdicts": []}})
    assert run(folder, server, "max_tries=1") == 1
    assert "4 of 4 pairs have no propositions" in capsys.readouterr().err
    told = json.loads((folder / "propose.json").read_text())
    assert sum(told["failed"].values()) == 4
    assert len(told["failures"]) == 4
    judge.asked.clear()
    judge.answers = {"propose": proposing, "verify": verifying}
    assert run(folder, server) == 0
    assert set(judge.stages()) == {"verify"}


def test_pictures_that_people_cannot_be_shown_are_refused_before_the_judge_is_asked(tmp_path, server, capsys):
    folder = write_small_study(tmp_path)
    (folder / "a.png").rename(folder / "a.bmp")
    change_row(folder / "items.jsonl", 0, image="a.bmp")
    assert propose.main([str(folder), "--judge", server.url]) == 1
    assert 'item "a": a.bmp is of a kind that browsers do not show' in capsys.readouterr().err
    assert server.bodies == []


def test_a_study_that_people_have_begun_is_left_alone(tmp_path, server, capsys):
    folder = write_small_study(tmp_path)
    (folder / "answers.sqlite").touch()
    assert run(folder, server) == 1
    told = capsys.readouterr().err
    assert (
        f"{folder / 'answers.sqlite'} is there: people have begun with this study, or the folder is not one"
        in told
    )


def test_videos_are_shown_as_frames_with_their_times(tmp_path):
    write_embedded_study(tmp_path, images=0, videos=1, settings=Settings())
    media = judge_media(tmp_path / "media" / "video-0000.mp4", video=True)
    assert media.modality == "video"
    assert [one.seconds for one in media.pictures] == [n / VIDEO_FPS for n in range(VIDEO_FRAMES)]


def test_a_text_of_ones_own_replaces_one_of_the_two(tmp_path):
    (tmp_path / "verify.txt").write_text("{CAPTION} {STATEMENTS}")
    first, second = stages(tmp_path)
    assert first.template.text == stages()[0].template.text
    assert second.template.text.strip() == "{CAPTION} {STATEMENTS}"


def test_a_server_is_held_to_one_verdict_about_each_statement():
    shape = verdicts_on(3)
    verdicts = shape.schema["properties"]["verdicts"]
    number = shape.schema["$defs"]["Checked"]["properties"]["number"]
    assert (verdicts["minItems"], verdicts["maxItems"]) == (3, 3)
    assert (number["minimum"], number["maximum"]) == (1, 3)
    assert verdicts_on(2).schema["properties"]["verdicts"]["maxItems"] == 2
    rows = [{"number": number, "reason": "so it is", "keep": True} for number in (1, 2, 3)]
    assert isinstance(shape.read({"verdicts": rows}), Check)
    assert isinstance(shape.read({"verdicts": [rows[0], *rows[:2]]}), Failure)
