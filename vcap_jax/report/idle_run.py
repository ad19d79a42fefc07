"""A run that was ended by a mistake before it had done anything, and may be begun anew in the same folder."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from vcap_jax.system.file_locks import LOCK, alone, free

_NOTES = (
    "config.yaml",
    "elapsed.json",
    "kind.txt",
    "judge.log",
    "judge.json",
    "judge_domain.json",
    "references.json",
    "heldout_references.json",
    "manifest.json",
    "questions.jsonl",
    "trackers.json",
)
"""Files that a run has before it has done anything; those of other processes have a number (judge-1.log)."""
_LOGS = ("metrics.jsonl", "samples.jsonl")
"""Opened when the first step begins. A step that did not end, as where the devices have too little memory, leaves them
empty."""
_TRIES, _BETWEEN_S = 5, 0.05
"""Of taking a lock, which somebody may just be looking at."""
_held: dict[Path, BinaryIO] = {}
"""This process's locks by folder; they end with it."""


def lock(root: Path) -> bool:
    """Takes a run folder for as long as this process lives; False if another process has it.

    Where the file system knows no locks nobody ever has it.
    """
    if root.resolve() in _held:
        return True
    file = (root / LOCK).open("ab")
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_BETWEEN_S)
        if alone(file):
            _held[root.resolve()] = file
            return True
    file.close()
    return False


def deserted(root: Path) -> bool:
    """Whether the process that took a run folder is gone. False also where that cannot be told."""
    return free(root / LOCK)


def idle(root: Path) -> bool:
    """Whether a run, or an undertaking of several, has left nothing but notes and what is rendered in no time: no
    captions, no judgements, no step. What is not known to be such is taken for work."""
    return all(_worthless(entry) for entry in root.iterdir() if not entry.name.startswith("."))


def empty(root: Path) -> None:
    """Removes what an ``idle`` run left."""
    for entry in root.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _worthless(entry: Path) -> bool:
    if entry.name == "data":
        return entry.is_symlink() or (entry.is_dir() and all(map(_rendered, entry.iterdir())))
    if entry.is_symlink():
        return False
    if entry.is_dir():  # empty, or a stage
        return idle(entry)
    if entry.name.startswith("judgements"):
        main = entry.name.removesuffix("-wal").removesuffix("-shm")
        return _without_rows(entry.with_name(main))
    if entry.name in _LOGS:
        return entry.stat().st_size == 0
    return re.sub(r"-\d+(?=\.)", "", entry.name) in _NOTES


def _rendered(split: Path) -> bool:
    """Whether it is a split of the embedded world, or the beginning of one."""
    return split.name.startswith(".") or (split / "scenes.jsonl").is_file()


def _without_rows(database: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            return not any(
                connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone() for (name,) in tables
            )
    except sqlite3.Error:
        return False
