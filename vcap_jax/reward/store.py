"""Judgements on disk (SQLite), so that none is paid for twice and a study can be done without a judge.

Two tables. ``judgements`` holds each answer once, as the JSON object that was asked for, under a key of everything
that decided it: judge model and its temperature, instruction version, media, reference, candidate. ``candidates`` says
what each candidate of a training group earned and which answers it got, so that rewards can be computed anew with other
weights (:mod:`vcap_jax.reward.restudy`). Step and place of the group in the step name a group: a sample may occur in
several.

Failures are never stored. An answer is on disk (write-ahead log) before anybody gets it, so a process that is
killed has every verdict it used; other processes may read at any time.
"""

from __future__ import annotations

import json
import queue
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vcap_jax.reward.http_answers import Usage
from vcap_jax.reward.prompts import content_hash
from vcap_jax.reward.store_schema import VERSION, prepare, version_of
from vcap_jax.system.closing import Closing
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import where_sought
from vcap_jax.system.json_values import JsonObject

_BUSY_S = 60.0
_NO_FILES_BESIDE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
_NO_SPACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_GIVE_ONE = (
    "give the judgements.sqlite of a run, or a copy of its folder where that may not be written to, and move a damaged "
    "one away"
)
_Cell = str | int | float | None
_Statement = tuple[str, Sequence[_Cell]]
_Entry = tuple[Sequence[_Statement], Future[None]]


