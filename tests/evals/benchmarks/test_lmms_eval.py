"""lmms-eval's command line, and files as release 0.7.3 writes them, with the figures worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vcap_jax.data.errors import ManifestError
from vcap_jax.evals.benchmarks.lmms_eval import (
    BEGINS,
    SUITES,
    Request,
    VideoQaOptions,
    find_run,
    harness_verdict,
    judge_failures,
    open_answer_right,
    options_of,
    read_items,
    statistics,
    unread,
)
from vcap_jax.evals.statistics import evaluated
from vcap_jax.system.json_values import JsonError

PROMPT = "What is it?\nA. a dog\nB. blue\nC. dark red\nD. red\nOnly give the best option.\nBest option: ("
FAILED = "[LMMS_EVAL_REQUEST_FAILED after 5 retries] Connection error."


def mlvu(number: int, answer: str, read: str, right: str, **other: object) -> dict[str, object]:
    record = {"question_id": "q", "task_type": "count", "pred_answer": read, "answer": right}
    return {
        "doc_id": number,
        "target": right,
        "input": PROMPT,
        "filtered_resps": [answer],
        "mlvu_percetion_score": record,
        **other,
    }


def leave(folder: Path, stamp: str, samples: dict[str, list[dict[str, object]]]) -> Path:
    """Files of a run of the harness."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {task: {"alias": task, "metric,none": 12.5, "metric_stderr,none": "N/A"} for task in samples}
    (folder / f"{stamp}_results.json").write_text(json.dumps({"results": results, "configs": {}}))
    for task, rows in samples.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{stamp}_samples_{task}.jsonl").write_text(text)
    return folder


def test_the_command_is_that_of_the_release(tmp_path: Path) -> None:
    request = Request(
        options=VideoQaOptions(data="videos"),
        python="/env/bin/python",
        model="M",
        url="http://h/v1",
        tasks=("mlvu_dev", "lvbench"),
        output=tmp_path,
    )
    command = request.command()
    assert command[:6] == ["/env/bin/python", "-m", "lmms_eval", "eval", "--model", "async_openai"]
    arguments = dict(pair.split("=", 1) for pair in command[7].split(","))
    assert arguments == {
        "model_version": "M",
        "base_url": "http://h/v1",
        "fps": "2",
        "max_frames": "200",
        "max_pixels": "262144",
        "is_qwen3_vl": "True",
        "num_cpus": "32",
        "timeout": "600",
    }
    assert command[command.index("--tasks") + 1] == "mlvu_dev,lvbench"
    assert "api_key" not in " ".join(command)
    with pytest.raises(ValueError, match="holds a comma"):
        replace(request, model="a,b").command()


def test_micro_figures_come_from_the_records_and_ours_stands_beside(tmp_path: Path) -> None:
    rows = [
        mlvu(0, "B", "B", "B"),
        mlvu(1, "The answer is B because A dog is not there", "A", "B"),  # the harness reads A
        mlvu(2, "(b)", "", "B"),  # and nothing here
        mlvu(3, "blue", "B", "B", resps=[["blue"]]),
        mlvu(4, FAILED, "D", "D"),  # and "D" in a failure
        mlvu(5, "", "", "A"),
        mlvu(6, "no idea at all", "", "C"),
    ]
    leave(tmp_path / "org__model", "20261122_100000", {"mlvu_dev": rows[:1]})
    folder = leave(tmp_path / "org__model", "20261122_110000", {"mlvu_dev": rows})
    run = find_run(tmp_path, ["mlvu_dev"])
    assert run is not None
    assert run.results == folder / "20261122_110000_results.json"  # the later one
    assert run.own_figures() == {"mlvu_dev": {"metric,none": 12.5}}
    items = read_items(run, SUITES["mlvu"])
    found = evaluated(items, statistics([SUITES["mlvu"]]))
    # Of the six answers the harness has 2 right (0, 3), our reader 4 (0, 1, 2, 3).
    assert found["harness/mlvu"].value == pytest.approx(100 * 2 / 6)
    assert found["parsed/mlvu"].value == pytest.approx(100 * 4 / 6)
    assert found["parsed/mlvu"].n == 6
    assert (items[4].failure or "").startswith("[LMMS_EVAL_REQUEST_FAILED")
    assert [item.id for item in unread(items)] == ["mlvu_dev/5", "mlvu_dev/6"]


