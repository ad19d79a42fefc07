"""A judge over real HTTP that answers a benchmark's stages by functions, and captions that are there already."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.patience import GUARD_S
from tests.reward.scripted_judge import Reply, ScriptedJudge, prompt_text
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.benchmarks.benchmark import Benchmark
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.protocol import Captions, EvaluatorTools
from vcap_jax.reward.config import JudgeConfig

Answer = Callable[[str], object]
"""The whole prompt of a question to what answers it: an object (sent as JSON), or a text as it is sent."""


class ByStage:
    """Answers the chat requests of ``server``. answers: by stage. asked: (stage, prompt, body) of each request.

    fails: (number of the request, stage) to whether it gets a server error.
    """

    def __init__(self, server: ScriptedJudge, answers: Mapping[str, Answer]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, dict[str, object]]] = []
        self.fails: Callable[[int, str], bool] = lambda number, stage: False
        server.answer = self._answer

    def stages(self) -> list[str]:
        return [stage for stage, _, _ in self.asked]

    def _answer(self, body: dict[str, object], number: int) -> Reply:
        name = body["response_format"]["json_schema"]["name"].removeprefix("vcap_")  # type: ignore[index]
        text = prompt_text(body)
        self.asked.append((name, text, body))
        if self.fails(number, name):
            return Reply(status=500, raw="no")
        said = self.answers[name](text)
        return Reply(
            content=said if isinstance(said, str) else json.dumps(said),
            usage={"prompt_tokens": 10, "completion_tokens": 2},
        )


def block(prompt: str, place: str) -> str:
    """What stands between the delimiters of a place."""
    found = re.search(rf"<{place}>\n(.*)\n</{place}>", prompt, re.DOTALL)
    assert found, prompt
    return found[1]


def endpoint(server: ScriptedJudge, **changes: object) -> JudgeConfig:
    settings: dict[str, object] = {
        "urls": (server.url,),
        "backoff_s": 0.001,
        "max_backoff_s": 0.001,
        "deadline_s": GUARD_S,
        **changes,
    }
    return JudgeConfig(**settings)  # type: ignore[arg-type]


def made(
    kind: type[Benchmark[object]],
    data: Path,
    judge: JudgeConfig,
    *,
    store: Path | None = None,
    **options: object,
) -> Benchmark[object]:
    """The benchmark over a folder of data."""
    config = EvaluatorConfig(use=kind.name, options={"data": str(data), **options})  # type: ignore[dict-item]
    tools = EvaluatorTools(modality=kind.modality or "image", judge=judge, store=store, say=lambda text: None)
    return kind(config, tools)


class Given:
    """Captions by sample (implements ``Captioner``); no caption for those that are not there."""

    def __init__(self, captions: Mapping[str, str]) -> None:
        self._captions = captions

    def captions(self, samples: Sequence[Sample], *, seed: int = 0) -> list[Captions]:
        del seed
        return [
            Captions(id=sample.id, texts=(self._captions[sample.id],))
            if sample.id in self._captions
            else Captions(id=sample.id, failure="no caption")
            for sample in samples
        ]
