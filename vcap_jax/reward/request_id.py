"""Whose answer is it? Keeps the scores of one request from reaching another.

On one connection of HTTP/1.1 an answer belongs to the request before it, and a connection whose answer is not read to
its end is closed, so a late answer cannot be taken for the next one. Whatever lies between us and the model (a proxy,
a cache, the server's own queue) can still mix answers up. Every request therefore carries an identity of its own in
``X-Request-Id``, which vLLM and the embedded judge give back as part of the completion's ``id``. An answer with the
identity of another request is refused; so is one without any from a server that gives them back. A server that never
does cannot be checked in this way, nor one that mixes up texts behind the right identities.
"""

from __future__ import annotations

import re
import uuid

HEADER = "X-Request-Id"
_IDENTITY = re.compile(r"vcap-[0-9a-f]{32}")


def new_identity() -> str:
    """An identity that no other request has."""
    return f"vcap-{uuid.uuid4().hex}"


def given_back(answer_id: str | None) -> str | None:
    """The identity inside a completion's ``id``; None if it holds none."""
    found = _IDENTITY.search(answer_id or "")
    return found.group() if found else None


def is_foreign(answer_id: str | None, identity: str, *, echoes: bool) -> bool:
    """Whether a completion is known to belong to another request than ``identity``.

    echoes: the server has given identities back before.
    """
    found = given_back(answer_id)
    return found != identity if found is not None else echoes
