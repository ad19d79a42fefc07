"""Media sent once: uuids, the lead request, and sending again what a server has lost."""

import asyncio
from typing import Any

import pytest

from vcap_jax.data.media import JudgeFrame
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.encoded_view import EncodedView
from vcap_jax.reward.errors import MediaMismatch
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.media_cache import Lru, address, media_uuids
from vcap_jax.reward.prompts import build_messages, media_parts
from vcap_jax.reward.question import Verdict
from vcap_jax.reward.scores import Scores, parse_scores
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.reward.templates import QUALITY_KEYS

PICTURES = [JudgeFrame(url=f"data:image/png;base64,{name}") for name in ("AAAA", "BBBB")]


def read(text: str | None, finish_reason: str | None) -> Scores | Failure:
    return parse_scores(text, QUALITY_KEYS, finish_reason)


def question(text: str, pictures: list[JudgeFrame] = PICTURES) -> list[dict[str, Any]]:
    return build_messages(media_parts(pictures), text)


def images(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in body["messages"][0]["content"] if part["type"] == "image_url"]


class Cache:
    """What vLLM does with uuids: keeps what comes with one, refuses one that it does not have."""

    def __init__(self, judge: Any, replies: Any) -> None:
        self.kept: set[str] = set()
        self.replies = replies
        judge.owned_by = "vllm"
        judge.answer = self

    def __call__(self, body: dict[str, Any], n: int) -> Any:
        for index, part in enumerate(images(body)):
            if part["image_url"] is not None:
                self.kept.add(part["uuid"])
            elif part["uuid"] not in self.kept:
                text = f"Cache miss for image at index {index} but data is not provided."
                return self.replies.Reply(status=400, raw=f'{{"error": {{"message": "{text}"}}}}')
        return self.replies.verdict()


def ask_in_turn(config: JudgeConfig, questions: list[Any]) -> tuple[list[Verdict[Scores]], JudgeStatistics]:
    async def run() -> tuple[list[Verdict[Scores]], JudgeStatistics]:
        async with JudgeClient(config) as client:
            answers = []
            for each in questions:
                if callable(each):
                    each()
                else:
                    answers.append(await client.ask(each, read))
            return answers, client.statistics()

    return asyncio.run(run())


# The messages themselves


def test_messages_name_what_the_server_has() -> None:
    messages = question("text")
    first, second = media_uuids(messages)
    kept: Lru[bool] = Lru(10)
    kept.put(first, True)
    plain = address(messages, keeps=False, kept=kept)
    assert all("uuid" not in part for part in plain.messages[0]["content"])
    urls = [part["image_url"]["url"] for part in images({"messages": plain.messages})]
    assert urls == [picture.url for picture in PICTURES]
    named = address(messages, keeps=True, kept=kept)
    assert (named.sent, named.named) == ((second,), (first,))
    parts = named.messages[0]["content"]
    assert parts[0] == {"type": "image_url", "image_url": None, "uuid": first}
    assert parts[1] == {"type": "image_url", "image_url": {"url": PICTURES[1].url}, "uuid": second}
    assert messages == question("text")  # untouched


def test_equal_content_has_one_uuid_and_different_content_another() -> None:
    same = media_uuids(question("a")) + media_uuids(question("b"))
    assert same[:2] == same[2:]
    assert len(set(same)) == 2


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    lru: Lru[int] = Lru(2)
    lru.put("a", 1)
    lru.put("b", 2)
    assert lru.get("a") == 1
    lru.put("c", 3)
    assert ("a" in lru, "b" in lru, "c" in lru) == (True, False, True)


# Through the client


def test_pictures_go_once_to_a_server_that_keeps_them(judge: Any, settings: Any, replies: Any) -> None:
    Cache(judge, replies)
    answers, seen = ask_in_turn(settings(), [question(f"text {k}") for k in range(4)])
    assert all(isinstance(answer.result, Scores) for answer in answers)
    sent = [[part["image_url"] is not None for part in images(body)] for body in judge.bodies]
    assert sent == [[True, True]] + [[False, False]] * 3
    assert (seen.media_sent, seen.media_named, seen.media_resent) == (2, 6, 0)


