from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.sft.config import SFTConfig
from vcap_jax.sft.targets import Targets, pad_captions, tokenise_targets
from vcap_jax.world.backbone import BACKBONE_FOLDER

SHORT, LONG = "A red circle.", "A red circle is at the top left and a blue square is at the bottom right."


@pytest.fixture(scope="module")
def processor() -> Processor:
    return Processor.from_pretrained(BACKBONE_FOLDER)


def samples(*ids: str) -> list[Sample]:
    return [Sample(id=i, images=(Path("x.png"),)) for i in ids]


def pool(**captions: tuple[str, ...]) -> ReferencePool:
    return ReferencePool(PoolEntry(id=i, references=texts) for i, texts in captions.items())


def test_captions_end_with_the_end_token_and_read_back(processor: Processor) -> None:
    targets = tokenise_targets(pool(a=(SHORT, LONG), b=(LONG,)), samples("a", "b", "c"), processor, 64)
    assert targets.captions.keys() == {"a", "b"}
    assert targets.per_sample == 2
    assert targets.too_long == 0
    for tokens, text in zip(targets.captions["a"], (SHORT, LONG), strict=True):
        assert tokens[-1] == processor.eos_token_ids[0]
        assert processor.tokenizer.decode(tokens, skip_special_tokens=True).strip() == text


def test_places_are_made_for_a_power_of_two_of_captions_and_for_no_more_than_any_sample_has() -> None:
    def places(most: int, *numbers: int) -> list[int]:
        row = np.ones(1, np.int32)
        targets = Targets({"a": (row,), "b": (row,) * most}, {}, 0)
        return [targets.places(number) for number in numbers]

    assert places(20, 1, 2, 3, 4, 5, 9, 16, 17, 20) == [1, 2, 4, 4, 8, 16, 16, 20, 20]
    assert places(3, 1, 2, 3) == [1, 2, 3]
    assert places(1, 1) == [1]


def test_what_does_not_fit_is_left_out_whole_and_counted(processor: Processor) -> None:
    fits = len(processor.tokenizer(SHORT)["input_ids"]) + 1
    targets = tokenise_targets(pool(a=(SHORT, LONG), b=(LONG,)), samples("a", "b"), processor, fits)
    assert {i: len(rows) for i, rows in targets.captions.items()} == {"a": 1}
    assert targets.texts == {"a": (SHORT,)}
    assert targets.too_long == 2
    with pytest.raises(ValueError, match=r"none of 1 samples.*raise sft\.max_caption_tokens"):
        tokenise_targets(pool(a=(SHORT, LONG)), samples("a"), processor, fits - 1)


@pytest.mark.parametrize("token", ["<|im_end|>", "<|image_pad|>", "<|im_start|>"])
def test_a_special_token_in_a_caption_is_refused_by_name(processor: Processor, token: str) -> None:
    # As datasets have it whose answers were decoded with their special tokens.
    with pytest.raises(ConfigError, match=rf"caption of sample b holds {re.escape(token)}"):
        tokenise_targets(pool(a=(SHORT,), b=(LONG, SHORT + token)), samples("a", "b"), processor, 64)


def test_padding() -> None:
    tokens, lengths = pad_captions([[[1, 2], [3]], [[4, 5, 6]]], 4, groups=3, per_group=2)
    np.testing.assert_array_equal(lengths, [[2, 1], [3, 0], [0, 0]])
    np.testing.assert_array_equal(tokens[1, 0], [4, 5, 6, 0])
    with pytest.raises(ValueError, match="raise the budget"):
        pad_captions([[[1, 2, 3]]], 2, groups=1, per_group=1)


def test_settings_that_cannot_work_are_named() -> None:
    with pytest.raises(ValueError, match="multiple"):
        SFTConfig(groups_per_step=6, groups_per_micro_batch=4)
    with pytest.raises(ValueError, match=r"max_steps\n.*greater than or equal to 1"):
        SFTConfig(max_steps=0)
    with pytest.raises(ValueError, match="5 samples do not fill one step of 32"):
        SFTConfig().total_steps(5)
    assert SFTConfig(epochs=2, groups_per_step=8).total_steps(17) == 4
