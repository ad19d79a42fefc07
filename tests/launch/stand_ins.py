"""A node of stand-ins for what this machine lacks: nvidia-smi, SLURM, gcloud, and a Python whose judge and trainer only
note how they were called. Settings and manifest are checked by the real launch/preflight.py."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.launch import preflight_server
from tests.patience import GUARD_S, until

ROOT = Path(__file__).resolve().parents[2]


NVIDIA_SMI = """#!/bin/bash
case "$*" in
  *compute-apps*) if [[ -n $BUSY && $* == *--id=$BUSY* ]]; then echo 4242; fi ;;
  *--id=*) id=${1#--id=}; ((id < 8)) && echo H800 ;;
esac
"""


# A second of the scripts is a twentieth here: they look again after each whether something has begun or ended.
SLEEP = """#!/bin/bash
[[ $* == 1 ]] && exec {sleep} 0.05
exec {sleep} "$@"
""".format(sleep=shutil.which("sleep"))


PYTHON = """#!{python}
import os, pathlib, signal, sys, time
words, notes = sys.argv[1:], pathlib.Path(os.environ["NOTES"])
def note(text):
    with notes.open("a") as file:
        file.write(text + "\\n")
if words[0] == "-c" and "flag_for_odd_meshes" in words[1]:
    print(os.environ.get("FLAG_FOR_ODD_MESHES", ""))
    sys.exit(0)
if words[0] == "-c":
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
    kind = {{"cuda,cpu": "gpu", "tpu,cpu": "tpu"}}[os.environ["JAX_PLATFORMS"]]
    print(os.environ.get("JAX_SEES", f"{{kind}} {{len(seen)}}"))
    sys.exit(0)
if "--print" in words:
    os.execv({python!r}, [{python!r}, *words])
if "--check" in words:
    # As serve.py does, which would write there.
    told = words[words.index("--port-file") + 1] if "--port-file" in words else "here"
    sys.exit(0 if pathlib.Path(told).parent.is_dir() else 2)
if "preflight.py" in words[0] and os.environ.get("PREFLIGHT") == "breaks off":
    print("ok\\tconfiguration\\t")
    sys.exit(1)
if "preflight.py" in words[0] or "target.py" in words[0]:
    if "HOST_MEMORY" not in os.environ:  # this machine's is not what a node has
        words = [word for word in words if word != "--host-memory"]
    if not os.environ.get({address!r}):
        os.execv({python!r}, [{python!r}, *words])
{ask_server}
name = "judge" if "serve.py" in words[0] else "trainer"
platforms = os.environ["JAX_PLATFORMS"]
def say(line):
    os.write(1, line.encode() + b"\\n")  # whole: print writes a line's end by itself, and a signal comes between
def end(*_):
    say("saving")
    note(name + " ended by SIGTERM")
    sys.exit(143)  # as the real ones do
signal.signal(signal.SIGTERM, end)
note(name + " " + " ".join(words[1:]) + " GPUs=" + os.environ.get("CUDA_VISIBLE_DEVICES", "") + " on=" + platforms)
if name == "judge":
    def has_parent():
        return os.getppid() == int(words[words.index("--exit-with-parent") + 1])
    assert has_parent(), "whoever started it is not the parent that it is to end with"
    if os.environ.get("JUDGE") == "dies":
        print("no memory on GPU 7"); sys.exit(3)
    if os.environ.get("JUDGE") == "never":
        print("still loading", flush=True); time.sleep(600)
    time.sleep(0.2)
    pathlib.Path(words[words.index("--port-file") + 1]).write_text("http://127.0.0.1:8000\\n")
    note("judge ready")
    while has_parent():
        time.sleep(0.05)
    note("judge ended with its parent")
    sys.exit(0)
for _ in range(round(float(os.environ.get("TRAINER_SECONDS", 600)) * 10)):
    time.sleep(0.1)
    say("a step")
note("trainer done")
"""


# As the real one (srun_job.c): a task on every node, and SIGTERM is SIGKILL for all of them.
SRUN = """#!/bin/bash
echo "srun $*" >> "$NOTES.srun"
while [[ $1 == --* ]]; do shift; done
tasks=()
for host in ${NODES:-node-1}; do
  SLURM_PROCID=${#tasks[@]} NODE=$host setsid "$@" &
  tasks+=($!)
  echo $! >> "$NOTES.tasks"
done
trap 'kill -KILL "${tasks[@]}"; echo "tasks killed" >> "$NOTES"; exit 137' TERM
status=0
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit $status
"""


SCANCEL = """#!/bin/bash
[[ $* == "--signal=TERM 77" ]] && kill -TERM $(<"$NOTES.tasks") 2>/dev/null
true
"""


SCONTROL = """#!/bin/bash
if [[ $1 == show ]]; then printf '%s\\n' ${NODES:-node-1}; else echo "scontrol $*" >> "$NOTES"; fi
"""


def command(node: Path, script: str, *more: str) -> list[str]:
    return [
        "bash",
        str(ROOT / "launch" / script),
        *("--model", str(node / "model")),
        *("--manifest", str(node / "rows.jsonl")),
        *("--run-dir", str(node / "run")),
        *("--python", str(node / "bin" / "python")),
        *more,
    ]


def environment(node: Path, **more: str) -> dict[str, str]:
    path = f"{node / 'bin'}{os.pathsep}{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**own, "PATH": path, "NOTES": str(node / "notes"), "JAX_PLATFORMS": "cpu", **more}


def start(node: Path, script: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(node, script, *more),
        env=environment(node, **variables),
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )


def notes(node: Path) -> list[str]:
    path = node / "notes"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(node: Path, text: str, times: int = 1) -> None:
    until(lambda: sum(text in line for line in notes(node)) >= times, f"{text!r} in {node / 'notes'}")


# On a machine without one.
TPU = {"BASH_FUNC_compgen%%": "() { true; }"}


JUDGE_ELSEWHERE = ("--judge-url", "http://far:8000")


def make_node(tmp_path: Path) -> Path:
    """A folder with the stand-ins in bin/, a checkpoint and a manifest."""
    for name, text in {
        "nvidia-smi": NVIDIA_SMI,
        "python": PYTHON.format(
            python=sys.executable,
            address=preflight_server.ADDRESS,
            ask_server=textwrap.indent(preflight_server.CLIENT.strip(), "    "),
        ),
        "sleep": SLEEP,
        "curl": "#!/bin/bash\n[[ -z $JUDGE_DOWN ]]\n",
        "hostname": "#!/bin/bash\necho ${NODE:-here}\n",
        "srun": SRUN,
        "scancel": SCANCEL,
        "scontrol": SCONTROL,
        "gcloud": '#!/bin/bash\nprintf "%s\\n" "$@" > "$NOTES"\n',
    }.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3_vl"}')
    (tmp_path / "model" / "model.safetensors").touch()
    (tmp_path / "a.png").touch()
    (tmp_path / "b.mp4").touch()
    # One step of the paper's runs for each modality.
    rows = [f'{{"id": "{i}", "image": "a.png"}}\n{{"id": "v{i}", "video": "b.mp4"}}\n' for i in range(32)]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    return tmp_path
