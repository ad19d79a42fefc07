"""Runs side by side: which are one arm, what tells arms apart, means and ranges."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vcap_jax.configuration import plain_settings
from vcap_jax.report.arms import REWARD, arms_of, find_runs, read_run, reward_ends
from vcap_jax.report.arms_page import _curves, _draw, as_text, write_arms_page
from vcap_jax.report.charts import small_multiples
from vcap_jax.report.evaluations import Results
from vcap_jax.report.intervals import Value
from vcap_jax.report.metrics import MetricsWriter, Row
from vcap_jax.report.run_folder import RunFolderError
from vcap_jax.run.config import RunConfig
from vcap_jax.system.json_values import as_object

SETTINGS: dict[str, Any] = {"grpo": {"beta": 0.1}, "reward": {"family": "vqa"}, "logging": {"every": 1}}


def write_run(
    folder: Path,
    seed: int,
    end: float | None = None,
    steps: int = 20,
    start: float = 0.25,
    **settings: Any,
) -> Path:
    """A run of ``steps`` whose reward rises by 0.01 a step, with an evaluation at its start and, with ``end``, now."""
    folder.mkdir(parents=True)
    config = plain_settings(RunConfig()) | {"name": folder.name, "seed": seed}
    for key, value in {**SETTINGS, **settings}.items():
        config[key] = {**as_object(config[key], key), **value} if isinstance(value, dict) else value
    (folder / "config.yaml").write_text(json.dumps(config))  # which is YAML
    log = MetricsWriter(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        log.write({"step": step, "reward/mean": step / 100, "length/mean": 20})
    log.close()
    for step, coverage in ((0, start), (steps, end), (None, 0.5)):
        if coverage is not None:
            value = Value(value=coverage, low=coverage, high=coverage, n=9, method="")
            metrics = {"coverage": value}
            when = f"step-{step}"
            of = Results(evaluator="heldout", when=when, step=step, metrics=metrics, items=9, failed=0)
            of.write(folder / "evaluations" / "heldout" / f"{when}.json")
    return folder


def arms(*places: Path, ignored: tuple[str, ...] = ()) -> Any:
    return arms_of([read_run(folder, ignored) for folder in find_runs(places)])


def test_seeds_of_one_configuration_are_one_arm_with_mean_and_range(tmp_path: Path) -> None:
    for seed, end in ((2, 0.5), (0, 0.3), (1, 0.4)):
        write_run(tmp_path / "runs" / f"s{seed}", seed, end)
    (arm,) = arms(tmp_path)
    assert [run.seed for run in arm.runs] == [0, 1, 2]
    assert (arm.label, arm.steps) == ((), (20, 20))
    coverage, reward = arm.spreads()["heldout/coverage"], arm.spreads()["reward/mean"]
    assert (coverage.start, coverage.low, coverage.high, coverage.runs) == (0.25, 0.3, 0.5, 3)
    assert coverage.now == pytest.approx(0.4)
    assert (coverage.change, coverage.change_low, coverage.change_high) == pytest.approx((0.15, 0.05, 0.25))
    assert (reward.start, reward.now) == pytest.approx((0.015, 0.195))  # two of twenty steps at either end


def test_arms_are_told_apart_by_what_is_not_as_in_most(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 0, 0.5)
    write_run(tmp_path / "b", 0, 0.5, grpo={"beta": 0.0})
    write_run(tmp_path / "c", 0, 0.5, reward={"family": "random"}, young=True)
    write_run(tmp_path / "d", 1, 0.5, logging={"every": 7})
    found = arms(tmp_path, ignored=("logging",))
    assert [arm.label for arm in found] == [
        (),
        ("grpo.beta=0.0",),
        ("reward.family=random", "young=true"),
    ]
    assert [run.title.rpartition("/")[2] for run in found[0].runs] == ["a", "d"]
    assert len(arms(tmp_path)) == 4


def test_a_section_that_has_keys_is_not_called_absent(tmp_path: Path) -> None:
    plain = {"family": "mine", "options": {}}
    for seed in (0, 1):
        write_run(tmp_path / f"plain-{seed}", seed, reward=plain)
    write_run(tmp_path / "brief", 0, reward=plain | {"options": {"most": 40}})
    assert sorted(arm.label for arm in arms(tmp_path)) == [(), ("reward.options.most=40",)]


def test_of_two_arms_that_with_more_runs_has_what_is_usual(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 0, 0.5, grpo={"beta": 0.0})
    for seed in range(3):
        write_run(tmp_path / f"b{seed}", seed, 0.5)
    assert [arm.label for arm in arms(tmp_path)] == [("grpo.beta=0.0",), ()]


def test_in_a_sweep_every_arm_shows_its_value(tmp_path: Path) -> None:
    """The first was told to have the settings of most, and its value stood nowhere."""
    for beta in (0.0, 0.1, 0.2):
        for seed in (0, 1):
            write_run(tmp_path / f"{beta}-{seed}", seed, 0.5, grpo={"beta": beta})
    assert [arm.label for arm in arms(tmp_path)] == [(f"grpo.beta={beta}",) for beta in (0.0, 0.1, 0.2)]


@pytest.mark.parametrize("relative", [False, True])
def test_rounds_of_several_seeds_are_one_arm_though_each_has_its_own_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        recipe = (Path() if relative else tmp_path) / f"improve{seed}"
        for round_, pool in (("e1", None), ("e2", str(recipe / "pools" / "e1.jsonl"))):
            write_run(recipe / round_, seed, 0.5, data={"references": pool})
        write_run(
            recipe / "self" / "student", seed, 0.5, sft={"captions": str(recipe / "self" / "best.jsonl")}
        )
        (recipe / "config.yaml").touch()
    found = arms(tmp_path)
    assert [len(arm.runs) for arm in found] == [2, 2, 2]
    assert {arm.label for arm in found} == {
        (),
        ("data.references=pools/e1.jsonl",),
        ("sft.captions=self/best.jsonl",),
    }


def test_students_of_two_teachers_are_two_arms(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    for teacher in ("self", "e1"):
        captions = str(tmp_path / teacher / "best.jsonl")
        write_run(tmp_path / teacher / "student", 0, 0.5, sft={"captions": captions})
    assert sorted(arm.label for arm in arms(tmp_path)) == [
        ("sft.captions=e1/best.jsonl",),
        ("sft.captions=self/best.jsonl",),
    ]


def test_runs_of_one_pool_are_one_arm_wherever_they_lie(tmp_path: Path) -> None:
    for pool in ("/pools/e1.jsonl", str(tmp_path / "e1.jsonl")):
        for place in ("a", "deep/er/b"):
            name = Path(pool).parent.name
            write_run(tmp_path / name / place, len(place), 0.5, data={"references": pool})
        (arm,) = arms(tmp_path / name)
        assert len(arm.runs) == 2


def test_a_step_without_a_reward_and_a_figure_of_nothing_leave_the_others(tmp_path: Path) -> None:
    """A judge that failed for a whole step leaves not-a-number, which made the arm's figure one."""
    for seed, end in ((0, 0.5), (1, math.nan)):
        write_run(tmp_path / f"s{seed}", seed, end)
    log = MetricsWriter(tmp_path / "s0" / "metrics.jsonl")
    log.write({"step": 21, "reward/mean": math.nan})
    log.close()
    (arm,) = arms(tmp_path)
    reward, coverage = arm.spreads()["reward/mean"], arm.spreads()["heldout/coverage"]
    assert (reward.start, reward.now, reward.runs) == (pytest.approx(0.015), pytest.approx(0.195), 2)
    assert (coverage.now, coverage.runs) == (0.5, 1)
    assert "nan" not in as_text([arm])


