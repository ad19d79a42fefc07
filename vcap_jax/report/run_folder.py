"""A run is a folder: its configuration, metrics, checkpoints, samples, plots and summary."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcap_jax.configuration import dump_config, parse_yaml
from vcap_jax.errors import VCapError
from vcap_jax.report.step_log import replace_file


class RunFolderError(VCapError, RuntimeError):
    """A run folder that cannot be used as asked; the message says what to do instead."""


@dataclass(frozen=True)
class RunFolder:
    """Where everything of a run lies. ``resumed`` tells whether the folder held a run when it was opened."""

    root: Path
    resumed: bool = False

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.root / "samples.jsonl"

    @property
    def samples_page(self) -> Path:
        return self.root / "samples.html"

    @property
    def plots(self) -> Path:
        return self.root / "plots.png"

    @property
    def comparison_plot(self) -> Path:
        return self.root / "comparison.png"

    @property
    def data(self) -> Path:
        """Where an embedded world renders its files."""
        return self.root / "data"

    def claim(self, kind: str) -> None:
        """Marks what is done here ("training", "supervised"): to go on by the other command would mix two runs.

        Raises RunFolderError if the folder is another kind's.
        """
        path = self.root / "kind.txt"
        if not path.exists():
            replace_file(path, f"{kind}\n".encode())
        there = path.read_text(encoding="utf-8").strip()
        if there != kind:
            raise RunFolderError(
                f"the run in {self.root} is {there}, this command's is {kind}: go on with the command that began it, "
                "or choose another folder"
            )

    @classmethod
    def open(
        cls, root: str | Path, config: Any, *, resume: bool = False, may_differ: Collection[str] = ()
    ) -> RunFolder:
        """Makes the folder of a new run, or opens that of a run to go on with, and writes the configuration.

        Args:
            root: the folder; its parents are made.
            config: the resolved configuration, a dataclass.
            resume: go on with the run that lies there. A folder without one (a run killed at its start)
                begins anew, with ``resumed`` False.
            may_differ: dotted keys, or sections, that a resumed run may change, such as how often it reports.

        Raises:
            RunFolderError: the folder is not empty and ``resume`` was not given; it holds something that is
                no run; or the configuration differs in keys that make it another run; all are named, with
                both values.
        """
        root = Path(root)
        if root.exists() and not root.is_dir():
            raise RunFolderError(f"{root} is a file; name a folder with --run-dir")
        folder = cls(root)
        # A leading dot marks the leftovers of a process killed while it wrote: they are no run.
        used = root.is_dir() and any(not entry.name.startswith(".") for entry in root.iterdir())
        if used and not resume:
            raise RunFolderError(
                f"{root} is not empty. Add --resume to go on with the run there, or choose another folder "
                f"with --run-dir; to start over, remove it: rm -r {shlex.quote(str(root))}"
            )
        if used and not folder.config.exists():
            raise RunFolderError(
                f"{root} has no config.yaml, so it is not a run; choose another folder with --run-dir"
            )
        text = dump_config(config)
        if used:
            differing = differences(
                parse_yaml(folder.config.read_text(encoding="utf-8")) or {}, parse_yaml(text), may_differ
            )
            if differing:
                raise RunFolderError(
                    "\n  - ".join(
                        [f"the run in {root} cannot be resumed with another configuration:", *differing]
                    )
                    + "\nSet these back, or start a new run in another folder."
                )
        replace_file(folder.config, text.encode())
        return cls(root, resumed=used)


def differences(
    then: Mapping[str, Any], now: Mapping[str, Any], may_differ: Collection[str] = ()
) -> list[str]:
    """One line for each dotted key whose value is not the same in two plain configurations.

    A key that is absent then and null now is no difference: a setting that is younger than the run, and not set.
    """
    old, new = dict(_flat(then)), dict(_flat(now))
    lines = []
    for key in dict.fromkeys([*old, *new]):
        if any(key == free or key.startswith(f"{free}.") for free in may_differ):
            continue
        if key not in old and new[key] is None:
            continue
        if key not in new or key not in old or not _same(old[key], new[key]):
            was = repr(old[key]) if key in old else "absent"
            is_now = repr(new[key]) if key in new else "absent"
            lines.append(f"{key}: {was} then, {is_now} now")
    return lines


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _same(a: Any, b: Any) -> bool:
    return a == b or (a != a and b != b)  # NaN is the same as NaN
