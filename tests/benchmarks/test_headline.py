"""The README's table: which runs are made, and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import headline
from vcap_jax.configuration import dump_config, load_config
from vcap_jax.run.config import RunConfig

NOTHING_CLAIMED = {"coverage": 0.0, "hallucination": None, "invented_share": None}


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of every script that was started; instead of a run each leaves its configuration and its summary, as
    of the folder that it was started in. Seed 2 claims nothing."""
    started: list[list[str]] = []

    def run(words: list[str], *, check: bool, cwd: Path) -> None:
        assert check
        started.append(words)
        folder = cwd / words[words.index("--run-dir" if "--run-dir" in words else "--dir") + 1]
        folder.mkdir(parents=True, exist_ok=True)
        files = [word.removeprefix("--config=") for word in words if word.startswith("--config=")]
        keys = [word for word in words[1:] if "=" in word and not word.startswith("--")]
        seed = next(key for key in keys if key.startswith("seed="))
        config = load_config(RunConfig, files, [*keys, f"modality={words[words.index('--modality') + 1]}"])
        (folder / "config.yaml").write_text(dump_config(config))
        (folder / "metrics.jsonl").write_text("{}\n")
        claimed = {"coverage": 0.5, "hallucination": 0.25, "invented_share": 0.125}
        row = NOTHING_CLAIMED if seed == "seed=2" else claimed
        rows = dict.fromkeys((*headline.ROWS, "base", "e1", "references of e2", "e2"), row)
        (folder / "summary.json").write_text(json.dumps(rows | {"rows": rows}))

    monkeypatch.setattr(headline.subprocess, "run", run)
    monkeypatch.setattr(headline, "code_version", lambda: "VCap-JAX 0.1 at abc1234")
    monkeypatch.chdir(tmp_path)
    return started


