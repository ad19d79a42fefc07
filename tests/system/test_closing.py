"""What is closed at the end of a ``with``."""

from __future__ import annotations

import pytest

from vcap_jax.system.closing import Closing


class Door(Closing):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_it_is_closed_when_the_work_ends_and_when_it_fails() -> None:
    with Door() as door:
        assert not door.closed
    assert door.closed
    with pytest.raises(ZeroDivisionError), Door() as door:
        _ = 1 / 0
    assert door.closed
