"""``vcap annotate`` without its server: studies and answers in and out, and what it refuses before work."""

from __future__ import annotations

import json
import socket

import pytest

from tests.data.media_files import write_video
from tests.human_eval.small_study import change_row, small_study, write_small_study
from tests.human_eval.test_exchange import exported
from vcap_jax.commands import annotate
from vcap_jax.commands.annotate import main
from vcap_jax.human_eval import records
from vcap_jax.human_eval.answers import StoredAnswers
from vcap_jax.human_eval.application.access import read_tokens, write_tokens
from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.protocol import Ranking, Step1, Verdict
from vcap_jax.human_eval.store import AnswerStore
from vcap_jax.human_eval.study import read_settings
from vcap_jax.system.file_locks import LOCK, only_one


@pytest.fixture
def answered(tmp_path):
    """A study of which anna has finished one item."""
    study = small_study(tmp_path / "study")
    with AnswerStore(study.folder / "answers.sqlite") as store:
        store.open_study(study)
        for number in range(3):
            verdict = Verdict(step1=Step1.INCONSISTENT)
            store.answer("anna", "a", f"a/{number}", verdict, version=0, request=str(number))
        store.finish("anna", "a", dict.fromkeys(Ranking, ("tuned", "base")), request="f")
    return study.folder


def test_a_study_goes_out_and_comes_back_in(answered, tmp_path, capsys):
    assert main([str(answered), "--export", str(tmp_path / "out")]) == 0
    assert "3 answers, 1 rankings of items" in capsys.readouterr().out
    tasks, again = str(tmp_path / "out" / "label_studio.json"), small_study(tmp_path / "again").folder
    assert main([str(again), "--import", tasks, "--annotators", "anna", "--overlap", "0"]) == 0
    said = capsys.readouterr().out
    assert "3 answers taken in" in said
    assert "left out" not in said
    assert "no rankings" not in said
    assert json.loads((again / "study.json").read_text())["annotators"] == ["anna"]
    assert main([str(again), "--import", str(tmp_path / "out")]) == 1
    assert "anna has answers" in capsys.readouterr().err
    # They name no models, so no study can be made of them alone.
    assert main([str(tmp_path / "new"), "--tasks", tasks]) == 1
    assert "copy that study's folder" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_what_is_taken_in_without_rankings_or_without_anything_is_told(answered, tmp_path, capsys):
    out, again = tmp_path / "out", small_study(tmp_path / "again").folder
    assert main([str(answered), "--export", str(out)]) == 0
    (out / "rankings.jsonl").unlink()
    assert main([str(again), "--import", str(out)]) == 0
    assert "1 items with answers have no rankings there" in capsys.readouterr().out
    (out / "annotations.jsonl").write_text("")
    assert main([str(again), "--import", str(out)]) == 0
    assert f"nothing was taken in: {out} holds no annotation" in capsys.readouterr().out


def test_an_export_beside_a_server_changes_nothing(answered, tmp_path, capsys):
    """It assigned new items, and took items from people who were working on them."""
    new = json.loads((answered / "items.jsonl").read_text().splitlines()[0]) | {"id": "c"}
    with (answered / "items.jsonl").open("a") as file:
        file.write(json.dumps(new) + "\n")
    before = contents(answered)
    with only_one(answered, StudyError, "end that one"):  # as a server has it
        assert main([str(answered), "--export", str(tmp_path / "out")]) == 0
        assert "3 answers, 1 rankings of items" in capsys.readouterr().out
        assert main([str(answered), "--export", str(tmp_path / "out"), "--annotators", "xenia"]) == 1
        assert "--export alone changes nothing" in capsys.readouterr().err
        assert main([str(answered), "--import", str(tmp_path / "out")]) == 1
        assert "is at work in" in capsys.readouterr().err
    assert contents(answered) == before


def test_an_export_before_anybody_has_answered_makes_no_store(tmp_path, capsys):
    folder = write_small_study(tmp_path / "study")
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    assert main([str(folder), "--export", str(tmp_path / "out")]) == 0
    assert "0 answers, 0 rankings of items" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out" / "label_studio.json").read_text())) == 2
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before


