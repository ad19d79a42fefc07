"""Settings to vLLM's command lines."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_judge.addresses import AccessError, local_url_of, url_of
from gpu_judge.options import parse_arguments, serve_settings
from gpu_judge.serve import main
from gpu_judge.vllm_server import checks
from gpu_judge.vllm_server.command import KEY_VARIABLE, ServerCommand, build_commands, listed_ports
from gpu_judge.vllm_server.settings import ServeSettings, SettingsError
from tests.gpu_judge.vllm_fakes import EIGHT_B, settings, write_checkpoint
from vcap_jax.system.loopback import is_loopback

VLLM = Path("/envs/vllm/bin/vllm")


def built(**changes: Any) -> list[ServerCommand]:
    chosen = settings(**changes)
    return build_commands(chosen, EIGHT_B, VLLM, listed_ports(chosen))


def flags(command: ServerCommand) -> dict[str, str | bool]:
    """The options after ``vllm serve MODEL``; True for those without a value."""
    words, found = command.argv[3:], dict[str, str | bool]()
    for word, following in zip(words, (*words[1:], "--"), strict=True):
        if word.startswith("--"):
            assert word not in found, f"{word} twice"
            found[word] = True if following.startswith("--") else following
    return found


def test_every_gpu_has_a_server_of_its_own_on_the_next_port() -> None:
    commands = built(gpus=(6, 7), port=9000)
    assert [flags(command)["--port"] for command in commands] == ["9000", "9001"]
    assert [command.environment["CUDA_VISIBLE_DEVICES"] for command in commands] == ["6", "7"]
    assert all(command.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for command in commands)
    assert all("--tensor-parallel-size" not in flags(command) for command in commands)
    assert all(command.argv[:3] == (str(VLLM), "serve", "/models/judge") for command in commands)


def test_tensor_parallelism_groups_neighbouring_gpus() -> None:
    commands = built(gpus=(4, 5, 6, 7), tensor_parallel_size=2)
    assert [command.environment["CUDA_VISIBLE_DEVICES"] for command in commands] == ["4,5", "6,7"]
    assert all(flags(command)["--tensor-parallel-size"] == "2" for command in commands)


def test_a_judgement_of_the_papers_largest_image_fits() -> None:
    (command,) = built()
    visual, captions, answer = 6_422_528 // 1024, 2 * 4096, 1024
    length = int(str(flags(command)["--max-model-len"]))
    assert visual + captions + answer + 600 <= length < visual + captions + answer + 3000
    sizes = json.loads(str(flags(command)["--mm-processor-kwargs"]))
    assert sizes == {"images_kwargs": {"size": {"shortest_edge": 65_536, "longest_edge": 6_422_528}}}
    assert json.loads(str(flags(command)["--limit-mm-per-prompt"]))["video"] == 0
    assert "--media-io-kwargs" not in flags(command)
    assert "--trust-request-mm-kwargs" not in flags(command)


def test_a_judgement_of_the_papers_longest_video_fits() -> None:
    (command,) = built(modality="video")
    visual, captions, answer = 100 * 256, 2 * 6300, 1024
    length = int(str(flags(command)["--max-model-len"]))
    assert visual + captions + answer + 100 * 10 + 600 <= length < visual + captions + answer + 4000
    sizes = json.loads(str(flags(command)["--mm-processor-kwargs"]))
    assert sizes["videos_kwargs"]["size"] == {"shortest_edge": 4_096, "longest_edge": 200 * 256 * 1024}
    assert sizes["images_kwargs"]["size"]["longest_edge"] == 256 * 1024
    assert json.loads(str(flags(command)["--limit-mm-per-prompt"])) == {"image": 200, "video": 1}
    assert json.loads(str(flags(command)["--media-io-kwargs"])) == {"video": {"num_frames": -1}}
    assert flags(command)["--trust-request-mm-kwargs"] is True


@pytest.mark.parametrize(
    ("modality", "given", "images"),
    [("image", {}, 8), ("image", {"images_per_prompt": 12}, 12), ("video", {}, 200)],
)
def test_pictures_of_a_request(modality: str, given: dict[str, int], images: int) -> None:
    limits = flags(built(modality=modality, **given)[0])["--limit-mm-per-prompt"]
    assert json.loads(str(limits))["image"] == images


def test_both_modalities_get_the_longer_context_and_both_budgets() -> None:
    length = {
        modality: flags(built(modality=modality)[0])["--max-model-len"] for modality in ("video", "both")
    }
    assert length["both"] == length["video"]
    sizes = json.loads(str(flags(built(modality="both")[0])["--mm-processor-kwargs"]))
    assert sizes["images_kwargs"]["size"]["longest_edge"] == 6_422_528
    assert sizes["videos_kwargs"]["size"]["longest_edge"] == 52_428_800


@pytest.mark.parametrize("modality", ["image", "video", "both"])
def test_what_every_server_is_told(modality: str) -> None:
    told = flags(built(modality=modality)[0])
    assert json.loads(str(told["--structured-outputs-config"])) == {
        "backend": "xgrammar",
        "disable_any_whitespace": True,
    }
    assert told["--generation-config"] == "vllm"
    assert told["--host"] == "127.0.0.1"
    assert told["--max-num-queued-reqs"] == "256"
    assert float(str(told["--mm-processor-cache-gb"])) == (8 if modality == "image" else 16)
    assert int(str(told["--shutdown-timeout"])) > 0
    for name in (
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--enable-server-load-tracking",
    ):
        assert told[name] is True


def test_given_options_reach_vllm() -> None:
    chosen: dict[str, Any] = {
        "quantization": "fp8",
        "dtype": "bfloat16",
        "max_model_len": 9000,
        "media_cache_gb": 2.5,
        "max_queued": 9,
        "seed": 3,
        "drain_s": 7,
        "gpu_memory_utilization": 0.5,
        "model_name": "judge-8b",
        "extra": ("--max-num-seqs", "64", "-1"),
    }
    (command,) = built(**chosen)
    told = flags(command)
    assert told["--quantization"] == "fp8"
    assert told["--dtype"] == "bfloat16"
    assert told["--max-model-len"] == "9000"
    assert told["--mm-processor-cache-gb"] == "2.5"
    assert told["--max-num-queued-reqs"] == "9"
    assert told["--seed"] == "3"
    assert told["--shutdown-timeout"] == "7"
    assert told["--gpu-memory-utilization"] == "0.5"
    assert told["--served-model-name"] == "judge-8b"
    assert command.argv[-3:] == ("--max-num-seqs", "64", "-1")


def test_without_gpus() -> None:
    (command,) = built(gpus=None, cpu_cache_gb=3)
    assert command.environment["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in command.environment
    assert flags(command)["--enforce-eager"] is True
    assert "--gpu-memory-utilization" not in flags(command)


def test_the_key_is_nowhere_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    (command,) = built(host="0.0.0.0", api_key_env="JUDGE_KEY")
    assert "s3cret" not in command.shell() + " ".join(command.argv) + str(command)
    assert command.shell().startswith(f'{KEY_VARIABLE}="$JUDGE_KEY" ')
    assert "--api-key" not in flags(command)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_with_a_key_every_route_asks_for_it(host: str) -> None:
    (command,) = built(host=host, api_key_env="JUDGE_KEY")
    module, _, name = str(flags(command)["--middleware"]).rpartition(".")
    assert (Path(command.environment["PYTHONPATH"]) / (module.replace(".", "/") + ".py")).exists()
    assert name == "KeyGuard"
    assert "--middleware" not in flags(built()[0])


def test_only_the_guard_comes_onto_the_path_of_vllm() -> None:
    """Installed from a wheel the package lies beside the libraries of the trainer's environment."""
    (command,) = built(host="0.0.0.0", api_key_env="JUDGE_KEY")
    (folder,) = command.environment["PYTHONPATH"].split(os.pathsep)
    assert {path.name for path in Path(folder).glob("*.py")} == {"__init__.py", "key_guard.py"}
    assert {path.name for path in Path(folder).iterdir() if path.is_dir()} <= {"__pycache__"}


