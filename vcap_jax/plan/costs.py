"""Operations, bytes and messages of a compiled program, instruction by instruction.

Counted from the optimised program of one device: matrix products (dots, convolutions, library calls and attention
kernels; everything else is small beside them), bytes read and written, bytes sent over links. Loops with a known
trip count are multiplied out; a loop whose length depends on data counts as often as the caller says.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from vcap_jax.plan.hlo import BYTES, Computation, Instruction, Program, Shape, trip_count


@dataclass(frozen=True)
class Cost:
    """Of one device. flops: of products. moved: bytes between memory and cores. sent: bytes over links. by_formula:
    the part of ``flops`` that is of attention kernels, computed from the shapes that they are given. unknown: kernels
    whose operations the program does not tell, and loops that are counted once because nobody says how often they run.
    """

    flops: float = 0.0
    moved: float = 0.0
    sent: float = 0.0
    by_formula: float = 0.0
    unknown: frozenset[str] = frozenset()

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.moved + other.moved,
            self.sent + other.sent,
            self.by_formula + other.by_formula,
            self.unknown | other.unknown,
        )

    def times(self, count: float) -> Cost:
        return Cost(
            self.flops * count, self.moved * count, self.sent * count, self.by_formula * count, self.unknown
        )


_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota", "opt-barrier"),
    *("partition-id", "replica-id", "send", "recv"),
}
_COLLECTIVES = {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"}


@dataclass
class Counter:
    """Counts a program.

    open_loops: how often loops run whose length the data decide. seen: which share of their keys the queries of an
    attention kernel see on average that is told the number of keys by the data, and computes no others.
    """

    program: Program
    open_loops: int = 1
    seen: float = 1.0
    _seen: dict[str, Cost] = field(default_factory=dict)

    def total(self) -> Cost:
        """The whole program's."""
        return self.computation(self.program.entry)

    def computation(self, name: str) -> Cost:
        """One computation's, what it calls included."""
        if name not in self._seen:
            computation = self.program.computations[name]
            self._seen[name] = sum((self.instruction(i, computation) for i in computation), Cost())
        return self._seen[name]

    def instruction(self, i: Instruction, within: Computation) -> Cost:
        opcode = i.opcode
        if opcode == "while":
            body = self.computation(i.called("body")[0])
            try:
                trips = i.trips or trip_count(self.program, i, within)
            except ValueError:
                return body + Cost(unknown=frozenset({i.name}))
            return body.times(trips or self.open_loops)
        if opcode == "conditional":
            branches = i.called("branch_computations")
            branches = branches or i.called("true_computation") + i.called("false_computation")
            return max(
                (self.computation(b) for b in branches), key=lambda c: (c.flops, c.moved), default=Cost()
            )
        if opcode in ("call", "async-start"):
            called = i.called("to_apply") or i.called("calls")
            return sum(map(self.computation, called), Cost())
        collective = opcode.removesuffix("-start")
        if collective in _COLLECTIVES:
            return Cost(moved=float(i.result_bytes), sent=_sent(collective, i, within))
        if opcode in _FREE or opcode.endswith("-done"):
            return Cost()
        if opcode == "fusion":
            inner = self.program.computations[i.called("calls")[0]]
            return self._products(i, within) + Cost(moved=float(_fusion_bytes(i, within, inner)))
        return self._products(i, within) + Cost(moved=float(_bytes(i, within)))

    def _products(self, i: Instruction, within: Computation) -> Cost:
        """The operations of one instruction, of a nested fusion's too."""
        if i.opcode == "fusion":
            inner = self.program.computations[i.called("calls")[0]]
            return sum((self._products(j, inner) for j in inner), Cost())
        operands = [operand.shapes[0] for operand in within.operands(i) if operand.shapes]
        if i.opcode == "dot":
            contracted = math.prod(operands[0].dims[d] for d in i.dims("lhs_contracting_dims"))
            return Cost(flops=2.0 * i.shapes[0].elements * contracted)
        if i.opcode == "convolution":
            return Cost(flops=_convolution(i, operands))
        if i.opcode == "custom-call":
            return _library_call(i, operands, self.seen)
        return Cost()


def _sent(kind: str, i: Instruction, within: Computation) -> float:
    """Bytes a device sends, by the ring algorithms: (n - 1) / n of the whole array, twice for an all-reduce."""
    inputs = sum(s.elements * BYTES.get(s.dtype, 0) for operand in within.operands(i) for s in operand.shapes)
    if kind == "collective-permute":
        return float(inputs)
    n = _group_size(i)
    whole = inputs * n if kind == "all-gather" else inputs
    return whole * (n - 1) / n * (2 if kind == "all-reduce" else 1)


