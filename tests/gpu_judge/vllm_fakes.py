"""Stand-ins for what the vLLM backend looks at: checkpoint folders, an installation, a server as a script."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from gpu_judge.vllm_server.checkpoint import Checkpoint
from gpu_judge.vllm_server.settings import ServeSettings

EIGHT_B = Checkpoint(
    weight_bytes=17_534_247_392,
    layers=36,
    heads=32,
    key_value_heads=8,
    head_dim=128,
    vision_heads=16,
    positions=262_144,
    patch=16,
    merge=2,
    temporal_patch=2,
    image_min_pixels=65_536,
    video_min_pixels=4_096,
    video_token_id=151_656,
)
"""The published Qwen3-VL-8B-Instruct."""

CONFIG: Mapping[str, Any] = {
    "model_type": "qwen3_vl",
    "video_token_id": 7,
    "text_config": {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 65_536,
    },
    "vision_config": {"num_heads": 4, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
}


def settings(**changes: Any) -> ServeSettings:
    """Settings of one judge on GPU 0, with changes."""
    return replace(ServeSettings(model=Path("/models/judge"), gpus=(0,)), **changes)


def write_checkpoint(folder: Path, shards: int = 0, **changes: Any) -> Path:
    """A checkpoint folder with tiny weights; ``shards`` of them with an index, or a single file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "preprocessor_config.json").write_text("{}")
    if not shards:
        save_file({"weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
        return folder
    names = [f"model-{k + 1:05}-of-{shards:05}.safetensors" for k in range(shards)]
    for k, name in enumerate(names):
        save_file({f"weight{k}": np.zeros(4, np.float32)}, folder / name)
    index = {"weight_map": {f"weight{k}": name for k, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_installation(folder: Path, server: str, versions: Mapping[str, Any] | None = None) -> Path:
    """An executable ``vllm`` that runs the Python text ``server``, in an environment that tells ``versions``."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {"vllm": "0.32.0+cpu", "transformers": "5.19.0", "cuda": None, "headers": True, **(versions or {})}
    (folder / "versions.json").write_text(json.dumps(told))
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then cat "{folder}/versions.json"; else exec "{sys.executable}" -S -E "$@"; fi\n'
    )
    executable = folder / "vllm"
    first = f"#!{python}"
    if " " in first:  # as pip writes it: a line for the shell that is text to Python
        first = f"#!/bin/sh\n'''exec' {shlex.quote(str(python))} \"$0\" \"$@\"\n' '''"
    executable.write_text(f"{first}\n{server}")
    python.chmod(0o755)
    executable.chmod(0o755)
    return executable


ENGINE_LOG = "\n".join(
    [
        "(APIServer pid=7) WARNING 11-26 00:22:20 [utils.py:255] This can cause errors like `OSError: [Errno 24]`.",
        "(Worker-0 pid=9) ERROR 11-26 00:22:24 [executor.py:953] Traceback (most recent call last):",
        "(Worker-0 pid=9) ERROR 11-26 00:22:24 [executor.py:953]     raise ValueError(",
        "(Worker pid=9) ERROR 11-26 [x.py:953] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "(EngineCore pid=8) ERROR 11-26 00:22:29 [core.py:1510] Exception: WorkerProc initialization failed.",
        "Traceback (most recent call last):",
        *("    engine = AsyncLLM.from_vllm_config(" for _ in range(60)),
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
)
"""The form of what vLLM 0.32 writes when its engine does not start."""

SERVER = '''
"""A server that answers as a judge on vLLM would. Takes vLLM's command line, and orders from a file beside it:
a JSON object with "mode" and, by mode, what goes with it; read at every start."""
import json, os, signal, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

here = Path(sys.argv[0]).resolve().parent
orders = json.loads((here / "orders.json").read_text())
mode = orders.get("mode", "good")
arguments = sys.argv[1:]
port = int(arguments[arguments.index("--port") + 1])
name = arguments[arguments.index("--served-model-name") + 1]
starts = here / f"starts-{port}"
with starts.open("a") as file:
    file.write(f"{os.getpid()} {time.time()}\\n")
count = len(starts.read_text().splitlines())
print(f"start {count} in mode {mode} with key {os.environ.get('VLLM_API_KEY')}"
      f" and dev mode {os.environ.get('VLLM_SERVER_DEV_MODE')}", flush=True)
print(orders.get("said", ""), flush=True)
if (mode == "crash" or (mode == "crash-port" and port == orders["port"])
        or (mode == "crash-first" and count <= orders["times"])):
    sys.exit("no memory is left for the key and value cache")
# An engine in a process of its own, which does not mind SIGTERM.
engine = subprocess.Popen([sys.executable, "-S", "-E", "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
time.sleep(orders.get("slow_s", 0.0))

def verdict(body):
    keys = body["response_format"]["json_schema"]["schema"]["required"]
    return json.dumps({key: "none" if key == "Analysis" else 7 for key in keys})

judged = asleep = False
answered = waiting = 0

def note(what):
    with (here / what).open("a") as file:
        file.write(".")

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def reply(self, status, payload):
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
    def do_GET(self):
        if self.path == "/health" and judged and mode == "crash-judged" and count <= orders["times"]:
            os._exit(9)  # who asks again has found it ready
        if self.path == "/health":
            self.reply(200, b"")
        elif self.path == "/v1/models":
            self.reply(200, {"data": [{"id": name}]})
        elif self.path == "/is_sleeping":
            note("asked-for-sleep")
            self.reply(200, {"is_sleeping": asleep})
        elif self.path == "/load":
            self.reply(200, {"server_load": waiting + orders.get("leaked", 0)})
        elif self.path == "/metrics" and mode != "no-metrics":
            # As vLLM's engine counts: it never tells of a request in whose first step it hangs.
            self.reply(200, "".join(f'{name}{{engine="0",model_name="{arguments[1]}"}} {value}\\n' for name, value in (
                ("vllm:num_requests_running", 0.0), ("vllm:num_requests_waiting", 0.0),
                ("vllm:prompt_tokens_total", 100.0 * answered), ("vllm:generation_tokens_total", 5.0 * answered),
            )).encode())
        else:
            self.reply(404, {})
    def do_POST(self):
        global asleep, answered, judged, waiting
        if self.path == "/sleep?level=1":
            asleep = mode != "awake"
            self.reply(200, {"status": "sleeping"})
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        waiting += 1
        if "slow" in body:
            (here / "in-flight").touch()
            time.sleep(body["slow"])
        note("asked-to-judge")
        if judged and mode == "hang-judged" and count <= orders["times"]:
            time.sleep(600)
        if judged and mode == "fail-judged":
            waiting, answered = waiting - 1, answered + 1
            self.reply(500, {"error": "too long"})
            return
        content = verdict(body)
        if mode == "eleven": content = content.replace("7", "11")
        tokens = [7] * (68 if "media_io_kwargs" in body else 0)
        waiting, answered = waiting - 1, answered + 1
        judged = judged or "media_io_kwargs" in body  # the video is the last that is asked for
        self.reply(200, {"choices": [{"message": {"content": content}, "finish_reason": "stop"}],
                            "prompt_token_ids": tokens})

server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
server.daemon_threads = False
def end(*_):
    if mode != "stubborn":
        threading.Thread(target=server.shutdown).start()
signal.signal(signal.SIGTERM, end)
server.serve_forever(poll_interval=0.02)
server.server_close()  # waits for answers in flight
engine.kill()
engine.wait()
'''


def give_orders(executable: Path, **orders: Any) -> None:
    """Tells the fake servers beside ``executable`` how to behave from their next start on."""
    (executable.parent / "orders.json").write_text(json.dumps(orders))


def starts(executable: Path, port: int) -> list[int]:
    """Process ids of the starts so far on a port."""
    path = executable.parent / f"starts-{port}"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []
