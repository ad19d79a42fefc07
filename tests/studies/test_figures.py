"""Figures of the report."""

from __future__ import annotations

import re

import numpy as np

from vcap_jax.studies.figures import curves


def test_ten_arms_are_told_apart_by_colour_and_stroke() -> None:
    """The largest study has ten, and there are six colours."""
    arms = {f"arm {number}": [np.full((3, 2), number / 10)] for number in range(10)}
    drawn = curves(arms, steps=3, column=0, title="coverage")
    lines = re.findall(
        r'd="M [^"]*" clip-path="[^"]*" style="(fill: none; [^"]*stroke-width: 1\.5[^"]*)"', drawn
    )
    assert len(lines) == len(set(lines)) == 10
