"""What the folder of a run tells about it, in words that may be published.

Folders and files appear by their last name, and addresses of servers not at all. What is not at hand, such as a
manifest that has moved, is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vcap_jax.configuration import ConfigError, load_config, plain_settings
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.holding_out import a_part, divided
from vcap_jax.data.manifest import read_manifest
from vcap_jax.evals.config import JUDGED
from vcap_jax.evals.judged import REWARD
from vcap_jax.references.note import POOL_NOTE, read_note
from vcap_jax.report.evaluations import evaluations_of
from vcap_jax.report.metrics import Row, read_metrics
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.family import load_family
from vcap_jax.run.config import RunConfig
from vcap_jax.run.judge_domain import domain_warning
from vcap_jax.run.judge_record import noted_judge
from vcap_jax.system.json_values import JsonDict, JsonObject, JsonValue, as_whole, read_json_object

_LOCAL_SETTINGS = ("compilation_cache", "distributed")
"""Sections that are a machine's, not a run's."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run, at one step of it.

    config: its own, but with the folder's name, where --run-dir gave it another.
    supervised: made by launch/sft.py. total: its steps, None where that cannot be told. made_of: headings and texts of
    what went into it. first, figures: rows of metrics of its first step and of this one, None where not at hand.
    heldout: rows of the summary's comparison, where this is the last step. warning: of rewards that mean nothing.
    """

    config: RunConfig
    supervised: bool
    step: int | None
    total: int | None
    made_of: Mapping[str, str]
    first: Row | None
    figures: Row | None
    heldout: Mapping[str, JsonObject]
    warning: str | None


def run_facts(folder: RunFolder, step: int | None) -> RunFacts:
    """What is known of a run's checkpoint of ``step``. Raises ConfigError if its config.yaml cannot be read."""
    config = load_config(RunConfig, [folder.config])
    config = replace(config, name=folder.root.resolve().name)
    kind = folder.root / "kind.txt"
    supervised = kind.exists() and kind.read_text(encoding="utf-8").strip() == "supervised"
    data, samples = _data(config)
    made_of = {"data": data}
    if supervised:
        made_of["captions"] = (
            "the manifest's" if config.sft.captions is None else public_text(config.sft.captions)
        )
    else:
        made_of |= _references(folder) | {"reward": _reward(config)} | _judge(config, folder)
    made_of["seed"] = str(config.seed)
    made_of |= _heldout(folder, step)
    rows = read_metrics(folder.metrics)
    summary = read_json_object(folder.summary) if folder.summary.exists() else {}
    steps = as_whole(summary.get("steps", 0), f"{folder.summary}: steps")
    total = steps or _total(config, samples, supervised=supervised)
    return RunFacts(
        config=config,
        supervised=supervised,
        step=step,
        total=total,
        made_of=made_of,
        first=rows[0] if rows else None,
        figures=next((row for row in rows if row["step"] == step), None),
        heldout={
            name: row
            for name, row in summary.items()
            if step == total and isinstance(row, dict) and row.get("coverage") is not None
        },
        warning=None if supervised else domain_warning(config, folder),
    )


def public_text(value: str) -> str:
    """A name or path without what is private of it: of an absolute path the last name, of an address nothing."""
    if re.match(r"https?://", value):
        return "http://ADDRESS"
    if value.startswith(("/", "~", "..")) or re.match(r"[A-Za-z]:[\\/]", value):
        return re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    return value


def settings(config: RunConfig) -> JsonDict:
    """The settings that are not the defaults, as nested plain values without private parts."""
    changed = _changed(plain_settings(config), plain_settings(RunConfig()))
    return {key: value for key, value in changed.items() if key not in _LOCAL_SETTINGS}


def _changed(values: JsonObject, defaults: JsonObject) -> JsonDict:
    found: JsonDict = {}
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            if inner := _changed(value, default):
                found[key] = inner
        elif value != default:
            found[key] = _public(value)
    return found


def _public(value: JsonValue) -> JsonValue:
    if isinstance(value, Mapping):
        return {key: _public(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_public(item) for item in value]
    return public_text(value) if isinstance(value, str) else value


def _data(config: RunConfig) -> tuple[str, int | None]:
    """The data in words, and how many samples they are, where that can be told."""
    if config.data.manifest is None:
        scenes = config.world.train_scenes
        return f"{scenes:,} {config.modality} scenes of the embedded world, seed {config.world.seed}", scenes
    manifest = Path(config.data.manifest)
    name = f"{manifest.name}, {config.modality}s"
    try:
        samples = [sample for sample in read_manifest(manifest) if sample.modality == config.modality]
        samples = a_part(samples, config.data.max_samples or len(samples))
        rows = len(divided(samples, config.data.heldout_share, config.data.heldout_seed)[0])
        if manifest.is_dir():
            return f"the folder {name}: {rows:,} files", rows
        digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    except (OSError, ManifestError):
        return name, None
    return f"{name}: {rows:,} rows, sha256 {digest[:16]}", rows


def _heldout(folder: RunFolder, step: int | None) -> dict[str, str]:
    """What captions of the user's own held-out samples earned at that step."""
    for results in evaluations_of(folder).get(JUDGED, ()):
        reward = results.metrics.get(REWARD)
        if step is not None and results.step == step and reward is not None:
            change = results.changes.get(REWARD)
            since = "" if change is None else f", changed by {change} since the start"
            failed = f", of which {results.failed:,} failed" if results.failed else ""
            told = f"{results.items:,}{failed}: reward {reward}{since} (means and 95% intervals)"
            return {"held-out samples": told}
    return {}


def _references(folder: RunFolder) -> dict[str, str]:
    pool = read_note(folder.root / POOL_NOTE)
    if pool is None:
        return {}
    # Of a pool that this package wrote, who wrote it; else the file.
    by = public_text(pool.source) if pool.writer is None else f"written by {public_text(pool.writer)}"
    return {"references": f"{by}: of {pool.entries:,} samples, digest {pool.digest[:16]}"}


def _reward(config: RunConfig) -> str:
    reward = config.reward
    judged = asdict(reward.weights)
    if config.modality == "image":
        del judged["local"]  # of a video
    weights: Mapping[str, object] = {
        "witness_adjudicator": judged,
        "judge": judged,
        "imitation": asdict(reward.imitation),
        "vqa": {"about": reward.vqa.about},
        "claim_differences": {"mode": reward.claim_differences.mode},
        "balanced": reward.balanced.shares,
    }.get(reward.family, reward.options)
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in weights.items())
    left_out = [name for name in ("reference", "image") if not getattr(reward, f"use_{name}")]
    without = f"; judged without the {' and the '.join(left_out)}" if left_out else ""
    return f"{reward.family}{f' ({told})' if told else ''}{without}"


def _judge(config: RunConfig, folder: RunFolder) -> dict[str, str]:
    try:
        if not load_family(config.reward).asks_judge(config.reward):
            return {}
    except FamilyError:  # one's own, and not on this machine
        return {}
    if not config.judge.urls:
        return {"judge": "the embedded judge of VCap-JAX, which reads pictures of the embedded world alone"}
    model = noted_judge(folder) or config.judge.model
    return {} if model is None else {"judge": public_text(model)}


def _total(config: RunConfig, samples: int | None, *, supervised: bool) -> int | None:
    asked = config.sft if supervised else config
    if asked.max_steps is not None or samples is None:
        return asked.max_steps
    with suppress(ConfigError):
        return asked.total_steps(samples)
    return None
