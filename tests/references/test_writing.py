"""Parts, joins and kills, with a writer that costs nothing; and what a header holds a pool to."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.bare_context import bare_context
from tests.processes_in_threads import in_threads
from tests.signals import ask_to_stop
from vcap_jax.data.errors import ManifestError, StorageError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.media import TimeWindow
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.references import PoolEntry, Provenance, ReferencePool, asked_digest
from vcap_jax.parallel.processes import Processes
from vcap_jax.references import remember_pool, write_shared_pool, writing
from vcap_jax.references.writing import PoolError, Shard, Written, earlier_pools, write_pool
from vcap_jax.run.config import RunConfig
from vcap_jax.system.shutdown import Stopped, requested

SAMPLES = [Sample(id=f"v{i}", video=Path(f"{i}.mp4")) for i in range(7)]
UNREADABLE = "v3"


class Killed(Exception):
    pass


@pytest.fixture(autouse=True)
def videos(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the samples' files."""
    folder = tmp_path_factory.mktemp("videos")
    monkeypatch.chdir(folder)
    for sample in SAMPLES:
        sample.files[0].touch()
    return folder


class Writer:
    """Names each caption after its place; ``lives`` captions until it is killed."""

    def __init__(
        self,
        *,
        segments: int = 2,
        questions: int = 0,
        name: str = "a test",
        weights: str | None = "w",
        lives: int = 10**6,
    ) -> None:
        self.segments, self.questions, self.lives, self.asked = segments, questions, lives, []
        self.calls = []
        self.provenance = Provenance(
            writer=name,
            weights=weights,
            seed=0,
            settings={"segments": segments, "sampling": {"top_k": 5}, "sizes": (1, 2)}
            | ({"questions_per_sample": questions} if questions else {}),
            asked=asked_digest(SAMPLES),
        )

    @property
    def each(self):
        parts = {"windows": self.segments, "answers": self.questions}
        return {part: each for part, each in parts.items() if each}

    def write(self, part, samples, indices, skip, on_bad):
        if part == "whole":
            return self.whole(samples[skip:], indices[skip:], on_bad)
        return getattr(self, part)(samples, indices, skip, on_bad)

    def _spend(self, place) -> None:
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        self.asked.append(place)

    def whole(self, samples, indices, on_bad):
        self.calls.append(list(indices))
        for place, sample in zip(indices, samples, strict=True):
            if sample.id == UNREADABLE:
                on_bad(BadSample(id=sample.id, reason="damaged"))
                continue
            self._spend(place)
            yield Written(index=place, references=(f"{sample.id} one", f"{sample.id} two ü"))

    @staticmethod
    def _items(samples, indices, each, skip):
        """(place, sample, k)"""
        pairs = zip(indices, samples, strict=True)
        return [(index * each + k, sample, k) for index, sample in pairs for k in range(each)][skip:]

    def windows(self, samples, indices, skip, on_bad):
        for place, sample, k in self._items(samples, indices, self.segments, skip):
            if sample.id == UNREADABLE:
                continue
            self._spend(("window", place))
            window = TimeWindow(start=k, end=k + 1.5)
            yield Written(index=place, references=(f"{sample.id} window {k}",), window=window)

    def answers(self, samples, indices, skip, on_bad):
        """Nothing is said to the first question about v1; the second about v2 is answered once."""
        for place, sample, k in self._items(samples, indices, self.questions, skip):
            if sample.id == UNREADABLE or (sample.id, k) == ("v1", 0):
                continue
            self._spend(("answer", place))
            said = tuple(f"{text} {sample.id} answer {k}." for text in ("Its", "Another"))
            yield Written(index=place, references=said[: 1 if (sample.id, k) == ("v2", 1) else 2])


def test_a_pool_says_who_wrote_it_and_what_about(tmp_path: Path) -> None:
    bad = []
    pool = write_pool(tmp_path / "pool.jsonl", Writer(), SAMPLES, on_bad=bad.append)
    assert pool is not None
    assert [entry.id for entry in pool.entries()] == [s.id for s in SAMPLES if s.id != UNREADABLE]
    assert [b.id for b in bad] == [UNREADABLE]
    assert pool["v2"].references == ("v2 one", "v2 two ü")
    assert [(s.start, s.end, s.references) for s in pool["v2"].segments] == [
        (0, 1.5, ("v2 window 0",)),
        (1, 2.5, ("v2 window 1",)),
    ]
    assert pool.header is not None
    assert pool.header.provenance.writer == "a test"
    assert pool.header.entries == 6
    assert pool.header.digest == pool.digest()
    assert pool.header.created.endswith("+00:00")
    assert [p.name for p in tmp_path.iterdir()] == ["pool.jsonl"]