def test_what_the_server_has_lost_is_sent_again_without_costing_a_try(
    judge: Any, settings: Any, replies: Any
) -> None:
    cache = Cache(judge, replies)
    answers, seen = ask_in_turn(
        settings(max_tries=1), [question("a"), question("b"), cache.kept.clear, question("c"), question("d")]
    )
    assert all(isinstance(answer.result, Scores) for answer in answers)
    assert [answer.tries for answer in answers] == [1, 1, 1, 1]
    assert (seen.media_resent, seen.retries, seen.failed, seen.errors) == (1, 0, 0, {})
    assert len(judge.bodies) == 5


def test_a_server_that_misses_what_was_just_sent_is_a_failure_not_a_loop(
    judge: Any, settings: Any, replies: Any
) -> None:
    judge.owned_by = "vllm"
    miss = replies.Reply(status=400, raw='{"error": {"message": "Cache miss for image at index 0"}}')
    judge.answer = lambda body, n: replies.verdict() if n == 0 else miss
    answers, _ = ask_in_turn(settings(), [question("a"), question("b")])
    assert isinstance(answers[1].result, Failure)
    assert answers[1].result.detail.startswith("400: Cache miss")
    assert len(judge.bodies) == 3


def test_a_server_that_takes_no_names_alone_gets_all_media_from_then_on(
    judge: Any, settings: Any, replies: Any
) -> None:
    """vLLM before 0.11, and others that call themselves so."""

    def answer(body: dict[str, Any], n: int) -> Any:
        if any(part["image_url"] is None for part in images(body)):
            return replies.Reply(status=400, raw='{"message": "image_url:\\n  Field required"}')
        return replies.verdict()

    async def run(say: Any) -> JudgeStatistics:
        async with JudgeClient(settings(max_tries=1), say=say) as client:
            for group in ("first", "second"):
                for k in range(3):
                    answer = await client.ask(question(f"{group} {k}"), read, prefix=group)
                    assert isinstance(answer.result, Scores)
            return client.statistics()

    judge.owned_by, judge.answer = "vllm", answer
    said: list[str] = []
    seen = asyncio.run(run(said.append))
    (line,) = said
    assert "takes no media by name alone (image_url: Field required)" in line
    assert "judge.media_uuid=never" in line
    # The lead, the first question with names alone and again, five questions with everything and no other lead.
    assert [all(part["image_url"] for part in images(body)) for body in judge.bodies] == [
        True,
        False,
        *[True] * 6,
    ]
    assert (seen.media_resent, seen.retries, seen.failed) == (1, 0, 0)


def test_a_question_that_is_refused_with_its_media_too_says_nothing_about_names(
    judge: Any, settings: Any, replies: Any
) -> None:
    long = replies.Reply(status=400, raw='{"error": {"message": "the prompt is too long"}}')
    judge.owned_by = "vllm"
    judge.answer = lambda body, n: long if "long" in replies.prompt_text(body) else replies.verdict()
    answers, _ = ask_in_turn(
        settings(), [question("a"), question("a long one"), question("b"), question("c")]
    )
    assert [isinstance(answer.result, Scores) for answer in answers] == [True, False, True, True]
    named = [all(part["image_url"] is None for part in images(body)) for body in judge.bodies]
    assert named == [False, True, False, True, True]


@pytest.mark.parametrize(
    ("owner", "setting", "keeps"),
    [
        ("someone", "auto", False),
        ("someone", "always", True),
        ("vllm", "auto", True),
        ("vllm", "never", False),
    ],
)
def test_who_gets_uuids(
    judge: Any, settings: Any, replies: Any, owner: str, setting: str, keeps: bool
) -> None:
    judge.owned_by = owner
    ask_in_turn(settings(media_uuid=setting), [question("a"), question("b")])
    assert ["uuid" in part for body in judge.bodies for part in images(body)] == [keeps] * 4
    assert [part["image_url"] is None for part in images(judge.bodies[1])] == [keeps] * 2


def ask_group(config: JudgeConfig, size: int, prefix: str | None = "the group") -> JudgeStatistics:
    async def run() -> JudgeStatistics:
        async with JudgeClient(config) as client:
            await client.model()
            await asyncio.gather(
                *(client.ask(question(f"{k}"), read, prefix=prefix, route="r") for k in range(size))
            )
            return client.statistics()

    return asyncio.run(run())


