"""A run is a folder: its configuration, metrics, checkpoints, samples, plots and summary.

``config.yaml`` is the configuration that the run was last started with. Where a resumed run is given other settings,
which only those may be that decide no result, the ones before are kept as ``config-1.yaml``, ``config-2.yaml`` and so
on, with the step and the time up to which they held.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import overload

import yaml

from vcap_jax.configuration import dump_config, parse_yaml
from vcap_jax.report.idle_run import empty, idle, lock
from vcap_jax.report.step_log import read_rows
from vcap_jax.system.errors import VCapError
from vcap_jax.system.file_locks import LOCK
from vcap_jax.system.files import replace_file, taken_for_a_pattern, write_json
from vcap_jax.system.json_values import (
    JsonDict,
    JsonError,
    JsonObject,
    JsonValue,
    as_number,
    as_object,
    read_json_object,
)

logger = logging.getLogger(__name__)


class RunFolderError(VCapError, RuntimeError):
    """A run folder that cannot be used as asked; the message says what to do instead."""


@dataclass(frozen=True)
class _Found:
    """What lies in a folder: anything at all, the configuration there, how that differs from the one given."""

    used: bool = False
    then: JsonObject = field(default_factory=dict)
    differing: tuple[str, ...] = ()


_NOTED_EVERY_S = 60.0
"""How often a run's seconds are noted: a process that is killed loses no more of them."""


