"""The balanced family, after BalCapRL (arXiv 2605.07394): precision, recall and text quality beside each other.

The judge splits the candidate into claims and the reference into units and settles each of them; the text's quality
counts only for captions whose length is near the reference's. One question for each candidate, over the whole picture
or video, where the published method asks several; the rest of it is a setting of the update:
``grpo.advantages.per_component`` normalises each component over the group alone (``configs/rewards/balanced.yaml``).
The published weights of the components are not known; by default they are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from vcap_jax.reward.balance import Balance, balance_form
from vcap_jax.reward.config import BalancedConfig, RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore
from vcap_jax.reward.judge_query import Verdict
from vcap_jax.reward.one_question import OneQuestion, OneQuestionReward, load_question, masked


class BalancedReward(OneQuestionReward[Balance]):
    """Components, 0 to 1: ``precision``, ``recall`` and ``text``, of which the reward is the weighted mean, and
    ``of_length``, whether the caption is of a length at which its text counts. ``claims`` is how many it makes.

    Raises TemplateError for an instruction that cannot be used.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        self._config = config.balanced
        template = load_question("balanced", self._config.instruction, most=self._config.most_entries)
        form = balance_form(template.text, self._config.most_entries)
        super().__init__(OneQuestion(template, form, tools), self._config.shares)

    def _candidate(self, verdict: Verdict[Balance] | None, caption: str, reference: str) -> CandidateScore:
        verdict = verdict or Verdict(result=_SILENT)
        balance = verdict.result
        if isinstance(balance, Failure):
            return masked(verdict, balance)
        recall = 0.0 if balance is _SILENT else balance.recall
        if recall is None:
            return masked(
                verdict,
                Failure(reason="no_reference", detail="the judge found nothing that the reference states"),
            )
        counts = length_counts(caption, reference, self._config)
        components = {
            "precision": balance.precision,
            "recall": recall,
            "text": balance.text if counts else 0.0,
            "of_length": float(counts),
            "claims": float(len(balance.claims)),
        }
        return CandidateScore(
            reward=sum(share * components[name] for name, share in self._config.shares.items()),
            components=components,
            notes={} if balance is _SILENT else {"Claims and units": told_balance(balance)},
            keys={"global": verdict.key},
        )


_SILENT = Balance(claims=(), units=(), clarity=0, fluency=0, coherence=0)
"""Of a text without content: nobody is asked, and nothing is earned."""


def length_counts(caption: str, reference: str, config: BalancedConfig) -> bool:
    """Whether the caption has from ``config.shortest`` to ``config.longest`` times the reference's words."""
    words = len(reference.split())
    return config.shortest * words <= len(caption.split()) <= config.longest * words


def told_balance(balance: Balance) -> str:
    """What fell and what was left out, in words."""

    def listed(heading: str, items: Sequence[str]) -> str:
        return f"{heading}: {'; '.join(items) or 'none'}"

    return "\n".join(
        [
            listed("false", [one.claim for one in balance.claims if not one.true]),
            listed("not visible", [one.claim for one in balance.claims if one.true and not one.visible]),
            listed("not covered", [one.unit for one in balance.units if not one.covered]),
            f"clarity {balance.clarity}, fluency {balance.fluency}, coherence {balance.coherence}",
        ]
    )
