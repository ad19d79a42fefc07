"""Keys as HTTP headers hold them."""

from __future__ import annotations


def flaw_of_key(key: str) -> str | None:
    """What keeps a key from being sent as it is, with the remedy; None if nothing does. The key is not in it."""
    if key == key.strip() and key.isascii() and key.isprintable():
        return None
    return "has white space around it or characters that no HTTP header holds: set it again, in plain ASCII on one line"
