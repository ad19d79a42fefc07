"""Run folders: new, resumed, refused."""

from __future__ import annotations

import errno
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.patience import until
from vcap_jax.configuration import load_config
from vcap_jax.report import idle_run, run_folder
from vcap_jax.report.metrics import MetricsWriter
from vcap_jax.report.run_folder import RunFolder, RunFolderError, differences
from vcap_jax.report.samples import SamplesWriter


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    learning_rate: float = 5e-7
    clip: float = float("nan")


@dataclass(frozen=True, kw_only=True)
class Config:
    seed: int = 0
    log_every: int = 1
    sizes: tuple[int, ...] = (1, 2)
    optimizer: Optimizer = field(default_factory=Optimizer)


def begun(root: Path, config: Config | None = None) -> RunFolder:
    """A run that has done a step."""
    folder = RunFolder.open(root, config or Config())
    folder.metrics.write_text('{"step": 1}\n')
    return folder


def test_a_new_folder_holds_the_resolved_configuration(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "runs" / "a", Config(seed=3))
    assert not folder.resumed
    read = load_config(Config, [folder.config])
    assert (read.seed, read.sizes, read.optimizer.learning_rate) == (3, (1, 2), 5e-7)


def test_a_used_folder_is_not_written_to_without_resume(tmp_path: Path) -> None:
    run = begun(tmp_path / "run").root
    with pytest.raises(
        RunFolderError, match=r"is not empty\. Add --resume .* with --run-dir; .* remove it: rm -r"
    ):
        RunFolder.open(run, Config())
    assert (run / "metrics.jsonl").exists()


def test_a_folder_of_other_things_is_no_run_and_nobody_is_told_to_remove_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (False, True):
        # No option is named: commands without --resume have their folder from another one.
        with pytest.raises(RunFolderError, match=r"not a run; choose another folder$"):
            RunFolder.open(tmp_path, Config(), resume=resume)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(RunFolderError, match=r"is a file; name a folder$"):
        RunFolder.open(tmp_path / "notes.txt", Config())


def test_a_name_that_checkpoints_cannot_be_read_under_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"lr\[1e-5\] has one of .* choose another name$"):
        RunFolder.open(tmp_path / "lr[1e-5]", Config())
    assert list(tmp_path.iterdir()) == []


def test_resuming_the_same_run(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, Config())
    assert RunFolder.open(tmp_path, Config(), resume=True).resumed


def test_resuming_nothing_starts_anew(tmp_path: Path) -> None:
    (tmp_path / ".config.123.yaml").write_text("se")  # a process killed while it wrote its first file
    assert not RunFolder.open(tmp_path, Config(), resume=True).resumed
    assert not RunFolder.open(tmp_path / "absent", Config(), resume=True).resumed


def test_resuming_with_another_configuration_names_the_keys(tmp_path: Path) -> None:
    begun(tmp_path)
    changed = Config(seed=1, log_every=5, optimizer=Optimizer(learning_rate=1e-6))
    with pytest.raises(RunFolderError) as caught:
        RunFolder.open(tmp_path, changed, resume=True, may_differ=["log_every"])
    message = str(caught.value)
    assert "seed: 0 then, 1 now" in message
    assert "optimizer.learning_rate: 5e-07 then, 1e-06 now" in message
    assert "log_every" not in message
    assert "clip" not in message
    kept = load_config(Config, [tmp_path / "config.yaml"])
    assert kept.seed == 0

    RunFolder.open(tmp_path, replace(Config(), log_every=5), resume=True, may_differ=["log_every"])
    assert load_config(Config, [tmp_path / "config.yaml"]).log_every == 5


