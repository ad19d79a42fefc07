"""Captions to learn, as tokens: each ends with the end token, which is learned too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vcap_jax.configuration import ConfigError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import ReferencePool
from vcap_jax.models.family import Processor


@dataclass(frozen=True)
class Targets:
    """captions: by sample id, each [t] int32 with its end token; texts: the same as they were written.

    too_long: how many were left out for length.
    """

    captions: Mapping[str, tuple[np.ndarray, ...]]
    texts: Mapping[str, tuple[str, ...]]
    too_long: int

    @cached_property
    def per_sample(self) -> int:
        """The most captions that a sample has."""
        return max(len(captions) for captions in self.captions.values())

    def places(self, number: int) -> int:
        """G of a micro-batch whose samples have at most ``number`` captions: rounded up to a power of two, since each
        compiles once, and no more than any sample has."""
        return min(1 << (number - 1).bit_length(), self.per_sample)


def tokenise_targets(
    pool: ReferencePool, samples: Sequence[Sample], processor: Processor, max_tokens: int
) -> Targets:
    """The pool's captions of ``samples``; samples without any that fits are not in the result.

    max_tokens: of a caption, the end token included. Raises ConfigError if not a single one is left, and for one that
    holds a special token of the tokenizer.
    """
    end = processor.eos_token_ids[0]
    special = np.array([*processor.eos_token_ids, *processor.banned_token_ids], np.int32)
    captions: dict[str, tuple[np.ndarray, ...]] = {}
    texts: dict[str, tuple[str, ...]] = {}
    too_long = 0
    for sample in samples:
        if sample.id not in pool:
            continue
        tokens = [
            np.array([*processor.tokenizer(text, add_special_tokens=False)["input_ids"], end], np.int32)
            for text in pool[sample.id].references
        ]
        if found := [int(token) for row in tokens for token in row[:-1][np.isin(row[:-1], special)]]:
            token = processor.tokenizer.decode(found[:1], skip_special_tokens=False)
            problem = (
                f"a caption of sample {sample.id} holds {token}, which is no text to the policy: it would learn "
                "to end there, or to write what it may not. Take it out of the captions"
            )
            raise ConfigError(problem)
        pairs = zip(tokens, pool[sample.id].references, strict=True)
        fitting = [(row, text) for row, text in pairs if len(row) <= max_tokens]
        too_long += len(tokens) - len(fitting)
        if fitting:
            captions[sample.id] = tuple(row for row, _ in fitting)
            texts[sample.id] = tuple(text for _, text in fitting)
    if not captions:
        raise ConfigError(
            f"none of {len(samples)} samples has a caption of at most {max_tokens} tokens "
            f"({too_long} are longer): give a pool that fits the manifest, or raise sft.max_caption_tokens"
        )
    return Targets(captions, texts, too_long)


def pad_captions(
    captions: Sequence[Sequence[Sequence[int] | np.ndarray]], length: int, *, groups: int, per_group: int
) -> tuple[np.ndarray, np.ndarray]:
    """Token rows [b][g] -> (tokens [groups, per_group, length] int32, lengths [groups, per_group] int32).

    What a group or the batch lacks becomes captions of length 0.
    Raises ValueError if a caption is longer than ``length``: cutting it would teach an unfinished caption.
    """
    tokens = np.zeros((groups, per_group, length), np.int32)
    lengths = np.zeros((groups, per_group), np.int32)
    for b, group in enumerate(captions):
        for g, caption in enumerate(group):
            if len(caption) > length:
                raise ValueError(
                    f"a caption has {len(caption)} tokens, the budget is {length}; raise the budget"
                )
            tokens[b, g, : len(caption)] = caption
            lengths[b, g] = len(caption)
    return tokens, lengths


def caption_pool(captions: str | None, samples: Sequence[Sample]) -> tuple[ReferencePool, str]:
    """The captions to learn and where they come from: a pool, or the samples' own references.

    Raises ManifestError, ConfigError if there are none.
    """
    if captions is not None:
        return ReferencePool.read(captions, "pool of captions"), captions
    own = ReferencePool.of_samples(samples)
    if not len(own):
        raise ConfigError(
            "there is nothing to learn: give a pool of captions with sft.captions, or references in the "
            "manifest's rows"
        )
    return own, "the manifest"
