"""A study's answers on disk (SQLite). What a method has returned is on disk, and no kill of the process loses it.

One connection writes and one reads, each for one thread at a time; methods may be called from any thread. Changes carry
the version that was seen, so that two tabs of one annotator do not overwrite each other, and the name of the request,
so that one that is sent again is done once.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from vcap_jax.human_eval.answers import (
    IMPORT,
    Held,
    StoredAnswers,
    adjudicated,
    asked_digest,
    check_asked,
    connect,
    held_verdict,
    open_changes,
    unusable,
)
from vcap_jax.human_eval.assignment import assign
from vcap_jax.human_eval.errors import Conflict, RuleBroken, StudyError
from vcap_jax.human_eval.protocol import Ranking, Verdict, check_rankings
from vcap_jax.human_eval.store_schema import prepare
from vcap_jax.human_eval.study import Settings, Study, write_settings


def utc_now() -> str:
    """ISO 8601 with milliseconds, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class GivenElsewhere:
    """What an annotator has said about an item in another tool. verdicts: by proposition; rankings: the best model
    first, None where the item is not finished; ranked_at: when, if that is known."""

    annotator: str
    item: str
    verdicts: Mapping[str, Held]
    rankings: Mapping[Ranking, Sequence[str]] | None
    ranked_at: str = ""


