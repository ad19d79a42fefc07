"""Video QA by another harness: the command that is built, what is believed of it, and what is read back.

The harness here is a small program that writes what release 0.7.3 writes, or fails as it does: with exit status 0.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evals.benchmarks.by_stage import endpoint
from tests.evals.benchmarks.test_lmms_eval import FAILED, mlvu
from tests.patience import GUARD_S, until
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.commands.evaluate import main
from vcap_jax.evals.benchmarks.choices import READING
from vcap_jax.evals.protocol import EvaluatorError, read_items
from vcap_jax.recipes.video_qa import VideoQaRequest, evaluate_video_qa
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.errors import JudgeUnavailable

ROOT = Path(__file__).parents[2]

HARNESS = r"""#!PYTHON
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
if sys.argv[1] == "-c":
    print((here / "version").read_text())
    sys.exit((here / "version").read_text() == "")
with (here / "called.jsonl").open("a") as called:
    known = ("HF_", "OPENAI_", "LMMS_", "MODEL_", "API_TYPE")
    own = {name: value for name, value in os.environ.items() if name.startswith(known)}
    called.write(json.dumps({"arguments": sys.argv[1:], "environment": own}) + "\n")
print("Loading the data set", file=sys.stderr)
print((here / "says").read_text(), file=sys.stderr)
samples = json.loads((here / "samples.json").read_text())
if samples == "sleep":
    import time
    (here / "asleep").write_text(str(os.getpid()))
    time.sleep(600)
if not samples:
    print("FileNotFoundError: no such data set")
    sys.exit(0)
