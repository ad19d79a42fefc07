"""Makes the embedded world's tiny Qwen3-VL: random weights -> sees -> tells all -> describes weakly.

Stage "see" trains the vision tower alone: throw-away linear probes name what stands in each cell, and which cell it
is, from the merged visual tokens. Stage "tell" trains the decoder, vision frozen, on full, true captions. Stage "weak"
is short and teaches weak captions (objects and attributes left out, some wrong): the model still sees, but describes
poorly. A model that never learned to see would leave reinforcement learning nothing to draw on: it would find that
saying nothing is never wrong.

    python launch/make_backbone.py --out vcap_jax/world/backbone      # 50 minutes on two cores, beside other jobs

Matrices learn by Muon, everything else by Adam: AdamW alone needed several times as many steps to read the picture.

Deterministic for a given machine. Scenes of the splits "backbone" and "backbone-check" are used; training and
held-out scenes of the reinforcement learning runs come from other splits.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from optax.contrib import MuonDimensionNumbers, muon

from vcap_jax.export.hugging_face import write_new
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.message import ImagePart, TextPart, VideoPart
from vcap_jax.models.policy import split_model
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.partition import RULES
from vcap_jax.models.qwen3_vl.processing import Processor, collate
from vcap_jax.models.qwen3_vl.weights import load_pretrained
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.run.command_line import guarded
from vcap_jax.sft.step import SFTPrograms, TargetBatch
from vcap_jax.sft.targets import pad_captions
from vcap_jax.world.backbone import BACKBONE_FOLDER, IMAGE_SETTINGS, VIDEO_SETTINGS, backbone_config
from vcap_jax.world.captions import WeakSettings, full_caption, weak_caption
from vcap_jax.world.dataset import write_mp4
from vcap_jax.world.facts import count_facts
from vcap_jax.world.grammar import IMAGE_PROMPT
from vcap_jax.world.rendering import render_image, render_video
from vcap_jax.world.scenes import (
    BACKGROUNDS,
    COLOURS,
    IMAGE_PLACES,
    MOTIONS,
    SHAPES,
    SIZES,
    VIDEO_FPS,
    VIDEO_PLACES,
    ImageScene,
    Modality,
    Scene,
    sample_scene,
)
from vcap_jax.world.tokenizer import train_tokenizer
from vcap_jax.world.video_grammar import VIDEO_PROMPT

CAPTIONS_PER_SCENE = 2
CAPTION_TOKENS = {"image": 64, "video": 96}
FULL_CAPTION_TOKENS = {"image": 56, "video": 80}
"""A full caption is never longer; a weak one may be, where it invents objects."""
MODALITIES: tuple[Modality, ...] = ("image", "video")


def scene_pixels(scene: Scene) -> np.ndarray:
    """What a user's program would decode: the picture, or the clip after its trip through H.264."""
    if isinstance(scene, ImageScene):
        return render_image(scene)
    import av

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "clip.mp4"
        write_mp4(path, render_video(scene))
        with av.open(str(path)) as container:
            return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def _render_index(job: tuple[Modality, str, int]) -> np.ndarray:
    modality, split, index = job
    return scene_pixels(sample_scene(modality, 0, index, split))


def render_split(modality: Modality, split: str, count: int) -> list[np.ndarray]:
    """Pixels of the first ``count`` scenes of a split, rendered by all cores."""
    with multiprocessing.get_context("spawn").Pool() as pool:
        return pool.map(_render_index, [(modality, split, i) for i in range(count)], chunksize=64)


def encode(processor: Processor, modality: Modality, pixels: np.ndarray) -> EncodedPrompt:
    if modality == "image":
        return processor.encode([ImagePart(pixels), TextPart(IMAGE_PROMPT)])
    times = [k / VIDEO_FPS for k in range(len(pixels))]
    return processor.encode([VideoPart(pixels, times), TextPart(VIDEO_PROMPT)])


def caption_tokens(processor: Processor, text: str) -> list[int]:
    return [*processor.tokenizer(text)["input_ids"], processor.eos_token_ids[0]]


