"""What went wrong with an HTTP request, in words."""

from __future__ import annotations

import aiohttp

from vcap_jax.system.connection_errors import broken_connection


def test_what_a_library_says_in_several_lines_is_one() -> None:
    """As of a body that is not compressed as its header says."""
    error = aiohttp.ClientPayloadError("400, message:\n  Can not decode content-encoding: gzip")
    told = "ClientPayloadError: 400, message: Can not decode content-encoding: gzip"
    assert broken_connection(error) == told
