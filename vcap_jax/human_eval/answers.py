"""Reading a study's answers: what is on disk, as values. Others may write meanwhile."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.protocol import Ranking, Step1, Verdict, verdict_of
from vcap_jax.human_eval.records import Item
from vcap_jax.human_eval.store_schema import VERSION
from vcap_jax.human_eval.study import Study
from vcap_jax.system.closing import Closing
from vcap_jax.system.digests import digest_of

_BUSY_S = 30.0
_HELD = "step1, step2, note, version, first_at, last_at"
"""Of both tables of verdicts."""
IMPORT = "import of "
"""Begins the names of requests that finish an item whose rankings were given elsewhere."""
_TAKEN_IN = f"(action = 'import' OR (action = 'finish' AND request LIKE '{IMPORT}%'))"
"""Of events."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A verdict as the store holds it. version: 0 where nothing was ever said; times: ISO 8601, UTC, or ""."""

    verdict: Verdict = field(default_factory=Verdict)
    version: int = 0
    first_at: str = ""
    last_at: str = ""


@dataclass(frozen=True, kw_only=True)
class ItemState:
    """What an annotator has said about an item.

    verdicts: by proposition, only those with a version. changes: the propositions whose changes can be undone, the
    last last, each with the verdict before. finished: when, "" if it is not.
    """

    verdicts: Mapping[str, Held]
    changes: tuple[tuple[str, Verdict], ...]
    finished: str


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """An item of an annotator's. decided: of its ``total`` propositions."""

    item: str
    decided: int
    total: int
    finished: bool


@dataclass(frozen=True, kw_only=True)
class StoredVerdict:
    """A complete verdict with who gave it."""

    annotator: str
    item: str
    prop: str
    held: Held


@dataclass(frozen=True, kw_only=True)
class StoredRanking:
    """One ranking of an item, the best model first. at: ISO 8601, UTC."""

    annotator: str
    item: str
    ranking: Ranking
    models: tuple[str, ...]
    at: str


class StoredAnswers(Closing):
    """The answers of a study, for reading; methods may be called from any thread.

    Raises StudyError for a file that is none of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reading = threading.Lock()
        if not path.is_file():
            raise StudyError(f"{path} does not exist: nobody has answered yet; begin with launch/annotate.py")
        try:
            self._reader = connect(path)
            self._reader.row_factory = sqlite3.Row
            version = int(self._reader.execute("PRAGMA user_version").fetchone()[0])
        except sqlite3.Error as error:
            raise unusable(path, error) from error
        if version != VERSION:
            raise StudyError(
                f"{path} is a store of version {version}, this program knows version {VERSION}: use the program that "
                "made it, or move it away"
            )

    def close(self) -> None:
        with self._reading:
            self._reader.close()

    def check(self, study: Study) -> None:
        """Raises StudyError if an item that is assigned is not in the study, or not what it was: answers would be to
        another question."""
        with self._read() as db:
            check_asked(db, study)

    def identity(self) -> str:
        """What no other study has; "" before this one was opened."""
        found = self._rows("SELECT value FROM study WHERE key = 'id'")
        return str(found[0][0]) if found else ""

    def assigned(self, annotator: str) -> tuple[Assigned, ...]:
        """An annotator's items in their order."""
        rows = self._rows(
            # Counted for all items at once: item by item SQLite may go through all of an annotator's verdicts.
            "WITH asked AS (SELECT item, COUNT(*) AS total FROM propositions GROUP BY item), "
            "said AS (SELECT item, COUNT(*) AS decided FROM verdicts WHERE annotator = ?1 AND "
            "step1 IS NOT NULL AND (step1 <> ?2 OR step2 IS NOT NULL) GROUP BY item) "
            "SELECT a.item, COALESCE(asked.total, 0), COALESCE(said.decided, 0), "
            "EXISTS (SELECT 1 FROM finished f WHERE f.annotator = a.annotator AND f.item = a.item) "
            "FROM assignments a LEFT JOIN asked ON asked.item = a.item LEFT JOIN said ON said.item = a.item "
            "WHERE a.annotator = ?1 ORDER BY a.place, a.item",
            annotator,
            str(Step1.CONSISTENT),
        )
        return tuple(
            Assigned(item=item, decided=decided, total=total, finished=bool(finished))
            for item, total, decided, finished in rows
        )

    def is_assigned(self, annotator: str, item: str) -> bool:
        return bool(self._rows("SELECT 1 FROM assignments WHERE annotator = ? AND item = ?", annotator, item))

    def state(self, annotator: str, item: str) -> ItemState:
        with self._read() as db:
            of = "WHERE annotator = ? AND item = ?"
            rows = db.execute(f"SELECT prop, {_HELD} FROM verdicts {of}", (annotator, item)).fetchall()
            changes = tuple((prop, before) for _, prop, before in open_changes(db, annotator, item))
            ended = db.execute(f"SELECT at FROM finished {of}", (annotator, item)).fetchone()
        verdicts = {row[0]: _held_of(row[1:]) for row in rows}
        return ItemState(verdicts=verdicts, changes=changes, finished="" if ended is None else ended[0])

    def annotators(self) -> tuple[str, ...]:
        """Everybody who has items, by name."""
        rows = self._rows("SELECT DISTINCT annotator FROM assignments ORDER BY annotator")
        return tuple(name for (name,) in rows)

    def verdicts(self) -> tuple[StoredVerdict, ...]:
        """All complete verdicts, by item, proposition and annotator."""
        rows = self._rows(
            f"SELECT annotator, item, prop, {_HELD} FROM verdicts ORDER BY item, prop, annotator"
        )
        found = (
            StoredVerdict(annotator=row[0], item=row[1], prop=row[2], held=_held_of(row[3:])) for row in rows
        )
        return tuple(one for one in found if one.held.verdict.complete)

    def rankings(self, of: tuple[str, str] | tuple[()] = ()) -> tuple[StoredRanking, ...]:
        """All rankings, by item, annotator and kind. of: those of one annotator and one item alone, of which there are
        none before it is finished."""
        where = "WHERE annotator = ? AND item = ? " if of else ""
        rows = self._rows(
            f"SELECT annotator, item, ranking, models, at FROM rankings {where}ORDER BY item, annotator, ranking",
            *of,
        )
        return tuple(
            StoredRanking(
                annotator=annotator,
                item=item,
                ranking=Ranking(ranking),
                models=tuple(json.loads(models)),
                at=at,
            )
            for annotator, item, ranking, models, at in rows
        )

    def adjudications(self) -> Mapping[str, tuple[str, Held]]:
        """Who decided what about disputed propositions, by proposition."""
        rows = self._rows(f"SELECT prop, adjudicator, {_HELD} FROM adjudications")
        return {row[0]: (row[1], _held_of(row[2:])) for row in rows}

    def answer_times(self, annotator: str) -> tuple[str, ...]:
        """When an annotator opened, answered or finished something here, in order; ISO 8601."""
        rows = self._rows(
            f"SELECT at FROM events WHERE annotator = ? AND NOT {_TAKEN_IN} ORDER BY seq", annotator
        )
        return tuple(at for (at,) in rows)

    def taken_in(self, annotator: str) -> int:
        """How many of an annotator's decisions, of propositions and of items to be finished, were made elsewhere."""
        counted = f"SELECT COUNT(*) FROM events WHERE annotator = ? AND item IS NOT NULL AND {_TAKEN_IN}"
        return int(self._rows(counted, annotator)[0][0])

    def _rows(self, query: str, *values: str) -> list[sqlite3.Row]:
        with self._read() as db:
            return db.execute(query, values).fetchall()

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._reading:
            try:
                # One snapshot for all that is asked.
                self._reader.execute("BEGIN")
                try:
                    yield self._reader
                finally:
                    self._reader.execute("COMMIT")
            except sqlite3.Error as error:
                raise unusable(self.path, error) from error


