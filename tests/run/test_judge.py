"""What a run adds to the configured reward, and the judge that is asked before anything else is done."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from PIL import Image

from tests.bare_context import bare_context
from tests.data.media_files import write_video
from tests.models.qwen3_vl.processing.cases import pixels
from tests.models.qwen3_vl.processing.tiny_tokenizer import tiny_tokenizer
from tests.patience import GUARD_S
from tests.processes_in_threads import in_threads
from tests.reward.scripted_judge import Reply, ScriptedJudge, verdict
from vcap_jax.configuration import load_config
from vcap_jax.data.errors import MediaError
from vcap_jax.data.manifest import read_manifest
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.models.qwen3_vl.processing.settings import VideoSettings
from vcap_jax.parallel.processes import ALONE, PeerFailed, Processes
from vcap_jax.recipes import distill, self_improve, sft
from vcap_jax.recipes import grpo as run
from vcap_jax.report.run_folder import RunFolder, RunFolderError
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.reward.questions import read_questions
from vcap_jax.reward.session import RewardSession
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext, sample_reader
from vcap_jax.run.judge import (
    OTHER_JUDGE,
    answering_judge,
    context_warning,
    own_data,
    reward_session,
    reward_settings,
)
from vcap_jax.run.judge_record import noted_judge
from vcap_jax.world.config import WorldConfig
from vcap_jax.world.splits import prepare_embedded_data

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
IMAGE, VIDEO = 17_408, 41_984
"""What serve.py takes by itself (gpu_judge/README.md)."""


def place_of(index: int, config: RunConfig, root: Path) -> RunContext:
    """Of one of two processes."""
    return bare_context(config, root, processes=Processes(index, 2))


def test_each_process_writes_a_file_of_questions_of_its_own(tmp_path: Path) -> None:
    """In containers processes of several hosts have the same number, by which a half-written file is named."""
    config = load_config(RunConfig, [], ["reward={family: vqa, vqa: {about: scene}}"])
    world = prepare_embedded_data(tmp_path / "data", "image", WorldConfig(train_scenes=3, heldout_scenes=1))
    found = []
    for index in range(2):
        path = reward_settings(place_of(index, config, tmp_path / "run"), None, world).vqa.questions
        assert path is not None
        found.append((path, read_questions(path)))
    assert found[0][0] != found[1][0]
    assert found[0][1] == found[1][1]
    assert list(found[0][1]) == list(world.train_scenes)


def test_each_process_keeps_judgements_of_its_own(tmp_path: Path) -> None:
    pool = ReferencePool(PoolEntry(id=name, references=(f"A {name} dog.",)) for name in ("red", "blue"))
    for named, files in (
        ("null", ["run/judgements.sqlite", "run/judgements-1.sqlite"]),
        (str(tmp_path / "all" / "mine.db"), ["all/mine.db", "all/mine-1.db"]),
    ):
        config = load_config(RunConfig, [], ["reward.family=imitation", f"judge.store={named}"])
        for index, file in enumerate(files):
            assert not (tmp_path / file).exists()
            with reward_session(place_of(index, config, tmp_path / "run"), config.reward, pool, config.judge):
                assert (tmp_path / file).exists()


@pytest.fixture
def judge() -> Iterator[ScriptedJudge]:
    server = ScriptedJudge()
    yield server
    server.close()


def asking(judge: ScriptedJudge, *more: str) -> RunConfig:
    return load_config(RunConfig, [], [f"judge.urls=[{judge.url}]", *more])


def test_a_configured_judge_is_asked_and_taken_as_it_is(judge: ScriptedJudge, tmp_path: Path) -> None:
    config, said = asking(judge), []
    with answering_judge(config, RunFolder(tmp_path), said.append) as answering:
        assert answering == dataclasses.replace(config.judge, model="the-judge")
    assert said == [f"judge the-judge at {judge.url} is ready"]
    assert [len(body["messages"][0]["content"]) for body in judge.greetings] == [1, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["judge.json"]


@pytest.mark.parametrize(
    ("owned_by", "more", "message"),
    [
        ("vllm", ["modality=video"], r"refuses one with a video \(400: At most 0.*frames$"),
        ("someone", ["modality=video"], r"refuses one with pictures \(400: At most 0.*--modality\)$"),
        ("vllm", [], r"refuses one with pictures"),
        ("vllm", ["reward.family=judge"], r"refuses one with pictures"),
        ("vllm", ["reward.use_image=false"], None),
        ("vllm", ["reward.family=random"], None),
    ],
)
def test_a_judge_that_takes_no_such_pictures_is_told_before_any_work(
    judge: ScriptedJudge, tmp_path: Path, owned_by: str, more: list[str], message: str | None
) -> None:
    """Every question of the run would fail, after hours of references."""
    judge.owned_by = owned_by
    shown: list[str] = []

    def greets(body: dict[str, Any]) -> Reply:
        shown.extend(part["type"] for part in body["messages"][0]["content"] if part["type"] != "text")
        if len(body["messages"][0]["content"]) == 1:
            return judge.greeting
        return Reply(status=400, raw='{"error": {"message": "At most 0 may be provided in one prompt."}}')

    judge.greets = greets
    entered = answering_judge(asking(judge, *more), RunFolder(tmp_path), lambda text: None)
    if message is None:
        with entered:
            assert shown == []
        return
    with pytest.raises(JudgeUnavailable, match=message), entered:
        pass
    assert set(shown) == {"video_url" if "a video" in message else "image_url"}
    assert not (tmp_path / "judge.json").exists()


def test_where_a_greeting_is_refused_pictures_are_not_blamed(judge: ScriptedJudge, tmp_path: Path) -> None:
    judge.greeting = Reply(status=400, raw='{"error": {"message": "I judge captions only."}}')
    with answering_judge(asking(judge), RunFolder(tmp_path), lambda text: None):
        pass


def test_a_judge_that_refuses_the_form_of_an_answer_is_told_before_any_work(
    judge: ScriptedJudge, tmp_path: Path
) -> None:
    """A greeting has no form, and after hours of references every question failed."""

    def refuses(body: dict[str, Any]) -> Reply:
        if body["response_format"]["type"] == "json_schema":
            return Reply(status=400, raw='{"error": {"message": "maxLength is not permitted."}}')
        return verdict()

    judge.trial = refuses
    entered = answering_judge(asking(judge), RunFolder(tmp_path), lambda text: None)
    with pytest.raises(JudgeUnavailable, match=r"(?s)maxLength is not.*response_format=json_object"), entered:
        pass
    said: list[str] = []
    with answering_judge(
        asking(judge, "judge.response_format=json_object"), RunFolder(tmp_path), said.append
    ):
        assert len(said) == 1


@pytest.mark.parametrize("family", ["witness_adjudicator", "claim_differences"])
@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(content="Let me think.", finish_reason="length"), r"\(cut_off\)\. Raise judge\.max_tokens"),
        (Reply(content="Everything is grey."), r"\(no_verdict\)\. Ask a model that answers in JSON"),
        (Reply(drop=True), r"\(connection\)\. Look at its server's log"),
    ],
)
def test_an_answer_that_is_of_no_use_is_told_before_any_work(
    judge: ScriptedJudge, tmp_path: Path, family: str, reply: Reply, told: str
) -> None:
    judge.trial = lambda body: reply
    said: list[str] = []
    config = asking(judge, f"reward.family={family}", "judge.backoff_s=0")
    with answering_judge(config, RunFolder(tmp_path), said.append):
        pass
    assert re.search(
        f"^warning: nothing can be made of the judge's answer to a trial question: .*{told}", said[0]
    )


@pytest.mark.parametrize(
    "family",
    [
        "witness_adjudicator",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("judge", "claim_differences", "balanced")),
    ],
)
@pytest.mark.parametrize("modality", ["image", "video"])
def test_the_embedded_judge_answers_a_trial_question(tmp_path: Path, family: str, modality: str) -> None:
    config = load_config(RunConfig, [], [f"reward.family={family}", f"modality={modality}"])
    said: list[str] = []
    with answering_judge(config, RunFolder(tmp_path), said.append):
        assert not any("warning" in text for text in said)


def test_where_none_is_configured_the_embedded_one_answers_until_the_end(tmp_path: Path) -> None:
    config, said = load_config(RunConfig, [], ["world.judge_perception.miss=0.25"]), []
    with answering_judge(config, RunFolder(tmp_path), said.append) as answering:
        (url,) = answering.urls
        with urlopen(f"{url}/health", timeout=GUARD_S) as reply:
            assert reply.status == 200
    assert "embedded-judge" in said[-1]
    assert "0.25" in said[-1]
    with pytest.raises(URLError):
        urlopen(f"{url}/health", timeout=GUARD_S)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["judge.json", "judge.log"]


def test_nobody_is_asked_for_a_reward_without_a_judge(judge: ScriptedJudge, tmp_path: Path) -> None:
    config, said = asking(judge, "reward.family=imitation"), []
    with answering_judge(config, RunFolder(tmp_path), said.append):
        pass
    assert said == ["the reward family imitation asks no judge"]
    assert judge.greetings == []


def test_a_second_judge_is_tried_and_not_waited_for(judge: ScriptedJudge, tmp_path: Path) -> None:
    second = f"second_judge={{judge: {{urls: [{judge.url.replace('127.0.0.1', 'localhost')}]}}}}"
    config, said = asking(judge, second), []
    with answering_judge(config, RunFolder(tmp_path), said.append, second=config.second_judge):
        pass
    assert "the second judge at http://localhost" in said[-1]
    assert len(judge.greetings) == 3 + 1
    config = asking(judge, "second_judge={judge: {urls: [http://127.0.0.1:9]}}")
    with answering_judge(config, RunFolder(tmp_path), said.append, second=config.second_judge):
        pass
    assert said[-1] == (
        "the second judge at http://127.0.0.1:9 does not answer yet (connection refused): the run begins without it; "
        "second_judge/failed counts"
    )
    other = ScriptedJudge()
    other.models_status = 401
    config = asking(judge, f"second_judge={{judge: {{urls: [{other.url}]}}}}")
    entered = answering_judge(config, RunFolder(tmp_path), said.append, second=config.second_judge)
    with pytest.raises(JudgeUnavailable, match=r"set second_judge\.judge\.api_key_env to the name"), entered:
        pass
    other.close()


def test_a_run_is_refused_other_models_as_its_other_judges_when_it_goes_on(
    judge: ScriptedJudge, tmp_path: Path
) -> None:
    """Where no setting names the model nothing else tells: changes since the start would be between two judges."""
    others = ScriptedJudge()
    config = asking(
        judge,
        f"second_judge={{judge: {{urls: [{others.url}]}}}}",
        f"evaluation.other_judge={{urls: [{others.url}]}}",
    )
    ctx = bare_context(config, tmp_path)

    def second() -> None:
        with answering_judge(config, ctx.folder, ctx.say, second=config.second_judge):
            pass

    def of_evaluation() -> None:
        other = config.evaluation.other_judge
        assert other is not None
        with reward_session(ctx, config.reward, None, other, role=OTHER_JUDGE, store="other.sqlite"):
            pass

    for _ in range(2):
        second()
        of_evaluation()
    others.models = ["another"]
    wrong = r"of the run in .* was the-judge, and another answers now \("
    with pytest.raises(RunFolderError, match=rf"^the second judge {wrong}second_judge\.judge\.urls\)"):
        second()
    with pytest.raises(
        RunFolderError, match=rf"^the other judge of the evaluation {wrong}evaluation\.other_"
    ):
        of_evaluation()
    assert noted_judge(ctx.folder) == "the-judge"
    others.close()


def test_what_is_scored_hours_later_is_scored_by_the_judge_that_was_noted(
    judge: ScriptedJudge, tmp_path: Path
) -> None:
    """Where no setting names the model, whatever was served by then judged the run, under the first one's name."""
    other = ScriptedJudge()
    (tmp_path / "my.txt").write_text((CONFIGS.parent / "vcap_jax/reward/instructions/image.txt").read_text())
    config = asking(
        judge,
        f"judge.urls=[{judge.url}, {other.url}]",
        f"reward.instructions.image={tmp_path / 'my.txt'}",
    )
    ctx = bare_context(config, tmp_path)
    with answering_judge(config, ctx.folder, ctx.say) as answering:
        other.models = ["another"]
        with reward_session(ctx, config.reward, None, answering):
            assert judge.greetings[-1]["model"] == "the-judge"
        judge.models = ["another"]
        entered = reward_session(ctx, config.reward, None, answering)
        with (
            pytest.raises(JudgeUnavailable, match=r"serves another, and judge\.model names the-judge \(or"),
            entered,
        ):
            pass
        judge.models = ["the-judge"]
        (tmp_path / "my.txt").write_text((tmp_path / "my.txt").read_text() + "\nBe kind.")
        entered = reward_session(ctx, config.reward, None, answering)
        with pytest.raises(RunFolderError, match=r"another text in the file of reward\.instr"), entered:
            pass
    other.close()