def test_development_routes_are_off_unless_sleep_is_asked_for() -> None:
    assert built()[0].environment["VLLM_SERVER_DEV_MODE"] == "0"
    (sleeping,) = built(sleep_mode=True)
    assert sleeping.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert flags(sleeping)["--enable-sleep-mode"] is True
    # vLLM has none on the CPU and answers as if.
    (on_cpu,) = built(sleep_mode=True, gpus=None)
    assert on_cpu.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "--enable-sleep-mode" not in flags(on_cpu)
    with pytest.raises(SettingsError, match="development routes"):
        built(sleep_mode=True, host="10.0.0.1", api_key_env="JUDGE_KEY")


def test_the_printed_line_means_the_same_to_a_shell() -> None:
    (command,) = built(modality="video", model=Path("/models/a judge"))
    words = shlex.split(command.shell())
    count = 1 + len(command.environment)
    told = dict(word.split("=", 1) for word in words[:count])
    assert told == {"PATH": f"{VLLM.parent}:$PATH", **command.environment}
    assert tuple(words[count:]) == command.argv


def test_programs_beside_vllm_are_found_first() -> None:
    """FlashInfer calls ninja by its name, and the shell that starts the server need not have it."""
    (command,) = built()
    assert (
        command.environment_upon({"PATH": "/usr/bin", "HOME": "/h"}).items()
        >= {
            "PATH": f"{VLLM.parent}:/usr/bin",
            "HOME": "/h",
            "CUDA_VISIBLE_DEVICES": "0",
        }.items()
    )
    assert command.environment_upon({})["PATH"] == str(VLLM.parent)
    bare = replace(command, argv=("vllm", *command.argv[1:]))
    assert bare.environment_upon({"PATH": "/usr/bin"})["PATH"] == "/usr/bin"
    assert "PATH=" not in bare.shell()


