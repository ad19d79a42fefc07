"""CapMAS end to end on three made-up pictures in the public format, with its figures worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from string import ascii_uppercase

import pytest

from tests.evals.benchmarks.by_stage import ByStage, Given, block, endpoint, made
from tests.reward.scripted_judge import ScriptedJudge
from vcap_jax.configuration import ConfigError
from vcap_jax.evals.benchmarks.capmas import CapMas, letters_of
from vcap_jax.evals.benchmarks.files import DataMissing
from vcap_jax.evals.benchmarks.results import results_row
from vcap_jax.evals.config import EvaluationConfig, EvaluatorConfig
from vcap_jax.evals.protocol import EvaluatorTools
from vcap_jax.evals.registry import evaluated_by, made_evaluators

CAPTIONS = {
    "a": "A red cat. It sleeps.",
    "b": "A dog. It is blue. It flies.",
    "c": "A tree.",
}
QUESTIONS = {
    "a": (["What animal?\nA) dog\nB) cat", "What colour?\nA) red\nB) green"], ["B", "A"]),
    "b": (["What animal?\nA) dog\nB) cat"], ["a"]),
    "c": (
        ["What is it?\nA) bush\nB) tree", "How tall?\nA) 1 m\nB) 9 m", "Leaves?\nA) yes\nB) no"],
        ["B", "B", "A"],
    ),
}
TRUE = ("A red cat", "A dog", "A tree")


@pytest.fixture
def data(tmp_path: Path, paint: Callable[[Path, int], None]) -> Path:
    folder = tmp_path / "capmas"
    rows = []
    (folder / "data" / "COVERAGE_TEST_VQA").mkdir(parents=True)
    for number, (name, (questions, answers)) in enumerate(QUESTIONS.items()):
        paint(folder / "images" / f"{name}.jpg", 80 * number)
        dataset = "DOCCI" if name == "c" else "IIW-400"
        rows.append({"dataset": dataset, "image": name, "caption": f"A person's words about {name}."})
        text = json.dumps({"questions": questions, "answers": answers})
        (folder / "data" / "COVERAGE_TEST_VQA" / f"{name}.json").write_text(text)
    (folder / "data" / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_sample_that_is_there_twice_is_refused(server: ScriptedJudge, data: Path) -> None:
    """Its one caption would be measured twice."""
    rows = data / "data" / "data.jsonl"
    rows.write_text(rows.read_text() + rows.read_text().splitlines(keepends=True)[0])
    with pytest.raises(DataMissing, match="the sample 'a' is there twice"):
        made(CapMas, data, server)


def clair(prompt: str) -> object:
    name = block(prompt, "reference").split()[-1][0]
    return {"reason": None if name == "b" else "they agree", "score": {"a": 90, "b": 60, "c": 30}[name]}


def coverage(prompt: str) -> object:
    """Finds words of the caption among the options."""
    caption, answers = block(prompt, "caption").lower(), {}
    for question in block(prompt, "questions").split("\n\n"):
        name, _, text = question.partition(": ")
        told = [line for line in text.splitlines()[1:] if line[3:] in caption]
        answers[name] = f"({told[0][0].lower()})" if told else "?"
    return answers


def propositions(prompt: str) -> object:
    return {"propositions": [part.strip() for part in block(prompt, "caption").split(".") if part.strip()]}


def factuality(prompt: str) -> object:
    lines = block(prompt, "propositions").splitlines()
    return {line[:2]: "true" if line[4:] in TRUE else "False" for line in lines}


@pytest.fixture
def judge(server: ScriptedJudge) -> ByStage:
    answers = {
        "clair": clair,
        "coverage": coverage,
        "propositions": propositions,
        "factuality": factuality,
    }
    return ByStage(server, answers)


def test_the_figures_are_those_worked_out_by_hand(server: ScriptedJudge, judge: ByStage, data: Path) -> None:
    found = made(CapMas, data, endpoint(server)).evaluate(Given(CAPTIONS))
    values = {name: value.value for name, value in found.metrics.items()}
    # Questions: a 2 of 2, b 1 of 1, c 1 of 3. Propositions: a 1 of 2, b 1 of 3, c 1 of 1.
    assert values["clair"] == pytest.approx((90 + 60 + 30) / 3)
    assert values["coverage"] == pytest.approx(100 * 4 / 6)
    assert values["factuality"] == pytest.approx(100 * 3 / 6)
    assert values["average"] == pytest.approx((60 + 400 / 6 + 50) / 3)
    assert found.failed == 0
    assert found.items[1].values["average"] == pytest.approx((0.6 + 1 + 1 / 3) / 3)
    assert found.items[1].notes["False propositions"] == "It is blue\nIt flies"
    assert {name: stage.questions for name, stage in found.stages.items()} == dict.fromkeys(judge.answers, 3)
    assert found.stages["clair"].requests == 3
    assert found.stages["clair"].prompt_tokens == 30


def test_official_takes_a_null_reason_out_of_the_denominator_alone(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    found = made(CapMas, data, endpoint(server), mode="official").evaluate(Given(CAPTIONS))
    assert found.metrics["clair"].value == pytest.approx((90 + 60 + 30) / 2)
    assert found.about["mode"] == "official"


def test_only_factuality_sees_the_picture_and_what_is_shared_comes_first(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    made(CapMas, data, endpoint(server), limit=1).evaluate(Given(CAPTIONS))
    for stage, prompt, body in judge.asked:
        kinds = [part["type"] for part in body["messages"][0]["content"]]  # type: ignore[index]
        assert kinds == (["image_url", "text"] if stage == "factuality" else ["text"])
        if stage in ("clair", "coverage"):
            assert prompt.index("<caption>") > max(prompt.find("<reference>"), prompt.find("<questions>"))
        assert body["temperature"] == 0


def test_a_part_that_fails_is_lacking_and_scored_nowhere(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    judge.answers = {**judge.answers, "clair": lambda prompt: "I would say 95."}
    captions = {name: text for name, text in CAPTIONS.items() if name != "c"}
    found = made(CapMas, data, endpoint(server, max_tries=2)).evaluate(Given(captions))
    assert found.metrics["clair"].value != found.metrics["clair"].value  # NaN: nothing was measured
    assert found.metrics["coverage"].value == pytest.approx(100)
    assert found.stages["clair"].failed == {"no_verdict": 2}
    assert found.stages["clair"].failure_rate == 1
    assert found.items[0].lacking["clair"].startswith("no_verdict")
    assert "average" not in found.items[0].values
    assert (found.failed, found.items[2].failure) == (1, "no caption")


def test_a_second_start_asks_nothing(
    server: ScriptedJudge, judge: ByStage, data: Path, tmp_path: Path
) -> None:
    store = tmp_path / "answers.sqlite"
    first = made(CapMas, data, endpoint(server), store=store).evaluate(Given(CAPTIONS))
    asked = len(judge.asked)
    again = made(CapMas, data, endpoint(server), store=store).evaluate(Given(CAPTIONS))
    assert len(judge.asked) == asked == 12
    assert again == first  # what the answers cost included


def test_a_subset_and_words_of_ones_own(
    server: ScriptedJudge, judge: ByStage, data: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "caption.txt").write_text("Say everything.\n")
    (own / "propositions.txt").write_text("Cut it up: {CAPTION}\n")
    plain = made(CapMas, data, endpoint(server))
    changed = made(CapMas, data, endpoint(server), subset="iiw400", prompts=str(own))
    assert [sample.id for sample in changed.samples] == ["a", "b"]
    assert changed.samples[0].prompt == "Say everything."
    told, before = changed.evaluate(Given(CAPTIONS)).about, plain.evaluate(Given(CAPTIONS)).about
    assert told["prompts"]["clair"] == before["prompts"]["clair"]  # type: ignore[index,call-overload]
    assert told["prompts"]["propositions"] != before["prompts"]["propositions"]  # type: ignore[index,call-overload]


def test_what_is_wrong_with_the_data_is_told_before_work(server: ScriptedJudge, data: Path) -> None:
    (data / "images" / "b.jpg").unlink()
    with pytest.raises(DataMissing, match=r"images_capmas\.tar\.gz") as raised:
        made(CapMas, data, endpoint(server))
    assert "images/b" in str(raised.value)
    with pytest.raises(DataMissing, match="Adobe Research License"):
        made(CapMas, data / "nowhere", endpoint(server))
    with pytest.raises(ConfigError, match="subset"):
        made(CapMas, data, endpoint(server), subset="half")
    with pytest.raises(ConfigError, match=r"mood.*mode"):
        made(CapMas, data, endpoint(server), mood="official")
    assert not server.bodies


def test_five_captions_are_merged_and_then_measured(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    judge.answers = {**judge.answers, "merge": lambda prompt: {"caption": CAPTIONS[asked_about(prompt)]}}
    benchmark = made(CapMas, data, endpoint(server), captions="merge5")
    assert [sample.id for sample in benchmark.samples][4:7] == ["a#5", "b#1", "b#2"]
    assert len({sample.prompt for sample in benchmark.samples}) == 5
    given = {f"{name}#{k}": f"Caption {k} about {name}" for name in CAPTIONS for k in range(1, 6)}
    del given["c#2"]
    found = benchmark.evaluate(Given(given))
    plain = made(CapMas, data, endpoint(server)).evaluate(Given({k: CAPTIONS[k] for k in "ab"}))
    assert {n: v.value for n, v in found.metrics.items()} == {n: v.value for n, v in plain.metrics.items()}
    assert found.items[2].failure == "1 of its 5 captions failed: no caption"
    assert found.stages["merge"].questions == 2
    # What was measured stands where all others' captions do, and the five beside it.
    assert found.items[0].captions == (CAPTIONS["a"],)
    assert found.items[0].notes["Merged from"].split("\n\n")[1] == "Caption 2 about a"
    assert plain.items[0].notes == {k: v for k, v in found.items[0].notes.items() if k != "Merged from"}


def test_words_and_failures_are_of_the_merged_captions(
    server: ScriptedJudge, judge: ByStage, data: Path
) -> None:
    """They were of the five that each is merged from."""

    def merged(prompt: str) -> dict[str, object] | str:
        return {"caption": "A very long merged caption."} if asked_about(prompt) == "a" else "no JSON"

    judge.answers = {**judge.answers, "merge": merged}
    benchmark = made(CapMas, data, endpoint(server), captions="merge5")
    given = Given({f"{name}#{k}": f"Caption {k} about {name}" for name in "ab" for k in range(1, 6)})
    captions = given.captions(benchmark.samples)
    found = benchmark.score(captions)
    row = results_row(found, captions, captioner={}, seconds={})
    assert (row["items"], row["captions_failed"]) == (3, 2)
    assert row["words_per_caption"] == 5
    assert [item.captions for item in found.items] == [("A very long merged caption.",), (), ()]
    assert str(found.items[1].failure).startswith("merging: ")
    assert found.items[1].notes["Merged from"].endswith("Caption 5 about b")
    assert results_row(found, (), captioner={}, seconds={})["captions_failed"] == 0


def asked_about(prompt: str) -> str:
    return block(prompt, "captions").split()[-1]


def asking(server: ScriptedJudge, data: Path, said: list[str], **options: str) -> CapMas:
    """For a captioner that was trained to be asked something of its own."""
    tools = EvaluatorTools(
        modality="image",
        judge=endpoint(server),
        requests={"image": "Sag, was da ist."},
        captioning="written" not in options,
        say=said.append,
    )
    given = {key: value for key, value in options.items() if key != "written"}
    return CapMas(EvaluatorConfig(use="capmas", options={"data": str(data), **given}), tools)


def test_a_captioner_is_asked_as_it_was_trained_to_be(
    server: ScriptedJudge, judge: ByStage, data: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    own = asking(server, data, said)
    assert {sample.prompt for sample in own.samples} == {"Sag, was da ist."}
    assert len(said) == 1
    assert '"Sag, was da ist."' in said[0]
    plain = made(CapMas, data, endpoint(server))
    assert own.templates["caption"].version != plain.templates["caption"].version
    about = own.evaluate(Given(CAPTIONS)).about
    assert about["request"] == {"text": "Sag, was da ist.", "from": "the captioner"}
    assert plain.evaluate(Given(CAPTIONS)).about["request"] == {
        "text": "Describe this image in detail.",
        "from": "prompts/capmas/caption.txt",
    }
    said.clear()
    (tmp_path / "caption.txt").write_text("What is it?\n")
    given = asking(server, data, said, prompts=str(tmp_path))
    assert {sample.prompt for sample in given.samples} == {"What is it?"}, "the user's text goes before it"
    several = asking(server, data, said, captions="merge5")
    assert "Sag, was da ist." not in {sample.prompt for sample in several.samples}, "five are the protocol"
    there = asking(server, data, said, written="")
    assert not said
    assert "request" not in there.evaluate(Given(CAPTIONS)).about, "how captions came about is not known"


def test_a_run_may_have_it_among_its_evaluators(
    server: ScriptedJudge, judge: ByStage, data: Path, tmp_path: Path
) -> None:
    options = {"data": str(data), "limit": 2, "judge": server.url}
    config = EvaluationConfig(evaluators=(EvaluatorConfig(use="capmas", captions=1, options=options),))
    tools = EvaluatorTools(modality="image", store=tmp_path / "evaluations.sqlite", say=lambda text: None)
    (named,) = made_evaluators(config, tools, print)
    found = evaluated_by(named, Given(CAPTIONS))
    assert found.metrics["clair"].value == pytest.approx(75)
    asked = found.asked()
    assert asked["endpoints"] == {"judge": {"model": "the-judge", "urls": [server.url]}}
    assert asked["stages"]["clair"]["questions"] == 2  # type: ignore[index,call-overload]
    with pytest.raises(ConfigError, match="captions images, and modality is video"):
        made_evaluators(config, EvaluatorTools(modality="video"), print)


def test_letters_of_a_question() -> None:
    assert letters_of("What?\nA) one\nB) two", "B") == ("A", "B")
    for one_line in (
        "What? A. one B. two C. three",
        "What?\nA. one B. two C. three",
        "What? (A) one, (B) two (C) no",
    ):
        assert letters_of(one_line, "A") == letters_of(one_line, "C") == ("A", "B", "C")
    assert letters_of("What does vitamin A. D. Miller sell?\nA) one\nB) two", "B") == ("A", "B")
    # Which letters are offered does not tell the right one.
    assert letters_of("What? one or two", "C") == letters_of("What? one or two", "H") == tuple("ABCDEFGH")
    assert letters_of("What?\nA) one\nB) two", "E") == tuple("ABCDEFGH")
    assert letters_of("What? one or two", "K") == tuple(ascii_uppercase)
