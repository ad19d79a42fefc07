"""Results kept in one file make the same report as the runs that they are of."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.studies.made_up import SMALL, make_up
from vcap_jax.studies import results
from vcap_jax.studies.collect import collect
from vcap_jax.studies.report import write_report
from vcap_jax.studies.results import ResultsError, heldout_captions, known_keys, read_results, write_results
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


@pytest.mark.slow
def test_a_report_of_fewer_studies_loses_no_line(studied, tmp_path, monkeypatch) -> None:
    """The runs may be gone: the file is all that is left of them."""
    _, out = studied
    path = tmp_path / "results.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(results, "world_digest", lambda: "another")
        write_results(path, dict(list(read_results([out / "results.jsonl"])[0].items())[:1]))
    others = set(path.read_text().splitlines())
    path.write_text(path.read_text() + (out / "results.jsonl").read_text())
    before = path.read_text().splitlines()
    fewer = plan(quick=True, seeds=(0,), overrides=SMALL)
    for _ in range(2):
        write_report(fewer, tmp_path, command="python launch/reproduce.py", known=read_results([path])[0])
        assert sorted(path.read_text().splitlines()) == sorted(before)
    assert others < set(before)
    path.write_text('{"mine": 1}\n')
    with pytest.raises(ResultsError, match="line 1: no result"):
        write_results(path, {})
    assert path.read_text() == '{"mine": 1}\n'


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


def test_a_result_tells_the_machine_that_made_it_and_what_its_own_configuration_took(
    studied, tmp_path
) -> None:
    """Not the one that the report is drawn on, nor what another configuration of the same name took."""
    made, out = studied
    shutil.copytree(out, tmp_path / "out")
    first, second, third = (made.tasks[f"image/e1/{seed}"] for seed in range(3))
    there = {"machine": "CPU of old, 96 cores", "versions": "Python 3.11.0, JAX 0.5.0", "code": "VCap-JAX 1"}
    there |= {"workers": 1, "complete": True}
    lines = [
        there | {"key": first.key, "task": results.identity(first), "seconds": 10, "workers": 2},
        there | {"key": first.key, "task": "another/.", "seconds": 500, "workers": 9, "code": "VCap-JAX 2"},
        there | {"key": third.key, "task": results.identity(third), "seconds": 1},
        there
        | {"key": third.key, "task": results.identity(third), "seconds": 2, "machine": "Other, 8 cores"},
    ]
    (tmp_path / "out" / "seconds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = collect(made, tmp_path / "out")
    one, two, three = (found[results.identity(task)] for task in (first, second, third))
    assert (one.machine, one.workers, one.seconds) == ("CPU of old, 96 cores", 2, 10)
    assert one.software == "VCap-JAX 1, Python 3.11.0, JAX 0.5.0"
    assert (two.machine, two.seconds) == (results.machine(), None)  # nothing is noted of it
    assert two.software == results.versions()
    assert (three.machine, three.seconds) == ("CPU of old, 96 cores and Other, 8 cores", 3)


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


def test_a_scene_that_was_not_captioned_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trained.jsonl"
    rows = [{"id": "a", "captions": ["A cat.", "A dog."]}, {"id": "b", "failure": "not readable"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    assert heldout_captions(path) == {"a": ["A cat.", "A dog."]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ResultsError, match=r"trained\.jsonl:2: b was not captioned \(not readable\): remove"):
        heldout_captions(path)


def test_the_world_is_known_by_its_scenes_words_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the three changes, it is another world."""
    digest = results.world_digest.__wrapped__
    found = {digest(), digest()}
    assert len(found) == 1
    scene, caption, count = results.sample_scene, results.full_caption, results.count_facts
    changes = {
        "sample_scene": lambda modality, seed, index, split: scene(modality, seed + 1, index, split),
        "full_caption": lambda of, rng: caption(of, rng) + " ",
        "count_facts": lambda of, text: dataclasses.replace(count(of, text), claims=0),
    }
    for name, changed in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(results, name, changed)
            found.add(digest())
    assert len(found) == 1 + len(changes)


def test_the_code_is_named_by_its_commit_in_a_clone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    version = results.code_version.__wrapped__
    package = tmp_path / "clone" / "vcap_jax" / "studies"
    package.mkdir(parents=True)
    (package / "results.py").write_text("")
    monkeypatch.setattr(results, "__file__", str(package / "results.py"))
    told = version()
    assert "VCap-JAX" in told
    assert " at " not in told

    def git(*arguments: str) -> str:
        as_someone = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        done = subprocess.run(
            ["git", "-C", tmp_path / "clone", *as_someone, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "all")
    commit = git("rev-parse", "--short=7", "HEAD")
    assert version() == f"{told} at {commit}"
    (package / "results.py").write_text("changed")
    assert version() == f"{told} at {commit}+"
