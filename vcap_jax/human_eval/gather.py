"""Makes the items of a study from what captioners wrote: a manifest, and a file of captions for each model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vcap_jax.data.jsonl import read_objects
from vcap_jax.data.manifest import Sample, missing_files, read_manifest
from vcap_jax.evals.judged import REWARD
from vcap_jax.evals.written_captions import captions_in, form_of, read_rewards
from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.records import MOST_CAPTIONS, Caption, Item, parse_row, write_rows
from vcap_jax.human_eval.study import ITEMS, check_kind, check_playable, read_items, same_file

MEDIA = "media"


def gather(
    folder: Path,
    manifest: Path,
    captions: Mapping[str, Path],
    *,
    count: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> tuple[Item, ...]:
    """Writes ``items.jsonl``: the manifest's samples that every model has a caption of, the first one of each model.

    captions: files by model, as ``launch/caption.py``, ``launch/evaluate.py`` and the evaluations of a run leave them,
    pools of references, or what ``launch/evaluate.py --by`` takes. Rows are a sample's by its id, and where they name a
    picture or video that is there it must be the sample's. A file of ``launch/score.py`` gives its rewards as well, and
    so does an evaluation by the reward of one caption for each sample. count: of items, drawn with ``seed``; None takes
    all. Media are linked into the folder, or copied where links cannot be made. Items that are there already stay, and
    must be the same. say: is told which samples are left out, and what has no reward. Raises StudyError, ManifestError,
    EvaluatorError.
    """
    if len(captions) < 2:
        raise StudyError("captions are compared with each other: give --captions of two models at least")
    if len(captions) > MOST_CAPTIONS:
        raise StudyError(
            f"a study compares at most {MOST_CAPTIONS} models, not {len(captions)}: leave some of --captions out"
        )
    if count is not None and count < 1:
        raise StudyError(f"a study has one item at least, not {count}: raise --items")
    samples = read_manifest(manifest)
    told = {model: _first_captions(model, path, samples) for model, path in captions.items()}
    shared = [sample for sample in samples if all(sample.id in texts for texts in told.values())]
    if not shared:
        have = "; ".join(
            f"{model} has {sum(s.id in texts for s in samples)} of them" for model, texts in told.items()
        )
        raise StudyError(
            f"no sample of {manifest} has a caption of every model ({have}): give files of one manifest"
        )
    if len(shared) < len(samples):
        lacking = {model: [s.id for s in samples if s.id not in texts] for model, texts in told.items()}
        say(
            f"left out: {len(samples) - len(shared)} of {len(samples)} samples lack a caption "
            f"({_whose(lacking)})"
        )
    # Before the draw: whether a study can be made of them must not depend on which are drawn.
    for sample in shared:
        if len(sample.files) > 1:
            raise StudyError(
                f"{sample.origin}: {len(sample.files)} images; a study shows one picture or video an item: leave this "
                "row out of the manifest"
            )
        check_kind(sample.files[0], f"{sample.origin}: {sample.files[0]}", video=sample.video is not None)
    if count is not None and count < len(shared):
        drawn = np.random.default_rng(seed).permutation(len(shared))[:count]
        shared = [shared[place] for place in sorted(drawn)]
    for sample, file in missing_files(shared):
        raise StudyError(f"{sample.origin}: {file} does not exist: check the path")
    for sample in shared:
        if sample.video is not None:
            check_playable(sample.files[0], f"{sample.origin}: {sample.files[0]}")
    items = tuple(
        _item(sample, number, tuple(texts[sample.id] for texts in told.values()))
        for number, sample in enumerate(shared)
    )
    unrewarded = {
        model: [s.id for s in shared if texts[s.id].reward is None] for model, texts in told.items()
    }
    if without := set().union(*unrewarded.values()):
        say(
            f"no reward: {len(without)} of {len(items)} items have a caption without one ({_whose(unrewarded)}); there "
            "people are not compared with the reward. rewards.jsonl of vcap score has rewards"
        )
    if (folder / ITEMS).exists():
        if tuple(read_items(folder / ITEMS).values()) != items:
            raise StudyError(
                f"{folder / ITEMS} is there already, with other items or captions: leave --captions out, or name a "
                "new folder"
            )
        return items
    (folder / MEDIA).mkdir(parents=True, exist_ok=True)
    for sample, item in zip(shared, items, strict=True):
        _link(sample.files[0], folder / item.media)
    write_rows(folder / ITEMS, items)
    return items


def _first_captions(model: str, path: Path, samples: Sequence[Sample]) -> dict[str, Caption]:
    """The first caption of each sample; what has none, or an empty one, is left out."""
    rewards: Mapping[str, float | None] = {}
    form = form_of(path)
    if form == "rewards":
        rewards = {name: each[0].reward for name, each in read_rewards(path).items()}
    elif form == "entries":  # other files have neither
        rewards = _rewards(path)
        _check_files(path, samples)
    return {
        name: parse_row(
            Caption,
            {"model": model, "text": entry.texts[0], "reward": rewards.get(name)},
            f'{path}, "{name}"',
        )
        for name, entry in captions_in(path, samples).items()
        if entry.texts and entry.texts[0].strip()
    }


def _whose(lacking: Mapping[str, Sequence[str]]) -> str:
    """Whose something is lacking. lacking: of which samples, by model."""
    return "; ".join(
        f"{model} has none of {len(ids)}, such as {ids[0]!r}" for model, ids in lacking.items() if ids
    )


def _rewards(path: Path) -> dict[str, float]:
    """What the reward gave, by sample. Of several captions an evaluation keeps the mean alone, which is of none."""
    found: dict[str, float] = {}
    for _, row in read_objects(path, "file of captions"):
        texts, values = row.get("captions"), row.get("values")
        if isinstance(texts, list) and len(texts) == 1 and isinstance(values, dict):
            reward = values.get(REWARD)
            if isinstance(reward, int | float):
                found[str(row["id"])] = float(reward)
    return found


def _check_files(path: Path, samples: Sequence[Sample]) -> None:
    """Raises StudyError for a caption of another file than the sample's: the ids of another data set may be the same,
    as those of every run of the embedded world are."""
    own = {sample.id: sample.files[0] for sample in samples}
    for number, row in read_objects(path, "file of captions"):
        named, file = row.get("image", row.get("video")), own.get(str(row.get("id")))
        if file is None or not isinstance(named, str) or not named or "captions" not in row:
            continue
        if same_file(Path(named), file) is False:
            raise StudyError(
                f"{path}:{number}: it is the caption of {named}, and the manifest's {row['id']!r} is another file, "
                f"{file}: give captions of this manifest's files, or leave the path out of the row"
            )


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)  # of a start that was killed
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _item(sample: Sample, number: int, captions: tuple[Caption, ...]) -> Item:
    media = f"{MEDIA}/{number:05d}{sample.files[0].suffix.lower()}"
    return parse_row(Item, {"id": sample.id, sample.modality: media, "captions": captions}, sample.origin)
