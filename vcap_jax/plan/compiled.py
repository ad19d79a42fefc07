"""One program compiled: its memory as the compiler laid it out, its work as the compiled text says."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from jax.stages import Lowered

from vcap_jax.kernels.attention import Kernel, kernels_in, require_decoding, require_kernel
from vcap_jax.plan.costs import Cost, Counter
from vcap_jax.plan.hlo import parse


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Bytes per device: arguments, results beyond those written in place of arguments, temporaries, and host: what is
    moved out to the host's memory for a while.

    cost: of one run, loops multiplied out; of a program that is a loop whose length the data decide, of one round,
    with a round's share of what is around the loop. kernels: attention
    kernels found in the program. refused: what the compiler said of a program that does not fit the chip.
    """

    arguments: int
    results: int
    temporaries: int
    cost: Cost
    kernels: tuple[str, ...]
    seconds: float
    host: int = 0
    refused: str | None = None


def compile_program(
    lowered: Lowered,
    *,
    kernel: Kernel | None = None,
    decoding: Kernel | None = None,
    rounds: int = 1,
    looks: int | None = None,
    seen: float = 1.0,
) -> Compiled:
    """Compiles and measures.

    kernel: the attention kernel that must be in it. decoding: the one whose part for new tokens must be. rounds: of the
    loop whose length the data decide, in one run; the cost is a round's. looks: see ``Work``. seen: see ``Counter``.
    Raises UnsupportedAttention if a kernel is not there.
    """
    begin = time.monotonic()
    try:
        compiled = lowered.compile()
    except Exception as error:  # the compiler's errors have no type of their own
        needed = used_memory(str(error))
        if needed is None:
            raise
        return Compiled(
            arguments=0,
            results=0,
            temporaries=needed,
            cost=Cost(),
            kernels=(),
            seconds=time.monotonic() - begin,
            refused=str(error).splitlines()[0],
        )
    text, memory = compiled.as_text(), compiled.memory_analysis()
    # Backends that are planned for give both.
    assert text is not None
    assert memory is not None
    if kernel is not None:
        require_kernel(kernel, text)
    if decoding is not None:
        require_decoding(decoding, text)
    return Compiled(
        arguments=memory.argument_size_in_bytes,
        results=max(0, memory.output_size_in_bytes - memory.alias_size_in_bytes),
        temporaries=memory.temp_size_in_bytes,
        host=memory.host_temp_size_in_bytes,
        cost=Counter(parse(text), open_loops=looks or rounds, seen=seen).total().times(1 / rounds),
        kernels=tuple(sorted(kernels_in(text))),
        seconds=time.monotonic() - begin,
    )


def used_memory(message: str) -> int | None:
    """The bytes a TPU compiler says a program needs when it refuses it, or None of another error."""
    found = re.search(r"Used (\d+(?:\.\d+)?)([GM]) of", message)
    # Beyond the chip's whole memory in temporaries alone it says it in other words.
    found = found or re.search(r"Ran out of memory .*\((\d+(?:\.\d+)?)([GM])\) exceeds", message)
    if found is None:
        return None
    return int(float(found[1]) * {"G": 2**30, "M": 2**20}[found[2]])
