"""The servers that lmms-eval asks, and how it is told of them: the checkpoint's by its command line, the judge's by
environment variables. It has one key for both."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass

from vcap_jax.captioning.by_endpoint import CAPTIONER
from vcap_jax.evals.asking import ROLES
from vcap_jax.evals.benchmarks.lmms_eval import NO_KEY
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.recipes.evaluation_request import Say
from vcap_jax.reward.client import JudgeClient, model_now
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.role import Role

_OF_THE_JUDGE = ("API_TYPE", "MODEL_VERSION", "OPENAI_API_URL")
"""By what the harness knows its judge. What the caller's shell has of them is of something else."""


@dataclass(frozen=True, kw_only=True)
class Servers:
    """captioner: the checkpoint's. judge: None where nobody judges; it has one address."""

    captioner: JudgeConfig
    judge: JudgeConfig | None

    def models(self, say: Say) -> tuple[str, str | None]:
        """What the two serve, once they answer. Raises JudgeUnavailable for one that does not, or that serves several
        models of which none is named."""
        judge = None if self.judge is None else asyncio.run(_model_of(self.judge, ROLES["judge"], say))
        return asyncio.run(_model_of(self.captioner, CAPTIONER, say)), judge

    def models_now(self, say: Say) -> tuple[str | None, str | None]:
        """The same without waiting: of one that does not answer what was named, None where nothing was."""
        captioner = asyncio.run(model_now(self.captioner, role=CAPTIONER, say=say)) or self.captioner.model
        if self.judge is None:
            return captioner, None
        judge = asyncio.run(model_now(self.judge, role=ROLES["judge"], say=say))
        return captioner, judge or self.judge.model

    def key(self) -> tuple[str, bool]:
        """What the harness takes from its environment, and whether it is the judge's alone.

        Raises EvaluatorError for a key that is not set, and for two of which the harness would send one to both.
        """
        mine = self.captioner.api_key_env
        its = mine if self.judge is None else self.judge.api_key_env
        captioner, judge = _held(mine), _held(its)
        if mine is None or captioner == judge:
            return judge, captioner != judge
        if its is None:
            assert self.judge is not None
            raise EvaluatorError(
                f"lmms-eval has one key, and would send that of --by ({mine}) to the judge at {self.judge.urls[0]} "
                f"too: if it may, say --judge-key-env {mine}; else serve the checkpoint without a key"
            )
        raise EvaluatorError(
            f"lmms-eval has one key, and --api-key-env {mine} and --judge-key-env {its} hold two: serve the "
            "checkpoint without a key, or both with the same"
        )

    def environment(self, key: str, judge_model: str | None) -> Mapping[str, str]:
        """This process's environment, with what the harness is told. judge_model: see ``models``."""
        found = {name: value for name, value in os.environ.items() if name not in _OF_THE_JUDGE}
        found["OPENAI_API_KEY"] = key
        if self.judge is not None and judge_model is not None:
            address = with_version(self.judge.urls[0])
            found |= {"API_TYPE": "openai", "MODEL_VERSION": judge_model, "OPENAI_API_URL": address}
        return found


def with_version(url: str) -> str:
    """An address as OpenAI's own client takes it."""
    url = url.rstrip("/")
    return url if url.endswith("/v1") else f"{url}/v1"


def _held(name: str | None) -> str:
    if name is None:
        return NO_KEY
    if not (key := os.environ.get(name)):
        raise EvaluatorError(f"the environment variable {name} is not set: it holds the key")
    return key


async def _model_of(config: JudgeConfig, role: Role, say: Say) -> str:
    async with JudgeClient(config, role=role, say=say) as client:
        return await client.wait_until_ready(config.ready_timeout_s)
