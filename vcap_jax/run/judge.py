"""The reward of a run: its family, its judge and, in the embedded world, the questions of a family that needs some; and
its own held-out samples, with what their captions are compared with and who scores them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpu_judge.vllm_server.checkpoint import Checkpoint
from gpu_judge.vllm_server.settings import FRAME_MARK_TOKENS, INSTRUCTION_TOKENS, rounded_context
from vcap_jax.data.examples import media_loader
from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.protocol import OwnData
from vcap_jax.models.family import FrameSampling
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig, RewardConfig, SecondJudgeConfig
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.family import RewardFamily, load_family
from vcap_jax.reward.questions import Question, question_lines
from vcap_jax.reward.role import JUDGE, Role
from vcap_jax.reward.second_judge import SECOND
from vcap_jax.reward.session import RewardSession
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext, own_file
from vcap_jax.run.judge_record import noted_judge, remember_judge, remember_other_judge
from vcap_jax.run.trial_question import SHOWN_BOTH, sees, try_question
from vcap_jax.system.files import replace_file
from vcap_jax.system.shutdown import requested
from vcap_jax.world.judge_process import embedded_judge
from vcap_jax.world.questions import scene_questions
from vcap_jax.world.splits import EmbeddedData

_JUDGE = Checkpoint()
"""A published Qwen3-VL, to tell the longest question that a run may ask."""

OTHER_JUDGE = Role(who="the other judge of the evaluation", settings="evaluation.other_judge")


def media_for_judge(config: RunConfig, frames: FrameSampling) -> Callable[[Sample], EncodedMedia]:
    """Reads what a judge is shown of a sample, the same as stands beside a policy's prompt (``sample_reader``), without
    making one; safe to call from several threads. frames: which ones of a video. Raises MediaError."""
    load = media_loader(
        image_prompt=config.data.image_prompt,
        video_prompt=config.data.video_prompt,
        settings=config.data.judge_media,
        frames=frames,
    )
    return lambda sample: load(sample).media


def reward_family(config: RunConfig) -> type[RewardFamily]:
    """The class of the configured family. Raises FamilyError for one that cannot be used in this run."""
    family = load_family(config.reward)
    if config.second_judge is not None and not family.asks_judge(config.reward):
        raise FamilyError(
            f"reward.family {config.reward.family!r} asks no judge, so a second one has nothing to agree with: leave "
            "out second_judge"
        )
    if config.evaluation.other_judge is not None and not family.asks_judge(config.reward):
        raise FamilyError(
            f"reward.family {config.reward.family!r} asks no judge, so another one has nothing to score: leave out "
            "evaluation.other_judge"
        )
    if config.reward.family == "vqa" and config.reward.vqa.questions is None and config.data.manifest:
        raise FamilyError(
            "reward.vqa.questions is null, which is for the scenes of the embedded world: give a JSONL file with "
            "questions about the samples of data.manifest"
        )
    return family


def reward_settings(ctx: RunContext, pool: ReferencePool | None, world: EmbeddedData | None) -> RewardConfig:
    """The configured reward with what the run adds: a file of questions about the embedded world's scenes."""
    reward = ctx.config.reward
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
    path = ctx.own_file("questions.jsonl")
    replace_file(path, question_lines(asked).encode())
    ctx.say(f"{sum(map(len, asked.values()))} questions about {len(asked)} scenes: {path}")
    return dataclasses.replace(reward, vqa=dataclasses.replace(reward.vqa, questions=str(path)))


