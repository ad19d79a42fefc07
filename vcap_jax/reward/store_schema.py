"""The tables of a store of judgements, and how a store of the version before becomes one of today.

Version 2 knew a candidate by step, sample and place in its group, so of a sample that occurred several times in a step
only the group that was scored last is in it. Since version 3 a candidate also knows its group's place in the step.
"""

from __future__ import annotations

import sqlite3

VERSION = 3
READABLE = (2, VERSION)
"""Versions that can be read as they are; opening a store to write makes it today's."""
UNKNOWN_GROUP = -1
"""Place of the group of a candidate that version 2 wrote."""

_JUDGEMENTS = """
CREATE TABLE IF NOT EXISTS judgements (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, instruction TEXT NOT NULL, version TEXT NOT NULL,
    media TEXT NOT NULL, reference TEXT, candidate TEXT NOT NULL,
    answer TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL, tries INTEGER NOT NULL, stored_at REAL NOT NULL
) WITHOUT ROWID
"""
_CANDIDATES = """
CREATE TABLE candidates (
    step INTEGER NOT NULL, sample_id TEXT NOT NULL, group_place INTEGER NOT NULL, place INTEGER NOT NULL,
    caption TEXT NOT NULL, family TEXT NOT NULL, components TEXT NOT NULL, verdicts TEXT NOT NULL, reward REAL,
    PRIMARY KEY (step, sample_id, group_place, place)
) WITHOUT ROWID
"""
_FROM_VERSION_2 = (
    "ALTER TABLE candidates RENAME TO candidates_of_version_2",
    _CANDIDATES,
    f"""
    INSERT INTO candidates
    SELECT step, sample_id, {UNKNOWN_GROUP}, place, caption, family, components, verdicts, reward
    FROM candidates_of_version_2
    """,
    "DROP TABLE candidates_of_version_2",
)


def version_of(connection: sqlite3.Connection) -> int:
    """Of the open store; 0 for a file that is none yet."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def prepare(connection: sqlite3.Connection) -> int:
    """Makes the tables, or brings those of version 2 up to date; the version the store has then.

    One transaction, so a process that is killed leaves the store as it was. A store of a version that is not known here
    stays as it is.
    """
    if version_of(connection) in (0, 2):
        # Locked first: another process may be about to do the same, and whoever comes second finds it done.
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            found = version_of(connection)
            if found in (0, 2):
                for statement in (_JUDGEMENTS, *_candidates(connection), f"PRAGMA user_version = {VERSION}"):
                    connection.execute(statement)
    return version_of(connection)


def _candidates(connection: sqlite3.Connection) -> tuple[str, ...]:
    """A store of version 2 that its program was killed at making has tables, and no version yet."""
    there = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'candidates'")
    return _FROM_VERSION_2 if there.fetchone() else (_CANDIDATES,)
