"""How well the embedded judge's eyes read its world: every fact of many scenes, by kind.

    python benchmarks/world_reading.py --modality video --scenes 1000
    python benchmarks/world_reading.py --modality image --scenes 2000 --jpeg 90

Each scene is rendered, written as a user's own file would be (PNG, or JPEG of a quality; MP4 by H.264), decoded, and
read from its pixels alone. A fact is missed if nothing is said about it, misread if something else is; what is told of
an empty slot is invented. Ends with 1 if more than ``--most`` per cent of the facts went wrong in one of these ways.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import av
import numpy as np
from PIL import Image

from vcap_jax.world.dataset import render, sample_scene, write_mp4
from vcap_jax.world.facts import scene_facts, scene_undecided
from vcap_jax.world.image_perception import see_image
from vcap_jax.world.scenes import Modality, Scene
from vcap_jax.world.sight import Sight
from vcap_jax.world.video_perception import see_video
from vcap_jax.world.vocabulary import Facts, Slot

SPLIT = "reading"
"""Of its own, so that no scene is one that a run trains on or a test was written with."""


@dataclass(kw_only=True)
class Tally:
    """What was read of some scenes: numbers of facts by kind, and CPU seconds by scene."""

    facts: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    misread: Counter[str] = field(default_factory=Counter)
    invented: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def add(self, facts: Facts, undecided: frozenset[Slot], sight: Sight) -> list[Slot]:
        """Counts one scene; the slots that went wrong. What is said of an undecided slot is neither right nor wrong."""
        wrong = []
        for slot, value in facts.items():
            kind = str(slot[-1])
            self.facts[kind] += 1
            if sight.facts.get(slot) != value:
                (self.misread if slot in sight.facts else self.missed)[kind] += 1
                wrong.append(slot)
        for slot in sight.facts.keys() - facts.keys() - undecided:
            self.invented[str(slot[-1])] += 1
            wrong.append(slot)
        return wrong

    @property
    def errors(self) -> int:
        return self.missed.total() + self.misread.total() + self.invented.total()

    @property
    def share(self) -> float:
        """Errors per fact."""
        return self.errors / self.facts.total()


def see_clip(scene: Scene, folder: Path) -> tuple[Sight, float]:
    """What is seen of a video scene that went through a file, and the CPU seconds that seeing took."""
    path = folder / "clip.mp4"
    write_mp4(path, render(scene))
    with av.open(str(path)) as container:
        decoded = list(container.decode(video=0))
    frames = [frame.to_ndarray(format="rgb24") for frame in decoded]
    times = [float(frame.time) for frame in decoded]
    begin = time.process_time()
    sight = see_video(frames, times)
    return sight, time.process_time() - begin


def see_picture(scene: Scene, folder: Path, quality: int | None = None) -> tuple[Sight, float]:
    """What is seen of an image scene that went through a PNG file, or a JPEG file of a quality, and the CPU seconds."""
    path = folder / ("picture.png" if quality is None else "picture.jpg")
    drawn = Image.fromarray(render(scene))
    if quality is None:
        drawn.save(path)
    else:
        drawn.save(path, quality=quality)
    with Image.open(path) as file:
        picture = np.asarray(file.convert("RGB"))
    begin = time.process_time()
    sight = see_image(picture)
    return sight, time.process_time() - begin


SEE: Mapping[Modality, Callable[[Scene, Path], tuple[Sight, float]]] = {
    "image": see_picture,
    "video": see_clip,
}


def read_scenes(
    modality: Modality, seed: int, count: int, quality: int | None = None
) -> tuple[Tally, list[tuple[int, Slot]]]:
    """Reads the first ``count`` scenes of the split; also what went wrong, with the scene's number."""
    see = SEE[modality] if quality is None else partial(see_picture, quality=quality)
    tally, wrong = Tally(), []
    with tempfile.TemporaryDirectory() as folder:
        # The first call also makes what all others look up.
        see(sample_scene(modality, seed, 0, SPLIT), Path(folder))
        for index in range(count):
            scene = sample_scene(modality, seed, index, SPLIT)
            sight, seconds = see(scene, Path(folder))
            tally.seconds.append(seconds)
            wrong += [(index, slot) for slot in tally.add(scene_facts(scene), scene_undecided(scene), sight)]
    return tally, wrong


def report(tally: Tally) -> dict[str, object]:
    """The tally as JSON, kinds by their number of facts."""
    kinds = [kind for kind, _ in (tally.facts + tally.invented).most_common()]
    return {
        "scenes": len(tally.seconds),
        "facts": tally.facts.total(),
        "errors": tally.errors,
        "errors_percent": 100 * tally.share,
        "median_ms": 1000 * statistics.median(tally.seconds),
        "kinds": {
            kind: {
                "facts": tally.facts[kind],
                "missed": tally.missed[kind],
                "misread": tally.misread[kind],
                "invented": tally.invented[kind],
            }
            for kind in kinds
        },
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Reads scenes of the embedded world and counts what went wrong."
    )
    parser.add_argument("--modality", choices=list(SEE), default="video")
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=float, default=0.5, help="per cent of the facts that may go wrong")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    parser.add_argument("--jpeg", type=int, metavar="QUALITY", help="pictures as JPEG files, not PNG")
    options = parser.parse_args(arguments)
    if options.scenes < 1:
        parser.error("--scenes: read at least one")
    if options.jpeg is not None and options.modality != "image":
        parser.error("--jpeg: only pictures are written as JPEG files; add --modality image")
    tally, wrong = read_scenes(options.modality, options.seed, options.scenes, options.jpeg)
    figures = report(tally)
    print(f"{'kind':<12}{'facts':>8}{'missed':>8}{'misread':>9}{'invented':>10}")
    for kind in tally.facts + tally.invented:
        counts = (
            f"{tally.facts[kind]:>8}{tally.missed[kind]:>8}{tally.misread[kind]:>9}{tally.invented[kind]:>10}"
        )
        print(f"{kind:<12}{counts}")
    for index, slot in wrong[:20]:
        print(f"scene {index}: {' / '.join(map(str, slot))}")
    print(
        f"{figures['errors']} errors, {figures['errors_percent']:.3f}% of {figures['facts']} facts; "
        f"{figures['median_ms']:.1f} ms of CPU time per scene at the median"
    )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(figures, indent=2) + "\n")
    return int(figures["errors_percent"] > options.most)


if __name__ == "__main__":
    sys.exit(main())
