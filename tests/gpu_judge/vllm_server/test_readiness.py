"""Readiness against servers that are healthy and yet no judges; the key guard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpu_judge.vllm_server.middleware.key_guard import KeyGuard
from gpu_judge.vllm_server.readiness import NotReady, Probe, expected_video_tokens, healthy

PAD, TOKENS = 7, 68


def good(body: dict[str, Any]) -> dict[str, Any]:
    keys = body["response_format"]["json_schema"]["schema"]["required"]
    verdict = json.dumps({key: "none" if key == "Analysis" else 10 for key in keys})
    seen = [PAD] * TOKENS if "media_io_kwargs" in body else []
    choice = {"message": {"content": verdict}, "finish_reason": "stop"}
    return {"choices": [choice], "prompt_token_ids": [1, 2, *seen, 3]}


Answer = Callable[[dict[str, Any]], Any]


def ask(answer: Answer, asked: list[dict[str, Any]] | None = None, **changes: Any) -> None:
    """Runs the readiness check against a server that answers with ``answer`` (or its Response)."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        if asked is not None:
            asked.append(body | {"authorization": request.headers.get("Authorization")})
        reply = answer(body)
        return reply if isinstance(reply, web.Response) else web.json_response(reply)

    async def listing(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "judge"}]})

    async def sleeping(_: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": True})

    async def run() -> None:
        app = web.Application()
        routes = [web.get("/v1/models", listing), web.post("/v1/chat/completions", chat)]
        app.add_routes([*routes, web.get("/is_sleeping", sleeping)])
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            values: dict[str, Any] = {
                "url": str(server.make_url("")).rstrip("/"),
                "model": "judge",
                "key": None,
                "modality": "image",
                "video_token_id": PAD,
                "video_tokens": TOKENS,
                "can_sleep": False,
            }
            await Probe(**(values | changes)).works(session)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("modality", "kinds"),
    [("image", ["image_url"]), ("video", ["video_url"]), ("both", ["image_url", "video_url"])],
)
def test_a_judge_is_asked_about_what_it_is_to_judge(modality: str, kinds: list[str]) -> None:
    asked: list[dict[str, Any]] = []
    ask(good, asked, modality=modality, key="s3cret")
    assert [body["messages"][0]["content"][0]["type"] for body in asked] == kinds
    assert all(body["authorization"] == "Bearer s3cret" for body in asked)
    for body in asked:
        if "media_io_kwargs" in body:
            frames = body["messages"][0]["content"][0]["video_url"]["url"].split(",")[1:]
            video = body["media_io_kwargs"]["video"]
            assert len(frames) == len(video["frames_indices"]) == video["total_num_frames"] > 32
            assert video["num_frames"] == -1


def test_frames_of_the_probe_make_so_many_tokens() -> None:
    assert expected_video_tokens(32 * 32, 2) == TOKENS


def _changed(**choice: Any) -> Answer:
    def answer(body: dict[str, Any]) -> Any:
        payload = good(body)
        payload["choices"][0].update(choice)
        return payload

    return answer


def _content(text: str) -> Answer:
    return _changed(message={"content": text})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_content("Seven out of ten."), "no_verdict"),
        (_content('{"Analysis": "", "Correctness": 11, "Completeness": 1, "Text Quality": 1}'), "bad_score"),
        (_content('{"Analysis": "", "Correctness": 1, "Completeness": 1}'), "missing_key"),
        (_content('{"Analysis": "' + "\\n" * 30), "cut_off"),
        (_content(""), "empty_answer"),
        (_changed(finish_reason="length"), "cut_off"),
        (lambda _: {"choices": []}, "no chat completion"),
        (lambda _: ["no", "object"], "no chat completion: \\["),
        (lambda _: web.Response(text="<html>"), "no chat completion: <html>"),
        (lambda _: web.json_response({"error": "engine"}, status=500), "answers 500: .*engine"),
    ],
)
def test_rubbish_is_not_ready(answer: Answer, message: str) -> None:
    with pytest.raises(NotReady, match=message):
        ask(answer)


@pytest.mark.parametrize("seen", [0, 64, 69])
def test_dropped_frames_are_not_ready(seen: int) -> None:
    def answer(body: dict[str, Any]) -> Any:
        return good(body) | {"prompt_token_ids": [PAD] * seen}

    with pytest.raises(NotReady, match=f"34 frames became {seen} visual tokens instead of 68"):
        ask(answer, modality="video")


def test_another_model_and_a_sleeping_one_are_not_ready() -> None:
    with pytest.raises(NotReady, match="another server may have the port"):
        ask(good, model="judge-2")
    with pytest.raises(NotReady, match="asleep"):
        ask(good, can_sleep=True)


def test_nobody_there() -> None:
    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            assert not await healthy(session, "http://127.0.0.1:9", 5)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "header", "passed"),
    [
        ("/health", None, True),
        ("/v1/models", None, False),
        ("/v1/models", "Bearer wrong", False),
        ("/v1/models", "s3cret", False),
        ("/v1/models", "Bearer s3cret", True),
        ("/invocations", None, False),
        ("/tokenize", None, False),
        ("/metrics", None, False),
        ("/metrics", "Bearer s3cret", True),
        ("/health/../v1/models", None, False),
    ],
)
def test_the_guard_of_an_open_server(
    path: str, header: str | None, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    headers = [] if header is None else [(b"Authorization", header.encode())]
    asyncio.run(KeyGuard(app)({"type": "http", "path": path, "headers": headers}, receive, send))
    assert (reached == [path]) == passed
    assert [message["status"] for message in sent if "status" in message] == ([] if passed else [401])


def test_the_guard_refuses_to_stand_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(RuntimeError, match="VLLM_API_KEY is not set"):
        KeyGuard(None)  # type: ignore[arg-type]
