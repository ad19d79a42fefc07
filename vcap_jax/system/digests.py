"""Numbers and names that a text decides, the same on every machine and in every process."""

from __future__ import annotations

from hashlib import blake2b


def number_of(text: str, size: int = 8) -> int:
    """A whole number of so many bytes, as if drawn evenly."""
    return int.from_bytes(_blake(text, size), "big")


def digest_of(content: str | bytes, size: int = 16) -> str:
    """By which a content is known again: so many bytes, in hexadecimal."""
    return _blake(content, size).hex()


def _blake(content: str | bytes, size: int) -> bytes:
    # What a model wrote, or a row of somebody's file, may hold half of a character.
    told = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return blake2b(told, digest_size=size).digest()
