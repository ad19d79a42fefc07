"""What lmms-eval 0.7 is asked for on the command line, and reading what it leaves.

Its exit status is 0 after a run that failed, so what counts is whether the results are there. A request that failed
stays among its answers as a text that begins with ``[LMMS_EVAL_``, which its letter extractor reads as "D": such an
answer is a failure here, and scored nowhere. Its figure for MLVU is a mean over kinds of questions, and VideoMMMU has
none over its three parts: here every figure is over questions (micro), from the harness's own record of each. That
does not name the video, so intervals take questions for independent, and are too narrow where videos have many.

Beside the harness's verdict stands that of our own reader (``choices.read_choice``), because the harness's readers
take "The answer is B because A dog ..." for A, read nothing in "(b)", and, for MMVU, take an empty answer for right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.jsonl import read_objects
from vcap_jax.evals.benchmarks.choices import LETTERS, lettered, read_choice
from vcap_jax.evals.protocol import Item
from vcap_jax.evals.statistics import Statistic, average, mean
from vcap_jax.system.json_values import (
    JsonDict,
    JsonError,
    JsonObject,
    JsonValue,
    as_list,
    as_number,
    as_object,
    as_text,
    read_json_object,
)

UNREAD = "none of the options"
"""What a note says of an answer in which our reader finds no option."""
VERSION = "0.7.3"
"""The release whose files and command line this module was written against."""
FAILED = "[LMMS_EVAL_"
"""How the text of a failed request begins."""
NO_KEY = "EMPTY"
"""In the place of a key, for a server that wants none."""
BEGINS = "=== lmms-eval begins: "
"""How the line begins that stands in the log before what a start of the harness says."""

_RESULTS = "_results.json"
"""How the name ends of the file in which a run of the harness leaves its figures."""
_JUDGE_FAILED = re.compile(
    r"OpenAI judge failed|Error getting (?:GPT )?judge response|judge evaluation failed", re.IGNORECASE
)
_GIVEN_UP = re.compile(r"llm_judge.*All \d+ attempts failed")

_LISTED = re.compile(r"^[ \t]*\(?([A-Z])[).:][ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A benchmark. tasks: of lmms-eval. record: the key of the tasks' own record. folder: of its videos in HF_HOME.
    questions: how many there are. judged: whether open questions go to a judge."""

    name: str
    tasks: tuple[str, ...]
    record: str
    folder: str
    questions: int
    judged: bool = False


SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            name="mmvu",
            tasks=("mmvu_val",),
            record="accuracy",
            folder="mmvu",
            questions=1000,
            judged=True,
        ),
        # The paper's 2,174 questions; mlvu_test is another set, whose prompt asks for no letter.
        Suite(name="mlvu", tasks=("mlvu_dev",), record="mlvu_percetion_score", folder="mlvu", questions=2174),
        Suite(
            name="videommmu",
            tasks=("video_mmmu_perception", "video_mmmu_comprehension", "video_mmmu_adaptation"),
            record="mmmu_acc",
            folder="video_mmmu",
            questions=900,
        ),
        Suite(name="lvbench", tasks=("lvbench",), record="lvbench_score", folder="lvbench", questions=1549),
    )
}