def test_a_tenth_is_of_the_steps_that_have_a_reward() -> None:
    rows: list[Row] = [{"step": step, REWARD: step if step > 10 else math.nan} for step in range(1, 21)]
    assert reward_ends(rows) == (11, 20)


@pytest.mark.slow
def test_a_run_that_was_measured_only_later_has_no_start(tmp_path: Path) -> None:
    """A follower's first checkpoint is no start; and means of the runs that have one are beside those of all."""
    followed = write_run(tmp_path / "followed", 1, 0.75)
    (followed / "evaluations" / "heldout" / "step-0.json").unlink()
    value = Value(value=0.5, low=0.5, high=0.5, n=9, method="")
    early = Results(
        evaluator="heldout", when="step-10", step=10, metrics={"coverage": value}, items=9, failed=0
    )
    early.write(followed / "evaluations" / "heldout" / "step-10.json")
    write_run(tmp_path / "whole", 0, 0.25)
    for place in (followed, tmp_path):
        (arm,) = arms(place)
        coverage = arm.spreads()["heldout/coverage"]
        assert (coverage.start, coverage.change, coverage.high) == (None, None, 0.75)
        text = as_text([arm]).split("heldout/coverage")[1].splitlines()[1]
        assert text.split()[1] == text.split()[-1] == "-"
        write_arms_page(tmp_path / "index.html", [arm])
    assert "<td>-</td><td>0.5 (0.25 to 0.75)</td><td>-</td>" in (tmp_path / "index.html").read_text()


