"""Settings of the vLLM rollout engine."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit


@dataclass(frozen=True, kw_only=True)
class VllmConfig:
    """The servers of the "vllm" engine, which draw captions, and what is done about their numerics.

    urls: base addresses, like http://127.0.0.1:8100. Groups go to them in turn. Loopback only: new weights are
        loaded over routes that know no password.
    weights_dir: where a folder is made for each step's weights, which the servers read; memory-backed, so that no disk
        is waited for. The folder is this user's alone, so the servers must run under the same user.
    concurrency: groups under way at the same time, over all servers.
    timeout_s: for one group, from sending it to its last caption.
    attempts: how often a group is sent before the run ends, if the connection breaks or the server is overloaded.
    load_timeout_s: for one server to read new weights.
    importance_cap: upper bound C of the weights min(p_trainer / p_server, C) that correct for the mismatch; p are
        probabilities under the sampling rules (``grpo.sampled_logprobs``).
    importance_level: a weight per token, or one per caption, the product over its tokens.
    """

    urls: tuple[str, ...] = ()
    weights_dir: str = "/dev/shm"
    concurrency: int = 64
    timeout_s: float = 600.0
    attempts: int = 3
    load_timeout_s: float = 300.0
    importance_cap: float = 2.0
    importance_level: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        for url in self.urls:
            _require_loopback(url)
        for name in ("concurrency", "attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"rollout.vllm.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("timeout_s", "load_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"rollout.vllm.{name} is {getattr(self, name)}; it must be positive and finite"
                )
        if not self.importance_cap >= 1:
            raise ValueError(
                f"rollout.vllm.importance_cap is {self.importance_cap}; it must be at least 1, the weight of a "
                "token whose two probabilities agree"
            )
        if self.importance_level not in ("token", "sequence"):
            raise ValueError(
                f"rollout.vllm.importance_level is {self.importance_level!r}; it must be token or sequence"
            )


def _require_loopback(url: str) -> None:
    """Raises ValueError unless ``url`` is http on this machine's loopback interface."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if parts.scheme != "http" or not local:
        raise ValueError(
            f"rollout.vllm.urls names {url}: new weights are loaded over routes without a password and from files "
            "of this machine, so the address must be http://127.0.0.1:PORT"
        )
