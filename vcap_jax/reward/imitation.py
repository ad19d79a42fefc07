"""The imitation family: n-gram overlap with the references, nothing is looked at.

In the paper's terms (Appendix "Comparison of Reference Roles") its optimum is the reference itself: c = m, the
reference's errors included. CIDEr-D takes its document frequencies from the whole pool; BLEU is sacrebleu's sentence
BLEU-4 (its 13a tokenizer, lower case, exponential smoothing, effective order), divided by 10.
"""

from __future__ import annotations

from sacrebleu.metrics.bleu import BLEU

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores, all_failed
from vcap_jax.reward.ngrams import SCALE, CiderD


class ImitationReward:
    """Components ``cider`` and ``bleu``, from 0 to 10 each; the reward is their sum weighted by ``reward.imitation``.

    A caption is compared with all references that the pool has of its sample. Raises FamilyError for a pool that is too
    small for document frequencies.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        self._weights = config.imitation
        try:
            self._cider = CiderD(tools.references.values())
        except ValueError as error:
            raise FamilyError(f"reward.family imitation: {error}") from error
        self._bleu = BLEU(lowercase=True, effective_order=True)

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        """Always."""
        return True

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        """Never."""
        return False

    async def score_group(self, group: GroupForReward) -> GroupScores:
        """Every caption against the group's references. Raises ValueError for a group without any."""
        own = () if group.reference is None else (group.reference,)
        references = [text for text in group.references or own if text.strip()]
        if not (group.references or own):
            raise ValueError(f"sample {group.sample_id!r} has no reference caption to imitate")
        if not references:
            detail = f"the reference of {group.sample_id!r} has no text"
            return all_failed(group, len(group.captions), Failure(reason="no_reference", detail=detail))
        earned = {text: self._score(text, references) for text in dict.fromkeys(group.captions)}
        return GroupScores(
            sample_id=group.sample_id,
            step=group.step,
            candidates=tuple(earned[text] for text in group.captions),
            full_reward=SCALE * (self._weights.cider + self._weights.bleu) if len(references) == 1 else None,
            weights={"cider": self._weights.cider, "bleu": self._weights.bleu},
        )

    def _score(self, caption: str, references: list[str]) -> CandidateScore:
        cider = self._cider.score(caption, references)
        bleu = self._bleu.sentence_score(caption, references).score / 10
        return CandidateScore(
            reward=self._weights.cider * cider + self._weights.bleu * bleu,
            components={"cider": cider, "bleu": bleu},
        )
