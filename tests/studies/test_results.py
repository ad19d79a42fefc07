"""Results kept in one file make the same report as the runs that they are of."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.studies.made_up import SMALL, make_up
from vcap_jax.studies import results
from vcap_jax.studies.collect import collect
from vcap_jax.studies.report import write_report
from vcap_jax.studies.results import ResultsError, known_keys, read_results, write_results
from vcap_jax.studies.schedule import outstanding
from vcap_jax.studies.tasks import plan


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    made = plan(quick=True, seeds=(0, 1, 2), overrides=SMALL)
    make_up(made, out, {"e1": 0.96})
    write_report(made, out, command="python launch/reproduce.py")
    return made, out


def test_the_report_of_the_file_alone_is_that_of_the_runs(studied, tmp_path) -> None:
    made, out = studied
    known, others = read_results([out / "results.jsonl"])
    assert (len(known), others) == (len(made.tasks), 0)
    assert outstanding(made, tmp_path, known_keys(made, known)) == []
    write_report(made, tmp_path, command="python launch/reproduce.py", known=known)
    for name in ("report.json", "report.html", "results.jsonl"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes(), name


def test_files_are_joined_and_only_what_is_missing_is_left_to_do(studied, tmp_path) -> None:
    made, out = studied
    lines = (out / "results.jsonl").read_text().splitlines(keepends=True)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text("".join(lines[::2]))
    second.write_text("".join(lines[1::2]))
    known, _ = read_results([first, second])
    assert outstanding(made, tmp_path, known_keys(made, known)) == []
    known, _ = read_results([first])
    left = outstanding(made, tmp_path, known_keys(made, known))
    names = {results.identity(task) for task in left}
    assert names >= {json.loads(line)["task"] for line in lines[1::2]}
    # A run that another one reads from is made again, though its result is known.
    assert all(made.tasks[key] in left for task in left for key in task.after)


def test_a_run_at_hand_counts_before_the_file(studied, tmp_path) -> None:
    made, out = studied
    known, _ = read_results([out / "results.jsonl"])
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    e1 = made.tasks["image/e1/0"]
    trained = copy / "runs" / e1.folder / e1.result / "evaluations" / "heldout" / "trained.jsonl"
    rows = [json.loads(line) for line in trained.read_text().splitlines()]
    trained.write_text("".join(json.dumps(row | {"captions": [""]}) + "\n" for row in rows))
    assert collect(made, copy, known)[results.identity(e1)].rows["e1"].counts.claims.sum() == 0


@pytest.mark.parametrize("digest", ["policy_digest", "world_digest"])
def test_results_of_another_starting_policy_or_world_do_not_mix(
    studied, tmp_path, monkeypatch, digest
) -> None:
    made, out = studied
    with monkeypatch.context() as patch:
        patch.setattr(results, digest, lambda: "another")
        write_results(tmp_path / "other.jsonl", collect(made, out))
    assert read_results([tmp_path / "other.jsonl"]) == ({}, len(made.tasks))


def test_a_line_that_is_none_is_named(studied, tmp_path) -> None:
    _, out = studied
    lines = (out / "results.jsonl").read_text().splitlines()
    row = json.loads(lines[1])
    del row["rows"]
    (tmp_path / "broken.jsonl").write_text("\n".join([lines[0], json.dumps(row)]))
    with pytest.raises(ResultsError, match=r"line 2: a result: rows: field required; give a results.jsonl"):
        read_results([tmp_path / "broken.jsonl"])