@settings
class VideoQaOptions:
    """Settings of video-qa."""

    data: str
    """HF_HOME of the harness: the data sets' cache, and the folders mmvu, mlvu, video_mmmu and
    lvbench with the videos."""
    suites: str = "mmvu,mlvu,videommmu,lvbench"
    """Which of them."""
    harness: str = "lmms/bin/python"
    """The Python of the environment that has lmms-eval."""
    offline: bool = True
    """Nothing is downloaded; false lets the harness fetch what is missing."""
    fps: float = Field(default=2.0, gt=0)
    """Frames of a second of video."""
    max_frames: int = Field(default=200, ge=2)
    """Frames of a video at most."""
    max_pixels: int = Field(default=262144, ge=784)
    """Pixels of a frame at most; 262144 are 256 tokens of Qwen3-VL."""
    timestamps: bool = True
    """Write the time before each frame, as Qwen3-VL knows it."""
    concurrency: int = Field(default=32, ge=1)
    """Requests at once."""
    timeout_s: int = Field(default=600, ge=1)
    """Seconds of a request."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Tokens of an answer; null keeps each task's own (16 for MLVU and LVBench)."""
    limit: int | None = Field(default=None, ge=1)
    """The first so many questions of each task."""
    include: str | None = None
    """Folder with tasks of your own, such as one over a local copy of a data set."""
    tasks: str | None = None
    """Names of the harness's tasks in place of the suite's, where one suite is asked."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the harness is asked to do. python: of the environment that has it. model, url: of the endpoint. tasks: of
    the harness. output: folder. keyless: the endpoint wants no key, and the one in the environment is for the judge
    alone."""

    options: VideoQaOptions
    python: str
    model: str
    url: str
    tasks: tuple[str, ...]
    output: Path
    keyless: bool = False

    def command(self) -> list[str]:
        """The command line. A key goes by the environment (OPENAI_API_KEY), not in here.

        Raises ValueError for a name that the harness's list of arguments cannot hold.
        """
        for what, value in (("model", self.model), ("address", self.url)):
            if set(value) & set(",= "):
                raise ValueError(
                    f"the {what} {value!r} holds a comma, a blank or an equals sign, which lmms-eval cannot take"
                )
        options = self.options
        arguments = {
            "model_version": self.model,
            "base_url": self.url,
            "fps": f"{options.fps:g}",
            "max_frames": str(options.max_frames),
            "max_pixels": str(options.max_pixels),
            "is_qwen3_vl": str(options.timestamps),
            "num_cpus": str(options.concurrency),
            "timeout": str(options.timeout_s),
            **({"api_key": NO_KEY} if self.keyless else {}),
        }
        command = [self.python, "-m", "lmms_eval", "eval", "--model", "async_openai", "--model_args"]
        command.append(",".join(f"{name}={value}" for name, value in arguments.items()))
        command += ["--tasks", ",".join(self.tasks), "--batch_size", "1", "--log_samples"]
        command += ["--output_path", str(self.output)]
        if options.limit is not None:
            command += ["--limit", str(options.limit)]
        if options.max_new_tokens is not None:
            command += ["--gen_kwargs", f"max_new_tokens={options.max_new_tokens}"]
        if options.include is not None:
            command += ["--include_path", options.include]
        return command


@dataclass(frozen=True, kw_only=True)
class HarnessRun:
    """A complete run. results: its file. samples: the file of each task."""

    results: Path
    samples: Mapping[str, Path]

    def own_figures(self) -> dict[str, JsonValue]:
        """The harness's own figures by task, as it names and scales them. Raises OSError and JsonError."""
        found: dict[str, JsonValue] = {}
        results = as_object(read_json_object(self.results).get("results"), f"{self.results}: results")
        for task in self.samples:
            figures = as_object(results.get(task), f"{self.results}: {task}")
            found[task] = {
                key: value
                for key, value in figures.items()
                if isinstance(value, int | float) and not isinstance(value, bool) and "stderr" not in key
            }
        return found


def find_run(output: Path, tasks: Sequence[str]) -> HarnessRun | None:
    """The latest run below a folder that has results and samples of all ``tasks``; None if there is none."""
    for results in sorted(output.rglob(f"*{_RESULTS}"), key=lambda path: path.name, reverse=True):
        stamp = results.name.removesuffix(_RESULTS)
        samples = {task: results.with_name(f"{stamp}_samples_{task}.jsonl") for task in tasks}
        if all(path.is_file() for path in samples.values()):
            return HarnessRun(results=results, samples=samples)
    return None


def any_run(output: Path) -> bool:
    """Whether a run has left results below a folder, of whatever tasks."""
    return next(output.rglob(f"*{_RESULTS}"), None) is not None


def judge_failures(log: Path) -> list[str]:
    """What the last start of the harness said of answers that its judge did not give, a line for each. The questions
    are wrong answers in its results, and nothing in these tells."""
    if not log.exists():
        return []
    said = log.read_text(encoding="utf-8", errors="replace").rpartition(BEGINS)[2].splitlines()
    # Both are said of one question, by whoever asks and by whoever had asked again.
    failed, given_up = (
        [line.strip() for line in said if words.search(line)] for words in (_JUDGE_FAILED, _GIVEN_UP)
    )
    return max(failed, given_up, key=len)


def read_items(run: HarnessRun, suite: Suite) -> tuple[Item, ...]:
    """An item for each question of a suite: harness and parsed, 1 right, 0 wrong, also under the suite's name.

    parsed: by our own reader, where the right answer is a letter; elsewhere the harness's verdict, but an empty answer
    is wrong. A failed request is a failed item. Raises ManifestError and JsonError for files of another form.
    """
    found: list[Item] = []
    for task in suite.tasks:
        path = run.samples[task]
        for number, sample in read_objects(path, "file of samples"):
            where = f"{path}:{number}"
            if suite.record not in sample:
                raise ManifestError(
                    f"{where}: there is no record {suite.record!r}: this is no file of lmms-eval {VERSION}'s {task}"
                )
            found.append(_item(f"{task}/{sample.get('doc_id', number)}", sample, suite, where))
    return tuple(found)


