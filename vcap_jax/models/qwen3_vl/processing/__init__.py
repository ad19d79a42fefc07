"""Input processing of Qwen3-VL without torch: messages with pictures and videos -> padded prompt batches."""

from vcap_jax.models.qwen3_vl.processing.collate import Buckets, PaddedSizes, collate, padded_sizes
from vcap_jax.models.qwen3_vl.processing.errors import InputError, PromptTooLargeError
from vcap_jax.models.qwen3_vl.processing.processor import ImagePart, Processor, TextPart, VideoPart

__all__ = [
    "Buckets",
    "ImagePart",
    "InputError",
    "PaddedSizes",
    "Processor",
    "PromptTooLargeError",
    "TextPart",
    "VideoPart",
    "collate",
    "padded_sizes",
]
