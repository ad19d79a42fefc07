"""The configuration loader: what it merges, what it refuses and how it says so."""

from __future__ import annotations

import dataclasses
import math
import shlex
from pathlib import Path
from typing import Literal

import pytest
import yaml
from pydantic import Field, ValidationError

from vcap_jax.configuration import (
    ConfigError,
    dump_config,
    inline_yaml,
    load_config,
    parse_yaml,
    settings,
)


@settings
class Optimizer:
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: int = 10
    clip: float | None = Field(default=None, gt=0, allow_inf_nan=True)

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(f"warmup must be at least 0, got {self.warmup}; use 0 for none")


@settings
class Source:
    path: str
    weight: float = 1.0


@settings
class Judge:
    address: str | None = None
    concurrency: int = 8


@settings
class Root:
    """A run."""

    name: str = "run"
    steps: int = Field(default=100, ge=1)
    modality: Literal["image", "video"] = "image"
    resume: bool = False
    output: Path = Path("runs")
    optimizer: Optimizer = Field(default_factory=lambda: Optimizer(learning_rate=5e-7, warmup=3))
    judge: Judge | None = None
    sources: tuple[Source, ...] = ()
    notes: dict[str, str] = Field(default_factory=dict)
    weights: dict[str, float] = Field(default_factory=dict)


@settings
class Hosts:
    hosts: tuple[str, ...] = ()


@settings
class WithRequired:
    seed: int
    root: Root = Root()


@settings
class Weights:
    correctness: float = 1.0


@settings
class Reward:
    weights: Weights = dataclasses.field(default_factory=Weights)
    options: dict[str, int] = dataclasses.field(default_factory=dict)


@settings
class Rewarded:
    seed: int = 0
    max_steps: int = 1
    reward: Reward = dataclasses.field(default_factory=Reward)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    judge: Judge = dataclasses.field(default_factory=Judge)


def problems(*overrides: str, files: tuple[Path, ...] = (), schema: type = Root) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(schema, files, overrides)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def test_defaults() -> None:
    assert load_config(Root) == Root()


def test_files_then_overrides_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("steps: 5\noptimizer: {learning_rate: 1e-4, clip: 1}\nweights: {a: 1}\n")
    second.write_text("optimizer:\n  learning_rate: 2e-4\nweights: {b: 2}\n")
    config = load_config(Root, [first, second], ["steps=7", "optimizer.betas=[0.5, 0.6]", "weights.c=3"])
    assert config.steps == 7
    # warmup comes from the default instance of Root, not from the class Optimizer.
    assert config.optimizer == Optimizer(learning_rate=2e-4, betas=(0.5, 0.6), warmup=3, clip=1.0)
    assert config.weights == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert isinstance(config.optimizer.clip, float)
    # Also where something before has set the whole section to null.
    assert load_config(Root, [], ["optimizer=null", "optimizer.clip=1.0"]).optimizer.warmup == 3


@pytest.mark.parametrize("text", ["5e-7", "5E-7", "5.0e-07", ".0000005", "+5e-7"])
def test_floats_without_a_dot_are_floats(text: str) -> None:
    assert load_config(Root, [], [f"optimizer.learning_rate={text}"]).optimizer.learning_rate == 5e-7


def test_special_floats_and_integers() -> None:
    assert load_config(Root, [], ["optimizer.clip=.inf"]).optimizer.clip == math.inf
    assert load_config(Root, [], ["steps=010"]).steps == 10
    assert load_config(Root, [], ["steps=0x10"]).steps == 16
    assert load_config(Root, [], ["steps=0o20"]).steps == 16


@pytest.mark.parametrize(
    ("override", "expected", "shown"),
    [
        ('steps="3.5"', "int", '"3.5" (text)'),
        ("steps=3.0", "int", "3.0 (float)"),
        ("steps=true", "int", "true (boolean)"),
        ("steps=null", "int", "null"),
        ("steps.more=1", "int", '{"more": 1} (mapping)'),
        ("steps=0", "int >= 1", "0 (int)"),
        ("optimizer.learning_rate=.inf", "float", "Infinity (float)"),
        ("optimizer.clip=.nan", "float > 0 | null", "NaN (float)"),
        ("optimizer.clip=0", "float > 0 | null", "0 (int)"),
        ("resume=1", "bool", "1 (int)"),
        ("resume=yes", "bool", '"yes" (text)'),
        ("modality=audio", 'one of "image", "video"', '"audio" (text)'),
        ("optimizer.learning_rate=fast", "float", '"fast" (text)'),
        ("optimizer.learning_rate=true", "float", "true (boolean)"),
        ("optimizer.clip=x", "float > 0 | null", '"x" (text)'),
        ("optimizer.betas=[1, 2, 3]", "tuple[float, float]", "[1, 2, 3] (list)"),
        ("optimizer.betas=[1, x]", "tuple[float, float]", "item 1"),
        ("optimizer=3", "a section with the keys learning_rate, betas, warmup, clip", "3 (int)"),
        ("weights.a=big", "dict[str, float]", '{"a": "big"} (mapping)'),
        ("sources=[3]", "a section with the keys path, weight", "3 (int)"),
    ],
)
def test_ill_typed_values_are_refused(override: str, expected: str, shown: str) -> None:
    (problem,) = problems(override)
    key = override.partition("=")[0].removesuffix(".a").removesuffix(".more")
    assert problem.startswith(key)
    assert f"expected {expected}" in problem
    assert shown in problem
    assert "(command line)" in problem


