"""Captions of anybody's scored by a scripted judge: every figure by hand, nothing asked twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from tests.reward.scripted_judge import QUALITY, Reply, ScriptedJudge, candidate_of, prompt_text, verdict
from vcap_jax.captioning.caption import Caption
from vcap_jax.commands.score import main
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.evals import scoring
from vcap_jax.evals.judged import judged_item
from vcap_jax.evals.protocol import Captions, OwnData
from vcap_jax.evals.scoring import Scored
from vcap_jax.recipes.evaluation_request import EvaluationRefused
from vcap_jax.recipes.score import RewardsPage, ScoreRequest, score
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.errors import FamilyError, JudgeUnavailable
from vcap_jax.reward.group import CandidateScore, GroupScores
from vcap_jax.reward.restudy import restudy
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import JudgementStore
from vcap_jax.run.config import RunConfig
from vcap_jax.system.errors import VCapError
from vcap_jax.system.shutdown import Stopped


def write_lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three pictures, two of which somebody captioned, one of them twice."""
    for name in "abc":
        Image.new("RGB", (32, 32), (10, 200, ord(name))).save(tmp_path / f"{name}.png")
    rows = [{"id": name, "image": f"{name}.png", "references": [f"A weak {name}."]} for name in "abc"]
    write_lines(tmp_path / "manifest.jsonl", *rows)
    write_lines(
        tmp_path / "captions.jsonl",
        {"id": "b", "captions": ["one two three", "one"]},
        {"id": "a", "captions": ["one two"]},
        {"id": "c", "failure": "not readable"},
        {"id": "z", "captions": ["of no sample"]},
    )
    return tmp_path


def configured(data: Path, server: ScriptedJudge, *settings: str) -> RunConfig:
    own = [f"data.manifest={data / 'manifest.jsonl'}", f"judge.urls=[{server.url}]"]
    return load_config(RunConfig, [], [*own, "judge.backoff_s=0.01", "judge.max_tries=2", *settings])


def by_words(body: dict[str, Any], n: int) -> Reply:
    """Correctness is the number of words."""
    del n
    return verdict({**QUALITY, "Correctness": len(candidate_of(body).split())})


def scored(config: RunConfig, data: Path) -> tuple[list[dict[str, Any]], Any, list[str]]:
    said: list[str] = []
    request = ScoreRequest(captions=data / "captions.jsonl", folder=data / "scores")
    summary = score(config, request, say=said.append)
    rows = (data / "scores" / "rewards.jsonl").read_text().splitlines()
    assert summary == json.loads((data / "scores" / "summary.json").read_text())
    return [json.loads(row) for row in rows], summary, said


def test_every_caption_gets_the_reward_that_training_would_give(data: Path, server: ScriptedJudge) -> None:
    server.answer = by_words
    rows, summary, said = scored(configured(data, server), data)
    # The manifest's order; 0.05, 0.04 and 0.01 are the paper's weights.
    places = [(row["id"], row["place"], row["caption"]) for row in rows]
    assert places == [("a", 0, "one two"), ("b", 0, "one two three"), ("b", 1, "one")]
    rest = 0.04 * QUALITY["Completeness"] + 0.01 * QUALITY["Text Quality"]
    assert [row["reward"] for row in rows] == pytest.approx([0.05 * words + rest for words in (2, 3, 1)])
    assert [row["components"]["correctness"] for row in rows] == [2, 3, 1]
    assert all("A weak" in prompt_text(body) for body in server.bodies)
    # Means over samples: both have two words on average.
    assert summary["metrics"]["correctness"]["value"] == 2
    assert (summary["captions"], summary["samples"], summary["not_scored"]) == (3, 2, 0)
    assert summary["judge"] == "the-judge"
    page = (data / "scores" / "rewards.html").read_text()
    assert "A weak a." in page
    assert "one two three</p>" in page
    assert page.count("<article") == page.count('src="data:image/png') == 2
    assert any("1 ids that the manifest lacks, the first: 'z'" in line for line in said)
    assert any("captions of 2 of 3 images" in line for line in said)
    weights = RewardWeights(correctness=1.0, completeness=0.0, text_quality=0.0)
    again = {
        (r.candidate.sample_id, r.candidate.index): r.reward
        for r in restudy(data / "scores" / "judgements.sqlite", weights)
    }
    assert again == {("a", 0): 2.0, ("b", 0): 3.0, ("b", 1): 1.0}


