"""Settings of the reward and of the judge it asks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vcap_jax.reward.aggregation import RewardWeights

FAMILIES: Mapping[str, str] = {
    "witness_adjudicator": "vcap_jax.reward.witness_adjudicator:WitnessAdjudicatorReward",
    "imitation": "vcap_jax.reward.imitation:ImitationReward",
    "vqa": "vcap_jax.reward.vqa:VqaReward",
    "judge": "vcap_jax.reward.holistic_judge:HolisticJudgeReward",
}
"""Reward families of this project, by name, with their import paths."""


@dataclass(frozen=True, kw_only=True)
class InstructionPaths:
    """Paths of the user's own instructions to the judge; null keeps the packaged one
    (:mod:`vcap_jax.reward.templates` says what each must contain).

    image: for images. image_no_reference: the same where the judge gets no reference.
    video_global: for a whole video. video_global_no_reference: the same without a reference.
    video_segment: for a window of a video. video_segment_no_reference: the same without a reference.
    """

    image: str | None = None
    image_no_reference: str | None = None
    video_global: str | None = None
    video_global_no_reference: str | None = None
    video_segment: str | None = None
    video_segment_no_reference: str | None = None


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """The local pass over a random window of a video.

    enabled: ask for it; without it, or with ``reward.weights.local`` 0, the reward is the global one.
    reference: "video" gives the judge the whole reference and tells it to ignore what lies outside (the
        paper's Instruction 4); "segment" gives it only the part on the window (the paper's Section 2.2), and
        draws the window among the reference's own segments where the reference pool has them.
    fraction: length of the window as a share of the video.
    min_seconds: the window is at least this long, or the whole video if that is shorter.
    min_overlap: a segment of the caption belongs to the window if it shares at least this part of the shorter
        of the two; slivers, of which the window shows next to nothing, are left out.
    """

    enabled: bool = True
    reference: Literal["video", "segment"] = "video"
    fraction: float = 0.25
    min_seconds: float = 2.0
    min_overlap: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"reward.local.fraction is {self.fraction}: give a share above 0 and up to 1")
        if not 0 < self.min_seconds < math.inf:
            raise ValueError(f"reward.local.min_seconds is {self.min_seconds}: give seconds above 0")
        if not 0 <= self.min_overlap <= 1:
            raise ValueError(f"reward.local.min_overlap is {self.min_overlap}: give a share from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class ImitationConfig:
    """Weights of the imitation family's components, both on CIDEr's scale from 0 to 10.

    cider: of CIDEr-D with the document frequencies of the reference pool. bleu: of sentence BLEU-4.
    """

    cider: float = 0.1
    bleu: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cider", "bleu"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"reward.imitation.{name} is {value}: give a finite number, 0 or above")
        if self.cider == self.bleu == 0:
            raise ValueError("reward.imitation.cider and reward.imitation.bleu are both 0; leave one above 0")


@dataclass(frozen=True, kw_only=True)
class VqaConfig:
    """Questions about a sample that are answered from the caption alone.

    questions: JSONL file (:mod:`vcap_jax.reward.questions`). Null: made for the scenes of the embedded world.
    about: of the embedded world's facts, those that a reference of the sample states rightly ("reference": the
        m facts of the paper's analysis), or all ("scene").
    instruction: path of the user's own template; null keeps the packaged one.
    """

    questions: str | None = None
    about: Literal["reference", "scene"] = "reference"
    instruction: str | None = None


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """The reward family and its settings.

    family: witness_adjudicator (the paper's reward), imitation (n-gram overlap with the references), vqa (questions
        answered from the caption), judge (a judge with the picture and no reference: the paper's Instruction 2), or
        the import path package.module:Class of another one (:mod:`vcap_jax.reward.family`).
    weights, instructions: used by witness_adjudicator and judge. local: used by witness_adjudicator.
    use_reference: False asks the witness-adjudicator's judge without the witness ("- reference caption" in the
        paper). use_image: False asks it without the picture or frames ("- reference image").
    options: settings for a family of the user's own.
    """

    family: str = "witness_adjudicator"
    weights: RewardWeights = field(default_factory=RewardWeights)
    use_reference: bool = True
    use_image: bool = True
    local: LocalConfig = field(default_factory=LocalConfig)
    instructions: InstructionPaths = field(default_factory=InstructionPaths)
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    vqa: VqaConfig = field(default_factory=VqaConfig)
    options: dict[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.family in FAMILIES and self.options:
            raise ValueError(
                f"reward.options {sorted(self.options)} are for a family of your own; reward.family is {self.family}"
            )
        if self.family != "witness_adjudicator" and not (self.use_reference and self.use_image):
            raise ValueError(
                "reward.use_reference and reward.use_image are the witness-adjudicator's ablations, and "
                f"reward.family is {self.family}: leave them true"
            )
        if not (self.use_reference or self.use_image):
            raise ValueError(
                "reward.use_reference and reward.use_image are both false: the judge would have nothing to "
                "judge by; leave one of them true"
            )

    @property
    def local_active(self) -> bool:
        """Whether videos get the local pass."""
        return self.local.enabled and self.weights.local > 0


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """OpenAI-compatible chat endpoints that serve one judge model, and how to treat them.

    urls: base addresses, e.g. ``[http://127.0.0.1:8000/v1, http://127.0.0.1:8001/v1]``; a bare host gets
        ``/v1``. A group always goes to the same one as long as that one answers, so that its caches serve the
        group. Empty: whoever starts the run starts the embedded judge and fills it in.
    model: None takes the only model that the servers list; all must have the same.
    api_key_env: NAME of the environment variable that holds the key; the key itself never enters a
        configuration.
    concurrency: requests in flight at once, to each endpoint.
    deadline_s: seconds for one HTTP request from sending to the last byte; waiting for a free place is not
        counted.
    max_tries: requests made for one judgement before it is a failure. Those lost to an endpoint that turned
        out to be down are not counted.
    max_tokens, max_analysis_chars: bounds of the answer; the first must leave room for the second.
    temperature: of the first try. retry_temperature: after an unusable answer, because a model asked again in
        the same way at temperature 0 repeats itself.
    backoff_s, max_backoff_s: the wait before try k is about ``backoff_s * 2**(k - 2)``, jittered, at most
        ``max_backoff_s``. max_retry_after_s: a server that asks for a longer wait than this is given up.
    response_format: "json_schema" lets the server enforce the schema; "json_object" and "none" are for
        servers that cannot.
    ready_timeout_s: how long to wait for the servers at the start of a run.
    outage_timeout_s: how long questions wait in the middle of a run while no endpoint answers; after it the
        run ends, to be resumed.
    breaker_failures: after so many failed connections in a row an endpoint is left out until its /health and
        its model list answer again; so many timeouts or server errors in a row have its /health asked.
    media_uuid: send a picture or video once and name it by its content hash afterwards. "auto" does so where
        the server is vLLM; a server that has lost it gets it again.
    lead_request: where media are kept so, a request for a single token goes ahead of each pass over a group:
        it carries the media, and all candidates find them and the prompt in the server's caches.
    video_input: "video" sends videos as one video of JPEG frames with their indices, "frames" as pictures
        with a time before each, which costs twice the tokens and which any server understands. "auto" is
        video where the server is vLLM.
    store: file (SQLite) that keeps every judgement, so that none is paid for twice; None: the run puts
        ``judgements.sqlite`` into its folder. Of several processes each has one: NAME, NAME-1, NAME-2, ...
    """

    urls: tuple[str, ...] = ()
    model: str | None = None
    api_key_env: str | None = None
    concurrency: int = 64
    deadline_s: float = 120.0
    max_tries: int = 4
    max_tokens: int = 1024
    max_analysis_chars: int = 2000
    temperature: float = 0.0
    retry_temperature: float = 0.3
    backoff_s: float = 0.5
    max_backoff_s: float = 20.0
    max_retry_after_s: float = 120.0
    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    ready_timeout_s: float = 600.0
    outage_timeout_s: float = 600.0
    breaker_failures: int = 5
    media_uuid: Literal["auto", "always", "never"] = "auto"
    lead_request: bool = True
    video_input: Literal["auto", "video", "frames"] = "auto"
    store: str | None = None

    def __post_init__(self) -> None:
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(
                    f"judge.urls has {url!r}: give addresses that begin with http:// or https://"
                )
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ValueError(f"judge.urls names an address twice: {', '.join(self.urls)}")
        for name in ("concurrency", "max_tries", "max_tokens", "max_analysis_chars", "breaker_failures"):
            if getattr(self, name) < 1:
                raise ValueError(f"judge.{name} is {getattr(self, name)}: give at least 1")
        for name in ("deadline_s", "ready_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"judge.{name} is {getattr(self, name)}: give seconds above 0")
        for name in (
            "temperature",
            "retry_temperature",
            "backoff_s",
            "max_backoff_s",
            "max_retry_after_s",
            "outage_timeout_s",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"judge.{name} is {getattr(self, name)}: give a finite number, 0 or above")
