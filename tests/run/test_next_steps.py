"""What stands at the end of a training: a page that is there, and commands as this one was called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.next_steps import next_steps


def test_the_most_telling_page_there_is_and_commands_of_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "my run")
    folder.root.mkdir()
    monkeypatch.setattr(sys, "argv", ["/usr/bin/vcap", "train"])
    folder.samples_page.touch()
    assert next_steps(folder).splitlines() == [
        f"look at:  {folder.samples_page}",
        f"caption:  vcap caption --by '{folder.root}' PICTURE",
        f"export:   vcap convert to-hf '{folder.root}' exported",
    ]
    monkeypatch.setattr(sys, "argv", ["launch/train.py", "max_steps=3"])
    monkeypatch.setattr(sys, "executable", str(Path.cwd() / ".venv/bin/python"))
    folder.before_after_page("judged").touch()
    look, caption, _ = next_steps(folder).splitlines()
    assert look == f"look at:  {folder.before_after_page('judged')}"
    assert caption == f"caption:  .venv/bin/python launch/caption.py --by '{folder.root}' PICTURE"