def unusable(path: Path, error: sqlite3.Error) -> StudyError:
    """What to say of a file that SQLite cannot use."""
    return StudyError(
        f"{path} cannot be used as a store of answers ({error}): its folder must be one that you may write to; if the "
        f"file is damaged, put a copy in its place, or what `sqlite3 {path.name} .recover` finds in it, or move it away"
    )


def check_asked(db: sqlite3.Connection, study: Study) -> None:
    for item, digest in db.execute("SELECT item, digest FROM items").fetchall():
        if item not in study.items:
            raise StudyError(f'the item "{item}" was assigned and is no longer in the study: put it back')
        if asked_digest(study, study.items[item]) != digest:
            raise StudyError(
                f'the item "{item}" or its propositions changed after it was assigned: put it back, and add what is '
                "new as another item with an id of its own"
            )


def asked_digest(study: Study, item: Item) -> str:
    """Of what is asked about an item. The reward is not asked about."""
    asked = [
        item.id,
        item.media,
        [[caption.model, caption.text] for caption in item.captions],
        [
            [one.prop_id, one.model, one.ref_model, str(one.kind), one.text]
            for one in study.propositions[item.id]
        ],
    ]
    return digest_of(json.dumps(asked))


def connect(path: Path) -> sqlite3.Connection:
    """A connection whose transactions are on disk when they are committed."""
    # Transactions are begun and ended by name; the module's own would begin later than meant.
    connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    # An acknowledged answer survives the loss of power too, not only of the process.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def held_verdict(db: sqlite3.Connection, annotator: str, prop: str) -> Held:
    return _held_at(db, "verdicts WHERE annotator = ? AND prop = ?", annotator, prop)


def adjudicated(db: sqlite3.Connection, prop: str) -> Held:
    return _held_at(db, "adjudications WHERE prop = ?", prop)


def _held_at(db: sqlite3.Connection, where: str, *key: str) -> Held:
    row = db.execute(f"SELECT {_HELD} FROM {where}", key).fetchone()
    return Held() if row is None else _held_of(row)


def _held_of(row: tuple[str | None, str | None, str, int, str, str]) -> Held:
    """A row of the columns ``_HELD``."""
    step1, step2, note, version, first_at, last_at = row
    return Held(verdict=verdict_of(step1, step2, note), version=version, first_at=first_at, last_at=last_at)


def open_changes(db: sqlite3.Connection, annotator: str, item: str) -> list[tuple[int, str, Verdict]]:
    """What can be undone, the last last: number of the event, proposition, verdict before."""
    rows = db.execute(
        "SELECT seq, field, before FROM events WHERE annotator = ? AND item = ? AND action = 'answer' "
        "AND seq NOT IN (SELECT undoes FROM events WHERE undoes IS NOT NULL) ORDER BY seq",
        (annotator, item),
    ).fetchall()
    return [(seq, field, verdict_of(*json.loads(before))) for seq, field, before in rows]
