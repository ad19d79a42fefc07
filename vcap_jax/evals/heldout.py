"""The embedded world's held-out scenes: captions before and after training, and what their facts come to."""

from __future__ import annotations

import json
from typing import Any

from vcap_jax.data.manifest import read_manifest
from vcap_jax.data.references import ReferencePool
from vcap_jax.models.policy import Params
from vcap_jax.references import references_by_policy
from vcap_jax.report.step_log import replace_file
from vcap_jax.report.summary import FactCounts, comparison
from vcap_jax.report.world_facts import count_captions
from vcap_jax.run.context import RunContext
from vcap_jax.world.splits import EmbeddedData

_SEED = 2_000_003
"""Added to the run's seed: never met by the training rollouts, whose fold is (seed, step)."""


class HeldOut:
    """Captions of held-out scenes, kept in the run folder, and their counts."""

    def __init__(self, ctx: RunContext, world: EmbeddedData) -> None:
        self._ctx, self._world = ctx, world
        self._samples = read_manifest(world.heldout)
        self._folder = ctx.folder.root / "heldout"

    def references(self) -> None:
        """The starting policy's references of the held-out scenes, as in training."""
        references_by_policy(self._ctx, self._folder / "references.jsonl", self._samples)

    def captions(self, name: str, params: Params) -> None:
        """Samples captions of every scene as training does and writes them to ``heldout/NAME.jsonl``.

        params: of the whole mesh. Each process captions a share of the scenes; the first one writes them down in order.
        """
        path, processes = self._folder / f"{name}.jsonl", self._ctx.processes
        if processes.on_process_0(f"held-out captions, {name}", path.exists):
            return
        seed = self._ctx.config.seed + _SEED
        mine = processes.share(len(self._samples))
        own = self._ctx.own_params(params)
        captioned = self._ctx.captioner().run(
            own, self._samples[mine.start : mine.stop], seed=seed, first=mine.start
        )
        lines = [
            json.dumps({"id": c.sample.id, "captions": c.captions, "tokens": c.lengths}, ensure_ascii=False)
            for c in captioned
        ]
        shares = processes.all_gather_objects(f"captions, {name}", lines)
        if processes.first:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(f"{line}\n" for share in shares for line in share)
            replace_file(path, text.encode())
        processes.barrier(f"captions written, {name}")

    def summary(self, seconds: float, **more: Any) -> dict[str, Any]:
        """The rows references, start and trained with their intervals, each over every held-out scene."""
        pool = ReferencePool.read(self._folder / "references.jsonl")
        references = count_captions(
            self._world.heldout_scenes,
            {entry.id: entry.references for entry in pool.entries()},
            each=self._ctx.config.references.per_sample,
        )
        return comparison(references, self.counts("start"), self.counts("trained"), seconds, **more)

    def counts(self, name: str) -> FactCounts:
        """The facts of the captions that ``captions`` wrote under ``name``."""
        lines = (self._folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        captions = {row["id"]: row["captions"] for row in map(json.loads, lines)}
        return count_captions(self._world.heldout_scenes, captions)
