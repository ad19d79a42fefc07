"""What ``vcap references`` is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.commands.references import main, parse_arguments
from vcap_jax.report.run_folder import RunFolder


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--out is required"),
        (["--out", "{folder}"], "is a folder: name a file in it, such as {folder}/pool.jsonl"),
        (["--out", "x.jsonl", "--shard", "2/2"], "'2/2' is no share"),
        (["--out", "x.jsonl", "--shard", "0/2", "--retry-failed"], "leave --shard out"),
        (["--out", "{folder}/references/train.jsonl", "--retry-failed"], "which a run began with"),
        (["--out", "{folder}/pools/e1.jsonl", "--retry-failed"], "which a run began with"),
        (["--out", "{folder}/self/candidates.jsonl", "--retry-failed"], "which a run began with"),
    ],
)
def test_words_that_cannot_work_are_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder(tmp_path).claim("self-improvement")
    with pytest.raises(SystemExit) as end:
        main([word.format(folder=tmp_path) for word in words])
    assert end.value.code == 2
    assert told.format(folder=tmp_path) in capsys.readouterr().err


def test_a_pool_beside_a_configuration_of_ones_own_is_no_runs(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").claim("training")
    for path in (tmp_path / "pools" / "x.jsonl", tmp_path / "run" / "x.jsonl"):
        assert parse_arguments(["--out", str(path), "--retry-failed"]).retry_failed