def test_tasks_that_name_their_models_make_a_study(tmp_path, capsys):
    tasks, folder = tmp_path / "project.json", tmp_path / "study"
    task = exported()
    task["annotations"].append(task["annotations"][0] | {"was_cancelled": True})
    tasks.write_text(json.dumps([task]))
    assert main([str(folder), "--tasks", str(tasks)]) == 0
    assert "1 items and 1 propositions" in capsys.readouterr().out
    assert main([str(folder), "--tasks", str(tasks)]) == 1  # nothing is written over
    (folder / "pics").mkdir()
    (folder / "pics" / "a.png").write_bytes(b"")
    assert main([str(folder), "--import", str(tasks)]) == 0
    said = capsys.readouterr().out
    assert "1 answers taken in" in said
    assert "1 left out there: annotations that were cancelled, " in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--annotators", "a b"], "'a b' may have letters"),
        (["--annotators", "anna", "Jörg"], "error: --annotators: 'Jörg' may have letters a to z"),
        (["--annotators", "anna", "--overlap", "0.5"], "--overlap is 0.5, and anna alone is named"),
        (["--annotators", "anna", "ben", "--overlap-size", "3"], "3 people are to decide some items"),
        (["--overlap", "2"], "error: --overlap: Input should be less"),
        (["--annotators", "anna", "--overlap-size", "1"], "error: --overlap-size: Input should be greater"),
        (["--adjudicator", "anna"], "name a third person"),
        (["--host", "0.0.0.0"], "say with --name"),
        (["--import", "nothing.json"], "nothing.json cannot be read"),
    ],
)
def test_what_cannot_work_is_told_in_a_line_before_work(tmp_path, options, message, capsys):
    folder = write_small_study(tmp_path)
    assert main([str(folder), *options]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")


@pytest.mark.parametrize("fault", ["port", "name", "owner", "source", "changed"])
def test_what_fails_changes_neither_who_annotates_nor_who_has_which_items(answered, fault, capsys):
    # As after a start, when everybody has a link.
    write_tokens(answered, read_tokens(answered, read_settings(answered)))
    people = ["--annotators", "xenia", "yves"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        options = {
            "port": [*people, "--port", str(other.getsockname()[1])],
            "name": [*people, "--host", "0.0.0.0"],
            "owner": ["--annotators", "owner", "anna", "--port", "0"],
            "source": [*people, "--import", "nothing.json"],
            "changed": [*people, "--port", "0"],
        }[fault]
        if fault == "changed":
            change_row(answered / "items.jsonl", 1, id="c")
            for row in (3, 4, 5):
                change_row(answered / "propositions.jsonl", row, image_id="c")
        before = contents(answered)
        assert main([str(answered), *options]) == 1
    assert contents(answered) == before
    assert {
        "port": "cannot be served on",
        "name": "say with --name",
        "owner": "give the annotator another name",
        "source": "nothing.json cannot be read",
        "changed": "put it back",
    }[fault] in capsys.readouterr().err


def test_a_first_start_that_finds_its_port_taken_leaves_the_folder_as_it_was(tmp_path, capsys):
    folder = write_small_study(tmp_path)
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main([str(folder), "--annotators", "xenia", "yves", "--port", port]) == 1
    assert f"127.0.0.1:{port} cannot be served on" in capsys.readouterr().err
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before


def contents(folder):
    """Files by name, and what the store assigns."""
    with StoredAnswers(folder / "answers.sqlite") as stored:
        assigned = {name: stored.assigned(name) for name in ("anna", "ben", "xenia", "yves")}
    files = {
        one.name: one.read_bytes()
        for one in folder.iterdir()
        if "sqlite" not in one.name and one.name != LOCK
    }
    return files, assigned


@pytest.mark.parametrize("made_by", ["--demo", "--tasks"])
def test_a_study_whose_making_was_killed_is_made_again(tmp_path, made_by, monkeypatch):
    """Between its items and its propositions the first were there for good, and every later start an error."""
    tasks, folder, export = tmp_path / "project.json", tmp_path / "study", ["--export", str(tmp_path / "out")]
    tasks.write_text(json.dumps([exported()]))
    options = {"--demo": ["--demo", *export], "--tasks": ["--tasks", str(tasks)]}[made_by]
    written, replace = [], records.replace_file

    def killed(path, content):
        replace(path, content)
        written.append(path)
        if path.suffix == ".jsonl":
            raise OSError("killed")

    monkeypatch.setattr(annotate, "DEMO_IMAGES", 1)
    monkeypatch.setattr(annotate, "DEMO_VIDEOS", 0)
    with monkeypatch.context() as patched:
        patched.setattr(records, "replace_file", killed)
        assert main([str(folder), *options]) != 0
    assert len(written) == 1
    assert main([str(folder), *options]) == 0
    assert {"items.jsonl", "propositions.jsonl"} <= {one.name for one in folder.iterdir()}


def test_without_a_folder_it_says_what_to_give(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "--demo" in capsys.readouterr().err


def test_a_video_that_browsers_do_not_play_is_told_before_anybody_gets_a_link(tmp_path, capsys):
    folder = write_small_study(tmp_path)
    change_row(folder / "items.jsonl", 0, image=None, video="a.mp4")
    write_video(folder / "a.mp4", 5, codec="mpeg4")
    assert main([str(folder), "--port", "0"]) == 1
    assert "is coded as mpeg4" in capsys.readouterr().err
    assert not (folder / "links.json").exists()
