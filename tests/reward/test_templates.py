"""Packaged instructions are sound, and a user's own are checked before a run begins."""

from pathlib import Path

import pytest

from vcap_jax.reward.templates import (
    DELIMITERS,
    SPECS,
    InstructionName,
    TemplateError,
    filled,
    load_instruction,
)

NAMES: list[InstructionName] = list(SPECS)


@pytest.mark.parametrize("name", NAMES)
def test_packaged_instructions_pass_their_own_check(name: InstructionName) -> None:
    instruction = load_instruction(name)
    spec = instruction.spec
    # The witness stands before the candidate and the candidate after everything that a group shares.
    places = [instruction.template.index(f"{{{spec.candidate[0]}}}")]
    if spec.reference is not None:
        places.insert(0, instruction.template.index(f"{{{spec.reference[0]}}}"))
    assert places == sorted(places)
    assert len(instruction.template) - places[-1] < 400
    assert ("Reference" in instruction.template) == (spec.reference is not None)


def test_the_keys_are_those_of_the_paper() -> None:
    assert SPECS["image"].score_keys == ("Correctness", "Completeness", "Text Quality")
    assert SPECS["video_segment"].score_keys == SPECS["image"].score_keys
    assert SPECS["video_global"].score_keys == ("Reasonability", "Correctness", "Completeness")


GOOD = """Rate {gen_solution} against {ref_answer}.
{"Analysis": a, "Correctness": 1, "Completeness": 2, "Text Quality": 3}"""


def test_a_users_template_is_used(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(GOOD)
    instruction = load_instruction("image", str(path))
    text = filled(instruction.template, {"ref_answer": "R", "gen_solution": "G"})
    assert text.startswith("Rate G against R.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("{ref_answer}", "it"), r"write each of \{ref_answer\}, \{gen_solution\} once"),
        (GOOD.replace("{gen_solution}", ""), r"has the placeholders \{ref_answer\}; write"),
        (GOOD.replace("{ref_answer}", "ref_answer"), r"once, with its braces"),
        (GOOD + "{ref_answer}", r"\{gen_solution\}, \{ref_answer\}, \{ref_answer\}; write"),
        (GOOD + "{GEN_DESC}", r"\{GEN_DESC\}; write each of"),
        (GOOD + "{caption}", r"\{caption\}; write each of"),
        (GOOD.replace('"Text Quality"', '"Style"'), "keys.*'Style'.*; ask for.*'Text Quality'"),
        (GOOD.replace('"Analysis": a, ', ""), "asks for the keys.*; ask for.*'Analysis'"),
        (GOOD.replace('"Text Quality": 3', '"Text Quality": 3, "Overall": 4'), "keys.*'Overall'.*; ask for"),
        (GOOD + "\n<generated_caption>\n", "writes the delimiter"),
        ("", "has the placeholders none; write each of"),
    ],
)
def test_unfit_templates_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(text)
    with pytest.raises(TemplateError, match=message) as caught:
        load_instruction("image", str(path))
    assert "'image'" in str(caught.value)
    assert "mine.txt" in str(caught.value)


def test_an_instruction_without_reference_takes_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(GOOD)
    with pytest.raises(TemplateError, match=r"\{ref_answer\}; write each of \{gen_solution\} once"):
        load_instruction("image_no_reference", str(path))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="cannot read"):
        load_instruction("image", str(tmp_path / "absent.txt"))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TemplateError, match="cannot read"):
        load_instruction("image", str(tmp_path / "binary.txt"))


def test_delimiters_are_those_of_the_request_format() -> None:
    assert set(DELIMITERS) == {
        "reference_caption",
        "generated_caption",
        "reference_description",
        "generated_description",
    }