@pytest.fixture
def headlines(
    scripts: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What the command prints for these words."""

    def called(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["headline.py", *words])
        headline.main()
        return capsys.readouterr().out

    return called


def test_started_anywhere_it_finds_its_runs_and_fragments(scripts: list[list[str]], tmp_path: Path) -> None:
    """The scripts are started in the repository."""
    Path("mine.yaml").write_text("max_steps: 20\n")
    for _ in range(2):
        rows = headline.run_of(Path("runs"), "image", 0, headline.Settings(fragments=[Path("mine.yaml")]))
        assert set(rows) == set(headline.ROWS.values())
        assert "e2" in headline.rounds_of(Path("runs"), "video", 1, 2)
    folders = sorted(path.name for path in Path("runs").iterdir() if path.is_dir())
    assert folders == ["image-0", "rounds-video-1"]
    assert [Path(words[1]).name for words in scripts] == ["train.py", "self_improve.py"], "each is made once"
    assert f"--config={tmp_path / 'mine.yaml'}" in scripts[0]


AT_LEAST_ONE = "--seeds and --rounds: give at least 1"
BOTH = "--first and --first-steps: give both, or neither, and not with --rounds"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--seeds 0", AT_LEAST_ONE),
        ("--rounds 0", AT_LEAST_ONE),
        ("--first-steps 60", BOTH),
        ("--first more.yaml", BOTH),
        ("--first more.yaml --first-steps 60 --rounds 2", BOTH),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_run(
    words: str,
    reason: str,
    scripts: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["headline.py", *words.split()])
    with pytest.raises(SystemExit):
        headline.main()
    assert reason in capsys.readouterr().err
    assert not scripts


def test_complete_runs_of_another_configuration_are_refused(
    scripts: list[list[str]], headlines: Callable[..., str]
) -> None:
    headlines("--modality", "image", "--seeds", "1")
    Path("mine.yaml").write_text("max_steps: 20\n")
    for words, reason in (
        (["mine.yaml"], r"image-0 cannot be resumed .*\n.*max_steps: 200 then, 20 now"),
        (["typo.yaml"], r"typo\.yaml"),
    ):
        with pytest.raises(SystemExit, match=reason):
            headlines("--modality", "image", "--seeds", "1", "--config", *words)
    assert len(scripts) == 1


def test_a_run_goes_on_from_a_first_one_with_a_fragment_in_addition(
    scripts: list[list[str]], headlines: Callable[..., str], tmp_path: Path
) -> None:
    """The first has the fragment and its own number of steps, the second neither; both have the other settings."""
    Path("more.yaml").write_text("reward:\n  weights: {completeness: 0.07}\n")
    words = ("--modality", "image", "--seeds", "1", "references.per_sample=2", "max_steps=140")
    for _ in range(2):
        told = headlines(*words, "--first", "more.yaml", "--first-steps", "60")
    assert len(scripts) == 2, "each is made once"
    out = tmp_path / "runs" / "headline"
    first, second = (
        load_config(RunConfig, [out / name / "config.yaml"]) for name in ("first-image-0", "image-0")
    )
    assert (first.max_steps, second.max_steps) == (60, 140)
    assert (first.reward.weights.completeness, second.reward.weights.completeness) == (0.07, 0.04)
    assert first.references.per_sample == second.references.per_sample == 2
    assert second.model.path == str(out / "first-image-0")
    assert second.data.references == str(out / "first-image-0" / "references" / "train.jsonl")
    rows = [line.split(" | ")[0] for line in told.splitlines() if line.startswith("| ")][1:]
    assert rows == [
        "| references",
        "| starting policy, which wrote them",
        "| policy after the first run",
        "| trained policy",
    ]


def test_commits_of_a_first_run_count_too(
    headlines: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("more.yaml").write_text("reward:\n  weights: {completeness: 0.07}\n")
    words = ("--modality", "image", "--seeds", "1", "--first", "more.yaml", "--first-steps", "60")
    headlines(*words)
    (Path("runs/headline") / "image-0" / "summary.json").unlink()
    monkeypatch.setattr(headline, "code_version", lambda: "VCap-JAX 0.1 at def5678")
    assert "not all made at this commit, def5678: seed 0: abc1234 def5678" in headlines(*words)


def test_what_is_known_of_the_other_modality_stays(headlines: Callable[..., str]) -> None:
    headlines("--seeds", "1")
    headlines("--modality", "image", "--seeds", "2")
    known = json.loads(Path("runs/headline/headline.json").read_text())
    assert {modality: len(seeds) for modality, seeds in known.items()} == {"image": 2, "video": 1}


def test_a_seed_that_claims_nothing_is_left_out_and_counted(headlines: Callable[..., str]) -> None:
    told = headlines("--modality", "image")
    assert "| references | 33.3% (0.0 to 50.0) | 25.0% (25.0 to 25.0), 1 without claims |" in told
    assert headline.spread([None, None]) == "2 without claims"


def test_of_more_rounds_those_asked_for_are_told(
    scripts: list[list[str]], headlines: Callable[..., str]
) -> None:
    for rounds, rows in (("2", ["base", "e1", "references of e2", "e2"]), ("1", ["base", "e1"])):
        told = headlines("--modality", "image", "--seeds", "1", "--rounds", rounds)
        assert [line.split(" | ")[0] for line in told.splitlines() if line.startswith("| ")][1:] == [
            f"| {row}" for row in rows
        ]
    assert len(scripts) == 1


def test_runs_of_several_commits_are_told_apart(
    headlines: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--modality", "image", "--seeds")
    assert "commit" not in headlines(*words, "2")
    out = Path("runs/headline")
    (out / "image-0.commit").unlink()  # as a run of before has none
    (out / "image-1" / "summary.json").unlink()
    monkeypatch.setattr(headline, "code_version", lambda: "VCap-JAX 0.1 at def5678+")
    told = headlines(*words, "3")
    assert "at this commit, def5678+: seed 0: unknown, seed 1: abc1234 def5678+, seed 2: def5678+" in told
    known = json.loads((out / "headline.json").read_text())["image"]
    assert [one["commits"] for one in known] == [["unknown"], ["abc1234", "def5678+"], ["def5678+"]]
    monkeypatch.setattr(headline, "code_version", lambda: "VCap-JAX 0.1")
    assert headline.head() == "unknown"
