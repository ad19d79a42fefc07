"""Texts of questions, read from files.

A template marks what is filled in as ``{CAPTION}``, ``{QUESTIONS}`` and so on, each placeholder once. What comes there
is made plain data and put between delimiters of its name (``<caption>``), as the reward's instructions do. What several
questions share should come first, so that a server's prefix cache holds it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from vcap_jax.reward.prompts import content_hash, delimited
from vcap_jax.reward.templates import TemplateError

_PLACEHOLDER = re.compile(r"\{([A-Z][A-Z_]*)\}")


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A question's text. shared: its part before the placeholder that was filled last."""

    text: str
    shared: str


@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    """name: "BENCHMARK/STAGE". placeholders: in their order. source: the file. own: it is the user's, not this
    project's."""

    name: str
    text: str
    placeholders: tuple[str, ...]
    source: str
    own: bool = False

    @property
    def version(self) -> str:
        """Hash of the text."""
        return content_hash(self.text)

    def fill(self, values: Mapping[str, str]) -> Filled:
        """The text with a value for each placeholder. Raises ValueError for values of others."""
        if set(values) != set(self.placeholders):
            raise ValueError(
                f"{self.name} has the placeholders {sorted(self.placeholders)}, and {sorted(values)} were given"
            )
        parts = _PLACEHOLDER.split(self.text)
        for index in range(1, len(parts), 2):
            parts[index] = delimited(values[parts[index]], parts[index].lower())
        return Filled(text="".join(parts), shared="".join(parts[:-2]))


def load_template(
    name: str, placeholders: tuple[str, ...], folder: str | None = None, *, plain: bool = False
) -> PromptTemplate:
    """The packaged template ``name`` ("BENCHMARK/STAGE"), or FOLDER/BENCHMARK/STAGE.txt, else FOLDER/STAGE.txt, where
    such a file is there.

    plain: what captions are asked for with; it has no placeholders. Raises TemplateError for a file that cannot be
    read, and one that has not each of ``placeholders`` once and no others.
    """
    places = () if folder is None else (Path(folder) / f"{of}.txt" for of in (name, name.partition("/")[2]))
    path = next((place for place in places if place.is_file()), None)
    if path is not None:
        source = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TemplateError(f"prompt {name!r}: cannot read {source!r}: {error}") from error
    else:
        source = f"prompts/{name}.txt"
        text = resources.files("vcap_jax.evals").joinpath(source).read_text(encoding="utf-8")
    if not text.strip():
        raise TemplateError(
            f"prompt {name!r}: {source!r} is empty: write the text, or remove the file to ask with ours"
        )
    text = text.strip() + ("" if plain else "\n")
    found = tuple(_PLACEHOLDER.findall(text))
    if sorted(found) != sorted(placeholders):
        raise TemplateError(
            f"prompt {name!r} ({source}) has the placeholders {_listed(found)}; write each of "
            f"{_listed(placeholders)} once, and no others"
        )
    return PromptTemplate(name=name, text=text, placeholders=found, source=source, own=path is not None)


def check_own_texts(folder: str, names: Collection[str], benchmark: str = "") -> None:
    """names: of the texts that a benchmark asks with, "STAGE", beside this project's. Raises TemplateError for a folder
    that is not there, and for a file in it that is none of them: ours would be asked with in its place."""
    if not Path(folder).is_dir():
        raise TemplateError(
            f"there is no folder {folder!r} with texts of your own: check --prompts (options.prompts)"
        )
    packaged = resources.files("vcap_jax.evals").joinpath("prompts")
    ours = {
        f"{of.name}/{file.name.removesuffix('.txt')}" for of in packaged.iterdir() for file in of.iterdir()
    }
    known = {*ours, *(name.partition("/")[2] for name in ours), *names, *(f"{benchmark}/{n}" for n in names)}
    for path in sorted([*Path(folder).glob("*.txt"), *Path(folder).glob("*/*.txt")]):
        name = path.relative_to(folder).as_posix().removesuffix(".txt")
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            meant = f"; the nearest is {near[0]}.txt" if near else ""
            raise TemplateError(
                f"{path} is no text of a benchmark{meant}: the names are those in vcap_jax/evals/prompts"
            )


def check_shared_texts(folder: str, benchmarks: Collection[str]) -> None:
    """benchmarks: those that are evaluated together. Raises TemplateError for FOLDER/STAGE.txt if several of them would
    ask with it: it was written for one. A request for captions, which has no placeholders, may be for all."""
    packaged = resources.files("vcap_jax.evals").joinpath("prompts")
    for path in sorted(Path(folder).glob("*.txt")):
        several = []
        for benchmark in sorted(set(benchmarks)):
            text = packaged.joinpath(benchmark, path.name)
            if text.is_file() and not (path.parent / benchmark / path.name).is_file():
                several += [benchmark] if _PLACEHOLDER.search(text.read_text(encoding="utf-8")) else []
        if len(several) > 1:
            raise TemplateError(
                f"{path} would be asked with by {' and '.join(several)}, each of which has such a text of its own: put "
                f"it into the folder of the one that it is for, such as {path.parent / several[0] / path.name}"
            )


def _listed(placeholders: tuple[str, ...]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(placeholders)) or "none"
