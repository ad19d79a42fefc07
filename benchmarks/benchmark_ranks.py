r"""Which benchmark tells captioners apart? Captions of known quality in the embedded world, scored by each benchmark.

    python benchmarks/benchmark_ranks.py --scenes 48
    python benchmarks/benchmark_ranks.py --scenes 48 --run DIR/e1 --run DIR/e2 --run OTHER --out build/ranks.json

Captioners of stated weaknesses describe held-out scenes. With --run it is those of runs of one modality instead: what
their starting policies, trained policies and references wrote; who wrote the same in several runs counts once. The
scenes are laid out as the public benchmarks have their data, and the embedded judge answers their questions. What is
true is counted. Prints for each captioner the counted coverage and correctness beside every figure, and for each figure
its rank correlation (Kendall's tau) with the counted truth, the harmonic mean of coverage and correctness, and with the
number of words. What is not finite for a captioner (the share of true claims where nothing is claimed) is null, and has
no ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from scipy.stats import kendalltau

from benchmarks.scenes_as_benchmarks import write_capmas, write_decapbench, write_dream1k, write_vcapsbench
from vcap_jax.evals.benchmarks.benchmark import Benchmark
from vcap_jax.evals.benchmarks.capmas import CapMas
from vcap_jax.evals.benchmarks.decapbench import DeCapBench
from vcap_jax.evals.benchmarks.dream1k import Dream1k
from vcap_jax.evals.benchmarks.vcapsbench import VCapsBench
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.protocol import EvaluatorTools
from vcap_jax.evals.written_captions import PredictionsCaptioner
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.system.json_values import rows_of
from vcap_jax.world.captions import WeakSettings, weak_caption
from vcap_jax.world.dataset import read_scenes, sample_scene
from vcap_jax.world.facts import FactCount, count_facts
from vcap_jax.world.judge_process import embedded_judge
from vcap_jax.world.scenes import Modality, Scene

CAREFUL = {"wrong_fact": 0.0, "invent_object": 0.0}
WEAKNESSES: Mapping[str, WeakSettings] = {
    "complete and true": WeakSettings(omit_object=0, omit_fact=0, **CAREFUL),
    "half of it, true": WeakSettings(omit_object=0.3, omit_fact=0.3, **CAREFUL),
    "little, true": WeakSettings(omit_object=0.6, omit_fact=0.5, **CAREFUL),
    "weak reference": WeakSettings(),
    "complete, 15% wrong": WeakSettings(omit_object=0, omit_fact=0, wrong_fact=0.15, invent_object=0),
    "complete, 40% wrong": WeakSettings(omit_object=0, omit_fact=0, wrong_fact=0.4, invent_object=0),
    "complete and inventive": WeakSettings(omit_object=0, omit_fact=0, wrong_fact=0, invent_object=1),
    "half of it, 40% wrong": WeakSettings(omit_object=0.3, omit_fact=0.3, wrong_fact=0.4, invent_object=0.5),
}
CHATTER = " It is a lovely picture. One could look at it for hours. Everything is where it should be."
BENCHMARKS: Mapping[Modality, Sequence[tuple[type[Benchmark[object]], Callable[..., None]]]] = {
    "image": ((CapMas, write_capmas), (DeCapBench, write_decapbench)),  # type: ignore[dict-item]
    "video": ((VCapsBench, write_vcapsbench), (Dream1k, write_dream1k)),  # type: ignore[dict-item]
}

Captions = Mapping[str, str]
Figures = Mapping[str, float | None]
COUNTED = ("both", "coverage", "correct", "words")


def captioners(scenes: Mapping[str, Scene]) -> dict[str, Captions]:
    """Captions by made-up captioners, by scene."""
    found: dict[str, Captions] = {}
    for number, (name, settings) in enumerate(WEAKNESSES.items()):
        found[name] = {
            identity: weak_caption(scene, np.random.default_rng([number, place]), settings)
            for place, (identity, scene) in enumerate(scenes.items())
        }
    if all(identity.startswith("image") for identity in scenes):
        found["half of it, true, chatty"] = {
            identity: text + CHATTER for identity, text in found["half of it, true"].items()
        }
    found["half of it, true, said twice"] = {
        identity: f"{text}\n{text}" for identity, text in found["half of it, true"].items()
    }
    return found


def written_in(runs: Sequence[Path]) -> tuple[dict[str, Scene], dict[str, Captions]]:
    """The held-out scenes of runs, and the first caption of each by their starting policies, trained policies and
    references. Ends the program for runs whose scenes differ."""
    scenes: dict[str, Scene] = {}
    found: dict[str, Captions] = {}
    for run in runs:
        own = dict(read_scenes(run / "data" / "heldout"))
        if scenes and own != scenes:
            raise SystemExit(f"{run} has other held-out scenes than {runs[0]}: give runs of one world")
        scenes = own
        for when in ("references", "start", "trained"):
            path = RunFolder(run).evaluation("heldout") / f"{when}.items.jsonl"
            if when == "references" and not path.exists():
                print(
                    f"{run} has no references of its held-out scenes, as it learned from a pool without any"
                )
                continue
            rows = map(json.loads, rows_of(path.read_text(encoding="utf-8")))
            captions = {row["id"]: row["captions"][0] for row in rows}
            if captions not in found.values():
                found[f"{when} of {run}"] = captions
    return scenes, found


def truth(scenes: Mapping[str, Scene], captions: Captions) -> dict[str, float]:
    """Counted coverage, correctness and their harmonic mean, in percent; words of a caption."""
    total = FactCount(total=0, claims=0, correct=0)
    for identity, scene in scenes.items():
        total += count_facts(scene, captions[identity])
    coverage, correct = 100 * total.coverage, 100 * (1 - total.hallucination)
    words = np.mean([len(captions[identity].split()) for identity in scenes])
    return {
        "coverage": coverage,
        "correct": correct,
        "both": 2 * coverage * correct / (coverage + correct) if coverage + correct else 0.0,
        "words": float(words),
    }


def scored(
    kind: type[Benchmark[object]], data: Path, captions: Captions, judge: JudgeConfig
) -> dict[str, float]:
    """A benchmark's figures of captions."""
    config = EvaluatorConfig(use=kind.name, options={"data": str(data)})
    tools = EvaluatorTools(
        modality=kind.modality or "image", judge=judge, captioning=False, say=lambda text: None
    )
    found = kind(config, tools).evaluate(PredictionsCaptioner(captions))
    if found.failed or any(stage.failed for stage in found.stages.values()):
        raise SystemExit(f"{kind.name}: judgements failed: {found.stages}")
    return {f"{kind.name} {name}": value.value for name, value in found.metrics.items()}


