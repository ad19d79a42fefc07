"""What has changed about a sample that is shown again."""

from __future__ import annotations

import re
import time

from vcap_jax.report.changes import Change, Version, change
from vcap_jax.report.samples import Sample, SampleCandidate, SampleFrame

FRAME = SampleFrame(url="data:image/png;base64,", width=1, height=1)


def sample(step: int, name: str, *captions: tuple[str, float | None]) -> Sample:
    candidates = tuple(SampleCandidate(caption=text, reward=reward) for text, reward in captions)
    return Sample(step=step, id=name, frames=(FRAME,), candidates=candidates)


def between(old: str, new: str) -> Change:
    return change(sample(1, "a", (old, 0.5)), sample(2, "a", (new, 0.5)))


def text(version: Version, *, changed: bool | None = None) -> str:
    return "".join(piece.text for piece in version.pieces if changed in (None, piece.changed))


def test_the_best_captions_of_both_times_are_compared() -> None:
    last = change(
        sample(1, "a", ("worse", 0.1), ("a red disc", 0.4), ("unscored", None)),
        sample(20, "a", ("a large red disc", 0.8), ("worse", 0.2)),
    )
    assert (last.then.step, last.then.reward, last.then.mean) == (1, 0.4, 0.25)
    assert (last.now.step, last.now.reward, last.now.mean) == (20, 0.8, 0.5)
    assert text(last.now, changed=True) == "large "
    assert (last.words.added, last.words.removed, last.words.kept) == (1, 0, 3)


def test_the_pieces_of_both_texts_are_the_texts() -> None:
    for old, new in (
        (
            "[0.0 - 2.0] A disc.\n\nSummary: one  disc, red.",
            "  [0.0 - 4.0] A disc moves.\nSummary: <b>red</b>.",
        ),
        ("", "something"),
        ("something", ""),
        ("一只红色的圆", "一只蓝色的圆 🙂"),
        ("word " * 3000, "word other " * 2000),
    ):
        found = between(old, new)
        assert (text(found.then), text(found.now)) == (old, new)
        assert found.words.added + found.words.kept == sum(word[0].isalnum() for word in _words(new))
        assert found.words.removed + found.words.kept == sum(word[0].isalnum() for word in _words(old))
    same = between("the same.", "the same.")
    assert (same.words.added, same.words.removed, same.words.kept) == (0, 0, 2)
    assert not any(piece.changed for piece in same.now.pieces)


def _words(value: str) -> list[str]:
    """Of Chinese, characters."""
    return re.findall(r"[a-z0-9]+|[一-龥]", value.lower())


def test_texts_without_spaces_between_words_are_compared_character_by_character() -> None:
    found = between("左边是一只红色的圆，背景是白色。", "左边是一只蓝色的圆，背景是白色。")
    assert (text(found.then, changed=True), text(found.now, changed=True)) == ("红", "蓝")
    assert (found.words.added, found.words.removed, found.words.kept) == (1, 1, 13)


def test_nothing_scored_is_no_reward() -> None:
    found = change(sample(1, "a", ("x", None)), sample(2, "a", ("y", None), ("z", 0.0)))
    assert (found.then.reward, found.then.mean) == (None, None)
    assert (found.now.reward, found.now.mean) == (0.0, 0.0)
    assert text(found.now) == "z"


def test_a_caption_that_repeats_itself_for_pages_takes_no_time() -> None:
    begin = time.process_time()
    between("the cat and " * 2000, "the dog and " * 2100)
    assert time.process_time() - begin < 5
