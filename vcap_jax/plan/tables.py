"""A plan as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from vcap_jax.plan.offload import POOL, POOL_VARIABLE, Waiting
from vcap_jax.plan.result import MEAN_CAPTION, SAMPLES, Plan, Row
from vcap_jax.plan.trials import Trial
from vcap_jax.plan.turns import Turns
from vcap_jax.system.hardware import GIB

_COUNTING = """\
Bytes are the compiler's own. FLOPs, bytes moved and sent are counted from the compiled program, loops times their
trip counts, decoding in the table per token with the largest caches; attention kernels' FLOPs are computed from the
shapes that they are given (by formula). Kernels that are not known are marked, not in the time.
At least: parameters, caches and whatever else comes in read once, results written once, nothing between them moved; a
gradient of three forward passes, without what is computed twice to save memory; other products, and what is sent, as
they are. Reached: that time, of the program's at best."""


def gib(count: float) -> str:
    """Bytes as GiB with one decimal."""
    return f"{count / 2**30:.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; the first is text, the others numbers."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[c]) for row in cells) for c in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.ljust(w) if c == 0 else cell.rjust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(parts)} |"

    rule = "|" + "|".join("-" * (w + 1) + ("-" if c == 0 else ":") for c, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def render(plan: Plan, trials: Sequence[Trial] = ()) -> str:
    """Everything a user should know before renting the hardware."""
    return "\n\n".join(
        part
        for part in (
            _layout(plan),
            _resident(plan),
            _waiting(plan),
            _turns(plan),
            _programs(plan),
            _times(plan),
            _verdict(plan),
            _trials(plan, trials),
        )
        if part
    )


def _layout(plan: Plan) -> str:
    laid, sizes = plan.layout, plan.sizes
    judge = f"{laid.judge} for the judge" if laid.judge else "the judge elsewhere"
    if plan.config.judge.sleep_mode:
        judge = "the judge on the same in turns"
    at_once, per_device = (
        groups * plan.config.mesh.tensor / laid.policy.devices for groups in (laid.batch, laid.micro)
    )
    kernels = ", ".join(row.name for row in plan.rows if row.compiled.kernels) or "no program"
    where = f"{laid.policy.devices} devices for policy and update on {laid.policy.hosts} host(s)"
    what = f"prompt of {sizes.tokens:,} tokens ({sizes.visual:,} of them visual)"
    cut = f"{laid.groups} groups a step, {laid.batch} decode at once, {laid.micro} in a micro-batch"
    lines = [
        f"{laid.hardware.name}: {where}, {judge}",
        f"{plan.config.modality}: {what} and {sizes.captions} captions of {sizes.caption_tokens:,}",
        f"{cut} ({at_once:g} and {per_device:g} per device)",
        f"attention: {plan.kernel}, for new tokens {plan.decoding}, found in {kernels}",
    ]
    several = sizes.tokens // max(1, sizes.visual)
    if plan.config.modality == "image" and several > 1:
        lines.append(
            f"note: of one picture. Its tokens have room for {several} of the largest: with prompts of as many"
        )
        lines.append(f"(images of a row) the vision program and the features take {several} times as much.")
    if plan.config.rollout.engine == "vllm" and plan.turns is None:
        lines.append("note: vLLM servers draw (rollout.engine). What follows is a run that draws by itself:")
        lines.append("its copy for rollout, prefill and decode are in the memory and in the times.")
    if laid.note:
        lines.append(f"note: {laid.note}")
    return "\n".join(lines)


def _resident(plan: Plan) -> str:
    names = list(dict.fromkeys(name for held in plan.resident.values() for name in held))
    rows = [[name, *(gib(held.get(name, 0)) for held in plan.resident.values())] for name in names]
    rows.append(["together", *(gib(sum(held.values())) for held in plan.resident.values())])
    return "What stays in memory, GiB per device:\n" + table(["", *plan.resident], rows)


def _waiting(plan: Plan) -> str:
    """What lies in the host's memory through the rollout, and what that costs."""
    waiting = plan.waiting
    if waiting is None:
        return ""
    chip = waiting.hardware.chip
    parts = ", ".join(f"{name} {gib(size)}" for name, size in waiting.parts.items())
    whose = f"of the {gib(waiting.host_memory)} of a host"
    out, back = (f"{1e3 * seconds:,.0f} ms" for seconds in (waiting.out_seconds, waiting.back_seconds))
    estimate = " (estimate)" if chip.host_link_estimated else ""
    lines = [
        f"In the host's memory while captions are drawn, GiB per device: {parts}",
        f"together {gib(waiting.together)}, which is {gib(waiting.on_host)} {whose}.",
        f"Copies of a step at {chip.host_link / 1e9:.0f} GB/s{estimate}: {out} out, beside the end of a step and the",
        f"first pictures of the next, {back} back, beside the reference policy and the judge's last answers.",
        "The times of a step below have them as if nothing hid them.",
    ]
    if waiting.pool:
        pinned = gib(waiting.together + waiting.states)
        lines += [
            f"XLA takes at most {POOL // GIB} GiB of the host's memory for each GPU, and this is {pinned}:",
            f"set {POOL_VARIABLE}={waiting.pool} in the environment.",
        ]
    if "parameters" in waiting.parts:
        lines += [
            "References and held-out captions are drawn with the parameters on the devices: as many side by side",
            f"take {gib(waiting.parts['parameters'])} GiB more, less the prompts and features of a step.",
        ]
    return "\n".join(lines)


def _turns(plan: Plan) -> str:
    """What servers find on devices that they share, and what changing turns costs."""
    turns = plan.turns
    if turns is None:
        return ""
    chip, devices = turns.hardware.chip, turns.hardware.devices
    who = " and ".join(
        name for name, is_one in (("rollout", turns.rollout), ("judge", turns.judge)) if is_one
    )
    has, weights, rest = gib(turns.server_share * chip.memory), gib(turns.weights), gib(turns.caches)
    estimate = " (estimate)" if chip.host_link_estimated else ""
    lines = [
        f"In turns on {devices} devices: policy, {who}. A server on each, a judge of the policy's size assumed.",
        f"JAX keeps {turns.policy_share:.2f} of a device's {gib(chip.memory)} GiB: its peak is {gib(turns.policy)}.",
        f"A server may take {turns.server_share:.2f} in its turn: {has} GiB, weights {weights}, for the rest {rest}.",
        f"Beside what is told above {gib(turns.host_bytes)} GiB of a host's memory hold weights.",
        f"Moving weights takes {turns.seconds:.1f} s a step at {chip.host_link / 1e9:.0f} GB/s{estimate}. The times",
        "below have neither that nor the turns of servers.",
    ]
    if turns.judge:
        lines.append(
            "A judge wants caches of its longest judgement, and memory to compute with: serve.py --check counts both."
        )
    if turns.rollout:
        lines.append("The programs of the rollout do not run: servers draw.")
    return "\n".join(lines)


def _programs(plan: Plan) -> str:
    rows = [_program(plan, row) for row in plan.rows]
    header, cells = [heading for heading, _ in rows[0]], [[cell for _, cell in row] for row in rows]
    title = f"Programs, GiB per device of {gib(plan.capacity)} usable; one run each:\n"
    programs = title + table(header, cells)
    chip = plan.layout.policy.chip
    if not (chip.host_link_estimated and any(row.host for row in plan.rows)):
        return programs
    moving = ", ".join(f"{1e3 * row.host:,.0f} ms of {row.name}" for row in plan.rows if row.host)
    return (
        f"{programs}\n\nEstimate: {chip.host_link / 1e9:.0f} GB/s to the host's memory, for which a TPU's maker gives "
        f"no figure; if that\nalone counted, what waits there would take {moving}."
    )


def _program(plan: Plan, row: Row) -> list[tuple[str, str]]:
    """Headings and cells."""
    c, floor = row.compiled, row.floor
    estimated = row.bound == "host" and plan.layout.policy.chip.host_link_estimated
    bound = f"{row.bound}{' (estimate)' if estimated else ''}{' (not all counted)' if c.cost.unknown else ''}"
    return [
        ("program", row.name),
        ("runs a step", f"{row.count:,.0f}"),
        ("resident", gib(row.resident)),
        ("arguments", gib(c.arguments)),
        ("results", gib(c.results)),
        ("temporaries", gib(c.temporaries)),
        ("on host", gib(c.host)),
        ("peak", gib(row.peak) + (" (refused)" if c.refused else "")),
        ("of capacity", f"{row.peak / plan.capacity:.0%}"),
        ("TFLOP", f"{c.cost.flops / 1e12:,.1f}"),
        ("by formula", f"{c.cost.by_formula / 1e12:,.1f}"),
        ("at least", "-" if floor is None else f"{floor.flops / 1e12:,.1f}"),
        ("GB moved", f"{c.cost.moved / 1e9:,.1f}"),
        ("at least", "-" if floor is None else f"{floor.moved / 1e9:,.1f}"),
        ("GB sent", f"{c.cost.sent / 1e9:,.1f}"),
        ("ms at best", f"{1e3 * row.seconds:,.1f}"),
        ("bound by", bound),
        ("ms at least", "-" if floor is None else f"{1e3 * floor.seconds:,.1f}"),
        ("reached", "-" if row.reached is None else f"{row.reached:.0%}"),
    ]


def _times(plan: Plan) -> str:
    if plan.step_seconds is None:
        return f"Not compiled, of a step: {', '.join(plan.left_out)}.\nSo there is no time of a step.\n{_COUNTING}"
    rollout, update = (max(plan.phase_seconds(phase), 1e-12) for phase in ("rollout", "update"))
    step, epoch = plan.step_seconds, plan.step_seconds * plan.steps_per_epoch / 3600
    tokens, modality = plan.caption_tokens, plan.config.modality
    copies = f" + copies {plan.copying:.1f} s" if plan.waiting else ""
    mean = min(MEAN_CAPTION[modality], plan.sizes.caption_tokens)
    return f"""\
At the roofline (programs one after the other, each as long as its slowest unit takes at its peak): rollout
{rollout:.1f} s + update {update:.1f} s{copies} = {step:.1f} s a step;
{plan.floor_seconds:.1f} s a step if every program took what it must;
{plan.steps_per_epoch} steps ({SAMPLES[modality]:,} {modality}s) = {epoch:.1f} h an epoch.
{_decoding(plan)}
{_most(plan)}
Estimate: the longest captions have {plan.decoded:,} tokens, and all of them {mean:,} on average, so
{tokens / rollout:,.0f} caption tokens/s in rollout and {tokens / update:,.0f} in the update at best.
Estimate: at half the roofline {2 * step:.0f} s a step and {2 * epoch:.0f} h an epoch. Neither compiled nor counted:
the judge (it works while captions are drawn), data, checkpoints.
{_COUNTING}"""


def _decoding(plan: Plan) -> str:
    longest, usual = plan.decoding_longest, plan.decoding_usual
    if longest is None or usual is None:
        return "Decoding is not bound by memory: every token counts with the largest caches."
    largest = sum(row.seconds * row.count for row in plan.rows if row.kind == "decode")
    return f"""\
Decoding, all captions of {longest.longest:,} tokens: {longest.seconds:.1f} s for {longest.through:,} tokens one after
the other, through the run's own scheduler, with caches as long as captions are by then. If every token had the largest
caches, it would be {largest:.1f} s.
Estimate: with captions of {usual.mean:,} tokens on average and {usual.longest:,} at most, slots refilled and shapes
that shrink, it is {usual.seconds:.1f} s for {usual.through:,} tokens one after the other, and a step with all else as
above {plan.usual_seconds:.1f} s at best."""


def _most(plan: Plan) -> str:
    """Where the next second is: the programs that take most of a step, and most above what they must."""
    seconds = {name: total for name, (total, _) in plan.program_seconds().items()}
    above = {name: total - least for name, (total, least) in plan.program_seconds().items()}

    def largest(of: Mapping[str, float]) -> str:
        names = sorted(of, key=lambda name: -of[name])[:3]
        return ", ".join(f"{name} {of[name]:.1f} s" for name in names)

    return f"Most of a step: {largest(seconds)}.\nAbove what they must take: {largest(above)}."


def _verdict(plan: Plan) -> str:
    worst = max(plan.running, key=lambda row: row.peak)
    spare = plan.capacity - worst.peak
    if plan.fits and plan.left_out:
        return (
            f"NO VERDICT: what was compiled fits, at most {gib(worst.peak)} GiB ({worst.name}), but "
            f"{len(plan.left_out)} of {len(plan.left_out) + len(plan.rows)} programs of a step were not compiled."
        )
    if plan.fits:
        return f"FITS: the peak is {gib(worst.peak)} GiB ({worst.name}), {gib(spare)} GiB are free."
    if plan.waiting is not None and not plan.waiting.fits and spare >= 0:
        has = gib(plan.waiting.host_memory)
        return f"DOES NOT FIT: what waits takes {gib(plan.waiting.on_host)} GiB of a host, which has {has}."
    if plan.turns is not None and not plan.turns.fits and spare >= 0:
        left = plan.turns.server_share * plan.turns.hardware.chip.memory
        return (
            f"DOES NOT FIT: beside JAX's share a server in its turn has {gib(left)} GiB, and its weights take "
            f"{gib(plan.turns.weights)}."
        )
    return f"DOES NOT FIT: {worst.name} needs {gib(worst.peak)} GiB, {gib(-spare)} GiB more than there are."


def _trials(plan: Plan, trials: Sequence[Trial]) -> str:
    if not trials:
        return ""
    rows = [
        [
            trial.change,
            gib(trial.peak),
            "yes" if trial.fits else "no",
            "-" if trial.step_seconds is None else f"{trial.step_seconds:.1f}",
        ]
        for trial in trials
    ]
    title = "Tried for a quicker step, the quickest first" if plan.fits else "Tried, the fitting first"
    return f"{title}:\n" + table(["change", "peak GiB", "fits", "s a step at best"], rows)


def as_json(plan: Plan, trials: Sequence[Trial] = ()) -> Mapping[str, object]:
    """The plan for programs; bytes and seconds."""
    laid = plan.layout
    return {
        "hardware": laid.hardware.name,
        "policy_devices": laid.policy.devices,
        "judge_devices": laid.judge,
        "modality": plan.config.modality,
        "groups": {"step": laid.groups, "batch": laid.batch, "micro_batch": laid.micro},
        "sizes": dataclasses.asdict(plan.sizes),
        "attention": plan.kernel,
        "decode_attention": plan.decoding,
        "capacity": plan.capacity,
        "peak": plan.peak,
        # Unknown of a plan that was not compiled whole, unless one program is too large already.
        "fits": None if plan.fits and plan.left_out else plan.fits,
        "left_out": list(plan.left_out),
        "resident": plan.resident,
        "programs": [
            {
                "name": row.name,
                "phase": row.phase,
                "runs": row.count,
                "arguments": row.compiled.arguments,
                "results": row.compiled.results,
                "temporaries": row.compiled.temporaries,
                "host": row.compiled.host,
                "peak": row.peak,
                "flops": row.compiled.cost.flops,
                "flops_by_formula": row.compiled.cost.by_formula,
                "moved": row.compiled.cost.moved,
                "sent": row.compiled.cost.sent,
                "uncounted": sorted(row.compiled.cost.unknown),
                "kernels": list(row.compiled.kernels),
                "seconds": {
                    "compute": row.compute,
                    "memory": row.memory,
                    "links": row.links,
                    "host": row.host,
                },
                "compile_seconds": row.compiled.seconds,
                "refused": row.compiled.refused,
                "floor": None if row.floor is None else dataclasses.asdict(row.floor),
                "reached": row.reached,
            }
            for row in plan.rows
        ],
        "step_seconds": plan.step_seconds,
        "floor_seconds": plan.floor_seconds,
        "usual_seconds": plan.usual_seconds,
        "steps_per_epoch": plan.steps_per_epoch,
        "estimates": {
            "decoded_tokens": plan.decoded,
            "caption_tokens": plan.caption_tokens,
            "decoding": {
                name: None if time is None else dataclasses.asdict(time)
                for name, time in (("longest", plan.decoding_longest), ("usual", plan.decoding_usual))
            },
            # Bytes per second, where no maker gives them.
            **({"host_link": laid.policy.chip.host_link} if laid.policy.chip.host_link_estimated else {}),
        },
        **({} if plan.waiting is None else {"waiting": _waiting_row(plan.waiting)}),
        **({} if plan.turns is None else {"turns": _turns_row(plan.turns)}),
        "tried": [dataclasses.asdict(trial) for trial in trials],
    }


def _turns_row(turns: Turns) -> Mapping[str, object]:
    return {
        "judge": turns.judge,
        "rollout": turns.rollout,
        "policy_bytes": turns.policy,
        "policy_share": turns.policy_share,
        "server_share": turns.server_share,
        "weights": turns.weights,
        "caches": turns.caches,
        "host_bytes": turns.host_bytes,
        "seconds": turns.seconds,
    }


def _waiting_row(waiting: Waiting) -> Mapping[str, object]:
    return {
        "parts": dict(waiting.parts),
        "host_bytes": waiting.on_host,
        "out_seconds": waiting.out_seconds,
        "back_seconds": waiting.back_seconds,
        # GiB that XLA must be allowed, 0 where it needs not be told.
        "pool": waiting.pool,
    }
