"""The paper's table, on cases that are worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from tests.human_eval.small_study import small_study, write_small_study
from vcap_jax.commands import agreement, annotate
from vcap_jax.human_eval.agreement_report import draw, sample_sizes, write_agreement
from vcap_jax.human_eval.exchange import Records
from vcap_jax.human_eval.formulas import krippendorff_alpha
from vcap_jax.human_eval.protocol import Kind, Ranking
from vcap_jax.human_eval.records import Answer, Rankings
from vcap_jax.human_eval.results import results_of
from vcap_jax.human_eval.reward_agreement import OVERALL, Spread, human_ranks, reward_ranks
from vcap_jax.human_eval.study import read_study

YES, NO, FALSE = (
    ("1. consistent", "2. holding"),
    ("1. consistent", "1. not holding"),
    ("2. inconsistent", None),
)


def answers(study, annotator, labels):
    """labels: by proposition id."""
    asked = {one.prop_id: one for rows in study.propositions.values() for one in rows}
    return [
        Answer(
            **asked[prop].model_dump(exclude={"span", "ref_span"}),
            step1=step1,
            step2=step2,
            note="",
            annotator=annotator,
        )
        for prop, (step1, step2) in labels.items()
    ]


def ranked(item, annotator, *firsts):
    """firsts: which model comes first by accuracy, completeness, granularity."""
    ranks = [{"base": 1 if first == "base" else 2, "tuned": 1 if first == "tuned" else 2} for first in firsts]
    return Rankings(
        image_id=item, annotator=annotator, **{str(r): of for r, of in zip(Ranking, ranks, strict=True)}
    )


@pytest.fixture
def study(tmp_path):
    folder = write_small_study(tmp_path / "study")
    rewards = {"a": {"base": 0.1, "tuned": 0.9}, "b": {"base": 0.8, "tuned": 0.3}}
    rows = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    for row in rows:
        for caption in row["captions"]:
            caption["reward"] = rewards[row["id"]][caption["model"]]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_study(folder)


@pytest.fixture
def records(study):
    # /0: something is missing in base. /1: something is inconsistent in base. /2: something is missing in tuned.
    given = answers(
        study, "anna", {"a/0": YES, "a/1": YES, "a/2": NO, "b/0": YES, "b/1": FALSE, "b/2": FALSE}
    )
    given += answers(study, "ben", {"a/0": YES, "a/1": NO, "a/2": NO, "b/0": FALSE})
    third = answers(study, "carla", {"b/0": NO})
    rankings = (
        ranked("a", "anna", "tuned", "tuned", "base"),
        ranked("a", "ben", "tuned", "base", "base"),
        ranked("b", "anna", "tuned", "tuned", "tuned"),
    )
    return Records(answers=tuple(given), rankings=rankings, adjudicated=tuple(third))


def test_the_table_by_hand(study, records):
    results = results_of(study.items, study.propositions, records)
    base, tuned = results.rows
    assert (base.model, tuned.model) == ("base", "tuned")
    assert base.proposed == {Kind.MISSING: 2, Kind.INCONSISTENT: 2}
    assert tuned.proposed == {Kind.MISSING: 2, Kind.INCONSISTENT: 0}
    # a/0 by both; b/0 in dispute, and the third person says no.
    assert base.confirmed[Kind.MISSING].value == 1
    # a/1 by one of two.
    assert base.confirmed[Kind.INCONSISTENT].value == 0.5
    assert tuned.confirmed[Kind.MISSING].value == 0
    # Ranks of tuned: a: anna 1, 1, 2, ben 1, 2, 2, mean 1.5; b: 1.
    assert tuned.mean_rank[OVERALL].value == pytest.approx(1.25)
    assert tuned.median_rank[OVERALL] == pytest.approx(1.25)
    assert tuned.mean_rank["accuracy"].value == 1
    assert base.mean_rank["granularity"].value == pytest.approx(1.5)
    assert (base.reward_rank.value, tuned.reward_rank.value) == (1.5, 1.5)
    assert (base.words, tuned.words) == (9, 9)


def test_people_and_the_reward_rank_the_same_items(study, records):
    """The mean of a few items stood beside that of all."""
    only_a = dataclasses.replace(records, rankings=records.rankings[:2])
    base, tuned = results_of(study.items, study.propositions, only_a).rows
    assert (base.reward_rank.value, tuned.reward_rank.value) == (2, 1)
    assert tuned.reward_rank.n == tuned.mean_rank[OVERALL].n == 1
    unranked = dataclasses.replace(records, rankings=())
    base, tuned = results_of(study.items, study.propositions, unranked).rows
    assert (base.reward_rank.value, tuned.reward_rank.value, base.reward_rank.n) == (1.5, 1.5, 2)


def test_a_finished_item_without_a_proposition_has_none_confirmed_and_counts(study, records):
    """It was left out, so the interval of a sum over both had no width."""
    propositions = {**study.propositions, "b": ()}
    records = dataclasses.replace(
        records, answers=tuple(one for one in records.answers if one.image_id == "a"), adjudicated=()
    )
    results = results_of(study.items, propositions, records)
    missing = results.rows[0].confirmed[Kind.MISSING]
    assert (results.answered, missing.n) == (2, 2)
    # One of a, none of b: two items drawn again have a sum of 0, 1 or 2.
    assert (missing.value, missing.low, missing.high) == (1, 0, 2)
    # Nobody has looked at b yet.
    unfinished = dataclasses.replace(records, rankings=records.rankings[:2])
    results = results_of(study.items, propositions, unfinished)
    assert (results.answered, results.rows[0].confirmed[Kind.MISSING].n) == (1, 1)


def test_a_model_counts_in_the_items_that_have_it(study, records, tmp_path):
    """It got zeros of the others, and a figure where none of its own was decided."""
    other = study.items["b"].captions[0].model_copy(update={"model": "other", "reward": 0.5})
    item = study.items["b"].model_copy(update={"captions": (other, study.items["b"].captions[1])})
    own = [one.model_copy(update={"model": "other"}) for one in study.propositions["b"][:1]]
    items, propositions = {**study.items, "b": item}, {**study.propositions, "b": own}
    only_a = dataclasses.replace(
        records,
        answers=tuple(one for one in records.answers if one.image_id == "a"),
        rankings=tuple(one for one in records.rankings if one.image_id == "a"),
        adjudicated=(),
    )
    rows = {row.model: row for row in results_of(items, propositions, only_a).rows}
    assert (rows["base"].confirmed[Kind.MISSING].value, rows["base"].confirmed[Kind.MISSING].n) == (1, 1)
    assert math.isnan(rows["other"].confirmed[Kind.MISSING].value)
    page, *_ = write_agreement(results_of(items, propositions, only_a), tmp_path / "out", name="x")
    row = page.read_text().split("<td>other</td>")[1].split("</tr>")[0]
    assert row.count("<td>–</td>") >= 2
    assert "nan" not in row
    # Decided in b alone: the one of "other" is over one item, not over two.
    given = dataclasses.replace(only_a, answers=(*only_a.answers, *answers(study, "anna", {"b/0": YES})))
    rows = {row.model: row for row in results_of(items, propositions, given).rows}
    assert [rows[one].confirmed[Kind.MISSING].n for one in ("base", "tuned", "other")] == [1, 2, 1]
    assert rows["other"].confirmed[Kind.MISSING].value == 1


def test_a_decision_about_what_is_in_dispute_no_more_does_not_count(study, records):
    """Whoever corrected themselves and agreed was overruled by what was decided before."""
    agreed = [one for one in records.answers if (one.annotator, one.prop_id) != ("ben", "b/0")]
    agreed += answers(study, "ben", {"b/0": YES})
    corrected = dataclasses.replace(records, answers=tuple(agreed))
    base, _ = results_of(study.items, study.propositions, corrected).rows
    assert base.confirmed[Kind.MISSING].value == 2


def test_models_that_are_ranked_alike_everywhere_are_drawn(study, records, tmp_path):
    item = study.items["a"]
    items = {f"i{k}": item.model_copy(update={"id": f"i{k}"}) for k in range(8)}
    rankings = tuple(ranked(name, "anna", "base", "tuned", "tuned") for name in items)
    same = Records(answers=records.answers, rankings=rankings, adjudicated=())
    results = results_of(items, dict.fromkeys(items, ()), same)
    base, tuned = (row.mean_rank[OVERALL] for row in results.rows)
    assert (base.low, base.high) == (base.value, base.value) == pytest.approx((5 / 3, 5 / 3))
    assert tuned.value == pytest.approx(4 / 3)
    assert all(path.exists() for path in write_agreement(results, tmp_path, name="alike"))


def test_a_name_with_dollar_signs_is_drawn_as_it_is_and_not_as_a_formula(study, tmp_path):
    names = ("a$\\frac$", "$x$")
    item = study.items["a"]
    captions = tuple(
        caption.model_copy(update={"model": name, "reward": 0.1 * place})
        for place, (caption, name) in enumerate(zip(item.captions, names, strict=True))
    )
    ranks = {str(ranking): {names[0]: 1, names[1]: 2} for ranking in Ranking}
    records = Records(answers=(), rankings=(Rankings(image_id="a", annotator="anna", **ranks),))
    results = results_of({"a": item.model_copy(update={"captions": captions})}, {"a": ()}, records)
    drawn = write_agreement(results, tmp_path, name="x")[2].read_text()
    assert all(f">{name}<" in drawn for name in names)


@pytest.mark.parametrize("letters", [4, 32, 120])
def test_names_of_any_length_leave_the_figure_room(study, records, letters):
    results = results_of(study.items, study.propositions, records)
    names = {row.model: row.model + "-" * (letters - len(row.model)) for row in results.rows}
    rows = tuple(dataclasses.replace(row, model=names[row.model]) for row in results.rows)
    pairs = {
        order: tuple(
            dataclasses.replace(pair, first=names[pair.first], second=names[pair.second]) for pair in of
        )
        for order, of in results.pairs.items()
    }
    figure = draw(dataclasses.replace(results, rows=rows, pairs=pairs))
    figure.draw_without_rendering()
    _, right = figure.axes
    whole, title = figure.bbox, right.title.get_window_extent()
    assert whole.x0 <= title.x0
    assert title.x1 <= whole.x1
    for axes in figure.axes:
        assert axes.bbox.width > 150
        for label in (*axes.get_yticklabels(), *axes.get_xticklabels()):
            extent = label.get_window_extent()
            assert whole.x0 <= extent.x0
            assert whole.y0 <= extent.y0


def test_pairwise_agreement_by_hand(study, records):
    results = results_of(study.items, study.propositions, records)
    # Overall: a is a tie of people (1.5 and 1.5), b is unalike.
    (pair,) = results.pairs[OVERALL]
    assert (pair.items, pair.ties) == (2, 1)
    assert {ties: value.value for ties, value in pair.agreement.items()} == {
        "counted": 0.5,
        "excluded": 0.0,
        "half": 0.25,
    }
    # By accuracy: a alike, b unalike.
    assert results.mean_pairs["accuracy"]["counted"].value == 0.5
    # Unalike in b, where the reward prefers base; nothing of b's is confirmed.
    unalike = {one.kind: one.when_unalike for one in results.blame}
    assert (unalike[Kind.MISSING].value, unalike[Kind.MISSING].n) == (0, 1)


def test_agreement_of_people_by_hand(study, records):
    results = results_of(study.items, study.propositions, records)
    # Shared: a/0 YES YES, a/1 YES NO, a/2 NO NO, b/0 YES FALSE: 2 of 4 the same.
    rows = {one.annotator: one for one in results.annotators}
    assert rows["anna"].agreement.value == 0.5
    assert (rows["anna"].answers, rows["anna"].rankings, rows["ben"].rankings) == (6, 2, 1)
    assert list(rows["anna"].labels.values()) == [1, 3, 0, 2, 0]
    # Overall anna prefers tuned in a, as the reward does, and in b; ben, who saw a alone, prefers base.
    assert (rows["anna"].reward.value, rows["ben"].reward.value) == (0.5, 0)
    # Coincidences of labels: YES 4, NO 3, FALSE 1 of 8; unlike 4; expected (64 - 26) / 7.
    assert results.alphas["label, both steps"].value == pytest.approx(1 - 4 / (38 / 7))
    # Step 1: consistent 7, inconsistent 1; unlike 2. Confirmed 4 of 8; unlike 4.
    assert results.alphas["step 1"].value == pytest.approx(1 - 2 / (14 / 7))
    assert results.alphas["confirmed or not"].value == pytest.approx(1 - 4 / (32 / 7))
    # Accuracy of a: both say tuned; completeness: turned.
    assert results.concordance[Ranking.ACCURACY].value == 1
    assert results.concordance[Ranking.COMPLETENESS].value == 0
    assert results.tau[Ranking.COMPLETENESS].value == -1


def test_ranks_that_are_near_each_other_agree_more_than_those_that_are_far(study):
    captions = tuple(study.items["a"].captions[0].model_copy(update={"model": name}) for name in "abc")
    item = study.items["a"].model_copy(update={"captions": captions})
    given = []
    for annotator, order in (("anna", (1, 2, 3)), ("ben", (1, 3, 2))):
        ranks = {str(ranking): dict(zip("abc", order, strict=True)) for ranking in Ranking}
        given.append(Rankings(image_id="a", annotator=annotator, **ranks))
    results = results_of({"a": item}, {"a": ()}, Records(answers=(), rankings=tuple(given)))
    units = [{"anna": 1, "ben": 1}, {"anna": 2, "ben": 3}, {"anna": 3, "ben": 2}]
    alpha = krippendorff_alpha(units, "ordinal", order=(1, 2, 3))
    assert alpha != pytest.approx(krippendorff_alpha(units))
    assert results.alphas["ranks by accuracy"].value == pytest.approx(alpha)


def test_how_an_annotator_agrees_is_told_with_an_interval_over_items(study):
    """Two items that everybody decides and ranks alike and two on which anna is alone against three."""
    names = ("one", "two", "three", "four")
    propositions = {
        name: [
            rows[0].model_copy(update={"image_id": name, "prop_id": f"{name}/{number}"})
            for number in range(50)
        ]
        for name, rows in zip(names, [study.propositions["a"]] * 4, strict=True)
    }
    items = {name: study.items["a"].model_copy(update={"id": name}) for name in names}
    many = dataclasses.replace(study, items=items, propositions=propositions)
    given, rankings = [], []
    for annotator in ("anna", "ben", "chris", "dora"):
        for place, name in enumerate(names):
            alike = place < 2 or annotator != "anna"
            given += answers(
                many, annotator, {one.prop_id: YES if alike else NO for one in propositions[name]}
            )
            rankings.append(ranked(name, annotator, *["tuned" if alike else "base"] * 3))
    results = results_of(items, propositions, Records(answers=tuple(given), rankings=tuple(rankings)))
    anna = results.annotators[0]
    # All four drawn items are of one kind in a sixteenth of the draws: more than what lies outside on either side.
    assert (anna.agreement.value, anna.agreement.low, anna.agreement.high) == (0.5, 0, 1)
    assert (anna.tau.value, anna.tau.low, anna.tau.high) == (0, -1, 1)
    assert (anna.agreement.n, anna.tau.n) == (4, 4)


def test_a_study_without_rewards_rankings_or_overlap_says_so(tmp_path):
    study = small_study(tmp_path / "study")
    records = Records(answers=tuple(answers(study, "anna", {"a/0": YES})), rankings=())
    results = results_of(study.items, study.propositions, records)
    assert results.pairs == {}
    assert results.spreads == {}
    assert all(math.isnan(value.value) for value in results.alphas.values())
    paths = write_agreement(results, tmp_path / "out", name="x")
    page = paths[0].read_text()
    assert "No item has a reward of each of its captions" in page
    assert "agreement with reward" not in page
    assert "rank, reward" not in page
    assert "Answers about 1 of 2 items" in page
    assert "nan" not in page.split("<svg")[0].split("</style>")[1] + page.split("</svg>")[1]
    assert json.loads(paths[1].read_text())["alphas"]["step 1"]["value"] is None


def test_ties_of_rewards_share_a_rank_and_part_of_the_rewards_is_none(study):
    item = study.items["a"]
    same = tuple(caption.model_copy(update={"reward": 1.0}) for caption in item.captions)
    part = (item.captions[0].model_copy(update={"reward": None}), item.captions[1])
    ranks = reward_ranks(
        {"a": item.model_copy(update={"captions": same}), "b": item.model_copy(update={"captions": part})}
    )
    assert ranks == {"a": {"base": 1.5, "tuned": 1.5}}
    assert human_ranks(Records(answers=(), rankings=())) == {
        order: {} for order in (*map(str, Ranking), OVERALL)
    }


def test_the_report_escapes_names_and_is_the_same_twice(study, records, tmp_path):
    results = results_of(study.items, study.propositions, records)
    first = write_agreement(results, tmp_path / "one", name="<script>x</script>")
    second = write_agreement(results, tmp_path / "two", name="<script>x</script>")
    assert "<script>x" not in first[0].read_text()
    for one, two in zip(first[:3], second[:3], strict=True):
        assert one.read_bytes() == two.read_bytes(), one
    assert first[3].read_bytes().startswith(b"\x89PNG")
    assert "http" not in first[0].read_text().replace("http://www.w3.org", "")


def test_sizes_are_told_for_as_many_annotators_as_two_items_have(study, records, tmp_path):
    # One annotator, items a and b. a: anna has tuned first, as the reward, and ben base; b: unalike. So 0.5 and 0 on
    # average, mean square 0.25, mean 0.25, variance of the two 0.125, of their mean 0.0625.
    variance = 0.25 - 0.25**2 + 0.0625
    results = results_of(study.items, study.propositions, records)
    assert results.spreads == {1: Spread(variance=pytest.approx(variance), items=2)}
    sizes = {one["half_width"]: one["items"] for one in sample_sizes(results)}
    assert sizes[0.05] == math.ceil((1.96 / 0.05) ** 2 * variance) == 385
    page, data, *_ = write_agreement(results, tmp_path, name="x")
    rows = page.read_text().split("How large a study")[1]
    assert "<tr><td>1</td><td>385</td>" in rows
    assert "<tr><td>2</td><td>–</td>" in rows
    assert json.loads(data.read_text())["spreads"]["1"]["items"] == 2


def test_where_all_items_agree_no_size_is_foreseen(study, tmp_path):
    rankings = (ranked("a", "anna", *["tuned"] * 3), ranked("b", "anna", *["base"] * 3))
    results = results_of(study.items, study.propositions, Records(answers=(), rankings=rankings))
    assert (results.spreads, sample_sizes(results)) == ({}, [])
    page, *_ = write_agreement(results, tmp_path, name="x")
    rows = page.read_text().split("How large a study")[1]
    assert "<tr><td>1</td><td>–</td><td>–</td><td>–</td><td>–</td><td>–</td></tr>" in rows


def test_from_exported_records_by_command(study, tmp_path, capsys):
    folder = study.folder
    assert agreement.main([str(folder)]) == 1
    assert "nobody has answered yet" in capsys.readouterr().err
    assert annotate.main([str(folder), "--export", str(tmp_path / "records")]) == 0
    assert agreement.main([str(folder), "--records", str(tmp_path / "records")]) == 0
    assert (folder / "agreement" / "agreement.html").is_file()
    assert "0 answers about 0 of 2 items" in capsys.readouterr().out