def test_runs_of_different_judges_are_different_arms_though_no_setting_names_them(tmp_path: Path) -> None:
    """judge.model may be null. Where none has answered yet, a run is no arm of its own."""
    judges = {"a": "judge-8b", "b": None, "c": "judge-8b", "d": "judge-32b", "e": "judge-8b"}
    runs = [
        read_run(write_run(tmp_path / name, seed, 0.5), judge=judge)
        for seed, (name, judge) in enumerate(judges.items())
    ]
    other = write_run(tmp_path / "f", 9, 0.5, reward={"family": "random"})
    found = arms_of([*runs, read_run(other)])
    assert [[run.folder.name for run in arm.runs] for arm in found] == [["a", "b", "c", "e"], ["d"], ["f"]]
    assert [arm.label for arm in found] == [(), ("judge.model=judge-32b",), ("reward.family=random",)]


def benchmark(run: Path, step: int, judge: str | None, clair: float, **about: Any) -> None:
    """As a follower leaves it; of an earlier one nobody knows the judge."""
    asked = {"endpoints": {"judge": {"model": judge, "urls": [run.name]}}, "prompts": {"clair": "1"}} | about
    value = Value(value=clair, low=clair, high=clair, n=9, method="")
    of = Results(
        evaluator="capmas",
        when=f"step-{step}",
        step=step,
        metrics={"clair": value},
        items=9,
        failed=0,
        asked={} if judge is None else asked,
    )
    of.write(run / "evaluations" / "capmas" / f"step-{step}.json")


def test_figures_of_a_benchmark_by_different_judges_are_never_one_mean(tmp_path: Path) -> None:
    """Nor are a start and a now, where a follower was ended before it had been through all steps."""
    judges = {"a": "judge-8b", "b": "judge-8b", "c": "judge-32b", "d": None}
    for seed, (name, judge) in enumerate(judges.items()):
        run = write_run(tmp_path / name, seed)
        benchmark(run, 10, judge, 40 + seed)
        benchmark(run, 20, "judge-8b" if name == "c" else judge, 50 + seed)
    (arm,) = arms(tmp_path)
    found = {name: of for name, of in arm.spreads().items() if name.startswith("capmas")}
    assert {name: (of.start, of.now, of.runs) for name, of in found.items()} == {
        "capmas (judge.model=judge-8b)/clair": (None, 51, 3),
        "capmas (judge.model=judge-32b)/clair": (None, 42, 1),
        "capmas (judge not noted)/clair": (None, 53, 1),
    }
    assert "capmas (judge.model=judge-8b)/clair" in as_text([arm])
    (alone,) = arms(tmp_path / "a")
    assert "capmas/clair" in alone.spreads()


def test_other_prompts_of_a_benchmark_are_no_less_apart(tmp_path: Path) -> None:
    for seed, prompts in enumerate(({"clair": "1", "caption": "1"}, {"clair": "1"}, {"clair": "2"})):
        benchmark(write_run(tmp_path / f"s{seed}", seed), 20, "judge-8b", 50, prompts=prompts)
    (arm,) = arms(tmp_path)
    found = {name: of.runs for name, of in arm.spreads().items() if name.startswith("capmas")}
    assert list(found.values()) == [2, 1]
    assert all(name.startswith("capmas (prompts=") for name in found)


def test_a_seed_that_counts_twice_is_told_with_both_folders(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1), ("copy", 0)):
        write_run(tmp_path / name, seed, 0.5)
    told = as_text(arms(tmp_path))
    assert f"seed 0 counts twice in A, as {tmp_path / 'a'} and {tmp_path / 'copy'}: leave one out" in told
    (tmp_path / "copy" / "metrics.jsonl").unlink()
    assert "twice" not in as_text(arms(tmp_path))


def test_a_panel_of_one_arm_among_several_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "vcap_jax.report.arms_page.save_figure",
        lambda figure, path: (drawn.append(figure), path.write_bytes(b"")),
    )
    for seed, end in ((0, 0.5), (1, None)):
        write_run(tmp_path / f"s{seed}", seed, end, grpo={"beta": seed})
    (tmp_path / "s1" / "evaluations" / "heldout" / "step-0.json").unlink()
    for places, told in ((tmp_path, [["A"], ["A", "B"]]), (tmp_path / "s0", [None, None])):
        write_arms_page(tmp_path / "index.html", arms(places))
        legends = [axes.get_legend() for axes in drawn[-1].axes[:2]]
        assert [legend and [text.get_text() for text in legend.get_texts()] for legend in legends] == told


