"""Arms and studies: what is run, in which modality, and what it is called in tables.

An arm is one way to get a captioner. Several studies share arms (all look at e1), and an arm is run once for each
modality and seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from vcap_jax.world.scenes import Modality

MODALITIES: tuple[Modality, ...] = ("image", "video")


@dataclass(frozen=True)
class Arm:
    """One way to get a captioner from the base.

    name: as in folders. label: as in tables. kind: a run of launch/train.py, a round of launch/self_improve.py or a
    student of launch/distill.py. fragments: files under configs/ after the study's own; overrides: as on the command
    line. round: of self-improvement. teacher: of distillation, "self" or the name of a round.
    cut: references are cut to so many sentences. same_as: by modality, another arm that is the same computation.
    """

    name: str
    label: str
    _: KW_ONLY
    kind: Literal["train", "improve", "distill"] = "train"
    fragments: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    round: int = 0
    teacher: str | None = None
    cut: int | None = None
    same_as: Mapping[Modality, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Arms that are looked at together. arms: by modality; rows: what a table shows, arms and what comes with them."""

    name: str
    title: str
    about: str
    arms: Mapping[Modality, tuple[str, ...]]
    rows: tuple[str, ...]


def _by_file(folder: str, name: str, label: str) -> Arm:
    return Arm(name, label, fragments=(f"{folder}/{name}.yaml",))


def _erring(
    miss: float, invent: float, name: str, label: str, *more: str, fragments: tuple[str, ...] = ()
) -> Arm:
    errors = (f"world.judge_perception.miss={miss}", f"world.judge_perception.invent={invent}")
    return Arm(name, label, fragments=fragments, overrides=(*errors, *more))


_ARMS = (
    *(Arm(f"e{number}", f"VCap e{number}", kind="improve", round=number) for number in (1, 2, 3)),
    Arm("imitation", "imitation (CIDEr-D)", overrides=("reward.family=imitation",)),
    Arm("vqa", "VQA, questions from the reference's facts", overrides=("reward.family=vqa",)),
    Arm(
        "judge",
        "VLM as judge, no reference",
        overrides=("reward.family=judge",),
        # For pictures both ask Instruction 2; for videos the judge has no local pass.
        same_as={"image": "no_reference"},
    ),
    Arm("random", "scores drawn at random", overrides=("reward.family=random",)),
    _by_file("rewards", "claim_differences", "claim differences (ClaimDiff-RL)"),
    _by_file("rewards", "balanced", "precision, recall and text in balance (BalCapRL)"),
    Arm("from_self", "distilled from the base itself", kind="distill", teacher="self"),
    Arm("from_e1", "distilled from e1", kind="distill", teacher="e1"),
    Arm("from_e2", "distilled from e2", kind="distill", teacher="e2"),
    _by_file("ablations", "no_reference", "- reference caption"),
    _by_file("ablations", "no_image", "- reference image"),
    _by_file("ablations", "no_correctness", "- Correctness"),
    _by_file("ablations", "no_completeness", "- Completeness"),
    _by_file("ablations", "no_text_quality", "- Text Quality"),
    _by_file("ablations", "no_local", "- local term"),
    Arm(
        "no_reference_attentive",
        "- reference caption, judge notices all objects",
        fragments=("ablations/no_reference.yaml",),
        overrides=("world.judge_perception.attention=9",),
    ),
    Arm("greedy_witness", "references drawn greedily", overrides=("references.sampling.temperature=0",)),
    Arm("hot_witness", "references at temperature 1.5", overrides=("references.sampling.temperature=1.5",)),
    Arm("cut_1", "references cut to 1 sentence", cut=1),
    Arm("cut_2", "references cut to 2 sentences", cut=2),
    _erring(0.1, 0.05, "noise_10", "judge misses 10%, invents 5%"),
    _erring(0.2, 0.1, "noise_20", "judge misses 20%, invents 10%"),
    _erring(0.4, 0.2, "noise_40", "judge misses 40%, invents 20%"),
    _erring(0.2, 0.1, "judge_noise_20", "VLM as judge, misses 20%, invents 10%", "reward.family=judge"),
    _erring(
        0.2,
        0.1,
        "claim_differences_noise_20",
        "claim differences, misses 20%, invents 10%",
        fragments=("rewards/claim_differences.yaml",),
    ),
    _erring(
        0.2,
        0.1,
        "balanced_noise_20",
        "precision, recall and text, misses 20%, invents 10%",
        fragments=("rewards/balanced.yaml",),
    ),
    Arm("grpo_2", "GRPO, two updates for each step", overrides=("grpo.num_iterations=2",)),
    Arm("ahead", "GRPO, captions drawn one step ahead", overrides=("rollout.ahead=1",)),
    Arm("ahead_cispo", "GRPO, one step ahead, CISPO", fragments=("updates/ahead.yaml",)),
    _by_file("updates", "dapo", "DAPO (two updates)"),
    _by_file("updates", "gspo", "GSPO (two updates)"),
    _by_file("updates", "dr_grpo", "Dr. GRPO"),
    _by_file("updates", "rloo", "RLOO"),
)
ARMS: Mapping[str, Arm] = {arm.name: arm for arm in _ARMS}

