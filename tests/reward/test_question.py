"""The body of a request: what the settings say, unless the question says otherwise."""

from __future__ import annotations

import pytest

from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.question import AS_CONFIGURED, Drawing, Question, newer_length, wants_newer_length
from vcap_jax.system.json_values import JsonObject

CONFIG = JudgeConfig(urls=("http://a",), temperature=0.3, max_tokens=77)
SCHEMA: JsonObject = {"type": "json_schema", "json_schema": {"name": "x"}}


def question(drawing: Drawing = AS_CONFIGURED, response_format: JsonObject | None = None) -> Question:
    return Question(
        messages=[], response_format=response_format, route="r", prefix=None, shown=None, drawing=drawing
    )


def test_a_question_is_drawn_as_configured_unless_it_says_otherwise() -> None:
    plain = question()
    assert plain.temperature(CONFIG) == 0.3
    assert plain.body(CONFIG, "m", 0.3, 0) == {
        "model": "m",
        "messages": [],
        "temperature": 0.3,
        "max_tokens": 77,
    }
    own = question(Drawing(temperature=0.0, max_tokens=5))
    assert own.temperature(CONFIG) == 0.0, "0 is a temperature, not its absence"
    assert own.body(CONFIG, "m", 0.9, 0)["max_tokens"] == 5


@pytest.mark.parametrize(
    ("message", "wants"),
    [
        (
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
            True,
        ),
        ("'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's context is 4096.", False),
        ("max_tokens must be at least 1", False),
    ],
)
def test_a_server_that_wants_the_newer_name_of_the_length_is_known_by_its_words(
    message: str, wants: bool
) -> None:
    assert wants_newer_length(message) is wants
    body = question().body(CONFIG, "m", 0.3, 0)
    assert newer_length(body) == {
        "model": "m",
        "messages": [],
        "temperature": 0.3,
        "max_completion_tokens": 77,
    }


def test_every_try_has_a_seed_of_its_own() -> None:
    seeds = [question(Drawing(seed=40)).body(CONFIG, "m", 0.0, attempt)["seed"] for attempt in range(3)]
    assert seeds == [40, 41, 42]


@pytest.mark.parametrize(
    ("setting", "sent"), [("json_schema", SCHEMA), ("json_object", {"type": "json_object"}), ("none", None)]
)
def test_the_format_is_sent_as_the_endpoint_takes_it(setting: str, sent: object) -> None:
    config = JudgeConfig(urls=("http://a",), response_format=setting)  # type: ignore[arg-type]
    assert question(response_format=SCHEMA).body(config, "m", 0.0, 0).get("response_format") == sent
    assert "response_format" not in question().body(config, "m", 0.0, 0)