@pytest.mark.parametrize(
    "key", ["steps", "name", "judge.address", "optimizer.clip", "judge", "sources", "notes.a"]
)
@pytest.mark.parametrize("nothing", ["", " "])
def test_an_override_without_a_value_is_refused(key: str, nothing: str) -> None:
    """A variable of the shell that is not set would choose other work."""
    (problem,) = problems(f"{key}={nothing}")
    assert problem.startswith(f"{key}= (command line): has no value; write null to unset it")


def test_an_empty_text_is_written_with_quotes() -> None:
    assert load_config(Root, [], ["judge.address=''"]).judge == Judge(address="")
    assert load_config(Root, [], ['name=""']).name == ""


def test_a_leading_home_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    path = tmp_path / "c.yaml"
    path.write_text("output: ~/runs\nsources: [{path: ~/a}]\n")
    config = load_config(Root, [path], ["judge.address=~/x", "notes={a: ~/y}", "name=a~/b"])
    assert (config.output, config.sources) == (Path("/home/me/runs"), (Source(path="/home/me/a"),))
    assert (config.judge, config.notes, config.name) == (
        Judge(address="/home/me/x"),
        {"a": "/home/me/y"},
        "a~/b",
    )


def test_an_integer_is_a_float() -> None:
    value = load_config(Root, [], ["optimizer.learning_rate=1"]).optimizer.learning_rate
    assert value == 1.0
    assert isinstance(value, float)


def test_text_where_only_text_fits() -> None:
    assert load_config(Root, [], ["name=2026"]).name == "2026"
    assert load_config(Root, [], ["name=a: b"]).name == "a: b"
    assert load_config(Root, [], ["name=[x"]).name == "[x"
    assert load_config(Root, [], ["notes.a=2026"]).notes == {"a": "2026"}
    assert load_config(Root, [], ["output=out/1"]).output == Path("out/1")
    assert load_config(Root, [], ["judge.address=null"]).judge == Judge(address=None)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("picture #1, in detail", "picture #1, in detail"),
        ("#3", "#3"),
        ("Two\nlines.", "Two\nlines."),
        ("'quoted # here'", "quoted # here"),
        ('"A\\nB"', "A\nB"),
        ('"Draw" it', '"Draw" it'),
        ("[a, b]", "[a, b]"),
        ("2026", "2026"),
    ],
)
def test_where_only_text_fits_it_is_taken_as_it_stands(text: str, meant: str) -> None:
    config = load_config(Root, [], [f"judge.address={text}", f"name={text}", f"output={text}"])
    assert config.judge == Judge(address=meant)
    assert (config.name, config.output) == (meant, Path(meant))


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("optimizer.lerning_rate=1", "optimizer.learning_rate"),
        ("optimzer.learning_rate=1", "optimizer.learning_rate"),
        ("learning_rate=1", "optimizer.learning_rate"),
        ("optimizer.step=1", "steps"),
        ("judge.adress=x", "judge.address"),
        ("sttps=1", "steps"),
    ],
)
def test_unknown_keys_on_the_command_line(override: str, advice: str) -> None:
    (problem,) = problems(override)
    name = override.partition("=")[0]
    assert problem == f"{name} (command line): unknown key; the nearest valid key is {advice}"


def test_unknown_keys_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("optimzer:\n  clip: 1\noptimizer: {clipp: 1}\nsources: [{path: a, wieght: 2}]\n")
    found = problems(files=(path,))
    assert set(found) == {
        f"optimzer.clip ({path}): unknown key; the nearest valid key is optimizer.clip",
        f"optimizer.clipp ({path}): unknown key; the nearest valid key is optimizer.clip",
        f"sources.0.wieght ({path}): unknown key; the nearest valid key is sources.0.weight",
    }


