"""DREAM-1K end to end on made-up clips in both public forms, with its figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evals.benchmarks.by_stage import ByStage, Given, block, endpoint, made
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.evals.benchmarks.dream1k import Dream1k, buckets, read_clip
from vcap_jax.evals.benchmarks.files import DataMissing
from vcap_jax.recipes.evaluate import evaluate
from vcap_jax.recipes.evaluation_request import EvaluationRequest, JudgesConfig

CLIPS = {
    # source/id -> reference, gold events
    "youtube/1": ("A cat jumps. A dog runs.", ["cat jumps", "dog runs"]),
    "youtube/2": ("A man sits.", ["man sits"]),
    "videvo/3": ("A still lake.", []),
}
CAPTIONS = {"1": "A Cat jumps. A bird sings.", "2": "A man sits.", "3": "a boat sinks."}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "dream"
    (folder / "videos").mkdir(parents=True)
    for name in ("clip1.mp4", "2.mp4", "3.mp4"):
        (folder / "videos" / name).touch()
    rows = []
    for identity, (reference, events) in CLIPS.items():
        source, _, number = identity.partition("/")
        row: dict[str, object] = {"dataset": f"DREAM/{source}", "idx": int(number), "vid": int(number)}
        row["extra_info"] = {"events": events, "n_events": len(events)}
        if number == "2":  # the older form
            row["text"] = {"prompt": "<video>\nDescribe.", "response": reference}
        else:
            file = f"/mnt/x/clip{number}.mp4" if number == "1" else "<placeholder>"  # as it is published
            video = {"reference": None, "text": None, "video": {"video_file": file}}
            row["messages"] = [
                {"role": "user", "content": [video, {"reference": None, "text": "Describe."}]},
                {
                    "role": "assistant",
                    "content": [{"reference": reference, "text": "", "video": None}],
                },
            ]
        rows.append(row)
    (folder / "DREAM-1k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def events(prompt: str) -> object:
    """Every sentence that does not begin with a small letter tells an event."""
    told = block(prompt, "caption").split(".")
    return {"Events": [part.strip().removeprefix("A ").removeprefix("a ") for part in told if part.strip()]}


def entailed(prompt: str) -> object:
    description = block(prompt, "caption")
    lines = [line.partition(": ") for line in block(prompt, "events").splitlines()]
    return {name: "entailment" if event in description else "Neutral" for name, _, event in lines}


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    return ByStage(server, {"events": events, "recall": entailed, "precision": entailed})


def test_the_figures_are_those_worked_out_by_hand(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    found = made(Dream1k, data, endpoint(server)).evaluate(Given(CAPTIONS))
    values = {name: value.value for name, value in found.metrics.items()}
    # strict: "cat jumps" is not in "A Cat jumps", so of youtube/1 recall 0 and precision 0; youtube/2 1 and 1;
    # videvo/3 has no gold event, so no recall, and precision 0.
    assert values["recall"] == pytest.approx(50)
    assert values["precision"] == pytest.approx((50 + 0) / 2)
    assert values["f1"] == pytest.approx(2 * 50 * 25 / 75)
    assert values["f1/youtube"] == pytest.approx(50)
    assert found.items[2].values == {"precision": 0, "precision/videvo": 0, "precision/events_to_3": 0}
    # Of the three clips with up to three events: recall of two (0 and 1), precision of three (0, 1 and 0).
    assert values["f1/events_to_3"] == pytest.approx(2 * 50 * (100 / 3) / (50 + 100 / 3))
    assert values["f1/events_4_to_5"] != values["f1/events_4_to_5"]  # no clip has so many
    assert judge.stages().count("recall") == 2


def test_official_lower_cases_and_gives_one_to_nothing(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    benchmark = made(Dream1k, data, endpoint(server), mode="official")
    found = benchmark.evaluate(Given(CAPTIONS))
    values = {name: value.value for name, value in found.metrics.items()}
    # youtube/1: recall 1 of 2, precision 1 of 2; youtube/2: 1, 1; videvo/3: recall 1 without events, precision 0.
    assert values["recall"] == pytest.approx(100 * (0.75 + 1) / 2)
    assert values["precision"] == pytest.approx(100 * (0.75 + 0) / 2)
    recall, precision = values["recall"], values["precision"]
    assert values["f1"] == pytest.approx(2 * recall * precision / (recall + precision))
    silent = {**CAPTIONS, "1": "."}
    again = benchmark.evaluate(Given(silent))
    assert again.items[0].values["precision/youtube"] == 1  # a caption that tells nothing


def test_a_stage_that_fails_is_scored_nowhere(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    judge.fails = lambda number, stage: stage == "events"
    strict = made(Dream1k, data, endpoint(server, max_tries=1)).evaluate(Given(CAPTIONS))
    assert strict.metrics["recall"].value == pytest.approx(50)
    assert strict.metrics["f1"].value != strict.metrics["f1"].value  # no precision, no F1
    assert strict.items[0].lacking.keys() == {"precision"}
    assert (strict.items[2].failure or "").startswith("precision: http_status")
    official = made(Dream1k, data, endpoint(server, max_tries=1), mode="official").evaluate(Given(CAPTIONS))
    assert official.failed == 3


def test_clips_are_in_the_public_buckets() -> None:
    assert buckets("shots") == ("shots_to_1", "shots_2", "shots_3", "shots_from_4")
    assert buckets("events") == ("events_to_3", "events_4_to_5", "events_6_to_7", "events_from_8")

    def of(**counts: int) -> tuple[str, ...]:
        row = {"dataset": "DREAM/youtube", "idx": 1, "text": "x", "extra_info": {"events": [], **counts}}
        return read_clip(row, "row 1")[2].buckets

    assert of(n_shots=0, n_subjects=3, n_events=4) == ("shots_to_1", "subjects_3", "events_4_to_5")
    assert of(n_shots=9, n_events=7) == ("shots_from_4", "events_6_to_7")
    assert of() == ()


def test_videos_and_rows_are_read(server: ScriptedJudge, data: Path) -> None:
    benchmark = made(Dream1k, data, endpoint(server))
    assert [sample.id for sample in benchmark.samples] == ["1", "2", "3"]
    assert [sample.video for sample in benchmark.samples] == [
        data / "videos" / name for name in ("clip1.mp4", "2.mp4", "3.mp4")
    ]
    (data / "DREAM-1k.jsonl").write_text(json.dumps({"dataset": "DREAM/tv", "extra_info": {}}) + "\n")
    with pytest.raises(DataMissing, match=r"dataset is 'tv'.*bytedance/tarsier"):
        made(Dream1k, data, endpoint(server))


def test_a_judge_at_another_temperature_scores_anew(
    server: ScriptedJudge, judge: ByStage, data: Path, tmp_path: Path
) -> None:
    """No stage names one, so the setting decides."""
    captions = tmp_path / "captions.json"
    captions.write_text(json.dumps(CAPTIONS))
    path = tmp_path / "out" / "dream1k" / "results.json"
    said: list[str] = []

    def request(temperature: float) -> EvaluationRequest:
        judges = JudgesConfig(judge=endpoint(server, temperature=temperature))
        return EvaluationRequest(
            benchmarks=("dream1k",), by=str(captions), data=data, out=tmp_path / "out", judges=judges
        )

    def by(temperature: float) -> int:
        evaluate(request(temperature), said.append)
        assert json.loads(path.read_text())["endpoints"]["judge"]["temperature"] == temperature
        return len(judge.asked)

    first = by(0.5)
    assert by(0.5) == first
    assert by(0.0) == 2 * first
    assert any("was scored by judge the-judge at temperature 0.5: it is scored anew" in line for line in said)