ACCOMPANY: Mapping[str, tuple[str, str]] = {
    "references": ("e1", "references of e1, by the base"),
    "base": ("e1", "base"),
    "references_e2": ("e2", "references of e2, by e1"),
    "references_e3": ("e3", "references of e3, by e2"),
    "references_greedy": ("greedy_witness", "references, drawn greedily"),
    "references_hot": ("hot_witness", "references, at temperature 1.5"),
}
"""Rows that come with an arm's runs: the arm and a label."""

_FAMILIES = ("e1", "imitation", "vqa", "judge", "random")
_DIMENSIONS = ("no_correctness", "no_completeness", "no_text_quality")
_BESIDE = ("references", "base")
_RIVALS = ("claim_differences", "balanced")
_SIZES = ("cut_1", "cut_2", "e1", "e2")
_UPDATES = ("e1", "grpo_2", "dapo", "gspo", "dr_grpo", "rloo", "ahead", "ahead_cispo")
_ERRING = (
    *("e1", "noise_10", "noise_20", "noise_40", "judge", "judge_noise_20", *_RIVALS),
    *("claim_differences_noise_20", "balanced_noise_20"),
)

_STUDIES = (
    Study(
        name="main",
        title="Main results: base, e1, e2, e3",
        about="e1 learns from references that the base wrote, e2 from those that e1 wrote, and for images e3 from "
        "those that e2 wrote; all start from the base.",
        arms={"image": ("e1", "e2", "e3"), "video": ("e1", "e2")},
        rows=("base", "references", "e1", "references_e2", "e2", "references_e3", "e3"),
    ),
    Study(
        name="families",
        title="Reward families",
        about="The same references, steps and update; only the reward is another, and in one row it is drawn at "
        "random. About a caption of a video the judge alone is asked once, the witness-adjudicator twice, for its "
        "local term. What a judge notices without a reference is an assumption of this world, after the paper's "
        "account of such judges (docs/embedded_judge.md).",
        arms={"image": _FAMILIES, "video": _FAMILIES},
        rows=(*_BESIDE, *_FAMILIES),
    ),
    Study(
        name="rivals",
        title="Rival rewards on equal judge calls",
        about="The strongest published rewards that use a reference and a picture, under the same trainer, with the "
        "same references and one judge call per caption. The witness-adjudicator has one for pictures; its local pass "
        "over videos is a second one, so the row without it is the equal one there. Where it is asked to, this world's "
        "judge looks at whatever either text claims, which is more than the witness-adjudicator asks for.",
        arms={"image": ("e1", *_RIVALS), "video": ("e1", "no_local", *_RIVALS)},
        rows=(*_BESIDE, "e1", "no_local", *_RIVALS),
    ),
    Study(
        name="reference_size",
        title="Size of the reference, m",
        about="The base's references cut to their first sentences, whole (the row e1), and written by e1 (the row e2).",
        arms={"image": _SIZES, "video": _SIZES},
        rows=_SIZES,
    ),
    Study(
        name="witnesses",
        title="Other witnesses by the same captioner",
        about="The base's references of every study are drawn at temperature 1.1. Here they are its likeliest texts, "
        "or drawn at 1.5: other things are mentioned, more of them wrong. All else is as for e1.",
        arms={"image": ("e1", "greedy_witness", "hot_witness")},
        rows=(
            "base",
            "references_greedy",
            "greedy_witness",
            "references",
            "e1",
            "references_hot",
            "hot_witness",
        ),
    ),
    Study(
        name="distillation",
        title="Best-of-8 distillation",
        about="Students of the base, fine-tuned on the best of 8 captions of a teacher, scored by the reward.",
        arms={"image": ("e1", "e2", "from_self", "from_e1", "from_e2")},
        rows=("base", "from_self", "e1", "from_e1", "e2", "from_e2"),
    ),
    Study(
        name="ablations",
        title="Ablations of the reward",
        about="e1 retrained without one part of the reward. How much the reference is worth depends on what a judge "
        "notices without one, which is an assumption of this world (docs/embedded_judge.md).",
        arms={
            "image": ("e1", "no_reference", "no_reference_attentive", "no_image", *_DIMENSIONS),
            "video": ("e1", "no_reference", *_DIMENSIONS, "no_local"),
        },
        rows=("base", "e1", "no_reference", "no_reference_attentive", "no_image", *_DIMENSIONS, "no_local"),
    ),
    Study(
        name="noise",
        title="A judge that errs",
        about="The judge misses visible facts and confirms false claims, always the same ones of a picture. The rivals "
        "ask such a judge more than the witness-adjudicator does.",
        arms={"image": _ERRING},
        rows=("references", *_ERRING),
    ),
    Study(
        name="updates",
        title="Other on-policy updates",
        about="The paper trains with GRPO and leaves others open (its limitation iii). DAPO and GSPO update twice. All "
        "have GRPO's learning rate. In two rows captions are drawn while the step before is judged and learned from, "
        "by weights one step old.",
        arms={"image": _UPDATES},
        rows=("base", *_UPDATES),
    ),
)
STUDIES: Mapping[str, Study] = {study.name: study for study in _STUDIES}
QUICK: Mapping[str, Mapping[Modality, tuple[str, ...]]] = {
    "main": {"image": ("e1", "e2")},
    "families": {"image": ("e1", "imitation", "judge", "random")},
}
"""What --quick runs of each study."""


def label(row: str) -> str:
    """What a row is called in tables."""
    return ACCOMPANY[row][1] if row in ACCOMPANY else ARMS[row].label
