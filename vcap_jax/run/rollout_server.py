"""The vLLM server of ``rollout.engine: vllm``: the folder it starts from and the command that starts it.

vLLM lives in an environment of its own and is never imported here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp

from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.run.checkpoint_source import configured_processor, lineage
from vcap_jax.run.config import RunConfig
from vcap_jax.run.model_loading import load_model
from vcap_jax.system.after_process import runs
from vcap_jax.system.child_python import ROOT

SERVED_NAME = "policy"
"""What the server calls its model."""
SERVER_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}
"""What the command needs in its environment: the routes that load weights and reset caches."""

_IMAGES_PER_PROMPT = 32
"""Where the buckets set no limit: how many fit is for the prompt's tokens to say."""
_SMALL_FILES = ("config.json", "generation_config.json")


def new_folder(port: int) -> Path:
    """A new folder for the server of a port that takes this process's place, for this user alone. What earlier ones
    have left there is removed: with weights that were written out it is as large as the model."""
    root, prefix = Path(tempfile.gettempdir()), f"vcap-rollout-policy-{port}-"
    for left in root.glob(f"{prefix}*"):
        if left.is_symlink() or not left.is_dir() or left.stat().st_uid != os.geteuid():
            continue
        owner = left.name.removeprefix(prefix).partition("-")[0]
        # Nothing listens yet where a server is still starting, or is started again.
        if not (owner.isdecimal() and int(owner) != os.getpid() and runs(int(owner))):
            shutil.rmtree(left)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))


def server_environment(vllm: Path, own: Mapping[str, str]) -> dict[str, str]:
    """The server's whole environment, upon that of the process that starts it.

    Programs that vLLM calls by name lie beside it, such as ninja, with which FlashInfer compiles kernels. That the
    policy is written out on the CPU (``JAX_PLATFORMS``) is not for the server, nor is a key that vLLM would ask the
    trainer for, which has none.
    """
    kept = {name: value for name, value in own.items() if name not in ("JAX_PLATFORMS", "VLLM_API_KEY")}
    path = os.pathsep.join(filter(None, [str(vllm.absolute().parent), own.get("PATH")]))
    return kept | SERVER_ENVIRONMENT | {"PATH": path}


def export_policy(config: RunConfig, target: Path) -> None:
    """Makes ``target`` a Hugging Face folder of the configured model with the run's own visual budget.

    Safetensors are linked, not copied; an Orbax checkpoint is written out. The folder is a starting point: the
    trainer loads the weights of every step. Raises FileExistsError if ``target`` is not empty.
    """
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(f"{target} is not empty: give a new folder")
    # Of a run, the checkpoint at the beginning: it has the same architecture.
    source = lineage(config.model.path, config.model.step).origin
    processor = configured_processor(config, source)
    target.mkdir(parents=True, exist_ok=True)
    weights = sorted(source.glob("*.safetensors*"))
    if not weights:
        model = load_model(source, placement=Placement.build(MeshConfig()), family=config.model.family)
        model.family().save(model, target, dtype=jnp.dtype(config.model.dtype))
    for file in weights:
        (target / file.name).symlink_to(file.resolve())
    for name in _SMALL_FILES:
        if (source / name).exists() and not (target / name).exists():
            (target / name).write_bytes((source / name).read_bytes())
    processor.save_pretrained(target)


def serve_command(
    config: RunConfig,
    folder: Path,
    *,
    port: int,
    vllm: str,
    cpu: bool = False,
    sleep_mode: bool = False,
    more: Sequence[str] = (),
) -> list[str]:
    """The arguments that start a rollout server on ``folder``; run it with ``SERVER_ENVIRONMENT``.

    vllm: the executable. cpu: it is a CPU build. sleep_mode: it takes turns with the policy on its GPUs
    (``rollout.vllm.sleep_mode``); a CPU build has no such mode, sleeps all the same and keeps its memory. more: further
    arguments, which win over these.
    """
    buckets = config.data.buckets
    lengths = [config.rollout.max_completion_length, config.references.max_completion_length]
    lengths += [evaluator.max_completion_length for evaluator in config.evaluation.evaluators]
    completion = max(length or 0 for length in lengths)
    prompt = buckets.tokens[-1] if buckets.tokens else buckets.max_tokens
    # A video is one item whatever its frames; every frame of an image prompt is an image.
    images = (buckets.frames[-1] if buckets.frames else buckets.max_frames) or _IMAGES_PER_PROMPT
    limits = {"image": images, "video": 0} if config.modality == "image" else {"image": 0, "video": 1}
    return [
        vllm,
        "serve",
        str(folder),
        f"--served-model-name={SERVED_NAME}",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--dtype={config.model.dtype}",
        # Log-probabilities of the distribution that is sampled from: temperature, penalty, top-k and top-p applied.
        "--logprobs-mode=processed_logprobs",
        # Logits that are not rounded to the model's precision, as the trainer's are not.
        '--hf-overrides={"head_dtype": "float32"}',
        # The folder's own sampling defaults would otherwise fill in what a request leaves out.
        "--generation-config=vllm",
        f"--limit-mm-per-prompt={json.dumps(limits)}",
        # The times of a video's frames come with the request.
        "--trust-request-mm-kwargs",
        *([f"--max-model-len={prompt + completion}"] if prompt else []),
        # There a seeded request whose prompt is computed in parts ends the server ("CPU Generator does not use
        # offset"), and compiling takes longer than it saves.
        *(["--no-enable-chunked-prefill", "--enforce-eager"] if cpu else []),
        *(["--enable-sleep-mode"] if sleep_mode and not cpu else []),
        *more,
    ]


def supervised(
    command: Sequence[str], folder: Path, *, port: int, sleep_mode: bool, log: Path, stall_timeout_s: float
) -> list[str]:
    """The arguments of a Python that keeps the server of ``command``, of the model in ``folder``, running
    (``supervised_rollout``); run it with the server's environment, which names no folder of ours."""
    find = f"import sys; sys.path.insert(0, {str(ROOT)!r})"
    run = f"{find}; from vcap_jax.run.supervised_rollout import main; sys.exit(main())"
    told = [
        f"--port={port}",
        f"--model={SERVED_NAME}",
        f"--folder={folder}",
        f"--log={log}",
        f"--stall-timeout-s={stall_timeout_s:g}",
    ]
    return [sys.executable, "-c", run, *told, *(["--sleep-mode"] if sleep_mode else []), "--", *command]
