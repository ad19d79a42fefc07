"""A scene's facts, and counting a caption's: N, n and c of the paper's Section 2 without an estimate."""

from __future__ import annotations

from dataclasses import dataclass

from vcap_jax.world import grammar, video_grammar
from vcap_jax.world.scenes import ImageScene, Scene, VideoScene
from vcap_jax.world.sentences import Claim, Facts, Slot

__all__ = ["Claim", "FactCount", "Facts", "Slot", "caption_claims", "count_facts", "scene_facts"]


@dataclass(frozen=True, kw_only=True)
class FactCount:
    """How a caption stands to a scene; counts add up over scenes.

    total: N, the facts of the scene.
    claims: n, the distinct claims of the caption. Two values for one slot are two claims.
    correct: c, the claims that are facts of the scene.
    """

    total: int
    claims: int
    correct: int

    @property
    def coverage(self) -> float:
        """c / N (0 for a scene without facts)."""
        return self.correct / self.total if self.total else 0.0

    @property
    def hallucination(self) -> float:
        """(n - c) / n; 0 where nothing is claimed."""
        return (self.claims - self.correct) / self.claims if self.claims else 0.0

    def __add__(self, other: FactCount) -> FactCount:
        return FactCount(
            total=self.total + other.total,
            claims=self.claims + other.claims,
            correct=self.correct + other.correct,
        )


def scene_facts(scene: Scene) -> Facts:
    """All facts of a scene.

    Image: three of each object and the background, N = 3 k + 1. Video: three of each object in each shot and
        the
    time of the cut, N = 3 k + 1.
    """
    facts: Facts = {}
    if isinstance(scene, ImageScene):
        for item in scene.objects:
            for attribute in grammar.ATTRIBUTES:
                facts[item.place, attribute] = getattr(item, attribute)
        facts[grammar.BACKGROUND] = scene.background
    else:
        for index, shot in enumerate(scene.shots):
            for thing in shot.objects:
                for attribute in video_grammar.ATTRIBUTES:
                    facts[index, thing.place, attribute] = getattr(thing, attribute)
        facts[video_grammar.CUT] = f"{scene.cut:.1f}"
    return facts


def caption_claims(scene: Scene, caption: str) -> tuple[Claim, ...]:
    """The distinct claims of a caption; a video caption's segments are matched with the scene's shots."""
    if isinstance(scene, VideoScene):
        return video_grammar.parse_video(caption).claims([shot.seconds for shot in scene.shots])
    return grammar.parse_image(caption).claims


def count_facts(scene: Scene, caption: str) -> FactCount:
    """Counts a caption's claims against the scene's facts."""
    facts = scene_facts(scene)
    claims = caption_claims(scene, caption)
    correct = sum(facts.get(slot) == value for slot, value in claims)
    return FactCount(total=len(facts), claims=len(claims), correct=correct)
