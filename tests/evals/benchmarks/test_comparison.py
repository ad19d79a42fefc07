"""Results of several captioners side by side: differences worked out by hand, and what is not comparable; the published
figures against what they say of themselves: sums, identities, names of metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from vcap_jax.commands.compare import main
from vcap_jax.evals.benchmarks.caparena import CapArenaAuto
from vcap_jax.evals.benchmarks.capmas import CapMas
from vcap_jax.evals.benchmarks.comparison import (
    Difference,
    PublishedTable,
    Result,
    compare,
    published_tables,
    read_results,
)
from vcap_jax.evals.benchmarks.comparison_page import as_text, change, write_page
from vcap_jax.evals.benchmarks.dream1k import Dream1k
from vcap_jax.evals.benchmarks.lmms_eval import SUITES, statistics
from vcap_jax.evals.benchmarks.vcapsbench import VCapsBench
from vcap_jax.evals.config import BENCHMARKS, EvaluatorConfig
from vcap_jax.evals.protocol import EvaluatorError, Item
from vcap_jax.evals.registry import load_evaluator
from vcap_jax.evals.statistics import evaluated
from vcap_jax.report.intervals import Value


def counts(name: str, right: float, wrong: float, questions: float, **other: object) -> Item:
    values = {"right": right, "wrong": wrong, "answered": right + wrong, "questions": questions}
    return Item(id=name, captions=("c",), values=values, **other)  # type: ignore[arg-type]


BASE = [counts("a", 2, 2, 10), counts("b", 8, 0, 10), counts("c", 5, 1, 10)]
BETTER = [
    counts("b", 9, 0, 10),
    counts("a", 3, 2, 10),
    counts("d", 10, 0, 10),
    Item(id="c", captions=("c",), failure="timeout: no"),
]


def often(items: Sequence[Item]) -> list[Item]:
    """The same five times over, as other samples."""
    return [replace(item, id=f"{item.id}{k}") for k in range(5) for item in items]


def leave(
    folder: Path,
    items: Sequence[Item],
    *,
    judge: str = "gpt-4o",
    mode: str = "strict",
    prompts: Mapping[str, str] | None = None,
    **more: object,
) -> Path:
    """As vcap evaluate leaves it."""
    folder = folder / "vcapsbench"
    folder.mkdir(parents=True)
    (folder / "items.jsonl").write_text("".join(item.line() for item in items))
    metrics = evaluated(items, VCapsBench.statistics("strict"))
    row = {
        "benchmark": "vcapsbench",
        "mode": mode,
        "endpoints": {"judge": {"model": judge, "urls": ["http://j"]}},
        "prompts": prompts or {"question": "v1", "caption": "mine"},
        "metrics": {name: value.row() for name, value in metrics.items()},
        **more,
    }
    (folder / "results.json").write_text(json.dumps(row))
    return folder.parent


def test_a_difference_is_over_what_both_have(tmp_path: Path) -> None:
    folders = {
        "base": leave(tmp_path / "base", BASE),
        "better": leave(tmp_path / "better", BETTER, prompts={"question": "v1", "caption": "other"}),
    }
    (comparison,) = compare(read_results(folders))
    assert comparison.metrics == ("ar", "ir", "cr")
    (difference,) = comparison.differences
    assert (difference.items, difference.unlike) == (2, "")
    # Of a and b: 10 of 20 right before, 12 of 20 after; one more on each, whatever is drawn.
    ar = difference.values["ar"]
    assert (ar.value, ar.low, ar.high) == pytest.approx((10, 10, 10))
    assert difference.values["cr"].value == pytest.approx(100 * (14 - 12) / 20)
    assert difference.values["ir"].value == pytest.approx(100 * (2 / 14 - 2 / 12))
    assert [result.failed for result in comparison.results] == [0, 1]
    assert comparison.results[1].metrics["ar"].n == 3


def test_what_is_not_alike_has_no_difference(tmp_path: Path) -> None:
    folders = {
        "base": leave(tmp_path / "base", BASE),
        "judge": leave(tmp_path / "judge", BASE, judge="qwen"),
        "mode": leave(tmp_path / "mode", BASE, mode="official"),
        "texts": leave(tmp_path / "texts", BASE, prompts={"question": "v2", "caption": "mine"}),
        "reading": leave(tmp_path / "reading", BASE, reading=2),
        "others": leave(tmp_path / "others", [counts("z", 1, 1, 4)]),
        "same": leave(tmp_path / "same", BASE, reading=1),
    }
    (comparison,) = compare(read_results(folders))
    assert [difference.unlike for difference in comparison.differences] == [
        "the judges (judge gpt-4o; judge qwen) differ",
        "the mode (strict; official) differ",
        "the texts of the questions differ",
        "the readers of the answers differ",
        "they have no item in common",
        "",
    ]
    assert comparison.differences[-1].values["ar"].value == 0
    text = as_text([comparison])
    assert "judge minus base: not computed, the judges (judge gpt-4o; judge qwen) differ" in text


def test_files_that_were_revised_have_no_difference_but_a_part_of_them_has(tmp_path: Path) -> None:
    folders = {
        "base": leave(tmp_path / "base", BASE, data="d1"),
        "revised": leave(tmp_path / "revised", BASE, data="d2"),
        "part": leave(tmp_path / "part", BASE[:2], data="d3"),
        "same": leave(tmp_path / "same", BASE, data="d1"),
        "earlier": leave(tmp_path / "earlier", BASE),
    }
    (comparison,) = compare(read_results(folders))
    assert [(d.items, d.unlike) for d in comparison.differences] == [
        (3, "the benchmark's questions, answers or references differ"),
        (2, ""),
        (3, ""),
        (3, ""),
    ]


def test_other_options_have_no_difference_but_other_samples_do(tmp_path: Path) -> None:
    asked = {
        "base": {"mode": "strict", "seed": 0, "limit": 3, "judge": "http://a"},
        "seed": {"mode": "strict", "seed": 1, "limit": 3},
        "limit": {"mode": "strict", "seed": 0, "limit": 2, "judge": "http://b", "of_tomorrow": 1},
        "unknown": None,
    }
    folders = {name: leave(tmp_path / name, BASE) for name in asked}
    for name, options in asked.items():
        if options is not None:
            (folders[name] / "vcapsbench" / "request.json").write_text(json.dumps({"options": options}))
    (comparison,) = compare(read_results(folders))
    assert [d.unlike for d in comparison.differences] == ["the option seed (0; 1) differ", "", ""]


def test_other_frames_of_video_qa_have_no_difference(tmp_path: Path) -> None:
    folders = {}
    for name, frames in (("few", 8), ("many", 64)):
        folder = leave(tmp_path / name, BASE) / "vcapsbench"
        row = json.loads((folder / "results.json").read_text())
        (folder / "results.json").write_text(json.dumps(row | {"benchmark": "video-qa"}))
        (folder / "request.json").write_text(json.dumps({"max_frames": frames, "url": name, "fps": 2.0}))
        folders[name] = folder
    (comparison,) = compare(read_results(folders))
    assert comparison.differences[0].unlike == "the option max_frames (8; 64) differ"


def test_a_part_that_one_side_lacks_is_left_out_on_the_other(tmp_path: Path) -> None:
    partial = [
        Item(
            id="a",
            captions=("c",),
            values={"right": 10, "questions": 10},
            lacking={"answers": "timeout"},
        ),
        counts("b", 8, 0, 10),
    ]
    folders = {"base": leave(tmp_path / "base", BASE), "partial": leave(tmp_path / "partial", partial)}
    (comparison,) = compare(read_results(folders))
    values = comparison.differences[0].values
    assert values["ir"].value == pytest.approx(0)  # of b alone: nothing wrong on either side
    assert values["ar"].value == pytest.approx(100 * (18 - 10) / 20)


def test_a_value_that_one_side_has_not_is_left_out_on_the_other_though_nothing_failed(tmp_path: Path) -> None:
    """A caption without events has no precision. Its clip alone would make the other captioner better or worse."""

    def clip(name: str, recall: float, precision: float | None) -> Item:
        values = {"recall/youtube": recall} | ({} if precision is None else {"precision/youtube": precision})
        return Item(id=name, captions=("c",), values=values)

    folders = {}
    for name, items in (
        ("base", [clip("easy", 0.5, 1.0), clip("hard", 0.5, 0.2)]),
        ("silent", [clip("easy", 0.5, 1.0), clip("hard", 0.0, None)]),
    ):
        folder = leave(tmp_path / name, items) / "vcapsbench"
        metrics = evaluated(items, Dream1k.statistics("strict"))
        row = json.loads((folder / "results.json").read_text()) | {"benchmark": "dream1k"}
        row["metrics"] = {name: value.row() for name, value in metrics.items()}
        (folder / "results.json").write_text(json.dumps(row))
        folders[name] = folder
    (comparison,) = compare(read_results(folders))
    assert (
        comparison.results[1].metrics["precision"].value
        == 100
        > comparison.results[0].metrics["precision"].value
    )
    values = comparison.differences[0].values
    assert (values["precision"].value, values["precision"].n) == (0, 1)
    assert (values["recall"].value, values["recall"].n) == (pytest.approx(-25), 2)


@pytest.mark.parametrize("lacking", ["questions", "question 3"])
def test_an_item_whose_questions_are_others_is_left_out(tmp_path: Path, lacking: str) -> None:
    # Of a the wrong answers are lacking: it is no better for it.
    fewer = [counts("a", 2, 0, 2, lacking={lacking: "timeout"}), counts("b", 8, 0, 10)]
    folders = {"base": leave(tmp_path / "base", BASE), "fewer": leave(tmp_path / "fewer", fewer)}
    (comparison,) = compare(read_results(folders))
    assert comparison.differences[0].items == 1
    assert comparison.differences[0].values["ar"].value == 0
    same = leave(tmp_path / "same", fewer)
    (comparison,) = compare(read_results({"fewer": folders["fewer"], "same": same}))
    assert comparison.differences[0].items == (1 if lacking == "questions" else 2)


def test_text_json_and_page_tell_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path / "base", often(BASE))
    leave(tmp_path / "my <run>", often(BETTER))
    monkeypatch.chdir(tmp_path)
    assert main(["base", "mine=my <run>", "--json", "out.json", "--html", "out.html"]) == 0
    text = capsys.readouterr().out
    assert "base: 15 items; strict; scored by judge gpt-4o" in text
    assert "mine: 20 items, 5 failed; strict" in text
    assert "mine minus base, over the 10 items that both have" in text
    assert [line.split() for line in text.splitlines() if line.startswith("ar ")][1] == [
        "ar",
        "+10.00",
        "+10.00",
        "to",
        "+10.00",
        "better",
    ]
    assert "Judge: not named in the paper" in text
    assert "Judge: the authors', not that of the VCap paper" in text
    (row,) = json.loads((tmp_path / "out.json").read_text())
    assert row["differences"][0]["metrics"]["ar"]["value"] == pytest.approx(10)
    assert row["published"][0]["rows"]["VCap (e2)"] == {"ar": 72.15, "ir": 13.67, "cr": 83.57}
    page = (tmp_path / "out.html").read_text()
    assert 'class="better">+10.00 better<' in page
    assert "my <run>" not in page
    assert page.count("Judge: ") == 2


def test_less_is_better_where_it_is(tmp_path: Path) -> None:
    worse = [counts("a", 2, 6, 10), counts("b", 8, 2, 10), counts("c", 5, 4, 10)]
    comparisons = compare(
        read_results({"a": leave(tmp_path / "a", often(BASE)), "b": leave(tmp_path / "b", often(worse))})
    )
    write_page(tmp_path / "page.html", comparisons)
    lines = [line for line in as_text(comparisons).splitlines() if line.startswith("ir ")]
    assert lines[1].endswith("worse")


def difference(value: Value, *, clusters: int, smallest: int) -> Difference:
    """With ``value`` as "ar"."""
    result = Result(
        label="r", benchmark="b", mode="strict", folder=Path(), row={}, metrics={"ar": value}, items=()
    )
    values = {"ar": value}
    return Difference(result=result, items=99, clusters=clusters, values=values, smallest={"ar": smallest})


def test_a_few_samples_make_nothing_better() -> None:
    few = Value(value=1.0, low=0.5, high=1.5, n=12, method="")
    of_nine = change("ar", difference(few, clusters=12, smallest=9))
    assert (of_nine.text, of_nine.interval, of_nine.kind) == ("+1.00", "+0.50 to +1.50", "")
    assert change("ar", difference(few, clusters=12, smallest=10)).kind == "better"


def test_a_figure_of_fewer_samples_than_there_are_says_so_and_one_of_a_single_one_has_no_interval(
    tmp_path: Path,
) -> None:
    """A question that nobody answers is of no denominator of IR, whose figure is of a single sample here."""
    silent = [Item(id=one.id, captions=("c",), values={"questions": 10, "right": 0}) for one in BASE[1:]]
    folders = {name: leave(tmp_path / name, [BASE[0], *silent]) for name in ("base", "other")}
    comparisons = compare(read_results(folders))
    rows = [line.split() for line in as_text(comparisons).splitlines() if line.startswith(("ar ", "ir "))]
    assert rows[0][:5] == ["ar", "6.67", "(0.00", "to", "20.00)"]
    assert rows[1] == ["ir", "50.00", "(n=1)", "50.00", "(n=1)"]
    assert rows[3] == ["ir", "+0.00", "n=1"]
    write_page(tmp_path / "page.html", comparisons)
    assert (tmp_path / "page.html").read_text().count("<small>n=1</small>") == 3
    few = Value(value=1.0, low=0.5, high=1.5, n=12, method="")
    assert change("ar", difference(few, clusters=13, smallest=12)).interval == "+0.50 to +1.50, n=12"


def changes(
    folder: Path, kind: type[CapMas] | type[CapArenaAuto], before: Sequence[Item], after: Sequence[Item]
) -> dict[str, str]:
    """What each difference is called."""
    folders = {}
    for label, items in (("before", before), ("after", after)):
        path = leave(folder / label, items) / "vcapsbench" / "results.json"
        row = json.loads(path.read_text()) | {"benchmark": kind.name}
        row["metrics"] = {
            name: value.row() for name, value in evaluated(items, kind.statistics("strict")).items()
        }
        path.write_text(json.dumps(row))
        folders[label] = path.parent
    (found,) = compare(read_results(folders))[0].differences
    return {name: change(name, found).kind for name in found.values}


def test_an_average_is_not_better_for_a_stage_that_is_of_one_picture(tmp_path: Path) -> None:
    def pictures(true: float, each: int) -> list[Item]:
        clair = {"clair": 0.5, "clair_counted": 1.0}
        rest = {"questions": 10.0, "questions_right": 5.0, "propositions": 10.0, "propositions_true": true}
        return [
            Item(id=str(k), captions=("c",), values=clair | (rest if k % each == 0 else {}))
            for k in range(12)
        ]

    of_one = changes(tmp_path / "one", CapMas, pictures(2.0, each=12), pictures(9.0, each=12))
    assert set(of_one.values()) == {""}
    of_all = changes(tmp_path / "all", CapMas, pictures(2.0, each=1), pictures(9.0, each=1))
    assert (of_all["factuality"], of_all["average"]) == ("better", "better")


def test_a_mean_over_sources_is_not_better_for_one_picture_of_a_source(tmp_path: Path) -> None:
    def pictures(of_cog: float, count: int) -> list[Item]:
        baselines = ["gpt"] * 12 + ["cog"] * count
        points = [of_cog if name == "cog" else 0.0 for name in baselines]
        return [
            Item(id=str(k), captions=("c",), values={f"points/{name}": of, "words": 9.0})
            for k, (name, of) in enumerate(zip(baselines, points, strict=True))
        ]

    assert changes(tmp_path / "one", CapArenaAuto, pictures(-1, 1), pictures(1, 1))["score"] == ""
    assert changes(tmp_path / "ten", CapArenaAuto, pictures(-1, 10), pictures(1, 10))["score"] == "better"


def test_what_is_no_result_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvaluatorError, match=r"holds no results\.json.*vcap evaluate"):
        read_results({"empty": tmp_path / "empty"})
    assert main([str(tmp_path / "none")]) == 1
    assert "is no folder: give what vcap evaluate wrote" in capsys.readouterr().err
    folder = leave(tmp_path / "base", BASE)
    assert main([str(folder), "--benchmark", "capmas"]) == 1
    assert "no folder has results of capmas" in capsys.readouterr().err
    (folder / "vcapsbench" / "results.json").write_text('{"benchmark": "vcapsbench", "metrics": 3}')
    with pytest.raises(EvaluatorError, match="cannot be read as an evaluation"):
        read_results({"base": folder})


TABLES = published_tables()


def published(benchmark: str) -> list[PublishedTable]:
    return [table for table in TABLES if table.benchmark == benchmark]


def each(table: PublishedTable) -> dict[str, dict[str, float]]:
    return {model: table.of(model) for model in table.rows}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.benchmark}: {table.source}")
def test_metrics_are_those_that_we_measure(table: PublishedTable) -> None:
    if table.benchmark == "video-qa":
        known = set(statistics(list(SUITES.values())))
    else:
        known = set(load_evaluator(EvaluatorConfig(use=table.benchmark)).statistics("official"))  # type: ignore[attr-defined]
    assert set(table.metrics) <= known
    assert table.judge
    assert table.source


def test_every_benchmark_of_the_paper_has_figures() -> None:
    assert {table.benchmark for table in TABLES} == {*BENCHMARKS, "video-qa"}
    assert published("prism-vstar")[0].of("VCap (e2)") == {"accuracy": 52.88}


def test_averages_are_means_of_their_parts() -> None:
    parts = {
        "capmas": ("clair", "coverage", "factuality"),
        "decapbench": ("precision", "recall"),
        "vdc": tuple(
            f"accuracy/{name}" for name in ("background", "camera", "detailed", "main_object", "short")
        ),
        "caparena-auto": ("score/gpt", "score/cog", "score/cpm"),
    }
    totals = {"capmas": "average", "decapbench": "average", "vdc": "accuracy", "caparena-auto": "score"}
    checked = 0
    for benchmark, names in parts.items():
        for table in published(benchmark):
            for model, figures in each(table).items():
                if totals[benchmark] in figures:
                    mean = sum(figures[name] for name in names) / len(names)
                    # Some cells have one decimal.
                    assert figures[totals[benchmark]] == pytest.approx(mean, abs=0.051), (benchmark, model)
                    checked += 1
    assert checked > 40


def test_ar_is_what_is_covered_and_right() -> None:
    for table in published("vcapsbench"):
        for model, figures in each(table).items():
            ar = figures["cr"] * (1 - figures["ir"] / 100)
            assert figures["ar"] == pytest.approx(ar, abs=0.02), model


def test_f1_of_dream_is_harmonic() -> None:
    for table in published("dream1k"):
        for figures in each(table).values():
            if "recall" in figures:
                recall, precision = figures["recall"], figures["precision"]
                assert figures["f1"] == pytest.approx(2 * recall * precision / (recall + precision), abs=0.06)


def test_prism_cells_are_whole_answers() -> None:
    sizes = {"ai2d": 3088, "mmstar": 1500, "realworldqa": 765, "vstar": 191}
    for name, size in sizes.items():
        (table,) = published(f"prism-{name}")
        for model, figures in each(table).items():
            answers = figures["accuracy"] * size / 100
            assert abs(answers - round(answers)) < 0.006 * size / 100 + 1e-6, (name, model)


def test_rows_and_metrics_fit() -> None:
    with pytest.raises(ValueError, match="2 figures of 1 metrics"):
        PublishedTable(benchmark="b", source="s", judge="j", metrics=("m",), rows={"x": (1.0, math.inf)})
