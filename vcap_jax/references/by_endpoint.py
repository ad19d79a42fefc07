"""References written by a model behind an OpenAI-compatible chat endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vcap_jax.captioning.by_endpoint import EndpointCaptioner, Load, shown_rules
from vcap_jax.data.manifest import Sample
from vcap_jax.references.beside import Asking, WindowDraw
from vcap_jax.references.by_policy import reference_rollout
from vcap_jax.references.writers import CaptionWriter, Report
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.rollout.captioner import Captioned
from vcap_jax.run.config import RunConfig


@contextmanager
def endpoint_writer(
    config: RunConfig,
    endpoint: JudgeConfig,
    samples: Sequence[Sample],
    *,
    reader: Callable[[WindowDraw | None], Load],
    seed: int,
    ended_only: bool = False,
    say: Callable[[str], None],
) -> Iterator[CaptionWriter]:
    """References by a served model.

    config: prompts, questions, sampling, numbers of references and windows. endpoint: addresses, model, key, limits;
    its own temperature and answer length are replaced by those of the references. reader: what reads whole samples, or
    windows. samples: all that the pool is for. seed: of the draws. ended_only: leave out captions that were cut off.
    say: told of samples that get fewer references, as the server did not answer.
    """
    rollout = reference_rollout(config)
    with EndpointCaptioner(
        endpoint,
        rollout=rollout,
        threads=config.data.reading_threads,
        prefetch=config.data.prefetch,
        on_bad_sample=config.data.on_bad_sample,
        say=say,
    ) as captioner:

        def draws(
            samples: Sequence[Sample],
            window: WindowDraw | None,
            *,
            seed: int,
            indices: Sequence[int],
            on_bad: Report,
            questions: int = 1,
        ) -> Iterator[Captioned]:
            del indices  # a served model's seeds depend on ids
            del questions  # its cache of prefixes keeps a picture from being computed again
            for done in captioner.captions(samples, reader(window), seed=seed, on_bad=on_bad):
                if done.lacking:
                    say(f"sample {done.sample.id} gets {len(done.captions)} references: {done.lacking}")
                yield done

        yield CaptionWriter(
            config,
            draws,
            samples,
            name=captioner.name,
            weights=None,
            seed=seed,
            rollout=rollout,
            own={
                "sampling": captioner.sent,
                "ended_only": ended_only,
                **shown_rules(config.data.judge_media, endpoint),
            },
            segments=config.references.segments,
            asking=Asking.of(config.references),
            ended_only=ended_only,
        )
