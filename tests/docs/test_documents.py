"""The documents hold: paths that they name exist, links lead somewhere, their Python runs, lines stay short."""

import asyncio
import importlib
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from vcap_jax.data.references import PoolEntry, ReferencePool, Segment
from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.failures import FailureReason
from vcap_jax.reward.family import FamilyTools, made_family
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupPrompt, GroupScores

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "gpu_judge" / "README.md"]
    if "generated" not in path.parts
)
WRITTEN = [path for path in PAGES if path.parent.name != "plans"]  # those are benchmarks/plans.py's
FOLDERS = "benchmarks|configs|docs|gpu_judge|launch|tests|vcap_jax"
NAMED = re.compile(rf"(?<![\w./-])(?:{FOLDERS})/[\w./-]*(?![\w./*-])")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
CODE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
MADE_BY_COMMANDS = ("docs/generated",)


def names(pages):
    return [str(path.relative_to(ROOT)) for path in pages]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_files_and_folders_that_a_page_names_exist(page):
    named = {path.rstrip("./") for path in NAMED.findall(page.read_text(encoding="utf-8"))}
    missing = [path for path in sorted(named) if not (ROOT / path).exists()]
    assert [path for path in missing if not path.startswith(MADE_BY_COMMANDS)] == []


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_relative_links_lead_to_files(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [p for p in PAGES if ROOT / "docs" in p.parents], ids=lambda p: p.name)
def test_pages_of_the_site_lead_to_pages_of_the_site(page):
    """A file outside of docs/ is on the site where a page includes it, as judge_server.md does the judge's README."""
    shown = re.sub(r"^% .*\n", "", page.read_text(encoding="utf-8"), flags=re.M)  # a comment, to MyST
    links = [(page.parent / link).resolve() for link in LINK.findall(shown)]
    assert [link for link in links if link.suffix == ".md" and ROOT / "docs" not in link.parents] == []


def test_a_page_that_is_another_file_links_it_for_who_reads_it_in_the_repository():
    """There is no include on a forge, which shows comments of MyST as text."""
    lines = [(page, page.read_text(encoding="utf-8").splitlines()) for page in (ROOT / "docs").glob("*.md")]
    included = [
        (page.name, match[1], above)
        for page, text in lines
        for above, line in zip(["", *text], text, strict=False)
        if (match := re.fullmatch(r"```\{include\} (\.\./.*)", line))
    ]
    assert {name for name, _, _ in included} == {"changes.md", "contributing.md", "judge_server.md"}
    assert [name for name, file, above in included if not re.fullmatch(rf"% .*\]\({file}\).*", above)] == []


@pytest.mark.parametrize("page", WRITTEN, ids=names(WRITTEN))
def test_prose_has_at_most_100_columns_and_code_110(page):
    long, code = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            code = not code
        elif len(line) > (110 if code else 100) and not line.startswith("|"):  # rows cannot be broken
            long.append(line)
    assert long == []


def test_architecture_lists_the_rooms_in_the_order_that_the_linter_holds():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    rooms = [room.strip() for layer in layers for room in layer.split("|")]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.search(r"^vcap_jax/\n((?:  .*\n)+)", text, re.M)
    assert listed is not None
    assert [line.split()[0] for line in listed[1].splitlines()] == rooms


def test_the_way_of_a_caption_opens_at_most_15_files():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    stations = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \|", text, re.M)
    assert [int(number) for number, _ in stations] == list(range(1, len(stations) + 1))
    assert 0 < len(stations) <= 15
    assert stations[0][1] == "vcap_jax/commands/train.py"


def test_readme_is_short_and_begins_with_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)[:2] == [
        "bash launch/quickstart.sh\n",
        "bash tests/run.sh\n",
    ]


