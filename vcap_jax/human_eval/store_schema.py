"""The tables of a study's answers. The protocol's rules stand here a second time: whatever a program above does wrong,
no row that breaks one gets into the file.

A verdict is one row for an annotator and a proposition; its ``version`` counts its changes. Rankings and ``finished``
are written once. ``events`` has every change with what was before; nothing in it is ever changed or removed.
"""

from __future__ import annotations

import sqlite3

from vcap_jax.human_eval.protocol import NOTE_CHARACTERS, SUBJECTIVE, Ranking, Step1, Step2

VERSION = 1


def _one_of(column: str, values: type[Step1] | type[Step2] | type[Ranking]) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


_VERDICT = f"""
    step1 TEXT CHECK ({_one_of("step1", Step1)}),
    step2 TEXT CHECK ({_one_of("step2", Step2)}),
    note TEXT NOT NULL CHECK (length(note) <= {NOTE_CHARACTERS}),
    version INTEGER NOT NULL CHECK (version >= 1), first_at TEXT NOT NULL, last_at TEXT NOT NULL,
    CHECK (step2 IS NULL OR step1 IS '{Step1.CONSISTENT}'),
    CHECK (lower(trim(note)) <> '{SUBJECTIVE}' OR step1 IS '{Step1.UNDECIDABLE}')
"""
_COMPLETE = f"v.step1 IS NOT NULL AND (v.step1 <> '{Step1.CONSISTENT}' OR v.step2 IS NOT NULL)"
_SORTED = "(SELECT json_group_array(value) FROM (SELECT value FROM json_each({}) ORDER BY value))"

_TABLES = f"""
CREATE TABLE study (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE items (item TEXT PRIMARY KEY, models TEXT NOT NULL, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE propositions (prop TEXT PRIMARY KEY, item TEXT NOT NULL REFERENCES items) WITHOUT ROWID;
CREATE INDEX propositions_of_item ON propositions (item);
CREATE TABLE assignments (
    annotator TEXT NOT NULL, item TEXT NOT NULL REFERENCES items, place INTEGER NOT NULL,
    PRIMARY KEY (annotator, item)
) WITHOUT ROWID;
CREATE TABLE verdicts (
    annotator TEXT NOT NULL, item TEXT NOT NULL, prop TEXT NOT NULL REFERENCES propositions,
    {_VERDICT},
    PRIMARY KEY (annotator, prop),
    FOREIGN KEY (annotator, item) REFERENCES assignments (annotator, item)
) WITHOUT ROWID;
CREATE INDEX verdicts_of_item ON verdicts (annotator, item);
CREATE TABLE rankings (
    annotator TEXT NOT NULL, item TEXT NOT NULL, ranking TEXT NOT NULL CHECK ({_one_of("ranking", Ranking)}),
    models TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (annotator, item, ranking),
    FOREIGN KEY (annotator, item) REFERENCES assignments (annotator, item)
) WITHOUT ROWID;
CREATE TABLE finished (
    annotator TEXT NOT NULL, item TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (annotator, item),
    FOREIGN KEY (annotator, item) REFERENCES assignments (annotator, item)
) WITHOUT ROWID;
CREATE TABLE adjudications (
    prop TEXT PRIMARY KEY REFERENCES propositions, adjudicator TEXT NOT NULL,
    {_VERDICT},
    CHECK (step1 IS NOT NULL AND (step1 <> '{Step1.CONSISTENT}' OR step2 IS NOT NULL))
) WITHOUT ROWID;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, annotator TEXT NOT NULL, item TEXT, field TEXT NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('open', 'answer', 'undo', 'finish', 'adjudicate', 'import')),
    before TEXT, after TEXT, request TEXT UNIQUE, undoes INTEGER UNIQUE REFERENCES events
);
CREATE INDEX events_of_item ON events (annotator, item);
"""


def _refuse(name: str, when: str, table: str, condition: str, message: str) -> str:
    where = f"WHEN {condition} " if condition else ""
    return (
        f"CREATE TRIGGER {name} BEFORE {when} ON {table} {where}BEGIN SELECT RAISE(ABORT, '{message}'); END;"
    )


_FINISHED = "EXISTS (SELECT 1 FROM finished f WHERE f.annotator = NEW.annotator AND f.item = NEW.item)"
_OTHER_ITEM = "NOT EXISTS (SELECT 1 FROM propositions p WHERE p.prop = NEW.prop AND p.item = NEW.item)"
_UNDECIDED = f"""EXISTS (
    SELECT 1 FROM propositions p WHERE p.item = NEW.item AND NOT EXISTS (
        SELECT 1 FROM verdicts v WHERE v.annotator = NEW.annotator AND v.prop = p.prop AND {_COMPLETE}))"""
_NO_PERMUTATION = (
    f"{_SORTED.format('NEW.models')} IS NOT "
    f"{_SORTED.format('(SELECT i.models FROM items i WHERE i.item = NEW.item)')}"
)
_UNRANKED = (
    "(SELECT COUNT(*) FROM rankings r WHERE r.annotator = NEW.annotator AND r.item = NEW.item) "
    f"<> {len(Ranking)}"
)
_FINAL = "what is finished is final"
_TRIGGERS = (
    _refuse("verdict_in_time", "INSERT", "verdicts", _FINISHED, _FINAL),
    _refuse("verdict_still_open", "UPDATE", "verdicts", _FINISHED, _FINAL),
    _refuse("verdict_of_its_item", "INSERT", "verdicts", _OTHER_ITEM, "the proposition is of another item"),
    _refuse("verdicts_stay", "DELETE", "verdicts", "", "verdicts are not removed"),
    _refuse("ranking_last", "INSERT", "rankings", _UNDECIDED, "captions are ranked after all propositions"),
    _refuse(
        "ranking_strict", "INSERT", "rankings", _NO_PERMUTATION, "a ranking has each caption exactly once"
    ),
    _refuse("ranking_final", "UPDATE", "rankings", "", _FINAL),
    _refuse("rankings_stay", "DELETE", "rankings", "", _FINAL),
    _refuse("finished_ranked", "INSERT", "finished", _UNRANKED, "an item is finished with three rankings"),
    _refuse("finished_once", "UPDATE", "finished", "", _FINAL),
    _refuse("finished_stays", "DELETE", "finished", "", _FINAL),
    _refuse("events_stand", "UPDATE", "events", "", "events are only added"),
    _refuse("events_stay", "DELETE", "events", "", "events are only added"),
)


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the tables in a new file."""
    with connection:
        # Two processes may open a new study at once.
        connection.execute("BEGIN IMMEDIATE")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version == 0 and not connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
            for statement in (*_TABLES.split(";\n"), *_TRIGGERS):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