def test_records_of_every_suite(tmp_path: Path) -> None:
    mmvu = [
        {"accuracy": {"correct": 1, "answer": "A", "pred_answer": "A"}, "filtered_resps": ["B. not A"]},
        {"accuracy": {"correct": 1, "answer": "gold", "pred_answer": ""}, "filtered_resps": [""]},
        {"accuracy": {"correct": 1, "answer": "gold", "pred_answer": "gold"}, "filtered_resps": ["gold"]},
    ]
    for number, row in enumerate(mmvu):
        row |= {"doc_id": number, "input": "Q?\nA: x\nB: y\nC: z\nD: u\nE: v" if number == 0 else "Q?"}
    lvbench = [
        {
            "doc_id": 0,
            "target": "C",
            "input": "Q?\n(A) x\n(B) y\n(C) z",
            "filtered_resps": "c",
            "lvbench_score": False,
        }
    ]
    choice = {"question_type": "multiple-choice", "answer": "B", "parsed_pred": "B"}
    number = {
        "question_type": "open",
        "answer": "1,200",
        "parsed_pred": ["about", 1200.0],
    }
    none = {"question_type": "perception", "answer": "A", "parsed_pred": "API Error"}
    mmmu = {
        task: [{"doc_id": 0, "target": record["answer"], "filtered_resps": [said], "mmmu_acc": record}]
        for task, said, record in zip(
            SUITES["videommmu"].tasks, ("A", "B", "about 1200"), (none, choice, number), strict=True
        )
    }
    leave(tmp_path, "20261122_100000", {"mmvu_val": mmvu, "lvbench": lvbench, **mmmu})
    found = {}
    for suite in (SUITES["mmvu"], SUITES["lvbench"], SUITES["videommmu"]):
        run = find_run(tmp_path, suite.tasks)
        assert run is not None
        found[suite.name] = [
            (item.values["harness"], item.values["parsed"]) for item in read_items(run, suite)
        ]
    # MMVU takes "B. not A" for A, and an empty answer for right.
    assert found["mmvu"] == [(1, 0), (1, 0), (1, 1)]
    assert found["lvbench"] == [(0, 1)]  # "c" is C
    assert found["videommmu"] == [(0, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("suite", "record", "lacking"),
    [
        ("mlvu", {"answer": "B"}, "pred_answer"),
        ("mlvu", {"question_id": "q"}, "pred_answer"),
        ("mlvu", {"pred_answer": None}, "answer"),
        ("mmvu", {"answer": "B"}, "correct"),
        ("videommmu", {"question_type": "multiple-choice"}, "parsed_pred"),
        ("videommmu", {"parsed_pred": "B", "answer": "B"}, "question_type"),
        ("lvbench", {"pred": "B"}, "a number is wanted"),
    ],
)
def test_a_record_of_another_form_is_refused_and_no_right_answer(
    suite: str, record: dict[str, object], lacking: str
) -> None:
    with pytest.raises(JsonError, match=f"here: {SUITES[suite].record}.*{lacking}"):
        harness_verdict(SUITES[suite], record, "here")  # type: ignore[arg-type]


def test_open_answers_by_the_published_rule() -> None:
    def right(answer: object, *given: object) -> bool:
        return open_answer_right({"answer": answer, "parsed_pred": list(given)}, "here")  # type: ignore[dict-item]

    assert right("Gold", "it is gold leaf")
    assert right("3.141", 3.14)
    assert right(["x y", "2"], 2.0)
    assert right("k", "so k is")
    assert not right("k", "lake")
    assert not right("gold", "silver", 2.0)
    assert not open_answer_right({"answer": "gold", "parsed_pred": "API Error"}, "here")


def test_incomplete_and_other_files(tmp_path: Path) -> None:
    assert find_run(tmp_path, ["mlvu_dev"]) is None
    leave(tmp_path, "20261122_100000", {"mlvu_dev": [{"doc_id": 0, "accuracy": 1}]})
    assert find_run(tmp_path, ["mlvu_dev", "lvbench"]) is None
    run = find_run(tmp_path, ["mlvu_dev"])
    assert run is not None
    with pytest.raises(ManifestError, match=r"no record 'mlvu_percetion_score'.*lmms-eval"):
        read_items(run, SUITES["mlvu"])


def test_judge_failures_are_those_of_the_last_start_each_counted_once(tmp_path: Path) -> None:
    log = tmp_path / "harness.log"
    assert judge_failures(log) == []
    old = "OpenAI judge failed: of an earlier start\n"
    # As release 0.7.3 and those around it say it, the second with its colours.
    said = [
        "OpenAI judge failed: Error code: 404",
        "\x1b[36mlmms_eval.tasks.mmvu.utils\x1b[0m - \x1b[31mError getting GPT judge response: no key\x1b[0m",
        "Error getting judge response: no",
        "GPT judge evaluation failed: Unknown error",
    ]
    given_up = "\x1b[36mlmms_eval.llm_judge.providers.openai\x1b[0m:evaluate - All 5 attempts failed"
    other = "lmms_eval.models.chat.async_openai - All 5 attempts failed"
    log.write_text(f"{old}{BEGINS}python -m lmms_eval\n{other}\n")
    assert judge_failures(log) == []
    log.write_text("\n".join([old, f"{BEGINS}python", *said, given_up, other]))
    assert judge_failures(log) == said
    log.write_text(f"{given_up}\r 50%|#\n{given_up}\n")
    assert judge_failures(log) == [given_up] * 2


def test_options_of_a_prompt() -> None:
    assert options_of(PROMPT) == {"A": "a dog", "B": "blue", "C": "dark red", "D": "red"}
    assert options_of("Q?\n(A) x\n(B) y") == {"A": "x", "B": "y"}
    assert options_of("A. only one") is None
    assert options_of(None) is None
