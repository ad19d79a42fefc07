"""A user message with pictures and videos -> one EncodedPrompt. No torch.

Equal to the public Qwen3-VL processor (transformers 5.23) on a single user message: token ids, grids and
positions exactly, pixels within two grey levels. The chat template wraps a video in vision_start/vision_end
and the public processor then puts a pair around each frame inside that; the outer pair stays, here as there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from vcap_jax.models.buckets import Buckets, PaddedSizes
from vcap_jax.models.errors import CheckpointError, InputError
from vcap_jax.models.family import VisualBudget
from vcap_jax.models.message import ImagePart, Part, TextPart, VideoPart
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PixelScale, PromptBatch
from vcap_jax.models.qwen3_vl.processing.chat_parts import picture_parts
from vcap_jax.models.qwen3_vl.processing.chat_template import (
    END_OF_TEXT,
    IM_END,
    IMAGE_PAD,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
)
from vcap_jax.models.qwen3_vl.processing.collate import collate, padded_sizes
from vcap_jax.models.qwen3_vl.processing.frames import pair_timestamps, timestamp_text
from vcap_jax.models.qwen3_vl.processing.pixels import image_patches, resize, video_patches, video_size
from vcap_jax.models.qwen3_vl.processing.positions import rope_positions
from vcap_jax.models.qwen3_vl.processing.public import transformers
from vcap_jax.models.qwen3_vl.processing.settings import (
    ImageSettings,
    VideoSettings,
    load_image_settings,
    load_video_settings,
    save_settings,
)
from vcap_jax.system.json_values import JsonObject, as_object, as_text, as_whole, read_json_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_THINKS = "<think>"
"""What the template of a Thinking checkpoint begins an answer with."""
_GENERATION = "generation_config.json"
_TOKENIZER = "tokenizer.json"
_TOKENIZER_IN_TWO = ("vocab.json", "merges.txt")
_AS_IT_IS = VisualBudget()
_VISUAL = (IMAGE_PAD, VIDEO_PAD, VISION_START, VISION_END)
_PLACEHOLDER = re.compile(f"{re.escape(IMAGE_PAD)}|{re.escape(VIDEO_PAD)}")


class Processor:
    """Tokenizer, chat template and pixel settings of one checkpoint.

    tokenizer: a transformers tokenizer; image, video: the settings in use (budgets applied).
    eos_token_ids: a caption ends with any of these; ``<|im_end|>`` is the first, whatever the checkpoint lists.
    banned_token_ids: special tokens a caption may never contain (placeholders, vision_start, im_start, ...):
        every special token of the tokenizer that does not end a caption.
    template_settings: what the chat template is given beside the message: a model that may think aloud is asked not to.
    """

    template_settings: JsonObject = MappingProxyType({"enable_thinking": False})
    resize = staticmethod(resize)
    padded_sizes = staticmethod(padded_sizes)

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        image: ImageSettings | None = None,
        video: VideoSettings | None = None,
        eos_token_ids: Sequence[int] | None = None,
    ) -> None:
        """Builds a processor around a tokenizer.

        eos_token_ids: beside ``<|im_end|>``; default ``<|endoftext|>`` and the tokenizer's own end token.
        Raises ValueError for a tokenizer without a visual token or a chat template, a template that has the model think
        aloud before it answers, and settings that disagree.
        """
        self.tokenizer = tokenizer
        self.image = image or ImageSettings()
        self.video = video or VideoSettings()
        for name in ("patch_size", "temporal_patch_size", "merge_size"):
            of_images, of_videos = getattr(self.image, name), getattr(self.video, name)
            if of_images != of_videos:
                raise CheckpointError(
                    f"{name} is {of_images} for images and {of_videos} for videos: "
                    "one vision tower takes one value; correct the preprocessor files"
                )
        if not tokenizer.chat_template:
            raise CheckpointError(
                "the tokenizer has no chat template: add chat_template.jinja to the checkpoint folder"
            )
        if self._asked([{"type": "text", "text": ""}]).rstrip().endswith(_THINKS):
            raise CheckpointError(
                f"the chat template lets the model think aloud first (a prompt ends in {_THINKS}), and its thoughts "
                "would be taken for the caption: take the Instruct checkpoint of this size"
            )
        self.image_token_id = self._token_id(IMAGE_PAD)
        self.video_token_id = self._token_id(VIDEO_PAD)
        self.vision_start_token_id = self._token_id(VISION_START)
        self.vision_end_token_id = self._token_id(VISION_END)
        if eos_token_ids is None:
            named = (tokenizer.convert_tokens_to_ids(END_OF_TEXT), tokenizer.eos_token_id)
            eos_token_ids = [i for i in named if i is not None]
        # What ends a turn of the chat comes first: that is learned, whatever a file lists, and in which order.
        turn = tokenizer.get_vocab().get(IM_END)
        known = eos_token_ids if turn is None else (turn, *eos_token_ids)
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(map(int, known)))
        if not self.eos_token_ids:
            raise CheckpointError(
                "no end token is known: set eos_token in the tokenizer or in generation_config.json"
            )
        special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        special |= {self._token_id(token): token for token in _VISUAL}
        self.banned_token_ids: tuple[int, ...] = tuple(sorted(special.keys() - set(self.eos_token_ids)))
        self._special = re.compile("|".join(map(re.escape, special.values())))
        pad = tokenizer.pad_token_id
        self.pad_token_id: int = int(pad if pad is not None else self.eos_token_ids[-1])

    @classmethod
    def from_pretrained(cls, path: str | Path, budget: VisualBudget = _AS_IT_IS) -> Processor:
        """Reads tokenizer, chat template, preprocessor files and end tokens of a checkpoint folder.

        budget: of the paper, images of 6,422,528 pixels and videos of 200 frames of 256 merged tokens, for which see
            ``VideoSettings.with_budget``. Frames or their tokens alone keep the checkpoint's value of the other.
        Raises FileNotFoundError without such a folder, ValueError if something in it does not fit together.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{folder} is not a folder: give a local checkpoint in Hugging Face format"
            )
        _check_tokenizer_files(folder)
        try:
            tokenizer = transformers().AutoTokenizer.from_pretrained(str(folder))
        except Exception as error:  # whatever the library makes of files that are missing or damaged
            raise CheckpointError(
                f"{folder}: its tokenizer cannot be read ({str(error).strip().splitlines()[0]}); restore "
                "tokenizer.json and tokenizer_config.json from the checkpoint"
            ) from error
        tokenizer.chat_template = _chat_template(folder) or tokenizer.chat_template
        image, video = load_image_settings(folder), load_video_settings(folder)
        if (most := budget.max_pixels) is not None:
            image = replace(image, max_pixels=most, min_pixels=min(image.min_pixels, most))
        if budget.fps is not None:
            video = replace(video, fps=budget.fps)
        if (tokens := budget.max_frame_tokens) is not None:
            video = video.with_budget(
                max_frames=budget.max_frames or video.max_frames, max_frame_tokens=tokens
            )
        elif (most := budget.max_frames) is not None:
            video = replace(video, max_frames=most, min_frames=min(video.min_frames, most))
        processor = cls(tokenizer, image=image, video=video, eos_token_ids=_generation_eos(folder))
        processor._check_model_config(folder)
        return processor

    def save_pretrained(self, path: str | Path) -> None:
        """Writes tokenizer, chat template and preprocessor files; the public ``AutoProcessor`` loads them."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(str(folder))
        save_settings(folder, self.image, self.video)

    def collate(
        self,
        prompts: Sequence[EncodedPrompt],
        buckets: Buckets,
        *,
        batch_size: int | None = None,
        names: Sequence[str] | None = None,
        sizes: PaddedSizes | None = None,
    ) -> PromptBatch:
        """See ``collate.collate``."""
        return collate(prompts, buckets, self.merge_size, batch_size=batch_size, names=names, sizes=sizes)

    def picture_parts(self, prompt: EncodedPrompt) -> tuple[list[JsonObject], JsonObject | None]:
        """See ``chat_parts.picture_parts``."""
        return picture_parts(prompt, self.image, self.tokenizer, self.image_token_id, self.video_token_id)

    @property
    def merge_size(self) -> int:
        return self.image.merge_size

    def video_frame_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """See ``pixels.video_size``."""
        return video_size(frames, height, width, self.video)

    def encode(self, content: Sequence[Part]) -> EncodedPrompt:
        """One user message, and the assistant's turn opened.

        content: its parts in order.
        Raises InputError if a picture or video cannot be used, a text contains a special token of the tokenizer, or
        images and videos of one message are normalised differently, ValueError if timestamps do not match frames, or
        the chat template loses a part.
        """
        message: list[dict[str, str]] = []
        frames: list[np.ndarray] = []
        grids: list[tuple[int, int]] = []
        expansions: list[str] = []
        scales: set[PixelScale] = set()
        for part in content:
            if isinstance(part, TextPart):
                message.append(self._text(part.text))
            elif isinstance(part, ImagePart):
                patches, grid = image_patches(part.image, self.image)
                message.append({"type": "image"})
                frames.append(patches)
                grids.append(grid)
                scales.add(self.image.scale)
                expansions.append(IMAGE_PAD)
            elif isinstance(part, VideoPart):
                pairs, grid = video_patches(part.frames, self.video, resized=part.resized)
                message.append({"type": "video"})
                frames.extend(pairs)
                grids.extend([grid] * len(pairs))
                scales.add(self.video.scale)
                expansions.append(self._video_text(part))
            else:
                raise TypeError(f"{type(part).__name__} is no TextPart, ImagePart or VideoPart")
        if len(scales) > 1:
            raise InputError(
                "the preprocessor files normalise images and videos differently, so one prompt cannot hold both: "
                "leave one kind out, or give both the same mean, std and rescale_factor"
            )
        text = self._asked(message)
        tokens = self._tokenize(text, expansions, grids)
        visual_ids = (self.image_token_id, self.video_token_id)
        grid_array = np.asarray(grids, np.int32).reshape(-1, 2)
        positions = rope_positions(
            tokens, grid_array, visual_token_ids=visual_ids, merge_size=self.merge_size
        )
        return EncodedPrompt(
            tokens=tokens,
            positions=positions,
            frames=tuple(frames),
            grids=grid_array,
            is_visual=np.isin(tokens, visual_ids),
            scale=scales.pop() if scales else PixelScale(),
        )

    def suffix(self, text: str) -> np.ndarray:
        """See ``vcap_jax.models.family.Processor``."""
        whole = self._asked([{"type": "image"}, self._text(text)])
        # A special token divides the text before it is tokenized, so what follows has tokens of its own.
        after = whole.rpartition(VISION_END)[2]
        return np.asarray(self.tokenizer(after, add_special_tokens=False)["input_ids"], np.int32)

    def without_suffix(self, prompt: EncodedPrompt, suffix: np.ndarray) -> EncodedPrompt:
        """See ``vcap_jax.models.family.Processor``. Raises ValueError for a chat template that ends a message otherwise
        after other pictures."""
        end = len(prompt.tokens) - len(suffix)
        if not np.array_equal(prompt.tokens[end:], suffix):
            raise ValueError(
                "the chat template does not end prompts alike: several questions about a picture need one that does"
            )
        return replace(
            prompt,
            tokens=prompt.tokens[:end],
            positions=prompt.positions[:, :end],
            is_visual=prompt.is_visual[:end],
        )

    def _text(self, text: str) -> dict[str, str]:
        """A message's part."""
        if found := self._special.search(text):
            raise InputError(
                f"the prompt text contains {found.group()}, which is no text to the model: it would end the "
                "turn, or stand for a picture. Remove it"
            )
        return {"type": "text", "text": text}

    def _asked(self, message: list[dict[str, str]]) -> str:
        """A user's message through the chat template, answered without thinking aloud where the model may."""
        try:
            return self.tokenizer.apply_chat_template(
                [{"role": "user", "content": message}],
                tokenize=False,
                add_generation_prompt=True,
                **self.template_settings,
            )
        except Exception as error:  # a template is a program: one for text alone adds a list to a string
            raise CheckpointError(
                f"the chat template fails on a message of texts and pictures ({error}): restore the checkpoint's own "
                "(processor_config.json, chat_template.json or chat_template.jinja)"
            ) from error

    def _video_text(self, part: VideoPart) -> str:
        if len(part.timestamps) != len(part.frames):
            raise ValueError(
                f"a video of {len(part.frames)} frames has {len(part.timestamps)} timestamps: give as many"
            )
        times = pair_timestamps(part.timestamps, self.video.temporal_patch_size)
        return "".join(f"{timestamp_text(t)}{VISION_START}{VIDEO_PAD}{VISION_END}" for t in times)

    def _tokenize(self, text: str, expansions: Sequence[str], grids: Sequence[tuple[int, int]]) -> np.ndarray:
        """[P] int32. Tokenized with one placeholder per frame, which is then repeated: special tokens split
        the text before tokenization, so this equals tokenizing the long text."""
        found = _PLACEHOLDER.findall(text)
        if len(found) != len(expansions):
            raise CheckpointError(
                f"the chat template made {len(found)} placeholders of {len(expansions)} pictures and videos: restore "
                "the checkpoint's own (processor_config.json, chat_template.json or chat_template.jinja)"
            )
        pieces = iter(expansions)
        expanded = _PLACEHOLDER.sub(lambda _: next(pieces), text)
        tokens = np.asarray(self.tokenizer(expanded)["input_ids"], np.int32)
        visual = np.isin(tokens, (self.image_token_id, self.video_token_id))
        repeats = np.ones(len(tokens), np.int64)
        merged = self.merge_size**2
        repeats[visual] = [rows * columns // merged for rows, columns in grids]
        return np.repeat(tokens, repeats)

    def _token_id(self, token: str) -> int:
        index = self.tokenizer.get_vocab().get(token)
        if index is None:
            raise CheckpointError(f"the tokenizer has no token {token}: is this a Qwen3-VL checkpoint?")
        return int(index)

    def _check_model_config(self, folder: Path) -> None:
        """A tokenizer or preprocessor file of another model would otherwise give wrong results without a
        word."""
        path = folder / "config.json"
        if not path.exists():
            return
        config = read_json_object(path)
        vision = as_object(config.get("vision_config", {}), f"{path}: vision_config")
        expected = {
            "image_token_id": (config.get("image_token_id"), self.image_token_id),
            "video_token_id": (config.get("video_token_id"), self.video_token_id),
            "patch_size": (vision.get("patch_size"), self.image.patch_size),
            "temporal_patch_size": (vision.get("temporal_patch_size"), self.image.temporal_patch_size),
            "spatial_merge_size": (vision.get("spatial_merge_size"), self.merge_size),
        }
        wrong = [f"{k} {a} and {b}" for k, (a, b) in expected.items() if a is not None and a != b]
        if wrong:
            raise CheckpointError(
                f"{path} and the tokenizer or preprocessor files disagree: {', '.join(wrong)}; restore this "
                "checkpoint's own"
            )
        text = as_object(config.get("text_config", {}), f"{path}: text_config")
        rows, tokens = text.get("vocab_size"), len(self.tokenizer)
        if isinstance(rows, int) and tokens > rows:
            raise CheckpointError(
                f"{path}: text_config.vocab_size is {rows}, but the tokenizer has {tokens} tokens, and the model would "
                "read the last ones as others: restore this checkpoint's own tokenizer, or resize the embeddings"
            )
        if isinstance(rows, int) and (none := [i for i in self.eos_token_ids if not 0 <= i < rows]):
            raise CheckpointError(
                f"{folder / _GENERATION}: eos_token_id names {none}, but text_config.vocab_size is {rows}, and no "
                "caption could end so: restore the file from the checkpoint"
            )


def _check_tokenizer_files(folder: Path) -> None:
    """Without them the library makes an almost empty tokenizer, and says nothing."""
    other = [name for name in _TOKENIZER_IN_TWO if not (folder / name).is_file()]
    if other and not (folder / _TOKENIZER).is_file():
        raise CheckpointError(
            f"{folder} has no tokenizer: copy {_TOKENIZER} (or {' and '.join(other)}) into it from the checkpoint"
        )


def _chat_template(folder: Path) -> str | None:
    """The processor's own, which the public class takes before the tokenizer's, wherever it stands."""
    for name in ("processor_config.json", "chat_template.json"):
        path = folder / name
        if path.exists() and (template := read_json_object(path).get("chat_template")) is not None:
            return as_text(template, f"{path}: chat_template")
    path = folder / "chat_template.jinja"
    return path.read_text(encoding="utf-8") if path.exists() else None


def _generation_eos(folder: Path) -> list[int] | None:
    path = folder / _GENERATION
    if not path.exists():
        return None
    value = read_json_object(path).get("eos_token_id")
    if value is None:
        return None
    return [as_whole(i, f"{path}: eos_token_id") for i in (value if isinstance(value, list) else [value])]
