"""The witness-adjudicator reward of one group (Section 2.2).

One question per candidate, all at once; for a video a second one about a window that the whole group shares.
What a candidate lacks by its own fault scores 0; what the judge or the data lack is a failure and masks the
candidate.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vcap_jax.reward.aggregation import video_reward, weighted_reward
from vcap_jax.reward.asking import Asker, Looking, Pass, Verdict
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig, RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.media import JudgeMedia, TimeWindow
from vcap_jax.reward.scores import Scores, zero_scores
from vcap_jax.reward.segments import (
    Segment,
    SegmentedCaption,
    choose_window,
    format_segments,
    parse_segments,
    sample_window,
    select_segments,
)
from vcap_jax.reward.store import JudgementStore, StoredCandidate
from vcap_jax.reward.templates import Instruction, InstructionName, load_instruction


@dataclass(frozen=True, kw_only=True)
class GroupForReward:
    """One prompt with its witness and its G candidates.

    reference: the witness's caption; None only where the reward uses none.
    captions: the G sampled texts as they are, cut off or not.
    reference_segments: the reference pool's own segments of a video, for ``local.reference: segment``.
    """

    sample_id: str
    step: int
    media: JudgeMedia
    reference: str | None
    captions: tuple[str, ...]
    reference_segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CandidateScore:
    """What one candidate earned.

    reward: None if any judgement it needs failed; then ``failure`` says why, and what did succeed is still
        here.
    local_scores: only for videos with the local pass.
    segments: parsed segments of a video caption; None for images.
    judge_seconds: time in HTTP requests for it; candidates with the same text share one judgement and its
        time.
    """

    reward: float | None
    global_scores: Scores | None = None
    local_scores: Scores | None = None
    failure: Failure | None = None
    segments: int | None = None
    judge_seconds: float = 0.0

    @property
    def analyses(self) -> dict[str, str]:
        """The judge's analysis texts by pass ("global", "local")."""
        passes = {"global": self.global_scores, "local": self.local_scores}
        return {name: scores.analysis for name, scores in passes.items() if scores is not None}


@dataclass(frozen=True, kw_only=True)
class GroupScores:
    """The group's candidates in the order of its captions.

    window: of the local pass, None without one. seconds: from the call to the last verdict.
    """

    sample_id: str
    step: int
    candidates: tuple[CandidateScore, ...]
    window: TimeWindow | None
    seconds: float

    @property
    def rewards(self) -> list[float | None]:
        return [candidate.reward for candidate in self.candidates]


