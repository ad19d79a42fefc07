"""What ``vcap references`` is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.commands.references import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--out is required"),
        (["--out", "{folder}"], "is a folder: name a file in it, such as {folder}/pool.jsonl"),
        (["--out", "x.jsonl", "--shard", "2/2"], "'2/2' is no share"),
        (["--out", "x.jsonl", "--shard", "0/2", "--retry-failed"], "leave --shard out"),
        (["--out", "{folder}/references/train.jsonl", "--retry-failed"], "which a run began with"),
    ],
)
def test_words_that_cannot_work_are_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(SystemExit) as end:
        main([word.format(folder=tmp_path) for word in words])
    assert end.value.code == 2
    assert told.format(folder=tmp_path) in capsys.readouterr().err
