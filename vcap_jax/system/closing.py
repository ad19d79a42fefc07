"""What is closed at the end of a ``with``."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self


class Closing:
    """A context manager of what has ``close``; entering does nothing."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
