"""Settings of the vLLM rollout engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from vcap_jax.configuration import settings
from vcap_jax.system.loopback import on_loopback


def _loopback(url: str) -> str:
    """Raises ValueError unless ``url`` is http on this machine's loopback interface."""
    if not on_loopback(url):
        raise ValueError(
            "new weights are loaded over routes without a password and from files of this machine, so the address "
            "must be http://127.0.0.1:PORT"
        )
    return url


@settings
class VllmConfig:
    """The servers of the "vllm" engine, which draw captions, and what is done about their numerics."""

    urls: tuple[Annotated[str, AfterValidator(_loopback)], ...] = ()
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
    are probabilities under the sampling rules (grpo.sampled_logprobs)."""
    importance_level: Literal["token", "sequence"] = "token"
    """One weight per token ("token"), or per caption, the product over its tokens ("sequence")."""