@pytest.mark.parametrize(
    "extra",
    [
        "--host=0.0.0.0",
        "--hos 0.0.0.0",
        "--api_key x",
        "--config server.yaml",
        "--middleware evil.Open",
        "--uds /tmp/socket",
        "--no-enable-prefix-caching",
        "--limit-mm-per-prompt.image 4",
        "--port 1",
        "-tp 2",
        "--tensor-parallel-size 2",
        "--tensor-parallel 2",
        "--enable-sleep-mode",
        "--quantization fp8",
        "--data-parallel-size 2",
    ],
)
def test_extra_options_cannot_undo_the_settings(extra: str) -> None:
    with pytest.raises(SettingsError, match=r"serve\.py sets itself"):
        built(extra=tuple(extra.split()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": ()}, "give GPU numbers"),
        ({"gpus": (1, 1)}, "twice"),
        ({"gpus": (1, 2, 3), "tensor_parallel_size": 2}, "do not fall into groups"),
        ({"gpus": None, "tensor_parallel_size": 2}, "needs GPUs"),
        ({"port": 65535, "gpus": (0, 1)}, "ports from there do not exist"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization is 1.5"),
        ({"media_cache_gb": 0.0}, "--media-cache-gb"),
        ({"max_queued": 0}, "--max-queued is 0"),
        ({"max_model_len": 0}, "--max-model-len is 0"),
        ({"video_frames": -1}, "--video-frames is -1"),
        ({"images_per_prompt": 0}, "--images-per-prompt is 0"),
    ],
)
def test_settings_that_cannot_be_served(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(**changes)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "judge.example.org", ""])
def test_no_address_but_loopback_without_a_key(host: str) -> None:
    with pytest.raises(AccessError, match="--api-key-env"):
        settings(host=host)
    assert isinstance(settings(host=host, api_key_env="JUDGE_KEY"), ServeSettings)


def test_loopback_and_how_clients_are_told() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert url_of("127.0.0.1", 8000) == "http://127.0.0.1:8000"
    assert url_of("::1", 8000) == "http://[::1]:8000"
    assert "0.0.0.0" not in url_of("0.0.0.0", 8000)
    assert local_url_of("0.0.0.0", 8000) == "http://127.0.0.1:8000"


def test_a_model_too_short_for_the_modality_is_refused_with_the_number() -> None:
    short = replace(EIGHT_B, positions=32_768)
    chosen = settings(modality="video")
    with pytest.raises(SettingsError, match=r"may need \d+ tokens and the model was made for 32768"):
        build_commands(chosen, short, VLLM, [8000])


def test_a_budget_below_the_models_own_bound_is_refused() -> None:
    with pytest.raises(SettingsError, match="lower bound of 65536"):
        built(image_pixels=1024)


