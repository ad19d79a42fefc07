"""The boundary around a model family: all that the rest of the project knows of any model.

A family is a folder behind ``ModelFamily``. It reads a checkpoint, makes prompts of messages, looks at
pictures, and gives the captions' hidden states for training and a decoder for rollout. The registry
(``vcap_jax.models.registry``) finds the family of a checkpoint; everything else asks for the members below
and names no family.

Letters in shapes: B groups, P prompt tokens (right-padded), G captions of a group, T caption tokens, D width,
V words of the vocabulary.

What only the family reads is a type variable here, such as ``FeaturesT``. A family's classes have its own types there;
for the rest of the project each stands at its default, a type that can be handed on and given to pytree functions, and
nothing else. ``opaque`` leads from the one to the other. Such values are pytrees of arrays with groups on the first
axis, unless said otherwise.
"""

from vcap_jax.models.family.decoding import CaptionState, DecodeParams, Decoder, PromptState
from vcap_jax.models.family.model import CaptionModel, Features, GraphDef, ModelSettings, ModelSpec, Params
from vcap_jax.models.family.prompts import (
    EncodedPrompt,
    FrameSampling,
    Processor,
    PromptBatch,
    Tokenizer,
    Vision,
    VisualBudget,
    VllmProcessor,
)
from vcap_jax.models.family.protocol import LargestPrompt, ModelFamily, VllmFamily, family_of, opaque

__all__ = [
    "CaptionModel",
    "CaptionState",
    "DecodeParams",
    "Decoder",
    "EncodedPrompt",
    "Features",
    "FrameSampling",
    "GraphDef",
    "LargestPrompt",
    "ModelFamily",
    "ModelSettings",
    "ModelSpec",
    "Params",
    "Processor",
    "PromptBatch",
    "PromptState",
    "Tokenizer",
    "Vision",
    "VisualBudget",
    "VllmFamily",
    "VllmProcessor",
    "family_of",
    "opaque",
]
