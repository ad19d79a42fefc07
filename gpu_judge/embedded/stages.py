"""The stages of public benchmarks, answered in the embedded world: captions are parsed, pictures looked at.

Which stage a request is of is told by its delimiter lines and the keys that it asks for, so texts of a user's own work.
A reader of text alone perceives nothing; what is true is decided by the pixels, as well as the judge sees them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpu_judge.embedded.adjudication import by_question
from gpu_judge.embedded.delimiters import find_blocks, without_blocks
from gpu_judge.embedded.pictures import Eyes
from gpu_judge.embedded.request import BadRequest, Content
from vcap_jax.system.json_values import JsonObject
from vcap_jax.world.asking import read_question
from vcap_jax.world.image_grammar import parse_image
from vcap_jax.world.questions import told_by
from vcap_jax.world.slots import question_of
from vcap_jax.world.statements import events_of, read_statement, read_yes_no, relation, statement

_NAMES = (
    "caption",
    "reference",
    "propositions",
    "facts",
    "oracle_facts",
    "question",
    "questions",
    "events",
)
_LINE = re.compile(r"([A-Z]\d+): (.*)")
_MOST_LINES = 10_000


def answer_stage(content: Content, eyes: Eyes) -> JsonObject | None:
    """The answer to a question of a benchmark's; None for a request that is none.

    Raises BadRequest for a stage that lacks its picture, or has a list that cannot be read.
    """
    texts = "\n".join(content.texts)
    blocks = find_blocks(texts, _NAMES)
    found = {block.name: block.text for block in blocks}
    if not found or len(found) < len(blocks):
        return None
    asked = without_blocks(texts, blocks)
    match tuple(sorted(found)):
        case ("caption",) if '"propositions"' in asked:
            return {"propositions": [text for text, _ in _statements(found["caption"])]}
        case ("caption",) if '"facts"' in asked:
            return {
                "facts": [
                    {"fact": text, "relevance": int(visible)}
                    for text, visible in _statements(found["caption"])
                ]
            }
        case ("caption",) if '"Events"' in asked:
            return {"Events": events_of(found["caption"])}
        case ("caption", "events"):
            return {
                name: relation(found["caption"], event) for name, event in _lines(found["events"]).items()
            }
        case ("caption", "reference") if '"score"' in asked:
            return _likeness(found["reference"], found["caption"])
        case ("propositions", "reference"):
            return _verified(found["propositions"], content, eyes, ("true", "false"))
        case ("facts", "reference"):
            return _verified(found["facts"], content, eyes, ("1", "0"))
        case ("facts", "oracle_facts"):
            return _matched(found["oracle_facts"], found["facts"])
        case ("caption", "question"):
            return _yes_no(found["caption"], found["question"])
        case _:
            return None


def _statements(caption: str) -> list[tuple[str, bool]]:
    """What a caption says, each with whether it is about what can be seen: its claims, and sentences without one."""
    parsed = parse_image(caption)
    said = [(statement(slot, value), True) for slot, value in parsed.claims]
    return said + [(sentence.text, False) for sentence in parsed.sentences if not sentence.claims]


def _likeness(reference: str, caption: str) -> JsonObject:
    """CLAIR: of the questions that both answer, how many they agree on; one more is half agreed."""
    ours, theirs = (by_question(parse_image(text).claims) for text in (caption, reference))
    shared = [question for question in ours if question in theirs]
    agreed = sum(ours[question] == theirs[question][-1:] for question in shared)
    return {
        "reason": f"They agree on {agreed} of the {len(shared)} things that both speak of.",
        "score": round(100 * (agreed + 0.5) / (len(shared) + 1), 2),
    }


def _verified(listed: str, content: Content, eyes: Eyes, words: tuple[str, str]) -> JsonObject:
    if not content.pictures:
        raise BadRequest("what is to be verified needs a picture, and there is none")
    sight = eyes.look("image", content.pictures)
    answers: dict[str, str] = {}
    for name, text in _lines(listed).items():
        claim = read_statement(text)
        answers[name] = words[0] if claim is not None and sight.verdict(*claim) else words[1]
    return answers


def _matched(oracle: str, facts: str) -> JsonObject:
    """Each fact's counterpart: the oracle's fact that answers the same question, whatever is said of it."""
    about: dict[object, str] = {}
    for name, text in _lines(oracle).items():
        if (claim := read_statement(text)) is not None:
            about.setdefault(question_of(claim[0]), name)
    answers: dict[str, str] = {}
    for name, text in _lines(facts).items():
        claim = read_statement(text)
        answers[name] = "none" if claim is None else about.get(question_of(claim[0]), "none")
    return answers


def _yes_no(caption: str, question: str) -> JsonObject:
    asked = read_yes_no(question.strip())
    if asked is None:
        return {"analysis": "The question cannot be understood.", "answer": "Unanswerable"}
    text, value = asked
    slot = read_question(text)
    told = None if slot is None else told_by(caption, slot)
    if told is None:
        return {"analysis": "The caption does not say.", "answer": "Unanswerable"}
    return {"analysis": f"The caption says {told}.", "answer": "Yes" if told == value else "No"}


def _lines(listed: str) -> Mapping[str, str]:
    lines = [line for line in listed.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES:
        raise BadRequest(f"a list has {len(lines):,} entries; at most {_MOST_LINES:,} are read")
    found: dict[str, str] = {}
    for line in lines:
        item = _LINE.fullmatch(line)
        if item is None:
            raise BadRequest(f"{line[:80]!r} is no entry of a list: write it as 'P1: ...'")
        found[item[1]] = item[2]
    return found
