"""The flags that make the tests' programs compile quickly are those that this XLA has."""

from __future__ import annotations

import os

from tests import quick_compile


def test_flags_are_set_where_xla_has_them() -> None:
    """Were none found, the tests would take twice as long and nobody would know why."""
    assert quick_compile.known("--xla_force_host_platform_device_count=8")
    assert not quick_compile.known("--xla_there_is_no_such_flag=true")
    assert quick_compile.flags() == [flag for flag in quick_compile.FLAGS if quick_compile.known(flag)] != []
    assert all(flag in os.environ["XLA_FLAGS"].split() for flag in quick_compile.flags())
