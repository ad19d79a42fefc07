"""What went wrong with an HTTP request that brought no answer, in words."""

from __future__ import annotations

import errno
import os

import aiohttp


def broken_connection(error: Exception) -> str:
    """error: what aiohttp raised, or a TimeoutError."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {error.host} has no address ({error.os_error.strerror or error.os_error})"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection was made in time"
    if isinstance(error, TimeoutError):
        return "no answer came in time"
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        # A name may have several addresses; where they fail in different ways there is no number.
        number = error.os_error.errno
        return str(error) if number is None else os.strerror(number).lower()
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without an answer"
    if isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "the server broke the connection"
    if isinstance(error, aiohttp.ClientHttpProxyError):  # whose own words hold the proxy's password
        return f"the proxy answers {error.status} {error.message}"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"what answers is not HTTP ({error.message})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"  # some have several lines
