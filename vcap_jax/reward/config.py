"""Settings of the reward and of the judge it asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from vcap_jax.configuration import settings
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.http_answers import base_url
from vcap_jax.system.loopback import on_loopback

FAMILIES: Mapping[str, str] = {
    "witness_adjudicator": "vcap_jax.reward.witness_adjudicator:WitnessAdjudicatorReward",
    "imitation": "vcap_jax.reward.imitation:ImitationReward",
    "vqa": "vcap_jax.reward.vqa:VqaReward",
    "judge": "vcap_jax.reward.witness_adjudicator:HolisticJudgeReward",
    "claim_differences": "vcap_jax.reward.claim_differences:ClaimDifferencesReward",
    "balanced": "vcap_jax.reward.balanced:BalancedReward",
    "random": "vcap_jax.reward.random_scores:RandomReward",
}
"""Reward families of this project, by name, with their import paths."""
WEIGHTED = ("witness_adjudicator", "judge")
"""Those of them whose rewards are the judge's scores by ``reward.weights``."""


@settings
class InstructionPaths:
    """Paths of the user's own instructions to the judge; null keeps the packaged one
    (:mod:`vcap_jax.reward.templates` says what each must contain)."""

    image: str | None = None
    """For images."""
    image_no_reference: str | None = None
    """For images, where the judge gets no reference."""
    video_global: str | None = None
    """For a whole video."""
    video_global_no_reference: str | None = None
    """For a whole video, without a reference."""
    video_segment: str | None = None
    """For a window of a video."""
    video_segment_no_reference: str | None = None
    """For a window of a video, without a reference."""


@settings
class LocalConfig:
    """The local pass over a random window of a video."""

    enabled: bool = True
    """Ask for the local pass; without it, or with reward.weights.local 0, the reward is the global
    one."""
    reference: Literal["video", "segment"] = "video"
    """Which reference the judge is given: "video" is the whole one, and the judge is told to ignore
    what lies outside (the paper's Instruction 4); "segment" is only the part on the window (the
    paper's Section 2.2), and draws the window among the reference's own segments where the
    reference pool has them."""
    fraction: float = Field(default=0.25, gt=0, le=1)
    """Length of the window as a share of the video."""
    min_seconds: float = Field(default=2.0, gt=0)
    """The window is at least this long, or the whole video if that is shorter."""
    min_overlap: float = Field(default=0.25, ge=0, le=1)
    """A segment of the caption belongs to the window if it shares at least this part of the shorter
    of the two; slivers, of which the window shows next to nothing, are left out."""


@settings
class ImitationConfig:
    """Weights of the imitation family's components, both on CIDEr's scale from 0 to 10."""

    cider: float = Field(default=0.1, ge=0)
    """Weight of CIDEr-D with the document frequencies of the reference pool."""
    bleu: float = Field(default=0.0, ge=0)
    """Weight of sentence BLEU-4."""

    def __post_init__(self) -> None:
        if self.cider == self.bleu == 0:
            raise ValueError("reward.imitation.cider and reward.imitation.bleu are both 0; leave one above 0")


@settings
class VqaConfig:
    """Questions about a sample that are answered from the caption alone."""

    questions: str | None = None
    """JSONL file of questions (vcap_jax.reward.questions); null makes them for the scenes of the
    embedded world."""
    about: Literal["reference", "scene"] = "reference"
    """Which of the embedded world's facts are asked about: those that a reference of the sample
    states rightly ("reference": the m facts of the paper's analysis), or all ("scene")."""
    instruction: str | None = None
    """Path of the user's own template; null keeps the packaged one."""


@settings
class ClaimDifferencesConfig:
    """Errors counted where caption and reference differ (ClaimDiff-RL)."""

    mode: Literal["normalized_diff", "raw_diff", "normalized_a_only", "a_only", "hall_vs_miss"] = (
        "normalized_diff"
    )
    """From counts to a reward, by its published names: "normalized_diff" and "raw_diff" compare the
    caption's errors with the reference's, the other three count the caption's alone
    (vcap_jax.reward.claim_differences.claim_reward has the formulas). "normalized_diff" is that
    program's default."""
    severity_weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """What an error of severity 1, 2 and 3 counts; [1, 1.25, 1.6] is the published weighting, which
    that program leaves off by default."""
    omission: float = Field(default=1.0, ge=0)
    """What an omission counts beside an invention; published: the same."""
    invention: float = Field(default=1.0, ge=0)
    """What an invention counts."""
    most_differences: int = Field(default=40, ge=1)
    """Differences that the judge is asked for at most, the gravest first. judge.max_tokens must leave
    room: about 70 tokens each."""
    instruction: str | None = None
    """Path of the user's own template; null keeps the packaged one."""

    def __post_init__(self) -> None:
        if min(self.severity_weights) < 0 or self.heaviest == 0:
            raise ValueError(
                "reward.claim_differences: give severity_weights of 0 or more, and leave one of them and one of "
                "omission and invention above 0, or every reward would be the same"
            )

    @property
    def heaviest(self) -> float:
        """The largest weight that an error can have."""
        return max(self.omission, self.invention) * max(self.severity_weights)