def _item(identity: str, sample: JsonDict, suite: Suite, where: str) -> Item:
    answers = [*_texts(sample.get("filtered_resps")), *_texts(sample.get("resps"))]
    failed = next((answer for answer in answers if answer.startswith(FAILED)), None)
    answer = answers[0] if answers else ""
    if failed is not None:
        return Item(id=identity, captions=(), failure=failed[:300])
    record = sample[suite.record]
    harness = harness_verdict(suite, record, where)
    target = target_of(record, sample)
    options = options_of(sample.get("input"))
    notes = {"Question": "\n".join(_texts(sample.get("input"))[:1]), "Right answer": target}
    if target in (options or LETTERS) and len(target) == 1:
        letter = read_choice(answer, options or lettered([""] * len(LETTERS)))
        parsed, notes["Read as"] = letter == target, letter or UNREAD
    else:
        parsed = harness and bool(answer.strip())
    values = {"harness": float(harness), "parsed": float(parsed)}
    values |= {f"{name}/{suite.name}": value for name, value in values.items()}
    return Item(id=identity, captions=(answer,), values=values, notes=notes)


def harness_verdict(suite: Suite, record: JsonValue, where: str) -> bool:
    """Whether the harness took an answer for right, by its record of the question. Raises JsonError, also for a record
    that lacks what it is told by: of two that are not there each would be as the other."""
    where = f"{where}: {suite.record}"
    if suite.record == "lvbench_score":
        return record if isinstance(record, bool) else bool(as_number(record, where))
    row = as_object(record, where)

    def told(key: str) -> JsonValue:
        if key not in row:
            raise JsonError(f"{where} has no {key!r}: this is no file of lmms-eval {VERSION}")
        return row[key]

    if suite.record == "accuracy":
        return bool(told("correct"))
    if suite.record == "mlvu_percetion_score":
        return told("pred_answer") == told("answer")
    if told("question_type") in ("multiple-choice", "perception"):
        return told("parsed_pred") == told("answer")
    return open_answer_right(row, where)


def open_answer_right(row: JsonObject, where: str) -> bool:
    """VideoMMMU's rule for open questions, on its record: one of the phrases and numbers that were found in the answer
    is the right number, or contains the right words."""
    given, gold = row.get("parsed_pred"), row.get("answer")
    if isinstance(given, str):  # "API Error": nothing was found
        return False
    golds = [_normal(as_text(one, where)) for one in (gold if isinstance(gold, list) else [gold])]
    for one in as_list(given, f"{where}: parsed_pred"):
        if isinstance(one, str):
            # A single letter counts beside a blank only, as the harness has it.
            words = [word for word in golds if isinstance(word, str)]
            if any(
                (f" {word}" in one or f"{word} " in one) if len(word) == 1 else word in one for word in words
            ):
                return True
        elif one in golds:
            return True
    return False


def _normal(text: str) -> str | float:
    try:
        return round(float(text.strip().replace(",", "")), 2)
    except ValueError:
        return text.strip().lower()


def target_of(record: JsonValue, sample: JsonObject) -> str:
    """The right answer as text, from the harness's record or the sample."""
    answer = record.get("answer") if isinstance(record, Mapping) else None
    return str(sample.get("target", "") if answer is None else answer).strip()


def options_of(prompt: JsonValue) -> dict[str, str] | None:
    """The options that a prompt lists ("A. a dog" in lines of their own, A first); None where it lists none."""
    text = "\n".join(_texts(prompt))
    found: dict[str, str] = {}
    for letter, option in _LISTED.findall(text):
        if letter == LETTERS[len(found)] and len(found) < len(LETTERS) - 1:
            found[letter] = option.strip()
    return found if len(found) > 1 else None


def _texts(value: JsonValue) -> list[str]:
    """The texts of a value, at whatever depth: the harness saves one answer as a text, a list, or a list of lists."""
    if isinstance(value, str):
        return [value]
    return [text for one in value for text in _texts(one)] if isinstance(value, list) else []


def statistics(suites: Sequence[Suite]) -> dict[str, Statistic]:
    """harness/SUITE and parsed/SUITE, in % of the questions; of several suites their plain mean, too."""
    found: dict[str, Statistic] = {}
    for who in ("harness", "parsed"):
        each = {f"{who}/{suite.name}": mean(f"{who}/{suite.name}", scale=100) for suite in suites}
        found |= ({who: average(*each.values(), apart=True)} if len(each) > 1 else {}) | each
    return found


def unread(items: Sequence[Item]) -> Iterator[Item]:
    """Those whose answer our reader takes for no option."""
    return (item for item in items if item.notes.get("Read as") == UNREAD)