def test_rows_of_one_picture_are_drawn_together(data: Path, server: ScriptedJudge) -> None:
    """Five rows of each of two pictures are no ten that are independent."""
    server.answer = by_words
    rows = [
        {"id": f"{of}{k}", "image": f"{of}.png", "references": ["A weak one."]}
        for of in "ab"
        for k in range(5)
    ]
    write_lines(data / "manifest.jsonl", *rows)
    captions = [
        {"id": row["id"], "captions": ["one" if row["id"] < "b" else "one two three"]} for row in rows
    ]
    write_lines(data / "captions.jsonl", *captions)
    _, summary, _ = scored(configured(data, server), data)
    found = summary["metrics"]["correctness"]
    assert (found["value"], found["low"], found["high"], found["n"]) == (2, 1, 3, 2)
    assert summary["samples"] == 10


def test_captions_by_other_programs_are_scored_by_the_names_of_their_pictures(
    data: Path, server: ScriptedJudge
) -> None:
    server.answer = by_words
    write_lines(
        data / "captions.jsonl",
        {"image_name": "pictures/a.png", "prediction": "one two"},
        {"image_name": "b.jpg", "prediction": ""},
        {"image_name": "z.jpg", "prediction": "of no sample"},
    )
    rows, summary, said = scored(configured(data, server), data)
    assert [(row["id"], row["caption"]) for row in rows] == [("a", "one two"), ("b", "")]
    # An empty caption earns nothing, and counts.
    assert [row["reward"] for row in rows] == [
        pytest.approx(0.05 * 2 + 0.04 * QUALITY["Completeness"] + 0.01 * QUALITY["Text Quality"]),
        0.0,
    ]
    assert (summary["captions"], summary["samples"], summary["not_scored"]) == (2, 2, 0)
    assert any("1 ids that the manifest lacks, the first: 'z.jpg'" in line for line in said)


@pytest.mark.parametrize("form", ["entries", "predictions"])
def test_captions_of_what_is_not_scored_are_told_by_the_reason(
    data: Path, server: ScriptedJudge, form: str
) -> None:
    """A clip of a mixed manifest was said to be lacking there."""
    server.answer = by_words
    (data / "clip.mp4").touch()
    rows = [{"id": name, "image": f"{name}.png", "references": ["A weak one."]} for name in "abc"]
    write_lines(data / "manifest.jsonl", *rows, {"id": "clip", "video": "clip.mp4"})
    if form == "entries":
        written = [{"id": name, "captions": ["one"]} for name in (*"abc", "clip", "z")]
    else:
        written = [{"image_name": name, "prediction": "one"} for name in ("a", "b", "c.png", "clip.mp4", "z")]
    write_lines(data / "captions.jsonl", *written)
    _, summary, said = scored(configured(data, server, "data.max_samples=2"), data)
    assert summary["samples"] == 2
    assert [
        line.replace(str(data), "") for line in said if line.startswith(("taken", "left", "captions"))
    ] == [
        "taken of /manifest.jsonl: 2 of 3 samples (data.max_samples)",
        "left out: captions of 1 video, because modality is image",
        "left out: captions of 1 sample (data.max_samples)",
        "left out: captions of 1 ids that the manifest lacks, the first: 'z'",
    ]


def test_captions_count_though_others_of_their_sample_are_lacking(data: Path, server: ScriptedJudge) -> None:
    """As vcap caption leaves them where a server has not given all: the whole file was refused."""
    server.answer = by_words
    lacking = Caption(
        index=0,
        id="a",
        modality="image",
        files=(data / "a.png",),
        texts=("one two",),
        truncated=(False,),
        failure="1 of 2 captions are lacking: timeout",
    )
    write_lines(data / "captions.jsonl", dict(lacking.row()), {"id": "b", "captions": ["one"]})
    rows, summary, _ = scored(configured(data, server), data)
    assert [(row["id"], row["caption"]) for row in rows] == [("a", "one two"), ("b", "one")]
    assert summary["not_scored"] == 0


