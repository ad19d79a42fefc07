"""Asking judges: bounded work, roles, several answers, reports."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.evals.benchmarks.by_stage import ByStage, block, endpoint
from tests.patience import GUARD_S
from tests.reward.scripted_judge import Reply, ScriptedJudge
from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings, encode_picture
from vcap_jax.evals.answers import Shape, chosen
from vcap_jax.evals.asking import Asker, Stage
from vcap_jax.evals.templates import PromptTemplate
from vcap_jax.reward.failures import Failure
from vcap_jax.system.shutdown import Stopped, finishing

SHAPE = chosen({"answer": ("yes", "no")})


def stage(name: str = "ask", **changes: object) -> Stage:
    template = PromptTemplate(name=f"x/{name}", text="Is {CAPTION}?\n", placeholders=("CAPTION",), source="")
    return Stage(name=name, template=template, **changes)  # type: ignore[arg-type]


@pytest.fixture
def servers() -> Iterator[tuple[ScriptedJudge, ScriptedJudge]]:
    both = ScriptedJudge(), ScriptedJudge()
    yield both
    for server in both:
        server.close()


def yes(prompt: str) -> object:
    return {"answer": "yes" if block(prompt, "caption") != "no" else "no"}


def test_no_more_items_are_held_than_there_are_places(servers: tuple[ScriptedJudge, ScriptedJudge]) -> None:
    ByStage(servers[0], {"ask": yes})
    drawn, done, most = [], [], 0

    def items() -> Iterator[int]:
        nonlocal most
        for k in range(200):
            drawn.append(k)
            most = max(most, len(drawn) - len(done))
            yield k

    with Asker({"judge": endpoint(servers[0], concurrency=4)}, say=lambda text: None) as asker:

        async def work(k: int) -> int:
            answer = await asker.ask(stage(), SHAPE, {"CAPTION": str(k)})
            assert answer == {"answer": "yes"}
            done.append(k)
            return k

        assert asker.each(items(), work, what="items", total=200) == list(range(200))
    assert most <= 4 + 2
    assert servers[0].most_running <= 4


def test_an_item_that_waits_for_its_server_keeps_no_other_waiting() -> None:
    """The first one ends when all others have: it would wait for ever if they waited for it."""
    server = ScriptedJudge()
    told: list[str] = []
    try:
        with Asker({"judge": endpoint(server, concurrency=2)}, say=told.append) as asker:
            left = 50
            others_done = asyncio.Event()

            async def work(k: int) -> int:
                nonlocal left
                if k == 0:
                    await others_done.wait()
                    return k
                left -= 1
                if not left:
                    others_done.set()
                return k

            assert asker.each(range(51), work, what="items", total=51) == list(range(51))
    finally:
        server.close()


def test_a_signal_is_heard_while_the_judge_does_not_answer(
    servers: tuple[ScriptedJudge, ScriptedJudge],
) -> None:
    """In a step of a training, which a signal does not break off: an outage may last as long as it may."""

    async def work(k: int) -> int:
        if k == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.Event().wait(), GUARD_S)
        return k

    def in_a_step() -> None:
        with finishing("the step in work"), Asker({"judge": endpoint(servers[0])}, say=print) as asker:
            asker.each(range(3), work, what="items", total=3)

    with pytest.raises(Stopped, match="stopped after 0 of 3 items"):
        in_a_step()


@pytest.mark.long
def test_a_signal_is_heard_while_the_judge_is_not_ready(
    servers: tuple[ScriptedJudge, ScriptedJudge],
) -> None:
    servers[0].stop()
    down = endpoint(servers[0], ready_timeout_s=GUARD_S)
    told: list[str] = []

    def tell(text: str) -> None:
        if not told:
            os.kill(os.getpid(), signal.SIGTERM)
        told.append(text)

    def in_a_step() -> None:
        with finishing("the step in work"), Asker({"judge": down}, say=tell):
            pass

    with pytest.raises(Stopped, match="stopped while the judge was waited for"):
        in_a_step()
    assert told


def test_roles_go_to_their_servers_and_the_judge_stands_in(
    servers: tuple[ScriptedJudge, ScriptedJudge],
) -> None:
    judge, reasoner = ByStage(servers[0], {"see": yes, "read": yes}), ByStage(servers[1], {"read": yes})

    async def both(asker: Asker) -> None:
        for name, role in (("see", "judge"), ("read", "reasoner")):
            await asker.ask(stage(name, role=role), SHAPE, {"CAPTION": "x"})

    with Asker(
        {"judge": endpoint(servers[0]), "reasoner": endpoint(servers[1])}, say=lambda text: None
    ) as asker:
        asker.each([0], lambda _: both(asker), what="items", total=1)
    assert (judge.stages(), reasoner.stages()) == (["see"], ["read"])
    with Asker({"judge": endpoint(servers[0])}, say=lambda text: None) as asker:
        asker.each([0], lambda _: both(asker), what="items", total=1)
    assert judge.stages() == ["see", "see", "read"]


def test_several_answers_differ_in_seed_and_are_kept_each(
    servers: tuple[ScriptedJudge, ScriptedJudge], tmp_path: Path
) -> None:
    answers = iter(("yes", "no", "yes"))
    judge = ByStage(servers[0], {"ask": lambda prompt: {"answer": next(answers)}})
    drawn, found = stage(temperature=1.0, max_tokens=7), []
    for start in range(2):
        config = endpoint(servers[0], store=str(tmp_path / "answers.sqlite"))
        with Asker({"judge": config}, say=lambda text: None) as asker:

            async def work(_: int, asker: Asker = asker) -> object:
                return await asker.several(3, drawn, SHAPE, {"CAPTION": "x"})

            found += asker.each([0], work, what="items", total=1)
            report = asker.report()["ask"]
        assert (report.questions, report.requests, report.prompt_tokens) == (3, 3, 30), start
    assert sorted(one["answer"] for one in found[0]) == ["no", "yes", "yes"]
    assert found[0] == found[1]
    assert len(judge.asked) == 3
    bodies = [body for _, _, body in judge.asked]
    assert len({body["seed"] for body in bodies}) == 3
    assert {(body["temperature"], body["max_tokens"]) for body in bodies} == {(1.0, 7)}


def test_an_answer_is_asked_for_again_at_another_temperature_alone(
    servers: tuple[ScriptedJudge, ScriptedJudge], tmp_path: Path
) -> None:
    """A stage's own counts, and the judge's where the stage names none."""
    judge = ByStage(servers[0], {"ask": yes})

    def asked(of: Stage, temperature: float) -> int:
        before = len(judge.asked)
        config = endpoint(servers[0], store=str(tmp_path / "s.sqlite"), temperature=temperature)
        with Asker({"judge": config}, say=lambda text: None) as asker:
            asker.each([0], lambda _: asker.ask(of, SHAPE, {"CAPTION": "x"}), what="items", total=1)
        return len(judge.asked) - before

    own, other, unnamed = stage(temperature=0.0), stage(temperature=0.5), stage()
    tried = [(own, 0.0), (own, 0.7), (other, 0.7), (unnamed, 0.7), (unnamed, 0.0), (unnamed, 0.7)]
    assert [asked(of, temperature) for of, temperature in tried] == [1, 0, 1, 1, 1, 0]


def test_two_questions_about_one_caption_have_an_answer_each(
    servers: tuple[ScriptedJudge, ScriptedJudge], tmp_path: Path
) -> None:
    text = "Is {QUESTION} in {CAPTION}?\n"
    template = PromptTemplate(name="x/ask", text=text, placeholders=("QUESTION", "CAPTION"), source="")
    ByStage(servers[0], {"ask": lambda prompt: {"answer": "yes" if "disc" in prompt else "no"}})
    config = endpoint(servers[0], store=str(tmp_path / "s.sqlite"))
    with Asker({"judge": config}, say=lambda text: None) as asker:

        async def work(question: str) -> object:
            return await asker.ask(
                Stage(name="ask", template=template), SHAPE, {"QUESTION": question, "CAPTION": "x"}
            )

        found = [asker.each([of], work, what="items", total=1) for of in ("disc", "star", "disc")]
    assert found == [[{"answer": answer}] for answer in ("yes", "no", "yes")]
    assert len(servers[0].bodies) == 2


def picture() -> EncodedMedia:
    pixels = np.zeros((64, 64, 3), np.uint8)
    shown = encode_picture(pixels, JudgeMediaSettings())
    return EncodedMedia(modality="image", duration=0.0, pictures=(shown,))


@pytest.mark.parametrize(("at_once", "ahead"), [(True, 1), (False, 0)])
def test_a_request_goes_ahead_only_to_bring_a_picture_for_several_questions(
    at_once: bool, ahead: int, servers: tuple[ScriptedJudge, ScriptedJudge]
) -> None:
    servers[0].owned_by = "vllm"
    judge = ByStage(servers[0], {"ask": yes, "see": yes})
    seen = stage("see", at_once=at_once)

    def answer(body: dict[str, object], number: int) -> Reply:
        if body["max_tokens"] != 1:
            return scripted(body, number)
        brought.append(body)
        return Reply(content="{")

    brought: list[dict[str, object]] = []
    scripted, servers[0].answer = servers[0].answer, answer
    with Asker({"judge": endpoint(servers[0])}, say=lambda text: None) as asker:

        async def work(_: int) -> object:
            view = await asker.view(picture)
            assert not isinstance(view, Failure)
            about_text = [asker.ask(stage(), SHAPE, {"CAPTION": f"x{k}"}) for k in range(3)]
            about_it = [asker.ask(seen, SHAPE, {"CAPTION": f"x{k}"}, shown=view) for k in range(3)]
            return await asyncio.gather(*about_text, *about_it)

        assert asker.each([0], work, what="items", total=1) == [[{"answer": "yes"}] * 6]
    assert len(brought) == ahead
    assert len(judge.asked) == 6


def test_a_try_after_a_bad_answer_has_another_seed(servers: tuple[ScriptedJudge, ScriptedJudge]) -> None:
    answers = iter(['{"answer": "perhaps"}', '{"answer": "no"}'])
    judge = ByStage(servers[0], {"ask": lambda prompt: next(answers)})
    with Asker({"judge": endpoint(servers[0])}, say=lambda text: None) as asker:

        async def work(_: int) -> object:
            return await asker.ask(stage(temperature=0.5), SHAPE, {"CAPTION": "x"})

        assert asker.each([0], work, what="items", total=1) == [{"answer": "no"}]
    first, second = (body for _, _, body in judge.asked)
    assert second["seed"] == first["seed"] + 1  # type: ignore[operator]
    assert (first["temperature"], second["temperature"]) == (0.5, 0.5)


def test_a_failure_is_a_value_and_is_counted(servers: tuple[ScriptedJudge, ScriptedJudge]) -> None:
    ByStage(
        servers[0], {"ask": lambda prompt: "no idea" if block(prompt, "caption") == "odd" else yes(prompt)}
    )
    with Asker({"judge": endpoint(servers[0], max_tries=2)}, say=lambda text: None) as asker:

        async def work(text: str) -> object:
            return await asker.ask(stage(), SHAPE, {"CAPTION": text})

        found = asker.each(["x", "odd", "no"], work, what="items", total=3)
        report = asker.report()["ask"]
    assert [isinstance(one, Failure) for one in found] == [False, True, False]
    assert (report.failed, report.requests) == ({"no_verdict": 1}, 4)
    assert report.failure_rate == pytest.approx(1 / 3)
    assert report.example.startswith("no_verdict: 0 JSON objects")


def test_an_answer_that_only_an_earlier_version_could_read_is_asked_for_again_once(
    servers: tuple[ScriptedJudge, ScriptedJudge], tmp_path: Path
) -> None:
    judge = ByStage(servers[0], {"ask": lambda prompt: {"answer": "rather yes"}})
    earlier = replace(SHAPE, read=lambda row: {"answer": "yes"})
    found = []
    for shape in (earlier, SHAPE, SHAPE):
        with Asker({"judge": endpoint(servers[0], store=str(tmp_path / "s.sqlite"))}, say=print) as asker:

            async def work(k: int, shape: Shape[Mapping[str, str]] = shape, asker: Asker = asker) -> object:
                return await asker.ask(stage(), shape, {"CAPTION": "x"})

            found += asker.each([0], work, what="items", total=1)
        judge.answers["ask"] = yes
    assert found == [{"answer": "yes"}] * 3
    assert len(judge.asked) == 2
