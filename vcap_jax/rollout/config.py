"""Settings of the rollout: how captions are drawn, and of the servers that draw them with the engine "vllm"."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from vcap_jax.configuration import settings
from vcap_jax.models.widths import columns_for
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.system.loopback import on_loopback

Offloaded = Literal["optimizer", "reference", "parameters"]


def _each_once(names: tuple[Offloaded, ...]) -> tuple[Offloaded, ...]:
    if len(set(names)) < len(names):
        raise ValueError("name each once")
    return names


def _loopback(url: str) -> str:
    """Raises ValueError unless ``url`` is http on this machine's loopback interface, and nothing more."""
    if not on_loopback(url):
        raise ValueError(
            "new weights are loaded over routes without a password and from files of this machine, so the address "
            "must be http://127.0.0.1:PORT"
        )
    parts = urlsplit(url)
    if parts.path.strip("/") or "@" in parts.netloc or "?" in url or "#" in url:
        raise ValueError(
            "the address must be http://127.0.0.1:PORT alone: without /v1 or another path, a user, ? or #"
        )
    return url


def _addresses(urls: tuple[str, ...]) -> tuple[str, ...]:
    if len({url.rstrip("/") for url in urls}) < len(urls):
        raise ValueError("an address is named twice")
    return urls


@settings
class VllmConfig:
    """The servers of the "vllm" engine, which draw captions, and what is done about their numerics."""

    urls: Annotated[tuple[Annotated[str, AfterValidator(_loopback)], ...], AfterValidator(_addresses)] = ()
    """Base addresses, like http://127.0.0.1:8100. Groups go to them in turn. Loopback only: new
    weights are loaded over routes that know no password."""
    weights_dir: str = "/dev/shm"
    """Where a folder is made for each step's weights, which the servers read; memory-backed, so
    that no disk is waited for. The folder is this user's alone, so the servers must run under the
    same user."""
    concurrency: int = Field(default=64, ge=1)
    """Groups under way at the same time, over all servers."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds for one group, from sending it to its last caption."""
    attempts: int = Field(default=3, ge=1)
    """How often a group is sent before the run ends, if its server is lost or overloaded."""
    load_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for one server to read new weights."""
    outage_timeout_s: float = Field(default=600.0, ge=0)
    """Seconds that a server is waited for that is still starting, or is lost in the middle of a step.
    When it is back it is given the weights again, and the groups that it owes are sent once more.
    After them the run ends, to be resumed."""
    sleep_mode: bool = False
    """The servers compute on the policy's GPUs and take turns with it: they sleep whenever no captions
    are drawn, and wake up to be given the weights and to draw. Start them with
    launch/serve_rollout.py --sleep-mode. For one process."""
    importance_cap: float = Field(default=2.0, ge=1, allow_inf_nan=True)
    """Upper bound C of the weights min(p_trainer / p_server, C) that correct for the mismatch; p
    are probabilities under the sampling rules (grpo.sampled_logprobs). .inf cuts none."""
    importance_level: Literal["token", "sequence"] = "token"
    """One weight per token ("token"), or per caption, the product over its tokens ("sequence"), without
    those that only the server's rules allow. With "token", a caption of which
    grpo.objective.importance makes one ratio counts by the mean of its tokens' weights."""


