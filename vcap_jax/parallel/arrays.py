"""The types of arrays that travel: NumPy on the host, JAX on the devices, shapes alone in a plan."""

from __future__ import annotations

from typing import TypeAlias

import jax
import numpy as np
from typing_extensions import TypeVar

AnyArray: TypeAlias = jax.Array | np.ndarray
"""On the host or on the devices. Tracers, and what ``jax.eval_shape`` puts in an array's place, go by the same type, as
they do in JAX."""
ArrayT = TypeVar("ArrayT", default=jax.Array)
"""What the arrays of a batch are, where functions tell: on the devices if nothing is said."""
