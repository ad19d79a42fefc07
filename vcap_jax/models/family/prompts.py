"""The input side: pictures and words become prompts, prompts a padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, final, runtime_checkable

import numpy as np
from typing_extensions import TypeVar

from vcap_jax.models.buckets import Buckets, PaddedSizes
from vcap_jax.models.message import Part
from vcap_jax.parallel.arrays import AnyArray
from vcap_jax.system.json_values import JsonObject


@final
class Vision:
    """The pictures of a batch of prompts, as ``CaptionModel.encode_vision`` takes them."""


VisionT_co = TypeVar("VisionT_co", default=Vision, covariant=True)


@dataclass(frozen=True, kw_only=True)
class VisualBudget:
    """What replaces a checkpoint's own limits on pictures; None keeps the checkpoint's.

    max_pixels: height x width of an image. max_frames, max_frame_tokens: of a video. fps: frames sampled per second.
    """

    max_pixels: int | None = None
    max_frames: int | None = None
    max_frame_tokens: int | None = None
    fps: float | None = None


class EncodedPrompt(Protocol):
    """One prompt on the host, unpadded."""

    @property
    def tokens(self) -> np.ndarray:
        """[P] int32, places of visual features included."""
        ...


class PromptBatch(Protocol[VisionT_co]):
    """B prompts, padded alike: a pytree with groups on the first axis, NumPy on the host or on the devices."""

    @property
    def tokens(self) -> AnyArray:
        """[B, P] int32."""
        ...

    @property
    def lengths(self) -> AnyArray:
        """[B] int32, real tokens of each prompt; 0 marks a padding group."""
        ...

    @property
    def vision(self) -> VisionT_co | None:
        """The pictures; None for text only."""
        ...

    def without_vision(self) -> Self:
        """The same prompts once their pictures have been looked at."""
        ...


class FrameSampling(Protocol):
    """Which frames of a video are looked at."""

    def sample_indices(self, total_frames: int, source_fps: float) -> np.ndarray:
        """Indices of the frames, int64 [n], increasing. Raises InputError for a video of no frames or no rate."""
        ...


class Tokenizer(Protocol):
    """What is asked of a tokenizer of the ``transformers`` package."""

    def decode(self, token_ids: Sequence[int] | np.ndarray, *, skip_special_tokens: bool) -> str: ...

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Sequence[int]]:
        """The token ids of a text, under "input_ids"."""
        ...


EncodedT = TypeVar("EncodedT", bound=EncodedPrompt, default=EncodedPrompt)
BatchT_co = TypeVar("BatchT_co", bound=PromptBatch[object], default=PromptBatch, covariant=True)


class Processor(Protocol[EncodedT, BatchT_co]):
    """The input side of one checkpoint: tokenizer, chat template and pixels."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """A caption ends with any of these; the first is the one that is learned. Not empty."""
        ...

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Tokens that a caption may never contain."""
        ...

    @property
    def pad_token_id(self) -> int: ...

    @property
    def video(self) -> FrameSampling: ...

    def encode(self, content: Sequence[Part]) -> EncodedT:
        """One user message and the opening of the answer. Raises InputError for what cannot become a prompt."""
        ...

    def suffix(self, text: str) -> np.ndarray:
        """[S] int32, how ``encode`` ends for a text that follows pictures: what stands behind the last of them. Raises
        InputError."""
        ...

    def without_suffix(self, prompt: EncodedT, suffix: np.ndarray) -> EncodedT:
        """A prompt that ends with the suffix of its text, without it."""
        ...

    def video_frame_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """Height and width to which that many frames of that size are brought. Raises InputError."""
        ...

    def resize(self, picture: np.ndarray, height: int, width: int) -> np.ndarray:
        """A uint8 [H, W, 3] frame as uint8 [height, width, 3]."""
        ...

    def padded_sizes(
        self, prompts: Sequence[EncodedT], buckets: Buckets, names: Sequence[str] | None = None
    ) -> PaddedSizes:
        """The smallest buckets that hold all prompts. names: what to call each in an error.

        Raises PromptTooLargeError for one beyond the largest bucket, by name.
        """
        ...

    def collate(
        self,
        prompts: Sequence[EncodedT],
        buckets: Buckets,
        *,
        batch_size: int | None = None,
        names: Sequence[str] | None = None,
        sizes: PaddedSizes | None = None,
    ) -> BatchT_co:
        """Pads encoded prompts to the smallest buckets that hold them all, or to ``sizes``, which must.

        batch_size: B; missing rows become padding groups (default: none). names: of the prompts, for errors.
        Raises PromptTooLargeError, and ValueError for prompts that cannot share a batch.
        """
        ...

    def save_pretrained(self, path: str | Path) -> None:
        """Writes tokenizer, chat template and preprocessor files into a folder."""
        ...


@runtime_checkable
class VllmProcessor(Processor[EncodedT, BatchT_co], Protocol[EncodedT, BatchT_co]):
    """The input side of a family that vLLM serves.

    template_settings: what a prompt's chat template is given beside the message, ``chat_template_kwargs`` of a request.
    """

    template_settings: JsonObject

    def picture_parts(self, prompt: EncodedT) -> tuple[list[JsonObject], JsonObject | None]:
        """The pictures of an encoded prompt as content parts of a chat request to vLLM, and the request's
        ``media_io_kwargs`` (None without). Raises InputError for a prompt that cannot be sent so."""
        ...