def _group_size(i: Instruction) -> int:
    """Devices that take part in a collective together, from any spelling of its groups."""
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", i.attributes)
    if mesh:
        sizes = {name: int(size) for name, size in re.findall(r"'([\w]+)'=(\d+)", mesh[1])}
        return math.prod(sizes[name] for name in re.findall(r"'([\w]+)'", mesh[2]))
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]", i.attributes)
    if iota:
        return int(iota[1])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", i.attributes)
    return len(listed[1].split(",")) if listed else 2


def _bytes(i: Instruction, within: Computation) -> int:
    operands = within.operands(i)
    if i.opcode in ("dynamic-slice", "slice", "gather", "copy-start", "slice-start"):
        return 2 * (i.shapes[0].bytes if i.shapes else 0)
    if i.opcode == "dynamic-update-slice":
        return 2 * operands[1].result_bytes
    if i.opcode == "scatter":
        return 3 * operands[-1].result_bytes
    return i.result_bytes + sum(operand.result_bytes for operand in operands)


def _fusion_bytes(i: Instruction, within: Computation, inner: Computation) -> int:
    """Operands read, of which a slice may be all that is looked at, and results written, likewise."""
    parameters = {int(p.arguments): p for p in inner if p.opcode == "parameter"}
    read = 0
    for index, operand in enumerate(within.operands(i)):
        parameter = parameters.get(index)
        users = _users(inner, parameter.name) if parameter else []
        if operand.result_bytes and users and all(_takes_part(user, parameter, inner) for user in users):
            read += min(sum(_part(user, inner) for user in users), operand.result_bytes)
        else:
            read += operand.result_bytes
    roots = inner.operands(inner.root) if inner.root.opcode == "tuple" else [inner.root]
    written = 0
    for root, shape in zip(roots, i.shapes, strict=False):
        source = _behind(root, inner)
        written += (
            min(_part(source, inner), shape.bytes) if source.opcode == "dynamic-update-slice" else shape.bytes
        )
    return read + written


def _behind(i: Instruction, inner: Computation) -> Instruction:
    while i.opcode in ("bitcast", "copy", "convert") and inner.operands(i):
        i = inner.operands(i)[0]
    return i


def _users(inner: Computation, name: str) -> list[Instruction]:
    """Who reads a value, looking through views of it."""
    users = []
    for user in inner.users(name):
        users += _users(inner, user.name) if user.opcode == "bitcast" else [user]
    return users


def _takes_part(user: Instruction, parameter: Instruction | None, inner: Computation) -> bool:
    if user.opcode in ("dynamic-slice", "slice", "gather"):
        return True
    if user.opcode == "dynamic-update-slice":
        return _behind(inner.operands(user)[0], inner) is parameter
    return False


def _part(user: Instruction, inner: Computation) -> int:
    if user.opcode == "dynamic-update-slice":
        return inner.operands(user)[1].shapes[0].bytes
    return user.shapes[0].bytes


