"""The witness-adjudicator reward of one group (Section 2.2), and the same without its witness.

One question per candidate, as soon as it has ended; for a video a second one about a window that the whole group
shares.
What a candidate lacks by its own fault scores 0; what the judge or the data lack is a failure and masks the
candidate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from vcap_jax.data.media import TimeWindow
from vcap_jax.reward.aggregation import component_weights, video_reward
from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupPrompt, GroupScores, all_failed, unjudgeable
from vcap_jax.reward.judge_query import JudgeQuery, MediaViews, verdict_form
from vcap_jax.reward.open_group import OpenGroup, for_each
from vcap_jax.reward.prompts import fill_instruction
from vcap_jax.reward.question import Verdict
from vcap_jax.reward.scores import Scores, full_scores, zero_scores
from vcap_jax.reward.segments import (
    Segment,
    choose_window,
    format_segments,
    parse_segments,
    sample_window,
    select_segments,
)
from vcap_jax.reward.templates import SPECS, InstructionName, load_instruction

Judging: TypeAlias = Callable[[str], Coroutine[object, object, Verdict[Scores]]]
"""Gives a text its verdict."""


class WitnessAdjudicatorReward:
    """Scores captions with one judge. The seed of its tools is that of the local windows.

    Its components are the scores from 0 to 10: ``correctness``, ``completeness``, and ``text_quality`` or, for a
    whole video, ``reasonability``; those of the local pass stand under ``local/``.

    Raises TemplateError for an instruction that does not fit its pass.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        self._config = config
        self._judge = tools.client()
        self._asker = JudgeQuery(self._judge, tools.store)
        self._seed = tools.seed
        self._instructions = {
            name: load_instruction(name, getattr(config.instructions, name)) for name in SPECS
        }
        most = tools.judge_config.max_analysis_chars
        self._forms = {name: verdict_form(one, most) for name, one in self._instructions.items()}

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        """Unless the ablation without the witness is asked for."""
        return config.use_reference

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        """Always."""
        return True

    async def score_captions(self, group: OpenGroup) -> GroupScores:
        """Ask for every candidate as soon as it has ended, and aggregate.

        Raises ValueError where the reward uses a reference and the group has None, JudgeUnavailable where no
        endpoint can be used at all, StoreError. Failures of single judgements and of data are in the result.
        """
        prompt = group.prompt
        reference = prompt.reference if self._config.use_reference else None
        if self._config.use_reference and reference is None:
            raise ValueError(
                f"sample {prompt.sample_id!r} has no reference caption: give the run a reference pool, or set "
                "reward.use_reference to false"
            )
        if (failure := unjudgeable(prompt, reference)) is not None:
            return all_failed(prompt, group.size, failure)
        looking = MediaViews(
            prompt.media, sample_id=prompt.sample_id, use_image=self._config.use_image, judge=self._judge
        )
        with_window = prompt.media.modality == "video" and self._config.local_active
        window = self._window(prompt) if with_window else None
        verdicts = await self._verdicts(group, reference, looking, window)
        full = full_scores()
        return GroupScores(
            sample_id=prompt.sample_id,
            step=prompt.step,
            candidates=tuple(self._candidate(passes) for passes in verdicts),
            full_reward=video_reward(full, None if window is None else full, self._config.weights),
            weights=component_weights(self._config.weights, prompt.media.modality, local=window is not None),
            window=window,
        )

    async def _verdicts(
        self, group: OpenGroup, reference: str | None, looking: MediaViews, window: TimeWindow | None
    ) -> list[dict[str, Verdict[Scores]]]:
        """Of each caption, by pass."""
        image = group.prompt.media.modality == "image"
        judging = self._pass("image" if image else "video_global", reference, looking, None)
        asked = for_each(group.texts(), judging)
        if window is None:
            whole = await asked
            return [{"global": whole[caption]} for caption in (await group.whole()).captions]

        def local_text(caption: str) -> str:
            return self._on_window(parse_segments(caption).segments, window)

        whole, local = await asyncio.gather(
            asked,
            for_each(
                (local_text(caption) async for caption in group.texts()),
                self._local_pass(group.prompt, reference, looking, window),
            ),
        )
        return [
            {"global": whole[caption], "local": local[local_text(caption)]}
            for caption in (await group.whole()).captions
        ]

    def _local_pass(
        self, prompt: GroupPrompt, reference: str | None, looking: MediaViews, window: TimeWindow
    ) -> Judging:
        if reference is not None and self._config.local.reference == "segment":
            segments = prompt.reference_segments or parse_segments(reference).segments
            reference = self._on_window(segments, window)
            if not reference:
                stretch = f"{window.start:.1f}-{window.end:.1f} s"
                detail = f"the reference of {prompt.sample_id!r} says nothing on {stretch}"
                return partial(self._asker.ask, Failure(reason="no_reference_segment", detail=detail))
        return self._pass("video_segment", reference, looking, window)

    def _pass(
        self,
        name: InstructionName,
        reference: str | None,
        looking: MediaViews,
        window: TimeWindow | None,
    ) -> Judging:
        """What gives a text its verdict; one without content scores 0 unasked."""
        name = name if self._config.use_reference else _WITHOUT_REFERENCE[name]
        instruction = self._instructions[name]

        def fill(text: str) -> str:
            return fill_instruction(instruction, reference=reference, candidate=text)

        async def judged(text: str) -> Verdict[Scores]:
            if not text.strip():
                note = (
                    "The text is empty." if window is None else "No segment of the text lies in the window."
                )
                return Verdict(
                    result=zero_scores(instruction.spec.score_keys, f"{note} Not shown to the judge.")
                )
            form, template = self._forms[name], instruction.template
            asked = await looking.pass_over(window, form, template, fill, reference)
            return await self._asker.ask(asked, text)

        return judged

    def _window(self, prompt: GroupPrompt) -> TimeWindow:
        local = self._config.local
        if self._config.use_reference and local.reference == "segment" and prompt.reference_segments:
            return choose_window(
                prompt.reference_segments, seed=self._seed, step=prompt.step, sample_id=prompt.sample_id
            )
        return sample_window(
            seed=self._seed,
            step=prompt.step,
            sample_id=prompt.sample_id,
            duration=prompt.media.duration,
            fraction=local.fraction,
            min_seconds=local.min_seconds,
        )

    def _on_window(self, segments: Sequence[Segment], window: TimeWindow) -> str:
        return format_segments(select_segments(segments, window, self._config.local.min_overlap))

    def _candidate(self, passes: Mapping[str, Verdict[Scores]]) -> CandidateScore:
        failure: Failure | None = None
        scores: dict[str, Scores] = {}
        for name in ("local", "global"):  # where both have failed, the global failure is told
            if name not in passes:
                continue
            result = passes[name].result
            if isinstance(result, Failure):
                failure = replace(result, detail=f"{name} pass: {result.detail}")
            else:
                scores[name] = result
        weights = self._config.weights
        return CandidateScore(
            reward=None if failure else video_reward(scores["global"], scores.get("local"), weights),
            components={
                f"{'local/' if name == 'local' else ''}{key}": float(value)
                for name in ("global", "local")
                if name in scores
                for key, value in scores[name].by_name().items()
            },
            failure=failure,
            notes={_HEADINGS[name]: scores[name].analysis for name in _HEADINGS if name in scores},
            verdicts=scores,
            keys={name: verdict.key for name, verdict in passes.items()},
        )


class HolisticJudgeReward(WitnessAdjudicatorReward):
    """The family ``judge``: the judge sees the picture and the caption, and no reference (the paper's Instruction 2).

    For images it is the instruction ``image_no_reference``, for videos ``video_global_no_reference`` over the whole
    video: a holistic judge has no part of the picture pointed out to it. Weights and components are the same.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        local = replace(config.local, enabled=False)
        own = replace(config, family="witness_adjudicator", use_reference=False, local=local)
        super().__init__(own, tools)

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        """Never."""
        return False


_HEADINGS: Mapping[str, str] = {
    "global": "The judge's analysis",
    "local": "The judge's analysis of the segment",
}
_WITHOUT_REFERENCE: Mapping[InstructionName, InstructionName] = {
    "image": "image_no_reference",
    "video_global": "video_global_no_reference",
    "video_segment": "video_segment_no_reference",
}
