"""Waiting for the judge's servers: what they must show, what is told meanwhile, and what waiting cannot mend."""

import asyncio
import json
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.fake_clock import FakeClock
from tests.patience import GUARD_S
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.reward.question import Verdict


def ready(
    config: JudgeConfig,
    timeout_s: float = 30,
    clock: FakeClock | None = None,
    say: Callable[[str], None] = print,
) -> str:
    async def run() -> str:
        async with JudgeClient(config, clock=clock or FakeClock(), say=say) as client:
            return await client.wait_until_ready(timeout_s)

    return asyncio.run(run())


def test_ready_when_healthy_and_the_model_is_known(judge: Any, settings: Any) -> None:
    assert ready(settings()) == "the-judge"
    judge.health = 404  # hosted endpoints have no such page
    assert ready(settings()) == "the-judge"
    judge.models = ["a", "b"]
    assert ready(settings(model="b")) == "b"
    judge.models_status = 404
    assert ready(settings(model="b")) == "b"
    judge.models_raw = "<!DOCTYPE html><title>404 Not Found</title>"
    assert ready(settings(model="b")) == "b"
    assert [body["model"] for body in judge.greetings] == ["the-judge", "the-judge", "b", "b", "b"]
    assert judge.bodies == []


def test_ready_after_a_while_which_is_told_every_ten_seconds(
    judge: Any, settings: Any, clock: FakeClock
) -> None:
    judge.stop()
    clock.after(25, judge.start)
    said: list[str] = []
    assert ready(settings(), 600, clock, said.append) == "the-judge"
    assert said == [
        f"waiting for the judge at {judge.url} for {seconds} s: connection refused; giving up after 600 s "
        "(judge.ready_timeout_s)"
        for seconds in (10, 20)
    ]
    assert 25 <= clock.now() - 1000 < 26


def test_one_of_several_that_is_not_ready_is_told_by_its_address(
    judges: list[Any], settings: Any, clock: FakeClock
) -> None:
    judges[1].health = 503
    clock.after(11, lambda: setattr(judges[1], "health", 200))
    said: list[str] = []
    ready(settings(urls=tuple(j.url for j in judges)), 60, clock, said.append)
    (line,) = said
    assert f"for 10 s: {judges[1].url}: /health answers 503" in line
    assert f"{judges[0].url}: " not in line


@pytest.mark.parametrize("what", ["health", "greeting"])
def test_a_server_that_never_answers_is_told_too(
    judge: Any, settings: Any, replies: Any, clock: FakeClock, what: str
) -> None:
    """It takes the connection and says nothing: time passes in the middle of a request."""
    said: list[str] = []

    async def silent(*_: Any) -> Any:
        clock.advance_threadsafe(10)
        await asyncio.Event().wait()

    judge.before[what] = silent
    with pytest.raises(JudgeUnavailable, match=r"not ready after 3\d s; last seen: no answer in 10 s"):
        ready(settings(deadline_s=10), 30, clock, said.append)
    assert len(said) >= 2
    seen = "no answer" if what == "health" else "it is up, and has not answered a question yet"
    assert seen in said[0]


def test_not_ready_says_what_was_seen(judge: Any, settings: Any) -> None:
    judge.health = 503
    with pytest.raises(JudgeUnavailable, match=r"not ready after 30 s.*/health answers 503"):
        ready(settings())
    judge.health, judge.greeting.status, judge.greeting.raw = 200, 500, "the engine is gone"
    with pytest.raises(JudgeUnavailable, match=r"/chat/completions answers 500: the engine is gone"):
        ready(settings())
    with pytest.raises(JudgeUnavailable, match=r"not ready.*connection refused.*judge\.urls"):
        ready(settings(urls=("http://127.0.0.1:9/v1",)))


