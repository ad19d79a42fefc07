"""Two real arms of two steps, from the command to the report; the second start finds everything done."""

from __future__ import annotations

import json

import pytest

from vcap_jax.commands import reproduce as reproduce_command
from vcap_jax.studies import tasks

TINY = [
    "max_steps=2",
    "world.train_scenes=4",
    "world.heldout_scenes=3",
    "rollout.groups_per_batch=4",
    "rollout.group_size=2",
    "rollout.max_completion_length=48",
    "grpo.groups_per_step=4",
    "grpo.groups_per_micro_batch=4",
]


@pytest.fixture
def reproduce(monkeypatch):
    """The command, its quick studies cut to two arms."""
    monkeypatch.setattr(tasks, "QUICK", {"families": {"image": ("e1", "imitation")}})
    # One device and quick compiling, in the processes that do the work.
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    return reproduce_command


@pytest.mark.long
def test_two_arms_from_the_command_to_the_report(tmp_path, reproduce, capsys):
    command = ["--seeds", "1", "--workers", "1", "--out", str(tmp_path), *TINY]
    assert reproduce.main(command) == 0, capsys.readouterr().out
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["made"]["complete"] == told["made"]["planned"] == 2
    assert set(told["made"]["seconds"]) == {"image/e1/0", "image/imitation/0"}
    rows = {
        row["name"]: row for table in told["tables"] if table["study"] == "families" for row in table["rows"]
    }
    assert set(rows) == {"references", "base", "e1", "imitation"}
    assert all(0 < row["cells"]["coverage"]["value"] <= 1 for row in rows.values())
    assert {c["verdict"] for c in told["claims"]} == {"cannot tell"}  # of one seed
    # The imitating run did not write what e1 had written, and learned from the same.
    e1, other = (next((tmp_path / "runs").glob(f"image-{name}-*")) for name in ("self-improve", "imitation"))
    digests = {json.loads((run / "references.json").read_text())["digest"] for run in (e1 / "e1", other)}
    assert len(digests) == 1
    assert "starting policy writes" not in (tmp_path / "logs" / "image-imitation-0.log").read_text()

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert reproduce.main(command) == 0
    assert "2 runs, 2 complete" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_mistakes_are_named(tmp_path, reproduce, capsys):
    assert reproduce.main(["--only", "nothing", "--out", str(tmp_path)]) == 1
    assert "no study 'nothing': choose among main" in capsys.readouterr().err
    assert reproduce.main(["--out", str(tmp_path), "max_stepz=3"]) == 1
    assert "max_stepz" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        reproduce.main(["--out", str(tmp_path), "--workers", "0"])
    assert "--workers 0: give at least 1" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
