"""What the paper says, as tests on rows of our tables. Written down before anything was measured.

A claim names its place in the paper, the paper's own figures where it has any, and tests whose outcomes make its
verdict (``vcap_jax.studies.verdicts``). What the paper says of benchmarks is put as a statement about facts: Coverage
and Recall are c / N, Factuality and Precision are 1 - (n - c) / n, averages are F1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from vcap_jax.studies.arms import MODALITIES
from vcap_jax.studies.verdicts import POINT, Kind
from vcap_jax.world.scenes import Modality

Quantity = Literal["coverage", "false_claims", "f1", "early_coverage", "recall_rate", "collision_free_rate"]

FORMULA = "formula"
"""Stands for the paper's formula in the place of a second row."""


@dataclass(frozen=True, kw_only=True)
class Test:
    """``first`` is more than / less than / the same as / apart above ``second``, two rows, in a quantity."""

    kind: Kind
    first: str
    second: str
    quantity: Quantity
    margin: float = POINT


@dataclass(frozen=True, kw_only=True)
class Claim:
    """statement: in our words. paper: where it stands and its figures. source: "paper", or "ours" for a question of
    this project that the paper leaves open."""

    name: str
    study: str
    modality: Modality
    statement: str
    paper: str
    tests: tuple[Test, ...]
    source: Literal["paper", "ours"] = "paper"


Stated = Callable[..., Claim]
"""``Claim`` with the study and the modality that a group of claims has in common."""


def more(first: str, second: str, quantity: Quantity = "coverage") -> Test:
    """first > second."""
    return Test(kind="more", first=first, second=second, quantity=quantity)


def less(first: str, second: str) -> Test:
    """first < second, in false claims."""
    return Test(kind="less", first=first, second=second, quantity="false_claims")


def same(first: str, second: str, quantity: Quantity, margin: float) -> Test:
    """first within ``margin`` of second."""
    return Test(kind="same", first=first, second=second, quantity=quantity, margin=margin)


def apart(first: str, second: str, quantity: Quantity = "coverage") -> Test:
    """first above second, and their intervals do not overlap."""
    return Test(kind="apart", first=first, second=second, quantity=quantity)


