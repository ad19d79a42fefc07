"""A scene's facts, and counting a caption's: N, n and c of the paper's Section 2 without an estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vcap_jax.world.image_facts import image_facts, image_undecided
from vcap_jax.world.image_grammar import parse_image
from vcap_jax.world.scenes import ImageScene, Scene, VideoScene
from vcap_jax.world.slots import object_of
from vcap_jax.world.video_facts import video_facts, video_undecided
from vcap_jax.world.video_grammar import NO_SHOT, parse_video
from vcap_jax.world.vocabulary import Claim, Facts, Slot


@dataclass(frozen=True, kw_only=True)
class FactCount:
    """How a caption stands to a scene; counts add up over scenes.

    total: N, the facts of the scene.
    claims: n, the distinct claims of the caption about what can be told. Two values for one slot are two claims.
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
    """All facts of a scene: what can be seen of it."""
    return image_facts(scene) if isinstance(scene, ImageScene) else video_facts(scene)


def scene_undecided(scene: Scene) -> frozenset[Slot]:
    """The slots about which the scene's pixels decide nothing: a claim about one is neither right nor wrong."""
    return image_undecided(scene) if isinstance(scene, ImageScene) else video_undecided(scene)


def caption_claims(scene: Scene, caption: str) -> tuple[Claim, ...]:
    """The distinct claims of a caption; a video caption's segments are matched with the scene's shots."""
    if isinstance(scene, VideoScene):
        return parse_video(caption).claims([shot.seconds for shot in scene.shots])
    return parse_image(caption).claims


def count_facts(scene: Scene, caption: str) -> FactCount:
    """Counts a caption's claims against the scene's facts."""
    return count_claims(scene_facts(scene), scene_undecided(scene), caption_claims(scene, caption))


def count_claims(facts: Mapping[Slot, str], undecided: frozenset[Slot], claims: Iterable[Claim]) -> FactCount:
    """Counts claims against facts; those about ``undecided`` slots are left out."""
    decided = [(slot, value) for slot, value in dict.fromkeys(claims) if slot not in undecided]
    correct = sum(facts.get(slot) == value for slot, value in decided)
    return FactCount(total=len(facts), claims=len(decided), correct=correct)


def count_inventions(facts: Mapping[Slot, str], undecided: frozenset[Slot], claims: Iterable[Claim]) -> int:
    """How many of the claims that ``count_claims`` counts are of objects where nothing lies; all of them are false.

    Claims whose times fit no shot are false too, but what lies in no shot cannot be told: they are none of these.
    """
    things = {None, *map(object_of, facts), *map(object_of, undecided)}
    told = {claim for claim in claims if claim[0] not in undecided}
    return sum(slot[0] != NO_SHOT and object_of(slot) not in things for slot, _ in told)