class StoreError(VCapError, RuntimeError):
    """The file of judgements cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, kw_only=True)
class JudgementKey:
    """Everything that decides an answer.

    instruction: name of the pass. version: of its text and schema.
    media: content hash of what is shown, "" for nothing. reference: None where there is none.
    prompt: hash of the filled instruction, which also tells how captions were made harmless; of a judge that draws its
        answers the temperature is in it too.
    """

    model: str
    instruction: str
    version: str
    media: str
    reference: str | None
    candidate: str
    prompt: str

    @property
    def digest(self) -> str:
        reference = [] if self.reference is None else [self.reference]
        return content_hash(
            self.model, self.instruction, self.version, self.media, self.prompt, self.candidate, *reference
        )


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """An answer with what it cost. answer: the JSON object that was asked for. seconds: inside HTTP requests."""

    answer: JsonObject
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    tries: int = 1


@dataclass(frozen=True, kw_only=True)
class StoredCandidate:
    """One candidate of a group and where its verdicts are.

    step, group: from 0; of its group the place in the step, among those of all processes.
    index: in the group. family: what ``reward.family`` was. components: by the family's names.
    verdicts: by pass ("global", "local") the key of a judgement; None for a text that was worth 0 unasked;
        "" for a judgement that failed.
    reward: as it was computed; None if it was masked.
    """

    step: int
    group: int
    sample_id: str
    index: int
    caption: str
    family: str
    components: Mapping[str, float]
    verdicts: Mapping[str, str | None]
    reward: float | None


class JudgementStore(Closing):
    """An open store: one thread writes, ``find`` and ``read`` may be called from any thread.

    Raises StoreError for a file that is no store, or one of another version, or that cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._reading = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            writer = _connect(self.path)
            _check_version(prepare(writer), self.path)
            self._reader = _connect(self.path)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.path} cannot be used as a store of judgements ({error}): "
                f"{_remedy(error, 'move it away, or name another file in judge.store')}"
            ) from error
        self._thread = threading.Thread(
            target=self._write, args=(writer,), name="judgement store", daemon=True
        )
        self._closed = False
        self._thread.start()

    def find(self, key: JudgementKey) -> Judgement | None:
        """The stored judgement; None where there is none. Raises StoreError for a file that cannot be read."""
        with self._reading, _as_store_errors(self.path):
            row = self._reader.execute(
                "SELECT answer, prompt_tokens, cached_tokens, completion_tokens, seconds, tries "
                "FROM judgements WHERE key = ?",
                (key.digest,),
            ).fetchone()
        return None if row is None else _judgement(row)

    def put(self, key: JudgementKey, judgement: Judgement) -> Future[None]:
        """Stores a judgement; the future is done when it is on disk, and raises StoreError if it is not.

        What is there already stays: the first verdict is the one that was used.
        """
        usage = judgement.usage
        row = (
            *(key.digest, key.model, key.instruction, key.version, key.media, key.reference, key.candidate),
            json.dumps(dict(judgement.answer), ensure_ascii=False),
            *(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens),
            *(judgement.seconds, judgement.tries, time.time()),
        )
        return self._enqueue((f"{_insert('judgements', row)} ON CONFLICT (key) DO NOTHING", row))

    def put_group(self, candidates: Sequence[StoredCandidate]) -> Future[None]:
        """Says which verdicts the candidates of a group got; on disk are all of them or none.

        A group that is scored again replaces what it wrote. Raises ValueError for candidates of several groups.
        """
        groups = {(c.step, c.sample_id, c.group) for c in candidates}
        if len(groups) != 1:
            raise ValueError("put_group takes the candidates of one group")
        (group,) = groups
        before = "DELETE FROM candidates WHERE step = ? AND sample_id = ? AND group_place = ?"
        statements: list[_Statement] = [(before, group)]
        for c in candidates:
            row = (
                *(*group, c.index, c.caption, c.family),
                *(json.dumps(dict(c.components)), json.dumps(dict(c.verdicts)), c.reward),
            )
            statements.append((_insert("candidates", row), row))
        return self._enqueue(*statements)

    def __len__(self) -> int:
        """How many judgements are on disk."""
        with self._reading, _as_store_errors(self.path):
            return int(self._reader.execute("SELECT COUNT(*) FROM judgements").fetchone()[0])

    def close(self) -> None:
        """Writes what is waiting and closes the file. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        # A statement waits for a lock as long as _BUSY_S; beyond that something is wrong with the disk.
        self._thread.join(3 * _BUSY_S)
        if self._thread.is_alive():
            raise StoreError(
                f"{self.path}: what is waiting is not written after {3 * _BUSY_S:g} s; is the disk there?"
            )
        with self._reading:
            self._reader.close()

    def _enqueue(self, *statements: _Statement) -> Future[None]:
        """What is written in one transaction."""
        if self._closed:
            raise RuntimeError("the store of judgements is closed")
        done: Future[None] = Future()
        self._queue.put((statements, done))
        return done

    def _write(self, connection: sqlite3.Connection) -> None:
        """The writer thread: all that is waiting goes into one transaction."""
        ending = False
        while not ending:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            ending = None in batch
            entries = [entry for entry in batch if entry is not None]
            try:
                with connection:
                    for statements, _ in entries:
                        for statement, values in statements:
                            connection.execute(statement, values)
            except Exception as error:  # not SQLite's alone: nobody may wait for a thread that has died
                failure = StoreError(f"{self.path}: a judgement cannot be written ({error})")
                for done in _still_waited_for(entries):
                    done.set_exception(failure)
            else:
                for done in _still_waited_for(entries):
                    done.set_result(None)
        connection.close()


def _still_waited_for(entries: Sequence[_Entry]) -> list[Future[None]]:
    """Who gave up waiting has its judgement written all the same."""
    return [done for _, done in entries if done.set_running_or_notify_cancel()]


def _insert(table: str, row: Sequence[_Cell]) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})"


def read_candidates(
    path: str | Path,
) -> Iterator[tuple[StoredCandidate, dict[str, JsonObject | None]]]:
    """Every candidate with its answers by pass (None where a text was worth 0 unasked or its judgement failed), in the
    order of step, sample, group and place: those that were there when the first was asked for, never all in memory.
    Reads while another process writes.
    """
    with _reading(Path(path)) as connection:
        rows = connection.execute(
            "SELECT step, sample_id, group_place, place, caption, family, components, verdicts, reward "
            "FROM candidates ORDER BY step, sample_id, group_place, place"
        )
        for step, sample_id, group, place, caption, family, components, verdicts, reward in rows:
            stored = StoredCandidate(
                step=step,
                group=group,
                sample_id=sample_id,
                index=place,
                caption=caption,
                family=family,
                components=json.loads(components),
                verdicts=json.loads(verdicts),
                reward=reward,
            )
            answers: dict[str, JsonObject | None] = {}
            for name, key in stored.verdicts.items():
                answers[name] = None
                if key:
                    row = connection.execute("SELECT answer FROM judgements WHERE key = ?", (key,)).fetchone()
                    answers[name] = None if row is None else json.loads(row[0])
            yield stored, answers


def read_judgements(path: str | Path) -> Iterator[tuple[JudgementKey, Judgement]]:
    """Every judgement, without its prompt's hash, in the order in which they were stored; read as the candidates
    are."""
    with _reading(Path(path)) as connection:
        rows = connection.execute(
            "SELECT model, instruction, version, media, reference, candidate, answer, prompt_tokens, cached_tokens, "
            "completion_tokens, seconds, tries FROM judgements ORDER BY stored_at"
        )
        for row in rows:
            names = ("model", "instruction", "version", "media", "reference", "candidate")
            yield JudgementKey(**dict(zip(names, row, strict=False)), prompt=""), _judgement(row[6:])


def forget_candidates(path: str | Path, *, step: int) -> None:
    """Takes the candidates of a step out of a store, which another connection may have open; answers stay. Raises
    StoreError."""
    with _as_store_errors(Path(path)), closing(_connect(Path(path))) as connection:
        _check_version(version_of(connection), Path(path))
        with connection:
            connection.execute("DELETE FROM candidates WHERE step = ?", (step,))


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    with _as_store_errors(path), closing(_connect_to_read(path)) as connection:
        _check_version(version_of(connection), path)
        yield connection


def check_place(folder: Path) -> None:
    """Raises StoreError for a folder, or the one in which it would be made, where a store cannot be kept; OSError where
    nothing can be written. Leaves nothing behind. Where neither is there, nothing is known."""
    there = next((place for place in (folder, folder.absolute().parent) if place.is_dir()), None)
    if there is None:
        return
    with tempfile.TemporaryDirectory(prefix=".store-", dir=there) as trial:
        path = Path(trial) / "judgements.sqlite"
        try:
            with closing(_connect(path)) as connection, connection:
                connection.execute("CREATE TABLE trial (x)")
        except sqlite3.Error as error:
            raise StoreError(
                f"{there} keeps no store of judgements ({error}), as where a file system has no locks (Lustre without "
                "-o flock, a bucket): name a file elsewhere in judge.store, of each process its own"
            ) from error


@contextmanager
def _as_store_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(
            f"{path} cannot be read as a store of judgements ({error}): {_remedy(error, _GIVE_ONE)}"
        ) from error


def _remedy(error: Exception, otherwise: str) -> str:
    """A full disk damages no store: who moved it away would pay for all answers again."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_SPACE:
        return (
            "if its disk is full, free some space and leave the file there, which has every answer so far; else name "
            "another file in judge.store"
        )
    return otherwise