out = pathlib.Path(sys.argv[sys.argv.index("--output_path") + 1]) / "org__model"
out.mkdir(parents=True, exist_ok=True)
results = {task: {"metric,none": 1.0} for task in samples}
(out / "20261122_100000_results.json").write_text(json.dumps({"results": results}))
for task, rows in samples.items():
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (out / f"20261122_100000_samples_{task}.jsonl").write_text(text)
"""

ROWS = [mlvu(0, "B", "B", "B"), mlvu(1, "(b)", "", "B"), mlvu(2, FAILED, "D", "D"), mlvu(3, "C", "C", "A")]


@pytest.fixture
def harness(tmp_path: Path) -> Path:
    """Its folder, with the program ``python``."""
    folder = tmp_path / "env"
    folder.mkdir()
    program = folder / "python"
    program.write_text(HARNESS.replace("PYTHON", sys.executable))
    program.chmod(0o755)
    (folder / "version").write_text("0.7.3")
    (folder / "says").write_text("")
    (folder / "samples.json").write_text(json.dumps({"mlvu_dev": ROWS}))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "hf" / "mlvu").mkdir(parents=True)
    return tmp_path / "hf"


def calls(harness: Path) -> list[dict[str, object]]:
    path = harness / "called.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def request(server: ScriptedJudge, program: Path, data: Path, **options: object) -> VideoQaRequest:
    own = {"data": str(data), "suites": "mlvu", "harness": str(program / "python"), **options}
    return VideoQaRequest(
        by=server.url.removesuffix("/v1"),
        out=program.parent / "out",
        options=own,  # type: ignore[arg-type]
        ready_timeout_s=0.2,
    )


def test_the_harness_is_asked_and_its_samples_read(
    server: ScriptedJudge, harness: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_API_URL", "MODEL_VERSION", "API_TYPE"):
        monkeypatch.setenv(name, "of another service")
    said: list[str] = []
    folder = evaluate_video_qa(request(server, harness, data, limit=4), said.append)
    (call,) = calls(harness)
    arguments = call["arguments"]
    assert isinstance(arguments, list)
    assert f"model_version=the-judge,base_url={server.url}," in arguments[6]
    assert arguments[-2:] == ["--limit", "4"]
    assert call["environment"] == {
        "HF_HOME": str(data),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "LMMS_IMAGE_ENCODE_FORMAT": "JPEG",
        "OPENAI_API_KEY": "EMPTY",
    }
    row = json.loads((folder / "results.json").read_text())
    # Of the three answers one is right by the harness, two by our reader; the fourth question failed.
    assert row["metrics"]["harness/mlvu"]["value"] == pytest.approx(100 / 3)
    assert row["metrics"]["parsed/mlvu"]["value"] == pytest.approx(200 / 3)
    assert (row["items"], row["failed"]) == (4, 1)
    assert row["questions"]["mlvu"] == {"published": 2174, "read": 4, "failed": 1, "no option read": 0}
    assert row["harness"]["figures"] == {"mlvu_dev": {"metric,none": 1.0}}
    assert len(read_items(folder / "items.jsonl")) == 4
    assert any(line.startswith("video-qa: ") and "-m lmms_eval eval" in line for line in said)
    assert any("4 questions, of 2174 that are published" in line for line in said)
    # Again nothing is asked; without the results the harness's files are read again; another request is refused.
    evaluate_video_qa(request(server, harness, data, limit=4), said.append)
    (folder / "results.json").unlink()
    evaluate_video_qa(request(server, harness, data, limit=4), said.append)
    assert len(calls(harness)) == 1
    (folder / "results.json").unlink()
    with pytest.raises(EvaluatorError, match="with another limit"):
        evaluate_video_qa(request(server, harness, data, limit=5), said.append)


def test_a_folder_of_own_tasks_is_given_and_noted_by_its_whole_path(
    server: ScriptedJudge, harness: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    folder = evaluate_video_qa(request(server, harness, data, include="mine"), print)
    (call,) = calls(harness)
    assert call["arguments"][-2:] == ["--include_path", str(data / "mine")]  # type: ignore[index]
    noted = json.loads((folder / "request.json").read_text())
    assert noted == {
        "model": "the-judge",
        "url": server.url,
        "tasks": ["mlvu_dev"],
        "concurrency": 32,
        "timeout_s": 600,
        "fps": 2.0,
        "max_frames": 200,
        "max_pixels": 262144,
        "qwen3_vl": True,
        "limit": None,
        "max_new_tokens": None,
        "include": str(data / "mine"),
        "judge": [],
        "judge_model": None,
        "data": str(data),
    }


def test_results_that_are_there_are_held_to_the_request(
    server: ScriptedJudge, harness: Path, data: Path
) -> None:
    asked = request(server, harness, data)
    evaluate_video_qa(asked, print)
    with pytest.raises(EvaluatorError, match="with another limit"):
        evaluate_video_qa(request(server, harness, data, limit=5), print)
    other = JudgeConfig(urls=("http://127.0.0.1:9",), model="a-judge")
    with pytest.raises(EvaluatorError, match="with another judge"):
        evaluate_video_qa(replace(asked, judge=other), print)
    server.models = ["another"]
    with pytest.raises(EvaluatorError, match=r'with another model \("the-judge", now "another"\)'):
        evaluate_video_qa(asked, print)
    server.stop()
    evaluate_video_qa(asked, print)
    assert len(calls(harness)) == 1


def test_what_an_earlier_reader_made_of_the_harness_is_read_anew(
    server: ScriptedJudge, harness: Path, data: Path
) -> None:
    asked = request(server, harness, data)
    folder = evaluate_video_qa(asked, print)
    first = json.loads((folder / "results.json").read_text())
    earlier = {key: value for key, value in first.items() if key != "reading"} | {"metrics": {}}
    (folder / "results.json").write_text(json.dumps(earlier))
    said: list[str] = []
    server.stop()
    evaluate_video_qa(asked, said.append)
    assert any("what the harness left is read anew" in line for line in said)
    again = json.loads((folder / "results.json").read_text())
    assert (again["metrics"], again["reading"]) == (first["metrics"], READING)
    assert len(calls(harness)) == 1
    (folder / "results.json").write_text(json.dumps(earlier))
    shutil.rmtree(folder / "harness")
    with pytest.raises(EvaluatorError, match="is not there: name another --out"):
        evaluate_video_qa(asked, print)


@pytest.fixture
def judge() -> Iterator[ScriptedJudge]:
    """Another server, which judges."""
    server = ScriptedJudge()
    server.models = ["a-reader"]
    yield server
    server.close()


MMVU = [
    {"doc_id": 0, "accuracy": {"correct": 1, "answer": "gold"}, "filtered_resps": ["gold"]},
    {"doc_id": 1, "accuracy": {"correct": 0, "answer": "a cat"}, "filtered_resps": ["a dog"]},
]


@pytest.fixture
def judged(server: ScriptedJudge, judge: ScriptedJudge, harness: Path, data: Path) -> VideoQaRequest:
    """For MMVU, with the judge's address alone."""
    (data / "mmvu").mkdir()
    (harness / "samples.json").write_text(json.dumps({"mmvu_val": MMVU}))
    asked = request(server, harness, data, suites="mmvu")
    return replace(asked, judge=JudgeConfig(urls=(judge.url.removesuffix("/v1"),), ready_timeout_s=0.2))