def measured(
    modality: Modality,
    scenes: Mapping[str, Scene],
    by: Mapping[str, Captions],
    judge: JudgeConfig,
    work: Path,
) -> dict[str, Figures]:
    """Truth and figures, by captioner."""
    for kind, write in BENCHMARKS[modality]:
        write(work / kind.name, scenes)
    rows: dict[str, Figures] = {}
    for name, captions in by.items():
        found = truth(scenes, captions)
        for kind, _ in BENCHMARKS[modality]:
            found |= scored(kind, work / kind.name, captions, judge)
        print(f"{modality}, {name}: " + ", ".join(f"{k} {v:.1f}" for k, v in found.items()), flush=True)
        rows[name] = {key: finite(value) for key, value in found.items()}
    return rows


def finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if np.isfinite(value) else None


def ranks(rows: Mapping[str, Figures]) -> dict[str, Figures]:
    """Kendall's tau of each figure with what was counted, over the captioners; IR counts downwards. Only of what all
    captioners have; None where all have the same."""
    columns = {
        key: np.array([row[key] for row in rows.values()])
        for key in next(iter(rows.values()))
        if all(row[key] is not None for row in rows.values())
    }
    found: dict[str, Figures] = {}
    for name, values in columns.items():
        if name in COUNTED:
            continue
        signed = -values if name.endswith(" ir") else values
        found[name] = {
            against: finite(float(kendalltau(signed, columns[against]).statistic))
            for against in COUNTED
            if against in columns
        }
    return found


def table(rows: Mapping[str, Figures]) -> str:
    """Rows of figures as text for a page."""
    columns = list(next(iter(rows.values()), {}))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = ("" if value is None else f"{value:.2f}" for value in row.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scenes", type=int, default=64, help="held-out scenes of each modality (default: 64)"
    )
    parser.add_argument(
        "--run", type=Path, action="append", default=[], help="of the embedded world; again for more"
    )
    parser.add_argument(
        "--modality",
        choices=("image", "video"),
        action="append",
        help="of the made-up captioners (default: both)",
    )
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    described: dict[Modality, tuple[Mapping[str, Scene], Mapping[str, Captions]]] = {}
    if args.run:
        scenes, by = written_in(args.run)
        scenes = dict(list(scenes.items())[: args.scenes])
        described["image" if hasattr(next(iter(scenes.values())), "background") else "video"] = scenes, by
    else:
        for modality in args.modality or ("image", "video"):
            scenes = {f"{modality}-{k}": sample_scene(modality, 0, k, "heldout") for k in range(args.scenes)}
            described[modality] = scenes, captioners(scenes)
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, embedded_judge(Path(folder) / "judge.log") as url:
        for modality, (shown, captions) in described.items():
            rows = measured(modality, shown, captions, JudgeConfig(urls=(url,)), Path(folder) / modality)
            results[modality] = {"figures": rows, "tau": ranks(rows)}
            print(f"\n{table(rows)}\n\n{table(ranks(rows))}\n", flush=True)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
