"""Ready means: it judges. A server's ``/health`` is 200 long before that, and while it sleeps."""

from __future__ import annotations

import base64
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import aiohttp
from PIL import Image, ImageDraw

from gpu_judge.vllm_server.settings import Modality
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.http_answers import Completion, read_completion
from vcap_jax.reward.prompts import (
    ContentPart,
    build_messages,
    fill_instruction,
    schema_format,
    verdict_schema,
)
from vcap_jax.reward.scores import parse_scores
from vcap_jax.reward.templates import InstructionName, load_instruction
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import JsonObject, parse_json

_FRAMES = 34  # more than the 32 to which vLLM cuts a video unless it is told to keep all
_FRAME_SIDE = 64
_IMAGE_SIDE = 256
_FPS = 2.0
_JUDGEMENT_TIMEOUT_S = 300.0
_ANALYSIS_CHARS = 40
_ANSWER_TOKENS = 512
_CAPTION = "A red square on a grey background."


class NotReady(VCapError, RuntimeError):
    """The server answers, and not as a judge must; the message says with what."""


class Silent(NotReady):
    """It does not answer, or not in time."""


@dataclass(frozen=True, kw_only=True)
class Server(ABC):
    """What is asked of a server that is kept running, whatever it is for.

    url: as this machine reaches it, without ``/v1``. model: the name it must serve. can_sleep: it has sleep mode, and
    takes turns. key: sent where not None. task: what it does, for messages.
    """

    url: str
    model: str
    can_sleep: bool
    key: str | None = None
    task: ClassVar[str]

    @abstractmethod
    async def becomes_ready(self, session: aiohttp.ClientSession) -> None:
        """Of one that is healthy and was just started. Raises NotReady."""

    @abstractmethod
    async def works(self, session: aiohttp.ClientSession) -> None:
        """Asks for a little of its work. Raises NotReady."""

    async def told(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        limit_s: float = _JUDGEMENT_TIMEOUT_S,
    ) -> bytes:
        """The body of its answer. Raises NotReady for any but 200, and :class:`Silent` where none comes in time."""
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        limit = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with session.request(
                method, self.url + path, json=body, headers=headers, timeout=limit
            ) as response:
                raw, status = await response.read(), response.status
        except (TimeoutError, aiohttp.ClientError) as error:
            raise Silent(f"{method} {path}: {type(error).__name__}: {error}") from error
        if status != 200:
            raise NotReady(f"{method} {path} answers {status}: {shown(raw)}")
        return raw


