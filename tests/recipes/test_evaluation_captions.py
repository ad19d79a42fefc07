"""Captions that are there are taken up only if they are by the captioner that is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.captioning.engine import ReadingEngine
from tests.evals.benchmarks.by_stage import ByStage, endpoint
from tests.reward.scripted_judge import Reply, ScriptedJudge
from vcap_jax.captioning.captioner import Captioner
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.recipes import evaluation_captions
from vcap_jax.recipes.evaluate import evaluate
from vcap_jax.recipes.evaluation_request import EvaluationRequest, JudgesConfig
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.training.checkpoint import Checkpointer


class Loaded:
    """Stands for what loads captioners. times: how often it did. weights: of what it loads."""

    def __init__(self) -> None:
        self.times, self.weights = 0, "those"

    def load(self, by: str, *, step: int | None = None, **settings: object) -> Captioner:
        self.times += 1
        loaded = self

        class Engine(ReadingEngine):
            def weights(self) -> str | None:
                return loaded.weights

        return Captioner(Engine(by if step is None else f"{by} at step {step}"))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    found = Loaded()
    monkeypatch.setattr(evaluation_captions.Captioner, "load", found.load)
    return found


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    return ByStage(server, {"decompose": lambda prompt: {"facts": []}})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two pictures."""
    folder = tmp_path / "decap"
    (folder / "images").mkdir(parents=True)
    rows = []
    for k in range(2):
        Image.fromarray(np.full((8, 8, 3), 20 * k, np.uint8)).save(folder / "images" / f"{k}.png")
        rows.append({"image_name": f"{k}.png", "oracle_caption": "grey", "oracle_facts": ["grey"]})
    (folder / "IIW_400_data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.open(tmp_path / "mine", RunConfig())
    save(folder, 100)
    return folder


def save(run: RunFolder, step: int) -> None:
    with Checkpointer(run.checkpoints, keep=1) as checkpoints:
        checkpoints.save(step, {"params": jnp.zeros(1)})


@pytest.fixture
def request_(server: ScriptedJudge, judge: ByStage, data: Path, run: RunFolder) -> EvaluationRequest:
    return EvaluationRequest(
        benchmarks=("decapbench",),
        by=str(run.root),
        data=data,
        out=run.root.parent / "out",
        judges=JudgesConfig(judge=endpoint(server)),
    )


def stopped_before_scoring(request: EvaluationRequest) -> None:
    evaluate(request, print)
    (request.out / "decapbench" / "results.json").unlink()


def test_a_second_start_need_not_load_the_captioner(loaded: Loaded, request_: EvaluationRequest) -> None:
    stopped_before_scoring(request_)
    evaluate(request_, print)
    evaluate(request_, print)
    assert loaded.times == 1


@pytest.mark.parametrize("asked", [None, "best", 100])
def test_a_run_that_has_trained_on_is_another_captioner(
    loaded: Loaded, request_: EvaluationRequest, run: RunFolder, asked: str | int | None
) -> None:
    best = {"metric": "m", "best_is": "highest", "step": 100, "value": 1.0, "low": 1.0, "high": 1.0, "n": 9}
    (run.root / "best.json").write_text(json.dumps(best))
    request = replace(request_, step=asked)  # type: ignore[arg-type]
    evaluate(request, print)
    evaluate(request, print)
    save(run, 200)  # which removes step 100
    (run.root / "best.json").write_text(json.dumps(best | {"step": 200}))
    said: list[str] = []
    if asked != 100:
        with pytest.raises(EvaluatorError, match=r"an evaluation of step 100, .* be step 200: .*--step 100"):
            evaluate(request, print)
    evaluate(replace(request, step=100), said.append)
    assert any("the checkpoint is gone; the captions in" in line for line in said)
    assert loaded.times == 1


@pytest.mark.parametrize("complete", [True, False])
def test_weights_are_compared_though_no_caption_is_missing(
    loaded: Loaded, request_: EvaluationRequest, run: RunFolder, complete: bool
) -> None:
    stopped_before_scoring(request_)
    if complete:
        evaluate(request_, print)
    made_anew = next(file for file in (run.checkpoints / "100").rglob("*") if file.is_file())
    made_anew.write_bytes(made_anew.read_bytes() + b" ")
    loaded.weights = "others"
    with pytest.raises(
        EvaluatorError, match=r'another weights \("those", now "others"\): name another --out'
    ):
        evaluate(request_, print)
    loaded.weights = "those"  # it was copied, and is what it was
    evaluate(request_, print)
    evaluate(request_, print)
    assert loaded.times == 3


def test_an_address_is_held_to_the_model_that_answers(
    server: ScriptedJudge, judge: ByStage, request_: EvaluationRequest
) -> None:
    served = ScriptedJudge()
    served.answer = lambda body, number: Reply(content="A caption.")
    request = replace(request_, by=served.url)
    try:
        evaluate(request, print)
        evaluate(request, print)
        served.models = ["another"]
        with pytest.raises(
            EvaluatorError, match="by the-judge behind an endpoint, and now another behind an"
        ):
            evaluate(request, print)
    finally:
        served.close()
    said: list[str] = []
    evaluate(request, said.append)
    assert any("does not answer now; the captions in" in line for line in said)
    with pytest.raises(EvaluatorError, match="and now a-name behind an endpoint captions"):
        evaluate(replace(request, served_model="a-name"), print)


def test_captions_that_were_cut_off_are_counted_and_told(
    server: ScriptedJudge, judge: ByStage, request_: EvaluationRequest
) -> None:
    """What such a caption had left to say lowers every figure of recall."""
    served = ScriptedJudge()
    ends = iter(("length", "stop"))
    served.answer = lambda body, number: Reply(content="A caption.", finish_reason=next(ends))
    request = replace(request_, by=served.url, captioner=("judge.concurrency=1",))
    said: list[str] = []
    try:
        folder = evaluate(request, said.append)["decapbench"]
    finally:
        served.close()
    assert json.loads((folder / "results.json").read_text())["captions_cut_off"] == 1
    assert any("1 of 2 captions were cut off at 2048 tokens" in line for line in said)
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
    assert [row["truncated"] for row in rows] == [[True], [False]]
    # Of captions that are there already nobody says it a second time, and the count stays.
    (folder / "results.json").unlink()
    evaluate(request, print)
    assert json.loads((folder / "results.json").read_text())["captions_cut_off"] == 1
