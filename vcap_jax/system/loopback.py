"""Addresses of this machine's loopback interface, which nobody else reaches."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``. Names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def on_loopback(url: str) -> bool:
    """Whether ``url`` is http on this machine's loopback interface."""
    parts = urlsplit(url)
    return parts.scheme == "http" and is_loopback(parts.hostname or "")
