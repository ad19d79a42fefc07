"""Evaluation by benchmarks from a file of captions: folders, resuming, refusals, and judges that fail."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.evals.benchmarks.by_stage import ByStage, endpoint
from tests.patience import GUARD_S, until
from tests.reward.scripted_judge import Reply, ScriptedJudge
from vcap_jax.configuration import ConfigError
from vcap_jax.evals.benchmarks.files import DataMissing
from vcap_jax.evals.benchmarks.results import unmeasured
from vcap_jax.evals.benchmarks.vcapsbench import VCapsBench
from vcap_jax.evals.protocol import EvaluatorError, read_items
from vcap_jax.recipes.evaluate import NothingMeasured, evaluate
from vcap_jax.recipes.evaluation_request import EvaluationRequest, JudgesConfig, split_settings
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.reward.store import StoreError, read_judgements
from vcap_jax.reward.templates import TemplateError

ROOT = Path(__file__).parents[2]
VIDEOS = 40


def question(prompt: str) -> object:
    """Yes or no by the text of the question, the same whenever it is asked."""
    return {"analysis": "", "answer": ("Yes", "No", "Unanswerable")[blake2b(prompt.encode()).digest()[0] % 3]}


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    return ByStage(server, {"question": question})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "vcaps"
    folder.mkdir()
    rows = [
        {
            "video_id": f"v{k}",
            "qa": [f"color*Is {n} in video {k}?*{'yes' if n % 2 else 'no'}" for n in range(3)],
        }
        for k in range(VIDEOS)
    ]
    (folder / "VCapsBench_100KQA.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    path = tmp_path / "captions.json"
    path.write_text(json.dumps({f"v{k}.mp4": f"A caption of video {k}." for k in range(VIDEOS)}))
    return path


def requested(
    server: ScriptedJudge, data: Path, by: Path, out: Path, settings: Mapping[str, object] | None = None
) -> EvaluationRequest:
    judges = JudgesConfig(judge=endpoint(server, **(settings or {})))
    return EvaluationRequest(benchmarks=("vcapsbench",), by=str(by), data=data, out=out, judges=judges)


def results(out: Path) -> dict[str, object]:
    """Without what differs from start to start."""
    row: dict[str, object] = json.loads((out / "vcapsbench" / "results.json").read_text())
    return {key: value for key, value in row.items() if key != "seconds"}


def figures(out: Path) -> dict[str, float]:
    metrics = results(out)["metrics"]
    assert isinstance(metrics, dict)
    return {name: value["value"] for name, value in metrics.items()}


def test_a_folder_tells_everything(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    folders = evaluate(requested(server, data, captions, tmp_path / "out"), said.append)
    row = results(tmp_path / "out")
    items = read_items(folders["vcapsbench"] / "items.jsonl")
    counts = {name: sum(item.values[name] for item in items) for name in ("questions", "right", "wrong")}
    assert figures(tmp_path / "out")["ar"] == pytest.approx(100 * counts["right"] / (3 * VIDEOS))
    assert row["items"] == row["valid"] == VIDEOS
    assert row["endpoints"] == {"judge": {"model": "the-judge", "urls": [server.url]}}
    assert row["cost"] == {
        "questions": 3 * VIDEOS,
        "requests": 3 * VIDEOS,
        "prompt_tokens": 30 * VIDEOS,
        "cached_tokens": 0,
        "completion_tokens": 6 * VIDEOS,
    }
    assert row["words_per_caption"] == 5
    assert set(row["prompts"]) == {"caption", "question"}  # type: ignore[call-overload]
    page = (folders["vcapsbench"] / "worst.html").read_text()
    assert page.count("<article>") == VIDEOS
    worst = min(items, key=lambda item: item.values["accuracy"])
    assert page.index("<h2>") == page.index(f"<h2>{worst.id}<")
    assert any(line.startswith("  ar ") for line in said)


def test_a_second_start_asks_nothing_and_changes_nothing(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    request = requested(server, data, captions, tmp_path / "out")
    evaluate(request, print)
    first, asked = results(tmp_path / "out"), len(judge.asked)
    evaluate(request, print)
    (tmp_path / "out" / "vcapsbench" / "results.json").unlink()
    evaluate(request, print)
    assert results(tmp_path / "out") == first
    assert len(judge.asked) == asked == 3 * VIDEOS


@pytest.mark.slow
def test_requests_that_fail_are_told_and_change_no_figure(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    """30% of the requests meet a server error. With tries enough every figure is the true one; without, what was
    measured is right and what was not is counted."""
    evaluate(requested(server, data, captions, tmp_path / "true"), print)
    truth = {item.id: item for item in read_items(tmp_path / "true" / "vcapsbench" / "items.jsonl")}
    generator = np.random.default_rng(0)
    judge.fails = lambda number, stage: bool(generator.random() < 0.3)
    evaluate(requested(server, data, captions, tmp_path / "tried", {"max_tries": 20}), print)
    assert figures(tmp_path / "tried") == figures(tmp_path / "true")
    assert results(tmp_path / "tried")["stages"]["question"]["failed"] == {}  # type: ignore[index,call-overload]

    lost: Counter[str] = Counter()
    judge.fails = lambda number, stage: bool(generator.random() < 0.3)
    evaluate(requested(server, data, captions, tmp_path / "lossy", {"max_tries": 1}), print)
    stage = results(tmp_path / "lossy")["stages"]["question"]  # type: ignore[index,call-overload]
    assert stage["failed"] == {"http_status": pytest.approx(0.3 * 3 * VIDEOS, rel=0.4)}
    assert stage["failure_rate"] == stage["failed"]["http_status"] / (3 * VIDEOS)
    for item in read_items(tmp_path / "lossy" / "vcapsbench" / "items.jsonl"):
        if item.failure is not None:
            lost["all"] += 3
            continue
        gone = int(item.lacking["questions"].split()[0]) if item.lacking else 0
        lost["some"] += gone
        assert item.values["questions"] == 3 - gone
        for name in ("right", "wrong"):
            assert truth[item.id].values[name] - gone <= item.values[name] <= truth[item.id].values[name]
    assert lost.total() == stage["failed"]["http_status"]


_STARTED = """
import sys
from pathlib import Path
from tests.recipes.test_evaluate import requested_by_url
from vcap_jax.recipes.evaluate import evaluate
request = requested_by_url(sys.argv[1], *map(Path, sys.argv[2:5]), sys.argv[5])
evaluate(request, lambda text: print(text, flush=True))
"""


def started(
    server: ScriptedJudge, data: Path, by: Path, out: Path, benchmark: str
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _STARTED, server.url, *map(str, (data, by, out)), benchmark]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def requested_by_url(
    url: str, data: Path, by: Path, out: Path, benchmark: str = "vcapsbench"
) -> EvaluationRequest:
    served = benchmark == "decapbench"
    words = [f"judge.urls=[{url}]", "judge.concurrency=4", *(["captioner.concurrency=1"] if served else [])]
    judges, options, captioner = split_settings(words)
    return EvaluationRequest(
        benchmarks=(benchmark,),
        by=url if served else str(by),
        data=data,
        out=out,
        judges=judges,
        options=options,
        captioner=captioner,
    )


@pytest.mark.long
def test_killed_while_scoring_it_asks_nothing_twice(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    answered = server.answer
    release: list[bool] = []

    def held(body: dict[str, object], number: int) -> object:
        reply = answered(body, number)
        reply.hold = lambda: number < 30 or bool(release)
        return reply

    def kept() -> int:
        path = out / "vcapsbench" / "answers.sqlite"
        try:
            return len(list(read_judgements(path)))
        except (StoreError, sqlite3.Error):  # it is not there yet, or being made
            return 0

    server.answer = held  # type: ignore[assignment]
    process = started(server, data, captions, out, "vcapsbench")
    try:
        until(lambda: server.running == 4 and kept() == 30, "30 answers on disk and 4 questions waiting")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(GUARD_S)
    before = Counter(text for _, text, _ in judge.asked)
    release.append(True)
    until(lambda: server.running == 0, "the answers to a dead process")
    assert not (out / "vcapsbench" / "results.json").exists()
    server.answer = answered
    evaluate(requested_by_url(server.url, data, captions, out), print)
    times = Counter(text for _, text, _ in judge.asked)
    held_ones = [text for text, count in times.items() if count > 1]
    assert len(held_ones) == 4  # those that nobody had answered
    assert all(before[text] == 1 for text in held_ones)
    assert len(times) == 3 * VIDEOS
    evaluate(requested(server, data, captions, tmp_path / "whole"), print)
    assert figures(out) == figures(tmp_path / "whole")


@pytest.mark.long
def test_killed_while_captioning_a_served_model_is_asked_for_no_caption_twice(
    server: ScriptedJudge, tmp_path: Path
) -> None:
    data, out = tmp_path / "decap", tmp_path / "out"
    (data / "images").mkdir(parents=True)
    rows = []
    for k in range(12):
        Image.fromarray(np.full((8, 8, 3), 20 * k, np.uint8)).save(data / "images" / f"{k:02}.png")
        rows.append({"image_name": f"{k:02}.png", "oracle_caption": "grey", "oracle_facts": ["grey"]})
    (data / "IIW_400_data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    captioned: list[str] = []
    release: list[bool] = []

    def answer(body: dict[str, object], number: int) -> Reply:
        if "response_format" in body:
            return Reply(content='{"facts": []}')
        place = len(captioned)
        captioned.append(json.dumps(body["messages"]))
        return Reply(content=f"Caption {place}.", hold=lambda: place < 5 or bool(release))

    server.answer = answer
    process = started(server, data, data, out, "decapbench")
    file = out / "decapbench" / "captions.jsonl"
    try:
        until(
            lambda: server.running == 1 and file.exists() and file.read_bytes().count(b"\n") == 5,
            "five captions on disk and one that is waited for",
        )
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(GUARD_S)
    with file.open("ab") as torn:
        torn.write(b'{"id": "05.png", "capt')
    release.append(True)
    until(lambda: server.running == 0, "the answer to a dead process")
    evaluate(requested_by_url(server.url, data, data, out, "decapbench"), print)
    assert len(captioned) == 12 + 1
    assert sorted(Counter(captioned).values()) == [1] * 11 + [2]  # the one that nobody had answered
    found = [item.captions for item in read_items(out / "decapbench" / "items.jsonl")]
    assert found[:5] == [(f"Caption {k}.",) for k in range(5)]
    row = json.loads((out / "decapbench" / "results.json").read_text())
    assert (row["captioner"]["by"], row["captions_failed"]) == (server.url, 0)
    assert row["captioner"]["sampling"]["temperature"] == 0


def test_scored_by_another_judge_a_caption_that_failed_needs_no_captioner(
    server: ScriptedJudge, tmp_path: Path
) -> None:
    """Its checkpoint may be gone by then."""
    data, out, captioner = tmp_path / "decap", tmp_path / "out", ScriptedJudge()
    (data / "images").mkdir(parents=True)
    rows = []
    for k in range(3):
        Image.fromarray(np.full((8, 8, 3), 20 * k, np.uint8)).save(data / "images" / f"{k}.png")
        rows.append({"image_name": f"{k}.png", "oracle_caption": "grey", "oracle_facts": ["grey"]})
    (data / "IIW_400_data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    captioned: list[int] = []

    def caption(body: dict[str, object], number: int) -> Reply:
        captioned.append(number)
        return Reply(status=400, raw="{}") if len(captioned) == 2 else Reply(content="A caption.")

    captioner.answer = caption
    server.answer = lambda body, number: Reply(content='{"facts": []}')
    request = replace(
        requested_by_url(server.url, data, data, out, "decapbench"),
        by=captioner.url,
        captioner=("judge.concurrency=1", "judge.ready_timeout_s=0.2"),
    )
    try:
        evaluate(request, print)
        server.models = ["another"]
        evaluate(request, print)
        assert len(captioned) == 3
        captioner.stop()
        server.models = ["a third"]
        evaluate(request, print)
        captioner.start()
        evaluate(replace(request, retry_failed=True), print)
        assert len(captioned) == 4
    finally:
        captioner.close()
    row = json.loads((out / "decapbench" / "results.json").read_text())
    assert (row["endpoints"]["judge"]["model"], row["captions_failed"]) == ("a third", 0)


def test_a_picture_of_several_captions_is_on_the_page_once(server: ScriptedJudge, tmp_path: Path) -> None:
    data, out, said = tmp_path / "capmas", tmp_path / "out", list[str]()
    for folder in (data / "images", data / "COVERAGE_TEST_VQA"):
        folder.mkdir(parents=True)
    Image.fromarray(np.full((8, 8, 3), 20, np.uint8)).save(data / "images" / "a.jpg")
    (data / "COVERAGE_TEST_VQA" / "a.json").write_text('{"questions": ["?\\nA) x\\nB) y"], "answers": ["A"]}')
    (data / "data.jsonl").write_text('{"dataset": "IIW-400", "image": "a", "caption": "Grey."}\n')
    answers = {
        "merge": '{"caption": "All grey."}',
        "clair": '{"reason": "", "score": 50}',
        "coverage": '{"Q1": "A"}',
        "propositions": '{"propositions": []}',
    }

    def answer(body: dict[str, object], number: int) -> Reply:
        asked = body.get("response_format")
        if asked is None:
            return Reply(content="A grey thing.")
        return Reply(content=answers[asked["json_schema"]["name"].removeprefix("vcap_")])  # type: ignore[index]

    server.answer = answer
    request = requested(server, data, data, out)
    request = replace(request, benchmarks=("capmas",), by=server.url, options={"captions": "merge5"})
    evaluate(request, said.append)
    page = (out / "capmas" / "worst.html").read_text()
    assert page.count("<article>") == 1
    assert "data:image" in page
    assert not [line for line in said if "could not be drawn" in line]


def test_what_cannot_work_is_told_before_work(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    def run(**changes: object) -> None:
        request = requested(server, data, captions, tmp_path / "out")
        evaluate(EvaluationRequest(**{**vars(request), **changes}), print)  # type: ignore[arg-type]

    with pytest.raises(
        EvaluatorError,
        match=r"--benchmark vcaps is none of this project: give one of capmas, .*, video-qa, or an evaluator of",
    ):
        run(benchmarks=("vcaps",))
    with pytest.raises(
        EvaluatorError, match=r"neither a run, .* nor a file of captions in /.*: check the path"
    ):
        run(by="nowhere/at/all")
    with pytest.raises(EvaluatorError, match="no judge is named"):
        run(judges=JudgesConfig())
    with pytest.raises(EvaluatorError, match=r"^reasoner\.model is of no address: .*--reasoner URL"):
        run(judges=JudgesConfig(judge=endpoint(server), reasoner=JudgeConfig(model="another")))
    with pytest.raises(DataMissing, match="there is no such folder"):
        run(data=tmp_path / "absent")
    with pytest.raises(ConfigError, match="subset"):
        run(options={"subset": "all"})
    with pytest.raises(EvaluatorError, match=r"^limit=20 would change nothing.*options\.limit=20"):
        run(captioner=("limit=20",))
    with pytest.raises(EvaluatorError, match=r"^captioner\.concurrency=9 would change nothing"):
        run(captioner=("judge.concurrency=9",))
    with pytest.raises(EvaluatorError, match=r"^--step would change nothing"):
        run(step=40)
    others = tmp_path / "others.json"
    others.write_text('{"another": "A caption."}')
    with pytest.raises(EvaluatorError, match="none is of a sample of vcapsbench, such as 'v0'"):
        run(by=str(others))
    with pytest.raises(JudgeUnavailable):
        run(
            judges=JudgesConfig(judge=endpoint(server, urls=("http://127.0.0.1:9/v1",), ready_timeout_s=0.01))
        )
    assert not judge.asked


def test_a_model_that_refuses_the_temperature_of_a_stage_is_told_before_work(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    """Stages are asked at the temperature of the public code, whatever the judge's own is set to."""
    refusal = {"error": {"message": "Only the default (1) value is supported.", "param": "temperature"}}
    server.greets = lambda body: (
        Reply(content="Yes.") if body.get("temperature") == 1 else Reply(status=400, raw=json.dumps(refusal))
    )
    request = requested(server, data, captions, tmp_path / "out", {"temperature": 1.0})
    with pytest.raises(JudgeUnavailable, match=r"refuses temperature 0, .*Only the default.*judge\.model"):
        evaluate(request, print)
    assert not judge.asked
    assert not (tmp_path / "out" / "vcapsbench" / "captions.jsonl").exists()


