"""Which addresses nobody else reaches."""

from __future__ import annotations

import pytest

from vcap_jax.system.loopback import is_loopback, on_loopback


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.0.0.2:8000/v1", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://10.0.0.5:8000", False),
        ("http://127.0.0.1.example.org:8000", False),
        ("https://127.0.0.1:8000", False),
        ("127.0.0.1:8000", False),
    ],
)
def test_loopback_is_this_machine_over_http(url: str, local: bool) -> None:
    assert on_loopback(url) is local


def test_what_only_this_machine_reaches() -> None:
    assert [host for host in ("127.0.0.1", "::1", "localhost", "127.8.0.1") if not is_loopback(host)] == []
    assert [host for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "") if is_loopback(host)] == []
