"""The page of held-out samples before and after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from vcap_jax.data.errors import MediaError
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.judged import REWARD
from vcap_jax.evals.protocol import Item
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.before_after import BeforeAfterPage
from vcap_jax.run.config import RunConfig


def test_rewards_that_rounding_alone_tells_apart_are_neither_better_nor_worse(tmp_path: Path) -> None:
    def gone(sample: Sample) -> NoReturn:
        raise MediaError("it was captioned, and is gone since")

    # Scores of 0, 6, 4 and of 4, 1, 4 with the paper's weights; and a gain and a loss of the smallest score.
    one, other = 0.05 * 0 + 0.04 * 6 + 0.01 * 4, 0.05 * 4 + 0.04 * 1 + 0.01 * 4
    assert one != other
    rewards = {"a": (one, other), "b": (other, one), "c": (one, one + 0.01), "d": (one, one - 0.01)}
    sides = [
        [Item(id=name, captions=("x",), values={REWARD: both[side]}) for name, both in rewards.items()]
        for side in (0, 1)
    ]
    own: Any = SimpleNamespace(
        samples=[Sample(id=name, images=(Path("x"),)) for name in rewards], references=None, media=gone
    )
    ctx: Any = SimpleNamespace(config=replace(RunConfig(), name="run"), folder=RunFolder(tmp_path))
    results: Any = SimpleNamespace(step=1, metrics={}, changes={})
    BeforeAfterPage(ctx, own, "judged").draw(*sides, results)
    assert "1 better, 1 worse, 2 equal by reward" in (tmp_path / "before_after.html").read_text()
