"""What a reward pays for, step by step: how many captions tell of what, and whether those are the better ones.

    python benchmarks/what_pays.py runs/embedded-video                  # six parts of the run
    python benchmarks/what_pays.py runs/a runs/b --parts 10 --output pays.json

Reads finished or unfinished runs of the embedded world; nothing is judged or drawn anew. For each kind of fact, and for
two objects in one segment of a clip's caption: the share of a part's captions that tell of it, right or wrong; the
mean advantage of these captions (paper, Eq. grpo-adv), by the run's own settings: the reward less the mean of its
group, in standard deviations of the group; and the share of what they claim of it that is true. GRPO makes likelier
what is above 0 and rarer what is below. So of what a policy never comes to tell one sees whether it was not tried, or
tried and not paid for, and whether it was wrong. Groups of equal rewards and captions without a reward teach nothing
and are left out. Where length costs (``grpo.overlong``) captions are counted in
tokens anew; a run whose components are normalised each by itself (``grpo.advantages.per_component``) is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from transformers import AutoTokenizer

from vcap_jax.configuration import load_config
from vcap_jax.grpo.advantages import group_advantages, overlong_penalty
from vcap_jax.reward.store import StoredCandidate, read_candidates
from vcap_jax.run.config import RunConfig
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.dataset import read_scenes
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.scenes import Scene, VideoScene
from vcap_jax.world.slots import object_of
from vcap_jax.world.video_grammar import parse_video

SECOND = "two in a segment"


@dataclass(frozen=True, kw_only=True)
class Pay:
    """Of a trait in some steps. share: of the captions that have it. advantage: their mean; None if there are none.
    true: share of their claims of this kind; None where nothing is claimed."""

    share: float
    advantage: float | None
    true: float | None


def traits(scene: Scene, caption: str) -> Mapping[str, Sequence[bool]]:
    """What a caption tells of: by kind of fact whether each claim is true, and ``SECOND``, which is no claim, if a
    segment of a clip's tells of two objects."""
    facts, told = scene_facts(scene), dict[str, list[bool]]()
    for slot, value in caption_claims(scene, caption):
        told.setdefault(str(slot[-1]), []).append(facts.get(slot) == value)
    if isinstance(scene, VideoScene):
        for segment in parse_video(caption).segments:
            objects = {object_of(slot) for sentence in segment.sentences for slot, _ in sentence.claims}
            if len(objects - {None}) > 1:
                told[SECOND] = []
    return told


def advantages(
    group: Sequence[StoredCandidate], config: RunConfig, tokens: Callable[[str], int]
) -> np.ndarray | None:
    """Of a group's candidates, NaN for one without a reward; None for a group that teaches nothing. config: of the run.
    tokens: in a caption, its end included."""
    rewards = np.array([[np.nan if one.reward is None else one.reward for one in group]])
    if config.grpo.overlong.weight:
        lengths = np.array([[tokens(one.caption) for one in group]])
        longest = config.rollout.max_completion_length
        rewards = rewards + overlong_penalty(lengths, longest, config.grpo.overlong)
    scored = np.isfinite(rewards)
    found = group_advantages(rewards, scored, config.grpo.advantages)
    if found.skipped[0] or found.flat[0]:
        return None
    return np.where(scored[0], np.asarray(found.advantages[0]), np.nan)


def pay(
    candidates: Iterable[StoredCandidate],
    scenes: Mapping[str, Scene],
    parts: int,
    steps: int,
    advantages: Callable[[Sequence[StoredCandidate]], np.ndarray | None],
) -> dict[str, list[Pay]]:
    """By trait what was paid in each of ``parts`` equal parts of ``steps``, the most often told first."""
    captions = [0] * parts
    told: dict[str, list[list[float]]] = {}
    true: dict[str, list[list[bool]]] = {}
    for _, members in groupby(candidates, lambda one: (one.step, one.sample_id, one.group)):
        group = list(members)
        found = advantages(group)
        if found is None:
            continue
        part = group[0].step * parts // steps
        for one, advantage in zip(group, found, strict=True):
            if np.isnan(advantage):
                continue
            captions[part] += 1
            for trait, claims in traits(scenes[one.sample_id], one.caption).items():
                told.setdefault(trait, [[] for _ in range(parts)])[part].append(float(advantage))
                true.setdefault(trait, [[] for _ in range(parts)])[part].extend(claims)
    rows = sorted(told.items(), key=lambda row: -sum(map(len, row[1])))
    return {
        trait: [
            Pay(
                share=round(len(some) / captions[part], 4) if captions[part] else 0.0,
                advantage=_mean(some),
                true=_mean(claims),
            )
            for part, (some, claims) in enumerate(zip(by_part, true[trait], strict=True))
        ]
        for trait, by_part in rows
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(float(np.mean(values)), 4) if values else None


def lines(run: str, rows: Mapping[str, Sequence[Pay]], steps: int) -> Iterator[str]:
    parts = len(next(iter(rows.values())))
    ends = [-(-part * steps // parts) for part in range(parts + 1)]
    yield f"{run}: share of captions, mean advantage, share of claims that are true"
    yield f"{'steps':18}" + "".join(f"{f'{a + 1} to {b}':>20}" for a, b in pairwise(ends))
    for trait, by_part in rows.items():
        cells = (
            f"{p.share:.1%} {'' if p.advantage is None else f'{p.advantage:+.2f}':>6}"
            f" {'' if p.true is None else f'{p.true:.0%}':>4}"
            for p in by_part
        )
        yield f"{trait:18}" + "".join(f"{cell:>20}" for cell in cells)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs of the embedded world")
    parser.add_argument("--parts", type=int, default=6, help="of each run")
    parser.add_argument("--output", type=Path, help="the same as JSON, by folder as it was given")
    options = parser.parse_args(arguments)
    if len(set(options.runs)) < len(options.runs):
        parser.error("a run is given twice: name each once")
    tokenizer = AutoTokenizer.from_pretrained(str(BACKBONE_FOLDER))

    def tokens(caption: str) -> int:
        return len(tokenizer(caption, add_special_tokens=False)["input_ids"]) + 1

    made = {}
    for run in options.runs:
        config = load_config(RunConfig, [run / "config.yaml"])
        if config.grpo.advantages.per_component:
            raise SystemExit(
                f"{run}: of grpo.advantages.per_component what a caption was paid is not told apart"
            )
        scenes = read_scenes(run / "data" / "train")
        candidates = [one for one, _ in read_candidates(run / "judgements.sqlite")]
        steps = 1 + max((one.step for one in candidates), default=-1)
        paid = partial(advantages, config=config, tokens=tokens)
        rows = pay(candidates, scenes, options.parts, steps, paid)
        if not rows:
            raise SystemExit(f"{run}: no group has captions of different rewards yet; wait for more steps")
        print(*lines(str(run), rows, steps), "", sep="\n")
        made[str(run)] = {trait: [asdict(one) for one in by_part] for trait, by_part in rows.items()}
    if options.output is not None:
        lines_of_runs = (f"{json.dumps(run)}: {json.dumps(rows)}" for run, rows in made.items())
        options.output.write_text("{\n" + ",\n".join(lines_of_runs) + "\n}\n")


if __name__ == "__main__":
    main()
