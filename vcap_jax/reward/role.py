"""What servers are to whoever asks them, for messages, and the key that they are asked with."""

from __future__ import annotations

import os
from dataclasses import dataclass

from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.system.api_keys import flaw_of_key


@dataclass(frozen=True, kw_only=True)
class Role:
    """What the servers are to whoever asks them, for messages.

    who: in words. settings: the part of the configuration that says how to treat them. addresses, model, key: where the
    user names them, if it is not there.
    """

    who: str = "the judge"
    settings: str = "judge"
    addresses: str = ""
    model: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        for name, setting in (("addresses", "urls"), ("model", "model"), ("key", "api_key_env")):
            if not getattr(self, name):
                object.__setattr__(self, name, f"{self.settings}.{setting}")


JUDGE = Role()


def key_remedy(api_key_env: str | None, role: Role) -> str:
    """What to do where the key of that variable is refused, or that there is none."""
    if api_key_env is None:
        return f"set {role.key} to the name of the environment variable that holds it"
    return f"check what {api_key_env} holds, the environment variable that {role.key} names"


def authorisation(api_key_env: str | None, role: Role) -> dict[str, str]:
    """The header with the key. Raises JudgeUnavailable if the variable that should hold it is not set, or holds what no
    header does."""
    if api_key_env is None:
        return {}
    key = os.environ.get(api_key_env)
    if not key:
        raise JudgeUnavailable(f"{role.key} names {api_key_env}, and that environment variable is not set")
    if flaw := flaw_of_key(key):
        raise JudgeUnavailable(f"{role.key} names {api_key_env}, and the key in it {flaw}")
    return {"Authorization": f"Bearer {key}"}
