"""What the benchmarks have in common, on one that asks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.asking import Asker
from vcap_jax.evals.benchmarks.benchmark import (
    Benchmark,
    BenchmarkOptions,
    Measured,
    Mode,
    Task,
    read_options,
)
from vcap_jax.evals.config import EvaluatorConfig
from vcap_jax.evals.protocol import EvaluatorTools
from vcap_jax.evals.statistics import Statistic
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.reward.templates import TemplateError


class Silent(Benchmark[None]):
    name: ClassVar[str] = "silent"
    modality: ClassVar[None] = None
    source: ClassVar[str] = "nowhere"
    worst: ClassVar[str] = "score"

    def load(self) -> list[Task[None]]:
        return [Task(sample=Sample(id="a", images=(self.folder.path / "a.png",)), row=None)]

    def make_stages(self) -> list[object]:  # type: ignore[override]
        return []

    async def measure(self, task: Task[None], caption: str, asker: Asker) -> Measured:
        return Measured()

    @classmethod
    def statistics(cls, mode: Mode) -> Mapping[str, Statistic]:
        return {}


IN_TURNS = JudgeConfig(
    urls=("http://127.0.0.1:8000",),
    model="the run's",
    api_key_env="KEY",
    sleep_mode=True,
    media_uuid="always",
    video_input="video",
    concurrency=3,
)


def test_a_folder_of_texts_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The packaged texts would be asked with instead, and the figures taken for those of one's own."""
    (tmp_path / "a.png").touch()
    tools = EvaluatorTools(modality="image", judge=IN_TURNS)
    options = {"data": str(tmp_path), "prompts": str(tmp_path / "prmpts")}
    with pytest.raises(TemplateError, match="there is no folder"):
        Silent(EvaluatorConfig(use="silent", options=options), tools)


@pytest.mark.parametrize(
    "name", ["\U0001f600data", "a\x7fb", "2026", "true", "a: b #c", "two\nlines", "'q\""]
)
def test_an_option_is_the_text_that_was_given(name: str) -> None:
    """A character beyond U+FFFF was refused as half of one."""
    assert read_options(BenchmarkOptions, {"data": name, "limit": 3}, "x") == BenchmarkOptions(
        data=name, limit=3
    )


def test_addresses_of_its_own_take_no_turns_and_keep_how_is_asked(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    tools = EvaluatorTools(modality="image", judge=IN_TURNS)

    def endpoints(**options: str) -> Mapping[str, JudgeConfig]:
        config = EvaluatorConfig(use="silent", options={"data": str(tmp_path), **options})
        return Silent(config, tools).endpoints

    own = JudgeConfig(urls=("http://10.0.0.5:8000", "http://127.0.0.1:9000"), concurrency=3)
    assert endpoints() == {"judge": IN_TURNS}
    assert endpoints(judge="http://10.0.0.5:8000, http://127.0.0.1:9000") == {"judge": own}
    # The run's judge would be asked, and the name be of no effect.
    for lone in ("judge_model", "reasoner_model", "api_key_env"):
        with pytest.raises(ConfigError, match=f"silent: options.{lone} is"):
            endpoints(**{lone: "another"})
    reasoner = JudgeConfig(urls=("http://127.0.0.1:9001",), concurrency=3)
    assert endpoints(reasoner="http://127.0.0.1:9001") == {"judge": IN_TURNS, "reasoner": reasoner}
