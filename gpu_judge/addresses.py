"""Where a server may listen and who may ask it: the rule both backends keep."""

from __future__ import annotations

import errno
import os
import socket

from vcap_jax.system.api_keys import flaw_of_key
from vcap_jax.system.errors import VCapError
from vcap_jax.system.loopback import is_loopback


class AccessError(VCapError, ValueError):
    """A server would be open to anybody; the message says what to give."""


def require_key_variable(host: str, api_key_env: str | None) -> None:
    """Raises AccessError where ``host`` is no loopback address and no variable is named to hold a key."""
    if api_key_env is None and not is_loopback(host):
        raise AccessError(
            f"--host {host} is reachable from other machines: put a key into an environment variable and name the "
            "variable with --api-key-env, or keep --host 127.0.0.1"
        )


def read_api_key(host: str, api_key_env: str | None) -> str | None:
    """The key that requests must bring; None where none is asked for.

    Raises AccessError for an open address without a key, and for a named variable that holds none.
    """
    require_key_variable(host, api_key_env)
    if api_key_env is None:
        return None
    key = os.environ.get(api_key_env, "")
    if not key.strip():
        raise AccessError(f"--api-key-env names {api_key_env}, and that environment variable is not set")
    if flaw := flaw_of_key(key):
        raise AccessError(f"the key in {api_key_env} {flaw}")
    return key


class ListenError(VCapError, OSError):
    """An address cannot be listened on; the message says why and what to give."""


def listen_error(host: str, port: int, error: OSError | UnicodeError) -> ListenError:
    """What ``error`` means for somebody who asked to listen there."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return ListenError(
            f"port {port} is in use: end what listens there (ss -ltnp), or give another --port"
        )
    why = getattr(error, "strerror", None) or error
    return ListenError(f"cannot listen on {host}:{port}: {why}; check --host and --port")


def url_of(host: str, port: int) -> str:
    """The address that clients are given: a wildcard host becomes this machine's name."""
    if host in ("0.0.0.0", "::", ""):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def local_url_of(host: str, port: int) -> str:
    """The same server as this machine reaches it."""
    return url_of({"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host), port)
