"""What came of one HTTP exchange with a judge, and whether and when to ask again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vcap_jax.reward.endpoint import Endpoint, Reply
from vcap_jax.reward.endpoints import Outcome
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.http_answers import LIMITED, Completion, error_message, read_completion, short
from vcap_jax.reward.request_id import given_back, is_foreign

_RETRIED_STATUS = frozenset({408, 409, LIMITED})


@dataclass(frozen=True, kw_only=True)
class Try:
    """One HTTP exchange: a completion, or a failure with whether and when to ask again.

    gone: the server does not know the key, the model or the address. limited: it says that too much is asked of it.
    """

    outcome: Outcome
    completion: Completion | None = None
    failure: Failure | None = None
    again: bool = True
    retry_after: float | None = None
    gone: bool = False
    limited: bool = False


def read_reply(reply: Reply) -> Try:
    """An answer as it came."""
    if reply.status != 200:
        return Try(
            outcome="doubt" if reply.status >= 500 else "answered",
            failure=Failure(reason="http_status", detail=f"{reply.status}: {error_message(reply.raw)}"),
            again=reply.status >= 500 or reply.status in _RETRIED_STATUS,
            retry_after=reply.retry_after,
            gone=reply.status in (401, 404),
            limited=reply.status == LIMITED,
        )
    completion = read_completion(reply.raw)
    if completion is None:
        detail = f"no chat completion in the answer: {short(reply.raw)}"
        return Try(outcome="answered", failure=Failure(reason="bad_response", detail=detail))
    return Try(outcome="answered", completion=completion)


def owned(tried: Try, endpoint: Endpoint, identity: str) -> Try:
    """The same, unless it is the answer to another request."""
    if tried.completion is None:
        return tried
    answer_id = tried.completion.id
    if is_foreign(answer_id, identity, echoes=endpoint.echoes):
        detail = f"asked as {identity}, answered as {answer_id}"
        return Try(outcome="answered", failure=Failure(reason="foreign_answer", detail=detail))
    endpoint.echoes = endpoint.echoes or given_back(answer_id) is not None
    return tried
