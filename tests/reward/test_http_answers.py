"""What servers of OpenAI's API are called and answer with."""

import json

import pytest

from vcap_jax.reward.http_answers import base_url, error_message, read_completion, retry_after_seconds


def test_addresses() -> None:
    assert base_url("http://h:1") == base_url("http://h:1/") == "http://h:1/v1"
    assert base_url("https://h/v1/") == "https://h/v1"
    assert base_url("https://h/v1beta/openai") == "https://h/v1beta/openai"


@pytest.mark.parametrize("content", ["so happy \ud83d", [{"type": "text", "text": "so happy \ud83d"}]])
def test_half_a_character_in_an_answer_reaches_no_file(content: object) -> None:
    answer = read_completion(json.dumps({"choices": [{"message": {"content": content}}]}).encode())
    assert answer is not None
    assert answer.text == "so happy ?"


def test_half_a_character_in_an_error_or_a_name_reaches_no_file() -> None:
    assert error_message(b'{"error": {"message": "refused: so happy \\ud83d"}}') == "refused: so happy ?"
    assert error_message(b'{"detail": "\\ud83d"}') == "?"
    answer = read_completion(b'{"choices": [{"message": {"content": "x"}}], "id": "a\\ud83d"}')
    assert answer is not None
    assert answer.id == "a?"


def test_a_wait_that_cannot_be_read_is_none() -> None:
    assert retry_after_seconds("Mon, 21 Oct 2015 07:28:00 +99999999999999999999") is None
    assert retry_after_seconds("soon") is None
    assert retry_after_seconds("Mon, 21 Oct 2015 07:28:00 GMT") == 0.0


def test_counts_that_are_none_make_no_completion() -> None:
    body = b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": Infinity}}'
    assert read_completion(body) is None


@pytest.mark.parametrize("told", [10**30, -1, None])
def test_a_count_that_no_answer_has_is_none(told: object) -> None:
    """SQLite could not hold it."""
    body = {
        "choices": [{"message": {"content": "x"}}],
        "usage": {"prompt_tokens": told, "completion_tokens": 7},
    }
    answer = read_completion(json.dumps(body).encode())
    assert answer is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (0, 7)


@pytest.mark.parametrize("given", [{"type": "stop"}, ["stop"], 1, None])
def test_a_finish_reason_that_is_no_text_is_none(given: object) -> None:
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": given}]}
    answer = read_completion(json.dumps(body).encode())
    assert answer is not None
    assert answer.finish_reason is None
