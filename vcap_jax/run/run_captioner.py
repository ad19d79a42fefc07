"""A run's policy as evaluators are given it: all processes caption, the first one asks, and captions are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic_core import to_jsonable_python

from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.evals.protocol import Captions, EvaluatorError, captions_of
from vcap_jax.models.policy import Params
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.run.context import RunContext
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import replace_file
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import (
    JsonDict,
    JsonObject,
    as_list,
    as_object,
    as_text,
    as_whole,
    parse_json,
    rows_of,
)
from vcap_jax.system.shutdown import Stopped, requested

_SEED = 2_000_003
"""Added to the run's seed: never met by the training rollouts, whose fold is (seed, step)."""
_STOPPED = "stopped in an evaluation"


class RunCaptioner:
    """The run's policy with given parameters (implements ``Captioner``). The first process asks for captions, the
    others ``serve`` until it says ``end``; each captions a share of the samples.

    own: parameters for this process's devices. path: where captions are kept, and found when they are asked for again.
    """

    def __init__(self, ctx: RunContext, sampler: GroupSampler, own: Params, path: Path) -> None:
        self._ctx, self._sampler, self._own, self._path = ctx, sampler, own, path
        self._over = False

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``. A caption depends on the run's seed, ``seed`` and the sample's place in ``samples``."""
        ids = [sample.id for sample in samples]
        if len(set(ids)) < len(ids):
            twice = next(identity for identity in ids if ids.count(identity) > 1)
            raise EvaluatorError(
                f"captions of {twice!r} are asked for twice at once: ids of samples must differ"
            )
        kept = self._kept()
        if any((seed, identity) not in kept for identity in ids):
            self._asked({"samples": [to_jsonable_python(sample) for sample in samples], "seed": seed})
            for row in self._together(samples, seed):
                kept[seed, as_text(row["id"], "id of captions")] = row
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in kept.values()]
            replace_file(self._path, "".join(lines).encode())
        return [captions_of(kept[seed, identity], f"captions of {identity!r}") for identity in ids]

    def serve(self) -> None:
        """Captions this process's shares until the first process has what it needs.

        Raises Stopped if it was stopped there, EvaluatorError if it cannot go on.
        """
        while (asked := self._asked(None)) is not None:
            _raise_of(asked)
            samples = as_record(list[Sample], asked["samples"], "samples to caption")
            self._together(samples, as_whole(asked["seed"], "seed of captions"))

    def end(self, error: BaseException | None = None) -> None:
        """Tells the other processes that no more captions are asked for, and what ended the evaluation if not its
        end."""
        if not self._over:
            self._asked(None if error is None else _reason(error))

    def _asked(self, what: JsonObject | None) -> JsonObject | None:
        """Of the first process: tells the others what it asks for. Of the others: what that is."""
        asked = self._ctx.processes.all_gather_objects("captions asked for", what)[0]
        return None if asked is None else as_object(asked, "captions asked for")

    def _together(self, samples: Sequence[Sample], seed: int) -> list[JsonDict]:
        """Rows of all processes' shares, in order. What ends the work of one of them is raised in all."""
        told = self._ctx.processes.all_gather_objects(
            f"captions, {self._path.stem}", self._share(samples, seed)
        )
        for process, share in enumerate(told):
            if "rows" not in share:
                self._over = True  # all know
                _raise_of(share, "" if len(told) == 1 else f"process {process}: ")
        return [as_object(row, "captions") for share in told for row in as_list(share["rows"], "captions")]

    def _share(self, samples: Sequence[Sample], seed: int) -> JsonObject:
        """This process's rows, or the reason why it has none."""
        processes, config = self._ctx.processes, self._ctx.config
        mine = processes.share(len(samples))
        own, bad = samples[mine.start : mine.stop], list[BadSample]()
        captioned = self._ctx.captioner(self._sampler).run(
            self._own,
            own,
            seed=config.seed + _SEED + seed,
            indices=mine,
            on_bad=bad.append,
            stop=requested,
        )
        numbered: JsonDict = {} if seed == 0 else {"seed": seed}
        rows: dict[str, JsonDict] = {}
        try:
            for c in captioned:
                found = Captions(id=c.sample.id, texts=c.captions, tokens=c.lengths, truncated=c.truncated)
                rows[found.id] = {**found.row(), **numbered}
        except VCapError as error:
            return _reason(error)
        if requested():
            return _reason(Stopped(_STOPPED))
        for one in bad:
            rows[one.id] = {**Captions(id=one.id, failure=one.reason).row(), **numbered}
        return {"rows": [rows[sample.id] for sample in own]}

    def _kept(self) -> dict[tuple[int, str], JsonDict]:
        if not self._path.exists():
            return {}
        where, kept = str(self._path), {}
        for line in rows_of(self._path.read_text(encoding="utf-8")):
            row = as_object(parse_json(line), where)
            kept[as_whole(row.get("seed", 0), f"{where}: seed"), as_text(row["id"], f"{where}: id")] = row
        return kept


def _reason(error: BaseException) -> dict[str, str]:
    """What ended the work of a process, as the others are told."""
    return {"stopped" if isinstance(error, Stopped) else "failed": str(error)}


def _raise_of(told: JsonObject, where: str = "") -> None:
    """Raises what ``_reason`` told, if that is what was told."""
    if "stopped" in told:
        raise Stopped(as_text(told["stopped"], "stopped"))
    if "failed" in told:
        raise EvaluatorError(f"{where}{told['failed']}")
