"""Whose answer it is, as the identity in a completion's id tells."""

from __future__ import annotations

import json

import aiohttp
import pytest

from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.endpoint import Endpoint, Reply
from vcap_jax.reward.role import JUDGE
from vcap_jax.reward.tries import new_identity, read_reply
from vcap_jax.system.clock import Clock

MINE, OTHER = f"vcap-{'0' * 32}", f"vcap-{'1' * 32}"


def no_session() -> aiohttp.ClientSession:
    raise AssertionError("nothing is sent")


@pytest.mark.parametrize(
    ("answer_id", "echoes", "foreign"),
    [
        (f"chatcmpl-{MINE}", False, False),
        (f"chatcmpl-{MINE}", True, False),
        (f"chatcmpl-{OTHER}", False, True),
        (f"chatcmpl-{OTHER}", True, True),
        ("chatcmpl-17", False, False),
        (None, False, False),
        ("chatcmpl-17", True, True),
        (None, True, True),
    ],
)
def test_identities_tell_whose_answer_it_is(answer_id: str | None, echoes: bool, foreign: bool) -> None:
    endpoint = Endpoint("http://127.0.0.1:1", JudgeConfig(), no_session, Clock(), JUDGE)
    endpoint.echoes = echoes
    completion = {"id": answer_id, "choices": [{"message": {"content": "yes"}}]}
    tried = read_reply(Reply(status=200, raw=json.dumps(completion).encode()), endpoint, MINE)
    assert (tried.failure is not None and tried.failure.reason == "foreign_answer") == foreign
    assert (tried.completion is None) == foreign
    assert endpoint.echoes == (echoes or answer_id == f"chatcmpl-{MINE}")


def test_no_two_identities_are_alike() -> None:
    assert len({new_identity() for _ in range(100)}) == 100
