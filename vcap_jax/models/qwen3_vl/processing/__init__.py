"""Input processing of Qwen3-VL without torch: messages with pictures and videos -> padded prompt batches."""

from vcap_jax.models.qwen3_vl.processing.collate import collate, padded_sizes
from vcap_jax.models.qwen3_vl.processing.processor import Processor

__all__ = ["Processor", "collate", "padded_sizes"]
