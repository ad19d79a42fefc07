"""The type of arrays that travel: NumPy on the host, JAX on the devices, shapes alone in a plan."""

from __future__ import annotations

from typing import Any

AnyArray = Any
"""``numpy.ndarray``, ``jax.Array`` or ``jax.ShapeDtypeStruct``. A batch is the same dataclass in all three
forms, and JAX's transformations put further things in their places; no union of them type-checks where it is used."""
