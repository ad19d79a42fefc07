"""Which judge a run has. ``judge.json`` notes it when it first answers; every later session must have the same.

The configuration alone does not say: ``judge.model`` may be null, which takes whatever the servers
serve, and the files that ``reward`` names may be edited. Rewards before and after would not compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from vcap_jax.report.run_folder import RunFolder, RunFolderError
from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.role import Role
from vcap_jax.system.digests import digest_of
from vcap_jax.system.files import write_json
from vcap_jax.system.json_records import read_record, record_values

_FILE = "judge.json"


def noted_judge(folder: RunFolder) -> str | None:
    """The model that judged the run so far; None before it has answered."""
    noted = _read(folder)
    return None if noted is None else noted.model


def note_judge(folder: RunFolder, model: str, files: Mapping[str, str]) -> None:
    """Writes the note. files: digests by setting (``judging_files``)."""
    _write(folder, _Note(model=model, files=files))


def note_same_judge(folder: RunFolder, others: Iterable[RunFolder]) -> None:
    """Notes the judge of the first of ``others`` that has one, unless there is a note: parts of an undertaking are
    compared with each other."""
    judged_by = next(filter(None, map(_read, others)), None)
    if judged_by is not None and _read(folder) is None:
        _write(folder, judged_by)


def remember_judge(folder: RunFolder, model: str, reward: RewardConfig, *, first: bool = True) -> None:
    """Notes which judge the run in ``folder`` has, or compares it with the one that was noted before.

    model: that answers now. reward: as configured. first: whether this process writes the note.
    Raises RunFolderError for another model, or another text in a file of the reward's.
    """
    files, before = judging_files(reward), _read(folder)
    if before is None:
        if first:
            note_judge(folder, model, files)
        return
    if before.model != model:
        raise RunFolderError(
            f"the run in {folder.root} was judged by {before.model}, and {model} answers now (judge.urls): rewards "
            "of two judges do not compare. Give the servers of the first, or start a new run; if it is the same model "
            f"under another name, correct {folder.root / _FILE}"
        )
    changed = [key for key, digest in files.items() if before.files.get(key, digest) != digest]
    if changed:
        raise RunFolderError(
            f"the run in {folder.root} was judged with another text in the file of {', '.join(changed)}: put it back, "
            "or start a new run"
        )


def remember_other_judge(folder: RunFolder, role: Role, model: str, *, first: bool = True) -> None:
    """The same of a judge that never enters the reward, in a run whose own judge is noted already.

    Its figures are compared with each other too: changes since the start, agreement over the steps.
    Raises RunFolderError for another model.
    """
    note = _read(folder)
    if note is None:
        return
    before = note.others.get(role.settings)
    if before is None:
        if first:
            _write(folder, replace(note, others={**note.others, role.settings: model}))
    elif before != model:
        raise RunFolderError(
            f"{role.who} of the run in {folder.root} was {before}, and {model} answers now ({role.settings}.urls): "
            "figures of two judges do not compare. Give the servers of the first, or start a new run; if it is the "
            f"same model under another name, correct {folder.root / _FILE}"
        )


def judging_files(reward: RewardConfig) -> dict[str, str]:
    """Digests of the user's own files that decide a score, by setting."""
    named = {
        f"reward.instructions.{f.name}": getattr(reward.instructions, f.name)
        for f in fields(reward.instructions)
    }
    named |= {
        "reward.vqa.instruction": reward.vqa.instruction,
        "reward.vqa.questions": reward.vqa.questions,
        "reward.claim_differences.instruction": reward.claim_differences.instruction,
        "reward.balanced.instruction": reward.balanced.instruction,
    }
    return {key: digest_of(Path(path).read_bytes()) for key, path in named.items() if path is not None}


@dataclass(frozen=True, kw_only=True)
class _Note:
    """files: digests by setting. others: models of judges that never enter the reward, by ``Role.settings``."""

    model: str
    files: Mapping[str, str]
    others: Mapping[str, str] = field(default_factory=dict)


def _read(folder: RunFolder) -> _Note | None:
    path = folder.root / _FILE
    remedy = "put the file back, or remove it: whether it is the judge that the run began with is then not looked at"
    return read_record(_Note, path, remedy=remedy) if path.exists() else None


def _write(folder: RunFolder, note: _Note) -> None:
    write_json(folder.root / _FILE, record_values(note))