def test_a_judge_that_one_process_cannot_use_ends_the_others_too(
    judge: ScriptedJudge, tmp_path: Path
) -> None:
    bad = ScriptedJudge()
    bad.greeting = Reply(status=401, raw="no")

    def work(processes: Processes) -> str:
        config = asking(bad if processes.index else judge)
        try:
            with answering_judge(config, RunFolder(tmp_path), lambda _: None, processes):
                return "went on"
        except (JudgeUnavailable, PeerFailed) as error:
            return f"{type(error).__name__}: {error}"

    first, second = in_threads(2, work)
    bad.close()
    assert first.startswith("PeerFailed: process 1, judge: JudgeUnavailable")
    assert "refuses the key" in second


def reached(*_: Any, **__: Any) -> None:
    raise AssertionError("work was begun before the judge was asked")


@pytest.mark.parametrize("command", ["run", "distill", "self_improve"])
def test_a_wrong_key_costs_no_work(
    judge: ScriptedJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    judge.models_status = 401
    config = dataclasses.replace(asking(judge), mesh=dataclasses.replace(RunConfig().mesh, fsdp=1))
    folder = RunFolder.open(tmp_path / "all", config)
    monkeypatch.setattr(run, "prepare", reached)
    monkeypatch.setattr(distill, "_candidates_to_best", reached)
    monkeypatch.setattr(self_improve, "_references_by", reached)

    def start() -> None:
        if command == "run":
            run.run(config, folder, say=lambda _: None)
        elif command == "distill":
            distill.distill(config, folder, [distill.Teacher(name="self")], say=lambda _: None)
        else:
            (folder.data / "shared").mkdir(parents=True)
            (folder.root / "e1").mkdir()
            summary = folder.root / "e1" / "summary.json"
            with pytest.MonkeyPatch.context() as first:
                first.setattr(self_improve, "run", lambda *_, **__: summary.write_text("{}"))
                self_improve.self_improve(config, folder, rounds=2, say=lambda _: None)

    with pytest.raises(JudgeUnavailable, match="refuses the key"):
        start()


@pytest.mark.parametrize("command", ["run", "supervised"])
def test_a_wrong_key_of_the_evaluations_other_judge_costs_no_work(
    judge: ScriptedJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    other = ScriptedJudge()
    other.models_status = 401
    config = asking(
        judge,
        f"evaluation.other_judge={{urls: [{other.url}]}}",
        f"data.heldout={tmp_path / 'held.jsonl'}",
        "mesh.fsdp=1",
    )
    (tmp_path / "held.jsonl").touch()
    monkeypatch.setattr(run, "prepare", reached)
    monkeypatch.setattr(sft, "prepare", reached)
    start = run.run if command == "run" else sft.run_sft
    with pytest.raises(JudgeUnavailable, match=r"evaluation\.other_judge\.api_key_env"):
        start(config, RunFolder.open(tmp_path / "all", config), say=lambda _: None)
    other.close()


def test_captions_that_are_scored_need_no_judge(
    judge: ScriptedJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge.stop()
    config = asking(judge)
    folder = RunFolder.open(tmp_path / "all", config)
    (folder.root / "self").mkdir()
    (folder.root / "self" / "scores.jsonl").touch()

    class Reached(Exception):
        pass

    def work(*_: Any) -> None:
        raise Reached

    monkeypatch.setattr(distill, "_candidates_to_best", work)
    with pytest.raises(Reached):
        distill.distill(config, folder, [distill.Teacher(name="self")], say=lambda _: None)


def test_the_judge_is_shown_the_same_bytes_and_no_prompt_is_made(tmp_path: Path) -> None:
    Image.fromarray(pixels(150, 170)).save(tmp_path / "photo.jpg")
    Image.fromarray(pixels(40, 90)).save(tmp_path / "small.png")
    write_video(tmp_path / "clip.mp4", 21, fps=10)
    (tmp_path / "cut.png").write_bytes((tmp_path / "small.png").read_bytes()[:300])
    rows: list[dict[str, object]] = [
        {"id": "pair", "images": ["photo.jpg", "small.png"], "prompt": "Compare."},
        {"id": "clip", "video": "clip.mp4"},
        {"id": "cut", "image": "cut.png"},
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = read_manifest(tmp_path / "m.jsonl")
    config = load_config(RunConfig, [], ["data.judge_media.max_edge=140", "data.threads=3"])
    whole = Processor(
        tiny_tokenizer(), video=VideoSettings(fps=4.0).with_budget(max_frames=5, max_frame_tokens=4)
    )
    frames_alone = SimpleNamespace(video=whole.video)  # it has no encode
    ctx: Any = SimpleNamespace(config=config, policy=SimpleNamespace(processor=frames_alone), processes=ALONE)
    session = cast(RewardSession, None)
    with own_data(
        cast(RunContext, ctx), samples, None, session=session, reward=config.reward, pool=None
    ) as own:
        assert own is not None
        assert own.threads == 3
        load = sample_reader(config, whole)
        for sample in samples[:2]:
            assert own.media(sample) == load(sample).media
        with pytest.raises(MediaError, match=r"cut\.png") as before:
            load(samples[2])
        with pytest.raises(MediaError, match=r"cut\.png") as now:
            own.media(samples[2])
        assert str(now.value) == str(before.value)


def paper(modality: str, *more: str, over: tuple[str, ...] = ()) -> RunConfig:
    files = [CONFIGS / "paper" / f"{modality}.yaml", *(CONFIGS / name for name in over)]
    return load_config(RunConfig, files, list(more))


@pytest.mark.parametrize(("modality", "context"), [("image", IMAGE), ("video", VIDEO)])
def test_the_papers_runs_fit_the_context_that_serve_py_takes(modality: str, context: int) -> None:
    config = paper(modality)
    assert context_warning(config, context) is None
    assert context_warning(config, None) is None
    short = context_warning(config, 8192)
    assert short is not None
    assert f"--max-model-len {context} " in short, "what serve.py would have taken"


def test_long_answers_want_a_longer_context() -> None:
    told = context_warning(paper("image", over=("rewards/balanced.yaml",)), IMAGE)
    assert told is not None
    longest = 2 * 4096 + 6_422_528 // 1024 + 6144
    assert "the judge takes 17,408 tokens of a question and its answer (max_model_len), and" in told
    assert f"may want {longest:,}" in told
    assert "6,144 of an answer (judge.max_tokens)" in told
    assert "--judge-max-model-len 22528" in told


@pytest.mark.parametrize(
    ("overrides", "longest"),
    [
        (["reward.use_image=false"], 2 * 4096 + 1024),
        (["reward.use_reference=false"], 4096 + 6272 + 1024),
        (["reward.family=judge"], 4096 + 6272 + 1024),
        (["references.max_completion_length=100"], 4096 + 100 + 6272 + 1024),
        (["data.judge_media.max_edge=1024"], 2 * 4096 + 1024 + 1024),
        (["data.max_pixels=null"], 2 * 4096 + 1024),
    ],
)
def test_what_the_judge_is_not_given_does_not_count(overrides: list[str], longest: int) -> None:
    config = paper("image", *overrides)
    assert context_warning(config, longest) is None
    assert f"may want {longest:,}:" in str(context_warning(config, longest - 1))


def test_frames_that_are_sent_as_pictures_count_twice() -> None:
    longest = 200 * (256 + 12) + 2 * 6300 + 1024
    assert f"may want {longest:,}:" in str(context_warning(paper("video", "judge.video_input=frames"), VIDEO))


@pytest.mark.parametrize(("told", "warned"), [(1000, True), (100_000, False), (None, False), ("long", False)])
def test_a_run_says_so_once_when_its_judge_is_ready(tmp_path: Path, told: object, warned: bool) -> None:
    judge, said = ScriptedJudge(), list[str]()
    judge.max_model_len = told
    try:
        with answering_judge(paper("image", f"judge.urls=[{judge.url}]"), RunFolder(tmp_path), said.append):
            pass
    finally:
        judge.close()
    assert sum("max_model_len" in line for line in said) == warned
