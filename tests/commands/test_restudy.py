"""``launch/restudy.py``: what other weights change, a line for every candidate, and errors that name the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vcap_jax.commands import restudy as command
from vcap_jax.configuration import dump_config
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.store import Judgement, JudgementKey, JudgementStore, StoredCandidate
from vcap_jax.run.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
KEY = JudgementKey(
    model="a judge", instruction="image", version="1", media="m", reference="r", candidate="c", prompt="p"
)


def restudied(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "launch" / "restudy.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def test_what_other_weights_change_is_told_and_every_candidate_has_a_line(tmp_path: Path) -> None:
    path, out = tmp_path / "judgements.sqlite", tmp_path / "rewards.jsonl"
    answer = {"Analysis": "", "Correctness": 10, "Completeness": 5, "Text Quality": 8}
    given = {"step": 0, "group": 3, "sample_id": "a", "caption": "c", "family": "witness_adjudicator"}
    rows = [
        StoredCandidate(index=0, components={}, verdicts={"global": KEY.digest}, reward=0.78, **given),
        StoredCandidate(index=1, components={}, verdicts={"global": ""}, reward=None, **given),
    ]
    with JudgementStore(path) as store:
        store.put(KEY, Judgement(answer=answer)).result()
        store.put_group(rows).result()
    done = restudied(str(path), "--completeness", "0.1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, out.read_text().splitlines())
    assert (first["was"], first["reward"], first["group"]) == (0.78, 1.08, 3)
    assert first["step"] == 1  # as the run's own files number it
    assert (second["place"], second["reward"]) == (1, None)
    summary = (
        "2 candidates of 1 steps, 1 of them without a stored answer that they need (reward null); 2 without a local "
        "pass, where the weight local is of no account\n"
        "mean reward 1.08, where it was 0.78\n"
        "weights: correctness 0.05, completeness 0.1, text_quality 0.01, local 0.1; those not named are the defaults\n"
    )
    assert (done.stdout, done.stderr) == (summary, "")
    # On standard output lines stand alone.
    piped = restudied(str(path), "--completeness", "0.1", "--out", "-")
    assert (piped.stdout, piped.stderr) == (out.read_text(), summary)
    # The run's own weights stand where none are named.
    own = RunConfig(reward=RewardConfig(weights=RewardWeights(correctness=0.02, text_quality=0.0)))
    (tmp_path / "config.yaml").write_text(dump_config(own))
    done = restudied(str(path), "--completeness", "0.1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "mean reward 0.7, where it was 0.78",
        (
            "weights: correctness 0.02, completeness 0.1, text_quality 0, local 0.1; those not named are of "
            f"{tmp_path / 'config.yaml'}"
        ),
    ]
    (tmp_path / "config.yaml").write_text("reward: {weights: {corectness: 1}}")
    broken = restudied(str(path))
    assert broken.returncode == 1
    assert "corectness" in broken.stderr


def test_what_is_no_store_and_weights_that_cannot_be_are_refused(tmp_path: Path) -> None:
    absent = restudied(str(tmp_path / "absent"), "--out", str(tmp_path / "rewards.jsonl"))
    assert absent.returncode == 1
    assert not (tmp_path / "rewards.jsonl").exists()
    assert (
        absent.stderr == f"error: {tmp_path / 'absent'} does not exist: give the judgements.sqlite of a run\n"
    )
    weights = restudied(str(tmp_path / "absent"), "--correctness", "-1")
    assert weights.returncode == 2
    assert "correctness (command line): expected float >= 0, given -1.0" in weights.stderr


def stored(path: Path, family: str = "witness_adjudicator", *, groups: int = 1) -> bytes:
    """A store of unasked candidates, as its file holds it."""
    with JudgementStore(path) as store:
        for group in range(groups):
            row = StoredCandidate(
                step=group,
                group=0,
                sample_id="a",
                index=0,
                caption="c",
                family=family if group == groups - 1 else "witness_adjudicator",
                components={},
                verdicts={"global": None},
                reward=0.0,
            )
            store.put_group([row]).result()
    return path.read_bytes()


@pytest.mark.parametrize(
    "name", ["judgements.sqlite", "judgements.sqlite-wal", "judgements.sqlite-shm", "config.yaml"]
)
def test_out_is_none_of_the_runs_own_files(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--out onto the store emptied it before the first answer was read."""
    path = tmp_path / "judgements.sqlite"
    whole = stored(path)
    (tmp_path / "link").symlink_to(name)
    for out in (tmp_path / "link", tmp_path / "x" / ".." / name):
        with pytest.raises(SystemExit):
            command.main([str(path), "--out", str(out)])
        assert "is a file that the rewards are computed from: name another" in capsys.readouterr().err
    assert path.read_bytes() == whole


def test_an_earlier_file_stays_where_the_store_cannot_be_read_to_its_end(tmp_path: Path) -> None:
    path, out = tmp_path / "judgements.sqlite", tmp_path / "rewards.jsonl"
    stored(path, "vqa", groups=2)
    out.write_text("earlier\n")
    assert command.main([str(path), "--out", str(out)]) == 1
    assert out.read_text() == "earlier\n"
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path, pipe = tmp_path / "judgements.sqlite", tmp_path / "pipe"
    stored(path)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert command.main([str(path), "--out", str(pipe)]) == 0
        assert json.loads(os.read(reader, 1000))["id"] == "a"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
