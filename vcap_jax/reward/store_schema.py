"""The tables of a store of judgements."""

from __future__ import annotations

import sqlite3

VERSION = 3

_JUDGEMENTS = """
CREATE TABLE judgements (
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


def version_of(connection: sqlite3.Connection) -> int:
    """Of the open store; 0 for a file that is none yet."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def prepare(connection: sqlite3.Connection) -> int:
    """Makes the tables where there is no store yet, in one transaction; the version the store has then."""
    if version_of(connection) == 0:
        # Locked first: another process may be about to do the same, and whoever comes second finds it done.
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            if version_of(connection) == 0:
                for statement in (_JUDGEMENTS, _CANDIDATES, f"PRAGMA user_version = {VERSION}"):
                    connection.execute(statement)
    return version_of(connection)