@contextmanager
def answering_judge(
    config: RunConfig,
    folder: RunFolder,
    say: Callable[[str], None],
    processes: Processes = ALONE,
    *,
    second: SecondJudgeConfig | None = None,
    other: JudgeConfig | None = None,
) -> Iterator[JudgeConfig]:
    """The judge that a run will ask, once it answers. So a wrong address or key costs no other work.

    A judge that is not up yet is waited for, which is told. Where none is configured the embedded one
    is started; it ends with the context. If the reward asks no judge, none is tried. What is given names the model, so
    that hours later no other is asked.
    All processes must enter the context together.
    second: a judge that is tried too, but not waited for. other: of the evaluation, which is waited for too.
    Raises JudgeUnavailable, also for one that takes no pictures or videos, JudgeStartError, RunFolderError for another
    judge than the run had before, or another second one, and PeerFailed where another process cannot reach it.
    """
    judge = config.judge
    with ExitStack() as stack:

        def found() -> JudgeConfig:
            if not load_family(config.reward).asks_judge(config.reward):
                say(f"the reward family {config.reward.family} asks no judge")
                return judge
            if judge.urls:
                answering = judge
            else:
                say("no judge.urls are configured: starting the embedded judge")
                log = own_file(folder, "judge.log", processes)
                url = stack.enter_context(embedded_judge(log, config.world.judge_perception, say=say))
                answering = dataclasses.replace(judge, urls=(url,))
            model, context = asyncio.run(_ready(config, answering, say))
            remember_judge(folder, model, config.reward, first=processes.first)
            say(f"judge {model} at {', '.join(answering.urls)} is ready")
            if warning := context_warning(config, context):
                say(warning)
            if second is not None:
                model_of_second = _check_second_judge(second, say)
                if model_of_second is not None:
                    remember_other_judge(folder, SECOND, model_of_second, first=processes.first)
            if other is not None and processes.first:
                remember_other_judge(folder, OTHER_JUDGE, asyncio.run(_other_ready(other, say)))
            return dataclasses.replace(answering, model=model)

        yield processes.together("judge", found)


async def _ready(config: RunConfig, judge: JudgeConfig, say: Callable[[str], None]) -> tuple[str, int | None]:
    """The judge's model, and its context where it tells. It has been asked what is like the run's questions."""
    async with JudgeClient(judge, say=say) as client:
        model = await client.wait_until_ready(judge.ready_timeout_s)
        await try_question(config, client, say)
        return model, await client.context()


async def _other_ready(judge: JudgeConfig, say: Callable[[str], None]) -> str:
    """The model of the evaluation's other judge, which is asked at the end of all work before the training."""
    async with JudgeClient(judge, role=OTHER_JUDGE, say=say) as client:
        model = await client.wait_until_ready(judge.ready_timeout_s)
    say(f"{OTHER_JUDGE.who}, {model} at {', '.join(judge.urls)}, is ready")
    return model


def _check_second_judge(second: SecondJudgeConfig, say: Callable[[str], None]) -> str | None:
    """Its model, None while it does not answer: nobody waits for it. Raises JudgeUnavailable for one that can never
    answer."""

    async def look() -> tuple[str | None, str | None]:
        async with JudgeClient(second.judge, role=SECOND, say=say) as client:
            wrong = await client.look()
            return wrong, None if wrong is not None else await client.model()

    wrong, model = asyncio.run(look())
    where = f"{SECOND.who} at {', '.join(second.judge.urls)}"
    if wrong is None:
        say(f"{where} is ready")
    else:
        say(f"{where} does not answer yet ({wrong}): the run begins without it; second_judge/failed counts")
    return model


def context_warning(config: RunConfig, context: int | None) -> str | None:
    """What to say of a judge whose context may be too short; None if nothing. context: tokens of a question and its
    answer that the judge takes, None where it does not tell.

    An estimate: no caption need be as long as it may, and pictures count only where the settings bound them.
    """
    if context is None:
        return None
    parts = _parts(config)
    longest = sum(parts.values())
    if longest <= context:
        return None
    enough = rounded_context(longest + INSTRUCTION_TOKENS)
    listed = ", ".join(f"{tokens:,} {what}" for what, tokens in parts.items() if tokens)
    return (
        f"warning: the judge takes {context:,} tokens of a question and its answer (max_model_len), and the longest of "
        f"this run may want {longest:,}: {listed}. Captions beyond get no score and are masked. Start it with "
        f"--max-model-len {enough} (serve.py; of launch/h800_8x.sh --judge-max-model-len {enough}), or lower one of "
        "them"
    )


