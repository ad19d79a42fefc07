"""CaptionQA: multiple-choice questions about an image, answered from its caption alone.

Yang et al., CaptionQA: Is Your Caption as Useful as the Image Itself? (2025); public code bronyayang/CaptionQA. Four
domains (natural, document, ecommerce, embodiedai), about 50 questions for each image. A right answer is worth 1,
"cannot answer" 1/n + 0.05 with n options (so silence earns 30 to 38), a wrong one 0. The score is the mean over all
questions, in %; accuracy and the share of "cannot answer" stand beside it.

The "cannot answer" option is added to questions that are not about yes or no. official takes for such a one, as the
public code does, a question with "yes" in one option and "no" in another, anywhere ("eyes" and "snow"), or that begins
with an auxiliary verb ("Can you see what colour ..."), and shuffles the options by one generator through the whole
split, so that a part of the data gets other orders. strict looks at the options' first words, and draws each order from
the question itself.

In both modes a question without an answer is a failure and leaves the count; in public it is worth 0. The reading
quirks of the public code (text before the first line end is thrown away) cannot occur: answers come as JSON.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vcap_jax.configuration import settings
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.answers import chosen
from vcap_jax.evals.asking import Asker, Stage
from vcap_jax.evals.benchmarks.benchmark import (
    Benchmark,
    BenchmarkOptions,
    Measured,
    Mode,
    Task,
    each_answered,
)
from vcap_jax.evals.benchmarks.choice_tables import write_picture
from vcap_jax.evals.benchmarks.choices import lettered, listed
from vcap_jax.evals.statistics import Statistic, ratio
from vcap_jax.reward.failures import Failure
from vcap_jax.system.digests import number_of
from vcap_jax.system.json_values import JsonDict

DOMAINS = ("natural", "document", "ecommerce", "embodiedai")
CANNOT_ANSWER = "Cannot answer from the caption"
_BONUS = 0.05

_AUXILIARY = re.compile(
    r"(is|are|was|were|do|does|did|have|has|had|can|could|will|would|should|shall|may|might|must) "
)


@settings
class CaptionQaOptions(BenchmarkOptions):
    """Settings of captionqa."""

    domain: Literal["all", "natural", "document", "ecommerce", "embodiedai"] = "all"
    """Which questions are asked."""
    pictures: str | None = None
    """Folder for the pictures, which the files hold inside; null puts them into the data folder."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A question. options: in the public order. right: place of the right one. order: places in the order in which they
    are shown; the one behind the last option is "cannot answer"."""

    text: str
    options: tuple[str, ...]
    right: int
    order: tuple[int, ...]

    @property
    def shown(self) -> dict[str, str]:
        """The options by letter, as they are shown."""
        texts = (*self.options, CANNOT_ANSWER)
        return lettered([texts[place] for place in self.order])

    def worth(self, letter: str) -> tuple[float, bool, bool]:
        """The score of an answer; whether it is right; whether it is "cannot answer"."""
        place = self.order[list(self.shown).index(letter)]
        if place == len(self.options):
            return 1 / len(self.options) + _BONUS, False, True
        return float(place == self.right), place == self.right, False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What is asked about the images of a row."""

    domain: str
    questions: tuple[Choice, ...]


