"""What an evaluation by a benchmark leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.evals.benchmarks import results
from vcap_jax.evals.protocol import Evaluation, Item
from vcap_jax.evals.statistics import evaluated, mean


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


def test_figures_are_told_with_their_number_where_it_is_not_that_of_all() -> None:
    items = [
        Item(id=str(k), captions=("c",), values={"all": float(k)} | ({"few": 1.0} if k else {}))
        for k in range(3)
    ]
    items += [
        Item(id=f"{k} again", captions=("c",), values={"one": 2.0} if k else {}, of="2") for k in (0, 1)
    ]
    found = evaluated(items, {name: mean(name) for name in ("all", "few", "one", "none")})
    said: list[str] = []
    results.told(Evaluation(metrics=found, items=tuple(items)), said.append)
    assert [" ".join(line.split()) for line in said] == [
        "all 1.00 (0.00 to 2.00)",
        "few 1.00 (1.00 to 1.00, n=2)",
        "one 2.00 (n=1)",
        "none nothing measured",
    ]
