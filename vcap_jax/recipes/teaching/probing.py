"""Policies side by side: what each sees, what it would say, and what it says of the same scenes of its own accord."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np

from vcap_jax.captioning.settings import checkpoint_config
from vcap_jax.configuration import ConfigError
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.recipes.teaching.pupil import Pupil, Scenery, scenery
from vcap_jax.recipes.teaching.seeing import preferring, seeing
from vcap_jax.report.best_checkpoint import AskedStep
from vcap_jax.report.pages import text_table
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.run.checkpoint_source import CheckpointSource, checkpoint_source, load_captioner, named_source
from vcap_jax.run.inputs import check_checkpoint
from vcap_jax.system.json_values import JsonDict
from vcap_jax.world.habits import report_habit, scene_habit
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tiny_policy import Prompts

GREEDY = SamplingConfig(temperature=0.0, repetition_penalty=1.0)
SAMPLED = SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
"""The policy as it is: whatever it says rarely is said as rarely."""
_TOKENS = 256
"""Of a caption, at most: a full one has up to 240."""
_AT_ONCE = 32
EACH = 4
"""Captions of a scene that are sampled."""
SPLIT = "probe"
"""Of scenes that nobody is taught or trained with."""
_TOLD = (
    *("coverage", "false_share", "invented_share"),
    *("mean_tokens", "mean_stated", "largest_stated", "beyond_half"),
)
TAUGHT = "taught"
"""Stands beside the policies: captions as the starting policy was taught to give them."""


@dataclass(frozen=True)
class Said:
    """A caption of scene number ``scene``. tokens: with its end."""

    scene: int
    text: str
    tokens: int


def captions(
    pupil: Pupil,
    modality: Modality,
    scenery: Scenery,
    sampling: SamplingConfig,
    *,
    each: int = 1,
    seed: int = 0,
) -> list[Said]:
    """``each`` captions of every scene, in order."""
    config = RolloutConfig(
        group_size=each,
        max_completion_length=_TOKENS,
        groups_per_batch=_AT_ONCE,
        decode_steps_per_call=32,
        shrink=1,
        sampling=sampling,
    )
    processor = pupil.processor
    sampler = GroupSampler(
        pupil.graphdef, config, end_ids=processor.eos_token_ids, banned_ids=processor.banned_token_ids
    )
    features = pupil.looked(scenery, modality)
    prompt = pupil.prompts[modality].requests(len(scenery.scenes))
    groups = sampler.stream(
        pupil.rest,
        pupil.visual,
        jax.tree.map(np.asarray, prompt),
        features,
        seed=seed,
        step=0,
        group_ids=range(len(scenery.scenes)),
    )
    said = []
    for group in groups:
        for tokens, length in zip(group.tokens, group.lengths, strict=True):
            text = processor.tokenizer.decode(tokens[:length], skip_special_tokens=True).strip()
            said.append(Said(group.index, text, int(length)))
    return sorted(said, key=lambda one: one.scene)


def taught(pupil: Pupil, scenery: Scenery, *, each: int = 1) -> list[Said]:
    """``each`` captions of every scene as the starting policy is taught to give them (``world.habits``)."""
    rng = np.random.default_rng(0)
    said = []
    for index, scene in enumerate(scenery.scenes):
        habit = scene_habit(scene)
        for text in [habit.caption(rng) for _ in range(each)]:
            tokens = pupil.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
            said.append(Said(index, text, len(tokens) + 1))
    return said


def told(scenery: Scenery, said: Sequence[Said]) -> JsonDict:
    """What captions cover and make up, how long they are, and how often each kind of fact is mentioned."""
    report = report_habit((scenery.scenes[one.scene], one.text) for one in said)
    return {"mean_tokens": float(np.mean([one.tokens for one in said])), **asdict(report)}


def there(path: str, step: AskedStep = None) -> CheckpointSource:
    """What the policy at ``path`` is: a run, an exported or a Hugging Face folder, or "embedded".

    Raises ConfigError for a folder that holds no policy, CheckpointError for a step that a run does not have.
    """
    check_checkpoint(path, step, key="the policy")
    return checkpoint_source(path, step)


def opened(source: CheckpointSource, modality: Modality) -> Pupil:
    """The policy of a source. Raises PolicyError for one of another family."""
    placement = Placement.build(MeshConfig())
    policy = load_captioner(checkpoint_config(source), source.path, placement, step=source.step)
    prompts = {modality: Prompts(policy.processor, modality)}
    return Pupil.of(policy.merge(), policy.processor, prompts)


def probe(pupil: Pupil, modality: Modality, shown: Scenery) -> JsonDict:
    """Figures of one policy on the scenes ``shown``; ``EACH`` sampled captions of a scene, at temperature 1."""
    return {
        "sees": dict(seeing(pupil, modality, shown)),
        "prefers": dict(preferring(pupil, modality, shown)),
        "greedy": told(shown, captions(pupil, modality, shown, GREEDY)),
        "sampled": told(shown, captions(pupil, modality, shown, SAMPLED, each=EACH)),
    }


def side_by_side(
    policies: Mapping[str, str],
    modality: Modality,
    scenes: int,
    kept: Path,
    *,
    step: AskedStep = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, JsonDict]:
    """``probe`` of each policy, by its name, on the same scenes, after ``TAUGHT``, which has sampled captions alone.

    policies: name -> path. kept: for their pictures. step: of those that are runs. Raises ConfigError for a policy of
    the name ``TAUGHT``, and for a step where none is a run, and what ``there`` and ``opened`` raise, the former before
    the first is probed.
    """
    if TAUGHT in policies:
        raise ConfigError(
            f"{TAUGHT!r} has captions as the starting policy was taught to give them: give {policies[TAUGHT]} another "
            f"name, NAME={policies[TAUGHT]}"
        )
    runs = {name for name, path in policies.items() if named_source(path).run}
    sources = {
        name: there(path, step if name in runs or not runs else None) for name, path in policies.items()
    }
    found: dict[str, JsonDict] = {}
    shown: Scenery | None = None
    for name, source in sources.items():
        pupil = opened(source, modality)
        if shown is None:
            shown = scenery(pupil.prompts[modality], SPLIT, scenes, kept)
            found[TAUGHT] = {"sampled": told(shown, taught(pupil, shown, each=EACH))}
        found[name] = probe(pupil, modality, shown)
        say(f"{name} is probed")
    return found


def table(found: Mapping[str, JsonDict]) -> str:
    """The figures as text, a column for each policy; shares in percent."""
    rows: list[tuple[str, list[str]]] = []
    for what in ("sees", "prefers"):
        rows += _rows(what, [_part(row, what) for row in found.values()])
    for way in ("greedy", "sampled"):
        parts = [_part(row, way) for row in found.values()]
        rows += _rows(way, [{key: part[key] for key in _TOLD if key in part} for part in parts])
        rows += _rows(f"{way}, mentions", [_part(part, "mention_rates") for part in parts])
    return text_table([("", *found), *((label, *values) for label, values in rows)], numbers=True)


def _part(row: JsonDict, key: str) -> JsonDict:
    part = row.get(key, {})
    assert isinstance(part, dict)
    return part


def _rows(what: str, parts: Sequence[JsonDict]) -> list[tuple[str, list[str]]]:
    kinds = sorted({kind for part in parts for kind in part})
    return [(f"{what}: {kind}", [_shown(kind, part.get(kind)) for part in parts]) for kind in kinds]


def _shown(kind: str, value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.1f}" if kind == "mean_tokens" else f"{100 * value:.1f}%"
