"""Which addresses nobody else reaches."""

from __future__ import annotations

import pytest

from vcap_jax.system.loopback import on_loopback


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
