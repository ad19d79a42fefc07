"""The page's own evaluator, and those of tests, on captioners that are there already."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest

from tests.captioning.engine import ReadingEngine, write_pictures
from tests.evals.own_evaluators import Words
from vcap_jax.captioning.captioner import Captioner
from vcap_jax.commands.evaluate import main
from vcap_jax.evals.benchmarks.comparison import read_results
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.recipes import evaluation_captions
from vcap_jax.recipes.evaluate import NothingMeasured
from vcap_jax.recipes.evaluate_own import evaluate_own
from vcap_jax.recipes.evaluation_request import EvaluationRequest, JudgesConfig
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.training.checkpoint import Checkpointer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add_an_evaluation.md"
OWN = "tests.evals.own_evaluators"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[ReadingEngine]:
    """What was loaded, in place of policies."""
    engines: list[ReadingEngine] = []

    def load(by: str, *, step: int | None = None, **settings: object) -> Captioner:
        engines.append(ReadingEngine(f"{by} at step {step}"))
        return Captioner(engines[-1])

    monkeypatch.setattr(evaluation_captions.Captioner, "load", load)
    return engines


@pytest.fixture
def request_(tmp_path: Path) -> EvaluationRequest:
    """Of a run of one checkpoint, and a manifest of three pictures, one of which is gone."""
    write_pictures(tmp_path, 2)
    rows = [{"id": f"p{k}", "image": f"{k:03d}.png"} for k in range(3)]
    (tmp_path / "heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = RunFolder.open(tmp_path / "mine", RunConfig())
    with Checkpointer(run.checkpoints) as checkpoints:
        checkpoints.save(100, {"params": jnp.zeros(1)})
    return EvaluationRequest(
        benchmarks=(f"{OWN}:Words",),
        by=str(run.root),
        data=Path(),
        out=tmp_path / "out",
        judges=JudgesConfig(),
        options={"manifest": str(tmp_path / "heldout.jsonl")},
    )


def results(folder: Path) -> dict[str, object]:
    row: dict[str, object] = json.loads((folder / "results.json").read_text())
    return {key: value for key, value in row.items() if key != "seconds"}


def test_the_pages_evaluator_measures_a_checkpoint_by_the_pages_command(
    loaded: list[ReadingEngine],
    request_: EvaluationRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (command,) = re.findall(r"evaluate\.py (--benchmark my_evaluation:Mentions.*?)\n```", page, re.S)
    (tmp_path / "my_evaluation.py").write_text(source)
    (tmp_path / "runs").mkdir()
    (tmp_path / "mine").rename(tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = command.replace("\\\n", "").replace('"', "").replace("options.words=red blue green", "").split()
    assert main([*words, "options.words=describe"]) == 0
    row = results(tmp_path / "results" / "mine" / "mentions")
    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    assert (metrics["said"]["value"], metrics["length"]["value"], metrics["said"]["n"]) == (0.0, 3.0, 2)
    assert (row["items"], row["failed"], row["shares"]) == (3, 1, ["said"])
    assert (row["evaluator"], row["captioner"]["by"]) == ("my_evaluation:Mentions", "runs/mine")  # type: ignore[index]
    assert "of 3 samples 1 failed" in capsys.readouterr().out
    assert len(loaded) == 1


def test_captions_stay_and_figures_are_made_anew(
    loaded: list[ReadingEngine], request_: EvaluationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = evaluate_own(request_, print)
    first = results(folder)
    drawn = sum(len(batch) for batch in loaded[0].batches)
    assert (folder.name, drawn) == ("words", 3 + 2)  # it asks twice, of two samples again
    assert evaluate_own(request_, print) == folder
    assert results(folder) == first
    assert len(loaded) == 1

    def measure(self: Words, captions: object) -> Mapping[str, float]:
        return {"words": -1.0}

    monkeypatch.setattr(Words, "measure", measure)  # its author has had another idea
    evaluate_own(request_, print)
    assert results(folder)["metrics"]["words"]["value"] == -1  # type: ignore[index]
    assert len(loaded) == 1
    said: list[str] = []
    evaluate_own(replace(request_, retry_failed=True), said.append)
    assert len(loaded) == 2
    assert sum(len(batch) for batch in loaded[1].batches) == 1  # what is gone, once more
    assert not any("--retry-failed" in line for line in said)


def test_other_samples_under_the_same_ids_are_captioned_anew(
    loaded: list[ReadingEngine], request_: EvaluationRequest, tmp_path: Path
) -> None:
    folder = evaluate_own(request_, print)
    before = (folder / "items.jsonl").read_text()
    (tmp_path / "others").mkdir()
    write_pictures(tmp_path / "others", 3)
    (tmp_path / "heldout.jsonl").rename(tmp_path / "others" / "heldout.jsonl")
    options = {"manifest": str(tmp_path / "others" / "heldout.jsonl")}
    evaluate_own(replace(request_, options=options), print)
    assert (folder / "items.jsonl").read_text() != before
    assert results(folder)["failed"] == 0


def test_captions_of_two_are_not_mixed(loaded: list[ReadingEngine], request_: EvaluationRequest) -> None:
    evaluate_own(request_, print)
    with pytest.raises(EvaluatorError, match="holds an evaluation with another temperature"):
        evaluate_own(replace(request_, temperature=1.0), print)


def test_a_file_of_captions_is_measured_without_a_captioner(
    loaded: list[ReadingEngine], request_: EvaluationRequest, tmp_path: Path
) -> None:
    written = tmp_path / "captions.json"
    written.write_text(json.dumps({"p0": "a red cube", "p1": "a cube"}))
    row = results(evaluate_own(replace(request_, by=str(written)), print))
    assert (row["metrics"]["words"]["value"], row["failed"]) == (2.5, 1)  # type: ignore[index]
    assert loaded == []
    with pytest.raises(EvaluatorError, match="--step would change nothing"):
        evaluate_own(replace(request_, by=str(written), step=3), print)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("absent_module:Words", "absent_module cannot be imported"),
        (f"{OWN}:Unmade", "no such setting"),
        (f"{OWN}:Elsewhere", "has nothing to evaluate"),
        (f"{OWN}:Raising", "the evaluation 'bare' failed: KeyError"),
        (f"{OWN}:Twice", "captions of 'p0' are asked for twice at once"),
    ],
)
def test_mistakes_are_told(
    loaded: list[ReadingEngine], request_: EvaluationRequest, use: str, message: str
) -> None:
    with pytest.raises(EvaluatorError, match=message):
        evaluate_own(replace(request_, benchmarks=(use,)), print)
    assert loaded == []


def test_nothing_measured_ends_in_an_error_once_it_is_written(
    loaded: list[ReadingEngine], request_: EvaluationRequest, tmp_path: Path
) -> None:
    (tmp_path / "heldout.jsonl").write_text(json.dumps({"id": "gone", "image": "gone.png"}) + "\n")
    with pytest.raises(NothingMeasured, match="words: all 1 samples failed"):
        evaluate_own(request_, print)
    assert results(tmp_path / "out" / "words")["failed"] == 1


def test_an_evaluator_of_ones_own_is_asked_for_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--benchmark", "a:B,capmas"], ["--benchmark", "a:B", "--follow"]):
        assert main([*words, "--by", "runs/mine"]) == 1
        assert "an evaluator of your own is asked for alone" in capsys.readouterr().err
    assert main(["--benchmark", "capmas", "--by", "runs/mine"]) == 1
    assert "--data is needed" in capsys.readouterr().err


def test_tables_of_benchmarks_go_without_it(
    loaded: list[ReadingEngine], request_: EvaluationRequest, tmp_path: Path
) -> None:
    evaluate_own(request_, print)
    with pytest.raises(EvaluatorError, match="results of evaluators of your own alone"):
        read_results({"mine": tmp_path / "out"})
