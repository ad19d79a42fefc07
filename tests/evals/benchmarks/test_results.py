"""What an evaluation by a benchmark leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.evals.benchmarks import results
from vcap_jax.evals.protocol import Evaluation, Item


def evaluation(value: float) -> Evaluation:
    return Evaluation(metrics={}, items=(Item(id="a", captions=("A lamp.",), values={"right": value}),))


def test_figures_never_stand_beside_items_of_another_scoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is scored anew, and ended between the two files."""
    results.write_results(tmp_path, evaluation(0.0), {"right": 0.0})
    assert (tmp_path / results.RESULTS).exists()

    def killed(path: Path, value: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(results, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            results.write_results(tmp_path, evaluation(1.0), {"right": 1.0})
    assert not (tmp_path / results.RESULTS).exists(), "which would say that all is there"
    results.write_results(tmp_path, evaluation(1.0), {"right": 1.0})
    assert (tmp_path / results.RESULTS).exists()
