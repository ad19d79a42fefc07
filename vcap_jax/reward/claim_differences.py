"""The claim-difference family, after ClaimDiff-RL (arXiv 2605.20278): errors where caption and reference differ.

The judge lists the differences between the candidate and the reference and settles each by the picture; both texts are
checked, and omissions and inventions are told apart. One question for each candidate, over the whole picture or video.

Beside the published program: failures are masked and never scored 0; the mode ``judgment_based`` is left out, for with
one verdict on each side it is ``normalized_diff`` again but for its word on the whole; and so are its penalties for
hedging and for a missing thought.
"""

from __future__ import annotations

from collections.abc import Sequence

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.differences import (
    Difference,
    Differences,
    Side,
    claim_reward,
    difference_components,
    differences_form,
)
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore
from vcap_jax.reward.judge_query import Verdict
from vcap_jax.reward.one_question import OneQuestion, OneQuestionReward, load_question, masked

UNASKED = CandidateScore(reward=0.0, keys={"global": None})
"""A text without content: nobody is asked, and nothing is earned."""


class ClaimDifferencesReward(OneQuestionReward[Differences]):
    """Components: ``differences``; ``omissions`` and ``inventions`` of the candidate; ``reference_errors``.

    Raises TemplateError for an instruction that cannot be used.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        self._config = config.claim_differences
        template = load_question(
            "claim_differences", self._config.instruction, most=self._config.most_differences
        )
        form = differences_form(template.text, self._config.most_differences)
        super().__init__(OneQuestion(template, form, tools))

    def _candidate(
        self, verdict: Verdict[Differences] | None, caption: str, reference: str
    ) -> CandidateScore:
        if verdict is None:
            return UNASKED
        differences = verdict.result
        if isinstance(differences, Failure):
            return masked(verdict, differences)
        return CandidateScore(
            reward=claim_reward(differences, self._config),
            components=difference_components(differences),
            notes={"Differences from the reference": told_differences(differences)},
            keys={"global": verdict.key},
        )


def told_differences(differences: Sequence[Difference]) -> str:
    """The differences in words, one a line."""
    lines = [f"caption {_told(one.caption)}; reference {_told(one.reference)}" for one in differences]
    return "\n".join(lines) or "none"


def _told(side: Side) -> str:
    verdict = "right" if side.error == "none" else f"{side.error}, severity {side.severity}"
    return f"{side.claim!r} ({verdict})" if side.claim else f"silent ({verdict})"
