"""The proxy that the environment names for an address on the internet (``HTTPS_PROXY``, ``NO_PROXY``)."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def https_proxy(url: str) -> str | None:
    """The proxy for ``url``; None for one that is asked directly.

    So are all that begin with http://, whose questions a proxy would read, and hosts that only a network of one's own
    knows: a private address, or a name without a dot.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" or not _is_public(host) or proxy_bypass(host):
        return None
    proxy = getproxies().get("https")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def without_secret(proxy: str) -> str:
    """Its address, as messages may show it."""
    return urlsplit(proxy).netloc.rpartition("@")[2]


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host