class _In:
    """The path of that name in a folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, folder: None, kind: type[RunFolder]) -> _In: ...

    @overload
    def __get__(self, folder: RunFolder, kind: type[RunFolder]) -> Path: ...

    def __get__(self, folder: RunFolder | None, kind: type[RunFolder]) -> Path | _In:
        # Of the class it is itself: so the site's reference finds it.
        return self if folder is None else folder.root / self.name


@dataclass(frozen=True)
class RunFolder:
    """Where everything of a run lies. ``resumed`` tells whether the folder held a run when it was opened: one that was
    new is good for one start, and is opened again to go on. ``data`` is where an embedded world renders its files,
    ``own_references`` the pool that its starting policy wrote."""

    root: Path
    resumed: bool = False

    config = _In("config.yaml")
    """Path of the settings of the last start."""
    kind = _In("kind.txt")
    metrics = _In("metrics.jsonl")
    """Path of a row for each step."""
    summary = _In("summary.json")
    """Path of what the run came to, written at its end."""
    checkpoints = _In("checkpoints")
    """Folder of the checkpoints."""
    samples = _In("samples.jsonl")
    samples_page = _In("samples.html")
    """Path of the page of captions with their scores."""
    plots = _In("plots.png")
    """Path of the curves."""
    comparison_plot = _In("comparison.png")
    profile = _In("profile")
    data = _In("data")
    own_references = _In("references/train.jsonl")

    @property
    def title(self) -> str:
        """The run's name on its pages: the folder's, after that of the folder around it. No more of the path, since
        pages are given to others."""
        return "/".join(self.root.resolve().parts[-2:])

    def before_after_page(self, evaluator: str) -> Path:
        """Held-out samples before and after, by the evaluator of that name."""
        return self.root / (
            "before_after.html" if evaluator == "judged" else f"before_after-{evaluator}.html"
        )

    def evaluation(self, name: str) -> Path:
        """Where the evaluator of that name keeps what it captioned and found."""
        return self.root / "evaluations" / name

    @contextmanager
    def counting_seconds(self, *, noted: bool = True) -> Iterator[Callable[[], float]]:
        """Counts this process's seconds while the block lasts, and notes them every minute, since it may be killed, and
        at its end. Gives a function that tells the seconds so far, those of the run's earlier processes included.
        noted: else nothing is written, as several processes must not."""
        path, begin = self.root / "elapsed.json", time.monotonic()
        before = 0.0
        if path.exists():
            try:
                before = float(as_number(read_json_object(path).get("seconds"), f"{path}: seconds"))
            except JsonError as error:
                logger.warning("%s: the run's seconds count from here", error)

        def seconds() -> float:
            return before + time.monotonic() - begin

        if not noted:
            yield seconds
            return
        ended = threading.Event()

        def note_now_and_then() -> None:
            while not ended.wait(_NOTED_EVERY_S):
                with suppress(OSError):  # of a full disk, perhaps: what trains tells it
                    write_json(path, {"seconds": seconds()})

        noting = threading.Thread(target=note_now_and_then, name="seconds", daemon=True)
        noting.start()
        try:
            yield seconds
        finally:
            ended.set()
            noting.join()
            try:
                write_json(path, {"seconds": seconds()})
            except OSError as error:
                # What has ended the run is worth more than its seconds.
                logger.warning("%s: not written: %s", path, error)

    @property
    def begun(self) -> bool:
        """Whether there is a run that has done some work, which would be lost if it began anew."""
        return self.config.exists() and not idle(self.root)

    def claim(self, kind: str) -> None:
        """Marks what is done here ("training", "supervised", or of several runs "self-improvement", "distillation"): to
        go on by another command would mix two.

        Raises RunFolderError if the folder is another kind's, or was opened as new and holds steps of a run by now.
        """
        if not self.resumed and self._has_steps:
            raise RunFolderError(
                f"{self.root} was new when it was opened, and holds steps of a run by now, which would be done anew: "
                f"open it again with RunFolder.open({str(self.root)!r}, config, resume=True) to go on with that run, "
                "or open another folder"
            )
        path = self.kind
        if not path.exists():
            replace_file(path, f"{kind}\n".encode())
        there = path.read_text(encoding="utf-8").strip()
        if not there:
            raise RunFolderError(f"{path} is empty: put the file back, or remove it")
        if there != kind:
            raise RunFolderError(
                f"the run in {self.root} is {there}, this command's is {kind}: go on with the command that began it, "
                "or choose another folder"
            )

    @property
    def _has_steps(self) -> bool:
        if self.metrics.exists() and self.metrics.stat().st_size:
            return True
        return self.checkpoints.is_dir() and any(path.name.isdigit() for path in self.checkpoints.iterdir())

    @classmethod
    def open(
        cls,
        root: str | Path,
        config: object,
        *,
        resume: bool = False,
        may_differ: Collection[str] = (),
        unkept: Collection[str] = (),
        remedies: Mapping[str, str] | None = None,
    ) -> RunFolder:
        """Makes the folder of a new run, or opens that of a run to go on with, and writes the configuration.

        A run that was ended by a mistake before it had done any work is no run to go on with: the folder is taken over,
        with whatever configuration, unless another process is at work in it.

        Args:
            root: the folder; its parents are made.
            config: the resolved configuration, a dataclass.
            resume: go on with the run that lies there. A folder without one (a run killed at its start)
                begins anew, with ``resumed`` False.
            may_differ: dotted keys, or sections, that a resumed run may change, such as how often it reports.
            unkept: those of them whose earlier values are of no interest.
            remedies: dotted key -> what to do instead of changing it.

        Raises:
            RunFolderError: checkpoints could not be read under its name; the folder is not empty and ``resume``
                was not given; it holds something that is no run; the configuration differs in keys that make it
                another run, all of which are named, with both values; or another process is at work in it.
        """
        folder = cls(Path(root))
        root, found = folder.root, folder._found(config, may_differ)
        if folder._begins_anew(found, resume) and lock(root):
            empty(root)
            logger.info("%s held a run that had not done anything yet: it is begun anew", root)
            found = _Found()
        folder._refuse(found, resume, remedies or {})
        root.mkdir(parents=True, exist_ok=True)
        if not lock(root):
            raise RunFolderError(
                f"another process is at work in {root}: wait until it has ended, or end it, or choose another folder"
            )
        text = dump_config(config)
        now = as_object(parse_yaml(text), type(config).__name__)
        if found.used and differences(found.then, now, unkept):
            folder._keep_config()
        replace_file(folder.config, text.encode())
        return cls(root, resumed=found.used)

    def check_resumption(
        self, config: object, *, may_differ: Collection[str] = (), remedies: Mapping[str, str] | None = None
    ) -> bool:
        """Whether ``open`` would go on with a run here; nothing is written, and nobody kept from the folder.

        Raises RunFolderError as ``open`` with ``resume`` would, but for a process that is at work in the folder.
        """
        found = self._found(config, may_differ)
        if self._begins_anew(found, resume=True):
            return False
        self._refuse(found, True, remedies or {})
        return found.used

    def _found(self, config: object, may_differ: Collection[str]) -> _Found:
        """What lies here beside ``config``. Raises RunFolderError for a place that can be no run's."""
        if self.root.exists() and not self.root.is_dir():
            raise RunFolderError(f"{self.root} is a file; name a folder")
        if (wrong := taken_for_a_pattern(self.root)) is not None:
            raise RunFolderError(f"{wrong}; choose another name")
        # A leading dot marks the leftovers of a process killed while it wrote: they are no run.
        if not self.root.is_dir() or all(entry.name.startswith(".") for entry in self.root.iterdir()):
            return _Found()
        if not self.config.exists():
            return _Found(used=True)
        then = self.written_config()
        now = as_object(parse_yaml(dump_config(config)), type(config).__name__)
        return _Found(True, then, tuple(differences(then, now, may_differ)))

    def _begins_anew(self, found: _Found, resume: bool) -> bool:
        """Whether a run lies here that had done nothing yet, and is not the one that is asked for."""
        return bool(self._opened and (found.differing or not resume) and not self.begun)

    @property
    def _opened(self) -> bool:
        """Whether it was ``open`` that made the configuration here, and not a person."""
        return self.config.exists() and (self.root / LOCK).exists()

    def _refuse(self, found: _Found, resume: bool, remedies: Mapping[str, str]) -> None:
        if found.used and self.config.exists() and not (self.begun or self._opened):
            raise RunFolderError(
                f"{self.config} was written by no run, and a run would replace it: choose another folder, or put the "
                "file elsewhere"
            )
        if found.used and not self.config.exists():
            raise RunFolderError(f"{self.root} has no config.yaml, so it is not a run; choose another folder")
        if found.used and not resume:
            raise RunFolderError(
                f"{self.root} is not empty. Add --resume to go on with the run there, or choose another folder "
                f"with --run-dir; to start over, remove it: rm -r {shlex.quote(str(self.root))}"
            )
        if found.differing:
            raise _other_run(self.root, found.differing, remedies)

    def written_config(self) -> JsonDict:
        """The configuration that the run was last started with, as it was written; empty where there is none. Raises
        RunFolderError for a damaged file."""
        if not self.config.exists():
            return {}
        try:
            return as_object(parse_yaml(self.config.read_text(encoding="utf-8")), str(self.config))
        except (yaml.YAMLError, UnicodeDecodeError, JsonError) as error:
            raise RunFolderError(
                f"{self.config} is damaged ({' '.join(str(error).split())}): put it back from a copy, or write it "
                "anew: what the command that began the run prints with --print-config"
            ) from error

    def _keep_config(self) -> None:
        """Copies config.yaml to the next free number."""
        number = 1
        while (kept := self.root / f"config-{number}.yaml").exists():
            number += 1
        rows = read_rows(self.metrics)
        step, time = rows[-1]["step"] if rows else 0, datetime.now(UTC).isoformat(timespec="seconds")
        replace_file(kept, f"# Held up to step {step}, {time}.\n".encode() + self.config.read_bytes())


