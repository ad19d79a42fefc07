"""Keys as HTTP headers hold them."""

from __future__ import annotations

import pytest

from vcap_jax.system.api_keys import flaw_of_key


@pytest.mark.parametrize("key", ["abc\r", "abc\n", " abc", "a\x01b", "schl\u00fcssel"])
def test_a_key_that_no_header_holds_is_told(key: str) -> None:
    flaw = flaw_of_key(key)
    assert flaw is not None
    assert key not in flaw


def test_other_keys_are_sent_as_they_are() -> None:
    assert flaw_of_key("sk-Ab_1.2/3+4=") is None