def test_a_name_without_an_address_is_waited_for_and_told(
    settings: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name service may be down for a moment."""

    def resolve(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    # The machine's own may take ten seconds to say so.
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    said: list[str] = []
    with pytest.raises(JudgeUnavailable, match=r"the name no\.such\.host\.invalid has no address"):
        ready(settings(urls=("http://no.such.host.invalid",)), 30, say=said.append, clock=clock)
    assert said
    assert clock.now() >= 1030


def test_what_waiting_cannot_mend_is_said_at_once(judge: Any, settings: Any, clock: FakeClock) -> None:
    judge.models = ["a", "b"]
    with pytest.raises(JudgeUnavailable, match=r"2 models \(a, b\): name one in judge\.model"):
        ready(settings(), clock=clock)
    with pytest.raises(JudgeUnavailable, match=r"serves a, b, and judge\.model names c"):
        ready(settings(model="c"), clock=clock)
    judge.models_status = 401
    with pytest.raises(JudgeUnavailable, match=r"refuses the key.*judge\.api_key_env"):
        ready(settings(), clock=clock)
    # A hosted server may list its models to anybody.
    judge.models, judge.models_status = ["a"], 200
    judge.greeting.status, judge.greeting.raw = 403, '{"error": "who are you?"}'
    with pytest.raises(JudgeUnavailable, match=r"refuses the key \(403: who are you\?\)"):
        ready(settings(), clock=clock)
    with pytest.raises(
        JudgeUnavailable, match=r"http://127\.0\.0\.1:99999.* is no address; check judge\.urls"
    ):
        ready(settings(urls=("http://127.0.0.1:99999",)), clock=clock)
    assert clock.now() == 1000


@pytest.mark.parametrize("status", [200, 404])
def test_a_web_server_is_no_judge(judge: Any, settings: Any, clock: FakeClock, status: int) -> None:
    judge.models_raw, judge.models_status = "<html><title>Welcome to nginx!</title></html>", status
    page = (
        f"^http://127.0.0.1:{judge.port} answers with a web page, not the OpenAI API: no /v1/models there; "
    )
    with pytest.raises(JudgeUnavailable, match=page + r"check judge\.urls$"):
        ready(settings(), clock=clock)
    assert clock.now() == 1000


def test_a_proxy_before_a_server_that_is_not_up_is_waited_for(
    judge: Any, settings: Any, clock: FakeClock
) -> None:
    judge.models_raw, judge.models_status = "<html><title>502 Bad Gateway</title></html>", 502
    with pytest.raises(JudgeUnavailable, match=r"not ready.*answers 502: a web page, '502 Bad Gateway'"):
        ready(settings(), clock=clock)


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (
            {"status": 404, "raw": '{"error": {"message": "no model m"}}'},
            r"chat/completions answers 404: no model m\. Check judge\.urls and judge\.model",
        ),
        ({"raw": "<html><title>Hello</title></html>"}, r"no chat completion: a web page, 'Hello'"),
        ({"raw": "{}"}, r"no chat completion: {}"),
    ],
)
def test_a_server_that_answers_no_question_is_refused_at_once(
    judge: Any, settings: Any, replies: Any, clock: FakeClock, greeting: dict[str, Any], message: str
) -> None:
    judge.greeting = replies.Reply(**greeting)
    with pytest.raises(JudgeUnavailable, match=message):
        ready(settings(model="the-judge"), clock=clock)
    assert clock.now() == 1000


@pytest.mark.parametrize("status", [400, 402, 422, 429])
def test_a_question_that_is_refused_for_what_it_is_shows_that_the_server_is_there(
    judge: Any, settings: Any, replies: Any, status: int
) -> None:
    judge.greeting = replies.Reply(status=status, raw='{"error": "this is no judgement"}')
    assert ready(settings()) == "the-judge"


def test_the_name_of_the_longest_length_is_found_out_before_there_is_work(
    judge: Any, settings: Any, replies: Any
) -> None:
    """Newer models of OpenAI refuse ``max_tokens``."""
    refusal = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."

    def answer(body: dict[str, Any], n: int) -> Any:
        if "max_tokens" in body:
            return replies.Reply(
                status=400, raw=json.dumps({"error": {"message": refusal, "param": "max_tokens"}})
            )
        return replies.verdict()

    judge.answer = answer
    judge.greets = lambda body: answer(body, 0)

    async def run() -> list[Verdict[str]]:
        async with JudgeClient(settings(max_tokens=77)) as client:
            await client.wait_until_ready(GUARD_S)
            asked = [{"role": "user", "content": [{"type": "text", "text": "judge this"}]}]
            return list(
                await asyncio.gather(*(client.ask(asked, lambda text, _: text or "") for _ in range(2)))
            )

    assert [answer.tries for answer in asyncio.run(run())] == [1, 1]
    assert [body["max_completion_tokens"] for body in judge.greetings[-1:] + judge.bodies] == [1, 77, 77]


def test_a_model_that_is_to_be_asked_at_another_temperature_is_refused_at_once(
    judge: Any, settings: Any, replies: Any, clock: FakeClock
) -> None:
    error = {"message": "Unsupported value: only the default (1) is supported.", "param": "temperature"}
    judge.greets = lambda body: (
        replies.verdict()
        if body.get("temperature") == 1
        else replies.Reply(status=400, raw=json.dumps({"error": error}))
    )
    with pytest.raises(JudgeUnavailable, match=r"refuses temperature 0, .*only the default .*judge\.model"):
        ready(settings(), clock=clock)
    assert clock.now() == 1000
    assert ready(settings(temperature=1.0)) == "the-judge"


def test_an_address_without_a_model_list_and_no_named_model_is_refused_with_the_form_of_addresses(
    judge: Any, settings: Any
) -> None:
    for path in ("/v1/chat/completions", "/prefix"):
        url = judge.url.removesuffix("/v1") + path
        with pytest.raises(
            JudgeUnavailable,
            match=rf"{url}/models is not there.*judge\.urls \(http://HOST:PORT,.*/PREFIX/v1\).*judge\.model",
        ):
            ready(settings(urls=(url,)))


def test_a_judge_on_the_internet_is_asked_through_the_proxy_which_sees_neither_question_nor_key(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def run() -> str | None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{port}")
            monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{port}")
            async with JudgeClient(
                settings(urls=("https://api.example.org",), api_key_env="SOME_KEY")
            ) as client:
                return (await client.look() or "").replace(str(port), "PORT")

    monkeypatch.setenv("SOME_KEY", "abc")
    assert asyncio.run(run()) == (
        "the proxy answers 407 Proxy Authentication Required (through HTTPS_PROXY, 127.0.0.1:PORT)"
    )
    assert asked[0].startswith(b"CONNECT api.example.org:443 ")
    assert b"abc" not in asked[0]


def test_a_key_that_is_refused_is_named_by_its_variable(
    judge: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge.models_status = 401
    monkeypatch.setenv("SOME_KEY", "abc")
    with pytest.raises(JudgeUnavailable, match="check what SOME_KEY holds") as refused:
        ready(settings(api_key_env="SOME_KEY"))
    assert "abc" not in str(refused.value)


def test_one_is_enough_where_that_is_asked_for(judges: list[Any], settings: Any, clock: FakeClock) -> None:
    """Another that has died is left out, and taken in again."""
    judges[1].stop()
    said: list[str] = []

    async def run() -> Any:
        config = settings(urls=tuple(j.url for j in judges))
        async with JudgeClient(config, clock=clock, say=said.append) as client:
            assert await client.wait_until_ready(30, every=False) == "the-judge"
            await clock.sleep(2)
            judges[1].start()
            await clock.sleep(20)

    asyncio.run(run())
    lost, back = said
    assert f"the judge at {judges[1].url} does not answer (connection refused)" in lost
    assert f"the judge at {judges[1].url} answers again" in back


def breaks(judge: Any, what: str, reply: Any) -> None:
    """In a way that waiting cannot mend."""
    if what == "key":
        judge.models_status = 401
    elif what == "web page":
        judge.models_raw = "<html><title>nginx</title></html>"
    elif what == "no questions":
        judge.greeting = reply(status=404, raw="{}")
    else:
        judge.models = ["another"]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("key", "refuses the key"),
        ("web page", "answers with a web page"),
        ("no questions", "chat/completions answers 404"),
        ("model", r"serves another, and judge\.model names the-judge"),
    ],
)
def test_one_is_enough_whatever_is_wrong_with_another(
    judges: list[Any], settings: Any, replies: Any, clock: FakeClock, what: str, told: str
) -> None:
    """It ended a run that had its references, and that the others could have judged."""
    said: list[str] = []

    async def run() -> str:
        config = settings(urls=tuple(j.url for j in judges), model="the-judge")
        async with JudgeClient(config, clock=clock, say=said.append) as client:
            model = await client.wait_until_ready(30, every=False)
            await clock.sleep(20)
            return model

    breaks(judges[1], what, replies.Reply)
    assert asyncio.run(run()) == "the-judge"
    (line,) = said
    assert re.search(
        rf"the judge at {judges[1].url} does not answer \(.*{told}.*the other endpoints take", line
    )
    for other in judges:
        breaks(other, what, replies.Reply)
    began = clock.now()
    with pytest.raises(JudgeUnavailable, match=rf"{told}.*{told}.*{told}"):
        asyncio.run(run())
    assert clock.now() == began


def test_none_is_not_enough(judge: Any, settings: Any) -> None:
    judge.stop()

    async def run(timeout_s: float, clock: FakeClock) -> str:
        async with JudgeClient(settings(), clock=clock) as client:
            return await client.wait_until_ready(timeout_s, every=False)

    with pytest.raises(JudgeUnavailable, match=r"not ready after 10 s; last seen: connection refused"):
        asyncio.run(run(10, FakeClock()))
    clock = FakeClock()
    clock.after(25, judge.start)
    assert asyncio.run(run(60, clock)) == "the-judge"
    assert 25 <= clock.now() - 1000 < 26
