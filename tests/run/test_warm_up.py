"""What is compiled before the first step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from vcap_jax.configuration import load_config
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.widths import columns_for
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.run.config import RunConfig
from vcap_jax.run.warm_up import compile_decoding, prompt_sizes

SHORT = ("rollout.short_groups=8", "rollout.short_length=64")
PAPER = Path(__file__).resolve().parents[2] / "configs" / "paper"


@pytest.mark.parametrize(
    ("buckets", "sizes"),
    [
        (Buckets(tokens=(32, 64)), (32, 64)),
        (Buckets(tokens=(32, 64), max_tokens=40), (32, 64)),
        (Buckets(token_multiple=100, max_tokens=250), (100, 200, 252)),
        (Buckets(token_multiple=100, max_tokens=300), (100, 200, 300)),
        (Buckets(token_multiple=1, max_tokens=17), ()),
        (Buckets(token_multiple=100), ()),
    ],
)
def test_the_sizes_of_prompts_are_known_where_they_are_few(buckets: Buckets, sizes: tuple[int, ...]) -> None:
    assert prompt_sizes(buckets) == sizes
    for size in sizes:
        assert buckets.fit("tokens", min(size, buckets.max_tokens or size)) == size


@pytest.mark.parametrize(
    ("modality", "count", "longest", "patches", "programs"),
    [("image", 4, 14_080, 26_624, 48), ("video", 8, 32_000, 1024, 96)],
)
def test_the_paper_runs_compile_a_known_number_of_programs_and_all_of_them_early(
    modality: str, count: int, longest: int, patches: int, programs: int
) -> None:
    config = load_config(RunConfig, [PAPER / f"{modality}.yaml"])
    buckets = config.data.buckets
    sizes = prompt_sizes(buckets)
    assert (len(sizes), sizes[-1]) == (count, longest)
    # Of the largest picture (16 pixels a side), or frame (256 tokens of four patches).
    most = config.data.max_pixels // 16**2 if modality == "image" else 4 * config.data.max_frame_tokens
    assert buckets.fit("patches", most) == patches
    buckets = GroupSampler(None, config.rollout, end_ids=[1], banned_ids=[]).buckets(8)
    assert len(sizes) * len(list(buckets.shapes())) == programs
    # Whatever is compiled first, everything fits: all captions, at their full length.
    assert list(buckets.shapes())[-1].candidates == config.rollout.group_size
    assert list(buckets.shapes())[-1].width == columns_for(config.rollout.max_completion_length)
    assert config.compilation_cache is not None


@pytest.mark.parametrize(
    ("settings", "asked", "said"),
    [
        (["data.buckets={token_multiple: 8, max_tokens: 20}"], (8, 16, 24), "3 decode programs"),
        (["data.buckets={token_multiple: 8}"], None, "data.buckets.max_tokens"),
        (["data.buckets={token_multiple: 8}", "rollout.shrink=1"], None, None),
        # One program for short caches and one for long ones, of each size.
        (["data.buckets={tokens: [16]}", "rollout.shrink=1", *SHORT], (16,), "1 decode programs"),
    ],
)
def test_decoding_is_compiled_or_it_is_said_that_it_is_not(settings, asked, said) -> None:
    told, warmed = [], []

    def warm(trainable, frozen, sizes, check):
        warmed.append(sizes)
        return len(sizes)

    compile_decoding(
        SimpleNamespace(
            config=load_config(RunConfig, [], settings),
            own_policy=SimpleNamespace(trainable={}, frozen={}, merge=lambda: SimpleNamespace(kernel=None)),
            sampler=SimpleNamespace(warm=warm),
            say=told.append,
        )
    )
    assert warmed == ([asked] if asked else [])
    assert len(told) == (said is not None)
    assert not told or said in told[0]