def all_claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the report."""
    return tuple(_claims())


def _claims() -> Iterator[Claim]:
    for modality in MODALITIES:
        yield from _main(partial(Claim, study="main", modality=modality), modality)
        yield from _families(partial(Claim, study="families", modality=modality), modality)
        yield from _rivals(partial(Claim, study="rivals", modality=modality, source="ours"), modality)
        yield from _reference_size(partial(Claim, study="reference_size", modality=modality), modality)
    yield from _witnesses(partial(Claim, study="witnesses", modality="image", source="ours"))
    yield from _distillation(partial(Claim, study="distillation", modality="image"))
    for modality in MODALITIES:
        yield from _ablations(partial(Claim, study="ablations", modality=modality), modality)
    yield from _noise(partial(Claim, study="noise", modality="image"))
    yield from _updates(partial(Claim, study="updates", modality="image", source="ours"))
    for modality in MODALITIES:
        yield from _theory(partial(Claim, study="main", modality=modality), modality)


def _main(claim: Stated, modality: Modality) -> Iterator[Claim]:
    image = modality == "image"
    yield claim(
        name=f"{modality}: training pays",
        statement="e1 covers more facts than the base and makes fewer false claims",
        paper="Table 1: Coverage 71.30 to 73.95, Factuality 76.25 to 81.48"
        if image
        else "Table 2: VCapsBench AR 63.28 to 71.34; IR rises, 11.77 to 14.01, which the paper lays to the benchmark",
        tests=(more("e1", "base"), less("e1", "base")),
    )
    yield claim(
        name=f"{modality}: weak to strong",
        statement="e1 is well above the references that it learned from, in both respects",
        paper="Section 2.3: the optimum is c = N, n - c = 0 whatever the reference",
        tests=(apart("e1", "references"), less("e1", "references")),
    )
    yield claim(
        name=f"{modality}: e1 to e2",
        statement="references by e1 give a better captioner: e2 is above e1 in both respects",
        paper="Table 1: Coverage 73.95 to 74.18, Factuality 81.48 to 86.42 (DeCap Precision falls, 87.80 to 86.42)"
        if image
        else "Table 2: AR 71.34 to 72.15, IR 14.01 to 13.67, VDC 35.21 to 36.01",
        tests=(more("e2", "e1"), less("e2", "e1")),
    )
    if image:
        yield claim(
            name="image: self-improvement goes on",
            statement="a third round still gains: e3 is above e2 in F1",
            paper="not in the paper, which ends with e2",
            tests=(more("e3", "e2", "f1"),),
            source="ours",
        )
        yield claim(
            name="image: self-improvement settles",
            statement="a third round neither gains nor drifts: e3 is at e2's F1 (within 3 points)",
            paper="not in the paper, which ends with e2",
            tests=(same("e3", "e2", "f1", 0.03),),
            source="ours",
        )


def _families(claim: Stated, modality: Modality) -> Iterator[Claim]:
    where = "Appendix, Comparison of Reference Roles"
    yield claim(
        name=f"{modality}: imitation is bound to its reference",
        statement="a policy trained by imitation stays at the references' level (within 5 points)",
        paper=f"{where}: optimum c = m",
        tests=(
            same("imitation", "references", "coverage", 0.05),
            same("imitation", "references", "false_claims", 0.05),
        ),
    )
    yield claim(
        name=f"{modality}: witness above imitation",
        statement="with the same references the witness-adjudicator ends above imitation, intervals apart",
        paper=where,
        tests=(apart("e1", "imitation"), less("e1", "imitation")),
    )
    yield claim(
        name=f"{modality}: VQA does not see inventions",
        statement="questions leave false claims unpunished that the witness-adjudicator punishes",
        paper=f"{where}: no penalty for what no question asks about",
        tests=(less("e1", "vqa"),),
    )
    yield claim(
        name=f"{modality}: VQA is bounded by its questions",
        statement="questions about the reference's facts end at a lower coverage",
        paper=f"{where}: bounded by question coverage",
        tests=(more("e1", "vqa"),),
    )
    yield claim(
        name=f"{modality}: witness above a judge alone",
        statement="a judge without a reference ends lower in coverage",
        paper=f"{where}: optimum undefined, low-resolution signal",
        tests=(more("e1", "judge"), more("e1", "judge", "f1")),
    )
    yield claim(
        name=f"{modality}: the reward teaches, not the update",
        statement="scores drawn at random leave the captioner below the one that learned from the reward",
        paper="not in the paper: the control of every comparison",
        tests=(more("e1", "random"), more("e1", "random", "f1")),
        source="ours",
    )


def _rivals(claim: Stated, modality: Modality) -> Iterator[Claim]:
    witness = "e1" if modality == "image" else "no_local"  # one judge call per caption, as the rivals have
    where = "not in the paper, which compares with none of them"
    yield claim(
        name=f"{modality}: witness above claim differences",
        statement="on equal judge calls the witness-adjudicator ends at a higher F1 than counted claim differences",
        paper=where,
        tests=(more(witness, "claim_differences", "f1"),),
    )
    yield claim(
        name=f"{modality}: witness above precision, recall and text in balance",
        statement="on equal judge calls the witness-adjudicator ends at a higher F1 than the balanced reward",
        paper=where,
        tests=(more(witness, "balanced", "f1"),),
    )
    yield claim(
        name=f"{modality}: claim differences see inventions that no reference marks",
        statement="claim differences, which check all claims of a caption, end with fewer false claims",
        paper=f"{where}; the witness-adjudicator tests the slots that its reference marks",
        tests=(less("claim_differences", witness),),
    )
    yield claim(
        name=f"{modality}: recall of the reference takes over its errors",
        statement="the balanced reward, whose recall counts false units too, ends with more false claims",
        paper=f"{where}; errors of a reference cost the witness-adjudicator nothing",
        tests=(less(witness, "balanced"),),
    )


def _reference_size(claim: Stated, modality: Modality) -> Iterator[Claim]:
    where = "Section 2.3: m sets the steepness, never the location of the optimum"
    yield claim(
        name=f"{modality}: m does not move the end",
        statement="references of one or two sentences, whole, and e1's end at the same F1 (within 3 points)",
        paper=where,
        tests=tuple(same(row, "e1", "f1", 0.03) for row in ("cut_1", "cut_2", "e2")),
    )
    yield claim(
        name=f"{modality}: m sets the speed",
        statement="larger references lift coverage faster (mean over the first 10 steps): "
        "1 sentence < whole reference < e1's references",
        paper=where,
        tests=(more("e1", "cut_1", "early_coverage"), more("e2", "e1", "early_coverage")),
    )


def _witnesses(claim: Stated) -> Iterator[Claim]:
    yield claim(
        name="image: witnesses that vary lead further",
        statement="references drawn at temperature 1.5, which are worse, train a captioner that covers more than the "
        "likeliest references do",
        paper="not in the paper; Section 2.3: a reference only says where to look",
        tests=(more("hot_witness", "greedy_witness"),),
    )
    yield claim(
        name="image: errors of a witness cost nothing",
        statement="with references at temperature 1.5, which have more errors, the captioner makes as few false claims "
        "as with those at 1.1 (within 3 points)",
        paper="Section 2.2: the judge takes no error over from a reference",
        tests=(same("hot_witness", "e1", "false_claims", 0.03),),
    )


def _distillation(claim: Stated) -> Iterator[Claim]:
    table = "Table 3 (best-of-8)"
    yield claim(
        name="self-distillation gains nothing",
        statement="a student of the base's own best of 8 is at the base's level (F1 within 2 points)",
        paper=f"{table}: Avg 77.91 to 77.65 and 69.17 to 67.97",
        tests=(same("from_self", "base", "f1", 0.02),),
    )
    yield claim(
        name="training passes self-distillation",
        statement="e1 is above the student of the base, intervals apart",
        paper=f"{table}: 77.65 against 81.52",
        tests=(apart("e1", "from_self", "f1"), apart("e1", "from_self")),
    )
    yield claim(
        name="distillation from e1 and e2 transfers",
        statement="students of e1 and e2 are above the base and close to their teachers (F1 within 5 points)",
        paper=f"{table}: 82.00 (e1: 81.52) and 83.02 (e2: 83.53), base 77.91",
        tests=(
            more("from_e1", "base", "f1"),
            more("from_e2", "base", "f1"),
            same("from_e1", "e1", "f1", 0.05),
            same("from_e2", "e2", "f1", 0.05),
        ),
    )


def _ablations(claim: Stated, modality: Modality) -> Iterator[Claim]:
    image = modality == "image"
    table = "Table 5" if image else "Table 7"
    yield claim(
        name=f"{modality}: the reference carries the signal",
        statement="without the reference caption the captioner is worse than with it",
        paper=f"{table}: " + ("Avg 81.52 to 77.65" if image else "AR 71.34 to 65.75, the largest drop"),
        tests=(more("e1", "no_reference", "f1"),),
    )
    if image:
        yield claim(
            name="image: the picture matters too",
            statement="without the picture the captioner is worse than with it",
            paper=f"{table}: Avg 81.52 to 81.04, DeCap Avg 73.32 to 71.66",
            tests=(more("e1", "no_image", "f1"),),
        )
        yield claim(
            name="image: the reference matters more than the picture",
            statement="taking the reference away costs more than taking the picture away",
            paper=f"{table}: -3.87 against -0.48",
            tests=(more("no_image", "no_reference", "f1"),),
        )
        yield claim(
            name="image: an attentive judge needs the reference too",
            statement="the reference is still worth something where the judge notices every object unasked",
            paper="Appendix: a judge alone misses slots. How many is an assumption of ours (docs/embedded_judge.md)",
            tests=(more("e1", "no_reference_attentive", "f1"),),
            source="ours",
        )
    else:
        yield claim(
            name="video: the reference matters most",
            statement="no other part of the reward costs as much as the reference when it is taken away",
            paper=f"{table}: -5.59 AR, others at most -2.20",
            tests=tuple(
                more(row, "no_reference", "f1")
                for row in ("no_correctness", "no_completeness", "no_text_quality", "no_local")
            ),
        )
        yield claim(
            name="video: the local term helps a little",
            statement="without the local term the captioner is worse than with it",
            paper=f"{table}: AR 71.34 to 70.94, VDC 35.43 to 35.18",
            tests=(more("e1", "no_local", "f1"),),
        )
    yield claim(
        name=f"{modality}: Correctness guards against false claims",
        statement="without it false claims rise, and more than without Completeness or Text Quality",
        paper=f"{table}: " + ("Factuality 81.48 to 76.03" if image else "AR -2.20; IR falls, 14.01 to 13.21"),
        tests=tuple(less(row, "no_correctness") for row in ("e1", "no_completeness", "no_text_quality")),
    )
    yield claim(
        name=f"{modality}: Completeness carries coverage",
        statement="without it coverage falls, and more than without Correctness or Text Quality",
        paper=f"{table}: " + ("Coverage -1.01, Recall -3.57" if image else "AR -1.93, CR -3.94"),
        tests=tuple(more(row, "no_completeness") for row in ("e1", "no_correctness", "no_text_quality")),
    )
    yield claim(
        name=f"{modality}: Text Quality matters little",
        statement="without it nothing much changes (F1 within 2 points)",
        paper=f"{table}: " + ("Avg -0.14" if image else "AR -0.61, VDC -0.14"),
        tests=(same("no_text_quality", "e1", "f1", 0.02),),
    )


def _noise(claim: Stated) -> Iterator[Claim]:
    yield claim(
        name="a judge that errs still leads above the references",
        statement="with 20% missed and 10% invented, coverage ends above the references', intervals apart",
        paper="not in the paper, whose judge's errors are unknown",
        tests=(apart("noise_20", "references"),),
        source="ours",
    )
    yield claim(
        name="errors cost",
        statement="the captioner gets worse with the judge's errors",
        paper="not in the paper",
        tests=(more("e1", "noise_20", "f1"), more("noise_20", "noise_40", "f1")),
        source="ours",
    )
    yield claim(
        name="the witness keeps its lead when the judge errs",
        statement="with the same errors the witness-adjudicator ends above the judge alone",
        paper="Appendix, Comparison of Reference Roles: errors of a judge alone are a hidden channel",
        tests=(more("noise_20", "judge_noise_20", "f1"),),
    )
    for rival, what in (
        ("claim_differences", "counted claim differences"),
        ("balanced", "precision, recall and text in balance"),
    ):
        yield claim(
            name=f"witness above {rival.replace('_', ' ')} when the judge errs",
            statement=f"with the same errors the witness-adjudicator ends at a higher F1 than {what}",
            paper="not in the paper; the rivals ask about every claim, and get more wrong answers",
            tests=(more("noise_20", f"{rival}_noise_20", "f1"),),
            source="ours",
        )


def _updates(claim: Stated) -> Iterator[Claim]:
    for row, against in (("dr_grpo", "e1"), ("rloo", "e1"), ("dapo", "grpo_2"), ("gspo", "grpo_2")):
        yield claim(
            name=f"{row} is as good as GRPO",
            statement="the reward, not the update, makes the difference: the same F1 within 2 points"
            + (" as GRPO with two updates" if against == "grpo_2" else ""),
            paper="limitation iii leaves it open",
            tests=(same(row, against, "f1", 0.02),),
        )
    for row, how in (("ahead", ""), ("ahead_cispo", " with CISPO")):
        yield claim(
            name=f"captions drawn one step ahead teach as well{how}",
            statement="drawn by weights one step old, and weighed by the ratio of the two policies: the same F1 within "
            "2 points",
            paper="not in the paper; rollout.ahead of this project",
            tests=(same(row, "e1", "f1", 0.02),),
        )


def _theory(claim: Stated, modality: Modality) -> Iterator[Claim]:
    yield claim(
        name=f"{modality}: captions follow P_recall",
        statement="how often a caption covers its whole reference is what the formula says (within 5 points)",
        paper="Section 2.3: references are uniform draws from the facts",
        tests=tuple(same(row, FORMULA, "recall_rate", 0.05) for row in ("base", "e1")),
    )
    yield claim(
        name=f"{modality}: captions follow P_coll",
        statement="how often the errors of a caption miss the reference is what the formula says (within 5 points)",
        paper="Section 2.3: errors are uniform draws from the slots",
        tests=tuple(same(row, FORMULA, "collision_free_rate", 0.05) for row in ("base", "e1")),
    )
