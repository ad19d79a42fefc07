"""A file that several processes write: shared out, written part by part, resumed after a kill, joined by the last one.

Each process grows a part of its own in ``FILE.parts/``, a JSON line at a time. Beside the parts lies the plan: what the
file is made of, so that parts of another one are never taken up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.system.errors import VCapError
from vcap_jax.system.file_locks import alone
from vcap_jax.system.files import drop_torn_end, naming, write_json
from vcap_jax.system.json_values import JsonDict, JsonObject, read_json_object
from vcap_jax.system.shutdown import finishing, raise_if_requested

_PLAN = "plan.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Which of how many processes this is."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard {self.index} of {self.count}: the first is 0, the last {self.count - 1}")

    def span(self, items: int) -> tuple[int, int]:
        """This process's first index and the one after its last: all of one size but the last, and whatever there is
        none left for."""
        size = -(-items // self.count)
        return min(self.index * size, items), min((self.index + 1) * size, items)


def parts_folder(path: Path) -> Path:
    """Where the parts of the file lie until it is complete."""
    return path.with_name(path.name + ".parts")


def earlier_file(path: Path) -> Path:
    """Where the joined file is put aside when what failed in it is tried again."""
    return path.with_name(path.name + ".earlier")


def part_file(parts: Path, name: str, shard: Shard) -> Path:
    """The part of one process. name: of what it holds, where a file has several kinds of rows."""
    return parts / f"{name}-{shard.index:05d}-of-{shard.count:05d}.jsonl"


def partial_file(part: Path) -> Path:
    """The part while it grows."""
    return part.with_name(part.name + ".partial")


def check_plan(
    parts: Path,
    wanted: JsonObject,
    *,
    what: str,
    error: type[VCapError],
    taken_as: Callable[[JsonDict], JsonDict] = dict,
) -> None:
    """Makes the folder of parts and its plan, or sees that the parts in it are of the same plan.

    wanted: has "writer", who writes it. what: the file is called in the message. taken_as: what a plan that is there
    counts as. Raises ``error`` for another plan.
    """
    parts.mkdir(parents=True, exist_ok=True)
    plan = parts / _PLAN
    wanted = as_read(wanted)
    if not plan.exists():
        write_json(plan, wanted)
    begun = taken_as(read_json_object(plan))
    if begun != wanted:
        raise error(
            f"the {what} begun in {parts} is by {begun.get('writer')} and was to be another one "
            f"({differing(begun, wanted)} differ): remove the folder, or give another path"
        )


def as_read(value: Mapping[str, object]) -> JsonDict:
    """As it comes back from JSON, where tuples are lists."""
    read: JsonDict = json.loads(json.dumps(value))
    return read


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """The names of what differs, sections by their inner names."""
    names: list[str] = []
    for name in dict.fromkeys((*one, *other)):
        a, b = one.get(name), other.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            names += [f"{name}.{inner}" for inner in dict.fromkeys((*a, *b)) if a.get(inner) != b.get(inner)]
        elif a != b:
            names.append(name)
    return ", ".join(names)


@contextmanager
def held(part: Path, error: type[VCapError]) -> Iterator[None]:
    """The part for this process alone, from before it is read until it has its name.

    Raises ``error`` if another process has it: what one has just written the other would take for torn.
    """
    with partial_file(part).open("a") as file:
        if not alone(file):
            raise error(
                f"another process is writing {part}: wait until it has ended, or share the work out (--shard)"
            )
        yield


def grow(part: Path, rows: Iterable[Mapping[str, object]], *, stopped: Callable[[], str]) -> None:
    """Appends ``rows`` to the part as they come, each safe once it is written, and gives it its name at the end.

    rows: end early when a signal has come (``shutdown.requested``). stopped: says how far it came, for the message
    of Stopped, which is raised then.
    """
    partial = partial_file(part)
    with partial.open("a", encoding="utf-8") as file, finishing("each caption in work"):
        for row in rows:
            with naming(partial):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
        raise_if_requested(stopped())
    partial.rename(part)


def whole_rows(path: Path) -> Iterator[JsonDict]:
    """The rows of a part that may have been torn in the middle of a line, which is cut away; none without a file."""
    drop_torn_end(path)
    if path.exists():
        with path.open("rb") as lines:
            for line in lines:
                row: JsonDict = json.loads(line)
                yield row
