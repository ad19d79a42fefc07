"""What an evaluation is asked for, and the notes of it in its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vcap_jax.configuration import ConfigError, load_config, settings
from vcap_jax.evals.benchmarks.results import REQUEST, RESULTS
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.report.best_checkpoint import AskedStep
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.run.checkpoint_source import checkpoint_source, named_source
from vcap_jax.system.files import write_json
from vcap_jax.system.json_values import JsonDict, JsonObject, read_json_object

CAPTIONER = "captioner.json"
"""In an evaluation's folder, who captioned and how."""
CAPTIONS = "captions.jsonl"
"""In an evaluation's folder, its captions."""

_SHOWN = "judge.video_input="
"""Among a captioner's settings, how clips reach a served one."""

Say = Callable[[str], None]
Option = str | int | float | bool


@settings
class JudgesConfig:
    """How the endpoints that score are treated."""

    judge: JudgeConfig = JudgeConfig()
    """Judges, and answers what no reasoner is named for."""
    reasoner: JudgeConfig = JudgeConfig()
    """Answers questions from text alone; without urls the judge does."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is to be evaluated.

    benchmarks: their names. by: a run, a checkpoint folder, an address, or a file of captions (``read_predictions``).
    data: the folder with the public files of the one benchmark, or with a folder NAME for each of several. out: where
    results go. judges: see ``JudgesConfig``. options: of the benchmarks, each taken by those that know it. step: which
    of a run's checkpoints. captioner: its settings, ``section.key=value``. served_model, api_key_env: of a captioner
    behind an address. temperature: None captions greedily. seed: of the draws. retry_failed: captions and questions
    that failed in an evaluation that is complete are asked for again.
    """

    benchmarks: tuple[str, ...]
    by: str
    data: Path
    out: Path
    judges: JudgesConfig
    options: Mapping[str, Option] = field(default_factory=dict)
    step: AskedStep = None
    captioner: tuple[str, ...] = ()
    served_model: str | None = None
    api_key_env: str | None = None
    temperature: float | None = None
    seed: int = 0
    retry_failed: bool = False


class EvaluationRefused(EvaluatorError):
    """A request that cannot be fulfilled as it is; nothing was done."""


def split_settings(words: Sequence[str]) -> tuple[JudgesConfig, dict[str, Option], tuple[str, ...]]:
    """Settings of the judges (``judge.*``, ``reasoner.*``), of the benchmarks (``options.*``), and the captioner's:
    all others, and ``captioner.*`` for how a served one is asked. Raises ConfigError."""
    judges, options, captioner = list[str](), dict[str, Option](), list[str]()
    for word in words:
        section, _, rest = word.partition(".")
        if section in ("judge", "reasoner"):
            judges.append(word)
        elif section == "options":
            key, equals, value = rest.partition("=")
            if not equals:
                raise ConfigError(f"{word!r}: an option has the form options.key=value")
            options[key] = _value(value)
        elif section == "captioner":
            captioner.append(f"judge.{rest}")
        else:
            captioner.append(word)
    return load_config(JudgesConfig, (), judges), options, tuple(captioner)


def resolved(request: EvaluationRequest) -> EvaluationRequest:
    """The request with the number of the run's checkpoint in place of "the last" or "best".

    Whether a step that is named by its number is still there matters to whoever captions with it. Raises what
    ``checkpoint_source`` raises.
    """
    source = named_source(request.by, request.step)
    if not source.run:
        return request
    step = source.step if source.step is not None else checkpoint_source(request.by).step
    return replace(request, step=step)


def how_captioned(request: EvaluationRequest) -> JsonDict:
    """What decides captions, beside who captions what."""
    return {
        "step": request.step,
        # Of how a served captioner is asked, the rest decides no caption.
        "settings": [
            word for word in request.captioner if not word.startswith("judge.") or word.startswith(_SHOWN)
        ],
        "temperature": request.temperature,
        "seed": request.seed,
    }


def remember_request(folder: Path, row: JsonObject) -> None:
    """Notes what a folder is for. Raises EvaluationRefused if it is for something else, with the remedy. One that was
    ended by a mistake before it had a caption is for nothing yet."""
    path = folder / REQUEST
    captions = folder / CAPTIONS
    if not (folder / RESULTS).exists() and not (captions.exists() and captions.stat().st_size):
        (folder / CAPTIONER).unlink(missing_ok=True)
        write_json(path, row)
        return
    if path.exists() and isinstance(step := row.get("step"), int):
        was = read_json_object(path).get("step")
        if was not in (None, step):
            raise EvaluationRefused(
                f"{folder} holds an evaluation of step {was}, and now it would be step {step}: go on with that one by "
                f"--step {was}, or name another --out"
            )
    remember(path, row)


def remember(path: Path, row: Mapping[str, object]) -> None:
    """Writes what a folder is for, or raises EvaluationRefused if it is for something else."""
    new = json.loads(json.dumps(row))
    if path.exists():
        old = read_json_object(path)
        differing = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        if differing:
            # Of all that says that it is another captioner, its name says most.
            key = "writer" if "writer" in differing else differing[0]
            raise EvaluationRefused(
                f"{path.parent} holds an evaluation with another {key} ({_short(old.get(key))}, now "
                f"{_short(new.get(key))}): name another --out, or move it away"
            )
        return
    write_json(path, row)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _value(text: str) -> Option:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool) else text
