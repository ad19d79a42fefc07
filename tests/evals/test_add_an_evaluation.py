"""docs/add_an_evaluation.md, followed from the page alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import quick_compile
from vcap_jax.report.metrics import read_metrics
from vcap_jax.world.dataset import MANIFEST, write_dataset

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "add_an_evaluation.md"
SMALL = [
    "max_steps=4",
    "evaluation.every=2",
    "world.train_scenes=8",
    "world.heldout_scenes=2",
    "grpo.groups_per_step=4",
    "grpo.groups_per_micro_batch=4",
    "rollout.groups_per_batch=4",
    "rollout.group_size=2",
    "rollout.max_completion_length=48",
]


def block(language: str) -> str:
    """The page's only code block of a language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return text


@pytest.mark.long
def test_the_page_leads_to_columns_files_and_a_picture(tmp_path: Path) -> None:
    write_dataset(tmp_path / "own", "image", "heldout", 3, seed=5)
    rows = [json.loads(line) for line in (tmp_path / "own" / MANIFEST).open(encoding="utf-8")]
    lines = [json.dumps({"id": row["id"], "image": f"own/{row['image']}"}) + "\n" for row in rows]
    gone = json.dumps({"id": "gone", "image": "own/gone.png"}) + "\n"
    (tmp_path / "heldout.jsonl").write_text("".join([*lines, gone]))
    (tmp_path / "my_evaluation.py").write_text(block("python"))
    (tmp_path / "mine.yaml").write_text(block("yaml"))
    # A user stands in a clone; here the evaluator's folder is another one.
    for name in ("launch", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    words = shlex.split(block("bash").replace("\\\n", ""))
    assert words[:2] == ["PYTHONPATH=.", "python"]
    done = subprocess.run(
        [sys.executable, *words[2:], *SMALL],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": ".",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": " ".join(quick_compile.flags()),
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "mine"
    folder = run / "evaluations" / "mentions"
    assert {path.name for path in folder.iterdir()} == {
        f"{when}{end}"
        for when in ("start", "step-2", "trained")
        for end in (".json", ".jsonl", ".items.jsonl")
    }
    trained = json.loads((folder / "trained.json").read_text())
    assert (trained["items"], trained["failed"], trained["metrics"]["said"]["n"]) == (4, 1, 3)
    assert trained["shares"] == ["said"]
    items = [json.loads(line) for line in (folder / "trained.items.jsonl").open(encoding="utf-8")]
    assert [item["id"] for item in items] == [*(row["id"] for row in rows), "gone"]
    assert "gone.png" in items[-1]["failure"]
    said = [bool(re.search("red|blue|green", item["captions"][0].lower())) for item in items[:3]]
    assert [item["values"]["said"] for item in items[:3]] == said
    assert trained["metrics"]["said"]["value"] == pytest.approx(sum(said) / 3)
    columns = {
        row["step"]: {name for name in row if name.startswith("eval/mentions/")}
        for row in read_metrics(run / "metrics.jsonl")
    }
    wanted = {"eval/mentions/said", "eval/mentions/length", "eval/mentions/failed"}
    assert columns == {1: set(), 2: wanted, 3: set(), 4: wanted}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["evaluations"]["mentions"]["trained"] == trained
    assert summary["trained"]["coverage"] >= 0
    assert (run / "plots.png").stat().st_size > 0
    shutil.rmtree(run)
