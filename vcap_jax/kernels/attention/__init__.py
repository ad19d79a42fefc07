"""Who may see whom: the four attention patterns of the model, and the kernels that compute them.

``causal``, ``grouped`` and ``frames`` work on whole sequences with a kernel of one's choice (``choose``);
``decode`` is the pattern of a generated token in plain XLA; ``hopper`` and ``tpu_decode`` are kernels for it
(``choose_decoding``).
"""

from vcap_jax.kernels.attention.backends import (
    HOPPER,
    OWN,
    OWN_DECODING,
    DecodingName,
    Dense,
    Name,
    Paired,
    check_tensor,
    choose,
    choose_decoding,
    kernel,
    kernels_in,
    require_decoding,
    require_kernel,
)
from vcap_jax.kernels.attention.chunked import CHUNKED, Chunked
from vcap_jax.kernels.attention.cudnn import CuDNN
from vcap_jax.kernels.attention.decode import decode, rows_of
from vcap_jax.kernels.attention.hopper import Hopper
from vcap_jax.kernels.attention.kernel import Cached, Kernel, Seen, TokenKernel, UnsupportedAttention
from vcap_jax.kernels.attention.native import Native
from vcap_jax.kernels.attention.per_device import head_parts
from vcap_jax.kernels.attention.shared_prefix import causal, frames, grouped
from vcap_jax.kernels.attention.splash import Splash
from vcap_jax.kernels.attention.tpu_decode import TpuDecode

__all__ = [
    "CHUNKED",
    "HOPPER",
    "OWN",
    "OWN_DECODING",
    "Cached",
    "Chunked",
    "CuDNN",
    "DecodingName",
    "Dense",
    "Hopper",
    "Kernel",
    "Name",
    "Native",
    "Paired",
    "Seen",
    "Splash",
    "TokenKernel",
    "TpuDecode",
    "UnsupportedAttention",
    "causal",
    "check_tensor",
    "choose",
    "choose_decoding",
    "decode",
    "frames",
    "grouped",
    "head_parts",
    "kernel",
    "kernels_in",
    "require_decoding",
    "require_kernel",
    "rows_of",
]
