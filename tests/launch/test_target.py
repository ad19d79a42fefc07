"""docs/add_a_hardware_target.md, followed from the page alone: one entry more, and everything knows the target."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import pytest

from tests.launch.preflight_server import ADDRESS
from tests.launch.stand_ins import ROOT, environment
from tests.patience import GUARD_S
from tests.plan.tiny_run import tiny_run
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.plan import targets
from vcap_jax.plan.planning import capacity_of, layout, make_plan
from vcap_jax.run.checks import check_target
from vcap_jax.run.config import RunConfig
from vcap_jax.system import hardware as table
from vcap_jax.system.hardware import CHIPS, Chip, chip_of, hardware

PAGE = (ROOT / "docs" / "add_a_hardware_target.md").read_text()
ENTRY = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
COMMANDS = re.sub(r"\\\n\s+", "", re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[0]).splitlines()


@pytest.fixture
def x900(monkeypatch: pytest.MonkeyPatch) -> Chip:
    chip: Chip = eval(ENTRY, vars(table))
    monkeypatch.setitem(CHIPS, chip.name, chip)
    return chip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with the page's entry at the end of the table, and nothing else changed."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "launch", root / "launch")
    for folder in ("configs", "gpu_judge"):
        (root / folder).symlink_to(ROOT / folder)
    (root / "vcap_jax" / "system").mkdir(parents=True)
    for folder in ("vcap_jax", "vcap_jax/system"):
        for path in (ROOT / folder).iterdir():
            if path.name not in ("system", "hardware.py", "__pycache__"):
                (root / folder / path.name).symlink_to(path)
    text = (ROOT / "vcap_jax" / "system" / "hardware.py").read_text()
    end = '    )\n}\n"""Every chip by its name.'
    assert text.count(end) == 1
    entry = textwrap.indent(ENTRY.rstrip() + ",\n", " " * 8)
    (root / "vcap_jax" / "system" / "hardware.py").write_text(text.replace(end, entry + end))
    return root


def run(checkout: Path, command: str, **replaced: str) -> subprocess.CompletedProcess[str]:
    words = [replaced.get(word, word) for word in shlex.split(command)]
    words[0] = sys.executable if words[0] == "python" else words[0]
    node = Path(replaced["node"]) if "node" in replaced else checkout
    return subprocess.run(
        words,
        cwd=checkout,
        env={
            **environment(node),
            ADDRESS: "",
        },  # the checkout's own modules, not those of a server of this one
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )


def test_the_scripts_see_the_entry(checkout: Path) -> None:
    told = run(checkout, COMMANDS[0])
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert {"target_policy_gpus=0,1,2", "target_judge_gpus=3", "target_peak_bfloat16=2000000000000000"} < {
        *lines
    }
    assert run(checkout, "python launch/target.py").stdout.splitlines()[4] == "x900xN"
    unknown = run(checkout, "python launch/target.py x901x4")
    assert unknown.returncode == 2
    assert "x900xN" in unknown.stderr


@pytest.mark.long
def test_preflight_checks_a_run_for_the_target(checkout: Path, node: Path) -> None:
    model = shlex.quote(f"model.path={node / 'model'}")
    command = f"{COMMANDS[1]} {model}"
    manifest = f"data.manifest={node / 'rows.jsonl'}"
    told = run(checkout, command, **{"data.manifest=rows.jsonl": manifest})
    assert "ok\tgroups divide by 4, the devices they are split over" in told.stdout, told.stdout + told.stderr
    assert "GiB of x900x4's memory" in told.stdout
    refused = run(checkout, f"{command} model.attention=splash", **{"data.manifest=rows.jsonl": manifest})
    assert refused.returncode == 1
    assert "which does not run on x900; set one of cudnn, chunked" in refused.stdout


@pytest.mark.long
def test_the_launch_script_divides_the_node(checkout: Path, node: Path) -> None:
    files = {"DIR": str(node / "model"), "FILE": str(node / "rows.jsonl"), "node": str(node)}
    command = COMMANDS[3].replace(
        "--elsewhere", f"--elsewhere --python {shlex.quote(str(node / 'bin' / 'python'))}"
    )
    done = run(checkout, command, **files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CUDA_VISIBLE_DEVICES=0\\,1\\,2 " in done.stdout
    assert "--gpus 3 " in done.stdout
    assert "groups_per_batch=3" in done.stdout
    wrong = run(checkout, command.replace("x900x4", "x9"), **files)
    assert wrong.returncode == 2
    assert "unknown hardware 'x9'" in wrong.stderr


def test_a_plan_is_made_for_the_target(x900: Chip, tmp_path: Path) -> None:
    config, devices = tiny_run(tmp_path), jax.devices()[:2]
    plan = make_plan(config, hardware("x900x2"), only=frozenset({"vision"}), devices=(devices, devices))
    assert plan.capacity == int(0.92 * 180e9)
    (row,) = plan.rows
    assert config.model.dtype == "float32"
    assert row.compute == row.compiled.cost.flops / 1000e12
    assert row.memory == row.compiled.cost.moved / 8e12
    node = layout(config, hardware("x900x4"), 3)
    assert (node.judge, node.policy.devices) == (1, 3)
    assert (hardware("x900x8").link, hardware("x900x4").link) == (100e9, 900e9)
    assert capacity_of(hardware("x900x4"), 0.5) == 90 * 10**9
    for line in (
        'device_description_str: "X900"',
        "major: 10",
        "core_count: 148",
        "memory_bandwidth: 8000000000000",
    ):
        assert line in targets.description(x900)


def test_a_run_on_the_card_is_checked_by_its_entry(x900: Chip) -> None:
    assert chip_of("NVIDIA X900") == x900
    without = table.replace(x900, kernels=())
    with pytest.raises(ConfigError, match="auto, here cudnn, which does not run on x900; set one of chunked"):
        check_target(load_config(RunConfig, [], []), without)
    check_target(load_config(RunConfig, [], ["model.attention=chunked"]), without)
    check_target(load_config(RunConfig, [], []), x900)


def test_a_mesh_that_cuts_heads_is_refused_where_the_kernel_cannot_be_cut(x900: Chip) -> None:
    cut = ["mesh.tensor=2", "model.dtype=bfloat16"]
    with pytest.raises(ConfigError, match=r"mesh\.tensor is 2, and model.attention cudnn cannot be cut"):
        check_target(load_config(RunConfig, [], cut), x900)
    check_target(load_config(RunConfig, [], [*cut, "model.attention=chunked"]), x900)
    # Which takes the chunked one, with a warning.
    check_target(load_config(RunConfig, [], ["mesh.tensor=2", "model.dtype=float32"]), x900)
