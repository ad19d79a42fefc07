"""Addresses of this machine's loopback interface, which nobody else reaches."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def on_loopback(url: str) -> bool:
    """Whether ``url`` is http on this machine's loopback interface."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return parts.scheme == "http" and local
