"""What can be asked of the vLLM judge, and how many tokens and bytes that needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_judge.addresses import require_key_variable
from vcap_jax.system.errors import VCapError
from vcap_jax.system.loopback import is_loopback

Modality = Literal["image", "video", "both"]

_CAPTION_TOKENS = {"image": 4096, "video": 6300}
"""The paper's completion lengths, "Training configuration"; the reference may be as long as the candidate."""
INSTRUCTION_TOKENS = 1024
"""Instruction, delimiters and chat layout; the packaged instructions have about 600 of Qwen's tokens."""
_ANSWER_TOKENS = 1024
"""The trainer's ``judge.max_tokens``."""
FRAME_MARK_TOKENS = 12
"""``<123.4 seconds>`` and the two vision marks around a merged pair of frames."""
_LENGTH_MULTIPLE = 1024
_COUNTS = (
    *("tensor_parallel_size", "image_pixels", "video_frames", "frame_tokens", "max_queued"),
    *("images_per_prompt", "cpu_cache_gb", "drain_s", "max_model_len"),
)


class SettingsError(VCapError, ValueError):
    """A setting that cannot be served; the message names the option and the remedy."""


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """One judge: a checkpoint on one or more GPUs, as independent servers.

    The options of ``serve.py`` (``options``) say what each setting is. Beyond that:

    model_name: None takes the folder's name. modality: decides context length, media limits, pixel budgets and cache
    size. gpus: None serves on the CPU (a trial with a small model). port: the first server's; the others follow.
    max_model_len: None takes what the modality needs (:meth:`context_tokens`). images_per_prompt: frames of a video
    that are sent as pictures are not counted. video_frames, frame_tokens: a video's budget is that many frames of that
    many visual tokens, all together. sleep_mode: a server that sleeps leaves the GPU to others; on the CPU, where vLLM
    has no such mode, it keeps its memory.
    """

    model: Path
    model_name: str | None = None
    modality: Modality = "image"
    gpus: tuple[int, ...] | None
    tensor_parallel_size: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    api_key_env: str | None = None
    quantization: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    image_pixels: int = 6_422_528
    images_per_prompt: int = 8
    video_frames: int = 200
    frame_tokens: int = 256
    media_cache_gb: float | None = None
    max_queued: int = 256
    gpu_memory_utilization: float = 0.9
    cpu_cache_gb: int = 2
    seed: int = 0
    sleep_mode: bool = False
    drain_s: int = 60
    vllm: Path | None = None
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_key_variable(self.host, self.api_key_env)
        for name in _COUNTS:
            count = getattr(self, name)
            if count is not None and count < 1:
                raise SettingsError(f"--{name.replace('_', '-')} is {count}: give at least 1")
        if not 0 <= self.port <= 65535 - self.server_count + 1:
            raise SettingsError(
                f"--port is {self.port}: the {self.server_count} ports from there do not exist"
            )
        if not 0 < self.gpu_memory_utilization < 1:
            raise SettingsError(
                f"--gpu-memory-utilization is {self.gpu_memory_utilization}: give a share between 0 and 1"
            )
        if self.media_cache_gb is not None and not self.media_cache_gb > 0:
            raise SettingsError(
                f"--media-cache-gb is {self.media_cache_gb}: give GiB above 0; without a cache every candidate of a "
                "group would send and preprocess the same picture again"
            )
        if self.gpus is None:
            if self.tensor_parallel_size != 1:
                raise SettingsError("--tensor-parallel-size needs GPUs: --gpus is none")
        else:
            _check_gpus(self.gpus, self.tensor_parallel_size)
        if self.sleep_mode and not is_loopback(self.host):
            raise SettingsError(
                f"--sleep-mode turns on vLLM's development routes, and --host {self.host} would offer them to other "
                "machines: use --host 127.0.0.1"
            )

    @property
    def gpu_groups(self) -> tuple[tuple[int, ...], ...]:
        """The GPUs of each server; one empty group on the CPU."""
        if self.gpus is None:
            return ((),)
        size = self.tensor_parallel_size
        return tuple(self.gpus[first : first + size] for first in range(0, len(self.gpus), size))

    @property
    def server_count(self) -> int:
        return len(self.gpu_groups)

    @property
    def served_name(self) -> str:
        return self.model_name or self.model.resolve().name

    @property
    def takes_video(self) -> bool:
        return self.modality != "image"

    @property
    def most_images(self) -> int:
        """Images in one request: a few, or all frames of a video sent as timestamped images."""
        return max(self.images_per_prompt, self.video_frames) if self.takes_video else self.images_per_prompt

    @property
    def cache_gb(self) -> float:
        """GiB of the media cache.

        As patches an image of the paper's budget takes up to 0.15 GiB and a video 0.6 GiB, and those of all groups in
        flight should fit: what is evicted must be sent and preprocessed again.
        """
        return self.media_cache_gb or (16.0 if self.takes_video else 8.0)

    def image_budget(self, pixels_per_token: int) -> int:
        """Pixels of one image; where only videos are judged images are frames."""
        if self.modality == "video":
            return self.frame_tokens * pixels_per_token
        return self.image_pixels

    def video_budget(self, pixels_per_token: int) -> int:
        """Pixels of a whole video, frames x height x width."""
        return self.video_frames * self.frame_tokens * pixels_per_token

    def largest_medium(self, pixels_per_token: int, temporal_patch: int) -> int:
        """Visual tokens of the largest picture or video; ``temporal_patch`` frames share theirs."""
        image = self.image_budget(pixels_per_token) // pixels_per_token
        video = -(-self.video_frames // temporal_patch) * self.frame_tokens if self.takes_video else 0
        return max(image, video)

    def context_tokens(self, pixels_per_token: int, temporal_patch: int) -> int:
        """Tokens of the longest judgement: media, instruction, reference, candidate and answer, rounded up.

        ``max_model_len`` where it is set. ``temporal_patch`` frames share their visual tokens.
        """
        if self.max_model_len is not None:
            return self.max_model_len
        needs = []
        if self.modality != "video":
            needs.append(self.image_pixels // pixels_per_token + 2 * _CAPTION_TOKENS["image"])
        if self.takes_video:
            pairs = -(-self.video_frames // temporal_patch)
            visual = pairs * (self.frame_tokens + FRAME_MARK_TOKENS)
            needs.append(visual + 2 * _CAPTION_TOKENS["video"])
        return rounded_context(max(needs) + INSTRUCTION_TOKENS + _ANSWER_TOKENS)


def rounded_context(tokens: int) -> int:
    """A context that holds so many tokens."""
    return -(-tokens // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def _check_gpus(gpus: tuple[int, ...], together: int) -> None:
    listed = ",".join(map(str, gpus))
    if not gpus or min(gpus) < 0:
        raise SettingsError(f"--gpus {listed or '(empty)'}: give GPU numbers such as 6,7, or none")
    if len(set(gpus)) != len(gpus):
        raise SettingsError(f"--gpus {listed} names a GPU twice")
    if len(gpus) % together:
        raise SettingsError(
            f"--gpus {listed} has {len(gpus)} GPUs, which do not fall into groups of --tensor-parallel-size {together}"
        )