def test_every_option_reaches_the_settings() -> None:
    line = (
        "--backend vllm --model /m/judge --model-name j --modality both --gpus 4,5 --tensor-parallel-size 2 "
        "--host 10.0.0.1 --port 9000 --api-key-env K --quantization fp8 --dtype bfloat16 --max-model-len 5000 "
        "--image-pixels 100000 --images-per-prompt 20 --video-frames 50 --frame-tokens 128 --media-cache-gb 1.5 "
        "--max-queued 7 --gpu-memory-utilization 0.4 --cpu-cache-gb 3 --seed 5 --drain-s 9 --vllm /v/vllm"
    )
    read = serve_settings(parse_arguments([*line.split(), "--extra=--max-num-seqs 64 --swap 'a b'"]))
    assert read == ServeSettings(
        model=Path("/m/judge"),
        model_name="j",
        modality="both",
        gpus=(4, 5),
        tensor_parallel_size=2,
        host="10.0.0.1",
        port=9000,
        api_key_env="K",
        quantization="fp8",
        dtype="bfloat16",
        max_model_len=5000,
        image_pixels=100_000,
        images_per_prompt=20,
        video_frames=50,
        frame_tokens=128,
        media_cache_gb=1.5,
        max_queued=7,
        gpu_memory_utilization=0.4,
        cpu_cache_gb=3,
        seed=5,
        drain_s=9,
        vllm=Path("/v/vllm"),
        extra=("--max-num-seqs", "64", "--swap", "a b"),
    )
    bare = serve_settings(parse_arguments(["--backend", "vllm", "--model", "/m/judge", "--gpus", "none"]))
    assert bare == ServeSettings(model=Path("/m/judge"), gpus=None)


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without vLLM, without nvidia-smi and with 8 GiB of free memory; a folder on it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(checks, "read_meminfo", lambda: "MemAvailable:    8388608 kB\n")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    return tmp_path


def test_print_shows_a_line_for_each_server_and_starts_nothing(
    bare_machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(bare_machine / "judge")
    assert main(["--backend", "vllm", "--model", str(folder), "--gpus", "6,7", "--print"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [f"vllm serve {shlex.quote(str(folder))} " in line for line in lines] == [True, True]
    assert [line.rpartition(" ")[2] for line in lines] == ["8000", "8001"]
    assert "requirements-vllm.txt" in printed.err  # there is no vllm here, and it says so


def test_print_needs_nothing_of_what_it_prints(
    bare_machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = (
        "--backend vllm --model /no/such/Qwen3-VL-8B --gpus 0,1 --vllm /no/such/vllm --host 10.1.2.3 --api-key-env "
        "NO_SUCH_KEY --modality both --port-file /no/such/folder/port --print"
    )
    assert main(line.split()) == 0
    printed = capsys.readouterr()
    chosen = settings(
        model=Path("/no/such/Qwen3-VL-8B"),
        gpus=(0, 1),
        host="10.1.2.3",
        api_key_env="NO_SUCH_KEY",
        modality="both",
    )
    published = build_commands(chosen, EIGHT_B, Path("/no/such/vllm"), [8000, 8001])
    assert printed.out.splitlines() == [command.shell() for command in published]
    missing = printed.err.splitlines()
    assert all(line.startswith("serve.py: to start this here: ") for line in missing)
    for what in (
        "NO_SUCH_KEY, and that environment variable is not set",
        "--port-file /no/such/folder/port: /no/such/folder does not exist",
        "--vllm /no/such/vllm is no executable",
        "--model /no/such/Qwen3-VL-8B is no folder",
        "nvidia-smi is not on PATH",
        "need 64.0 GiB of memory, and 8.0 GiB are available",
        "as it is published",
    ):
        assert sum(what in line for line in missing) == 1, what
    checked = line.replace("--print", "--check")
    assert main(checked.split()) == 2
    assert capsys.readouterr() == printed
    assert main([word for word in line.split() if word != "--print"]) == 2
    assert capsys.readouterr().out == ""


def test_print_refuses_what_is_wrong_anywhere(bare_machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "--backend vllm --model /no/such/judge --gpus 0 --image-pixels 1024 --print"
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "lower bound of 65536" in printed.err