def test_answers_stand_behind_the_references(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.jsonl", Writer(questions=2), SAMPLES)
    assert pool is not None
    assert pool["v0"].references == (
        "v0 one\nIts v0 answer 0.\nIts v0 answer 1.",
        "v0 two ü\nAnother v0 answer 0.\nAnother v0 answer 1.",
    )
    assert pool["v1"].references[0] == "v1 one\nIts v1 answer 1."
    assert pool["v2"].references[1] == "v2 two ü\nAnother v2 answer 0.\nIts v2 answer 1."
    assert len(pool["v2"].segments) == 2
    plain = write_pool(tmp_path / "plain.jsonl", Writer(), SAMPLES)
    assert plain is not None
    assert [entry.segments for entry in pool.entries()] == [entry.segments for entry in plain.entries()]
    with pytest.raises(PoolError, match="questions_per_sample"):
        write_pool(tmp_path / "plain.jsonl", Writer(questions=2), SAMPLES)


@pytest.mark.parametrize(("segments", "questions"), [(2, 3), (3, 2)])
def test_windows_and_answers_of_different_numbers_stay_with_their_samples(
    tmp_path: Path, segments: int, questions: int
) -> None:
    pool = write_pool(tmp_path / "pool.jsonl", Writer(segments=segments, questions=questions), SAMPLES)
    assert pool is not None
    for entry in pool.entries():
        windows = [text for segment in entry.segments for text in segment.references]
        assert windows == [f"{entry.id} window {k}" for k in range(segments)]
        answered = [k for k in range(questions) if (entry.id, k) != ("v1", 0)]
        assert entry.references[0].splitlines() == [
            f"{entry.id} one",
            *(f"Its {entry.id} answer {k}." for k in answered),
        ]


def test_of_a_sample_without_a_reference_nothing_more_is_asked(tmp_path: Path) -> None:
    """It was told once for itself, and once for each window and question."""
    seen: list[tuple[str, list[str]]] = []

    class Watched(Writer):
        def write(self, part, samples, indices, skip, on_bad):
            seen.append((part, [sample.id for sample in samples]))
            return super().write(part, samples, indices, skip, on_bad)

    write_pool(tmp_path / "pool.jsonl", Watched(questions=2), SAMPLES)
    every = [sample.id for sample in SAMPLES]
    spoken_of = [name for name in every if name != UNREADABLE]
    assert seen == [("whole", every), ("windows", spoken_of), ("answers", spoken_of)]


def test_questions_that_none_answers_leave_no_pool_and_are_asked_again(tmp_path: Path) -> None:
    class Mute(Writer):
        def answers(self, samples, indices, skip, on_bad):
            for _, sample, k in self._items(samples, indices, self.questions, skip):
                on_bad(BadSample(id=sample.id, reason="too long", part=f"the answer to {k}"))
            return iter(())

    bad, path = [], tmp_path / "pool.jsonl"
    with pytest.raises(PoolError, match=r"not one of the answers to questions could be written, so .*pool"):
        write_pool(path, Mute(questions=2), SAMPLES, on_bad=bad.append)
    assert {one.reason for one in bad if one.part} == {"too long"}
    # With the remedy only what was lacking is asked for.
    again = Writer(questions=2)
    pool = write_pool(path, again, SAMPLES)
    alone = write_pool(tmp_path / "alone.jsonl", Writer(questions=2), SAMPLES)
    assert pool is not None
    assert alone is not None
    assert pool.digest() == alone.digest()
    assert {kind for kind, _ in again.asked} == {"answer"}


def test_samples_that_none_could_caption_are_tried_again(tmp_path: Path) -> None:
    path, none_there = tmp_path / "pool.jsonl", Writer(questions=2)
    none_there.write = lambda part, samples, indices, skip, on_bad: iter(())
    for _ in range(2):
        with pytest.raises(PoolError, match=r"none of .* samples could be captioned"):
            write_pool(path, none_there, SAMPLES)
    pool = write_pool(path, Writer(questions=2), SAMPLES)
    alone = write_pool(tmp_path / "alone.jsonl", Writer(questions=2), SAMPLES)
    assert pool is not None
    assert alone is not None
    assert pool.digest() == alone.digest()


@pytest.mark.parametrize("lives", [6, 18, 20, 28])
def test_killed_among_the_answers_it_goes_on_and_asks_nothing_twice(tmp_path: Path, lives: int) -> None:
    alone = write_pool(tmp_path / "alone.jsonl", Writer(questions=2), SAMPLES)
    first, second = Writer(questions=2, lives=lives), Writer(questions=2)
    with pytest.raises(Killed):
        write_pool(tmp_path / "pool.jsonl", first, SAMPLES)
    pool = write_pool(tmp_path / "pool.jsonl", second, SAMPLES)
    assert alone is not None
    assert pool is not None
    assert pool.digest() == alone.digest()
    assert set(first.asked).isdisjoint(second.asked)


@pytest.mark.parametrize("shards", [2, 3, 8])
def test_any_number_of_processes_writes_the_same_pool(tmp_path: Path, shards: int) -> None:
    alone = write_pool(tmp_path / "alone.jsonl", Writer(questions=3), SAMPLES)
    results = [
        write_pool(
            tmp_path / "shared.jsonl", Writer(questions=3), SAMPLES, shard=Shard(index=i, count=shards)
        )
        for i in reversed(range(shards))
    ]
    assert results[:-1] == [None] * (shards - 1)
    assert alone is not None
    assert results[-1] is not None
    assert results[-1].entries() == alone.entries()
    assert results[-1].digest() == alone.digest()


def test_processes_look_for_no_file_before_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS that has seen that a file is not there may say so for half a minute after another made it."""
    exists, path = Path.exists, tmp_path / "pool.jsonl"
    missed: list[tuple[str, str]] = []

    def watched(file: Path) -> bool:
        there = exists(file)
        if not there:
            missed.append((threading.current_thread().name, file.name))
        return there

    def run(processes: Processes) -> ReferencePool:
        threading.current_thread().name = f"{processes.index:05d}-of-00002"
        ctx = bare_context(RunConfig(), tmp_path, processes=processes)
        return write_shared_pool(ctx, path, Writer(), SAMPLES)

    alone = write_pool(tmp_path / "alone.jsonl", Writer(), SAMPLES)
    monkeypatch.setattr(Path, "exists", watched)
    pools = in_threads(2, run)
    assert [pool.digest() for pool in pools] == [alone.digest()] * 2
    assert ("00000-of-00002", path.name) in missed
    assert ("00001-of-00002", path.name) not in missed
    assert [(who, part) for who, part in missed if "-of-" in part and who not in part] == []


@pytest.mark.parametrize("lives", [0, 1, 5, 6, 7, 9, 17])
def test_killed_anywhere_it_goes_on_and_does_nothing_twice(tmp_path: Path, lives: int) -> None:
    path = tmp_path / "pool.jsonl"
    alone = write_pool(tmp_path / "alone.jsonl", Writer(), SAMPLES)
    first, second = Writer(lives=lives), Writer()
    with pytest.raises(Killed):
        write_pool(path, first, SAMPLES)
    for part in (tmp_path / "pool.jsonl.parts").glob("*.partial"):
        part.write_bytes(part.read_bytes() + b'{"place": 6, "refer')  # the line it was writing
    pool = write_pool(path, second, SAMPLES)
    assert alone is not None
    assert pool is not None
    assert pool.entries() == alone.entries()
    assert len(first.asked) == lives
    assert first.asked + second.asked == [
        *range(3),
        4,
        5,
        6,
        *(("window", p) for p in range(14) if p not in (6, 7)),
    ]


@pytest.mark.parametrize("lives", [2, 9])
def test_an_attempt_is_not_gone_on_with_while_its_videos_are_away(
    tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch, lives: int
) -> None:
    """All that is left would be passed over as unreadable, and the pool would be complete without it."""
    path = tmp_path / "pool.jsonl"
    alone = write_pool(tmp_path / "alone.jsonl", Writer(), SAMPLES)
    with pytest.raises(Killed):
        write_pool(path, Writer(lives=lives), SAMPLES)
    monkeypatch.chdir(tmp_path)  # where there is none of them
    untouched = Writer()
    with pytest.raises(StorageError, match=r"\.mp4: no such file, and \d\.mp4, which was read before"):
        write_pool(path, untouched, SAMPLES)
    assert untouched.asked == []
    monkeypatch.chdir(videos)
    pool = write_pool(path, Writer(), SAMPLES)
    assert alone is not None
    assert pool is not None
    assert pool.entries() == alone.entries()


def test_samples_that_got_nothing_are_tried_again_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"

    class Down(Writer):
        """As an endpoint that answers for the first and the sixth sample alone."""

        def whole(self, samples, indices, on_bad):
            return (written for written in super().whole(samples, indices, on_bad) if written.index in (0, 5))

    first = write_pool(path, Down(questions=2), SAMPLES)
    assert first is not None
    assert [entry.id for entry in first.entries()] == ["v0", "v5"]
    untouched = Writer(questions=2)
    same = write_pool(path, untouched, SAMPLES)
    assert same is not None
    assert same.digest() == first.digest()
    assert untouched.asked == []
    again, bad = Writer(questions=2, name="the same, named from elsewhere"), []
    pool = write_pool(path, again, SAMPLES, retry_failed=True, on_bad=bad.append)
    whole = write_pool(tmp_path / "alone.jsonl", Writer(questions=2), SAMPLES)
    assert pool is not None
    assert whole is not None
    assert pool.digest() == whole.digest()
    assert ReferencePool.read(path).header == pool.header
    assert pool.header is not None
    assert first.header is not None
    assert pool.header.provenance == first.header.provenance
    assert [b.id for b in bad] == [UNREADABLE]
    assert {0, 5}.isdisjoint(again.asked)
    with pytest.raises(PoolError, match="holds another pool"):
        write_pool(path, Writer(weights="others"), SAMPLES, retry_failed=True)


class Half(Writer):
    """As an endpoint that answers for every other sample alone."""

    def whole(self, samples, indices, on_bad):
        return (written for written in super().whole(samples, indices, on_bad) if written.index % 2 == 0)


class Quarter(Writer):
    """As one that answers for every fourth."""

    def whole(self, samples, indices, on_bad):
        return (written for written in super().whole(samples, indices, on_bad) if written.index % 4 == 0)


def test_a_run_finds_the_pool_that_it_began_with_though_samples_were_tried_again(tmp_path: Path) -> None:
    """The pool was written over, and whoever had begun with it could be resumed no more."""
    path, ctx = tmp_path / "pool.jsonl", bare_context(RunConfig(), tmp_path / "run")
    ctx.folder.root.mkdir()
    first = write_pool(path, Quarter(), SAMPLES)
    assert first is not None
    first_file = path.read_bytes()
    remember_pool(ctx, first, str(path))
    for writer in (Quarter(), Half(), Half(), Writer(lives=3), Writer(), Writer()):
        # Of these the first and the third get nothing more, so that nothing is written.
        with suppress(Killed):
            write_pool(path, writer, SAMPLES, retry_failed=True)
    now = ReferencePool.read(path)
    assert len(now) == 6
    earlier = {file.name: ReferencePool.read(file) for file in earlier_pools(path)}
    assert sorted(map(len, earlier.values())) == [2, 4]
    assert all(name == f"pool.jsonl.earlier-{pool.digest()[:8]}" for name, pool in earlier.items())
    found = tmp_path / f"pool.jsonl.earlier-{first.digest()[:8]}"
    assert found.read_bytes() == first_file
    with pytest.raises(
        PoolError, match=rf" has {now.digest()}\. --retry-failed has left .* in {found}: give"
    ):
        remember_pool(ctx, now, str(path))
    # Where it began with a part of one, as held-out samples are, it is at least told where they lie.
    found.unlink()
    with pytest.raises(
        PoolError, match=r"began with, which .* beside it \(.*earlier-[0-9a-f]{8}\), or start"
    ):
        remember_pool(ctx, now, str(path))
    path.write_bytes(first_file)  # the remedy
    remember_pool(ctx, ReferencePool.read(path), str(path))


def test_other_references_of_the_same_samples_are_not_those_that_a_run_began_with(tmp_path: Path) -> None:
    ctx = bare_context(RunConfig(), tmp_path / "run")
    ctx.folder.root.mkdir()
    began, other = (ReferencePool([PoolEntry(id="a", references=(text,))]) for text in ("one", "another"))
    remember_pool(ctx, began, "pool.jsonl")
    remember_pool(ctx, began, "moved.jsonl")
    with pytest.raises(PoolError, match=r"began with the captions of pool\.jsonl"):
        remember_pool(ctx, other, "pool.jsonl")


def test_a_second_try_that_is_stopped_leaves_no_sample_with_a_part_of_its_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stopped = tmp_path / "pool.jsonl", list[bool]()
    monkeypatch.setattr(writing, "requested", lambda: bool(stopped))

    class Signalled(Writer):
        def windows(self, samples, indices, skip, on_bad):
            yield next(super().windows(samples, indices, skip, on_bad))
            stopped.append(True)

    assert write_pool(path, Half(), SAMPLES) is not None
    pool = write_pool(path, Signalled(), SAMPLES, retry_failed=True)
    assert pool is not None
    assert [(entry.id, len(entry.segments)) for entry in pool.entries()] == [
        (f"v{index}", 2) for index in (0, 2, 4, 6)
    ]


@pytest.mark.parametrize("segments", [0, 2])
def test_what_a_second_try_got_before_it_failed_is_kept(tmp_path: Path, segments: int) -> None:
    """As of an endpoint that goes away once more."""
    path, samples = tmp_path / "pool.jsonl", [Sample(id=f"s{i}", video=Path("0.mp4")) for i in range(80)]

    class Down(Writer):
        def whole(self, samples, indices, on_bad):
            return (written for written in super().whole(samples, indices, on_bad) if written.index % 10 == 1)

    first = write_pool(path, Down(segments=segments), samples)
    assert first is not None
    assert len(first) == 8
    lives = 40 if segments == 0 else 70 * 3  # of 72 samples, each with its windows
    with pytest.raises(Killed):
        write_pool(path, Writer(segments=segments, lives=lives), samples, retry_failed=True)
    kept = len(ReferencePool.read(path))
    assert kept == 48 if segments == 0 else 8 < kept < 80
    second = Writer(segments=segments)
    pool = write_pool(path, second, samples, retry_failed=True)
    assert len(second.calls[0]) == 80 - kept
    whole = write_pool(tmp_path / "alone.jsonl", Writer(segments=segments), samples)
    assert pool is not None
    assert whole is not None
    assert pool.digest() == whole.digest()


def test_a_second_try_is_written_now_and_then(tmp_path: Path) -> None:
    """A kill gives nobody time to write what hours have brought."""
    path, samples = tmp_path / "pool.jsonl", [Sample(id=f"s{i}", video=Path("0.mp4")) for i in range(300)]

    class Down(Writer):
        def whole(self, samples, indices, on_bad):
            return (written for written in super().whole(samples, indices, on_bad) if written.index < 10)

    class Watched(Writer):
        def whole(self, samples, indices, on_bad):
            for written in super().whole(samples, indices, on_bad):
                kept.append(len(ReferencePool.read(path)))
                yield written

    write_pool(path, Down(segments=0), samples)
    kept: list[int] = []
    write_pool(path, Watched(segments=0), samples, retry_failed=True)
    assert all(10 + done - 64 <= there for done, there in enumerate(kept))
    assert len(set(kept)) < 6, "which costs the whole pool each time"


def test_those_that_are_tried_again_are_asked_about_side_by_side(tmp_path: Path) -> None:
    """Of a served model that leaves out a sample here and there: one after the other they would take hours."""
    path = tmp_path / "pool.jsonl"

    class Down(Writer):
        def whole(self, samples, indices, on_bad):
            return (written for written in super().whole(samples, indices, on_bad) if written.index % 2)

    write_pool(path, Down(questions=1), SAMPLES)
    again = Writer(questions=1)
    write_pool(path, again, SAMPLES, retry_failed=True)
    assert again.calls == [[0, 2, 3, 4, 6]]


def test_parts_of_another_writer_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    with pytest.raises(Killed):
        write_pool(path, Writer(lives=2), SAMPLES)
    with pytest.raises(PoolError, match=r"(?s)pool\.jsonl\.parts.*weights differ.*remove the folder"):
        write_pool(path, Writer(weights="others"), SAMPLES)
    assert write_pool(path, Writer(), SAMPLES) is not None
    with pytest.raises(PoolError, match=r"already holds another pool, by a test.*weights differ"):
        write_pool(path, Writer(weights="others"), SAMPLES)
    kept = Writer(lives=0)
    assert write_pool(path, kept, SAMPLES) is not None
    assert kept.asked == []


def test_a_writer_of_the_same_weights_may_be_named_otherwise(tmp_path: Path) -> None:
    """runs/e1, ./runs/e1 and where the folder was moved to are one writer; two models of a server are two."""
    path, samples = tmp_path / "pool.jsonl", SAMPLES[:5]
    with pytest.raises(Killed):
        write_pool(path, Writer(name="runs/e1 at step 3", lives=6), samples)
    pool = write_pool(path, Writer(name="./runs/e1 at step 3"), samples)
    assert pool is not None
    elsewhere = Writer(name="/moved/e1 at step 3")
    for again in (False, True):
        same = write_pool(path, elsewhere, samples, retry_failed=again)
        assert same is not None
        assert same.header == pool.header
    assert elsewhere.asked == []
    write_pool(tmp_path / "served.jsonl", Writer(name="qwen", weights=None), samples)
    with pytest.raises(PoolError, match=r"by qwen \(writer differ\)"):
        write_pool(tmp_path / "served.jsonl", Writer(name="other", weights=None), samples)


def test_a_file_of_ones_own_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"id": "v0", "references": ["mine"]}\n')
    with pytest.raises(PoolError, match="without a header"):
        write_pool(path, Writer(), SAMPLES)
    assert "mine" in path.read_text()


def test_nothing_captioned_is_no_pool(tmp_path: Path) -> None:
    only_bad = [s for s in SAMPLES if s.id == UNREADABLE]
    with pytest.raises(PoolError, match="none of 1 samples"):
        write_pool(tmp_path / "pool.jsonl", Writer(), only_bad)
    assert not (tmp_path / "pool.jsonl").exists()


def test_rows_changed_behind_the_header_are_found_out(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    write_pool(path, Writer(), SAMPLES)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:]]))
    with pytest.raises(ManifestError, match=r"pool\.jsonl was changed.*remove its first line"):
        ReferencePool.read(path)
    path.write_text("".join(lines[2:]))  # the remedy
    assert len(ReferencePool.read(path)) == 5
    head = json.loads(lines[0])
    del head["seed"]
    path.write_text("".join([json.dumps(head) + "\n", *lines[1:]]))
    with pytest.raises(ManifestError, match="the header: provenance: seed: field required"):
        ReferencePool.read(path)
    path.write_text("".join([json.dumps(head | {"pool": 9}) + "\n", *lines[1:]]))
    with pytest.raises(ManifestError, match="version 9"):
        ReferencePool.read(path)


@pytest.mark.parametrize("at", [0, 3, 5, 9])
def test_a_signal_ends_it_after_the_captions_in_work(tmp_path: Path, at: int) -> None:
    """As the captioners do, the writer looks for a signal before it begins something new."""

    class Signalled(Writer):
        def _spend(self, place) -> None:
            super()._spend(place)
            if len(self.asked) == at + 1:
                ask_to_stop()

        def _until_signalled(self, captions):
            for written in captions:
                yield written
                if requested():
                    return

        def whole(self, samples, indices, on_bad):
            return self._until_signalled(super().whole(samples, indices, on_bad))

        def windows(self, samples, indices, skip, on_bad):
            return self._until_signalled(super().windows(samples, indices, skip, on_bad))

    path = tmp_path / "pool.jsonl"
    stopped = Signalled()
    with pytest.raises(Stopped, match=r"stopped with \d+ of \d+ captions written"):
        write_pool(path, stopped, SAMPLES)
    again = Writer()
    pool = write_pool(path, again, SAMPLES)
    assert pool is not None
    assert set(stopped.asked).isdisjoint(again.asked)
    whole = write_pool(tmp_path / "alone.jsonl", Writer(), SAMPLES)
    assert whole is not None
    assert pool.digest() == whole.digest()
