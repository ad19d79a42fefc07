"""Which addresses are asked through the environment's proxy."""

from __future__ import annotations

import pytest

from vcap_jax.system.proxies import https_proxy, without_secret


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy:3128")
    monkeypatch.setenv("NO_PROXY", "judge.example.org,.cluster.local")


@pytest.mark.parametrize(
    "url", ["https://api.openai.com/v1", "https://API.example.org:8443/v1", "https://8.8.8.8"]
)
def test_what_is_on_the_internet_is_asked_through_it(url: str) -> None:
    assert https_proxy(url) == "http://user:secret@proxy:3128"


@pytest.mark.parametrize(
    "url",
    [
        "http://api.openai.com/v1",
        "http://node7:8000/v1",
        "https://node7:8000/v1",
        "https://10.0.0.5/v1",
        "https://127.0.0.1:8000",
        "https://[::1]:8000",
        "https://localhost",
        "https://judge.example.org/v1",
        "https://a.cluster.local/v1",
    ],
)
def test_all_else_is_asked_directly(url: str) -> None:
    assert https_proxy(url) is None


def test_without_a_proxy_everything_is_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HTTPS_PROXY")
    assert https_proxy("https://api.openai.com") is None


def test_a_proxy_may_be_named_without_its_scheme_and_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert without_secret("http://user:secret@proxy:3128") == "proxy:3128"
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    assert https_proxy("https://api.openai.com") == "http://proxy:3128"