def test_a_second_evaluation_of_a_folder_is_refused_while_the_first_is_at_work(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    """Their captions, answers and results would be mixed."""
    out = tmp_path / "out"
    refused: list[str] = []

    def again(text: str) -> None:
        if "is ready" in text and not refused:
            with pytest.raises(EvaluatorError) as second:
                evaluate(requested(server, data, captions, out), print)
            refused.append(str(second.value))

    evaluate(requested(server, data, captions, out), again)
    (message,) = refused
    assert f"is at work in {out / 'vcapsbench'}: wait until it has ended, or name another --out" in message
    assert len(judge.asked) == 3 * VIDEOS
    evaluate(requested(server, data, captions, out), print)  # it has ended


def test_a_folder_is_for_one_request(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    request = requested(server, data, captions, tmp_path / "out")
    evaluate(request, print)
    captions.write_text(json.dumps({"v0": "Another caption."}))
    with pytest.raises(EvaluatorError, match=r"another captioner .*name another --out"):
        evaluate(request, print)


def test_a_folder_without_any_caption_is_for_whatever_is_asked_next(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    """A mistake that was told before any work is mended by the same command with other words."""
    request = requested(server, data, captions, tmp_path / "out")
    absent = JudgesConfig(judge=endpoint(server, urls=("http://127.0.0.1:9/v1",), ready_timeout_s=0.01))
    with pytest.raises(JudgeUnavailable):
        evaluate(replace(request, judges=absent, options={"limit": 2}), print)
    evaluate(replace(request, options={"limit": 3}), print)
    assert results(tmp_path / "out")["items"] == 3
    with pytest.raises(EvaluatorError, match="holds an evaluation with another options"):
        evaluate(replace(request, options={"limit": 2}), print)


def test_a_captioner_that_is_shown_clips_otherwise_is_another(server: ScriptedJudge, tmp_path: Path) -> None:
    data = tmp_path / "decap"
    (data / "images").mkdir(parents=True)
    Image.fromarray(np.full((8, 8, 3), 20, np.uint8)).save(data / "images" / "00.png")
    row = {"image_name": "00.png", "oracle_caption": "grey", "oracle_facts": ["grey"]}
    (data / "IIW_400_data.jsonl").write_text(json.dumps(row) + "\n")

    def answer(body: dict[str, object], number: int) -> Reply:
        return Reply(content='{"facts": []}' if "response_format" in body else "A caption.")

    server.answer = answer
    request = requested_by_url(server.url, data, data, tmp_path / "out", "decapbench")
    evaluate(request, print)
    evaluate(replace(request, captioner=(*request.captioner, "judge.concurrency=3")), print)
    with pytest.raises(EvaluatorError, match="another settings"):
        evaluate(replace(request, captioner=(*request.captioner, "judge.video_input=frames")), print)


def test_settings_go_to_whom_they_belong() -> None:
    words = ["judge.urls=[http://a]", "reasoner.concurrency=3", "options.limit=5", "options.mode=official"]
    words += ["captioner.concurrency=9", "rollout.max_completion_length=64"]
    judges, options, captioner = split_settings(words)
    assert judges.judge.urls == ("http://a",)
    assert judges.reasoner.concurrency == 3
    assert options == {"limit": 5, "mode": "official"}
    assert captioner == ("judge.concurrency=9", "rollout.max_completion_length=64")


def test_captions_of_no_sample_are_told(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    captions.write_text(json.dumps({**json.loads(captions.read_text()), "x.mp4": "One.", "y": "Two."}))
    said: list[str] = []
    evaluate(requested(server, data, captions, tmp_path / "out"), said.append)
    assert "vcapsbench: left out: captions of 2 names that no sample has, the first: 'x.mp4'" in said


def test_a_text_that_two_benchmarks_would_ask_with_is_refused_before_any_work(
    server: ScriptedJudge, judge: ByStage, captions: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "answer.txt").write_text("{CAPTION} {QUESTION}")
    request = requested(server, tmp_path, captions, tmp_path / "out")
    both = replace(request, benchmarks=("vdc", "prism-mmstar"), options={"prompts": str(tmp_path / "texts")})
    with pytest.raises(TemplateError, match="would be asked with by prism and vdc"):
        evaluate(both, print)
    assert not (tmp_path / "out").exists()


def test_several_benchmarks_have_a_folder_each(
    server: ScriptedJudge, judge: ByStage, data: Path, tmp_path: Path
) -> None:
    both = tmp_path / "both"
    data.rename(both.with_name("moved"))
    both.mkdir()
    both.with_name("moved").rename(both / "vcapsbench")
    decap = both / "decapbench"
    (decap / "images").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(decap / "images" / "v1.png")
    row = {"image_name": "v1.png", "oracle_caption": "x", "oracle_facts": ["x"]}
    (decap / "IIW_400_data.jsonl").write_text(json.dumps(row) + "\n")
    judge.answers = {"question": question, "decompose": lambda prompt: {"facts": []}}
    by = tmp_path / "lines.jsonl"
    by.write_text('{"video_id": "v1", "caption": "A caption."}\n')
    request = requested(server, both, by, tmp_path / "out")
    names = ("vcapsbench", "decapbench")
    folders = evaluate(EvaluationRequest(**{**vars(request), "benchmarks": names}), print)
    assert list(folders) == list(names)
    assert (
        json.loads((folders["decapbench"] / "results.json").read_text())["metrics"]["dcscore"]["value"] == 0
    )
    assert json.loads((folders["vcapsbench"] / "results.json").read_text())["captions_failed"] == VIDEOS - 1
    # An option goes to those that know it; one that nobody knows is refused.
    asked = {**vars(request), "benchmarks": ("decapbench", "vdc"), "out": tmp_path / "more"}
    with pytest.raises(DataMissing, match=r"background\.jsonl"):
        evaluate(EvaluationRequest(**{**asked, "options": {"seed": 1, "limit": 2}}), print)
    noted = json.loads((tmp_path / "more" / "decapbench" / "request.json").read_text())
    assert noted["options"] == {"mode": "strict", "limit": 2}
    for changes in ({"options": {"sead": 1}}, {"options": {"seed": 1}, "benchmarks": ("decapbench",)}):
        with pytest.raises(ConfigError, match=r"benchmark decapbench:\D+se[ae]d .* unknown key"):
            evaluate(EvaluationRequest(**{**asked, **changes}), print)


def test_another_judge_scores_the_captions_anew(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    evaluate(requested(server, data, captions, tmp_path / "out"), print)
    first = figures(tmp_path / "out")
    other = ScriptedJudge()
    other.models = ["a-milder-judge"]
    try:
        mild = ByStage(other, {"question": lambda prompt: {"analysis": "", "answer": "Yes"}})
        said: list[str] = []
        evaluate(requested(other, data, captions, tmp_path / "out"), said.append)
        assert any("was scored by judge the-judge: it is scored anew" in line for line in said)
        evaluate(requested(other, data, captions, tmp_path / "out"), print)
        assert len(mild.asked) == 3 * VIDEOS
    finally:
        other.close()
    row = results(tmp_path / "out")
    assert row["endpoints"]["judge"]["model"] == "a-milder-judge"  # type: ignore[index,call-overload]
    assert figures(tmp_path / "out")["cr"] == 100 != first["cr"]
    # It has gone; whoever asks for it again gets what is there, and the first judge's answers are there too.
    evaluate(requested(other, data, captions, tmp_path / "out"), print)
    assert figures(tmp_path / "out")["cr"] == 100
    evaluate(requested(server, data, captions, tmp_path / "out"), print)
    assert figures(tmp_path / "out") == first
    assert len(judge.asked) == 3 * VIDEOS


def test_figures_count_though_their_page_cannot_be_drawn(
    server: ScriptedJudge,
    judge: ByStage,
    data: Path,
    captions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ValueError("no such picture")

    monkeypatch.setattr("vcap_jax.recipes.evaluate.write_worst_page", broken)
    said: list[str] = []
    evaluate(requested(server, data, captions, tmp_path / "out"), said.append)
    assert any("worst.html could not be drawn: ValueError: no such picture" in line for line in said)
    assert results(tmp_path / "out")["failed"] == 0


def test_data_that_have_changed_are_scored_anew(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    """A newer edition of the public files with the same samples; the old figures would be taken for it."""
    request = requested(server, data, captions, tmp_path / "out")
    evaluate(request, print)
    first, file = figures(tmp_path / "out"), data / "VCapsBench_100KQA.jsonl"
    data.rename(data.with_name("elsewhere"))
    evaluate(replace(request, data=data.with_name("elsewhere")), print)
    assert len(judge.asked) == 3 * VIDEOS, "where they lie does not matter"
    data.with_name("elsewhere").rename(data)
    file.write_text(file.read_text().replace("*yes", "*no"))
    said: list[str] = []
    evaluate(request, said.append)
    assert any("questions, answers or references have changed: it is scored anew" in line for line in said)
    assert figures(tmp_path / "out")["ar"] != first["ar"]
    assert len(judge.asked) == 3 * VIDEOS, "the questions are the same, and so are their answers"


def test_captions_are_not_taken_for_those_of_other_pictures_of_the_same_ids(
    server: ScriptedJudge, tmp_path: Path
) -> None:
    """A newer edition of a table that holds its pictures."""

    def edition(*shades: int) -> None:
        lines = ["index\timage\tquestion\tA\tB\tanswer"]
        for index, shade in enumerate(shades):
            buffer = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(buffer, "PNG")
            lines.append(f"{index}\t{base64.b64encode(buffer.getvalue()).decode()}\tWhat?\tcat\tdog\tA")
        (tmp_path / "VStarBench.tsv").write_text("\n".join(lines) + "\n")

    def answer(body: dict[str, object], number: int) -> Reply:
        return Reply(content='{"Answer": "A"}' if "response_format" in body else "A cat.")

    server.answer = answer
    request = requested_by_url(server.url, tmp_path, tmp_path, tmp_path / "out", "prism-vstar")
    request = replace(request, by=server.url)
    edition(10, 20)
    evaluate(request, print)
    edition(10, 30)
    with pytest.raises(EvaluatorError, match=r"another pictures .*name another --out"):
        evaluate(request, print)


def test_answers_that_an_earlier_version_read_otherwise_are_read_anew(
    server: ScriptedJudge,
    judge: ByStage,
    data: Path,
    captions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = requested(server, data, captions, tmp_path / "out")
    evaluate(request, print)
    path = tmp_path / "out" / "vcapsbench" / "results.json"
    row = json.loads(path.read_text())
    assert row["reading"] == 1
    del row["reading"], row["metrics"]["ar"]  # as an earlier version left it
    path.write_text(json.dumps(row))
    evaluate(request, print)
    assert json.loads(path.read_text()) == row
    monkeypatch.setattr(VCapsBench, "reading", 2)
    said: list[str] = []
    evaluate(request, said.append)
    assert any(
        "by an earlier version, which read the answers otherwise: it is scored" in line for line in said
    )
    row = json.loads(path.read_text())
    assert row["reading"] == 2
    assert "ar" in row["metrics"]
    assert len(judge.asked) == 3 * VIDEOS, "the answers are there"


@pytest.mark.slow
def test_a_reasoner_that_is_named_later_scores_anew(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    request = requested(server, data, captions, tmp_path / "out")
    evaluate(request, print)
    reasoner = ScriptedJudge()
    reasoner.models = ["a-reasoner"]
    try:
        ByStage(reasoner, {"question": lambda prompt: {"analysis": "", "answer": "Yes"}})
        judges = JudgesConfig(judge=request.judges.judge, reasoner=endpoint(reasoner))
        evaluate(replace(request, judges=judges), print)
    finally:
        reasoner.close()
    assert set(results(tmp_path / "out")["endpoints"]) == {"judge", "reasoner"}  # type: ignore[call-overload]
    evaluate(request, print)
    assert set(results(tmp_path / "out")["endpoints"]) == {"judge"}  # type: ignore[call-overload]


def test_what_failed_is_tried_again_where_that_is_asked_for(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    judge.fails = lambda number, stage: number % 4 == 0
    request = requested(server, data, captions, tmp_path / "out", {"max_tries": 1})
    said: list[str] = []
    evaluate(request, said.append)
    assert any("the same command with --retry-failed tries again what failed" in line for line in said)
    asked = len(judge.asked)
    gone = results(tmp_path / "out")["stages"]["question"]["failed"]["http_status"]  # type: ignore[index,call-overload]
    judge.fails = lambda number, stage: False
    evaluate(request, print)
    assert len(judge.asked) == asked, "without the option the failures stand"
    for _ in range(2):
        evaluate(replace(request, retry_failed=True), print)
        assert len(judge.asked) == asked + gone > asked, (
            "only what failed, and once there is nothing, nobody is asked"
        )
    evaluate(requested(server, data, captions, tmp_path / "whole"), print)
    assert figures(tmp_path / "out") == figures(tmp_path / "whole")


def test_a_judge_that_answers_nothing_is_no_success(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    """It refuses every question, as a server does that does not know a field of it: 400 is not asked again."""
    answered, request = server.answer, requested(server, data, captions, tmp_path / "out")
    server.answer = lambda body, number: Reply(
        status=400, raw='{"error": {"message": "Unsupported parameter: max_tokens"}}'
    )
    words = f"vcapsbench: none of the {3 * VIDEOS} questions of the stage question was answered .*Unsupported"
    for _ in range(2):
        with pytest.raises(NothingMeasured, match=words):
            evaluate(request, print)
    assert results(tmp_path / "out")["failed"] == VIDEOS
    server.answer = answered
    evaluate(replace(request, retry_failed=True), print)
    assert results(tmp_path / "out")["failed"] == 0


def test_without_any_caption_nothing_is_measured(
    server: ScriptedJudge, judge: ByStage, data: Path, captions: Path, tmp_path: Path
) -> None:
    request = requested(server, data, captions, tmp_path / "out")
    evaluate(request, print)
    row = json.loads((tmp_path / "out" / "vcapsbench" / "results.json").read_text())
    assert unmeasured(row) == ""
    nothing = {name: value | {"value": None} for name, value in row["metrics"].items()}
    assert "all 40 samples failed" in unmeasured(row | {"metrics": nothing, "failed": VIDEOS})
    # A figure that is of nothing here, as a source of which no clip was asked for, is no failure.
    assert unmeasured(row | {"metrics": row["metrics"] | {"f1/youtube": {"value": None}}}) == ""
