"""Steps of a policy on a GPU: what is measured is what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu_step


def test_a_folder_that_was_prepared_for_another_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(folder: Path, size: str) -> None:
        (folder / "size.txt").write_text(f"{size}\n")
        (folder / "manifest.jsonl").write_text("")

    monkeypatch.setattr(gpu_step, "prepare", prepare)
    monkeypatch.chdir(tmp_path)
    for words in ([], ["--size=2B"]):
        monkeypatch.setattr("sys.argv", ["gpu_step.py", "--out=step", "--prepare", *words])
        assert gpu_step.main() == 0
    for words in (["--size=4B"], ["--small"]):
        monkeypatch.setattr("sys.argv", ["gpu_step.py", "--out=step", *words])
        with pytest.raises(SystemExit):
            gpu_step.main()
        assert "holds a checkpoint of another size (2B, not " in capsys.readouterr().err
    Path("step/size.txt").unlink()  # as it was prepared before the size was noted
    with pytest.raises(SystemExit):
        gpu_step.main()
    assert "(unknown, not small)" in capsys.readouterr().err