@settings
class RolloutConfig:
    """How a step's captions are drawn (paper, Table training-config)."""

    group_size: int = Field(default=8, ge=1)
    """Captions per prompt, the paper's G."""
    max_completion_length: int = Field(default=4096, ge=1)
    """Tokens per caption at most, the end token included."""
    groups_per_batch: int = Field(default=4, ge=1)
    """Groups decoded side by side, of all processes together, whatever the update's micro-batch; a
    group that is complete makes room for the next."""
    short_groups: int = Field(default=0, ge=0)
    """Groups decoded side by side, of all processes together, while their captions have at most
    rollout.short_length tokens, in caches that hold no more. A group with a longer caption waits in
    the host's memory until all others of its step have ended, and goes on with
    rollout.groups_per_batch at a time. 0: all caches hold captions of any length from the start."""
    short_length: int = Field(default=0, ge=0)
    """Tokens of a caption that the caches of rollout.short_groups hold: what few captions outgrow. 0
    where that is 0."""
    single_groups: int = Field(default=0, ge=0)
    """Groups decoded side by side, of all processes together, where one caption of each is drawn:
    references, held-out samples. They take less memory than the groups of a step, so more fit. 0: as
    rollout.groups_per_batch and rollout.short_groups say."""
    decode_steps_per_call: int = Field(default=64, ge=1)
    """Tokens decoded per device call; the host looks for finished groups in between."""
    prefill_chunk: int = Field(default=16_384, ge=1)
    """Tokens of prompts computed at a time: a longer prompt is prefilled in chunks, shorter ones
    together."""
    shrink: int = Field(default=2, ge=1)
    """As captions end, slots, captions per slot and cache columns shrink to this fraction, again
    and again (2: halves), each size a program of its own; 1 keeps one size. Where data.buckets
    allows few sizes of prompts, training compiles all of these programs before its first step;
    otherwise each when it is first needed."""
    shrink_rows: int = Field(default=1, ge=1)
    """Captions decoded side by side below which slots and captions shrink no more."""
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    engine: Literal["jax", "vllm"] = "jax"
    """Who draws captions, those that are trained on, references and held-out ones: "jax" (this
    package's sampler) or "vllm" (servers that are given the weights of every step)."""
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    ahead: int = Field(default=0, ge=0, le=1)
    """Steps that captions are drawn ahead. With 1 the next step's captions are drawn while the judge
    works on this one's, so with weights that are one update behind; the clipped ratio takes their
    log-probabilities. For one process and the JAX sampler. 0 draws each step with the newest weights."""
    offload: Annotated[tuple[Offloaded, ...], AfterValidator(_each_once)] = ()
    """What waits in the host's memory while captions are drawn, so that more groups fit: "optimizer"
    (the moments), "reference" (the reference policy), "parameters" (those that are trained;
    captions are drawn with a copy). Nothing else changes. Takes a GPU, a TPU or a CPU, the JAX
    sampler or servers that take turns with the policy (rollout.vllm.sleep_mode), and the memory
    that the plan tells."""

    def __post_init__(self) -> None:
        self._check_short()
        if self.engine == "vllm" and not self.vllm.urls:
            raise ValueError(
                "rollout.engine is vllm but rollout.vllm.urls is empty; start a server with "
                "launch/serve_rollout.py and give its address"
            )
        if self.engine == "vllm" and self.ahead:
            raise ValueError(
                "rollout.ahead is for the JAX sampler, and rollout.engine is vllm: its importance weights compare the "
                "server with the weights of the update, which are not those that drew. Set rollout.ahead=0"
            )
        if self.engine == "vllm" and self.offload and not self.vllm.sleep_mode:
            raise ValueError(
                f"rollout.offload is {list(self.offload)}, which makes room for the captions that are drawn on the "
                "policy's devices, and rollout.engine is vllm, which draws on its own. Set rollout.offload=[], or "
                "rollout.vllm.sleep_mode=true if the servers take turns on the policy's devices"
            )

    def _check_short(self) -> None:
        short, length = self.short_groups, self.short_length
        if bool(short) != bool(length):
            raise ValueError(
                f"rollout.short_groups is {short} and rollout.short_length is {length}: set both, or neither"
            )
        if short and short <= self.groups_per_batch:
            raise ValueError(
                f"rollout.short_groups is {short}, no more than rollout.groups_per_batch, {self.groups_per_batch}: "
                "leave it at 0, or set it to as many groups as fit with short caches"
            )
        if length and columns_for(length) >= columns_for(self.max_completion_length):
            raise ValueError(
                f"rollout.short_length is {length}, with as many columns as rollout.max_completion_length, "
                f"{self.max_completion_length}: set what most captions stay below"
            )

    @property
    def chunk(self) -> int:
        """Tokens of a decode call, no more than a caption may have."""
        return min(self.decode_steps_per_call, self.max_completion_length)

    def limited_to(self, tokens: int) -> RolloutConfig:
        """For captions of at most so many tokens; without short caches that would hold as many."""
        if self.short_length and columns_for(self.short_length) >= columns_for(tokens):
            return replace(self, max_completion_length=tokens, short_groups=0, short_length=0)
        return replace(self, max_completion_length=tokens)

    def share(self, processes: int) -> RolloutConfig:
        """What one of so many processes decodes side by side: an equal part of ``groups_per_batch`` and
        ``short_groups``, at least one; of single captions an equal part of ``single_groups``, if there are any."""
        if self.group_size == 1 and self.single_groups:
            part = max(1, self.single_groups // processes)
            return replace(self, groups_per_batch=part, short_groups=0, short_length=0)
        part = max(1, self.groups_per_batch // processes)
        short = self.short_groups // processes
        if short <= part:  # no room is gained
            return replace(self, groups_per_batch=part, short_groups=0, short_length=0)
        return replace(self, groups_per_batch=part, short_groups=short)
