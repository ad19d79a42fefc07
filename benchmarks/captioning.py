"""Captioning pictures with this package, with vLLM and with transformers' generate: same weights, one machine.

    python benchmarks/captioning.py --torch-python /path/to/python --vllm /opt/vllm/bin/vllm --out runs/captioning

The small random Qwen3-VL of ``small_policy.py`` in float32 captions --pictures pictures greedily, one caption of
exactly --tokens tokens each, from the files to the texts. This package is asked as users ask it
(``Captioner.stream``), vLLM through the same captioner with the server's address, ``generate`` batch by batch, with
the quickest of the batch sizes. Weights are loaded and programs compiled before. Every round has pictures of its own,
so that no server remembers any; at least four captions in five must be the same (see ``same_share``). The three never
run side by side. This package and ``generate`` take turns, --rounds times, vLLM captions as often behind them; the
least time of each is reported, since what else a machine does only adds to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from safetensors.numpy import load_file, save_file

from benchmarks.small_policy import picture, write_policy
from benchmarks.vllm_parity import served
from vcap_jax import Captioner
from vcap_jax.training.compile_counter import CompileCounter

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Describe the image."


@dataclass(frozen=True)
class Side:
    """texts: of each picture of each round; turns: seconds of each round."""

    texts: list[str]
    turns: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return min(self.turns)


def endless_policy(folder: Path, visual_tokens: int) -> None:
    """Writes the model so that no caption ends early: the likeliest token never has the logit 0."""
    processor = write_policy(folder, visual_tokens=visual_tokens)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name in ("lm_head.weight", "model.language_model.embed_tokens.weight"):
        if name in weights:
            weights[name][list(processor.eos_token_ids)] = 0
    save_file(weights, file, metadata={"format": "pt"})


def plain(text: str) -> str:
    """Without what the three treat in different ways: spaces around it, and bytes at its end that are no character."""
    return text.strip().rstrip("\ufffd").rstrip()


def captioned(captioner: Captioner, files: Sequence[Path]) -> tuple[list[str], float]:
    """Texts in the order of the files, and the seconds they took. Raises SystemExit for a picture without a caption."""
    begin = time.perf_counter()
    found = sorted(captioner.stream(files), key=lambda caption: caption.index)
    seconds = time.perf_counter() - begin
    if failed := [caption for caption in found if caption.failure is not None]:
        raise SystemExit(f"{len(failed)} pictures have no caption, the first: {failed[0].failure}")
    return [plain(caption.text) for caption in found], seconds


def by_transformers(model: Path, files: Sequence[Path], batch: int, options: argparse.Namespace) -> Side:
    """``generate`` in a process of its own."""
    command = [options.torch_python, str(ROOT / "benchmarks" / "captioning_worker.py"), f"--model={model}"]
    command += [f"--prompt={PROMPT}", f"--tokens={options.tokens}", f"--threads={os.cpu_count()}"]
    command += [f"--batch={batch}", "--pictures", *map(str, files)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return Side([plain(text) for text in found["texts"]], (found["seconds"],))


def by_vllm(model: Path, rounds: Sequence[Sequence[Path]], options: argparse.Namespace) -> Side:
    """A server of its own, asked over HTTP; the first round is not timed."""
    # Left alone, vLLM for CPUs keeps a core for its front end: on two cores half of the machine.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    options.more = ["--max-model-len=4096", "--gpu-memory-utilization=0.4"]
    with (
        served(model, "float32", options, model.parent / "vllm.log") as url,
        Captioner.load(
            url, prompt=PROMPT, settings=[f"rollout.max_completion_length={options.tokens}"]
        ) as captioner,
    ):
        captioned(captioner, rounds[0])
        return joined([by_captioner(captioner, files) for files in rounds[1:]])


def by_captioner(captioner: Captioner, files: Sequence[Path]) -> Side:
    """Raises SystemExit if anything was compiled."""
    with CompileCounter() as compiles:
        texts, seconds = captioned(captioner, files)
    if compiles.count:
        raise SystemExit("the timed round compiled: its time is not that of steady state")
    return Side(texts, (seconds,))


def joined(sides: Sequence[Side]) -> Side:
    """Of several rounds."""
    texts = [text for side in sides for text in side.texts]
    return Side(texts, tuple(seconds for side in sides for seconds in side.turns))


def same_share(ours: Side, theirs: Side, name: str) -> float:
    """The share of captions that are equal. Raises SystemExit below four in five.

    Of this random model the two likeliest tokens are sometimes nearly equal, and then a sum in another order decides
    what comes after. All captions have the same number of tokens, so the work is the same.
    """
    different = [i for i, (a, b) in enumerate(zip(ours.texts, theirs.texts, strict=True)) if a != b]
    if len(different) > len(ours.texts) / 5:
        first = different[0]
        raise SystemExit(
            f"{name}: {len(different)} of {len(ours.texts)} captions differ from ours, such as that of picture "
            f"{first}:\n{ours.texts[first]!r}\n{theirs.texts[first]!r}"
        )
    return 1 - len(different) / len(ours.texts)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-python", required=True, help="Python with torch and transformers")
    parser.add_argument("--vllm", help="the vllm executable; left out if not given")
    parser.add_argument("--out", type=Path, required=True, help="new folder for model, pictures and result")
    parser.add_argument("--visual-tokens", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="of a caption")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[8, 32], help="pictures that generate gets at once"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--port", type=int, default=8193)
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="SECONDS")
    options = parser.parse_args()
    options.cpu = True
    options.out.mkdir(parents=True)
    results = []
    print(
        f"{'visual tokens':>14}  {'side':<22}{'pictures/s':>11}{'ours / it':>11}{'seconds':>10}{'same':>7}",
        flush=True,
    )
    for visual_tokens in options.visual_tokens:
        folder = options.out / str(visual_tokens)
        folder.mkdir()
        endless_policy(folder / "model", visual_tokens)
        files = [folder / f"{index:04}.png" for index in range(options.pictures * (options.rounds + 1))]
        for index, file in enumerate(files):
            picture(visual_tokens, seed=index).save(file)
        rounds = [files[i : i + options.pictures] for i in range(0, len(files), options.pictures)]
        # Servers are asked without a penalty.
        settings = [
            f"rollout.max_completion_length={options.tokens}",
            "rollout.sampling.repetition_penalty=1.0",
        ]
        captioner = Captioner.load(folder / "model", prompt=PROMPT, settings=settings)
        captioned(captioner, rounds[0])
        mine: list[Side] = []
        theirs: dict[str, list[Side]] = {}
        for files in rounds[1:]:
            mine.append(by_captioner(captioner, files))
            for batch in options.batch:
                side = by_transformers(folder / "model", files, batch, options)
                theirs.setdefault(f"transformers, {batch} at once", []).append(side)
        sides = {"this package": joined(mine)} | {name: joined(rounds) for name, rounds in theirs.items()}
        if options.vllm:
            sides["vllm"] = by_vllm(folder / "model", rounds, options)
        ours = sides["this package"]
        for name, side in sides.items():
            same = same_share(ours, side, name)
            rate, ratio = options.pictures / side.seconds, side.seconds / ours.seconds
            print(
                f"{visual_tokens:>14}  {name:<22}{rate:>11.1f}{ratio:>11.2f}{side.seconds:>10.2f}{same:>7.0%}",
                flush=True,
            )
            row = {
                "visual_tokens": visual_tokens,
                "side": name,
                "pictures_per_s": rate,
                "ratio": ratio,
                "same": same,
            }
            results.append(row | {"seconds": side.seconds, "turns_s": side.turns})
        (options.out / "captioning.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