class CaptionQa(Benchmark[Picture]):
    """A caption with its questions."""

    name = "captionqa"
    modality = "image"
    worst = "share"
    options_class = CaptionQaOptions
    options: CaptionQaOptions
    source = (
        "The parquet files of https://huggingface.co/datasets/Borise/CaptionQA (named after their split, "
        "natural-00000-of-00001.parquet and so on; the card states no licence)"
    )

    def load(self) -> Iterable[Task[Picture]]:
        """One task for each row, in the order of the files."""
        prompts = {
            False: self.template("caption", plain=True),
            True: self.template("caption_several", plain=True),
        }
        generator = random.Random(0)
        for where, domain, row in self._rows():
            identity = str(row.get("id"))
            questions = tuple(self._choices(row, identity, where, generator))
            if self.options.domain not in ("all", domain) or not questions:
                continue
            images = tuple(self._images(row, where))
            prompt = prompts[len(images) > 1].text
            yield Task(
                sample=Sample(id=identity, images=images, prompt=prompt, origin=where),
                row=Picture(domain=domain, questions=questions),
            )

    def _rows(self) -> Iterator[tuple[str, str, dict[str, object]]]:
        """("FILE: row N", domain, row). The order of official needs all four splits, or the split ``all``."""
        found = {split: sorted(self.folder.path.rglob(f"{split}-*.parquet")) for split in (*DOMAINS, "all")}
        official = self.options.mode == "official"
        if official and not found["all"] and not all(found[domain] for domain in DOMAINS):
            missing = [domain for domain in DOMAINS if not found[domain]]
            raise self.folder.wrong(
                self.folder.path,
                f"no file of {', '.join(missing)}: official shuffles through all of them; leave mode=strict for a part",
            )
        whole = (official and bool(found["all"])) or not any(found[domain] for domain in DOMAINS)
        files = [(split, path) for split in (("all",) if whole else DOMAINS) for path in found[split]]
        if not files:
            raise self.folder.wrong(self.folder.path, "there is no file like natural-00000-of-00001.parquet")
        held: dict[str, Path] = {}
        for split, path in files:
            for number, row in enumerate(_parquet(path), 1):
                identity = str(row.get("id"))
                # As where a cache holds two revisions: every question would count twice.
                if (other := held.setdefault(identity, path)) != path:
                    raise self.folder.wrong(
                        f"{path}: row {number}",
                        f"{identity!r} is in {other} as well: leave one of the files there",
                    )
                domain = split if split != "all" else domain_of(identity)
                yield f"{path}: row {number}", domain, row

    def _choices(
        self, row: Mapping[str, object], identity: str, where: str, generator: random.Random
    ) -> Iterator[Choice]:
        asked, official = row.get("questions"), self.options.mode == "official"
        if not isinstance(asked, list) or not isinstance(row.get("id"), str):
            raise self.folder.wrong(where, "a row has a text as its id and a list of questions")
        for number, entry in enumerate(asked):
            if not isinstance(entry, dict):
                raise self.folder.wrong(where, f"question {number} is {entry!r:.80}")
            question: JsonDict = entry
            text = self.folder.text(question, "question", where)
            options = self.folder.texts(question, "choices", where)
            answer = self.folder.text(question, "answer", where)
            right = [place for place, option in enumerate(options) if option.strip() == answer.strip()]
            open_ended = not is_yes_no(text, options, official=official)
            places = list(range(len(options) + open_ended))
            # The public code skips both kinds before it shuffles.
            if len(places) < 2 or not right:
                continue
            (generator if official else seeded(f"{identity}/{number}/{text}")).shuffle(places)
            yield Choice(text=text, options=options, right=right[0], order=tuple(places))

    def _images(self, row: Mapping[str, object], where: str) -> Iterator[Path]:
        cells = row.get("images") or row.get("image")
        for cell in cells if isinstance(cells, list) else [cells]:
            content = cell.get("bytes") if isinstance(cell, Mapping) else None
            if isinstance(content, bytes):
                folder = Path(self.options.pictures or self.folder.path / "captionqa-pictures")
                try:
                    yield write_picture(content, folder, where)
                except ManifestError as error:
                    raise self.folder.wrong(where, str(error)) from error
            elif isinstance(cell, Mapping) and isinstance(cell.get("path"), str):
                yield self.folder.path / str(cell["path"])
            else:
                raise self.folder.wrong(where, "a row has no image")

    def make_stages(self) -> Iterable[Stage]:
        """``answer``: one question from the caption, at temperature 0."""
        return (self.stage("answer", "CAPTION", "QUESTION", role="reasoner", temperature=0.0),)

    async def measure(self, task: Task[Picture], caption: str, asker: Asker) -> Measured:
        """score, right, cannot, questions: sums over the questions; score and questions of the domain, too; share:
        score / questions."""
        picture = task.row

        async def one(choice: Choice) -> str | Failure:
            shown = choice.shown
            values = {"CAPTION": caption, "QUESTION": f"{choice.text}\n{listed(shown)}"}
            answer = await asker.ask(self.stages["answer"], chosen({"Answer": list(shown)}), values)
            return answer if isinstance(answer, Failure) else answer["Answer"]

        numbered = {str(number): choice for number, choice in enumerate(picture.questions, 1)}
        answered, lacking = await each_answered(numbered, one)
        if not answered:
            return Measured(lacking=lacking)
        score = right = cannot = 0.0
        told: list[str] = []
        for choice, letter in answered:
            worth, is_right, is_cannot = choice.worth(letter)
            score, right, cannot = score + worth, right + is_right, cannot + is_cannot
            told.append(
                f"{choice.text} {choice.shown[letter]} ({worth:.3g}, it is: {choice.options[choice.right]})"
            )
        asked = float(len(told))
        values = {
            "score": score,
            "right": right,
            "cannot": cannot,
            "questions": asked,
            "share": score / asked,
        }
        values |= {f"score/{picture.domain}": score, f"questions/{picture.domain}": asked}
        return Measured(values=values, lacking=lacking, notes={"Questions and answers": "\n".join(told)})

    @classmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        """score, accuracy, cannot_answer, and score/DOMAIN, in % of the questions."""
        return {
            "score": ratio("score", "questions", scale=100),
            "accuracy": ratio("right", "questions", scale=100),
            "cannot_answer": ratio("cannot", "questions", scale=100),
            **{f"score/{name}": ratio(f"score/{name}", f"questions/{name}", scale=100) for name in DOMAINS},
        }


def is_yes_no(question: str, options: Sequence[str], *, official: bool) -> bool:
    """Whether a question is about yes or no, so that "cannot answer" is no option of it."""
    texts = [option.strip().lower() for option in options]
    if official:
        both = any("yes" in text for text in texts) and any("no" in text for text in texts)
        return both or _AUXILIARY.match(question.strip().lower()) is not None
    firsts = {re.split(r"\W+", text, maxsplit=1)[0] for text in texts}
    return {"yes", "no"} <= firsts


def seeded(key: str) -> random.Random:
    """A generator of its own for a key, the same everywhere."""
    return random.Random(number_of(key))


def domain_of(identity: str) -> str:
    """The domain that an id begins with ("nat_001"); "other" for none."""
    prefix = identity.partition("_")[0].lower()
    return next((name for name in DOMAINS if len(prefix) > 1 and name.startswith(prefix)), "other")


def _parquet(path: Path) -> Iterator[dict[str, object]]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ManifestError(
            "CaptionQA's files are parquet, and pyarrow is not installed: pip install 'vcap-jax[parquet]'"
        ) from error
    try:
        for batch in ParquetFile(path).iter_batches(batch_size=8):
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: not readable as parquet ({error}): download it again") from error