class Teacher:
    """Batches of (prompts, captions) of one modality, drawn by a step's own generator."""

    def __init__(
        self, processor: Processor, modality: Modality, split: str, count: int, cache: Path | None
    ) -> None:
        self.processor, self.modality = processor, modality
        self.scenes = [sample_scene(modality, 0, i, split) for i in range(count)]
        stored = cache / f"{modality}-{split}-{count}.npy" if cache else None
        if stored and stored.exists():
            self.pixels = np.load(stored)
        else:
            self.pixels = np.stack(render_split(modality, split, count))
            if stored:
                stored.parent.mkdir(parents=True, exist_ok=True)
                np.save(stored, self.pixels)

    def probe_batch(self, step: int, size: int) -> tuple:
        _, chosen, prompt = self._prompts(step, size)
        return prompt, np.stack([probe_targets(self.scenes[i]) for i in chosen])

    def batch(self, step: int, size: int, weak: WeakSettings | None) -> tuple:
        rng, chosen, prompt = self._prompts(step, size)
        captions = []
        for i in chosen:
            scene = self.scenes[i]
            texts = [
                full_caption(scene, rng) if weak is None else weak_caption(scene, rng, weak)
                for _ in range(CAPTIONS_PER_SCENE)
            ]
            captions.append([caption_tokens(self.processor, text) for text in texts])
        width = (FULL_CAPTION_TOKENS if weak is None else CAPTION_TOKENS)[self.modality]
        return prompt, TargetBatch(*pad_captions(captions, width, groups=size, per_group=CAPTIONS_PER_SCENE))

    def _prompts(self, step: int, size: int) -> tuple:
        rng = np.random.default_rng([step, MODALITIES.index(self.modality)])
        chosen = rng.integers(len(self.scenes), size=size)
        prompts = [encode(self.processor, self.modality, self.pixels[i]) for i in chosen]
        return rng, chosen, collate(prompts, buckets_of(self.modality), self.processor.merge_size)


PROBES: dict[str, tuple[str, ...]] = {
    "image place": IMAGE_PLACES,
    "video place": VIDEO_PLACES,
    "shape": ("nothing", *SHAPES),
    "colour": tuple(COLOURS),
    "size": SIZES,
    "motion": MOTIONS,
    "background": tuple(BACKGROUNDS),
}
"""What a probe tells apart in one visual token; a token of the embedded world covers exactly one cell.

The place is asked for as well: the decoder finds a token by what it says about where it is.
"""