def _other_run(root: Path, differing: Sequence[str], remedies: Mapping[str, str]) -> RunFolderError:
    keys = [line.partition(":")[0] for line in differing]
    advice = list(dict.fromkeys(remedies[key] for key in keys if key in remedies))
    if any(key not in remedies for key in keys):
        advice.append("Set these back, or start a new run in another folder.")
    first = f"the run in {root} cannot be resumed with another configuration:"
    return RunFolderError("\n".join(["\n  - ".join([first, *differing]), *advice]))


def differences(then: JsonObject, now: JsonObject, may_differ: Collection[str] = ()) -> list[str]:
    """One line for each dotted key whose value is not the same in two plain configurations."""
    old, new = dict(flat_settings(then)), dict(flat_settings(now))
    lines = []
    for key in dict.fromkeys([*old, *new]):
        if within(key, may_differ):
            continue
        if key not in new or key not in old or not _same(old[key], new[key]):
            was = repr(old[key]) if key in old else "absent"
            is_now = repr(new[key]) if key in new else "absent"
            lines.append(f"{key}: {was} then, {is_now} now")
    return lines


def flat_settings(section: JsonObject, prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Every setting of a plain configuration by its dotted key."""
    for key, value in section.items():
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            value = {str(number): item for number, item in enumerate(value)}  # a list of sections
        if isinstance(value, Mapping) and value:
            yield from flat_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def within(key: str, names: Collection[str]) -> bool:
    """Whether a dotted key is one of the names, or inside of a section that is."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _same(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)  # NaN is the same as NaN
