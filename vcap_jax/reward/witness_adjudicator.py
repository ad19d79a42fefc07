"""The witness-adjudicator reward of one group (Section 2.2), and the same without its witness.

One question per candidate, as soon as it has ended; for a video a second one about a window that the whole group
shares.
What a candidate lacks by its own fault scores 0; what the judge or the data lack is a failure and masks the
candidate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TypeAlias

from vcap_jax.data.media import TimeWindow
from vcap_jax.reward.aggregation import component_weights, video_reward, weighted_reward
from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupPrompt, GroupScores, all_failed, unjudgeable
from vcap_jax.reward.judge_query import JudgeQuery, MediaViews, Verdict, verdict_form, verdict_pass
from vcap_jax.reward.open_group import OpenGroup, for_each
from vcap_jax.reward.scores import Scores, full_scores, zero_scores
from vcap_jax.reward.segments import (
    SegmentedCaption,
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
        verdicts: list[dict[str, Verdict[Scores]]]
        if prompt.media.modality == "image":
            verdicts, window = await self._judge_image(group, reference, looking), None
        else:
            verdicts, window = await self._judge_video(group, reference, looking)
        return GroupScores(
            sample_id=prompt.sample_id,
            step=prompt.step,
            candidates=tuple(self._candidate(passes) for passes in verdicts),
            full_reward=self._full_reward(local=window is not None),
            weights=component_weights(self._config.weights, prompt.media.modality, local=window is not None),
            window=window,
        )

    async def _judge_image(
        self, group: OpenGroup, reference: str | None, looking: MediaViews
    ) -> list[dict[str, Verdict[Scores]]]:
        whole = await for_each(group.texts(), self._pass("image", reference, looking, None))
        return [{"global": whole[caption]} for caption in (await group.whole()).captions]

    async def _judge_video(
        self, group: OpenGroup, reference: str | None, looking: MediaViews
    ) -> tuple[list[dict[str, Verdict[Scores]]], TimeWindow | None]:
        judged = self._pass("video_global", reference, looking, None)
        if not self._config.local_active:
            whole = await for_each(group.texts(), judged)
            return [{"global": whole[caption]} for caption in (await group.whole()).captions], None
        window = self._window(group.prompt)

        def local_text(caption: str) -> str:
            return self._local_text(parse_segments(caption), window)

        whole, local = await asyncio.gather(
            for_each(group.texts(), judged),
            for_each(
                (local_text(caption) async for caption in group.texts()),
                self._local_pass(group.prompt, reference, looking, window),
            ),
        )
        return [
            {"global": whole[caption], "local": local[local_text(caption)]}
            for caption in (await group.whole()).captions
        ], window

    def _local_pass(
        self, prompt: GroupPrompt, reference: str | None, looking: MediaViews, window: TimeWindow
    ) -> Judging:
        if reference is not None and self._config.local.reference == "segment":
            segments = prompt.reference_segments or parse_segments(reference).segments
            reference = format_segments(select_segments(segments, window, self._config.local.min_overlap))
            if not reference:
                stretch = f"{window.start:.1f}-{window.end:.1f} s"
                detail = f"the reference of {prompt.sample_id!r} says nothing on {stretch}"
                failure = Failure(reason="no_reference_segment", detail=detail)

                async def nothing_to_compare(text: str) -> Verdict[Scores]:
                    return Verdict(result=failure, key="")

                return nothing_to_compare
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

        async def judged(text: str) -> Verdict[Scores]:
            if not text.strip():
                note = (
                    "The text is empty." if window is None else "No segment of the text lies in the window."
                )
                return Verdict(
                    result=zero_scores(instruction.spec.score_keys, f"{note} Not shown to the judge.")
                )
            shown = await looking.at(window)
            if isinstance(shown, Failure):
                return Verdict(result=shown, key="")
            route = await looking.route()
            one = verdict_pass(instruction, self._forms[name], reference=reference, shown=shown, route=route)
            return await self._asker.ask(one, text)

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

    def _local_text(self, caption: SegmentedCaption, window: TimeWindow) -> str:
        return format_segments(select_segments(caption.segments, window, self._config.local.min_overlap))

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
        return CandidateScore(
            reward=None if failure is not None else self._reward(scores),
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

    def _reward(self, scores: Mapping[str, Scores]) -> float:
        if "local" in scores:
            return video_reward(scores["global"], scores["local"], self._config.weights)
        return weighted_reward(scores["global"], self._config.weights)

    def _full_reward(self, *, local: bool) -> float:
        full = full_scores()
        return self._reward({"global": full, "local": full} if local else {"global": full})


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
