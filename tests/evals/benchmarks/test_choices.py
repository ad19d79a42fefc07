"""Reading options out of answers, with the answers that public readers are known to get wrong."""

import pytest

from vcap_jax.evals.benchmarks.choices import lettered, listed, read_choice

OPTIONS = lettered(["a dog", "blue", "dark red", "red"])


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(b)", "B"),
        (" **C.** ", "C"),
        ("c\n", "C"),
        ("B\nbecause the caption says so", "B"),
        ("B. not A", "B"),
        ("b) blue", "B"),
        ("B because it is", "B"),
        ("I think B", "B"),
        ("The answer is B because A dog would bark", "B"),
        ("The best answer is: (d)", "D"),
        ("Answer: **C**", "C"),
        ("First I thought the answer is A, but the correct option is D.", "D"),
        ("<think>The answer is A</think>B", "B"),
        ("Blue.", "B"),
        ("It looks dark red to me", "C"),
        ("It looks red to me", "D"),
        ("A dog", "A"),
        ("A", "A"),
        ("The answer is A because of its tail", "A"),
        # What is denied is no option.
        ("The correct answer is not B.", None),
        ("Option B is wrong", None),
        ("(a) isn't right, so (b)", "B"),
        ("It is not A but B", "B"),
        ("It cannot be A", None),
        ("neither B nor C", None),
        ("It is not blue.", None),
        ("It isn't blue, it is red", "D"),
        ("a different red", "D"),
        # What gives no option, or two.
        ("A cat sits there", None),
        ("bright", None),
        ("A and B", None),
        ("either B or C", None),
        ("blue or red", None),
        ("The answer is B or C", None),
        ("(a)/(b)", None),
        ("B, C", None),
        ("E", None),
        ("The answer is a mystery", None),
        ("", None),
        ("I do not know", None),
    ],
)
def test_answers(answer: str, letter: str | None) -> None:
    assert read_choice(answer, OPTIONS) == letter


def test_the_pronoun_is_no_option() -> None:
    many = lettered([f"thing {k}" for k in range(10)])
    assert read_choice("I guess it is thing 3", many) == "D"
    assert read_choice("I", many) == "I"


def test_options_in_lines() -> None:
    assert listed({"A": "one\nline", "B": "two"}) == "A. one line\nB. two"
    with pytest.raises(ValueError, match="27 options"):
        lettered(["x"] * 27)


@pytest.mark.parametrize(
    ("answer", "options", "letter"),
    [
        ("1", ["-1", "1"], "B"),
        ("-1.", ["-1", "1"], "A"),
        ("> 5", ["< 5", "> 5"], "B"),
        ("c++", ["C", "C++"], "B"),
        ("1/2", ["1:2", "1/2"], "B"),
        # Which of them is meant nothing tells that is read here.
        ("The result is 3.", ["-3", "3", "4"], None),
        ("(3)", ["-3", "3"], None),
        ("The result is 4.", ["-3", "3", "4"], "C"),
    ],
)
def test_options_that_differ_in_a_sign_are_not_taken_for_each_other(
    answer: str, options: list[str], letter: str | None
) -> None:
    assert read_choice(answer, lettered(options)) == letter
