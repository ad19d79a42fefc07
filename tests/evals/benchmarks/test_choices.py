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
        # Other options are spoken of beside the one that is given.
        ("The answer is B, because option A would need a sunny day.", "B"),
        ("The answer is b.", "B"),
        ("Answer: c", "C"),
        ("B. Option A would be another animal.", "B"),
        ("The best answer is A rather than option C.", "A"),
        ("It is B, unlike choice A.", "B"),
        ("The correct answer is (c). Option A describes another scene.", "C"),
        ("Final answer: A\nOption B can be ruled out.", "A"),
        ("Option A: no. Option B: yes. Option C: no.\n\n**B**", "B"),
        ("Option C describes another scene.\n\n\\boxed{B}", "B"),
        ("Option C does not fit. <answer>B</answer>", "B"),
        ("I would rule out option A and option C. B.", "B"),
        ("A: wrong; B: right", "B"),
        ("A) is false, so B)", "B"),
        ("Option D.", "D"),
        ("A. That is what option B says.\n\nC", None),
        ("Option A has a dog, option B has none.", None),
        # What is taken back is no answer, and the other one may not be final either.
        ("The answer is A. Wait, B is correct.", None),
        ("The answer is A. No, (b).", None),
        ("Answer: A\nActually, it's option B", None),
        ("The answer is A. It must be B.", None),
        ("The answer is A. **B** is the right one.", None),
        ("The answer is A. Wait, the answer is B.", "B"),
        ("The answer is A. Wait, A is correct.", "A"),
        ("The answer is A. Actually, option B is wrong.", "A"),
        ("The answer is A. It is not B.", "A"),
        ("The answer is A. It is a dog, and there is no bird.", "A"),
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
        ("The result is 3.", ["-3", "3", "4"], "B"),
        ("The result is -3.", ["-3", "3", "4"], "A"),
        ("(3)", ["-3", "3"], "B"),
        ("3 or -3", ["-3", "3"], None),
        ("The result is 4.", ["-3", "3", "4"], "C"),
    ],
)
def test_options_that_differ_in_a_sign_are_not_taken_for_each_other(
    answer: str, options: list[str], letter: str | None
) -> None:
    assert read_choice(answer, lettered(options)) == letter


@pytest.mark.parametrize(
    ("answer", "options", "letter"),
    [
        # A refusal is no "No".
        ("There is no information about this in the description.", ["Yes", "No"], None),
        ("I have no way of knowing.", ["Yes", "No"], None),
        ("No dog is mentioned.", ["Yes", "No"], "B"),
        ("It is not mentioned, so no.", ["Yes", "No"], "B"),
        ("Yes. There is no dog.", ["Yes", "No"], "A"),
        ("The one on the left", ["one", "two"], None),
        # A number is read whole.
        ("The distance is 2.5 metres.", ["5 metres", "7 metres"], None),
        ("It is 2.5 metres.", ["5 metres", "2.5 metres"], "B"),
        ("about 1,500", ["500", "2000"], None),
        ("about 1,500 people", ["500", "1,500"], "B"),
        ("10:30", ["30", "10:00"], None),
        ("It is -5 degrees.", ["5 degrees", "10 degrees"], None),
        ("It is −5 degrees.", ["5 degrees", "-5 degrees"], "B"),
        ("The sign says 1/2 mile", ["2 mile", "1 mile"], None),
        ("It is 30", ["30%", "0.3"], None),
        # A letter may be part of an option.
        ("It leads to point C.", ["Point C", "Point A", "Point B"], "A"),
        ("It shows vitamin C", ["Vitamin A", "Vitamin C", "Vitamin D"], "B"),
        ("It shows vitamin C, so the answer is B", ["Vitamin A", "Vitamin C", "Vitamin D"], "B"),
        ("It is C++", ["C", "C++", "C#"], "B"),
    ],
)
def test_a_part_of_something_else_is_no_option(answer: str, options: list[str], letter: str | None) -> None:
    assert read_choice(answer, lettered(options)) == letter
