"""What would fail after minutes of loading, found before: every problem is one sentence with its remedy."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gpu_judge.addresses import ListenError, listen_error
from gpu_judge.vllm_server.checkpoint import Checkpoint
from gpu_judge.vllm_server.installation import INSTALL, Installation, release
from gpu_judge.vllm_server.settings import ServeSettings
from vcap_jax.system.errors import VCapError

_FIELDS = ("index", "name", "driver_version", "memory.total", "memory.free")
_QUERY = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
_DRIVERS = {12: 525, 13: 580}
"""CUDA's major version -> the first major driver version that runs it."""
_GIB = 1024**3
# What vLLM computes with, an estimate for Qwen3-VL-8B; other sizes differ little. It sets that aside at its start, by
# looking at the largest picture or video and then at a full batch, and ends if no longest judgement fits beside it.
# A patch in the vision tower has twice 1,152 numbers of hidden states, twice 4,304 in the MLP and 1,536 of pixels, in
# 16 bits: 25 KB. Four patches make a visual token, which comes out as four times 4,096 numbers: 4 x 25 + 33 = 133 KB.
_BYTES_PER_VISUAL_TOKEN = 128 * 1024
# A batch of 8,192 tokens with 2 x 4,096 + 3 x 12,288 numbers of the decoder is 0.7 GiB, logits of 1,024 sequences in
# 32 bits are 0.6, one after the other; the rest is for CUDA graphs.
_BYTES_BESIDE = _GIB


class CheckError(VCapError, RuntimeError):
    """The environment cannot be looked at; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One line of nvidia-smi. total, free: bytes, None where the driver does not tell."""

    index: int
    name: str
    driver: str
    total: int | None
    free: int | None


