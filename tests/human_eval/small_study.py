"""Small studies for tests: two pictures with two captions each, decided by hand; and the embedded world's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from vcap_jax.human_eval.study import Study, read_study

CAPTIONS = {
    "base": "A red car 🚗 stands left. It is old.",
    "tuned": "A red car with a dented door stands left.",
}


def write_small_study(folder: Path, **settings: object) -> Path:
    """Items "a" and "b": each with one missing and one inconsistent proposition about "base", one about "tuned"."""
    folder.mkdir(parents=True, exist_ok=True)
    items, propositions = [], []
    for name in ("a", "b"):
        Image.fromarray(np.full((40, 60, 3), 90, np.uint8)).save(folder / f"{name}.png")
        captions = [{"model": model, "text": text} for model, text in CAPTIONS.items()]
        items.append({"id": name, "image": f"{name}.png", "captions": captions})
        rows = [
            ("base", "tuned", "missing", "The door is dented.", None),
            ("base", "tuned", "inconsistent", "The car is new, but the caption says old.", "It is old."),
            ("tuned", "base", "missing", "The car is old.", None),
        ]
        for number, (model, ref, kind, text, span) in enumerate(rows):
            stretch = None
            if span is not None:
                start = CAPTIONS[model].index(span)
                stretch = {"start": start, "end": start + len(span), "text": span}
            propositions.append(
                {
                    "image_id": name,
                    "prop_id": f"{name}/{number}",
                    "model": model,
                    "ref_model": ref,
                    "kind": kind,
                    "text": text,
                    "span": stretch,
                }
            )
    _lines(folder / "items.jsonl", items)
    _lines(folder / "propositions.jsonl", propositions)
    chosen = {"annotators": ["anna", "ben"], "overlap": 1.0, "overlap_size": 2} | settings
    (folder / "study.json").write_text(json.dumps(chosen))
    return folder


def small_study(folder: Path, **settings: object) -> Study:
    """The same, read."""
    return read_study(write_small_study(folder, **settings))


def change_row(path: Path, number: int, **changes: object) -> None:
    """Changes one row of a file of JSON Lines; None removes a key."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[number] = {key: value for key, value in (rows[number] | changes).items() if value is not None}
    _lines(path, rows)


def _lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
