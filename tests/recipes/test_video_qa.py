"""Video QA by another harness: the command that is built, what is believed of it, and what is read back.

The harness here is a small program that writes what release 0.7.3 writes, or fails as it does: with exit status 0.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evals.benchmarks.by_stage import endpoint
from tests.evals.benchmarks.test_lmms_eval import FAILED, mlvu
from tests.patience import GUARD_S, until
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.commands.evaluate import main
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
    own = {name: value for name, value in os.environ.items() if name.startswith(("HF_", "OPENAI_", "LMMS_", "MODEL_"))}
    called.write(json.dumps({"arguments": sys.argv[1:], "environment": own}) + "\n")
print("Loading the data set", file=sys.stderr)
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
    monkeypatch.setenv("OPENAI_API_KEY", "of another service")
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