def query_gpus() -> list[Gpu]:
    """The GPUs of this machine. Raises CheckError where nvidia-smi is missing or fails."""
    try:
        done = subprocess.run(
            _QUERY, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except FileNotFoundError as error:
        raise CheckError(
            "nvidia-smi is not on PATH, so there is no NVIDIA driver here: install one, or try a small model with "
            "--gpus none"
        ) from error
    except OSError as error:
        raise CheckError(
            f"nvidia-smi cannot be run ({error.strerror or error}): install the NVIDIA driver again"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CheckError(
            "nvidia-smi does not answer within 60 s: a GPU may be hung; reset it or reboot"
        ) from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        raise CheckError(f"nvidia-smi ended with status {done.returncode}: {said}")
    return parse_gpus(done.stdout)


def parse_gpus(text: str) -> list[Gpu]:
    """Reads what ``nvidia-smi --query-gpu ... --format=csv,noheader,nounits`` prints for our fields.

    Raises CheckError for a line of another form.
    """
    gpus = []
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < len(_FIELDS) or not cells[0].isdigit():
            raise CheckError(f"nvidia-smi prints {line!r} where {', '.join(_FIELDS)} were asked for")
        driver, total, free = cells[-3:]
        gpus.append(
            Gpu(
                index=int(cells[0]),
                name=", ".join(cells[1:-3]),
                driver=driver,
                total=_mebibytes(total),
                free=_mebibytes(free),
            )
        )
    return gpus


def _mebibytes(cell: str) -> int | None:
    return int(cell) * 1024**2 if cell.isdigit() else None


def check_build(settings: ServeSettings, installation: Installation) -> list[str]:
    """Whether this build of vLLM runs on what it is to run on."""
    on_cpu = "cpu" in installation.version
    if settings.gpus is not None and on_cpu:
        return [
            f"{installation.executable} is a build for CPUs ({installation.version}): {INSTALL}, or give --gpus none"
        ]
    if settings.gpus is None and not on_cpu:
        what = f"{installation.executable} is a build for GPUs ({installation.version})"
        return [f"{what}: give --gpus, or name a build for CPUs with --vllm"]
    return []


def check_compiler(settings: ServeSettings, installation: Installation) -> list[str]:
    """Whether Triton can build the C module that it needs on GPUs; it tries when the weights are loaded."""
    if settings.gpus is None:
        return []
    lacking = []
    if not any(shutil.which(name) for name in (os.environ.get("CC", ""), "gcc", "clang") if name):
        lacking.append("a C compiler")
    if not installation.headers:
        lacking.append("Python.h, its Python's header")
    if not lacking:
        return []
    what = f"{installation.executable} needs {' and '.join(lacking)} to compute on GPUs"
    return [f"{what}: apt install build-essential python3-dev, or those of the Python that runs it"]


def check_gpus(
    settings: ServeSettings, checkpoint: Checkpoint | None, found: Sequence[Gpu], cuda: str | None
) -> list[str]:
    """Driver, existence and memory of the GPUs that were asked for.

    checkpoint: None leaves unchecked whether it fits. cuda: release that vLLM was built for; None leaves the driver
    unchecked.
    """
    problems = []
    wanted = settings.gpus or ()
    by_index = {gpu.index: gpu for gpu in found}
    if missing := [index for index in wanted if index not in by_index]:
        there = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in found) or "none"
        problems.append(f"--gpus names {', '.join(map(str, missing))}, and this machine has: {there}")
    gpus = [by_index[index] for index in wanted if index in by_index]
    needed = _DRIVERS.get(release(cuda)[0], max(_DRIVERS.values())) if cuda else 0
    if gpus and (release(gpus[0].driver) or (0,))[0] < needed:
        problems.append(
            f"the NVIDIA driver is {gpus[0].driver}, and vLLM's CUDA {cuda} needs {needed} or newer: update the "
            "driver, or install a vLLM built for an older CUDA"
        )
    for gpu in gpus:
        problems += _check_memory(settings, checkpoint, gpu)
    return problems


def _check_memory(settings: ServeSettings, checkpoint: Checkpoint | None, gpu: Gpu) -> list[str]:
    if gpu.total is None or gpu.free is None:
        return []
    share = settings.gpu_memory_utilization
    taken = share * gpu.total
    if gpu.free < taken:
        possible = int(100 * gpu.free / gpu.total) / 100
        problem = (
            f"GPU {gpu.index} has {_gib(gpu.free)} free of {_gib(gpu.total)}, and --gpu-memory-utilization "
            f"{share:g} takes {_gib(taken)}: end what runs on it (JAX reserves three quarters of every GPU it sees; "
            f"hide this one from the trainer with CUDA_VISIBLE_DEVICES), or give at most {possible:g}"
        )
        return [problem]
    if checkpoint is None or settings.quantization is not None:
        return []  # how small the weights become is vLLM's business
    length = settings.context_tokens(checkpoint.pixels_per_token, checkpoint.temporal_patch)
    one = length * checkpoint.cache_bytes_per_token
    visual = settings.largest_medium(checkpoint.pixels_per_token, checkpoint.temporal_patch)
    computing = visual * _BYTES_PER_VISUAL_TOKEN + _BYTES_BESIDE
    if (checkpoint.weight_bytes + one) / settings.tensor_parallel_size + computing > taken:
        budgets = "--video-frames" if settings.takes_video else "--image-pixels"
        problem = (
            f"GPU {gpu.index}: the weights ({_gib(checkpoint.weight_bytes)}), one judgement of {length} tokens "
            f"({_gib(one)}) and what vLLM computes with (about {_gib(computing)}) do not fit into {_gib(taken)}: raise "
            f"--gpu-memory-utilization or --tensor-parallel-size, lower {budgets}, or give --quantization fp8 or a "
            "smaller model"
        )
        return [problem]
    return []


def check_heads(settings: ServeSettings, checkpoint: Checkpoint) -> list[str]:
    """Tensor parallelism deals out whole attention heads, in the decoder and in the vision tower."""
    together = settings.tensor_parallel_size
    counts = {
        "attention heads": checkpoint.heads,
        "attention heads of the vision tower": checkpoint.vision_heads,
    }
    problems = [
        f"--tensor-parallel-size {together} does not divide the model's {count} {what}: give a divisor of it"
        for what, count in counts.items()
        if count % together
    ]
    few, many = sorted((checkpoint.key_value_heads, together))
    if many % few:
        problems.append(
            f"--tensor-parallel-size {together} does not fit the model's {checkpoint.key_value_heads} key and value "
            "heads: one must divide the other"
        )
    return problems


def check_ports(host: str, ports: Sequence[int]) -> list[str]:
    """Whether each port can be listened on."""
    problems = []
    for port in ports:
        try:
            _listening_socket(host, port).close()
        except ListenError as error:
            problems.append(str(error))
    return problems


def free_ports(host: str, count: int) -> tuple[int, ...]:
    """Ports that are free now; all are held until the last is found, so they differ. Raises ListenError."""
    with ExitStack() as held:
        sockets = [held.enter_context(_listening_socket(host, 0)) for _ in range(count)]
        return tuple(sock.getsockname()[1] for sock in sockets)


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise listen_error(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM does: a port just left is free
        sock.bind(address)
        sock.listen(1)
    except OSError as error:
        sock.close()
        raise listen_error(host, port, error) from error
    return sock


def check_host_memory(settings: ServeSettings, meminfo: str) -> list[str]:
    """Whether the media caches fit beside everything else. meminfo: the text of ``/proc/meminfo``."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    if found is None:
        return []
    available = int(found.group(1)) * 1024
    # The API process and the engine keep one each.
    needed = 2 * settings.cache_gb * _GIB * settings.server_count
    if settings.gpus is None:
        needed += settings.cpu_cache_gb * _GIB
    if needed <= available:
        return []
    problem = (
        f"the media caches of {settings.server_count} server(s), {settings.cache_gb:g} GiB in each of two processes, "
        f"and what goes with them need {_gib(needed)} of memory, and {_gib(available)} are available: lower "
        "--media-cache-gb"
    )
    return [problem]


def read_meminfo() -> str:
    """``/proc/meminfo``; empty where there is none."""
    try:
        return Path("/proc/meminfo").read_text()
    except OSError:
        return ""


def _gib(count: float) -> str:
    return f"{count / _GIB:.1f} GiB"