class AnswerStore(StoredAnswers):
    """An open store. now: gives the time of a change, for tests.

    Raises StudyError for a file that cannot be used.
    """

    def __init__(self, path: Path, *, now: Callable[[], str] = utc_now) -> None:
        try:
            self._writer = connect(path)
            prepare(self._writer)
        except sqlite3.Error as error:
            raise unusable(path, error) from error
        super().__init__(path)
        self._now = now
        self._writing = threading.Lock()

    def close(self) -> None:
        """Closes the file. What was acknowledged is in it."""
        super().close()
        with self._writing:
            self._writer.close()

    def open_study(self, study: Study) -> None:
        """Takes in the study's items, propositions and people; assigns the items that nobody has yet.

        Its settings are kept in study.json with that and not before: what is refused changes nothing. Raises
        StudyError if an item that is assigned, or the seed, is not what it was: answers would be to another question.
        """
        settings = study.settings
        with self._transaction() as db:
            row = db.execute("SELECT value FROM study WHERE key = 'seed'").fetchone()
            if row is not None and int(row[0]) != settings.seed:
                raise StudyError(
                    f"the study was begun with the seed {row[0]}, and study.json says {settings.seed}: put {row[0]} "
                    "back, or captions would be shown in another order"
                )
            for key, value in (("seed", str(settings.seed)), ("id", secrets.token_hex(8))):
                db.execute("INSERT INTO study VALUES (?, ?) ON CONFLICT DO NOTHING", (key, value))
            check_asked(db, study)
            for item in study.items.values():
                models = json.dumps(item.models, ensure_ascii=False)
                row_of_item = (item.id, models, asked_digest(study, item))
                db.execute("INSERT INTO items VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row_of_item)
                for one in study.propositions[item.id]:
                    row_of = (one.prop_id, item.id)
                    db.execute("INSERT INTO propositions VALUES (?, ?) ON CONFLICT DO NOTHING", row_of)
            self._assign(db, study)
            write_settings(study.folder, settings)

    def _assign(self, db: sqlite3.Connection, study: Study) -> None:
        """Where other people are named than have items, or another overlap, or nobody has begun at all, items that
        nobody has begun are assigned anew. Who is named no more and only looked at an item has not begun it."""
        settings = study.settings
        noted = db.execute("SELECT value FROM study WHERE key = 'overlap'").fetchone()
        overlap = _overlap(settings)
        db.execute("INSERT OR REPLACE INTO study VALUES ('overlap', ?)", (overlap,))
        people, marks = settings.annotators, ", ".join("?" * len(settings.annotators))
        begun = (
            f"SELECT item FROM events WHERE item IS NOT NULL AND (action <> 'open' OR annotator IN ({marks}))"
        )
        named = {annotator for (annotator,) in db.execute("SELECT DISTINCT annotator FROM assignments")}
        changed = named != set(people) or noted != (overlap,)
        if changed or db.execute(f"{begun} LIMIT 1", people).fetchone() is None:
            db.execute(f"DELETE FROM assignments WHERE item NOT IN ({begun})", people)
        freed = self._taken_from_the_gone(db, people)
        taken = {item for (item,) in db.execute("SELECT DISTINCT item FROM assignments")} | set(freed)
        load = dict(db.execute("SELECT annotator, COUNT(*) FROM assignments GROUP BY annotator"))
        last = dict(db.execute("SELECT annotator, MAX(place) FROM assignments GROUP BY annotator"))
        for item in freed:  # the second opinions that somebody who is gone was to give
            has = {who for (who,) in db.execute("SELECT annotator FROM assignments WHERE item = ?", (item,))}
            if free := [who for who in people if who not in has]:
                who = min(free, key=lambda name: load.get(name, 0))
                load[who], last[who] = load.get(who, 0) + 1, last.get(who, -1) + 1
                db.execute("INSERT INTO assignments VALUES (?, ?, ?)", (who, item, last[who]))
        given = assign(
            [item for item in study.items if item not in taken],
            people,
            overlap=settings.overlap,
            overlap_size=settings.overlap_size,
            seed=settings.seed,
            load=load,
        )
        for annotator, items in given.items():
            first = last.get(annotator, -1) + 1
            rows = [(annotator, item, first + place) for place, item in enumerate(items)]
            db.executemany("INSERT INTO assignments VALUES (?, ?, ?)", rows)

    def _taken_from_the_gone(self, db: sqlite3.Connection, named: Sequence[str]) -> list[str]:
        """Takes from who is named no more the items that they have not begun, though others have; the items."""
        marks = ", ".join("?" * len(named))
        theirs = (
            f"annotator NOT IN ({marks}) AND NOT EXISTS (SELECT 1 FROM events e WHERE "
            "e.annotator = assignments.annotator AND e.item = assignments.item AND e.action <> 'open')"
        )
        rows = db.execute(
            f"SELECT item FROM assignments WHERE {theirs} ORDER BY item", tuple(named)
        ).fetchall()
        db.execute(f"DELETE FROM assignments WHERE {theirs}", tuple(named))
        return [item for (item,) in rows]

    # -- answers ---------------------------------------------------------------------------------------------

    def opened(self, annotator: str, item: str) -> None:
        """Notes that an annotator began to look at an item: the time of the first answer counts from there."""
        with self._transaction() as db:
            self._event(db, annotator, item, "", "open")

    def answer(
        self, annotator: str, item: str, prop: str, verdict: Verdict, *, version: int, request: str
    ) -> Held:
        """Stores what an annotator says of a proposition. version: of what was seen, 0 for nothing.

        Raises Conflict if it has another version by now, RuleBroken for what the protocol does not allow.
        """
        with self._transaction() as db:
            before = held_verdict(db, annotator, prop)
            if self._seen(db, annotator, request):
                return before
            if before.version != version:
                raise Conflict("this answer was changed elsewhere, as in another tab: look at it again")
            asked = (annotator, item, prop)
            self._event(db, *asked, "answer", before=before.verdict, after=verdict, request=request)
            return self._put(db, *asked, verdict, before)

    def undo(self, annotator: str, item: str, prop: str, *, version: int, request: str) -> Held:
        """Takes the last change of an item back, which must be one of ``prop``; returns what it was before.

        Raises Conflict if another change was the last, RuleBroken once the item is finished.
        """
        with self._transaction() as db:
            held = held_verdict(db, annotator, prop)
            if self._seen(db, annotator, request):
                return held
            changes = open_changes(db, annotator, item)
            if not changes or changes[-1][1] != prop or held.version != version:
                raise Conflict("the last change is another one by now, as by another tab: look at it again")
            seq, _, before = changes[-1]
            asked = (annotator, item, prop)
            self._event(db, *asked, "undo", before=held.verdict, after=before, request=request, undoes=seq)
            return self._put(db, *asked, before, held)

    def finish(
        self, annotator: str, item: str, rankings: Mapping[Ranking, Sequence[str]], *, request: str
    ) -> None:
        """Stores an annotator's three rankings, best model first, and with them ends the item for good.

        Raises RuleBroken if a proposition is not decided, a ranking is no strict permutation, or it is finished.
        """
        with self._transaction() as db:
            self._finish(db, annotator, item, rankings, request)

    def _finish(
        self,
        db: sqlite3.Connection,
        annotator: str,
        item: str,
        rankings: Mapping[Ranking, Sequence[str]],
        request: str,
        at: str = "",
    ) -> None:
        if self._seen(db, annotator, request):
            return
        models = json.loads(db.execute("SELECT models FROM items WHERE item = ?", (item,)).fetchone()[0])
        props = db.execute("SELECT prop FROM propositions WHERE item = ?", (item,)).fetchall()
        check_rankings(rankings, models, [held_verdict(db, annotator, prop).verdict for (prop,) in props])
        done = db.execute("SELECT 1 FROM finished WHERE annotator = ? AND item = ?", (annotator, item))
        if done.fetchone():
            raise RuleBroken("rankings are given once: this item is finished")
        at = at or self._now()
        for ranking, order in rankings.items():
            row = (annotator, item, str(ranking), json.dumps(list(order), ensure_ascii=False), at)
            db.execute("INSERT INTO rankings VALUES (?, ?, ?, ?, ?)", row)
        db.execute("INSERT INTO finished VALUES (?, ?, ?)", (annotator, item, at))
        self._event(db, annotator, item, "rankings", "finish", request=request)

    def adjudicate(self, adjudicator: str, prop: str, verdict: Verdict, *, version: int) -> Held:
        """Stores what a third person decides about a disputed proposition. Raises Conflict and RuleBroken."""
        if not verdict.complete:
            raise RuleBroken("an adjudication answers both steps")
        with self._transaction() as db:
            before = adjudicated(db, prop)
            if before.version != version:
                raise Conflict("this was adjudicated elsewhere, as in another tab: look at it again")
            held = Held(verdict=verdict, version=version + 1, first_at=before.first_at)
            self._adjudicate(db, prop, adjudicator, held)
            self._event(db, adjudicator, None, prop, "adjudicate", before=before.verdict, after=verdict)
            return adjudicated(db, prop)

    def take_in(self, given: Sequence[GivenElsewhere], decided: Mapping[str, tuple[str, Held]]) -> None:
        """Stores what was said elsewhere, all of it or nothing; an item with rankings is finished.

        Items become their annotators'. decided: by whom and what, about disputed propositions. Raises Conflict for what
        was answered or decided here, RuleBroken for what the protocol does not allow.
        """
        with self._transaction() as db:
            for one in given:
                self._take_in(db, one)
            for prop, (who, held) in decided.items():
                if db.execute("SELECT 1 FROM adjudications WHERE prop = ?", (prop,)).fetchone():
                    raise Conflict(f'"{prop}" is adjudicated here already: nothing was taken in')
                self._adjudicate(db, prop, who, replace(held, version=1))
                self._event(db, who, None, prop, "import", after=held.verdict)

    def _adjudicate(self, db: sqlite3.Connection, prop: str, who: str, held: Held) -> None:
        at, verdict = self._now(), held.verdict
        row = (*(prop, who, verdict.step1, verdict.step2, verdict.note), held.version)
        times = (held.first_at or at, held.last_at or at)
        db.execute("INSERT OR REPLACE INTO adjudications VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, *times))

    def _take_in(self, db: sqlite3.Connection, one: GivenElsewhere) -> None:
        who = (one.annotator, one.item)
        for table in ("verdicts", "finished"):
            if db.execute(f"SELECT 1 FROM {table} WHERE annotator = ? AND item = ?", who).fetchone():
                raise Conflict(
                    f'{one.annotator} has answers to "{one.item}" here already: they stay, and nothing was taken in'
                )
        count = "SELECT COUNT(*) FROM assignments WHERE annotator = ?"
        place = db.execute(count, (one.annotator,)).fetchone()[0]
        db.execute("INSERT INTO assignments VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (*who, place))
        for prop, held in one.verdicts.items():
            self._event(db, *who, prop, "import", after=held.verdict)
            self._put(db, *who, prop, held.verdict, Held(first_at=held.first_at), held.last_at)
        if one.rankings is not None:
            self._finish(db, *who, one.rankings, f"{IMPORT}{one.annotator} {one.item}", one.ranked_at)

    def _put(
        self,
        db: sqlite3.Connection,
        annotator: str,
        item: str,
        prop: str,
        verdict: Verdict,
        before: Held,
        at: str = "",
    ) -> Held:
        at = at or self._now()
        values = (verdict.step1, verdict.step2, verdict.note, before.version + 1, before.first_at or at, at)
        db.execute(
            "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (annotator, prop) DO UPDATE SET "
            "step1 = excluded.step1, step2 = excluded.step2, note = excluded.note, version = excluded.version, "
            "last_at = excluded.last_at",
            (annotator, item, prop, *values),
        )
        return held_verdict(db, annotator, prop)

    def _seen(self, db: sqlite3.Connection, annotator: str, request: str) -> bool:
        row = db.execute("SELECT annotator FROM events WHERE request = ?", (request,)).fetchone()
        if row is not None and row[0] != annotator:
            raise Conflict("another annotator's request has this name")
        return row is not None

    def _event(
        self,
        db: sqlite3.Connection,
        annotator: str,
        item: str | None,
        field: str,
        action: str,
        *,
        before: Verdict | None = None,
        after: Verdict | None = None,
        request: str | None = None,
        undoes: int | None = None,
    ) -> None:
        row = (self._now(), annotator, item, field, action, _packed(before), _packed(after), request, undoes)
        db.execute(
            "INSERT INTO events (at, annotator, item, field, action, before, after, request, undoes) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything inside is on disk when it is left, or nothing of it is there."""
        with self._writing:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                except BaseException:
                    self._writer.execute("ROLLBACK")
                    raise
                self._writer.execute("COMMIT")
            except sqlite3.IntegrityError as error:
                raise RuleBroken(str(error)) from error
            except sqlite3.Error as error:
                raise StudyError(f"{self.path} cannot be written ({error}): is the disk full?") from error


def _overlap(settings: Settings) -> str:
    """How many decide how much."""
    return json.dumps([settings.overlap, settings.overlap_size])


def _packed(verdict: Verdict | None) -> str | None:
    if verdict is None:
        return None
    return json.dumps([verdict.step1, verdict.step2, verdict.note], ensure_ascii=False)