def _connect(path: Path) -> sqlite3.Connection:
    connection = _opened(path)
    connection.execute("PRAGMA journal_mode = WAL")
    # The write-ahead log survives a killed process; only a machine that loses power may lose the last ones.
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Reading, too, makes files beside a store, for locks. Where they cannot be made, as in the folder of another user
    or on a read-only disk, a store without a log is read as a file that nobody writes: all of it is in there."""
    if not path.is_file():
        raise StoreError(f"{path} does not exist{where_sought(path)}: give the judgements.sqlite of a run")
    connection = _opened(path, "?mode=ro")
    try:
        version_of(connection)
    except sqlite3.OperationalError as error:
        connection.close()
        log = Path(f"{path.resolve()}-wal")
        if error.sqlite_errorcode & 0xFF not in _NO_FILES_BESIDE or (log.exists() and log.stat().st_size):
            raise
        return _opened(path, "?mode=ro&immutable=1")
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(path: Path, options: str = "") -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}{options}"
    return sqlite3.connect(address, uri=True, timeout=_BUSY_S, check_same_thread=False)


def _check_version(found: int, path: Path) -> None:
    if found != VERSION:
        raise StoreError(
            f"{path} is a store of version {found}, and this program knows version {VERSION} alone: give the file of "
            "a run of this program, or name another in judge.store"
        )


def _judgement(row: tuple[str, int, int, int, float, int]) -> Judgement:
    answer, prompt, cached, completion, seconds, tries = row
    usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)
    return Judgement(answer=json.loads(answer), usage=usage, seconds=seconds, tries=tries)
