"""How the parameters of Qwen3.5 are split over devices; see ``vcap_jax.parallel.sharding``."""

from __future__ import annotations

from vcap_jax.models.qwen3_vl import partition
from vcap_jax.parallel.sharding import Rule

RULES = (
    # A few numbers for each channel or head.
    Rule(r"\.(conv|log_rate|rate_bias)$"),
    # Every device of ``tensor`` has the whole memory of its groups' captions: its heads are not cut.
    Rule(r"\.(enter|leave)\.kernel$", fsdp=(-2, -1)),
    *partition.RULES,
)
