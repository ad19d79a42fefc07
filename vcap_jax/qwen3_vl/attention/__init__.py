"""Who may see whom: the four attention patterns of the model, one function each."""

from vcap_jax.qwen3_vl.attention.decode import decode
from vcap_jax.qwen3_vl.attention.patterns import causal, frames, grouped

__all__ = ["causal", "decode", "frames", "grouped"]
