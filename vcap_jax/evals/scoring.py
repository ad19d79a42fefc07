"""Captions of samples, scored by a reward: few samples at a time, in order, whatever becomes of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from statistics import mean

from vcap_jax.data.errors import StorageError
from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.data.storage import tried_again, watched
from vcap_jax.evals.protocol import Captions, OwnData
from vcap_jax.reward.group import GroupForReward, GroupScores, compared_with
from vcap_jax.reward.segments import Segment
from vcap_jax.system.errors import VCapError
from vcap_jax.system.in_work import in_order, ready, together, until_ended
from vcap_jax.system.shutdown import Stopped

_UNDER_WAY = 32
"""Samples whose captions are scored at once at least, and whose pictures are held so long."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A sample's captions and what they earned.

    scores: by the reward. other: by another judge, where there is one. unasked: why nobody was asked; then there are no
    scores.
    """

    captions: Captions
    scores: GroupScores | None = None
    other: GroupScores | None = None
    unasked: str | None = None


STEP = 0
"""Of the groups: whatever a policy has learnt, its captions are compared with the same."""


def scored(
    own: OwnData,
    captions: Sequence[Captions],
    *,
    kept: bool = False,
    places: Sequence[int] | None = None,
) -> Iterator[Scored]:
    """The captions of ``own.samples``, one entry for each, with their scores, in order.

    As many samples are under way as fill the judge's places with their captions, and no more, for each holds its
    pictures; those of the next ones are read meanwhile, two for each of ``own.threads``. A slow answer keeps no other
    sample waiting. A judge that takes turns has its own meanwhile.
    kept: whether the store of ``own.session`` keeps what every caption earned, so that weights can be changed later
    (``reward.restudy``); answers it keeps in any case. places: numbers of the samples' groups, by which that store
    knows them; by default they are counted.
    Raises JudgeUnavailable where the judge is gone for too long, StorageError where the storage of a sample is, and
    Stopped if a signal has come.
    """
    pairs = zip(own.samples, captions, strict=True)
    # As many captions as a sample has, not as one has of which most failed.
    each = max(1, round(mean(len(one.texts) for one in captions))) if captions else 1
    at_once = max(_UNDER_WAY, own.session.places // each + 1)

    def look() -> None:
        if own.stop():
            # Its answers are in the store, so what has been asked is not asked again.
            gone = own.session.unreachable or (own.other and own.other.unreachable)
            raise Stopped("stopped in an evaluation" + (f" while {gone}" if gone else ""))

    with own.session.turn(), closing(_with_media(own, pairs)) as read:
        begun = (
            _asked(own, sample, one, media, number if places is None else places[number], kept, look)
            for number, (sample, one, media) in enumerate(read)
        )
        yield from in_order(begun, at_once, look=look)


def _with_media(
    own: OwnData, pairs: Iterable[tuple[Sample, Captions]]
) -> Generator[tuple[Sample, Captions, Future[EncodedMedia] | None], None, None]:
    """Samples and captions with what the judge is shown, which threads read; None for one without captions."""
    threads = ThreadPoolExecutor(own.threads, thread_name_prefix="pictures for the judge")
    read: deque[tuple[Sample, Captions, Future[EncodedMedia] | None]] = deque()
    media_of = watched(own.media)
    try:
        for sample, captions in pairs:
            media = None if captions.failure is not None else threads.submit(tried_again, media_of, sample)
            read.append((sample, captions, media))
            if len(read) > 2 * own.threads:
                yield read.popleft()
        while read:
            yield read.popleft()
    finally:
        # Whoever is stopped does not wait for a long video; what nobody has begun to read is left.
        threads.shutdown(wait=False, cancel_futures=True)


def _asked(
    own: OwnData,
    sample: Sample,
    captions: Captions,
    reading: Future[EncodedMedia] | None,
    place: int,
    kept: bool,
    look: Callable[[], None],
) -> Future[Scored]:
    """Asks about a sample."""
    if reading is None:
        return ready(Scored(captions=captions, unasked=str(captions.failure)))
    reference: str | None = None
    references: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    try:
        look()
        media = until_ended(reading, look).result()
        if own.references is not None:
            reference, segments = compared_with(own.references, sample.id, seed=own.seed, step=STEP)
            references = own.references[sample.id].references
    except StorageError:
        raise  # of the sample nothing is known
    except (VCapError, KeyError) as error:
        why = str(error.args[0] if isinstance(error, KeyError) else error)
        return ready(Scored(captions=captions, unasked=why))
    group = GroupForReward(
        sample_id=sample.id,
        step=STEP,
        index=place,
        media=media,
        reference=reference,
        captions=captions.texts,
        references=references,
        reference_segments=segments,
    )
    judges = [session for session in (own.session, own.other) if session is not None]
    asked = [judge.submit(group, trained_on=kept and judge is own.session) for judge in judges]
    return together(
        asked, lambda of: Scored(captions=captions, scores=of[0], other=of[1] if own.other else None)
    )