def test_whether_a_run_may_be_gone_on_with_is_known_without_opening_it(tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert not RunFolder(root).check_resumption(Config())
    assert not root.exists()
    begun(root)
    before = {path: path.read_bytes() for path in root.iterdir() if path.is_file()}
    assert RunFolder(root).check_resumption(Config())
    assert RunFolder(root).check_resumption(Config(log_every=5), may_differ=["log_every"])
    with pytest.raises(RunFolderError, match=r"seed: 0 then, 1 now\nGrow another\.$"):
        RunFolder(root).check_resumption(Config(seed=1), remedies={"seed": "Grow another."})
    assert {path: path.read_bytes() for path in root.iterdir() if path.is_file()} == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not a run"):
        RunFolder(tmp_path / "notes").check_resumption(Config())


def test_a_run_that_did_nothing_keeps_no_other_from_its_folder(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, Config()).claim("training")
    assert not RunFolder(tmp_path).check_resumption(Config(seed=1))
    assert load_config(Config, [tmp_path / "config.yaml"]).seed == 0


def test_what_is_to_be_done_instead_is_told(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(RunFolderError, match=r"seed: 0 then, 1 now\nGrow another\.$"):
        RunFolder.open(tmp_path, Config(seed=1), resume=True, remedies={"seed": "Grow another."})
    with pytest.raises(RunFolderError, match=r"Grow another\.\nSet these back"):
        RunFolder.open(tmp_path, Config(seed=1, log_every=2), resume=True, remedies={"seed": "Grow another."})


def test_settings_that_a_run_had_before_are_kept(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    for every in (1, 5, 5, 7):
        RunFolder.open(
            tmp_path,
            Config(log_every=every),
            resume=True,
            may_differ=["log_every", "sizes"],
            unkept=["sizes"],
        )
        folder.metrics.write_text(f'{{"step": {every}}}\n')
    kept = sorted(tmp_path.glob("config-*.yaml"))
    assert [path.name for path in kept] == ["config-1.yaml", "config-2.yaml"]
    assert [load_config(Config, [path]).log_every for path in kept] == [1, 5]
    assert [path.read_text().split(", ")[0] for path in kept] == [
        "# Held up to step 1",
        "# Held up to step 5",
    ]
    RunFolder.open(
        tmp_path,
        Config(log_every=7, sizes=(3,)),
        resume=True,
        may_differ=["log_every", "sizes"],
        unkept=["sizes"],
    )
    assert len(list(tmp_path.glob("config-*.yaml"))) == 2


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_did_nothing_is_begun_anew_with_any_configuration(
    tmp_path: Path, resume: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """So a mistake costs nothing to remove: here a stage, an empty folder and the embedded world are left as well."""
    root = tmp_path / "all"
    RunFolder.open(root, Config()).claim("training")
    RunFolder.open(root / "e1", Config()).claim("training")
    (root / "checkpoints").mkdir()
    for note in ("elapsed.json", "judge.json", "judge_domain.json", "judge.log", "judge-1.log"):
        (root / note).touch()
    (root / "data" / "train").mkdir(parents=True)
    (root / "data" / "train" / "scenes.jsonl").touch()
    sqlite3.connect(root / "judgements.sqlite").execute(
        "CREATE TABLE judgements (key TEXT)"
    ).connection.close()
    caplog.set_level("INFO")
    folder = RunFolder.open(root, Config(seed=1), resume=resume)
    assert not folder.resumed
    assert load_config(Config, [folder.config]).seed == 1
    assert [entry.name for entry in root.iterdir() if not entry.name.startswith(".")] == ["config.yaml"]
    assert caplog.text.count("had not done anything yet") == 1
    folder.claim("supervised")


def test_a_run_whose_first_step_did_not_end_is_begun_anew(tmp_path: Path) -> None:
    """Too little memory of the devices is what a first start meets most, and other settings are what helps."""
    root = tmp_path / "run"
    RunFolder.open(root, Config()).claim("training")
    (root / "checkpoints").mkdir()
    (root / "trackers.json").write_text('{"tensorboard": {"id": "a", "step": 0, "evaluations": {}}}')
    MetricsWriter(root / "metrics.jsonl").close()
    SamplesWriter(root / "samples.jsonl").close()
    assert not RunFolder.open(root, Config(seed=1)).resumed
    assert not (root / "samples.jsonl").exists()


@pytest.mark.parametrize(
    "work", ["metrics.jsonl", "references/train.jsonl", "e1/metrics.jsonl", "data/mine.png"]
)
def test_work_is_never_removed(tmp_path: Path, work: str) -> None:
    RunFolder.open(tmp_path / "run", Config())
    done = tmp_path / "run" / work
    done.parent.mkdir(exist_ok=True)
    done.write_text('{"step": 1}\n')
    with pytest.raises(RunFolderError, match="not empty"):
        RunFolder.open(tmp_path / "run", Config(seed=1))
    with pytest.raises(RunFolderError, match="seed: 0 then, 1 now"):
        RunFolder.open(tmp_path / "run", Config(seed=1), resume=True)
    assert done.exists()


def test_judgements_are_work(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, Config())
    with closing(sqlite3.connect(tmp_path / "judgements.sqlite")) as store, store:
        store.execute("CREATE TABLE judgements (key TEXT)")
        store.execute("INSERT INTO judgements VALUES ('a')")
    assert RunFolder(tmp_path).begun
    # What cannot be read may hold some.
    (tmp_path / "judgements.sqlite").write_bytes(b"torn" * 1000)
    assert RunFolder(tmp_path).begun


def test_a_run_that_another_process_is_about_to_begin_is_left_alone(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from vcap_jax.report.idle_run import lock; "
        "print(lock(Path(sys.argv[1])), flush=True); sys.stdin.read()"
    )
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with pytest.raises(RunFolderError, match="not empty"):
            RunFolder.open(tmp_path, Config(seed=1))
        assert not idle_run.lock(tmp_path)
        other.communicate()
    assert not RunFolder.open(tmp_path, Config(seed=1)).resumed


def test_a_run_that_another_process_is_at_work_in_is_not_resumed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.report.test_run_folder import Config; "
        "from vcap_jax.report.run_folder import RunFolder; RunFolder.open(Path(sys.argv[1]), Config()); "
        "print('open', flush=True); sys.stdin.read()"
    )
    root = tmp_path / "run"
    command = [sys.executable, "-c", code, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        (root / "metrics.jsonl").write_text('{"step": 1}\n')
        before = folder_content(root)
        with pytest.raises(RunFolderError, match="another process is at work in"):
            RunFolder.open(root, Config(), resume=True)
        assert folder_content(root) == before
        other.communicate()
    assert RunFolder.open(root, Config(), resume=True).resumed


def folder_content(root: Path) -> dict[str, str]:
    return {entry.name: entry.read_text() for entry in root.iterdir()}


def test_differences_of_sections_and_absent_keys() -> None:
    then = {"a": {"b": 1, "c": 2}, "d": {}}
    now = {"a": {"b": 1}, "d": {}, "e": 0}
    assert differences(then, now) == ["a.c: 2 then, absent now", "e: absent then, 0 now"]
    assert differences(then, now, ["a", "e"]) == []


def test_a_run_is_only_gone_on_with_by_the_kind_that_began_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim("training")
    folder.claim("training")
    with pytest.raises(RunFolderError, match="is training, this command's is supervised"):
        folder.claim("supervised")


@pytest.mark.parametrize("work", ["metrics.jsonl", "checkpoints/1/step"])
def test_a_folder_that_was_new_does_not_begin_over_its_own_steps(tmp_path: Path, work: str) -> None:
    """As where a cell of a notebook is executed again: the second run took the place of the first."""
    root = tmp_path / "run"
    folder = RunFolder.open(root, Config())
    folder.claim("training")
    MetricsWriter(folder.metrics).close()
    (root / "checkpoints" / "1.tmp").mkdir(parents=True)
    folder.claim("training")  # no step has ended
    (root / work).parent.mkdir(exist_ok=True)
    (root / work).write_text('{"step": 1}\n')
    with pytest.raises(
        RunFolderError, match=rf"holds steps .* RunFolder\.open\('{root}', config, resume=True\)"
    ):
        folder.claim("training")
    RunFolder.open(root, Config(), resume=True).claim("training")


def test_evaluations_have_a_folder_each(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    (folder.root / "data").mkdir(parents=True)
    assert folder.evaluation("heldout") == folder.root / "evaluations" / "heldout"
    assert folder.evaluation("data") == folder.root / "evaluations" / "data"


def test_the_seconds_of_all_starts_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5, 100.0, 101.0, 103.0])
    monkeypatch.setattr(run_folder, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(InterruptedError), RunFolder(tmp_path).counting_seconds():
        raise InterruptedError("a stop")
    with RunFolder(tmp_path).counting_seconds() as seconds:
        assert seconds() == 2.5 + 1
    assert json.loads((tmp_path / "elapsed.json").read_text()) == {"seconds": 2.5 + 3}


def test_the_seconds_of_a_start_that_is_killed_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were noted at an end alone, which a kill has not."""
    monkeypatch.setattr(run_folder, "_NOTED_EVERY_S", 0.001)
    with RunFolder(tmp_path).counting_seconds() as seconds:
        until((tmp_path / "elapsed.json").exists, "the seconds so far")
        noted = json.loads((tmp_path / "elapsed.json").read_text())["seconds"]
        assert 0 < noted <= seconds()


def test_what_ends_a_run_is_told_though_its_seconds_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(run_folder, "write_json", refuses)
    with pytest.raises(InterruptedError), RunFolder(tmp_path).counting_seconds():
        raise InterruptedError("a stop")


def test_of_several_processes_one_notes_the_seconds(tmp_path: Path) -> None:
    with RunFolder(tmp_path).counting_seconds(noted=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_that_a_person_wrote_is_not_replaced(tmp_path: Path) -> None:
    mine = "# my settings\nsteps: 3\n"
    (tmp_path / "config.yaml").write_text(mine)
    for resume in (False, True):
        with pytest.raises(RunFolderError, match=r"config\.yaml was written by no run"):
            RunFolder.open(tmp_path, Config(), resume=resume)
    assert (tmp_path / "config.yaml").read_text() == mine


def test_pages_are_titled_by_the_folder_not_by_the_path(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "study" / "e1").title == "study/e1"


@pytest.mark.parametrize("left", ["", "a: [1,\n", "- 1\n"])
def test_a_damaged_configuration_is_named_with_the_remedy(tmp_path: Path, left: str) -> None:
    """As after a power cut; it was a parser's traceback, and an empty file was taken for a configuration."""
    folder = RunFolder.open(tmp_path, Config())
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    folder.config.write_text(left)
    with pytest.raises(
        RunFolderError, match=r"config\.yaml is damaged \(.*\): put it back .* --print-config$"
    ):
        RunFolder.open(tmp_path, Config(), resume=True)


def test_a_damaged_clock_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elapsed.json").write_text("")
    with RunFolder(tmp_path).counting_seconds() as seconds:
        assert seconds() < 60
    assert "elapsed.json" in caplog.text
    assert "count from here" in caplog.text
    assert json.loads((tmp_path / "elapsed.json").read_text())["seconds"] < 60
    (tmp_path / "kind.txt").write_text("")
    with pytest.raises(RunFolderError, match=r"kind\.txt is empty: put the file back, or remove it"):
        RunFolder(tmp_path).claim("training")
