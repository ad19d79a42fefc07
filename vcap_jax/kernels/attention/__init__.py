"""Who may see whom: the four attention patterns of the model, and the kernels that compute them.

``causal``, ``grouped`` and ``frames`` work on whole sequences with a kernel of one's choice (``choose``);
``decode`` is the pattern of a generated token in plain XLA, which most kernels take for it.
"""

from vcap_jax.kernels.attention.backends import (
    NAMES,
    OWN,
    Dense,
    Name,
    choose,
    kernel,
    kernels_in,
    require_kernel,
)
from vcap_jax.kernels.attention.chunked import CHUNKED, Chunked
from vcap_jax.kernels.attention.cudnn import CuDNN
from vcap_jax.kernels.attention.decode import decode
from vcap_jax.kernels.attention.kernel import Cached, Kernel, UnsupportedAttention
from vcap_jax.kernels.attention.native import Native
from vcap_jax.kernels.attention.shared_prefix import LOG_SUM_EXP, OUTPUT, causal, frames, grouped
from vcap_jax.kernels.attention.splash import Splash

__all__ = [
    "CHUNKED",
    "LOG_SUM_EXP",
    "NAMES",
    "OUTPUT",
    "OWN",
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
