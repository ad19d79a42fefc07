"""A compiled program read back: what one device does in it, loops multiplied out.

XLA's own cost analysis counts the body of a loop once, and the layers of the decoder are a loop. The optimised
program names the trip counts it knows, so here every instruction is counted as often as it runs. Bytes are those an
instruction reads and writes in the chip's memory: a fusion counts its operands and results, not what stays inside.

Where it does not say how often a loop runs (``trip_count``): a scan counts from 0 to N by 1, but what a compiler makes
of it need not. Products with parameters that are gathered meanwhile become loops over the devices' parts, and TPU's
compiler writes two rounds of those into one and counts by 2. So start, bound and step are all read from the program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

BYTES = {
    "pred": 1, "s4": 1, "u4": 1, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip

_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_START = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_TRIPS = re.compile(r'known_trip_count":\s*\{"n":\s*"(\d+)"')


@dataclass(frozen=True)
class Shape:
    """One array. on_chip: it lives in the cores' own memory (a TPU's), and costs no traffic."""

    dtype: str
    dims: tuple[int, ...]
    on_chip: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return 0 if self.on_chip else self.elements * BYTES.get(self.dtype, 0)


@dataclass(frozen=True)
class Instruction:
    """One line of a program. shapes: its results (several of a tuple). attributes: the rest of the line."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    arguments: str
    root: bool

    @property
    def result_bytes(self) -> int:
        return sum(shape.bytes for shape in self.shapes)

    def called(self, key: str) -> list[str]:
        """Computations named by an attribute such as ``calls`` or ``body``."""
        found = re.search(rf"\b{key}=(\{{[^}}]*\}}|%[\w.\-]+)", self.attributes)
        return _NAME.findall(found[1]) if found else []

    def dims(self, key: str) -> tuple[int, ...]:
        """The numbers of an attribute such as ``lhs_contracting_dims={1}``."""
        found = re.search(rf"\b{key}=\{{([\d,]*)\}}", self.attributes)
        return _numbers(found[1]) if found else ()

    @property
    def trips(self) -> int | None:
        """How often a loop runs, or None if only the data know."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else None


@dataclass
class Computation:
    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    def operands(self, instruction: Instruction) -> list[Instruction]:
        return [self.instructions[name] for name in instruction.operands if name in self.instructions]

    def users(self, name: str) -> list[Instruction]:
        return [i for i in self if name in i.operands]

    @property
    def root(self) -> Instruction:
        return next(i for i in self if i.root)


@dataclass(frozen=True)
class Program:
    """The computations of a compiled module by name; ``entry`` is where it starts."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Program:
    """Reads ``compiled.as_text()``. Raises ValueError if there is no entry computation in it."""
    computations: dict[str, Computation] = {}
    entry, current = None, None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header and not line.startswith(" "):
            current = computations.setdefault(header[2], Computation(header[2]))
            entry = header[2] if header[1] else entry
        elif current is not None and (start := _START.match(line)):
            instruction = _instruction(start[2], line[start.end() :], bool(start[1]))
            if instruction is not None:
                current.instructions[instruction.name] = instruction
    if entry is None:
        raise ValueError("this is no compiled program: it has no ENTRY computation")
    return Program(computations, entry)


def _instruction(name: str, rest: str, root: bool) -> Instruction | None:
    end = _closing(rest, 0) + 1 if rest.startswith("(") else _end_of_type(rest)
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        return None
    close = _closing(rest, opcode.end() - 1)
    arguments = rest[opcode.end() : close]
    return Instruction(
        name=name,
        opcode=opcode[1],
        shapes=shapes_in(rest[:end]),
        operands=tuple(_NAME.findall(arguments)),
        attributes=rest[close + 1 :],
        arguments=arguments,
        root=root,
    )


def shapes_in(text: str) -> tuple[Shape, ...]:
    """All arrays that a type names."""
    return tuple(
        Shape(dtype, _numbers(dims), bool(layout) and "S(1)" in layout)
        for dtype, dims, layout in _SHAPE.findall(text)
        if dtype in BYTES
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def _end_of_type(text: str) -> int:
    """Where ``f32[8,2]{1,0:T(8,128)} add(...)`` has its first blank outside braces."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter in "{[") - (letter in "}]")
        if letter == " " and depth == 0:
            return index
    return len(text)


def _closing(text: str, start: int) -> int:
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return len(text)


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
