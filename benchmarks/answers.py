"""What asking several questions about a picture together saves, in the embedded world.

    python benchmarks/answers.py --modality video

The starting policy answers the questions of ``configs/references`` about the same scenes in two ways: a sample's
questions as the candidates of one group, which is what references are made with, and each as a prompt of its own. Both
ways take turns, the quickest of each counts, after a first turn that compiles. The answers are compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vcap_jax.configuration import load_config
from vcap_jax.data.pipeline import BadSample
from vcap_jax.references.asking import Answering
from vcap_jax.references.beside import Asking
from vcap_jax.references.by_policy import reference_rollout
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import group_sampler
from vcap_jax.run.setup import prepare

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = {"image": "places.yaml", "video": "clip_places.yaml"}


def refuse(bad: BadSample) -> None:
    """Both ways have to do the same work."""
    raise SystemExit(str(bad))


def compare(modality: str, scenes: int, each: int, turns: int) -> dict[str, object]:
    """Answers per second of both ways, and how many differ."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(
            RunConfig,
            [
                ROOT / "configs" / "embedded" / f"{modality}.yaml",
                ROOT / "configs" / "references" / QUESTIONS[modality],
            ],
            [f"world.train_scenes={scenes}", "world.heldout_scenes=1"],
        )
        ready = prepare(config, RunFolder(Path(folder)), lambda _: None)
        ctx, rollout = ready.ctx, reference_rollout(config)
        asking = Asking(questions=config.references.questions, each=each)
        items = asking.items(ready.samples, seed=config.seed)
        answering = Answering(ctx, rollout, questions=asking.questions, each=each)
        # As many answers side by side in both ways.
        alone = dataclasses.replace(
            rollout, groups_per_batch=rollout.groups_per_batch * each, single_groups=0
        )
        sampler = group_sampler(ctx.policy, alone)
        ways = {
            "together": lambda: answering.run(
                ctx.policy.trainable, items, seed=0, indices=range(len(items)), on_bad=refuse
            ),
            "alone": lambda: ctx.captioner(sampler).run(ctx.policy.trainable, items, seed=0, on_bad=refuse),
        }
        best, said = dict.fromkeys(ways, float("inf")), {}
        for turn in range(turns + 1):
            for name, draw in ways.items():
                begin = time.perf_counter()
                said[name] = [done.captions for done in draw()]
                if turn:
                    best[name] = min(best[name], time.perf_counter() - begin)
    different = sum(one != other for one, other in zip(said["together"], said["alone"], strict=True))
    rates = {name: len(items) / seconds for name, seconds in best.items()}
    return {
        "modality": modality,
        "scenes": scenes,
        "each": each,
        "answers": len(items),
        "answers_per_s": rates,
        "ratio": rates["together"] / rates["alone"],
        "different": different,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modality", choices=sorted(QUESTIONS), default="video")
    parser.add_argument("--scenes", type=int, default=128)
    parser.add_argument(
        "--each", type=int, help="questions to a scene; 3 of pictures, 4 of clips unless said"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    each = options.each or {"image": 3, "video": 4}[options.modality]
    found = compare(options.modality, options.scenes, each, options.turns)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