def _parts(config: RunConfig) -> dict[str, int]:
    """Tokens of the longest question and its answer, by what they are; at the least, of a family of the user's own."""
    reward, caption = config.reward, config.rollout.max_completion_length
    uses = reward.family in SHOWN_BOTH and load_family(reward).uses_reference(reward)
    return {
        "of a caption (rollout.max_completion_length)": caption,
        "of a reference": (config.references.max_completion_length or caption) if uses else 0,
        "of what it sees": _visual_tokens(config) if sees(config) else 0,
        "of an answer (judge.max_tokens)": config.judge.max_tokens,
    }


def _visual_tokens(config: RunConfig) -> int:
    """Of the largest picture or video; 0 where the settings do not say."""
    data = config.data
    # The judge gets pictures as they are, and makes them as small as its own budget.
    most = data.judge_media.max_edge**2 // _JUDGE.pixels_per_token or None
    if config.modality == "image":
        bounds = [b for b in (most, data.max_pixels and data.max_pixels // _JUDGE.pixels_per_token) if b]
        return min(bounds, default=0)
    if data.max_frames is None or data.max_frame_tokens is None:
        return 0
    together = 1 if config.judge.video_input == "frames" else _JUDGE.temporal_patch
    of_each = min(data.max_frame_tokens, most or data.max_frame_tokens)
    return -(-data.max_frames // together) * (of_each + FRAME_MARK_TOKENS)


@contextmanager
def reward_session(
    ctx: RunContext,
    reward: RewardConfig,
    pool: ReferencePool | None,
    judge: JudgeConfig,
    *,
    role: Role = JUDGE,
    store: str = "judgements.sqlite",
) -> Iterator[RewardSession]:
    """A session that is ready to score groups. judge: of ``answering_judge``. role: what messages call it. store: file
    in the run folder, unless ``judge.store`` names one.

    Raises FamilyError, JudgeUnavailable, StoreError, TemplateError, and RunFolderError for another model than a judge
    of that role had before in this run, or another text in a file of the reward's.
    """
    # Of several processes each has its own: SQLite's locks do not reach over a network's storage.
    named = store if judge.store is None else str(Path(judge.store).absolute())
    judge = dataclasses.replace(judge, store=str(ctx.own_file(named)))
    references = {} if pool is None else pool.texts()
    with RewardSession(
        reward,
        judge,
        seed=ctx.config.seed,
        references=references,
        role=role,
        say=ctx.say,
        turns=ctx.turns,
    ) as session:
        # Again: the work since it was first asked may have taken hours. What has broken meanwhile ends no run that the
        # others can judge.
        model = session.wait_until_ready(every=role != JUDGE)
        if role != JUDGE and model is not None:
            remember_other_judge(ctx.folder, role, model)
        elif model is not None and noted_judge(ctx.folder) is not None:
            remember_judge(ctx.folder, model, ctx.config.reward, first=False)
        yield session


@contextmanager
def own_data(
    ctx: RunContext,
    heldout: Sequence[Sample],
    references: ReferencePool | None,
    *,
    session: RewardSession,
    reward: RewardConfig,
    pool: ReferencePool | None,
) -> Iterator[OwnData | None]:
    """The held-out samples with the run's reward and, where one is configured, another judge; None without samples.

    references: of the held-out samples. pool: what is trained on, for rewards that look at all of it. All processes
    must enter the context together; the other judge is asked by the first.
    Raises JudgeUnavailable where the other judge does not answer, PeerFailed where another process cannot reach it.
    """
    if not heldout:
        yield None
        return
    config = ctx.config
    with ExitStack() as stack:

        def other() -> RewardSession | None:
            judge = config.evaluation.other_judge
            if judge is None or not ctx.processes.first:
                return None
            return stack.enter_context(
                reward_session(
                    ctx, reward, pool, judge, role=OTHER_JUDGE, store="judgements-of-the-other.sqlite"
                )
            )

        yield OwnData(
            samples=tuple(heldout),
            references=references,
            session=session,
            media=media_for_judge(config, ctx.policy.processor.video),
            seed=config.seed,
            other=ctx.processes.together("other judge", other),
            stop=requested,
            threads=config.data.reading_threads,
        )