class WitnessAdjudicatorReward:
    """Scores groups with one judge. Holds no state between groups but what is in the store.

    seed: of the local windows. store: judgements that were made before, and where new ones go.
    Raises TemplateError for an instruction that does not fit its pass.
    """

    def __init__(
        self,
        config: RewardConfig,
        judge_config: JudgeConfig,
        judge: JudgeClient,
        *,
        seed: int,
        store: JudgementStore | None = None,
    ) -> None:
        self._config = config
        self._judge = judge
        self._asker = Asker(judge, store, max_analysis_chars=judge_config.max_analysis_chars)
        self._store = store
        self._seed = seed
        self._instructions = load_instructions(config)

    async def score_group(self, group: GroupForReward) -> GroupScores:
        """Ask for every candidate at once and aggregate.

        Raises ValueError where the reward uses a reference and the group has None, JudgeUnavailable where no
        endpoint can be used at all, StoreError. Failures of single judgements and of data are in the result.
        """
        began = time.perf_counter()
        reference = group.reference if self._config.use_reference else None
        if self._config.use_reference and reference is None:
            raise ValueError(
                f"sample {group.sample_id!r} has no reference caption: give the run a reference pool, or set "
                "reward.use_reference to false"
            )
        if reference is not None and not reference.strip():
            failure = Failure(
                reason="no_reference", detail=f"the reference of {group.sample_id!r} has no text"
            )
            return self._all_failed(group, failure, began)
        if group.media.modality == "video" and not 0 < group.media.duration < math.inf:
            detail = f"{group.sample_id!r}: a video of {group.media.duration} seconds"
            return self._all_failed(group, Failure(reason="media", detail=detail), began)
        looking = Looking(
            group.media, sample_id=group.sample_id, use_image=self._config.use_image, judge=self._judge
        )
        verdicts: list[dict[str, Verdict]]
        if group.media.modality == "image":
            verdicts, window = await self._judge_image(group, reference, looking), None
            segments: list[int | None] = [None] * len(verdicts)
        else:
            parsed = [parse_segments(caption) for caption in group.captions]
            verdicts, window = await self._judge_video(group, reference, looking, parsed)
            segments = [len(caption.segments) for caption in parsed]
        candidates = [
            self._candidate(passes, count) for passes, count in zip(verdicts, segments, strict=True)
        ]
        await self._keep(group, verdicts, candidates)
        return GroupScores(
            sample_id=group.sample_id,
            step=group.step,
            candidates=tuple(candidates),
            window=window,
            seconds=time.perf_counter() - began,
        )

    async def _judge_image(
        self, group: GroupForReward, reference: str | None, looking: Looking
    ) -> list[dict[str, Verdict]]:
        whole = await self._judge_texts(
            self._instruction("image"), reference, looking, list(group.captions), None
        )
        return [{"global": whole[caption]} for caption in group.captions]

    async def _judge_video(
        self,
        group: GroupForReward,
        reference: str | None,
        looking: Looking,
        parsed: Sequence[SegmentedCaption],
    ) -> tuple[list[dict[str, Verdict]], TimeWindow | None]:
        instruction = self._instruction("video_global")
        passes: list[Coroutine[Any, Any, Mapping[str, Verdict]]] = [
            self._judge_texts(instruction, reference, looking, list(group.captions), None)
        ]
        window = self._window(group) if self._config.local_active else None
        local_texts: list[str] = []
        if window is not None:
            local_texts = [self._local_text(caption, window) for caption in parsed]
            passes.append(self._judge_local(group, reference, looking, local_texts, window))
        whole, *local = await asyncio.gather(*passes)
        verdicts = [{"global": whole[caption]} for caption in group.captions]
        if local:
            for passed, text in zip(verdicts, local_texts, strict=True):
                passed["local"] = local[0][text]
        return verdicts, window

    async def _judge_local(
        self,
        group: GroupForReward,
        reference: str | None,
        looking: Looking,
        texts: list[str],
        window: TimeWindow,
    ) -> Mapping[str, Verdict]:
        if reference is not None and self._config.local.reference == "segment":
            segments = group.reference_segments or parse_segments(reference).segments
            reference = format_segments(select_segments(segments, window, self._config.local.min_overlap))
            if not reference:
                stretch = f"{window.start:.1f}-{window.end:.1f} s"
                detail = f"the reference of {group.sample_id!r} says nothing on {stretch}"
                failure = Failure(reason="no_reference_segment", detail=detail)
                return {text: Verdict(result=failure, key="") for text in texts}
        return await self._judge_texts(self._instruction("video_segment"), reference, looking, texts, window)

    async def _judge_texts(
        self,
        instruction: Instruction,
        reference: str | None,
        looking: Looking,
        texts: Sequence[str],
        window: TimeWindow | None,
    ) -> Mapping[str, Verdict]:
        """One verdict per different text; a text without content scores 0 unasked."""
        verdicts: dict[str, Verdict] = {}
        asked = []
        for text in dict.fromkeys(texts):
            if text.strip():
                asked.append(text)
            else:
                note = (
                    "The text is empty." if window is None else "No segment of the text lies in the window."
                )
                scores = zero_scores(instruction.spec.score_keys, f"{note} Not shown to the judge.")
                verdicts[text] = Verdict(result=scores)
        if not asked:
            return verdicts
        shown = await looking.at(window)
        if isinstance(shown, Failure):
            return verdicts | {text: Verdict(result=shown, key="") for text in asked}
        route = await looking.route()
        one = Pass(instruction=instruction, reference=reference, shown=shown, route=route)
        return verdicts | await self._asker.judge(one, asked)

    async def _keep(
        self,
        group: GroupForReward,
        verdicts: Sequence[Mapping[str, Verdict]],
        candidates: Sequence[CandidateScore],
    ) -> None:
        if self._store is None:
            return
        written = self._store.put_candidates(
            StoredCandidate(
                step=group.step,
                sample_id=group.sample_id,
                place=place,
                caption=group.captions[place],
                verdicts={name: verdict.key for name, verdict in passes.items()},
                reward=candidate.reward,
            )
            for place, (passes, candidate) in enumerate(zip(verdicts, candidates, strict=True))
        )
        await asyncio.gather(*map(asyncio.wrap_future, written))

    def _window(self, group: GroupForReward) -> TimeWindow:
        local = self._config.local
        if self._config.use_reference and local.reference == "segment" and group.reference_segments:
            return choose_window(
                group.reference_segments, seed=self._seed, step=group.step, sample_id=group.sample_id
            )
        return sample_window(
            seed=self._seed,
            step=group.step,
            sample_id=group.sample_id,
            duration=group.media.duration,
            fraction=local.fraction,
            min_seconds=local.min_seconds,
        )

    def _local_text(self, caption: SegmentedCaption, window: TimeWindow) -> str:
        return format_segments(select_segments(caption.segments, window, self._config.local.min_overlap))

    def _candidate(self, passes: Mapping[str, Verdict], segments: int | None) -> CandidateScore:
        whole, local = passes["global"], passes.get("local")
        failure: Failure | None = None
        for name, verdict in (("local", local), ("global", whole)):
            if verdict is not None and isinstance(verdict.result, Failure):
                failure = Failure(
                    reason=verdict.result.reason, detail=f"{name} pass: {verdict.result.detail}"
                )
        whole_scores = None if isinstance(whole.result, Failure) else whole.result
        local_scores = None if local is None or isinstance(local.result, Failure) else local.result
        reward: float | None = None
        if failure is None and whole_scores is not None:
            weights = self._config.weights
            if segments is None:
                reward = weighted_reward(whole_scores, weights)
            else:
                reward = video_reward(whole_scores, local_scores, weights)
        return CandidateScore(
            reward=reward,
            global_scores=whole_scores,
            local_scores=local_scores,
            failure=failure,
            segments=segments,
            judge_seconds=whole.seconds + (local.seconds if local is not None else 0.0),
        )

    def _all_failed(self, group: GroupForReward, failure: Failure, began: float) -> GroupScores:
        return GroupScores(
            sample_id=group.sample_id,
            step=group.step,
            candidates=tuple(CandidateScore(reward=None, failure=failure) for _ in group.captions),
            window=None,
            seconds=time.perf_counter() - began,
        )

    def _instruction(self, name: InstructionName) -> Instruction:
        return self._instructions[name if self._config.use_reference else _WITHOUT_REFERENCE[name]]


_WITHOUT_REFERENCE: Mapping[InstructionName, InstructionName] = {
    "image": "image_no_reference",
    "video_global": "video_global_no_reference",
    "video_segment": "video_segment_no_reference",
}


def load_instructions(config: RewardConfig) -> dict[InstructionName, Instruction]:
    """All instructions, the user's where the configuration names a path. Raises TemplateError."""
    paths = config.instructions
    return {
        "image": load_instruction("image", paths.image),
        "image_no_reference": load_instruction("image_no_reference", paths.image_no_reference),
        "video_global": load_instruction("video_global", paths.video_global),
        "video_global_no_reference": load_instruction(
            "video_global_no_reference", paths.video_global_no_reference
        ),
        "video_segment": load_instruction("video_segment", paths.video_segment),
        "video_segment_no_reference": load_instruction(
            "video_segment_no_reference", paths.video_segment_no_reference
        ),
    }