def _convolution(i: Instruction, operands: list[Shape]) -> float:
    """A product as a TPU's compiler writes it: taps that fall on padding or between spread-out rows cost nothing."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", i.attributes)
    if labels is None or len(operands) < 2:
        return 0.0
    lhs, rhs = operands[0].dims, operands[1].dims
    features = rhs[labels[2].index("i")] * rhs[labels[2].index("o")]
    batch = lhs[labels[1].index("b")]
    told = re.search(r"window=\{([^}]*)\}", i.attributes)
    sizes = re.findall(r"(\w+)=([\dx_\-]+)", told[1] if told else "")
    window = {key: value.split("x") for key, value in sizes}
    pairs = 1
    spatial = sorted(letter for letter in labels[1] if letter.isdigit())
    for d, letter in enumerate(spatial):
        size_in, size_out = lhs[labels[1].index(letter)], i.shapes[0].dims[labels[3].index(letter)]
        stride, spread, hole = (
            int(window[key][d]) if key in window else 1 for key in ("stride", "lhs_dilate", "rhs_dilate")
        )
        before, after = window["pad"][d].split("_") if "pad" in window else (0, 0)
        pad = (int(before), int(after))
        pairs *= _valid_taps(size_in, size_out, rhs[labels[2].index(letter)], stride, pad, spread, hole)
    return 2.0 * batch * features * pairs


@functools.lru_cache(maxsize=4096)
def _valid_taps(
    size: int, out: int, kernel: int, stride: int, pad: tuple[int, int], spread: int, hole: int
) -> int:
    """Pairs (output place, kernel place) that meet a real input number along one axis."""
    if kernel == 1 and spread == 1 and pad == (0, 0):
        return out
    reach = (size - 1) * spread + 1
    count = 0
    for tap in range(kernel):
        for place in range(out):
            at = place * stride + tap * hole - pad[0]
            count += 0 <= at < reach and at % spread == 0
    return count


def _library_call(i: Instruction, operands: list[Shape], seen: float) -> Cost:
    target = re.search(r'custom_call_target="([^"]*)"', i.attributes)
    name = target[1] if target else ""
    if "fmha" in name:
        flops = _cudnn(i, operands, seen, backward="Backward" in name)
        return Cost(flops=flops, by_formula=flops) if flops else Cost(unknown=frozenset({name}))
    if "gemm" in name or "matmul" in name:
        contracted = re.search(r'"lhs_contracting_dimensions":\s*\["(\d+)"', i.attributes)
        depth = operands[0].dims[int(contracted[1])] if contracted else operands[0].dims[-1]
        return Cost(flops=2.0 * i.shapes[0].elements * depth)
    if "mosaic_gpu" in name:
        flops = _new_tokens(operands) if "vcap_decode" in i.attributes else 0.0
        return Cost(flops=flops, by_formula=flops) if flops else Cost(unknown=frozenset({_kernel_name(i)}))
    if name == "tpu_custom_call" and (splash := _SPLASH.search(i.name)):
        flops = _splash(operands, i.shapes, splash[1], causal="segmented" not in i.name)
        return Cost(flops=flops, by_formula=flops) if flops else Cost(unknown=frozenset({i.name}))
    if name == "tpu_custom_call":
        told = re.search(r'"cost_estimate":\s*\{[^}]*"flops":\s*"?(\d+)', i.attributes)
        return Cost(flops=float(told[1])) if told else Cost(unknown=frozenset({_kernel_name(i)}))
    return Cost()


def _kernel_name(i: Instruction) -> str:
    named = re.search(r'op_name="[^"]*?([\w]+)"', i.attributes)
    return named[1] if named else i.name


def _cudnn(i: Instruction, operands: list[Shape], seen: float, *, backward: bool) -> float:
    """Two products forward, five backward, of all scores; half of them where the mask is causal, and of a number of
    keys that only the data know the share that the caller says."""
    config = re.search(r'"intermediate_tensor_shape":\s*\{.*?"dimensions":\s*(\[[^\]]*\])', i.attributes)
    if config is None:
        return 0.0
    scores = [int(n) for n in json.loads(config[1])]  # [B, H, queries, keys]
    head = operands[0].elements / math.prod(scores[:3])
    share = 0.5 if "CAUSAL" in i.attributes else seen if "PADDING" in i.attributes else 1.0
    return (5 if backward else 2) * 2.0 * math.prod(scores) * head * share


def _new_tokens(operands: list[Shape]) -> float:
    """Two products of every row, padded to tiles, with all columns of its cache: what a kernel that goes by the
    captions' lengths does at the most (``kernels.attention.hopper``)."""
    queries, keys = operands[:2]  # [sets, tiles, rows, head], [sets, head, columns]
    return 2 * 2.0 * queries.elements * keys.dims[-1]


_SPLASH = re.compile(r"^splash_m[hq]a_(fwd|dkv)_")
_SPLASH_PRODUCTS = {"fwd": 2, "dkv": 5}
"""One kernel gives all gradients (``kernels.attention.splash``): scores, their gradients, and those of all three."""


def _splash(operands: list[Shape], results: Sequence[Shape], kernel: str, *, causal: bool) -> float:
    """All scores, half of them where the mask is causal: in this package every call without segments is. Keys that
    segments hide are computed, and so is what shapes are padded with, and all of the spans of keys that a causal mask
    cuts: the queries' gradient comes in as many parts."""
    sequences = [s for s in operands if len(s.dims) >= 3 and s.dtype in ("bf16", "f16", "f32")]
    if len(sequences) < 2:
        return 0.0
    queries, keys = sequences[:2]  # [..., H, queries, head], [..., K, keys, head]
    parts = max((s.dims for s in results), key=len)  # [..., spans, H, queries, head]
    spans = parts[-4] if kernel == "dkv" else math.inf
    share = (1 + 1 / spans) / 2 if causal else 1.0
    return _SPLASH_PRODUCTS[kernel] * 2.0 * queries.elements * keys.dims[-2] * share
