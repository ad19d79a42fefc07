"""The vLLM to be run: where its executable is, and which versions its environment holds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.system.errors import VCapError

REQUIREMENTS = "gpu_judge/requirements-vllm.txt"
INSTALL = f"python3 -m venv .venv-vllm && .venv-vllm/bin/pip install -r {REQUIREMENTS}"
SERIES = (0, 32)
"""The vLLM release series whose options and answers this package was written against."""
TRANSFORMERS_BELOW = (5, 20)
"""From 5.22 the video processor shrinks large frames on its own (``cap_pixels_per_frame``)."""

# Read from the metadata: importing torch would take seconds.
_PROBE = """
import importlib.util, json, pathlib, re, sysconfig
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try: return version(name)
    except PackageNotFoundError: return None
cuda = None
torch = importlib.util.find_spec("torch")
if torch is not None and torch.submodule_search_locations:
    source = (pathlib.Path(torch.submodule_search_locations[0]) / "version.py").read_text()
    found = re.search(r"^cuda[^=\\n]*=\\s*['\\"]([\\d.]+)['\\"]", source, re.MULTILINE)
    cuda = found and found.group(1)
headers = (pathlib.Path(sysconfig.get_path("include")) / "Python.h").is_file()
print(json.dumps({"vllm": of("vllm"), "transformers": of("transformers"), "cuda": cuda, "headers": headers}))
"""


class InstallationError(VCapError, RuntimeError):
    """No vLLM that can be used; the message has the install command."""


@dataclass(frozen=True, kw_only=True)
class Installation:
    """One environment with vLLM.

    executable: ``vllm``. version, transformers: release numbers as their packages give them.
    cuda: the CUDA release its torch was built for, e.g. "13.0"; None for a build without CUDA. headers: whether its
    Python's are there, which C modules are built with.
    """

    executable: Path
    version: str
    transformers: str
    cuda: str | None
    headers: bool


def find_executable(given: Path | None) -> Path:
    """``given``, or the ``vllm`` on PATH or beside this Python. Raises InstallationError."""
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise InstallationError(
                f"--vllm {given} is no executable; vLLM has an environment of its own: {INSTALL}"
            )
        return Path(found).absolute()
    beside = Path(sys.executable).with_name("vllm")
    found = shutil.which("vllm") or shutil.which(beside)
    if found is None:
        raise InstallationError(
            f"no vllm on PATH and none beside {sys.executable}. Make it an environment of its own and name its "
            f"executable:\n  {INSTALL}\n  python gpu_judge/serve.py --vllm .venv-vllm/bin/vllm ..."
        )
    return Path(found).absolute()


def inspect(executable: Path) -> Installation:
    """Asks the Python that runs ``executable`` for its versions. Raises InstallationError."""
    python = _python_of(executable)
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True, cwd="/"
        )
        values = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or error
        raise InstallationError(
            f"{python}, which runs {executable}, does not work: {said}\n  {INSTALL}"
        ) from error
    missing = [name for name in ("vllm", "transformers") if not values[name]]
    if missing:
        raise InstallationError(f"{executable}'s environment has no {' and no '.join(missing)}: {INSTALL}")
    return Installation(
        executable=executable,
        version=values["vllm"],
        transformers=values["transformers"],
        cuda=values["cuda"],
        headers=values["headers"],
    )


def check_versions(found: Installation) -> list[str]:
    """What is wrong with the versions, each with its remedy."""
    problems = []
    if release(found.version)[:2] != SERIES:
        wanted = ".".join(map(str, SERIES))
        problems.append(f"vLLM is {found.version}, and its options are known for {wanted}.x: {INSTALL}")
    if release(found.transformers)[:2] >= TRANSFORMERS_BELOW:
        below = ".".join(map(str, TRANSFORMERS_BELOW))
        problems.append(
            f"transformers is {found.transformers} in vLLM's environment, and from {below} on it has not been seen to "
            f"leave video frames as they are: {INSTALL}"
        )
    return problems


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 32, 0) for "0.32.0+cpu"."""
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _python_of(executable: Path) -> str:
    """The interpreter in the script's first line; pip writes it there."""
    try:
        with executable.open("rb") as file:
            first = file.readline(1024)
    except OSError as error:
        raise InstallationError(f"--vllm {executable} cannot be read: {error}") from error
    interpreter = first[2:].decode(errors="replace").strip() if first.startswith(b"#!") else ""
    # For a long path pip writes a shell script, and others write /usr/bin/env: both stand beside their Python.
    if " " not in interpreter and Path(interpreter).name.startswith("python"):
        return interpreter
    beside = executable.resolve().with_name("python")
    if beside.exists():
        return str(beside)
    raise InstallationError(
        f"{executable} does not say which Python runs it: name the script of an environment, {INSTALL}"
    )
