"""The embedded visual world: scenes with known facts, rendered to pictures and clips, and put into words.

Because a scene's fact set is known, the quantities of the paper's analysis (N facts, n claims, c correct
ones) are counted here instead of estimated. Nothing in this package imports JAX.
"""

from vcap_jax.world.facts import FactCount, Facts, count_facts, scene_facts
from vcap_jax.world.grammar import IMAGE_PROMPT, describe_image, parse_image
from vcap_jax.world.scenes import (
    ImageScene,
    Scene,
    VideoScene,
    sample_image_scene,
    sample_scene,
    sample_video_scene,
)
from vcap_jax.world.video_grammar import VIDEO_PROMPT, describe_video, parse_video

__all__ = [
    "IMAGE_PROMPT",
    "VIDEO_PROMPT",
    "FactCount",
    "Facts",
    "ImageScene",
    "Scene",
    "VideoScene",
    "count_facts",
    "describe_image",
    "describe_video",
    "parse_image",
    "parse_video",
    "sample_image_scene",
    "sample_scene",
    "sample_video_scene",
    "scene_facts",
]
