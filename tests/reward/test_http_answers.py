"""What servers of OpenAI's API are called and answer with."""

from vcap_jax.reward.http_answers import base_url


def test_addresses() -> None:
    assert base_url("http://h:1") == base_url("http://h:1/") == "http://h:1/v1"
    assert base_url("https://h/v1/") == "https://h/v1"
    assert base_url("https://h/v1beta/openai") == "https://h/v1beta/openai"