def test_the_reward_of_its_page_scores_captions(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "add_a_reward.md").read_text(encoding="utf-8")
    (tmp_path / "my_rewards").mkdir()
    (tmp_path / "my_rewards" / "brief.py").write_text(CODE.findall(page)[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config = RewardConfig(family="my_rewards.brief:Brief", options={"most": 4})
    prompt = GroupPrompt(sample_id="a", step=0, index=0, media=None, reference=None)
    group = prompt.with_captions(("a red cube", "see http://x", "a b c d e f"))
    scores = asyncio.run(made_family(config, FamilyTools(seed=0)).score_group(group))
    assert scores.rewards == [0.75, None, 1.0]
    assert [dict(one.components) for one in scores.candidates] == [{"words": 3}, {}, {"words": 6}]


def test_the_page_of_rewards_names_fields_that_there_are():
    page = (ROOT / "docs" / "add_a_reward.md").read_text(encoding="utf-8")
    draws = re.search(r"the names in the group \(([^)]*)\)", page)
    assert draws is not None
    of_group = {*re.findall(r"`(\w+)`", draws[1]), *re.findall(r"^\| `group\.(\w+)` \|", page, re.M)}
    assert of_group <= {one.name for one in fields(GroupForReward)}
    assert set(re.findall(r"`tools\.(\w+)`", page)) <= {one.name for one in fields(FamilyTools)}
    rows = re.findall(r"^\| ((?:`\w+`(?: and )?)+) \|", page, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    given = {one.name for kind in (CandidateScore, GroupScores) for one in fields(kind)}
    assert named <= given | {"uses_reference", "asks_judge", "score_group"}
    reasons = re.search(r"\*\*The reason of a failure\*\*(.*?)`FailureReason`", page, re.S)
    assert reasons is not None
    assert {"other", "media"} <= set(re.findall(r'`"(\w+)"`', reasons[1])) <= set(get_args(FailureReason))
    names = re.search(r"\*\*Names of components\*\*(.*?)\n\n", page, re.S)
    assert names is not None
    tried = [name for name in re.findall(r"`([\w/]+)`", names[1]) if name not in ("/", "_")]
    refused = set()
    for name in tried:
        try:
            CandidateScore(reward=1.0, components={name: 1.0})
        except ValueError:
            refused.add(name)
    assert (set(tried) - refused, refused) == ({"style/words", "style/commas"}, {"mean", "std"})


def test_pools_are_joined_by_their_page_whichever_of_them_has_a_sample(tmp_path, monkeypatch):
    instead, source = CODE.findall((ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"))
    (tmp_path / "pools").mkdir()
    cut = Segment(start=0.0, end=1.0, references=("a dog runs",))
    for name, entries in (
        ("e1", [PoolEntry(id="a", references=("x",), segments=(cut,)), PoolEntry(id="b", references=("y",))]),
        ("e2", [PoolEntry(id="c", references=("w",)), PoolEntry(id="a", references=("z",), segments=(cut,))]),
    ):
        ReferencePool(entries).write(tmp_path / "pools" / f"{name}.jsonl")
    monkeypatch.chdir(tmp_path)
    exec(source, {})
    both = ReferencePool.read(tmp_path / "pools" / "both.jsonl")
    assert {one.id: one.references for one in both.entries()} == {
        "a": ("x", "z"),
        "b": ("y",),
        "c": ("w",),
    }
    assert both["a"].segments == (cut, cut)
    held = tmp_path / "DIR" / "e2" / "references" / "heldout.jsonl"
    ReferencePool([PoolEntry(id="c", references=("by the base",))]).write(held)
    exec(instead, {})
    same = ReferencePool.read(tmp_path / "pools" / "same.jsonl")
    assert same.texts() == {"c": ("by the base",), "a": ("z",)}


def test_the_python_reference_finds_every_name_that_it_lists():
    """On the class, as Sphinx looks: a name that it does not find there it leaves out without a word."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    listed = re.findall(r"autoclass:: ([\w.]+)\.(\w+)\n +:members: (.+)", page)
    assert listed
    for module, kind, names in listed:
        found = getattr(importlib.import_module(module), kind)
        assert [name for name in names.split(", ") if not hasattr(found, name)] == [], kind


@pytest.mark.long
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_on_a_page_runs_as_it_stands(page, tmp_path):
    (source,) = CODE.findall((ROOT / page).read_text(encoding="utf-8"))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    if page == "README.md":  # it captions by the run of the first command
        first = [sys.executable, str(ROOT / "launch" / "train.py"), "max_steps=1", "world.train_scenes=16"]
        subprocess.run([*first, "world.heldout_scenes=3"], cwd=tmp_path, capture_output=True, check=True)
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    if page == "README.md":
        assert len(re.findall(r"heldout-\d+\.png", done.stdout)) == 3
        assert done.stdout.count("background") >= 4
    else:
        assert re.fullmatch(r"\[\d\.\d+, \d\.\d+\]", last)
