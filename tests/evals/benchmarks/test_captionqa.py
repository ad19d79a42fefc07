"""CaptionQA end to end on a made-up split in the public format, with its score worked out by hand."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from tests.evals.benchmarks.by_stage import ByStage, Given, block, endpoint, made
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.evals.benchmarks.captionqa import CANNOT_ANSWER, CaptionQa, domain_of, is_yes_no
from vcap_jax.evals.benchmarks.files import DataMissing


def picture(shade: int) -> dict[str, object]:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(buffer, "JPEG")
    return {"bytes": buffer.getvalue(), "path": f"{shade}.jpg"}


def question(text: str, choices: list[str], answer: str) -> dict[str, object]:
    return {"question": text, "choices": choices, "answer": answer, "category": ["x"]}


NATURAL = [
    {
        "id": "nat_001",
        "images": [picture(10)],
        "questions": [
            question("What animal?", ["cat", "dog"], "cat"),
            question("Is it red?", ["Yes, it is", "No"], "No"),
            question("Which shape?", ["round", "square", "flat", "long"], "flat"),
            question("What is meant?", ["this", "that"], "something else"),  # gold is no option: skipped
        ],
    },
]
DOCUMENT = [
    {
        "id": "doc_001",
        "images": [picture(20), picture(30)],
        "questions": [question("What word?", ["eyes", "snow"], "snow")],
    }
]


def split(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}-00000-of-00001.parquet")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    split(tmp_path / "captionqa" / "data", "natural", NATURAL)
    split(tmp_path / "captionqa" / "data", "document", DOCUMENT)
    return tmp_path / "captionqa"


def answer(prompt: str) -> object:
    """The option that the caption has, else that it cannot be told, else the first."""
    caption, lines = block(prompt, "caption"), block(prompt, "question").splitlines()[1:]
    told = [line[0] for line in lines if line[3:] in caption]
    unknown = [line[0] for line in lines if line[3:] == CANNOT_ANSWER]
    return {"Answer": (told or unknown or ["A"])[0]}


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    return ByStage(server, {"answer": answer})


CAPTIONS = Given({"nat_001": "a dog. No. long ago", "doc_001": "cannot be read"})


def test_the_score_is_that_worked_out_by_hand(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    benchmark = made(CaptionQa, data, endpoint(server))
    assert [len(sample.images) for sample in benchmark.samples] == [1, 2]
    assert all(file.is_file() for sample in benchmark.samples for file in sample.images)
    assert benchmark.samples[0].prompt != benchmark.samples[1].prompt
    found = benchmark.evaluate(CAPTIONS)
    values = {name: value.value for name, value in found.metrics.items()}
    # Wrong, right, wrong; "cannot answer" of two options is worth 1/2 + 0.05.
    assert values["score"] == pytest.approx(100 * (0 + 1 + 0 + 0.55) / 4)
    assert values["accuracy"] == pytest.approx(25)
    assert values["cannot_answer"] == pytest.approx(25)
    assert values["score/natural"] == pytest.approx(100 / 3)
    assert values["score/document"] == pytest.approx(55)
    assert values["score/ecommerce"] != values["score/ecommerce"]  # no such question
    yes_no = next(prompt for _, prompt, _ in judge.asked if "Is it red?" in prompt)
    assert CANNOT_ANSWER not in yes_no
    assert all(prompt.index("<caption>") < prompt.index("<question>") for _, prompt, _ in judge.asked)


def test_the_order_of_options_depends_on_the_question_alone(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    both = made(CaptionQa, data, endpoint(server)).tasks[1].row
    alone = made(CaptionQa, data, endpoint(server), domain="document").tasks[0].row
    assert alone == both
    order = both.questions[0].order  # type: ignore[attr-defined]
    assert sorted(order) == [0, 1, 2]


def test_official_replays_one_generator_over_the_split(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    with pytest.raises(DataMissing, match="no file of ecommerce, embodiedai"):
        made(CaptionQa, data, endpoint(server), mode="official")
    split(data / "data", "all", [*NATURAL, *DOCUMENT])
    benchmark = made(CaptionQa, data, endpoint(server), mode="official")
    # "eyes" and "snow" are yes and no there, so nobody may say that the word cannot be told.
    sizes, generator = [3, 2, 5, 2], random.Random(0)
    orders = []
    for size in sizes:
        order = list(range(size))
        generator.shuffle(order)
        orders.append(tuple(order))
    found = [choice.order for task in benchmark.tasks for choice in task.row.questions]  # type: ignore[attr-defined]
    assert found == orders
    assert [task.row.domain for task in benchmark.tasks] == ["natural", "document"]  # type: ignore[attr-defined]


def test_a_failed_question_leaves_the_count(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    judge.fails = lambda number, stage: "What animal" in judge.asked[-1][1]
    found = made(CaptionQa, data, endpoint(server, max_tries=1)).evaluate(CAPTIONS)
    assert found.metrics["score"].value == pytest.approx(100 * (1 + 0.55) / 3)
    assert found.items[0].lacking.keys() == {"question 1"}
    assert found.stages["answer"].failed == {"http_status": 1}


def test_questions_about_yes_and_no() -> None:
    assert is_yes_no("Is it red?", ["red", "blue"], official=True)
    assert not is_yes_no("Is it red?", ["red", "blue"], official=False)
    assert is_yes_no("What?", ["eyes", "snow"], official=True)
    assert not is_yes_no("What?", ["eyes", "snow"], official=False)
    assert is_yes_no("What?", ["Yes, two", "no."], official=False)
    assert not is_yes_no("Island or sea?", ["island", "sea"], official=True)


def test_domains_and_other_files(server: ScriptedJudge, tmp_path: Path) -> None:
    assert [domain_of(name) for name in ("nat_1", "doc_2", "eco_3", "emb_4", "x_5")] == [
        "natural",
        "document",
        "ecommerce",
        "embodiedai",
        "other",
    ]
    with pytest.raises(DataMissing, match="Borise/CaptionQA"):
        made(CaptionQa, tmp_path, endpoint(server))
    split(tmp_path, "natural", [{"id": "nat_1", "images": [picture(1)], "questions": [{"question": "Q"}]}])
    with pytest.raises(DataMissing, match='"choices"'):
        made(CaptionQa, tmp_path, endpoint(server))


def test_questions_that_are_there_twice_are_no_more_questions(server: ScriptedJudge, data: Path) -> None:
    """As in a cache of Hugging Face's that holds two revisions."""
    split(data / "another", "natural", NATURAL)
    with pytest.raises(DataMissing, match=r"data/natural-.*row 1: 'nat_001' is in .*another/natural-"):
        made(CaptionQa, data, endpoint(server))
