"""What a reward pays for, counted on captions whose advantages are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import what_pays
from benchmarks.what_pays import SECOND, advantages, lines, pay, traits
from vcap_jax.configuration import load_config
from vcap_jax.reward.store import StoredCandidate
from vcap_jax.run.config import RunConfig
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.vocabulary import VALUES

ROOT = Path(__file__).resolve().parents[2]
CLIP = sample_scene("video", 0, 0)
ONE = "[0.0 - 2.0] At the top left a red star stays still."
TWO = ONE + " At the bottom left a blue ring moves up."


def candidate(step: int, index: int, caption: str, reward: float | None, group: int = 0) -> StoredCandidate:
    return StoredCandidate(
        step=step,
        group=group,
        sample_id="a",
        index=index,
        caption=caption,
        family="witness_adjudicator",
        components={},
        verdicts={},
        reward=reward,
    )


def group(step: int, *rewarded: tuple[str, float | None], place: int = 0) -> list[StoredCandidate]:
    return [candidate(step, index, text, reward, place) for index, (text, reward) in enumerate(rewarded)]


def test_two_objects_count_where_they_are_in_one_segment() -> None:
    assert SECOND in traits(CLIP, TWO)
    assert SECOND not in traits(CLIP, ONE)
    # An event names the object a second time; another segment's object is no second one.
    assert SECOND not in traits(CLIP, ONE + " The one at the top left disappears.")
    assert SECOND not in traits(CLIP, ONE + "\n[2.0 - 4.0] At the bottom left a blue ring moves up.")
    picture = "At the top left is a red star. At the bottom left is a blue ring."
    assert traits(sample_scene("image", 0, 0), picture).keys() == {"shape", "colour"}


def test_of_each_kind_it_is_told_what_is_true() -> None:
    """An event that did not happen is as false as one of another kind; two objects are no claim."""
    (place, kind), value = next(
        (slot[1:], value) for slot, value in scene_facts(CLIP).items() if slot[0] == 0 and slot[-1] == "shape"
    )
    start, end = CLIP.shots[0].seconds
    other = next(shape for shape in VALUES["shape"] if shape != value)
    for shape, true in ((value, True), (other, False)):
        found = traits(CLIP, f"[{start} - {end}] At the {place} a red {shape} stays still.")
        assert found[kind] == [true]
    assert traits(CLIP, TWO)[SECOND] == []
    candidates = group(0, (ONE, 0.0), (TWO, 1.0))
    row = pay(candidates, {"a": CLIP}, parts=1, steps=1, advantages=PLAIN)["shape"][0]
    claims = [*traits(CLIP, ONE)["shape"], *traits(CLIP, TWO)["shape"]]
    assert row.true == pytest.approx(sum(claims) / len(claims), abs=1e-4)


def paid(*changed: str) -> Callable[[Sequence[StoredCandidate]], np.ndarray | None]:
    """By the settings of clips' runs, of captions with a token for every letter."""
    config = load_config(
        RunConfig,
        [ROOT / "configs" / "embedded" / "video.yaml"],
        ["rollout.max_completion_length=100", *changed],
    )
    return partial(advantages, config=config, tokens=len)


PLAIN = paid()


def test_groups_that_teach_nothing_are_left_out() -> None:
    assert PLAIN(group(0, (ONE, 0.5), (TWO, 0.5))) is None
    assert PLAIN(group(0, (ONE, 0.5), (TWO, None))) is None
    found = PLAIN(group(0, (ONE, 0.0), (TWO, 1.0), (ONE, None)))
    # Two rewards lie half of their standard deviation (ddof 1, 0.707) times 1.414 from their mean.
    assert found == pytest.approx([-0.7071, 0.7071, np.nan], abs=1e-3, nan_ok=True)


def test_a_caption_is_paid_as_the_run_pays_it() -> None:
    """Where length costs, of two captions as good the shorter is the better one."""
    assert len(ONE) < 80 < len(TWO)
    as_good = group(0, (ONE, 1.0), (TWO, 1.0))
    assert PLAIN(as_good) is None
    costing = paid("grpo.overlong.weight=0.5", "grpo.overlong.buffer=0.2")
    assert costing(as_good) == pytest.approx([0.7071, -0.7071], abs=1e-3)
    # Not divided by the spread of the group.
    unscaled = paid("grpo.advantages.scale=none")
    assert unscaled(group(0, (ONE, 0.0), (TWO, 1.0))) == pytest.approx([-0.5, 0.5])


def test_shares_and_advantages_go_by_parts_of_the_run() -> None:
    candidates = [
        *group(0, (ONE, 0.0), (TWO, 1.0)),
        *group(0, (ONE, 1.0), (ONE, 1.0), place=1),  # flat
        *group(3, (ONE, 1.0), (TWO, 0.0), (ONE, 0.5), (TWO, None)),
    ]
    rows = pay(candidates, {"a": CLIP}, parts=2, steps=4, advantages=PLAIN)
    assert next(iter(rows)) in {"shape", "colour", "motion"}
    first, last = rows[SECOND]
    assert first.share == 0.5
    assert first.advantage == pytest.approx(0.7071, abs=1e-3)
    assert last.share == pytest.approx(1 / 3, abs=1e-4)
    assert last.advantage == pytest.approx(-1, abs=1e-3)
    assert [one.share for one in rows["shape"]] == [1.0, 1.0]
    assert [one.advantage for one in rows["shape"]] == pytest.approx([0.0, 0.0])


def test_a_part_without_captions_says_so() -> None:
    rows = pay(group(0, (ONE, 0.0), (TWO, 1.0)), {"a": CLIP}, parts=2, steps=2, advantages=PLAIN)
    assert rows[SECOND][1].advantage is None
    table = list(lines("run", rows, steps=2))
    assert table[1].split() == ["steps", "1", "to", "1", "2", "to", "2"]
    assert next(line for line in table if line.startswith(SECOND)).split()[-3:] == ["50.0%", "+0.71", "0.0%"]


def test_runs_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(RunConfig, [ROOT / "configs" / "embedded" / "video.yaml"], [])
    monkeypatch.setattr(what_pays, "load_config", lambda _, files: config)
    monkeypatch.setattr(what_pays, "read_scenes", lambda folder: {"a": CLIP})
    paid = {store: group(0, (ONE, 0.0), (TWO, 1.0)) for store in ("seed-0/e1", "seed-1/e1")}
    monkeypatch.setattr(
        what_pays, "read_candidates", lambda store: ((one, None) for one in paid.get(str(store.parent), ()))
    )
    made = tmp_path / "pays.json"
    what_pays.main([*paid, "--output", str(made)])
    assert list(json.loads(made.read_text())) == list(paid)
    with pytest.raises(SystemExit):
        what_pays.main(["seed-0/e1", "seed-0/e1/"])
    assert "given twice" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="seed-2/e1: no group has captions of different rewards yet"):
        what_pays.main(["seed-2/e1"])
