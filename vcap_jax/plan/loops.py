"""How often a loop of a compiled program runs, where the compiler does not say.

A scan counts from 0 to N by 1, but what a compiler makes of it need not: products with parameters that are gathered
meanwhile become loops over the devices' parts, and TPU's compiler writes two rounds of those into one and counts by 2.
So start, bound and step are all read from the program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vcap_jax.plan.hlo import Computation, Instruction, Program


@dataclass(frozen=True)
class Linear:
    """An integer: one of a loop's carried values plus a number, or a number. carried: which, None for a number."""

    carried: int | None
    number: int


def trip_count(program: Program, loop: Instruction, within: Computation) -> int | None:
    """How often a ``while`` runs that goes on while a counter is below a number.

    None if no counter and number decide, but other data. Raises ValueError if they do, but where the counter starts or
    how it grows cannot be read.
    """
    condition = program.computations[loop.called("condition")[0]]
    sides = _compared(program, condition)
    if sides is None:
        return None
    body = program.computations[loop.called("body")[0]]
    starts = within.operands(loop)

    def at_start(carried: int) -> int | None:
        values = within.operands(starts[0]) if starts and starts[0].opcode == "tuple" else []
        value = _linear(program, within, values[carried]) if carried < len(values) else None
        return value.number if value is not None and value.carried is None else None

    def after_a_round(carried: int) -> Linear | None:
        values = body.operands(body.root) if body.root.opcode == "tuple" else []
        return _linear(program, body, values[carried]) if carried < len(values) else None

    counter, bound = sides
    assert counter.carried is not None
    number = bound.number
    if bound.carried is not None:
        same = after_a_round(bound.carried) == Linear(bound.carried, 0)
        first = at_start(bound.carried) if same else None
        if first is None:
            return None
        number += first
    start, grown = at_start(counter.carried), after_a_round(counter.carried)
    if start is None or grown is None or grown.carried != counter.carried or grown.number < 1:
        raise ValueError(f"{loop.name} counts to {number}, but from where and by how much is not known")
    return max(0, -(-(number - counter.number - start) // grown.number))


def _compared(program: Program, condition: Computation) -> tuple[Linear, Linear] | None:
    """(counter, bound) of a loop that runs while one is less than the other; None of another."""
    root, where, given = condition.root, condition, None
    if root.opcode == "fusion":
        given = [_linear(program, condition, i) for i in condition.operands(root)]
        where = program.computations[root.called("calls")[0]]
        root = where.root
    if root.opcode != "compare" or "direction=LT" not in root.attributes:
        return None
    sides = [_linear(program, where, i, given) for i in where.operands(root)]
    if len(sides) != 2 or sides[0] is None or sides[1] is None or sides[0].carried is None:
        return None
    return sides[0], sides[1]


def _linear(
    program: Program, within: Computation, i: Instruction, given: Sequence[Linear | None] | None = None
) -> Linear | None:
    """What an instruction gives, None if it is no such integer. given: the parameters of a fusion's computation."""
    if i.opcode == "constant":
        return Linear(None, int(i.arguments)) if re.fullmatch(r"-?\d+", i.arguments) else None
    if i.opcode == "parameter":
        return given[int(i.arguments)] if given is not None else None
    operands = within.operands(i)
    if i.opcode == "get-tuple-element":
        index = re.search(r"\bindex=(\d+)", i.attributes)
        # Of the loop's own values, not of what an instruction of several results gives.
        carried = index is not None and operands and operands[0].opcode == "parameter" and given is None
        return Linear(int(index[1]), 0) if carried and index else None
    values = [_linear(program, within, operand, given) for operand in operands]
    if i.opcode in ("fusion", "call"):
        inner = program.computations[(i.called("calls") or i.called("to_apply"))[0]]
        return _linear(program, inner, inner.root, values)
    if not values or any(value is None for value in values):
        return None
    known = [value for value in values if value is not None]
    if i.opcode in ("copy", "bitcast", "convert", "reshape"):
        return known[0]
    if i.opcode == "add" and (known[0].carried is None or known[1].carried is None):
        carried_by = known[0].carried if known[1].carried is None else known[1].carried
        return Linear(carried_by, known[0].number + known[1].number)
    if i.opcode == "subtract" and known[1].carried is None:
        return Linear(known[0].carried, known[0].number - known[1].number)
    return None