def test_the_folder_of_a_run_is_left_alone(data: Path, server: ScriptedJudge) -> None:
    (data / "scores").mkdir()
    (data / "scores" / "config.yaml").write_text("seed: 3\n")
    (data / "scores" / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(EvaluationRefused, match=r"is the folder of a run.*give another --out"):
        scored(configured(data, server), data)
    assert (data / "scores" / "config.yaml").read_text() == "seed: 3\n"
    assert server.bodies == []


@pytest.mark.parametrize("name", ["rewards.jsonl", ".rewards.jsonl.partial", "link.jsonl"])
def test_rewards_are_not_scored_into_their_own_folder(data: Path, server: ScriptedJudge, name: str) -> None:
    """The file was removed before the first caption was scored, and gone where that was ended early."""
    server.answer = by_words
    first, _, _ = scored(configured(data, server), data)
    folder = data / "scores"
    (folder / ".rewards.jsonl.partial").write_bytes((folder / "rewards.jsonl").read_bytes())
    (folder / "link.jsonl").symlink_to("rewards.jsonl")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    server.bodies.clear()
    request = ScoreRequest(captions=folder / name, folder=folder)
    with pytest.raises(EvaluationRefused, match=rf"{name} is a file that .* replaces: .* or another --out"):
        score(configured(data, server), request, say=print)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # The remedies: a copy, whose answers are there, and another folder.
    copy = data / "copy.jsonl"
    copy.write_bytes((folder / "rewards.jsonl").read_bytes())
    score(configured(data, server), ScoreRequest(captions=copy, folder=folder), say=print)
    assert [json.loads(row) for row in (folder / "rewards.jsonl").read_text().splitlines()] == first
    assert server.bodies == []
    request = ScoreRequest(captions=folder / "rewards.jsonl", folder=data / "other")
    score(configured(data, server), request, say=print)
    assert (data / "other" / "rewards.jsonl").read_bytes() == (folder / "rewards.jsonl").read_bytes()


def test_what_has_an_answer_is_not_asked_again(data: Path, server: ScriptedJudge) -> None:
    def broken(body: dict[str, Any], n: int) -> Reply:
        return Reply(content="I cannot say.") if candidate_of(body) == "one" else by_words(body, n)

    server.answer = broken
    rows, summary, _ = scored(configured(data, server), data)
    assert rows[2]["reward"] is None
    assert "failure" in rows[2]
    assert summary["not_scored"] == 1
    server.bodies.clear()
    server.answer = by_words
    rows, summary, _ = scored(configured(data, server, "reward.weights.correctness=0.1"), data)
    assert [candidate_of(body) for body in server.bodies] == ["one"]
    assert summary["not_scored"] == 0
    rest = 0.04 * QUALITY["Completeness"] + 0.01 * QUALITY["Text Quality"]
    assert [row["reward"] for row in rows] == pytest.approx([0.1 * words + rest for words in (2, 3, 1)])


def restudied(store: Path) -> list[tuple[str, str, int | None]]:
    """Every candidate in a store: sample, caption and place of its group."""
    rows = [row.candidate for row in restudy(store, RewardWeights())]
    return [(one.sample_id, one.caption, one.group) for one in rows]


@pytest.mark.parametrize("named", [None, "all.sqlite"])
def test_captions_that_come_later_leave_no_group_twice(
    data: Path, server: ScriptedJudge, named: str | None
) -> None:
    server.answer = by_words
    store = data / "scores" / "judgements.sqlite" if named is None else data / named
    settings = [] if named is None else [f"judge.store={store}"]
    b, c = {"id": "b", "captions": ["of b"]}, {"id": "c", "captions": ["of c"]}
    write_lines(data / "captions.jsonl", {"id": "a", "failure": "not readable"}, b, c)
    _, summary, _ = scored(configured(data, server, *settings), data)
    assert restudied(store) == [("b", "of b", 1), ("c", "of c", 2)]
    digest = summary["file"]["digest"]
    server.bodies.clear()
    write_lines(data / "captions.jsonl", {"id": "a", "captions": ["of a"]}, b, c)
    _, summary, said = scored(configured(data, server, *settings), data)
    assert restudied(store) == [("a", "of a", 0), ("b", "of b", 1), ("c", "of c", 2)]
    assert [candidate_of(body) for body in server.bodies] == ["of a"]
    assert summary["file"]["name"] == "captions.jsonl"
    assert summary["file"]["digest"] != digest
    assert any(f"holds rewards of other captions (captions.jsonl, {digest})" in line for line in said)


def test_of_another_file_of_captions_nothing_stays_but_answers(data: Path, server: ScriptedJudge) -> None:
    server.answer = by_words
    scored(configured(data, server), data)
    server.bodies.clear()
    write_lines(data / "captions.jsonl", {"id": "a", "captions": ["one two"]})
    rows, _, _ = scored(configured(data, server), data)
    assert [row["id"] for row in rows] == ["a"]
    assert restudied(data / "scores" / "judgements.sqlite") == [("a", "one two", 0)]
    assert server.bodies == []
    with JudgementStore(data / "scores" / "judgements.sqlite") as store:
        assert len(store) == 3


def test_a_second_scoring_that_is_ended_early_does_not_look_complete(
    data: Path, server: ScriptedJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = by_words
    first, _, _ = scored(configured(data, server), data)
    results = [data / "scores" / name for name in ("rewards.jsonl", "rewards.html", "summary.json")]
    config = (data / "scores" / "config.yaml").read_text()
    server.stop()
    with pytest.raises(JudgeUnavailable):
        scored(configured(data, server, "judge.ready_timeout_s=0.05", "seed=7"), data)
    # Nothing has begun: all is that of the first.
    assert all(path.exists() for path in results)
    assert (data / "scores" / "config.yaml").read_text() == config
    server.start()

    def ended(own: Any, captions: Any, **options: Any) -> Iterator[Scored]:
        yield next(scoring.scored(own, captions, **options))
        raise Stopped

    monkeypatch.setattr("vcap_jax.recipes.score.scored", ended)
    with pytest.raises(Stopped):
        scored(configured(data, server, "seed=7"), data)
    assert not any(path.exists() for path in results)
    assert "seed: 7" in (data / "scores" / "config.yaml").read_text()
    monkeypatch.undo()
    assert scored(configured(data, server), data)[0] == first
    assert all(path.exists() for path in results)


def test_references_of_a_pool_come_before_the_manifests_own(data: Path, server: ScriptedJudge) -> None:
    pool = write_lines(data / "pool.jsonl", {"id": "a", "references": ["From the pool."]})
    scored(configured(data, server, f"data.references={pool}"), data)
    asked = {candidate_of(body): prompt_text(body) for body in server.bodies}
    assert "From the pool." in asked["one two"]
    assert "A weak b." in asked["one"]


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"manifest": None}, ConfigError, "data.manifest is null"),
        ({"captions": [{"id": "y", "captions": ["y"]}]}, EvaluationRefused, "its first id is 'y'"),
        (
            {"captions": [{"id": "b", "failure": "CUDA: no memory"}, {"id": "z", "captions": ["z"]}]},
            EvaluationRefused,
            "all 1 entries of them are failures, the first, of 'b': CUDA: no memory",
        ),
        ({"references": False}, FamilyError, "2 of 2 samples have none, the first: 'a'"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_a_folder_is_made(
    data: Path, server: ScriptedJudge, change: dict[str, Any], error: type[Exception], named: str
) -> None:
    settings = ["data.manifest=null"] if "manifest" in change else []
    if "captions" in change:
        write_lines(data / "captions.jsonl", *change["captions"])
    if "references" in change:
        write_lines(data / "manifest.jsonl", *({"id": n, "image": f"{n}.png"} for n in "abc"))
    with pytest.raises(error, match=named):
        scored(configured(data, server, *settings), data)
    assert not (data / "scores").exists()
    assert not server.bodies


def test_the_command_ends_with_1_where_something_is_not_scored(
    data: Path, server: ScriptedJudge, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--captions", str(data / "captions.jsonl"), "--out", str(data / "scores")]
    config = Path(__file__).resolve().parents[2] / "configs" / "paper" / "image.yaml"
    words += ["--config", str(config), f"data.manifest={data / 'manifest.jsonl'}"]
    words += [f"judge.urls=[{server.url}]", "judge.backoff_s=0.01", "judge.max_tries=1"]
    server.answer = lambda body, n: Reply(content="I cannot say.")
    assert main(words) == 1
    assert "3 captions of 2 samples, 3 not scored" in capsys.readouterr().out
    server.answer = by_words
    assert main(words) == 0
    with pytest.raises(SystemExit):
        main(words[2:])


def gone(sample: Sample) -> EncodedMedia:
    raise VCapError(f"{sample.id}: gone")


@pytest.mark.parametrize("seed", range(3))
def test_of_many_samples_it_holds_the_lowest_and_the_highest(tmp_path: Path, seed: int) -> None:
    rewards = np.random.default_rng(seed).permutation(200) / 200
    names = [f"s{i}" for i in range(len(rewards))]
    own = OwnData(
        samples=tuple(Sample(id=name, images=(Path(f"{name}.png"),)) for name in names),
        references=None,
        session=cast(RewardSession, None),
        media=gone,
        seed=0,
        stop=lambda: False,
    )
    page = RewardsPage(own, most=6)
    for name, reward in zip(names, rewards, strict=True):
        scores = GroupScores(sample_id=name, step=0, candidates=(CandidateScore(reward=float(reward)),))
        one = Scored(captions=Captions(id=name, texts=("a disc",)), scores=scores)
        page.add(one, judged_item(one))
    path = tmp_path / "page.html"
    page.draw(path, title="t", metrics={}, warning=None)
    text = path.read_text()
    found = [float(reward) for reward in re.findall(r'data-reward="([^"]*)"', text)]
    assert found == sorted(rewards)[:3] + sorted(rewards)[-3:]
    assert "6 of 200 samples" in text