@pytest.mark.parametrize(
    ("override", "name", "advice"),
    [
        # Whatever is inside of a mapping is its user's.
        ("reward.optoins={most: 40}", "reward.optoins", "reward.options"),
        ("reward.optoins.most=40", "reward.optoins", "reward.options"),
        ("reward.optoins={seed: 3}", "reward.optoins", "reward.options"),
        ("reward.optoins={a: {seed: 2}}", "reward.optoins", "reward.options"),
        # Of a section the key that is meant, where there is one.
        ("reward.weight={corectness: 1}", "reward.weight.corectness", "reward.weights.correctness"),
        ("reward.weight={zzzz: 1}", "reward.weight", "reward.weights"),
        # No section here has such a name, but elsewhere one has the key.
        ("optimizer.judge.address=a", "optimizer.judge.address", "judge.address"),
        ("zzzz={max_steps: 3}", "zzzz.max_steps", "max_steps"),
    ],
)
def test_of_a_misspelt_key_with_keys_inside_the_one_that_is_wrong_is_told(
    override: str, name: str, advice: str
) -> None:
    (problem,) = problems(override, schema=Rewarded)
    assert problem == f"{name} (command line): unknown key; the nearest valid key is {advice}"


def test_a_key_with_dots_in_a_file_is_told_how_files_nest_it(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("optimizer.clip: 1\n")
    (problem,) = problems(files=(path,))
    assert problem.endswith("nearest valid key is optimizer.clip; a file nests keys: optimizer: {clip: ...}")


@pytest.mark.parametrize("given", ["[http://[::1]:8]", "http://[::1]:8", "[http://a, http://[::1]:8]"])
def test_advice_on_a_list_of_addresses_with_brackets_can_be_followed(given: str) -> None:
    (problem,) = problems(f"hosts={given}", schema=Hosts)
    (override,) = shlex.split(problem.partition("a list takes brackets: ")[2])
    assert load_config(Hosts, [], [override]).hosts[-1] == "http://[::1]:8"


def test_nothing_near_lists_the_keys_of_the_section() -> None:
    (problem,) = problems("judge.zzzz=1")
    assert problem.endswith("valid keys here are judge.address, judge.concurrency")
    (problem,) = problems("judge.zzzz={yyyy: 1}")  # the keys are its own neighbours
    assert problem.startswith("judge.zzzz (command line): unknown key; valid keys here are judge.address, ")


def test_all_problems_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("stps: 1\noptimizer: {warmup: -1}\nresume: 3\n")
    found = problems("seeds=3", "modality", files=(path,))
    assert len(found) == 5
    assert "optimizer.warmup must be at least 0, got -1" in " ".join(found).replace(f" ({path})", "")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("output=/data/caf\udce9", "output"),
        ('name="a\\ud83d"', "name"),
        ('notes={"b\\ud83d": x}', r"notes.b\ud83d"),
        ('sources=[{path: "\\udce9"}]', "sources"),
    ],
)
def test_half_of_a_character_is_refused_by_its_key(override: str, key: str) -> None:
    """Python reads a path on the command line so that is not UTF-8."""
    found = problems(override, "steps=0")
    assert found[0].startswith(f"{key} (command line): '\\ud")
    assert "is half of a character" in found[0]
    assert found[-1].startswith("steps (command line): expected int >= 1")


def test_required_keys() -> None:
    assert problems(schema=WithRequired) == ("seed: is required (int) and is not set",)
    assert load_config(WithRequired, [], ["seed=1", "root.steps=2"]) == WithRequired(
        seed=1, root=Root(steps=2)
    )
    assert "sources.0.path: is required" in problems("sources=[{weight: 1}]")[0].replace(
        " (command line)", ""
    )


def test_extends(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "root.yaml").write_text("steps: 1\nname: base\n")
    (tmp_path / "base" / "fast.yaml").write_text("extends: root.yaml\nsteps: 2\n")
    top = tmp_path / "top.yaml"
    top.write_text("extends: [base/fast.yaml]\noptimizer: {warmup: 0}\n")
    config = load_config(Root, [top])
    assert (config.name, config.steps, config.optimizer.warmup) == ("base", 2, 0)


def test_what_two_files_extend_takes_nothing_back_of_the_first(tmp_path: Path) -> None:
    base, a, b, both = (tmp_path / f"{name}.yaml" for name in ("base", "a", "b", "both"))
    base.write_text("steps: 1\nname: base\noptimizer: {warmup: 1}\n")
    a.write_text("extends: base.yaml\nsteps: 2\noptimizer: {warmup: 2}\n")
    b.write_text("extends: ../" + tmp_path.name + "/base.yaml\nname: b\n")
    both.write_text("extends: [a.yaml, b.yaml]\noptimizer: {warmup: 3}\n")
    for files, warmup in (([a, b], 2), ([both], 3), ([base, a, b], 2)):
        config = load_config(Root, files)
        assert (config.name, config.steps, config.optimizer.warmup) == ("b", 2, warmup)
    # What is given itself stands where it is given.
    assert load_config(Root, [a, b, base]) == load_config(Root, [base])


def test_extends_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    (problem,) = problems(files=(tmp_path / "a.yaml",))
    assert "in a circle" in problem
    assert problem.count("b.yaml") == 1


