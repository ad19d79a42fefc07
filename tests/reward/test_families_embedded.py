"""Every family on the embedded world, through the embedded judge as a process: what it rewards, what it cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.patience import GUARD_S
from vcap_jax.data.judge_media import EncodedMedia, JudgeMediaSettings, VideoSource, encode_picture
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.config import JudgeConfig, RewardConfig, VqaConfig
from vcap_jax.reward.group import GroupForReward
from vcap_jax.reward.questions import Question, question_lines
from vcap_jax.reward.restudy import restudy
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import read_judgements
from vcap_jax.world.captions import WeakSettings, full_caption, weak_caption
from vcap_jax.world.dataset import render, sample_scene
from vcap_jax.world.facts import count_facts
from vcap_jax.world.judge_process import embedded_judge
from vcap_jax.world.questions import scene_questions
from vcap_jax.world.scenes import ImageScene, Modality, Scene
from vcap_jax.world.vocabulary import VIDEO_FPS

SETTINGS = JudgeMediaSettings()
NOT_INVENTED = WeakSettings(wrong_fact=0.0, invent_object=0.0)
INVENTED = WeakSettings(omit_object=0.0, omit_fact=0.0, wrong_fact=0.0, invent_object=1.0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_judge(tmp_path_factory.mktemp("judge") / "log") as address:
        yield address


def media_of(scene: Scene) -> EncodedMedia:
    if isinstance(scene, ImageScene):
        picture = encode_picture(render(scene), SETTINGS)
        return EncodedMedia(modality="image", duration=0.0, pictures=(picture,))
    frames = render(scene)
    pictures = tuple(
        encode_picture(frame, SETTINGS, seconds=k / VIDEO_FPS, index=k) for k, frame in enumerate(frames)
    )
    source = VideoSource(frames=len(frames), fps=VIDEO_FPS)
    return EncodedMedia(modality="video", duration=len(frames) / VIDEO_FPS, pictures=pictures, source=source)


def groups(modality: Modality, count: int) -> tuple[list[Scene], list[GroupForReward]]:
    """Candidates: the reference again, the whole truth, the truth and something made up, silence."""
    rng = np.random.default_rng(7)
    scenes, made = [], []
    for index in range(count):
        scene = sample_scene(modality, 11, index)
        reference = weak_caption(scene, rng, NOT_INVENTED)
        invented = weak_caption(scene, rng, INVENTED)
        captions = (reference, full_caption(scene, rng), invented, "Nothing of note.")
        scenes.append(scene)
        made.append(
            GroupForReward(
                sample_id=f"{modality} {index}",
                step=0,
                index=index,
                media=media_of(scene),
                reference=reference,
                captions=captions,
            )
        )
    return scenes, made


def rewards(reward: RewardConfig, judge: JudgeConfig, asked: list[GroupForReward]) -> np.ndarray:
    """[groups, candidates]; nothing may fail."""
    pool = {group.sample_id: (group.reference or "",) for group in asked}
    with RewardSession(reward, judge, seed=0, references=pool) as session:
        session.wait_until_ready(30)
        results = [future.result(GUARD_S) for future in [session.submit(group) for group in asked]]
    assert not [c.failure for result in results for c in result.candidates if c.failure]
    return np.array([result.rewards for result in results], float)


@pytest.mark.parametrize("modality", ["image", pytest.param("video", marks=pytest.mark.slow)])
def test_what_the_families_reward_and_what_they_cannot_see(
    url: str, tmp_path: Path, modality: Modality
) -> None:
    scenes, asked = groups(modality, 12)
    judge = JudgeConfig(urls=(url,))
    about = {}
    for scene, group in zip(scenes, asked, strict=True):
        questions = scene_questions(scene, [group.reference or ""])
        about[group.sample_id] = [Question(text=t, options=o, answer=a) for t, o, a in questions]
        assert len(questions) == count_facts(scene, group.reference or "").correct
    (tmp_path / "q.jsonl").write_text(question_lines(about))
    vqa = RewardConfig(family="vqa", vqa=VqaConfig(questions=str(tmp_path / "q.jsonl")))
    by_vqa = rewards(vqa, judge, asked)
    # The reference answers all of its questions; so do the whole truth and the truth with inventions: what is not
    # asked for neither earns nor costs anything.
    assert (by_vqa[:, :3] == 1).all()
    assert (by_vqa[:, 3] == 0).all()
    by_imitation = rewards(RewardConfig(family="imitation"), JudgeConfig(), asked)
    assert (by_imitation.argmax(axis=1) == 0).all()
    by_witness = rewards(RewardConfig(), judge, asked)
    assert by_witness[:, 1].mean() >= by_witness[:, 0].mean()
    assert by_witness[:, 1].mean() > by_witness[:, 3].mean() + 0.5
    by_judge = rewards(RewardConfig(family="judge"), judge, asked)
    assert by_judge[:, 1].mean() > by_judge[:, 3].mean() + 0.3


@pytest.mark.parametrize("modality", ["image", "video"])
def test_the_rivals_on_what_they_can_see(url: str, modality: Modality) -> None:
    asked, judge = groups(modality, 6)[1], JudgeConfig(urls=(url,))
    by_differences = rewards(RewardConfig(family="claim_differences"), judge, asked)
    # The reference itself differs in nothing; the whole truth errs nowhere, and the reference where it leaves out.
    assert (by_differences[:, 0] == 0.5).all()
    assert np.isin(by_differences[:, 1], (0.5, 1.0)).all()
    # Inventions that no reference speaks of cost, and silence is all omissions.
    assert by_differences[:, 2].mean() < by_differences[:, 1].mean()
    assert (by_differences[:, 3] == 0).all()
    by_balance = rewards(RewardConfig(family="balanced"), judge, asked)
    # Precision and recall of the reference and of the truth are whole; the text of a long truth may not count.
    assert (by_balance[:, :2] > 0.66).all()
    assert by_balance[:, 2].mean() < by_balance[:, 1].mean()
    assert (by_balance[:, 3] < 0.34).all()


def test_the_judge_family_asks_instruction_two_and_can_be_restudied(url: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    expected = rewards(
        RewardConfig(family="judge"), JudgeConfig(urls=(url,), store=str(path)), groups("image", 4)[1]
    )
    videos = groups("video", 2)[1]
    rewards(RewardConfig(family="judge"), JudgeConfig(urls=(url,), store=str(path)), videos)
    asked = {key.instruction for key, _ in read_judgements(path)}
    assert asked == {"image_no_reference", "video_global_no_reference"}
    assert all(key.reference is None for key, _ in read_judgements(path))
    same = {(r.candidate.sample_id, r.candidate.index): r.reward for r in restudy(path, RewardWeights())}
    assert [same[f"image {n}", k] for n in range(4) for k in range(4)] == expected.ravel().tolist()
