"""Self-improvement: the base learns from its own references, then from those of the trained policy, and so on.

    base -> pool -> e1 -> pool -> e2 -> ...

Every round is a run as ``launch/train.py`` makes it, and starts from the base. Only its pool is new.
e1's is the starting policy's, or the one that the configuration names. e2's is written by e1 under
the same decoding settings, and so on (paper, Appendix "Training Data"), for the samples that e1 had
references for: the others are left out of every round. A complete round is skipped.

Captions of held-out samples of the user's own are compared with the same references in all rounds, e1's: a pool by e1
has none of them, and rewards by others could not be compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample, read_manifest
from vcap_jax.evals.config import HELDOUT
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.recipes.grpo import HELDOUT_REFERENCES, run
from vcap_jax.references import hand_on_heldout, known_pool, write_shared_pool
from vcap_jax.references.by_policy import configured_writer
from vcap_jax.references.note import POOL_NOTE, read_note
from vcap_jax.report.arms import reward_ends
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.summary import FactRow, shares_table, write_summary
from vcap_jax.run.checkpoint_source import checkpoint_source
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.folders import open_subrun
from vcap_jax.run.judge import answering_judge, reward_family
from vcap_jax.run.manifest_note import MANIFEST_NOTE, remember_samples
from vcap_jax.run.setup import drawing, heldout_samples, manifest_samples, prepare
from vcap_jax.run.turns import all_asleep
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import JsonDict, JsonObject, read_json_object


def self_improve(
    config: RunConfig,
    folder: RunFolder,
    *,
    rounds: int = 2,
    say: Callable[[str], None] = print,
    processes: Processes = ALONE,
) -> Mapping[str, object]:
    """Runs, or goes on with, ``rounds`` rounds in ``folder``; returns the summary, of later complete ones too.

    processes: those that share the work, each calling this with a folder they all see.
    Raises ConfigError for less than one round or a reward without references, TrainingStopped if a round ended early
    but can be resumed, RunFolderError if the folder is that of another kind, and what the runs raise.
    """
    if rounds < 1:
        raise ConfigError(f"{rounds} rounds: give at least one")
    if not reward_family(config).uses_reference(config.reward):
        raise ConfigError("the reward uses no references, so that a new pool would change nothing")
    folder.claim("self-improvement")
    all_asleep(config, say)
    rounds = max(rounds, processes.on_process_0("complete rounds", partial(_complete, folder)))
    finished: dict[str, JsonDict] = {}
    e1 = RunFolder(folder.root / "e1")
    rewards: dict[str, tuple[float, float] | None] = {}
    for number in range(1, rounds + 1):
        name = f"e{number}"
        own = dataclasses.replace(config, name=f"{config.name}-{name}")
        if number > 1:
            path = folder.root / "pools" / f"e{number - 1}.jsonl"
            own = dataclasses.replace(own, data=dataclasses.replace(config.data, references=str(path)))
        stage = open_subrun(own, folder, folder.root / name, processes)
        if processes.on_process_0(f"{name} complete", stage.summary.exists):
            say(f"{stage.root} is complete")
        else:
            if number > 1:
                processes.on_process_0(f"samples of {name}", partial(_check_samples, config, e1))
                # Also before a pool is written, not only before the round that asks it: a pool may take hours.
                other = own.evaluation.other_judge if own.data.holds_out else None
                with answering_judge(own, stage, say, processes, second=own.second_judge, other=other):
                    _references_by(config, folder, f"e{number - 1}", stage, say, processes)
                processes.on_process_0(
                    f"held-out references of {name}", partial(_hand_on, config, first=e1, later=stage)
                )
            say(f"-- {name}: from {config.model.path}, references by {_writer(stage, number)}")
            run(own, stage, say=say, processes=processes)
            processes.barrier(f"{name} done")
        rewards[name] = reward_ends(read_metrics(stage.metrics))
        finished[name] = read_json_object(stage.summary) | {
            "reward": rewards[name],
            "references_by": _writer(stage, number),
        }
    rows = _rows(finished)
    summary = {"rounds": finished, "rows": rows}
    if not processes.first:
        return summary
    write_summary(folder.summary, summary)
    for name, ends in rewards.items():
        if ends is None:
            say(f"{name}: nothing was scored in any of its steps")
        else:
            say(f"{name}: reward {ends[0]:.3f} in the first tenth of its steps, {ends[1]:.3f} in the last")
    if rows:
        say(shares_table(rows))
    return summary


def _complete(folder: RunFolder) -> int:
    """How many rounds are complete, from the first on."""
    number = 0
    while RunFolder(folder.root / f"e{number + 1}").summary.exists():
        number += 1
    return number


def _check_samples(config: RunConfig, first: RunFolder) -> None:
    """Raises ConfigError where a later round would learn from other samples than e1, or have others held out."""
    if config.data.manifest is not None and (first.root / MANIFEST_NOTE).exists():
        training = manifest_samples(config, lambda _: None)
        remember_samples(first, config.data.manifest, training, heldout_samples(config))


def _hand_on(config: RunConfig, *, first: RunFolder, later: RunFolder) -> None:
    if heldout := heldout_samples(config):
        hand_on_heldout(config, heldout, first=first, later=later)


def _references_by(
    config: RunConfig,
    folder: RunFolder,
    writer: str,
    stage: RunFolder,
    say: Callable[[str], None],
    processes: Processes,
) -> None:
    """The pool that ``stage`` trains on and, in the embedded world, that of its held-out scenes."""
    pool = folder.root / "pools" / f"{writer}.jsonl"
    heldout = stage.evaluation(HELDOUT) / HELDOUT_REFERENCES

    def complete() -> bool:
        return pool.exists() and (heldout.exists() or config.data.manifest is not None)

    if processes.on_process_0(f"references by {writer}", complete):
        return
    source = checkpoint_source(str(folder.root / writer))
    prepared = prepare(config, folder, say, captioner=source.path, step=source.step, processes=processes)

    # What e1 has left out is left out: by other samples the rounds could not be compared.
    samples = known_pool(config, RunFolder(folder.root / "e1"), prepared.samples).covered(
        prepared.samples, say
    )

    def write(ctx: RunContext, path: Path, samples: list[Sample]) -> None:
        say(f"{source} writes references for {len(samples)} samples: {path}")
        references = configured_writer(ctx, samples, name=f"{writer} at step {source.step}")
        write_shared_pool(ctx, path, references, samples)

    with drawing(prepared) as ready:
        write(ready.ctx, pool, samples)
        if ready.world is not None:
            # The run finds them there, as it would have written the base's.
            write(ready.ctx, heldout, read_manifest(ready.world.heldout))


def _rows(finished: Mapping[str, JsonObject]) -> dict[str, FactRow]:
    """Held-out facts: of the base, and of every round with the references that it learned from, where they have any
    of the held-out scenes."""
    rows: dict[str, FactRow] = {}
    for name, summary in finished.items():
        if "trained" not in summary:
            continue
        rows.setdefault("base", as_record(FactRow, summary["start"], f"start of {name}"))
        if "references" in summary:  # e1 has none of a pool that says nothing of the held-out scenes
            rows[f"references of {name}"] = as_record(FactRow, summary["references"], f"references of {name}")
        rows[name] = as_record(FactRow, summary["trained"], f"trained of {name}")
    return rows


def _writer(stage: RunFolder, number: int) -> str:
    """Who wrote a round's references, in words."""
    noted = read_note(stage.root / POOL_NOTE)
    if noted is not None:
        return noted.source if noted.writer is None else noted.writer
    return "the base, or as configured" if number == 1 else f"e{number - 1}"
