"""Settings of the rollout servers: which addresses are taken, and what a wrong one is told."""

from __future__ import annotations

import pytest

from vcap_jax.rollout.config import RolloutConfig, VllmConfig


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:8100", "https://127.0.0.1:8100", "http://judge.example:8100"]
)
def test_addresses_beyond_loopback_are_refused(url):
    with pytest.raises(
        ValueError, match=rf"urls\.1\n.*must be http://127\.0\.0\.1:PORT .*input_value='{url}'"
    ):
        VllmConfig(urls=("http://127.0.0.1:8100", url))


def test_loopback_addresses_pass():
    VllmConfig(urls=("http://127.0.0.1:8100", "http://localhost:8100", "http://[::1]:8100"))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8100/v1",
        "http://127.0.0.1:8100/v1/",
        "http://127.0.0.1:8100?",
        "http://127.0.0.1:8100#",
        "http://user:password@127.0.0.1:8100",
    ],
)
def test_an_address_is_a_host_and_a_port_alone(url):
    with pytest.raises(ValueError, match=r"urls\.0\n.*http://127\.0\.0\.1:PORT alone: without /v1"):
        VllmConfig(urls=(url,))


def test_a_trailing_slash_passes():
    VllmConfig(urls=("http://127.0.0.1:8100/",))


@pytest.mark.parametrize("again", ["http://127.0.0.1:8100", "http://127.0.0.1:8100/"])
def test_an_address_that_is_named_twice_is_refused(again):
    with pytest.raises(ValueError, match=r"VllmConfig\nurls\n.*named twice"):
        VllmConfig(urls=("http://127.0.0.1:8100", "http://127.0.0.1:8101", again))


def test_settings_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"rollout\.vllm\.urls is empty"):
        RolloutConfig(engine="vllm")
    with pytest.raises(ValueError, match=r"importance_cap\n.*greater than or equal to 1.*input_value=0\.5"):
        VllmConfig(importance_cap=0.5)