def test_a_run_at_work_stands_beside_others(tmp_path: Path) -> None:
    """It has no second evaluation yet; and what is no policy of the run is none of its figures."""
    write_run(tmp_path / "done", 0, 0.5)
    write_run(tmp_path / "going", 1, None, steps=4)
    write_run(tmp_path / "begun", 2, None, steps=0)
    (arm,) = arms(tmp_path)
    assert arm.steps == (0, 20)
    assert arm.spreads()["heldout/coverage"].runs == 1
    assert arm.spreads()["reward/mean"].runs == 2
    assert "0 to 20" in as_text([arm])


def test_a_place_without_a_run_is_named_and_one_named_twice_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 0, 0.5)
    assert find_runs([run, tmp_path, run]) == [run]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="empty: no run there or below"):
        find_runs([run, tmp_path / "empty"])


def test_text_and_page_have_every_arm_and_figure(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", 0, 0.5)
    (run / "samples.html").write_text("x")
    write_run(tmp_path / "runs" / "b", 1, 0.7)
    sharp = write_run(tmp_path / "runs" / "c#50%", 0, 0.4, grpo={"beta": "<0>"})
    (sharp / "samples.html").write_text("x")
    found = arms(tmp_path)
    text = as_text(found)
    assert "0.6 (0.5 to 0.7)" in text
    assert "grpo.beta=<0>" in text
    assert "A  a b" in text
    assert "B  c#50%" in text
    many = dataclasses.replace(found[0], runs=[*found[0].runs, *found[0].runs])
    assert "A  a ... b  0 1 0 1" in as_text([many])
    write_arms_page(tmp_path / "pages" / "index.html", found)
    page = (tmp_path / "pages" / "index.html").read_text()
    assert 'href="../runs/a/samples.html"' in page
    assert 'href="../runs/c%2350%25/samples.html"' in page
    assert "grpo.beta=&lt;0&gt;" in page
    assert "+0.35 (+0.25 to +0.45)" in page
    assert "data:image/png;base64," in page
    assert "runs/b/samples" not in page
    assert "are those of A, B, ... again" not in page


@pytest.mark.slow
def test_a_page_says_from_which_arm_on_strokes_and_colours_come_again(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", 0, 0.5)
    found = arms(tmp_path)
    write_arms_page(tmp_path / "pages" / "many.html", [found[0]] * 18)
    assert "are those of A, B, ... again" not in (tmp_path / "pages" / "many.html").read_text()
    write_arms_page(tmp_path / "pages" / "many.html", [found[0]] * 19)
    assert (
        "From S on the strokes and colours are those of A, B, ... again"
        in (tmp_path / "pages" / "many.html").read_text()
    )


def test_a_metric_that_the_first_evaluation_lacks_is_drawn(tmp_path: Path) -> None:
    """A judge that was gone at the start gave no reward then; the tables had it, and no panel did."""
    run = write_run(tmp_path / "a", 0)
    for step, names in ((0, ("words",)), (10, ("reward", "words")), (20, ("reward", "words", "late"))):
        values = {name: Value(value=step / 10, low=0.0, high=1.0, n=9, method="") for name in names}
        judged = Results(evaluator="judged", when=str(step), step=step, metrics=values, items=9, failed=0)
        judged.write(run / "evaluations" / "judged" / f"step-{step}.json")
    found = arms(tmp_path)
    drawn = dict(_curves(found))
    assert [title for title in drawn if title.startswith("judged")] == [
        "judged: words",
        "judged: reward",
        "judged: late",
    ]
    steps, values = drawn["judged: reward"](found[0].runs[0])
    assert (steps.tolist(), values.tolist()) == ([10, 20], [1, 2])


class Steps(np.ndarray):
    """Counts how often somebody goes through it."""

    passes = 0

    def __iter__(self) -> Any:
        Steps.passes += 1
        return super().__iter__()


def test_the_mean_curve_goes_through_the_steps_of_a_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It went through them for every step, which took minutes of runs with some thousand."""
    monkeypatch.setattr(Steps, "passes", 0)
    _, (axes,) = small_multiples(1, 1, (4, 3))
    runs = [(np.arange(first, 60.0).view(Steps), np.arange(first, 60.0) + first) for first in (0, 2)]
    _draw(axes, runs, "red", "-", "A")
    assert Steps.passes < 20  # Matplotlib goes through them too
    mean = axes.lines[-1]
    assert next(iter(mean.get_xdata())) == 2  # the first step that both have
    # Each curve is averaged over three of its steps, two at its ends.
    np.testing.assert_allclose(mean.get_ydata()[:2], [(2 + 4.5) / 2, (3 + 5) / 2])
