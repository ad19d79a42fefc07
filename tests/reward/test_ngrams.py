"""CIDEr-D against the public implementation's numbers, and what must hold of it."""

import math

import pytest

from vcap_jax.reward.ngrams import CiderD, ngram_counts, tokens

POOL = [
    "A red circle on a white background.",
    "A blue square, and a red circle.",
    "Two dogs play in the park's grass.",
    "A dog's ball is red; the grass is green.",
]
CAPTIONS = [
    "A red circle on a white background.",
    "A red square and a blue circle on a white background.",
    "Dogs play.",
    "A red red red ball.",
]
# coco-caption's CiderScorer(n=4, sigma=6.0), pycocoevalcap 1.2, on the same tokens joined by blanks.
ONE_REFERENCE_EACH = [10.0, 2.7738463936650177, 1.7865322404888202, 0.6599877038475843]
TWO_REFERENCES_FOR_THE_FIRST = [6.115566785838861, 0.0, 0.0]


def test_the_public_implementations_numbers() -> None:
    cider = CiderD([one] for one in POOL)
    scores = [cider.score(caption, [one]) for caption, one in zip(CAPTIONS, POOL, strict=True)]
    assert scores == pytest.approx(ONE_REFERENCE_EACH, abs=1e-9)
    pool = [POOL[:2], POOL[2:3], POOL[3:]]
    cider = CiderD(pool)
    scores = [cider.score(caption, references) for caption, references in zip(CAPTIONS, pool, strict=False)]
    assert scores[0] == pytest.approx(TWO_REFERENCES_FOR_THE_FIRST[0], abs=1e-9)


def test_by_hand() -> None:
    """Two samples; "a b" and "a c": "a" is in both and weighs nothing, "b" and "a b" weigh log 2."""
    cider = CiderD([["a b"], ["a c"]])
    # Against "a b": the caption "b b" has the unigram b, clipped to one: 1 * 1 / (2 * 1); no bigram in common.
    assert cider.score("b b", ["a b"]) == pytest.approx(10 * (0.5) / 4)
    # Equal texts: cosine 1 for n = 1 and 2, nothing for 3 and 4, of which there are none.
    assert cider.score("a b", ["a b"]) == pytest.approx(10 * 2 / 4)
    # Three bigrams more than the reference cost exp(-9 / 72).
    assert cider.score("b x x x x", ["a b"]) == pytest.approx(
        10 * math.exp(-9 / 72) * (1 / math.sqrt(1 + 16)) / 4
    )


@pytest.mark.parametrize("caption", CAPTIONS)
def test_nothing_beats_the_reference_itself(caption: str) -> None:
    cider = CiderD([one] for one in POOL)
    for reference in POOL:
        assert 0 <= cider.score(caption, [reference]) <= cider.score(reference, [reference]) + 1e-12
        # Saying it again and again is not better: counts are clipped and length costs.
        assert cider.score(f"{reference} {reference}", [reference]) < cider.score(reference, [reference])


def test_texts_without_words_earn_nothing() -> None:
    cider = CiderD([one] for one in POOL)
    assert cider.score("", [POOL[0]]) == cider.score("...", [POOL[0]]) == 0
    assert cider.score(POOL[0], ["?!"]) == 0


def test_tokens() -> None:
    assert tokens("[0.0 - 2.5] The Dog\u2019s ball: red-ish, 10 cm.") == [
        *("0.0", "2.5", "the", "dog's", "ball"),
        *("red", "ish", "10", "cm"),
    ]
    assert tokens("红色的圆, red's 2.5 cm") == ["红", "色", "的", "圆", "red's", "2.5", "cm"]
    assert ngram_counts("a b a b") == {
        ("a",): 2,
        ("b",): 2,
        ("a", "b"): 2,
        ("b", "a"): 1,
        ("a", "b", "a"): 1,
        ("b", "a", "b"): 1,
        ("a", "b", "a", "b"): 1,
    }


def test_what_has_no_frequencies_is_refused() -> None:
    with pytest.raises(ValueError, match=r"two samples at least.*has 1"):
        CiderD([POOL])
    with pytest.raises(ValueError, match="there are none"):
        CiderD([[one] for one in POOL]).score("a", [])
