"""A run's policy as evaluators are given it: all processes caption, the first one asks, and captions are kept. They are
what is left of a policy that is gone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic_core import to_jsonable_python

from vcap_jax.data.manifest import Sample
from vcap_jax.data.pipeline import BadSample
from vcap_jax.evals.protocol import Captions, EvaluationFailed, captions_of, check_differ
from vcap_jax.models.policy import Params
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.run.context import RunContext
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import drop_torn_end, naming, replace_file
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
from vcap_jax.system.shutdown import Stopped, finishing, requested

_SEED = 2_000_003
"""Added to the run's seed: never met by the training rollouts, whose fold is (seed, step)."""
_STOPPED = "stopped in an evaluation"


class RunCaptioner:
    """The run's policy with given parameters (implements ``Captioner``). The first process asks for captions, the
    others ``serve`` until it says ``end``; each captions a share of the samples.

    own: parameters for this process's devices. path: where captions are kept, those before a signal too, and found when
    they are asked for again. After a kill those of the first process's share are there.
    """

    def __init__(self, ctx: RunContext, sampler: GroupSampler, own: Params, path: Path) -> None:
        self._ctx, self._sampler, self._own, self._path = ctx, sampler, own, path
        self._over = False

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``. A caption depends on the run's seed, ``seed`` and the sample's place in ``samples``."""
        check_differ(samples)
        ids = [sample.id for sample in samples]
        kept = _kept(self._path)
        places = [place for place, identity in enumerate(ids) if (seed, identity) not in kept]
        if places:
            with finishing("each caption in work"):
                self._draw(samples, places, seed, kept)
        return [captions_of(kept[seed, identity], f"captions of {identity!r}") for identity in ids]

    def _draw(
        self,
        samples: Sequence[Sample],
        places: Sequence[int],
        seed: int,
        kept: dict[tuple[int, str], JsonDict],
    ) -> None:
        """Adds captions of the samples at these places, and writes them down; those before a signal or an error too,
        which is then raised."""
        missing = [samples[place] for place in places]
        asked: JsonDict = {"samples": [to_jsonable_python(sample) for sample in missing], "places": [*places]}
        self._asked({**asked, "seed": seed})
        shares = self._shares(missing, places, seed)
        rows = [as_object(row, "captions") for share in shares for row in as_list(share["rows"], "captions")]
        if rows:
            kept.update({(seed, as_text(row["id"], "id of captions")): row for row in rows})
            # In the samples' order, however often it was stopped.
            ours = [(seed, sample.id) for sample in samples if (seed, sample.id) in kept]
            kept |= {key: kept.pop(key) for key in ours}
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in kept.values()]
            replace_file(self._path, "".join(lines).encode())
        self._raise_unfinished(shares)

    def serve(self) -> None:
        """Captions this process's shares until the first process has what it needs.

        Raises Stopped if it was stopped there, EvaluationFailed if it cannot go on.
        """
        while (asked := self._asked(None)) is not None:
            _raise_of(asked)
            samples = as_record(list[Sample], asked["samples"], "samples to caption")
            places = as_record(list[int], asked["places"], "places of samples")
            self._raise_unfinished(self._shares(samples, places, as_whole(asked["seed"], "seed of captions")))

    def end(self, error: BaseException | None = None) -> None:
        """Tells the other processes that no more captions are asked for, and what ended the evaluation if not its
        end."""
        if not self._over:
            self._asked(None if error is None else _reason(error))

    def _asked(self, what: JsonObject | None) -> JsonObject | None:
        """Of the first process: tells the others what it asks for. Of the others: what that is."""
        asked = self._ctx.processes.all_gather_objects("captions asked for", what)[0]
        return None if asked is None else as_object(asked, "captions asked for")

    def _shares(self, samples: Sequence[Sample], places: Sequence[int], seed: int) -> list[JsonDict]:
        """What ``_share`` gave in each process."""
        share = self._share(samples, places, seed)
        told = self._ctx.processes.all_gather_objects(f"captions, {self._path.stem}", share)
        return [as_object(one, "captions") for one in told]

    def _raise_unfinished(self, shares: Sequence[JsonObject]) -> None:
        """What ended the work of a process, in all."""
        for process, share in enumerate(shares):
            if share.keys() & {"stopped", "failed"}:
                self._over = True  # all know
                _raise_of(share, "" if len(shares) == 1 else f"process {process}: ")

    def _share(self, samples: Sequence[Sample], places: Sequence[int], seed: int) -> JsonDict:
        """The rows of this process's part, and where some of them lack, why."""
        processes, config = self._ctx.processes, self._ctx.config
        mine = processes.share(len(samples))
        own, bad = samples[mine.start : mine.stop], list[BadSample]()
        captioned = self._ctx.captioner(self._sampler).run(
            self._own,
            own,
            seed=config.seed + _SEED + seed,
            indices=places[mine.start : mine.stop],
            on_bad=bad.append,
            stop=requested,
        )
        numbered: JsonDict = {} if seed == 0 else {"seed": seed}
        rows: dict[str, JsonDict] = {}
        ended: JsonDict = {}
        try:
            for c in captioned:
                found = Captions(id=c.sample.id, texts=c.captions, tokens=c.lengths, truncated=c.truncated)
                rows[found.id] = {**found.row(), **numbered}
                self._keep(rows[found.id])
        except VCapError as error:
            ended = _reason(error)
        for one in bad:
            rows[one.id] = {**Captions(id=one.id, failure=one.reason).row(), **numbered}
        if not ended and requested() and len(rows) < len(own):
            ended = _reason(Stopped(_STOPPED))
        return {"rows": [rows[sample.id] for sample in own if sample.id in rows], **ended}

    def _keep(self, row: JsonObject) -> None:
        """Writes down what is drawn as it comes, for whoever comes after a kill; the whole file is written by
        ``_draw``."""
        if self._ctx.processes.first:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with naming(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


class CaptionsLacking(EvaluationFailed):
    """Captions of a policy that is gone are not all there."""


class KeptCaptions:
    """What a ``RunCaptioner`` has kept in ``path`` (implements ``Captioner``)."""

    def __init__(self, path: Path) -> None:
        self._path, self._captions = path, _kept(path)

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        """See ``Captioner``. Raises CaptionsLacking."""
        for sample in samples:
            if (seed, sample.id) not in self._captions:
                raise CaptionsLacking(f"{self._path} has no captions of {sample.id!r}")
        return [captions_of(self._captions[seed, s.id], f"captions of {s.id!r}") for s in samples]


def _kept(path: Path) -> dict[tuple[int, str], JsonDict]:
    """The rows of a file of captions by seed and id; none where there is no file."""
    if not path.exists():
        return {}
    drop_torn_end(path)
    where, kept = str(path), {}
    for line in rows_of(path.read_text(encoding="utf-8")):
        row = as_object(parse_json(line), where)
        kept[as_whole(row.get("seed", 0), f"{where}: seed"), as_text(row["id"], f"{where}: id")] = row
    return kept


def _reason(error: BaseException) -> JsonDict:
    """What ended the work of a process, as the others are told."""
    return {"stopped" if isinstance(error, Stopped) else "failed": str(error)}


def _raise_of(told: JsonObject, where: str = "") -> None:
    """Raises what ``_reason`` told, if that is what was told."""
    if "stopped" in told:
        raise Stopped(as_text(told["stopped"], "stopped"))
    if "failed" in told:
        raise EvaluationFailed(f"{where}{told['failed']}")
