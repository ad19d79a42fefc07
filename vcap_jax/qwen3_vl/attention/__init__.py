"""Who may see whom: the four attention patterns of the model, and the kernels that compute them.

``causal``, ``grouped`` and ``frames`` work on whole sequences with a kernel of one's choice (``choose``);
``decode`` is the pattern of a generated token in plain XLA, which most kernels take for it.
"""

from vcap_jax.qwen3_vl.attention.choice import (
    NAMES,
    Dense,
    Name,
    choose,
    kernel,
    kernels_in,
    require_kernel,
)
from vcap_jax.qwen3_vl.attention.chunked import CHUNKED, Chunked
from vcap_jax.qwen3_vl.attention.cudnn import CuDNN
from vcap_jax.qwen3_vl.attention.decode import decode
from vcap_jax.qwen3_vl.attention.kernel import Cached, Kernel, UnsupportedAttention
from vcap_jax.qwen3_vl.attention.native import Native
from vcap_jax.qwen3_vl.attention.patterns import LOG_SUM_EXP, OUTPUT, causal, frames, grouped
from vcap_jax.qwen3_vl.attention.splash import Splash

__all__ = [
    "CHUNKED",
    "LOG_SUM_EXP",
    "NAMES",
    "OUTPUT",
    "Cached",
    "Chunked",
    "CuDNN",
    "Dense",
    "Kernel",
    "Name",
    "Native",
    "Splash",
    "UnsupportedAttention",
    "causal",
    "choose",
    "decode",
    "frames",
    "grouped",
    "kernel",
    "kernels_in",
    "require_kernel",
]
