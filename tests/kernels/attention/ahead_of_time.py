"""Compiles a kernel for new tokens for a device that is not here: ``python ... hopper|tpu``; prints JSON.

A program of its own: JAX reads what ``targets.prepare_environment`` sets when it is first imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SIZES = (2, 8, 32, 8, 128, 4096, 256, 128)
"""Groups, captions, heads, key heads, head size, columns of prompts, of captions, and of new tokens among those."""
CHIPS = {"hopper": "h100x1", "tpu": "v5p-8"}


def compiled(name: str) -> dict[str, Any]:
    """Of the kernel's call: its text's custom calls, bytes of temporaries, and what the GPU's assembler says."""
    from vcap_jax.plan import targets

    targets.prepare_environment()
    with TemporaryDirectory() as folder:
        os.environ |= {"MOSAIC_GPU_DUMP_PTXAS": "1", "MOSAIC_GPU_DUMP_TO": folder}
        import jax
        import jax.numpy as jnp
        from jax.sharding import NamedSharding, PartitionSpec

        from vcap_jax.kernels import attention
        from vcap_jax.kernels.attention.backends import token_kernel
        from vcap_jax.system.hardware import hardware

        target = hardware(CHIPS[name])
        devices = targets.devices(target.chip, target.topology)
        mesh = jax.sharding.Mesh(devices[:1], ("x",))
        groups, captions, heads, key_heads, dim, prompt, columns, late = SIZES
        rows = groups * captions * key_heads

        def shape(*dims: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

        def decode(q: Any, pk: Any, pv: Any, k: Any, v: Any, lengths: Any, early: Any, new: Any) -> Any:
            seen = attention.Seen(jnp.ones((groups, columns), bool), early, new, columns - late)
            shared = attention.Cached(pk, pv, attention.Seen.first(lengths, prompt))
            return token_kernel(name).decode(q, shared, attention.Cached(k, v, seen))

        program = jax.jit(decode).lower(
            shape(groups, captions, heads, dim),
            shape(groups, key_heads, dim, prompt),
            shape(groups, key_heads, prompt, dim),
            shape(rows, dim, columns),
            shape(rows, columns, dim),
            shape(groups, dtype=jnp.int32),
            *[shape(groups, captions, dtype=jnp.int32)] * 2,
        )
        done = program.compile()
        memory = done.memory_analysis()
        assert memory is not None
        said = [line for path in Path(folder).glob("*.ptxas") for line in path.read_text().splitlines()]
        return {
            "calls": sorted(attention.kernels_in(done.as_text() or "")),
            "temporary": memory.temp_size_in_bytes,
            "caches": 4 * (groups * key_heads * prompt + rows * columns) * dim,
            "assembler": [line.strip() for line in said if "spill" in line or "Used" in line],
        }


if __name__ == "__main__":
    print(json.dumps(compiled(sys.argv[1])))