@settings
class BalancedConfig:
    """Precision, recall and text quality beside each other (BalCapRL)."""

    precision: float = Field(default=1.0, ge=0)
    """Weight of the share of the caption's claims that are true and visible. Weights are relative to
    their sum."""
    recall: float = Field(default=1.0, ge=0)
    """Weight of the share of the reference's units that the caption covers."""
    text: float = Field(default=1.0, ge=0)
    """Weight of the mean of clarity, fluency and coherence."""
    shortest: float = Field(default=0.5, ge=0)
    """The text counts 0 for a caption with less than this share of the reference's words."""
    longest: float = Field(default=2.0, gt=0)
    """And for one with more than this share."""
    most_entries: int = Field(default=80, ge=1)
    """Claims, and units, that the judge is asked for at most. judge.max_tokens must leave room: about
    50 tokens for one of each."""
    instruction: str | None = None
    """Path of the user's own template; null keeps the packaged one."""

    def __post_init__(self) -> None:
        if self.precision == self.recall == self.text == 0:
            raise ValueError(
                "reward.balanced: precision, recall and text are all 0, so every reward would be 0; leave one above 0"
            )
        if self.longest < self.shortest:
            raise ValueError(
                f"reward.balanced.longest {self.longest:g} is less than reward.balanced.shortest {self.shortest:g}"
            )

    @property
    def shares(self) -> dict[str, float]:
        """The weights by component, adding up to 1."""
        weights = {"precision": self.precision, "recall": self.recall, "text": self.text}
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}


@settings
class RewardConfig:
    """The reward family and its settings."""

    family: str = "witness_adjudicator"
    """One of witness_adjudicator (the paper's reward), imitation (n-gram overlap with the
    references), vqa (questions answered from the caption), judge (a judge with the picture and no
    reference: the paper's Instruction 2), claim_differences (errors counted where caption and
    reference differ: ClaimDiff-RL), balanced (precision, recall and text quality: BalCapRL), random
    (scores drawn at random, a control), or the import path package.module:Class of another one
    (vcap_jax.reward.family)."""
    weights: RewardWeights = Field(default_factory=RewardWeights)
    """Used by witness_adjudicator and judge."""
    use_reference: bool = True
    """false asks the witness-adjudicator's judge without the witness ("- reference caption" in the
    paper)."""
    use_image: bool = True
    """false asks it without the picture or frames ("- reference image" in the paper)."""
    local: LocalConfig = Field(default_factory=LocalConfig)
    """Used by witness_adjudicator."""
    instructions: InstructionPaths = Field(default_factory=InstructionPaths)
    """Used by witness_adjudicator and judge."""
    imitation: ImitationConfig = Field(default_factory=ImitationConfig)
    vqa: VqaConfig = Field(default_factory=VqaConfig)
    claim_differences: ClaimDifferencesConfig = Field(default_factory=ClaimDifferencesConfig)
    balanced: BalancedConfig = Field(default_factory=BalancedConfig)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Settings for a family of the user's own."""

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
        if self.family in FAMILIES and self.family not in WEIGHTED and self._of_the_weighted:
            raise ValueError(
                f"{', '.join(self._of_the_weighted)}: this is for reward.family {' and '.join(WEIGHTED)}, and would do "
                f"nothing, as reward.family is {self.family}: leave it out, or set reward.family to one of these"
            )
        if not (self.use_reference or self.use_image):
            raise ValueError(
                "reward.use_reference and reward.use_image are both false: the judge would have nothing to "
                "judge by; leave one of them true"
            )

    @property
    def _of_the_weighted(self) -> list[str]:
        """What is set of the families whose rewards are weighted scores, by name and value."""
        given, usual = asdict(self.weights), asdict(RewardWeights())
        changed = [
            f"reward.weights.{name} {value:g}" for name, value in given.items() if value != usual[name]
        ]
        return changed if self.local.enabled else [*changed, "reward.local.enabled false"]

    @property
    def local_active(self) -> bool:
        """Whether videos get the local pass."""
        return self.local.enabled and self.weights.local > 0


def _addresses(urls: tuple[str, ...]) -> tuple[str, ...]:
    if not all(url.startswith(("http://", "https://")) for url in urls):
        raise ValueError("give addresses that begin with http:// or https://")
    try:
        different = {base_url(url) for url in urls}
        secret = any("@" in urlsplit(url).netloc for url in urls)
    except ValueError as error:  # a bracket that is not closed
        raise ValueError(f"an address cannot be read ({error})") from error
    if any(mark in url for url in urls for mark in "?#"):
        raise ValueError("an address ends with its path: leave out ? and # and what follows")
    if secret:
        raise ValueError(
            "an address holds a password, which messages would show: leave it out, and name the variable that "
            "holds the key in api_key_env"
        )
    if len(different) < len(urls):
        raise ValueError("an address is named twice")
    return urls


