"""Folders, seeds and records on disk are named by these: they must not change."""

from __future__ import annotations

from vcap_jax.system.digests import digest_of, number_of


def test_numbers_are_those_of_blake2b() -> None:
    # printf %s question/0/a/1 | b2sum -l 64, and -l 32
    assert number_of("question/0/a/1") == 0x40DBB924E2C19272
    assert number_of("0/a/1", size=4) == 0xF5BF0D48


def test_digests_are_those_of_blake2b() -> None:
    # printf '["a", null]' | b2sum -l 128, and -l 32
    assert digest_of('["a", null]') == "00bb830bb4f4eb6f59d3c89541844edd"
    assert digest_of(b'["a", null]', size=4) == "f4d92465"


def test_half_of_a_character_is_taken_as_it_is() -> None:
    assert digest_of("\ud800") == digest_of(b"\xed\xa0\x80")