def probe_targets(scene: Scene) -> np.ndarray:
    """[V, probes] int32: the right answer of every probe at every visual token, -1 where there is none."""
    if isinstance(scene, ImageScene):
        views = [(scene.background, scene.objects)]
        places: tuple[str, ...] = IMAGE_PLACES
    else:
        # Two frames are one temporal patch, and a cut never falls between them.
        views = [(s.background, s.objects) for s in scene.shots for _ in range((s.last - s.first) // 2)]
        places = VIDEO_PLACES
    targets = np.full((len(views), len(places), len(PROBES)), -1, np.int32)
    place_probe = list(PROBES).index("image place" if isinstance(scene, ImageScene) else "video place")
    targets[:, :, place_probe] = np.arange(len(places))
    for view, (background, objects) in enumerate(views):
        targets[view, :, list(PROBES).index("shape")] = 0
        targets[view, :, list(PROBES).index("background")] = PROBES["background"].index(background)
        for item in objects:
            for k, (name, values) in enumerate(PROBES.items()):
                if name in vars(item):
                    targets[view, places.index(item.place), k] = values.index(getattr(item, name))
    return targets.reshape(-1, len(PROBES))


def probe_loss(graphdef, trainable, prompt, targets):
    """Mean cross-entropy (nats) of all probes, and the share of right answers of each."""
    params, probes = trainable
    features = nnx.merge(graphdef, params).encode_vision(prompt.vision).embeddings
    losses, rights = [], []
    for k, weights in enumerate(probes):
        known = targets[..., k] >= 0
        logits = features @ weights
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(targets[..., k], 0))
        losses.append(jnp.where(known, loss, 0).sum() / jnp.maximum(known.sum(), 1))
        rights.append((known & (logits.argmax(-1) == targets[..., k])).sum() / jnp.maximum(known.sum(), 1))
    return sum(losses), jnp.stack(rights)


def buckets_of(modality: Modality) -> Buckets:
    if modality == "image":
        return Buckets(tokens=(32,), frames=(1,), patches=(36,))
    return Buckets(tokens=(96,), frames=(4,), patches=(16,))


def greedy_facts(graphdef, trainable, teacher: Teacher, count: int) -> dict[str, float]:
    """Coverage and hallucination of greedy captions on the first ``count`` scenes of a teacher's split."""
    from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
    from vcap_jax.rollout.sampling import SamplingConfig

    processor = teacher.processor
    config = RolloutConfig(
        group_size=1,
        max_completion_length=CAPTION_TOKENS[teacher.modality],
        sampling=SamplingConfig(temperature=0.0, repetition_penalty=1.0),
    )
    sampler = GroupSampler(
        graphdef, config, end_ids=processor.eos_token_ids, banned_ids=processor.banned_token_ids
    )
    empty = nnx.State({})
    prompts = [encode(processor, teacher.modality, pixels) for pixels in teacher.pixels[:count]]
    batch = collate(prompts, buckets_of(teacher.modality), processor.merge_size)
    features = jax.jit(lambda p, v: nnx.merge(graphdef, p, empty).encode_vision(v))(trainable, batch.vision)
    counts = []
    for group in sampler.stream(
        trainable, empty, batch, features, seed=0, step=0, group_ids=range(len(prompts))
    ):
        text = processor.tokenizer.decode(group.tokens[0][: group.lengths[0]], skip_special_tokens=True)
        counts.append(count_facts(teacher.scenes[group.index], text))
    total = sum(counts[1:], counts[0])
    return {"coverage": total.coverage, "hallucination": total.hallucination}


def make_optimizer(params: Any, steps: int, peak: float) -> optax.GradientTransformation:
    """Muon for the matrices of all layers ([in, out], or stacked [L, in, out]), Adam for everything else."""

    def schedule(peak: float) -> optax.Schedule:
        return optax.warmup_cosine_decay_schedule(0.0, peak, min(200, steps // 10), steps, peak * 0.02)

    def matrix(path: Any, leaf: jax.Array) -> MuonDimensionNumbers | None:
        if "kernel" not in jax.tree_util.keystr(path):
            return None
        return MuonDimensionNumbers(reduction_axis=leaf.ndim - 2, output_axis=leaf.ndim - 1)

    rule = muon(
        schedule(peak),
        weight_decay=0.02,
        adam_b2=0.98,
        adam_learning_rate=schedule(peak * 0.15),
        muon_weight_dimension_numbers=jax.tree_util.tree_map_with_path(matrix, params),
    )
    return optax.chain(optax.clip_by_global_norm(1.0), rule)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=BACKBONE_FOLDER)
    parser.add_argument("--scenes", type=int, default=12000, help="training scenes of each modality")
    parser.add_argument("--see-steps", type=int, default=2000, help="updates of the vision tower with probes")
    parser.add_argument("--tell-steps", type=int, default=3000, help="updates on full captions")
    parser.add_argument("--weak-steps", type=int, default=600, help="updates on weak captions")
    parser.add_argument("--batch", type=int, default=32, help="scenes per update")
    parser.add_argument(
        "--learning-rate", type=float, default=2e-2, help="of matrices; the rest has a seventh"
    )
    parser.add_argument("--weak-learning-rate", type=float, default=3e-3)
    parser.add_argument("--start-from", type=Path, help="a folder that an earlier run wrote after a stage")
    parser.add_argument(
        "--stages", nargs="+", choices=("see", "tell", "weak"), default=["see", "tell", "weak"]
    )
    parser.add_argument("--pixels", type=Path, help="keep the rendered scenes here from run to run")
    args = parser.parse_args()
    return guarded(lambda: make(args), goes_on=False)


def make(args: argparse.Namespace) -> int:
    """Goes through the stages; leaves a folder after each."""
    if args.start_from:  # what it has learned to say, it has learned in these tokens
        processor = Processor.from_pretrained(args.start_from)
    else:
        processor = Processor(train_tokenizer(), image=IMAGE_SETTINGS, video=VIDEO_SETTINGS)
    tokenizer = processor.tokenizer
    config_json = backbone_config(tokenizer)
    if args.start_from:
        model = load_pretrained(args.start_from, dtype=jnp.float32)
    else:
        config = Qwen3VLConfig.from_dict(config_json)
        model = Qwen3VL(config, rngs=nnx.Rngs(0), dtype=jnp.float32)
    graphdef, params = nnx.split(model)
    print(
        f"{sum(x.size for x in jax.tree.leaves(params)):,} parameters, vocabulary {len(tokenizer)}",
        flush=True,
    )
    frozen = nnx.State({})

    start = time.monotonic()
    teachers = [Teacher(processor, m, "backbone", args.scenes, args.pixels) for m in MODALITIES]
    checks = [Teacher(processor, m, "backbone-check", 128, args.pixels) for m in MODALITIES]
    print(f"scenes rendered in {time.monotonic() - start:.0f} s", flush=True)

    def save(folder: Path) -> None:
        write_new(folder, nnx.merge(graphdef, params, frozen), config_json, processor, dtype=jnp.bfloat16)

    def report(name: str, step: int, steps: int, begin: float, what: str) -> None:
        spent = time.monotonic() - begin
        left = spent / (step + 1) * (steps - step - 1)
        print(
            f"{name} {MODALITIES[step % 2]} {step}/{steps} {what} {spent:.0f} s, {left:.0f} s left",
            flush=True,
        )

    def see() -> None:
        nonlocal params
        rng = np.random.default_rng(0)
        width = model.config.text.hidden_size
        probes = [jnp.asarray(rng.normal(0, 0.05, (width, len(v))), jnp.float32) for v in PROBES.values()]
        optimizer = make_optimizer((params, probes), args.see_steps, args.learning_rate)
        opt_state = optimizer.init((params, probes))

        @jax.jit
        def update(trainable, opt_state, prompt, targets):
            (loss, right), grads = jax.value_and_grad(
                lambda t: probe_loss(graphdef, t, prompt, targets), has_aux=True
            )(trainable)
            updates, opt_state = optimizer.update(grads, opt_state, trainable)
            return optax.apply_updates(trainable, updates), opt_state, loss, right

        begin = time.monotonic()
        for step in range(args.see_steps):
            batch = teachers[step % 2].probe_batch(step, 2 * args.batch)
            (params, probes), opt_state, loss, right = update((params, probes), opt_state, *batch)
            if step % 100 < 2:
                shares = " ".join(f"{name} {x:.3f}" for name, x in zip(PROBES, right, strict=True))
                report("see", step, args.see_steps, begin, f"loss {loss:.4f} {shares}")

    def write(name: str, steps: int, peak: float, weak: WeakSettings | None) -> None:
        nonlocal params
        # Vision stays as the probes made it: what the decoder cannot read yet would otherwise be unlearned again.
        split, trainable, vision = split_model(nnx.merge(graphdef, params), ("visual",))
        optimizer = make_optimizer(trainable, steps, peak)
        programs = SFTPrograms(split, optimizer, logprob_chunk=None)
        state = programs.initial_state(trainable, Placement.build(MeshConfig(), rules=RULES))
        begin = time.monotonic()
        for step in range(steps):
            batch = teachers[step % 2].batch(step, args.batch, weak)
            state, metrics = programs.update(state, vision, [batch], int(batch[1].lengths.sum()))
            if step % 100 < 2:
                report(name, step, steps, begin, f"loss {metrics['nll']:.4f}")
            if (step + 1) % 1000 == 0 or step + 1 == steps:
                params = nnx.state(nnx.merge(split, state.params, vision))
                for check in checks:
                    print(
                        name, step + 1, check.modality, greedy_facts(graphdef, params, check, 128), flush=True
                    )
                save(args.out.with_name(f"{args.out.name}-{name}"))

    if "see" in args.stages:
        see()
        save(args.out.with_name(f"{args.out.name}-see"))
    if "tell" in args.stages:
        write("tell", args.tell_steps, args.learning_rate, None)
    if "weak" in args.stages:
        write("weak", args.weak_steps, args.weak_learning_rate, WeakSettings())
    save(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