def test_a_path_or_an_override_in_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\n")
    for alone in (path, str(path)):
        kind = type(alone).__name__
        with pytest.raises(ConfigError, match=f"yaml_paths is a single {kind}: give a list of them, ") as one:
            load_config(Root, alone)  # type: ignore[arg-type]
        assert str(one.value).endswith(f"['{path}']")
    assert load_config(Root, [str(path)]).name == "a"
    with pytest.raises(ConfigError, match=r"overrides is a single str: give a list of them, \['steps=3'\]"):
        load_config(Root, [path], "steps=3")


def test_unusable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    assert problems(files=(path,))[0] == f"{path}: cannot be read: no such file or directory"
    monkeypatch.chdir(tmp_path)
    told = f"gone.yaml: cannot be read: no such file or directory in {tmp_path}"
    assert problems(files=(Path("gone.yaml"),))[0] == told
    path.write_text("extends: nowhere.yaml\n")
    assert "nowhere.yaml" in problems(files=(path,))[0]
    path.write_text("steps: [1\n")
    assert "not valid YAML" in problems(files=(path,))[0]
    path.write_text("- 1\n")
    assert "expected a mapping" in problems(files=(path,))[0]
    path.write_text("steps: 1\nsteps: 2\n")
    assert "given twice" in problems(files=(path,))[0]
    path.write_text("name: &a\n  steps: [*a]\n")
    assert "*a stands in what it is an alias of" in problems(files=(path,))[0]
    path.write_text("weights: {<<: {a: 1}, <<: {b: 1}}\n")
    assert "the key '<<' is given twice" in problems(files=(path,))[0]
    path.write_text("")
    assert load_config(Root, [path]) == Root()


def test_what_is_merged_may_be_given_again(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text(
        "optimizer: &o\n  <<: &deep {warmup: 1, clip: 1}\n  warmup: 2\nweights: {a: 1}\n"
        "judge: {<<: &j {address: x}, concurrency: 3}\n"
    )
    config = load_config(Root, [path])
    assert (config.optimizer.warmup, config.optimizer.clip) == (2, 1.0)
    assert config.judge == Judge(address="x", concurrency=3)


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029", "\ufeff", "\x7f", "\r", "\t", "\xa0"])
def test_a_dump_keeps_every_character(mark: str) -> None:
    for text in (mark, f"a{mark}b", f"a: {mark} 'c'\nd"):
        assert parse_yaml(dump_config(Root(name=text)))["name"] == text  # type: ignore[call-overload,index]
        assert load_config(Root, [], [f"notes={inline_yaml({'a': text})}"]).notes == {"a": text}


def test_dump_round_trips(tmp_path: Path) -> None:
    config = Root(
        name="5e-7",
        output=Path("a b"),
        optimizer=Optimizer(learning_rate=5e-7, clip=math.inf, betas=(1, 0.5)),
        judge=Judge(address="1:30"),
        sources=(Source(path="null", weight=2), Source(path="é: #")),
        weights={"true": 0.1},
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(Root, [path]) == config
    # Other readers see a list where a tuple was, and no tags of Python.
    assert "!!" not in path.read_text()
    assert yaml.safe_load(dump_config(Root()))["sources"] == []


def test_settings_are_checked_whenever_they_are_made() -> None:
    optimizer = Optimizer(warmup=3)
    changed = dataclasses.replace(optimizer, learning_rate=1)
    assert (changed.learning_rate, changed.warmup) == (1.0, 3)
    assert isinstance(changed.learning_rate, float)
    wrong = {"clip": 0.0, "learning_rate": math.nan, "warmup": 1.0, "betas": [0.5, 0.6]}
    for name, value in [*wrong.items(), ("warmup", "3"), ("warmup", True)]:
        with pytest.raises(ValidationError, match=name):
            Optimizer(**{name: value})
        with pytest.raises(ValidationError, match=name):
            dataclasses.replace(optimizer, **{name: value})
    with pytest.raises(ValidationError, match="warm_up"):
        Optimizer(warm_up=3)
    with pytest.raises(ValueError, match="warmup must be at least 0, got -1"):
        Optimizer(warmup=-1)


def test_settings_are_frozen_values() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Optimizer().warmup = 3  # type: ignore[misc]
    assert Optimizer(warmup=3) == Optimizer(warmup=3) != Optimizer()
    assert len({Optimizer(), Optimizer(), Optimizer(warmup=3)}) == 2


def test_what_yaml_tags_as_something_else_and_numbers_too_long_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tagged.yaml"
    path.write_text("name: !!binary aGVsbG8=\n")
    assert "not valid YAML" in problems(files=(path,))[0]
    path.write_text(f"steps: {2**63}\n")
    assert "whole numbers have at most 64 bits" in problems(files=(path,))[0]
