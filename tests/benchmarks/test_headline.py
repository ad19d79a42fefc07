"""The README's table: which runs are made, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import headline


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of every script that was started; instead of a run each leaves its summary, as of the folder that it
    was started in."""
    started: list[list[str]] = []

    def run(words: list[str], *, check: bool, cwd: Path) -> None:
        assert check
        started.append(words)
        folder = cwd / words[words.index("--run-dir" if "--run-dir" in words else "--dir") + 1]
        folder.mkdir(parents=True)
        rows = {name: {"coverage": 0.5} for name in (*headline.ROWS, "e2")}
        (folder / "summary.json").write_text(json.dumps(rows | {"rows": rows}))

    monkeypatch.setattr(headline.subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    return started


def test_started_anywhere_it_finds_its_runs_and_fragments(scripts: list[list[str]], tmp_path: Path) -> None:
    """The scripts are started in the repository."""
    for _ in range(2):
        rows = headline.run_of(Path("runs"), "image", 0, [Path("mine.yaml")])
        assert set(rows) == set(headline.ROWS.values())
        assert "e2" in headline.rounds_of(Path("runs"), "video", 1, 2, [])
    assert sorted(path.name for path in Path("runs").iterdir()) == ["image-0", "rounds-video-1"]
    assert [Path(words[1]).name for words in scripts] == ["train.py", "self_improve.py"], "each is made once"
    assert f"--config={tmp_path / 'mine.yaml'}" in scripts[0]


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--rounds", "0"]])
def test_no_seeds_and_no_rounds_are_refused(
    words: list[str],
    scripts: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["headline.py", *words])
    with pytest.raises(SystemExit):
        headline.main()
    assert "--seeds and --rounds: give at least 1" in capsys.readouterr().err
    assert not scripts
