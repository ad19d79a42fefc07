"""References written by a model behind an OpenAI-compatible chat endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vcap_jax.captioning.by_endpoint import EndpointCaptioner, Load, shown_rules
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import Provenance, asked_digest
from vcap_jax.references.asking import Asking
from vcap_jax.references.by_policy import reference_rollout
from vcap_jax.references.windows import WindowDraw
from vcap_jax.references.writers import CaptionWriter, Report, caption_settings
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.run.config import RunConfig


class EndpointWriter:
    """Makes a ``CaptionWriter`` of a served model; use as a context manager, which gives that writer.

    config: prompts, questions, sampling, numbers of references and windows. endpoint: addresses, model, key, limits;
    its own temperature and answer length are replaced by those of the references. reader: what reads whole samples, or
    windows. samples: all that the pool is for. seed: of the draws. ended_only: leave out captions that were cut off.
    say: told of samples that get fewer references, as the server did not answer.
    """

    def __init__(
        self,
        config: RunConfig,
        endpoint: JudgeConfig,
        samples: Sequence[Sample],
        *,
        reader: Callable[[WindowDraw | None], Load],
        seed: int,
        ended_only: bool = False,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._samples, self._seed, self._ended_only = config, samples, seed, ended_only
        self._endpoint, self._reader, self._say = endpoint, reader, say
        self._rollout = reference_rollout(config)
        self._captioner = EndpointCaptioner(
            endpoint,
            rollout=self._rollout,
            threads=config.data.reading_threads,
            on_bad_sample=config.data.on_bad_sample,
            say=say,
        )

    def __enter__(self) -> CaptionWriter:
        config, captioner = self._config, self._captioner.__enter__()
        segments = config.references.segments if config.modality == "video" else 0
        asking = Asking.of(config.references)
        settings = caption_settings(config, self._rollout, segments, asking)
        provenance = Provenance(
            writer=captioner.name,
            weights=None,
            seed=self._seed,
            settings=settings
            | {"sampling": captioner.sent, "ended_only": self._ended_only}
            | shown_rules(config.data.judge_media, self._endpoint),
            asked=asked_digest(self._samples),
        )
        return CaptionWriter(
            config, self._draws, provenance, segments=segments, asking=asking, ended_only=self._ended_only
        )

    def __exit__(self, *exc: object) -> None:
        self._captioner.__exit__(*exc)

    def _draws(
        self,
        samples: Sequence[Sample],
        window: WindowDraw | None,
        *,
        seed: int,
        indices: Sequence[int],
        on_bad: Report,
    ) -> Iterator[Captioned]:
        """See ``Draws``."""
        del indices  # a served model's seeds depend on ids
        for done in self._captioner.captions(samples, self._reader(window), seed=seed, on_bad=on_bad):
            if done.lacking:
                self._say(f"sample {done.sample.id} gets {len(done.captions)} references: {done.lacking}")
            yield done
