"""Captions that come one after the other, and who waits for them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from vcap_jax.reward.group import GroupPrompt
from vcap_jax.reward.open_group import OpenGroup, for_each

NOTHING: Any = None
PROMPT = GroupPrompt(sample_id="s", step=1, index=2, media=NOTHING, reference="A witness.")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


async def settled() -> None:
    """Everything that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_each_different_text_comes_once_as_soon_as_it_has_ended() -> None:
    async def work() -> None:
        group, first, second = OpenGroup(PROMPT, 4), list[str](), list[str]()

        async def listen(hear: Callable[[str], None]) -> None:
            async for text in group.texts():
                hear(text)

        listening = [asyncio.create_task(listen(first.append))]
        group.end(2, "c")
        await settled()
        assert first == ["c"]
        listening.append(asyncio.create_task(listen(second.append)))  # who comes late hears all
        group.end(0, "a")
        group.end(3, "c")
        await settled()
        assert first == second == ["c", "a"]
        assert not any(one.done() for one in listening)
        group.end(1, "")
        await asyncio.gather(*listening)
        assert first == second == ["c", "a", ""]
        whole = await group.whole()
        assert whole.captions == ("a", "", "c", "c")
        assert (whole.sample_id, whole.step, whole.index, whole.reference) == ("s", 1, 2, "A witness.")

    run(work())


def test_what_ends_while_a_text_is_worked_on_is_not_missed() -> None:
    async def work() -> None:
        group, heard = OpenGroup(PROMPT, 3), []
        group.end(0, "a")
        async for text in group.texts():
            heard.append(text)
            if text == "a":
                group.end(1, "b")
                group.end(2, "a")
        assert heard == ["a", "b"]

    run(work())


def test_work_on_a_text_begins_before_the_others_have_ended() -> None:
    async def work() -> None:
        group, begun = OpenGroup(PROMPT, 3), []

        async def length(text: str) -> int:
            begun.append(text)
            return len(text)

        result = asyncio.create_task(for_each(group.texts(), length))
        group.end(1, "bb")
        await settled()
        assert begun == ["bb"]
        group.end(0, "a")
        group.end(2, "bb")
        assert await result == {"bb": 2, "a": 1}
        assert begun == ["bb", "a"]

    run(work())


def test_what_the_work_raises_is_raised() -> None:
    async def work() -> None:
        group = OpenGroup(PROMPT, 1)
        group.end(0, "a")

        async def fails(text: str) -> int:
            raise LookupError(text)

        with pytest.raises(LookupError, match="a"):
            await for_each(group.texts(), fails)

    run(work())


@pytest.mark.parametrize("place", [-1, 0, 2])
def test_a_caption_has_a_place_of_its_own(place: int) -> None:
    group = OpenGroup(PROMPT, 2)
    group.end(0, "a")
    with pytest.raises(ValueError, match=f"caption {place} of a group of 2"):
        group.end(place, "b")
