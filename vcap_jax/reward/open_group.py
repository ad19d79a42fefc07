"""A group whose captions end one after the other, for families that score each as soon as it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from typing import TypeVar

from vcap_jax.reward.group import GroupForReward, GroupPrompt

T = TypeVar("T")


class OpenGroup:
    """A group of ``size`` captions, some of which may not have ended. It belongs to the event loop that scores it.

    prompt: what the captions are held against.
    """

    def __init__(self, prompt: GroupPrompt, size: int) -> None:
        self.prompt, self.size = prompt, size
        self._captions: dict[int, str] = {}
        self._news = asyncio.Event()

    @classmethod
    def ended(cls, group: GroupForReward) -> OpenGroup:
        """A group all of whose captions have ended."""
        opened = cls(group, len(group.captions))
        for place, caption in enumerate(group.captions):
            opened.end(place, caption)
        return opened

    def end(self, place: int, caption: str) -> None:
        """Tells the caption at ``place`` of the group. Raises ValueError for a place that it has not, or twice."""
        if not 0 <= place < self.size or place in self._captions:
            raise ValueError(
                f"caption {place} of a group of {self.size} ends a second time, or is none of it"
            )
        self._captions[place] = caption
        self._news.set()
        self._news = asyncio.Event()

    async def texts(self) -> AsyncIterator[str]:
        """Each different caption once, as soon as one with its text has ended. May be gone through several times."""
        told = 0
        while True:
            different = list(dict.fromkeys(self._captions.values()))
            if told < len(different):
                yield different[told]
                told += 1
            elif len(self._captions) == self.size:
                return
            else:
                await self._news.wait()

    async def whole(self) -> GroupForReward:
        """The group with its captions in their order, once all have ended."""
        while len(self._captions) < self.size:
            await self._news.wait()
        return self.prompt.with_captions(tuple(self._captions[place] for place in range(self.size)))


async def for_each(
    texts: AsyncIterable[str], work: Callable[[str], Coroutine[object, object, T]]
) -> dict[str, T]:
    """What ``work`` makes of each different text; begun for a text as soon as it comes. Raises what ``work`` raises."""
    begun: dict[str, asyncio.Task[T]] = {}
    async for text in texts:
        if text not in begun:
            begun[text] = asyncio.create_task(work(text))
    return dict(zip(begun, await asyncio.gather(*begun.values()), strict=True))
