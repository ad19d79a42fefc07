"""From settings to the exact command lines and environments of the vLLM servers. Pure."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_judge.vllm_server.checkpoint import Checkpoint
from gpu_judge.vllm_server.settings import ServeSettings, SettingsError

KEY_VARIABLE = "VLLM_API_KEY"
"""vLLM reads its key here; on the command line every user of the machine could see it."""
_GUARD = "key_guard.KeyGuard"
_MIDDLEWARE = Path(__file__).resolve().with_name("middleware")

# Options of serve.py's own that not every command line has.
_OWN = ("enable-sleep-mode", "gpu-memory-utilization", "quantization", "tensor-parallel-size")
# Options that would open a server beyond what was asked for, or that bring in options unseen.
_NEVER_EXTRA = (
    "api-key",
    "api-server-count",
    "config",
    "data-parallel-size",  # ranks would share the GPU that a server sees
    "grpc",
    "headless",
    "middleware",
    "model",
    "root-path",
    "uds",
)


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """One server to be started.

    argv: the whole command line. environment: what is set on top of the starting process's own; the key is not among
    it. gpus: the numbers it runs on, none on the CPU. key_variable: the variable that holds the key, if there is one.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    port: int
    gpus: tuple[int, ...]
    key_variable: str | None

    @property
    def name(self) -> str:
        """How messages call it."""
        where = f"GPU {','.join(map(str, self.gpus))}" if self.gpus else "CPU"
        return f"server :{self.port} ({where})"

    @property
    def tools(self) -> Path | None:
        """The folder that must come first on PATH: programs that vLLM calls by name lie beside it, such as ninja, with
        which FlashInfer compiles kernels. None for an executable that is on PATH itself."""
        folder = Path(self.argv[0]).parent
        return folder if folder.is_absolute() else None

    def environment_upon(self, own: Mapping[str, str]) -> dict[str, str]:
        """The server's whole environment, upon that of the process that starts it."""
        whole = {**own, **self.environment}
        if self.tools is not None:
            whole["PATH"] = os.pathsep.join(filter(None, [str(self.tools), own.get("PATH")]))
        return whole

    def shell(self) -> str:
        """The same as a line for a POSIX shell; the key appears as a reference to its variable."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        if self.tools is not None:
            words.insert(0, f'PATH={shlex.quote(str(self.tools))}:"$PATH"')
        if self.key_variable is not None:
            words.insert(0, f'{KEY_VARIABLE}="${self.key_variable}"')
        return " ".join([*words, shlex.join(self.argv)])


def build_commands(
    settings: ServeSettings, checkpoint: Checkpoint, executable: Path, ports: Sequence[int]
) -> list[ServerCommand]:
    """One command for each of ``settings.gpu_groups``, on the given ports.

    Raises SettingsError for settings that do not fit the checkpoint, and for options in ``extra`` that are not free.
    """
    options = _options(settings, checkpoint)
    _check_extra(settings.extra, options)
    commands = []
    for gpus, port in zip(settings.gpu_groups, ports, strict=True):
        argv = [str(executable), "serve", str(settings.model.resolve()), *options, "--port", str(port)]
        commands.append(
            ServerCommand(
                argv=(*argv, *settings.extra),
                environment=_environment(settings, gpus),
                port=port,
                gpus=gpus,
                key_variable=settings.api_key_env,
            )
        )
    return commands


def listed_ports(settings: ServeSettings) -> tuple[int, ...]:
    """The ports in the order of the servers; zeros where free ones are to be taken."""
    if settings.port == 0:
        return (0,) * settings.server_count
    return tuple(range(settings.port, settings.port + settings.server_count))


def _options(settings: ServeSettings, checkpoint: Checkpoint) -> list[str]:
    pixels = checkpoint.pixels_per_token
    length = settings.context_tokens(pixels, checkpoint.temporal_patch)
    if length > checkpoint.positions:
        raise SettingsError(
            f"a judgement may need {length} tokens and the model was made for {checkpoint.positions}: lower "
            "--image-pixels, --video-frames or --frame-tokens, or give --max-model-len"
        )
    limits = {"image": settings.most_images, "video": 1 if settings.takes_video else 0}
    budgets: dict[str, object] = {
        "images_kwargs": {
            "size": _size("--image-pixels", checkpoint.image_min_pixels, settings.image_budget(pixels))
        }
    }
    if settings.takes_video:
        lower, upper = checkpoint.video_min_pixels, settings.video_budget(pixels)
        budgets["videos_kwargs"] = {"size": _size("--video-frames x --frame-tokens", lower, upper)}
    options = ["--served-model-name", settings.served_name, "--host", settings.host]
    options += ["--max-model-len", str(length), "--dtype", settings.dtype, "--seed", str(settings.seed)]
    # The checkpoint's own sampling defaults (temperature, top-k) must not creep into judgements.
    options += ["--generation-config", "vllm"]
    # Without it a model may write white space until its tokens are used up. Only the server can say so.
    options += ["--structured-outputs-config", _json({"backend": "xgrammar", "disable_any_whitespace": True})]
    options += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-server-load-tracking"]
    options += ["--limit-mm-per-prompt", _json(limits), "--mm-processor-kwargs", _json(budgets)]
    options += ["--mm-processor-cache-gb", f"{settings.cache_gb:g}"]
    # Pictures come inside the requests: there is nothing to be fetched on a client's word.
    options += ["--allowed-media-domains", "nowhere.invalid"]
    if settings.takes_video:
        # -1 keeps all frames (the default takes 32 and drops the rest). Frame times come with each request, which is
        # allowed only to clients that are trusted: on loopback, or with the key that every other address demands.
        options += ["--media-io-kwargs", _json({"video": {"num_frames": -1}}), "--trust-request-mm-kwargs"]
    options += ["--max-num-queued-reqs", str(settings.max_queued)]
    options += ["--shutdown-timeout", str(settings.drain_s)]  # vLLM's default aborts what is in flight
    options += ["--disable-uvicorn-access-log"]
    if settings.gpus is None:
        options += ["--enforce-eager"]
    else:
        options += ["--gpu-memory-utilization", f"{settings.gpu_memory_utilization:g}"]
    if settings.tensor_parallel_size > 1:
        options += ["--tensor-parallel-size", str(settings.tensor_parallel_size)]
    if settings.quantization is not None:
        options += ["--quantization", settings.quantization]
    if settings.sleep_mode and settings.gpus is not None:  # vLLM refuses it on the CPU
        options += ["--enable-sleep-mode"]
    if settings.api_key_env is not None:
        options += ["--middleware", _GUARD]
    return options


def _environment(settings: ServeSettings, gpus: tuple[int, ...]) -> dict[str, str]:
    # Set in any case: the starting shell may have development routes on.
    environment = {"VLLM_SERVER_DEV_MODE": "1" if settings.sleep_mode else "0", "VLLM_NO_USAGE_STATS": "1"}
    if gpus:
        # PCI order is nvidia-smi's; CUDA's own puts the fastest first.
        listed = ",".join(map(str, gpus))
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": listed}
    else:
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(settings.cpu_cache_gb)
    if settings.api_key_env is not None:
        # The package's own root may be the site-packages of another environment, with another transformers.
        environment["PYTHONPATH"] = str(_MIDDLEWARE)
    return environment


def _size(option: str, lower: int, upper: int) -> dict[str, int]:
    """Pixel bounds as Qwen's processors name them; both, because one alone would replace the other."""
    if upper < lower:
        raise SettingsError(
            f"{option} allow {upper} pixels, fewer than the model's lower bound of {lower}: raise it"
        )
    return {"shortest_edge": lower, "longest_edge": upper}


def _check_extra(extra: Sequence[str], options: Sequence[str]) -> None:
    """vLLM takes abbreviated options and the last of several: neither may undo what the settings say."""
    own = {_bare(word) for word in options if word.startswith("--")} | {"port", *_OWN, *_NEVER_EXTRA}
    for word in extra:
        if not word.startswith("-") or _is_number(word):
            continue
        given = _bare(word)
        clash = sorted(name for name in own if name.startswith(given.removeprefix("no-")))
        if clash or not word.startswith("--"):
            what = f"is --{clash[0]}" if clash else "is abbreviated"
            raise SettingsError(
                f"--extra {word} {what}, which serve.py sets itself: use its own option, see serve.py --help"
            )


def _bare(word: str) -> str:
    # "--limit-mm-per-prompt.video" and "--mm_processor_cache_gb=1" mean the options without their ends.
    return word.lstrip("-").split("=")[0].split(".")[0].replace("_", "-").rstrip("+")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