@settings
class JudgeConfig:
    """OpenAI-compatible chat endpoints that serve one judge model, and how to treat them."""

    urls: Annotated[tuple[str, ...], AfterValidator(_addresses)] = ()
    """Base addresses, e.g. [http://127.0.0.1:8000/v1, http://127.0.0.1:8001/v1]; a bare host gets
    /v1; with a path give it whole (http://HOST/PREFIX/v1). A group always goes to the same one as long
    as that one answers, so that its caches serve the group. Empty: whoever starts the run starts the
    embedded judge and fills it in."""
    model: str | None = None
    """null takes the only model that the servers list; all must have the same."""
    api_key_env: str | None = None
    """NAME of the environment variable that holds the key; the key itself never enters a
    configuration."""
    concurrency: int = Field(default=64, ge=1)
    """Requests in flight at once, to each endpoint."""
    deadline_s: float = Field(default=120.0, gt=0)
    """Seconds for one HTTP request from sending to the last byte; waiting for a free place is not
    counted."""
    max_tries: int = Field(default=4, ge=1)
    """Requests made for one judgement before it is a failure. Those lost to an endpoint that turned
    out to be down are not counted, nor those that are refused because too much is asked (429)."""
    max_tokens: int = Field(default=1024, ge=1)
    """Tokens of an answer at most; they must leave room for max_analysis_chars."""
    max_analysis_chars: int = Field(default=2000, ge=1)
    """Characters of the analysis in an answer at most."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the first try."""
    retry_temperature: float = Field(default=0.3, ge=0)
    """Sampling temperature after an unusable answer, because a model asked again in the same way at
    temperature 0 repeats itself."""
    backoff_s: float = Field(default=0.5, ge=0)
    """The wait before try k is about backoff_s * 2**(k - 2) seconds, jittered."""
    max_backoff_s: float = Field(default=20.0, ge=0)
    """Seconds of that wait at most."""
    max_retry_after_s: float = Field(default=120.0, ge=0)
    """A server that asks for a wait of more seconds than this is given up."""
    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    """How an answer gets its form: "json_schema" lets the server enforce the schema; "json_object"
    and "none" are for servers that cannot."""
    ready_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds to wait for the servers at the start of a run."""
    outage_timeout_s: float = Field(default=600.0, ge=0)
    """Seconds that questions wait in the middle of a run while no endpoint answers, or refuses all of
    them because too much is asked (429); after them the run ends, to be resumed. Where others are
    answered meanwhile, a question that is refused for so long is a failure."""
    breaker_failures: int = Field(default=5, ge=1)
    """After so many failed connections in a row an endpoint is left out until its /health and its
    model list answer again; so many timeouts or server errors in a row have its /health asked."""
    media_uuid: Literal["auto", "always", "never"] = "auto"
    """Send a picture or video once and name it by its content hash afterwards. "auto" does so where
    the server is vLLM. One that has lost it, or takes no names alone, gets it again."""
    lead_request: bool = True
    """Where media are kept so, a request for a single token goes ahead of each pass over a group:
    it carries the media, and all candidates find them and the prompt in the server's caches."""
    video_input: Literal["auto", "video", "frames"] = "auto"
    """How videos are sent: "video" as one video of JPEG frames with their indices, "frames" as
    pictures with a time before each, which costs twice the tokens and which any server understands.
    "auto" is video where the server is vLLM."""
    sleep_mode: bool = False
    """The servers compute on the policy's GPUs and take turns with it: they sleep until all captions of
    a step are drawn, wake up to judge them, and sleep again. Start them with serve.py --sleep-mode.
    Loopback only: whoever reaches the routes for it controls the server. For one process."""
    store: str | None = None
    """File (SQLite) that keeps every judgement, so that none is paid for twice; null: the run puts
    judgements.sqlite into its folder. Of several processes each has one: NAME, NAME-1, NAME-2 and
    so on."""

    def __post_init__(self) -> None:
        if self.sleep_mode and not (self.urls and all(map(on_loopback, self.urls))):
            raise ValueError(
                "judge.sleep_mode is for servers on the policy's own GPUs, which are woken up over routes without a "
                "password: name them in judge.urls as http://127.0.0.1:PORT, or set judge.sleep_mode=false"
            )


@settings
class SecondJudgeConfig:
    """Another judge, held out."""

    share: float = Field(default=0.05, gt=0, le=1)
    """Share of the captions that it is asked about as well. Of several processes the first asks, about
    its own captions, as many as that is of all."""
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    max_pending: int = Field(default=512, ge=1)
    """Captions that may wait for its answer; while so many do, further ones are passed over."""

    def of_one(self, processes: int) -> SecondJudgeConfig:
        """For the first of several processes, whose metrics are shown: it asks about its own captions, as many as all
        processes would of theirs."""
        return replace(self, share=min(1.0, self.share * processes))

    def __post_init__(self) -> None:
        if not self.judge.urls:
            raise ValueError(
                "second_judge.judge.urls is empty: give the address of another judge, or leave out second_judge"
            )
        if self.judge.sleep_mode:
            raise ValueError(
                "second_judge.judge.sleep_mode is true, and nobody waits for a second judge's turn: give it GPUs of "
                "its own, or leave out second_judge"
            )
