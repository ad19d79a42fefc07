"""Prism end to end on a made-up table in the public format, with its figure worked out by hand."""

from __future__ import annotations

import base64
import csv
import io
from pathlib import Path

import pytest
from PIL import Image

from tests.evals.benchmarks.by_stage import ByStage, Given, block, endpoint, made
from tests.reward.scripted_judge import Reply, ScriptedJudge
from vcap_jax.evals.benchmarks.files import DataMissing
from vcap_jax.evals.benchmarks.prism import PrismAi2d, PrismVStar


def picture(shade: int) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 20), (shade, 9, 9)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


ROWS = [
    # index, image, question, A, B, C, answer; two questions share a picture
    ("1", picture(10), "What animal?", "cat", "dog", "", "A"),
    ("2", "1", "What colour?", "red", "blue", "green", "B"),
    ("3", picture(20), "How many?", "one", "two", "", "B"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "prism"
    folder.mkdir()
    for name in ("VStarBench.tsv", "AI2D_TEST.tsv"):
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t")
            writer.writerow(["index", "image", "question", "A", "B", "C", "answer"])
            writer.writerows(ROWS)
    return folder


def answer(prompt: str) -> object:
    """Says the option whose text the description has; of the number it has words of its own."""
    if "How many" in prompt:
        return {"Answer": "a couple of them"}
    caption, question = block(prompt, "caption"), block(prompt, "question")
    told = [line[0] for line in question.splitlines()[1:] if line[3:] in caption]
    return {"Answer": f"The answer is ({told[0].lower()})." if told else "It does not say."}


def match(prompt: str) -> object:
    return {"Option": "B" if "a couple" in block(prompt, "answer") else "none"}


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    return ByStage(server, {"answer": answer, "match": match})


def test_the_figure_is_that_worked_out_by_hand(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    benchmark = made(PrismVStar, data, endpoint(server))
    assert [sample.id for sample in benchmark.samples] == ["1", "3"]  # one description per picture
    assert benchmark.samples[0].prompt == benchmark.samples[1].prompt
    found = benchmark.evaluate(Given({"1": "a cat in a grey room", "3": "two birds"}))
    # Right by rule, no option, right by the matcher: 2 of 3, and 1 of 3 is unmatched.
    assert found.metrics["accuracy"].value == pytest.approx(200 / 3)
    assert found.metrics["unmatched"].value == pytest.approx(100 / 3)
    assert found.metrics["accuracy"].n == 2
    assert judge.stages().count("match") == 2
    assert found.items[0].values == {"right": 1, "questions": 2, "unmatched": 1, "share": 0.5}
    assert found.items[1].notes == {"Questions and answers": "How many? a couple of them (B, it is B)"}
    for _, _, body in judge.asked:  # nobody but the captioner sees a picture
        assert all(part["type"] == "text" for part in body["messages"][0]["content"])  # type: ignore[index]


def test_captions_of_other_questions_are_told_from_those_of_nothing(
    server: ScriptedJudge, data: Path
) -> None:
    """Of a file with one for each question all but the first of a picture were left out without a word."""
    told = made(PrismVStar, data, endpoint(server)).hint(["2", "9"])
    assert told.startswith("; 1 are of other questions about pictures")
    assert "options.query_aware=true" in told
    assert made(PrismVStar, data, endpoint(server)).hint(["9"]) == ""
    assert made(PrismVStar, data, endpoint(server), query_aware=True).hint(["9"]) == ""


def test_the_questions_about_a_description_are_put_at_once(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    scripted = server.answer

    def both_are_there(body: dict[str, object], number: int) -> Reply:
        reply = scripted(body, number)
        reply.hold = lambda: server.most_running >= 2
        return reply

    server.answer = both_are_there
    made(PrismVStar, data, endpoint(server), limit=1).evaluate(Given({"1": "a cat, red"}))
    assert judge.stages() == ["answer", "answer"]


def test_query_aware_asks_for_a_description_of_each_question(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    benchmark = made(PrismAi2d, data, endpoint(server), query_aware=True)
    assert [sample.id for sample in benchmark.samples] == ["1", "2", "3"]
    first, second = benchmark.samples[:2]
    assert first.images == second.images
    assert "What animal?" in (first.prompt or "")
    assert "cat" not in (first.prompt or "").split("<question>")[1]
    found = benchmark.evaluate(Given({"1": "a cat", "2": "it is blue", "3": "two"}))
    assert found.metrics["accuracy"].value == pytest.approx(100)
    # Two of the three are about one picture, and not independent.
    assert [item.id for item in found.items] == ["1", "2", "3"]
    assert found.metrics["accuracy"].n == 2
    limited = made(PrismAi2d, data, endpoint(server), query_aware=True, limit=1)
    assert [sample.id for sample in limited.samples] == ["1", "2"]


def test_a_failed_question_leaves_the_count(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    judge.fails = lambda number, stage: stage == "match"
    found = made(PrismVStar, data, endpoint(server, max_tries=1)).evaluate(
        Given({"1": "a cat of blue", "3": "two"})
    )
    assert found.metrics["accuracy"].value == pytest.approx(100)  # 2 of the 2 that were answered
    assert found.failed == 1
    assert (found.items[1].failure or "").startswith("question 3: http_status")
    assert found.stages["match"].failure_rate == 1


def test_missing_tables_say_where_they_come_from(server: ScriptedJudge, data: Path) -> None:
    (data / "AI2D_TEST.tsv").unlink()
    with pytest.raises(DataMissing, match=r"AI2D_TEST\.tsv.*VLMEvalKit"):
        made(PrismAi2d, data, endpoint(server))
    (data / "AI2D_TEST.tsv").write_text("index\tquestion\n1\tQ\n")
    with pytest.raises(DataMissing, match="no column A, B, answer, image"):
        made(PrismAi2d, data, endpoint(server))
