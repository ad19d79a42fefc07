"""What stands behind the embedded judge's address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Judge(Protocol):
    """Answers the body of a chat completion request with the JSON object that its instruction asks for."""

    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The verdict; raises ``BadRequest`` where the request cannot be judged.

        Called from a thread of its own, for one request at a time.
        """
        ...