def test_the_judge_is_asked_by_the_name_that_it_has(
    judge: ScriptedJudge, judged: VideoQaRequest, harness: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_VERSION", "of another service")
    monkeypatch.setenv("API_TYPE", "azure")
    folder = evaluate_video_qa(judged, print)
    (call,) = calls(harness)
    told = call["environment"]
    assert isinstance(told, dict)
    assert (told["API_TYPE"], told["MODEL_VERSION"]) == ("openai", "a-reader")
    assert (told["OPENAI_API_URL"], told["OPENAI_API_KEY"]) == (judge.url, "EMPTY")
    row = json.loads((folder / "results.json").read_text())
    assert row["endpoints"] == {"judge": {"model": "a-reader", "urls": list(judged.judge.urls)}}
    assert row["metrics"]["harness/mmvu"]["value"] == 50
    # Results are of that judge; those that were noted without one are of nobody knows whom.
    evaluate_video_qa(judged, print)
    judge.models = ["another"]
    with pytest.raises(EvaluatorError, match=r'with another judge_model \("a-reader", now "another"\)'):
        evaluate_video_qa(judged, print)
    noted = json.loads((folder / "request.json").read_text())
    (folder / "request.json").write_text(json.dumps(noted | {"judge_model": None}))
    with pytest.raises(EvaluatorError, match=r'with another judge_model \(null, now "another"\)'):
        evaluate_video_qa(judged, print)
    judge.stop()
    evaluate_video_qa(judged, print)
    assert len(calls(harness)) == 1


def test_a_judge_that_cannot_be_asked_is_told_before_the_harness_runs(
    judge: ScriptedJudge, judged: VideoQaRequest, harness: Path
) -> None:
    judge.models = ["one", "two"]
    with pytest.raises(JudgeUnavailable, match=r"judge\.model"):
        evaluate_video_qa(judged, print)
    judge.stop()
    with pytest.raises(JudgeUnavailable, match=f"the judge.*{judge.port}"):
        evaluate_video_qa(judged, print)
    assert not calls(harness)


@pytest.mark.parametrize(
    ("captioner", "of_judge", "key", "alone"),
    [
        (None, None, "EMPTY", False),
        (None, "ITS", "its", True),
        ("MINE", "MINE", "mine", False),
        ("MINE", "SAME", "mine", False),
        ("MINE", None, r"say --judge-key-env MINE", None),
        ("MINE", "ITS", "--api-key-env MINE and --judge-key-env ITS hold two", None),
        (None, "UNSET", "variable UNSET is not set", None),
    ],
)
def test_the_one_key_goes_to_nobody_that_it_is_not_for(
    judged: VideoQaRequest,
    harness: Path,
    monkeypatch: pytest.MonkeyPatch,
    captioner: str | None,
    of_judge: str | None,
    key: str,
    alone: bool | None,
) -> None:
    for name, value in (("MINE", "mine"), ("SAME", "mine"), ("ITS", "its")):
        monkeypatch.setenv(name, value)
    asked = replace(judged, api_key_env=captioner, judge=replace(judged.judge, api_key_env=of_judge))
    if alone is None:
        with pytest.raises(EvaluatorError, match=key):
            evaluate_video_qa(asked, print)
        assert not calls(harness)
        return
    folder = evaluate_video_qa(asked, print)
    (call,) = calls(harness)
    assert call["environment"]["OPENAI_API_KEY"] == key  # type: ignore[index]
    # Only what is no secret stands on the command line.
    assert ("api_key=EMPTY" in call["arguments"][6]) == alone  # type: ignore[index]
    assert "its" not in (folder / "request.json").read_text()


def test_answers_that_the_judge_did_not_give_are_no_wrong_answers(
    judged: VideoQaRequest, harness: Path
) -> None:
    (harness / "says").write_text(
        "OpenAI judge failed: 404\nAttempt 1/5 failed: 404\nOpenAI judge failed: 404\n"
    )
    for _ in range(2):  # the harness's results are there the second time
        with pytest.raises(
            EvaluatorError, match=r"did not answer 2 questions.*judge failed: 404.*move .*harness"
        ):
            evaluate_video_qa(judged, print)
    assert len(calls(harness)) == 1
    (judged.out / "video-qa" / "harness").rename(harness / "moved")
    (harness / "says").write_text("")
    folder = evaluate_video_qa(judged, print)
    assert (folder / "results.json").exists()
    assert len(calls(harness)) == 2


def test_a_folder_in_which_the_harness_left_nothing_is_for_whatever_is_asked_next(
    server: ScriptedJudge, harness: Path, data: Path
) -> None:
    """A setting was wrong, and the harness failed of it."""
    (harness / "samples.json").write_text("{}")
    with pytest.raises(EvaluatorError, match="left no results of mlvu_dev"):
        evaluate_video_qa(request(server, harness, data, max_frames=400), print)
    (harness / "samples.json").write_text(json.dumps({"mlvu_dev": ROWS}))
    folder = evaluate_video_qa(request(server, harness, data, max_frames=64), print)
    assert json.loads((folder / "request.json").read_text())["max_frames"] == 64
    with pytest.raises(EvaluatorError, match="with another max_frames"):
        evaluate_video_qa(request(server, harness, data, max_frames=400), print)


def test_exit_status_0_without_results_is_a_failure(server: ScriptedJudge, harness: Path, data: Path) -> None:
    (harness / "samples.json").write_text("{}")
    with pytest.raises(EvaluatorError, match=r"left no results of mlvu_dev.*no such data set"):
        evaluate_video_qa(request(server, harness, data), print)
    (harness / "samples.json").write_text(json.dumps({"lvbench": []}))  # those of another task
    with pytest.raises(EvaluatorError, match="left no results of mlvu_dev"):
        evaluate_video_qa(request(server, harness, data), print)


def test_what_is_wrong_is_told_before_the_harness_runs(
    server: ScriptedJudge, harness: Path, data: Path, tmp_path: Path
) -> None:
    def fails(error: type[Exception], words: str, **options: object) -> None:
        with pytest.raises(error, match=words):
            evaluate_video_qa(request(server, harness, data, **options), print)

    fails(
        EvaluatorError,
        r"lmms-eval is not installed in .*pip install .*lmms-eval==0\.7\.3",
        harness="no/python",
    )
    fails(EvaluatorError, "'mlvo' is none of mmvu, mlvu", suites="mlvo")
    fails(EvaluatorError, "mmvu has open questions", suites="mmvu,mlvu")
    fails(EvaluatorError, r"lvbench does not exist.*options\.offline=false", suites="lvbench")
    fails(EvaluatorError, "name that one in", suites="mlvu,lvbench", tasks="own")
    server.models = ["a,b"]
    fails(EvaluatorError, "holds a comma")
    server.stop()
    fails(JudgeUnavailable, server.url.removesuffix("/v1"))
    server.start()
    (harness / "version").write_text("")
    fails(EvaluatorError, "lmms-eval is not installed")
    assert not calls(harness)


def test_the_command_line_hands_it_on(
    server: ScriptedJudge, harness: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--benchmark", "video-qa", "--by", server.url, "--data", str(data)]
    words += ["--out", str(harness / "out"), "--judge", endpoint(server).urls[0]]
    own = [f"options.harness={harness / 'python'}", "options.suites=mlvu"]
    assert main([*words, *own]) == 0
    assert "harness/mlvu" in capsys.readouterr().out
    (call,) = calls(harness)
    assert call["environment"]["OPENAI_API_URL"] == server.url  # type: ignore[index]
    assert [path.name for path in (harness / "out").iterdir()] == ["video-qa"]
    words[1] = "video-qa,capmas"
    assert main([*words, *own]) == 1
    assert "ask for it alone" in capsys.readouterr().err
    words[1] = "video-qa"
    for more in (
        ["data.max_frames=64"],
        ["judge.max_tokens=9"],
        ["--temperature", "0.7"],
        ["--step", "100"],
        ["--seed", "1"],
    ):
        assert main([*words, *own, *more]) == 1
        said = capsys.readouterr().err
        assert f"{more[0]} would change nothing" in said
        assert "options.max_frames" in said


@pytest.mark.slow
def test_a_signal_ends_the_harness_too(server: ScriptedJudge, harness: Path, data: Path) -> None:
    (harness / "samples.json").write_text('"sleep"')
    command = [
        sys.executable,
        str(ROOT / "launch" / "evaluate.py"),
        "--benchmark",
        "video-qa",
        "--by",
        server.url,
    ]
    command += ["--data", str(data), "--out", str(harness / "out"), "options.suites=mlvu"]
    process = subprocess.Popen([*command, f"options.harness={harness / 'python'}"], stderr=subprocess.PIPE)
    try:
        until(lambda: (harness / "asleep").exists() and (harness / "asleep").read_text() != "", "the harness")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert b"go on with:" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int((harness / "asleep").read_text()), 0)