@dataclass(frozen=True, kw_only=True)
class Probe(Server):
    """How a judge is asked; one with sleep mode must be awake when it judges, and sleeps afterwards.

    modality: an image, a video or one of each is judged. video_token_id, video_tokens: placeholder in the prompt and
    how many there must be for :data:`_FRAMES` frames.
    """

    modality: Modality
    video_token_id: int
    video_tokens: int
    task: ClassVar[str] = "judge"

    async def becomes_ready(self, session: aiohttp.ClientSession) -> None:
        """It judges, and sleeps then if it takes turns, which is how it waits for its own."""
        await self.works(session)
        if self.can_sleep:
            await self.told(session, "POST", "/sleep?level=1")
            if (await self._object(session, "/is_sleeping")).get("is_sleeping") is not True:
                raise NotReady("it is awake after POST /sleep")

    async def works(self, session: aiohttp.ClientSession) -> None:
        """Asks for one tiny judgement of each kind that is to be served.

        Raises NotReady: another model, asleep, an error, an answer without three integers, or frames that were dropped.
        """
        entries = (await self._object(session, "/v1/models")).get("data")
        listed = entries if isinstance(entries, list) else []
        names = [entry.get("id") for entry in listed if isinstance(entry, dict)]
        if self.model not in names:
            raise NotReady(f"it serves {names}, not {self.model!r}: another server may have the port")
        if self.can_sleep and (await self._object(session, "/is_sleeping")).get("is_sleeping") is not False:
            raise NotReady("it is asleep: POST /wake_up")
        if self.modality != "video":
            await self._judge(session, "image", _image_part(), {})
        if self.modality != "image":
            completion = await self._judge(session, "video_global", _video_part(), _video_fields())
            seen = (completion.prompt_token_ids or ()).count(self.video_token_id)
            if seen != self.video_tokens:
                raise NotReady(
                    f"a video of {_FRAMES} frames became {seen} visual tokens instead of {self.video_tokens}: frames "
                    "were dropped or resized"
                )

    async def _judge(
        self, session: aiohttp.ClientSession, kind: InstructionName, media: ContentPart, fields: JsonObject
    ) -> Completion:
        instruction = load_instruction(kind)
        filled = fill_instruction(instruction, reference=_CAPTION, candidate=_CAPTION)
        body = {
            "model": self.model,
            "messages": build_messages([media], filled),
            "temperature": 0.0,
            "max_tokens": _ANSWER_TOKENS,
            "response_format": schema_format(kind, verdict_schema(instruction.spec, _ANALYSIS_CHARS)),
            "return_token_ids": True,
            **fields,
        }
        raw = await self.told(session, "POST", "/v1/chat/completions", body)
        completion = read_completion(raw)
        if completion is None:
            raise NotReady(f"its answer is no chat completion: {shown(raw)}")
        verdict = parse_scores(completion.text, instruction.spec.score_keys, completion.finish_reason)
        if isinstance(verdict, Failure):
            raise NotReady(
                f"its answer to a tiny {kind} judgement is none: {verdict.reason}, {verdict.detail}"
            )
        return completion

    async def _object(self, session: aiohttp.ClientSession, path: str) -> JsonObject:
        """The JSON object that it answers. Raises NotReady."""
        raw = await self.told(session, "GET", path)
        try:
            answer = parse_json(raw)
        except ValueError as error:
            raise NotReady(f"GET {path} answers no JSON: {shown(raw)}") from error
        if not isinstance(answer, dict):
            raise NotReady(f"GET {path} answers no JSON object: {shown(raw)}")
        return answer


async def healthy(session: aiohttp.ClientSession, url: str, timeout_s: float) -> bool:
    """Whether ``/health`` answers 200 in time."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(f"{url}/health", timeout=timeout) as response:
            return response.status == 200
    except (TimeoutError, aiohttp.ClientError):
        return False


def expected_video_tokens(pixels_per_token: int, temporal_patch: int) -> int:
    """Visual tokens of the probe's video: its frames fit every budget, so they are taken as they are."""
    return -(-_FRAMES // temporal_patch) * _FRAME_SIDE**2 // pixels_per_token


def shown(raw: bytes) -> str:
    """The beginning of an answer, for a message."""
    return raw[:300].decode(errors="replace")


def _picture(side: int, shift: int) -> Image.Image:
    picture = Image.new("RGB", (side, side), (128, 128, 128))
    left = side // 4 + shift % (side // 4)
    ImageDraw.Draw(picture).rectangle((left, side // 4, left + side // 2, 3 * side // 4), fill=(200, 30, 30))
    return picture


def _encoded(picture: Image.Image, form: str) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, form)
    return base64.b64encode(buffer.getvalue()).decode()


def _image_part() -> ContentPart:
    url = f"data:image/png;base64,{_encoded(_picture(_IMAGE_SIDE, 0), 'PNG')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _video_part() -> ContentPart:
    frames = ",".join(_encoded(_picture(_FRAME_SIDE, index), "JPEG") for index in range(_FRAMES))
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}"}}


def _video_fields() -> JsonObject:
    times: JsonObject = {
        "num_frames": -1,
        "fps": _FPS,
        "frames_indices": list(range(_FRAMES)),
        "total_num_frames": _FRAMES,
        "duration": _FRAMES / _FPS,
        "do_sample_frames": False,
    }
    return {"media_io_kwargs": {"video": times}, "mm_processor_kwargs": {"do_sample_frames": False}}
