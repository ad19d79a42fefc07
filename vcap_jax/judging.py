"""The reward of a run: its family, its judge and, in the embedded world, the questions of a family that needs some."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vcap_jax.config import RunConfig
from vcap_jax.data.references import ReferencePool
from vcap_jax.embedded import EmbeddedData
from vcap_jax.judge_process import embedded_judge
from vcap_jax.judge_record import remember_judge
from vcap_jax.report.step_log import replace_file
from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.family import FamilyError, RewardFamily, load_family
from vcap_jax.reward.questions import Question, question_lines
from vcap_jax.reward.session import RewardSession
from vcap_jax.workplace import Workplace
from vcap_jax.world.questions import scene_questions


def reward_family(config: RunConfig) -> type[RewardFamily]:
    """The class of the configured family. Raises FamilyError for one that cannot be used in this run."""
    family = load_family(config.reward)
    if config.second_judge is not None and not family.asks_judge(config.reward):
        raise FamilyError(
            f"reward.family {config.reward.family!r} asks no judge, so a second one has nothing to agree with: leave "
            "out second_judge"
        )
    if config.reward.family == "vqa" and config.reward.vqa.questions is None and config.data.manifest:
        raise FamilyError(
            "reward.vqa.questions is null, which is for the scenes of the embedded world: give a JSONL file with "
            "questions about the samples of data.manifest"
        )
    return family


def reward_settings(place: Workplace, pool: ReferencePool | None, world: EmbeddedData | None) -> RewardConfig:
    """The configured reward with what the run adds: a file of questions about the embedded world's scenes."""
    reward = place.config.reward
    if reward.family != "vqa" or reward.vqa.questions is not None:
        return reward
    if world is None:
        raise FamilyError(
            "reward.vqa.questions is null and there are no scenes to ask about: give a JSONL file"
        )
    asked = {}
    for identity, scene in world.train_scenes.items():
        if reward.vqa.about == "scene":
            captions = None
        elif pool is None or identity not in pool:
            continue
        else:
            captions = pool[identity].references
        asked[identity] = [
            Question(text=text, options=options, answer=answer)
            for text, options, answer in scene_questions(scene, captions)
        ]
    path = place.own_file("questions.jsonl")
    replace_file(path, question_lines(asked).encode())
    place.say(f"{sum(map(len, asked.values()))} questions about {len(asked)} scenes: {path}")
    return dataclasses.replace(reward, vqa=dataclasses.replace(reward.vqa, questions=str(path)))


@contextmanager
def reward_session(
    place: Workplace, reward: RewardConfig, pool: ReferencePool | None
) -> Iterator[RewardSession]:
    """A session that is ready to score groups; it starts the embedded judge where one is asked and none configured.

    Raises FamilyError, JudgeUnavailable, JudgeStartError, StoreError, TemplateError, and RunFolderError for another
    judge than the run had before.
    """
    config, judge = place.config, place.config.judge
    asks = load_family(reward).asks_judge(reward)
    # Of several processes each has its own: SQLite's locks do not reach over a network's storage.
    named = "judgements.sqlite" if judge.store is None else str(Path(judge.store).absolute())
    judge = dataclasses.replace(judge, store=str(place.own_file(named)))
    with ExitStack() as stack:
        if asks and not judge.urls:
            place.say("no judge.urls are configured: starting the embedded judge")
            log = place.own_file("judge.log")
            url = stack.enter_context(embedded_judge(log, config.world.judge_perception))
            judge = dataclasses.replace(judge, urls=(url,))
        references = {} if pool is None else {entry.id: entry.references for entry in pool.entries()}
        session = stack.enter_context(
            RewardSession(reward, judge, seed=config.seed, references=references, say=place.say)
        )
        if asks:
            model = session.wait_until_ready()
            assert model is not None
            remember_judge(place.folder, model, config.reward, first=place.processes.first)
            place.say(f"judge {model} at {', '.join(judge.urls)} is ready")
        else:
            place.say(f"the reward family {reward.family} asks no judge")
        yield session