def test_one_request_carries_the_media_of_a_group_and_all_questions_follow_at_once(
    judge: Any, settings: Any, replies: Any
) -> None:
    cache = Cache(judge, replies)
    running: list[int] = []

    def answer(body: dict[str, Any], n: int) -> Any:
        reply = cache(body, n)
        running.append(judge.running)
        if n == 0:
            reply.delay = 0.2  # time for others to begin, which they must not
        else:
            reply.hold = lambda: judge.most_running == 8
        return reply

    judge.answer = answer
    seen = ask_group(settings(), 8)
    assert running[:2] == [1, 1]  # the one that carries the media is answered before the others begin
    assert judge.most_running == 8
    assert [body["max_tokens"] for body in judge.bodies] == [1] + [1024] * 8
    assert (seen.media_sent, seen.media_named, seen.judged) == (2, 16, 8)


def test_a_lead_that_fails_hands_over(judge: Any, settings: Any, replies: Any) -> None:
    cache = Cache(judge, replies)
    judge.answer = lambda body, n: replies.Reply(status=500, raw="{}") if n < 2 else cache(body, n)
    seen = ask_group(settings(), 6)
    assert (seen.judged, seen.failed) == (6, 0)
    assert seen.media_sent == 6  # both failures had brought the two pictures along


@pytest.mark.parametrize("change", [{"lead_request": False}, {"media_uuid": "never"}])
def test_no_lead_where_it_is_switched_off_or_no_use(
    judge: Any, settings: Any, replies: Any, change: dict[str, Any]
) -> None:
    cache = Cache(judge, replies)

    def answer(body: dict[str, Any], n: int) -> Any:
        reply = replies.verdict() if "media_uuid" in change else cache(body, n)
        reply.hold = lambda: judge.most_running == 5  # no answer comes before the last question
        return reply

    judge.answer = answer
    ask_group(settings(**change), 5)
    assert judge.most_running == 5


# Whether the pictures have arrived


def shown(pictures: int) -> EncodedView:
    parts = media_parts(PICTURES[:1] * pictures)
    return EncodedView(parts=tuple(parts), key="k", pictures=pictures)


def test_a_prompt_with_fewer_pictures_than_sent_ends_the_run(judge: Any, settings: Any, replies: Any) -> None:
    judge.owned_by = "vllm"
    judge.tokenize = lambda body: {"tokens": [7], "count": 1}
    reply = replies.verdict()
    reply.prompt_token_ids = [1, 5, 7, 7, 7, 6, 2]
    judge.answer = lambda body, n: reply

    def ask(pictures: int) -> Verdict[Scores]:
        async def run() -> Verdict[Scores]:
            async with JudgeClient(settings()) as client:
                return await client.ask(question("a"), read, shown=shown(pictures))

        return asyncio.run(run())

    assert isinstance(ask(1).result, Scores)
    assert judge.bodies[-1]["return_token_ids"] is True
    with pytest.raises(
        MediaMismatch, match=r"3 pictures were sent, and the judge's prompt holds 1 \(3 visual"
    ):
        ask(3)


def test_pictures_are_checked_though_the_server_did_not_tell_their_placeholder_at_once(
    judge: Any, settings: Any, replies: Any
) -> None:
    """One error of /tokenize switched the check off, until the end."""
    judge.owned_by = "vllm"
    answers: list[Any] = [{"tokens": [7]}, 502]
    judge.tokenize = lambda body: answers.pop()
    reply = replies.verdict()
    reply.prompt_token_ids = [1, 7, 2]
    judge.answer = lambda body, n: reply

    async def run() -> None:
        async with JudgeClient(settings()) as client:
            await client.ask(question("a"), read, shown=shown(3))

    with pytest.raises(MediaMismatch, match="holds 1"):
        asyncio.run(run())


def test_the_same_media_must_make_the_same_tokens(judge: Any, settings: Any, replies: Any) -> None:
    judge.owned_by = "vllm"

    def answer(body: dict[str, Any], n: int) -> Any:
        reply = replies.verdict()
        reply.usage = {"prompt_tokens_details": {"multimodal_tokens": {"image": 64 if n < 2 else 32}}}
        return reply

    judge.answer = answer

    async def run() -> None:
        async with JudgeClient(settings()) as client:
            for _ in range(3):
                await client.ask(question("a"), read, shown=shown(1))

    with pytest.raises(
        MediaMismatch, match=r"\{'image': 64\} prompt tokens at first and \{'image': 32\} now"
    ):
        asyncio.run(run())
    assert ["return_token_ids" in body for body in judge.bodies] == [True, False, False]
