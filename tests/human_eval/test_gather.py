"""Items of a study from files of captions, and their propositions from the facts of scenes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.media_files import write_video
from tests.reward.scripted_judge import QUALITY, Reply, ScriptedJudge, candidate_of, verdict
from vcap_jax.commands import propose
from vcap_jax.configuration import load_config
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.human_eval.embedded import read_truth
from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.exchange import Records
from vcap_jax.human_eval.gather import gather
from vcap_jax.human_eval.protocol import Step1
from vcap_jax.human_eval.records import Rankings
from vcap_jax.human_eval.results import results_of
from vcap_jax.human_eval.study import read_items, read_study
from vcap_jax.recipes.score import ScoreRequest, score
from vcap_jax.run.config import RunConfig
from vcap_jax.world.captions import WeakSettings, weak_caption
from vcap_jax.world.dataset import read_scenes, write_dataset
from vcap_jax.world.facts import caption_claims, scene_facts

COUNT = 5


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A manifest of scenes, captions of two models (the second lacks one and failed with one), and a pool."""
    write_dataset(tmp_path / "data", "image", "heldout", COUNT, 0)
    scenes = read_scenes(tmp_path / "data")
    rng = np.random.default_rng(0)
    weak = WeakSettings(omit_object=0.3, omit_fact=0.3, wrong_fact=0.1, invent_object=0.1)
    texts = {name: [weak_caption(scene, rng, weak) for _ in range(2)] for name, scene in scenes.items()}
    rows = [{"id": name, "captions": two} for name, two in texts.items()]
    (tmp_path / "base.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"id": name, "captions": two[::-1]} for name, two in texts.items()][1:]
    rows[-1] = {"id": rows[-1]["id"], "failure": "no"}
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pool = ReferencePool(PoolEntry(id=name, references=(two[0],)) for name, two in texts.items())
    pool.write(tmp_path / "references.jsonl")
    return tmp_path


def files(made: Path, *models: str) -> dict[str, Path]:
    return {model: made / f"{model}.jsonl" for model in models}


def test_items_are_what_every_model_has_captioned(made: Path) -> None:
    given, told = files(made, "base", "mine", "references"), list[str]()
    items = gather(made / "study", made / "data" / "manifest.jsonl", given, say=told.append)
    names = list(read_scenes(made / "data"))
    left_out, no_reward = told
    assert left_out == (
        f"left out: 2 of {COUNT} samples lack a caption (mine has none of 2, such as {names[0]!r})"
    )
    assert no_reward.startswith(
        "no reward: 3 of 3 items have a caption without one (base has none of 3, such as"
    )
    assert [item.id for item in items] == names[1:-1]
    for item in items:
        assert item.models == ("base", "mine", "references")
        assert item.caption("base") == item.caption("references") != item.caption("mine")
        source = made / "data" / "images" / f"{item.id}.png"
        assert (made / "study" / item.media).read_bytes() == source.read_bytes()
    # The study is one that can be annotated.
    (made / "study" / "propositions.jsonl").write_text("")
    assert list(read_study(made / "study").items) == names[1:-1]


def test_a_number_of_items_is_drawn_by_the_seed(made: Path) -> None:
    def drawn(name: str, seed: int) -> list[str]:
        given = files(made, "base", "references")
        items = gather(made / name, made / "data" / "manifest.jsonl", given, count=2, seed=seed)
        return [item.id for item in items]

    assert drawn("one", 0) == drawn("two", 0)
    assert len({tuple(drawn(f"seed{seed}", seed)) for seed in range(8)}) > 1


def test_what_cannot_be_a_study_is_refused(made: Path) -> None:
    manifest = made / "data" / "manifest.jsonl"
    (made / "long.jsonl").write_text(json.dumps({"id": "heldout-000000", "captions": ["x" * 50_001]}))
    with pytest.raises(
        StudyError, match=r'long\.jsonl, "heldout-000000": "text": String should have at most'
    ):
        gather(made / "study", manifest, files(made, "base", "long"))
    (made / "tiff.jsonl").write_text('{"id": "heldout-000000", "image": "data/a.tiff"}\n')
    (made / "data" / "a.tiff").write_bytes(b"")
    with pytest.raises(StudyError, match=r"tiff\.jsonl:1: .*a\.tiff is of a kind that browsers do not show"):
        gather(made / "study", made / "tiff.jsonl", files(made, "base", "references"))
    assert not (made / "study").exists()
    (made / "mp4v.jsonl").write_text('{"id": "heldout-000000", "video": "data/a.mp4"}\n')
    write_video(made / "data" / "a.mp4", 5, codec="mpeg4")
    with pytest.raises(StudyError, match=r"mp4v\.jsonl:1: .*a\.mp4 is coded as mpeg4"):
        gather(made / "study", made / "mp4v.jsonl", files(made, "base", "references"))
    assert not (made / "study").exists()
    # Whichever are drawn.
    rows = manifest.read_text().splitlines(keepends=True)
    several = {"id": json.loads(rows[-1])["id"], "images": ["data/a.tiff", "data/a.tiff"]}
    (made / "several.jsonl").write_text("".join(rows[:-1]) + json.dumps(several) + "\n")
    for seed in range(4):
        with pytest.raises(StudyError, match=r"several\.jsonl:5: 2 images;.*leave this row out"):
            gather(
                made / "study", made / "several.jsonl", files(made, "base", "references"), count=1, seed=seed
            )
    assert not (made / "study").exists()
    with pytest.raises(StudyError, match="at most 8 models, not 9"):
        gather(made / "study", manifest, {f"m{number}": made / "base.jsonl" for number in range(9)})
    with pytest.raises(StudyError, match="of two models"):
        gather(made / "study", manifest, files(made, "base"))
    (made / "other.jsonl").write_text('{"id": "else", "captions": ["A cat."]}\n')
    with pytest.raises(
        StudyError, match=r"base has 5 of them; other has 0 of them\): give files of one manifest"
    ):
        gather(made / "study", manifest, files(made, "base", "other"))
    assert not (made / "study").exists()
    with pytest.raises(StudyError, match="a study has one item at least, not 0: raise --items"):
        gather(made / "study", manifest, files(made, "base", "mine"), count=0)
    assert not (made / "study").exists()


def test_items_that_are_there_must_be_the_same(made: Path) -> None:
    manifest, given = made / "data" / "manifest.jsonl", files(made, "base", "mine")
    first = gather(made / "study", manifest, given)
    assert gather(made / "study", manifest, given) == first
    for other in (files(made, "base", "references"), files(made, "mine", "base")):
        with pytest.raises(StudyError, match="is there already, with other items or captions: leave"):
            gather(made / "study", manifest, other)
    with pytest.raises(StudyError, match="is there already"):
        gather(made / "study", manifest, given, count=1)
    assert list(read_items(made / "study" / "items.jsonl").values()) == list(first)


def test_an_evaluation_by_the_reward_gives_rewards(made: Path) -> None:
    rows = [json.loads(line) for line in (made / "base.jsonl").read_text().splitlines()]
    values = [{"reward": 0.5, "words": 9}, {"reward": 0.75}, {"words": 9}, {"reward": 0.25}, {"reward": 1}]
    for row, value in zip(rows, values, strict=True):
        row["captions"] = row["captions"][:1]
        row["values"] = value
    rows[3]["captions"] *= 2  # the mean of two captions is of none
    (made / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = gather(made / "study", made / "data" / "manifest.jsonl", files(made, "scored", "references"))
    assert [item.captions[0].reward for item in items] == [0.5, 0.75, None, None, 1]
    assert {item.captions[1].reward for item in items} == {None}


def test_rewards_of_vcap_score_are_compared_with_people(made: Path, server: ScriptedJudge) -> None:
    """Of captions by anybody. Items had no reward, and nobody was told."""
    manifest, names = made / "data" / "manifest.jsonl", list(read_scenes(made / "data"))

    def by_words(body: dict[str, object], number: int) -> Reply:
        text = candidate_of(body)
        return verdict({**QUALITY, "Correctness": len(text.split())}) if text != "no" else Reply(content="?")

    server.answer = by_words
    texts = {
        "base": [["one"], ["one two three"], ["one two"], ["one"], ["one"]],
        # First captions count: the second ones would turn what the reward says.
        "mine": [["one two", ""], ["one"], ["two one", "one"], ["no", "one two"], ["one two three", "x"]],
    }
    for model, captions in texts.items():
        path, folder = made / f"{model}.jsonl", made / "scores" / model
        rows = [{"id": name, "captions": of} for name, of in zip(names, captions, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = [f"data.manifest={manifest}", f"data.references={made / 'references.jsonl'}"]
        settings += [f"judge.urls=[{server.url}]", "judge.backoff_s=0.01", "judge.max_tries=1"]
        config = load_config(RunConfig, [], settings)
        score(config, ScoreRequest(captions=path, folder=folder), say=lambda _: None)
    told = list[str]()
    given = {model: made / "scores" / model / "rewards.jsonl" for model in texts}
    items = gather(made / "study", manifest, given, say=told.append)
    assert [item.caption("mine") for item in items] == ["one two", "one", "two one", "no", "one two three"]
    (said,) = told
    assert (
        f"no reward: 1 of {COUNT} items have a caption without one (mine has none of 1, such as {names[3]!r})"
        in said
    )
    # People always prefer mine. The reward: mine, base, neither, nothing, mine.
    (made / "study" / "propositions.jsonl").write_text("")
    study, ranks = read_study(made / "study"), {"mine": 1, "base": 2}
    rankings = tuple(
        Rankings(image_id=name, annotator="anna", accuracy=ranks, completeness=ranks, granularity=ranks)
        for name in names
    )
    found = results_of(study.items, study.propositions, Records(answers=(), rankings=rankings))
    (pair,) = found.pairs["overall"]
    assert (pair.items, pair.ties) == (4, 1)
    assert {ties: value.value for ties, value in pair.agreement.items()} == {
        "counted": 3 / 4, "excluded": pytest.approx(2 / 3), "half": 2.5 / 4,
    }  # fmt: skip


def test_captions_that_were_written_elsewhere(made: Path) -> None:
    names = list(read_scenes(made / "data"))
    texts = {f"{name}.png": f"A picture called {name}." for name in names}
    (made / "map.json").write_text(json.dumps(texts, indent=1))
    rows = [{"id": name, "caption": f"This is {name}."} for name in names]
    (made / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # A file of launch/caption.py that begins with what could not be read.
    failed = json.dumps({"id": names[0], "image": "x.png", "failure": "x.png: not a readable image"})
    read = [json.dumps({"id": name, "captions": [f"I see {name}."], "tokens": [3]}) for name in names[1:]]
    (made / "torn.jsonl").write_text("\n".join([failed, *read, ""]))
    given = {"map": made / "map.json", **files(made, "rows", "torn")}
    items = gather(made / "study", made / "data" / "manifest.jsonl", given)
    assert [item.id for item in items] == names[1:]
    for item in items:
        said = [caption.text for caption in item.captions]
        assert said == [f"A picture called {item.id}.", f"This is {item.id}.", f"I see {item.id}."]


def test_captions_of_other_files_with_the_same_ids_are_refused_by_row(made: Path) -> None:
    """Every run of the embedded world has a heldout-000000; captions of one were put beside pictures of another."""
    write_dataset(made / "other", "image", "heldout", COUNT, 1)
    manifest, names = made / "data" / "manifest.jsonl", list(read_scenes(made / "data"))

    def rows(folder: str) -> None:
        files = {name: str(made / folder / "images" / f"{name}.png") for name in names}
        texts = [{"id": name, "image": file, "captions": ["A car."]} for name, file in files.items()]
        (made / "named.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))

    rows("other")
    with pytest.raises(
        StudyError, match=r"named\.jsonl:1: .*other.*'heldout-000000' is another file, .*: give"
    ):
        gather(made / "study", manifest, files(made, "base", "named"))
    assert not (made / "study").exists()
    rows("gone")
    gather(made / "gone-study", manifest, files(made, "base", "named"))
    rows("copy")
    shutil.copytree(made / "data", made / "copy")
    assert len(gather(made / "study", manifest, files(made, "base", "named"))) == COUNT


def test_facts_of_other_pictures_with_the_same_ids_are_refused(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gather(made / "study", made / "data" / "manifest.jsonl", files(made, "base", "mine"))
    other = write_dataset(made / "other", "image", "heldout", COUNT, 1)
    assert propose.main([str(made / "study"), "--judge", "embedded", "--manifest", str(other)]) == 1
    error = capsys.readouterr().err
    assert 'item "heldout-000001": media/00000.png is not' in error
    assert "give the manifest that the items were made of" in error
    assert not (made / "study" / "propositions.jsonl").exists()


def command(made: Path, *more: str) -> int:
    manifest = str(made / "data" / "manifest.jsonl")
    return propose.main([str(made / "study"), "--judge", "embedded", "--manifest", manifest, *more])


def test_the_embedded_world_needs_no_judge(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(made, "--captions", f"base={made / 'base.jsonl'}", f"mine={made / 'mine.jsonl'}") == 0
    assert "3 items of base, mine" in capsys.readouterr().out
    study, truth = read_study(made / "study"), read_truth(made / "study")
    scenes = read_scenes(made / "data")
    propositions = [one for ones in study.propositions.values() for one in ones]
    assert {one.prop_id for one in propositions} == set(truth)
    for one in propositions:
        item, scene = study.items[one.image_id], scenes[one.image_id]
        # What rests on a claim of the other caption is consistent with the picture if that claim is a fact.
        number = int(one.prop_id.rpartition("/")[2])
        slot, value = caption_claims(scene, item.caption(one.ref_model))[number]
        assert (truth[one.prop_id].step1 is Step1.CONSISTENT) == (scene_facts(scene).get(slot) == value)
    before = (made / "study" / "propositions.jsonl").read_bytes()
    assert command(made) == 0  # of the items that are there
    assert (made / "study" / "propositions.jsonl").read_bytes() == before


def test_settings_may_follow_the_captions(made: Path) -> None:
    given = [f"base={made / 'base.jsonl'}", f"mine={made / 'mine.jsonl'}"]
    args = propose.parse_arguments(
        [str(made), "--judge", "http://a", "--captions", *given, "judge.max_tries=1"]
    )
    assert (args.captions, args.settings) == (given, ["judge.max_tries=1"])


def test_a_manifest_without_scenes_is_told_before_work(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made / "data" / "scenes.jsonl").unlink()
    assert command(made, "--captions", f"base={made / 'base.jsonl'}", f"mine={made / 'mine.jsonl'}") == 1
    assert "there is no scenes.jsonl beside" in capsys.readouterr().err
    assert not (made / "study").exists()


def test_its_words_are_checked(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(made, "--captions", str(made / "base.jsonl"), "x=y") == 1
    assert "give MODEL=FILE" in capsys.readouterr().err
    assert propose.main([str(made / "study"), "--judge", "embedded"]) == 1
