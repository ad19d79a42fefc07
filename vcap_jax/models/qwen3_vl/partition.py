"""How the parameters of Qwen3-VL are split over devices; see ``vcap_jax.parallel.sharding``."""

from __future__ import annotations

from vcap_jax.parallel.sharding import Rule

RULES = (
    # Norms, biases: a few thousand numbers, needed whole by every device.
    Rule(r"(^|\.)(scale|bias)$"),
    # Rows are looked up by token: cutting the width keeps a look-up on the device that asks.
    Rule(r"(^|\.)(embed_tokens|lm_head)$", tensor=-2, fsdp=(-1, -2)),
    # Outputs of these are heads or hidden units, which the products below take in again.
    Rule(r"\.(qkv|gate_up|fc1)\.kernel$", tensor=-1, fsdp=(-2, -1)),
    Rule(r"\.(out|down|proj|fc2)\.kernel$", tensor=-2, fsdp=(-1, -2)),
    Rule(r"\.(kernel|pos_embed)$", fsdp=(-1, -2)),
    # Adapters are cut where the matrices they add to are; the halves without such an axis by no rule of their own.
    Rule(r"\.(qkv|gate_up)\.adapter\.b$", tensor=-1, fsdp=(-1, -2)),
    Rule(r"\.(out|down)\.adapter\.a$", tensor=-2, fsdp=(-2, -1)),
)
