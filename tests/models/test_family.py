"""A family outside the package trains, stops and goes on, is planned and exported; only settings name it."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.recurrent_family.model import Prompts, RecurrentCaptioner, Spec, drawn
from tests.models.recurrent_family.reward import STOP
from vcap_jax.configuration import load_config
from vcap_jax.export.hugging_face import checkpoint_from_hf, checkpoint_to_hf
from vcap_jax.models.errors import CheckpointError
from vcap_jax.models.family import VisualBudget, family_of
from vcap_jax.models.registry import FAMILIES, ModelFamilyError, family_at, load_family
from vcap_jax.models.weight_map import flat_parameters
from vcap_jax.parallel.processes import ALONE
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.plan.planning import make_plan
from vcap_jax.recipes.grpo import run
from vcap_jax.report.metrics import deterministic, read_metrics
from vcap_jax.rollout.sampler import GroupSampler, PromptGroups, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig, candidate_keys, sample
from vcap_jax.run.checkpoint_source import load_captioner
from vcap_jax.run.checks import check_run
from vcap_jax.run.config import RunConfig
from vcap_jax.run.folders import open_run
from vcap_jax.run.model_loading import load_model
from vcap_jax.system.hardware import hardware
from vcap_jax.system.shutdown import Stopped
from vcap_jax.world.backbone import BACKBONE_FOLDER

NAMED = "tests.models.recurrent_family.family:RecurrentFamily"
SETTINGS = [
    f"model.family={NAMED}",
    "reward.family=tests.models.recurrent_family.reward:Letters",
    "mesh={data: 1, fsdp: 1, tensor: 1}",
    "max_steps=2",
    "world={train_scenes: 4, heldout_scenes: 2}",
    "data.buckets={tokens: [32]}",
    "grpo={groups_per_step: 2, groups_per_micro_batch: 1, objective: {beta: 0.05}}",
    "rollout={group_size: 3, max_completion_length: 12, groups_per_batch: 2, decode_steps_per_call: 12, shrink: 1}",
    "optimizer.learning_rate=0.01",
    "logging={save_every: 1, samples_every: 1}",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in Hugging Face form with the tokenizer of the embedded world and random weights."""
    folder = tmp_path_factory.mktemp("tiny-recurrent")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BACKBONE_FOLDER / name, folder)
    tokenizer = load_family(NAMED).processor(folder, VisualBudget()).tokenizer
    spec = Spec(
        vocab_size=len(tokenizer),
        picture_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        eos_token_id=tokenizer.eos_token_id,
    )
    load_family(NAMED).save(drawn(spec), folder, dtype=jnp.float32)
    return folder


def configured(checkpoint: Path, *more: str) -> RunConfig:
    return load_config(RunConfig, [], [*SETTINGS, f"model.path={checkpoint}", *more])


def train(root: Path, config: RunConfig, *, resume: bool = False) -> None:
    """As launch/train.py does."""
    check_run(config, ALONE)
    config, folder = open_run(config, root, ALONE, resume=resume)
    run(config, folder, say=lambda text: None)


@pytest.fixture(scope="module")
def trained(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "alone"
    train(root, configured(checkpoint))
    return root


def parameters(path: Path, root: Path) -> dict[str, np.ndarray]:
    config = load_config(RunConfig, [root / "config.yaml"])
    policy = load_captioner(config, str(path), Placement.build(MeshConfig(fsdp=1), jax.devices()[:1]))
    return {name: np.asarray(array) for name, array in flat_parameters(policy.merge()).items()}


def test_two_steps_change_what_is_trained_and_nothing_else(checkpoint: Path, trained: Path) -> None:
    before, after = parameters(checkpoint, trained), parameters(trained, trained)
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert np.array_equal(array, after[name]) == name.startswith("visual."), name
    rows = read_metrics(trained / "metrics.jsonl")
    assert len(rows) == 2
    assert all(row["grad_norm"] > 0 for row in rows)
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["steps"] == 2


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_to_the_same_end(
    checkpoint: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "stopped"
    monkeypatch.setenv(STOP, "0")
    with pytest.raises(Stopped, match="after step 1 of 2"):
        train(root, configured(checkpoint))
    train(root, configured(checkpoint), resume=True)
    alone, resumed = (
        [deterministic(row) for row in read_metrics(folder / "metrics.jsonl")] for folder in (trained, root)
    )
    assert resumed == alone
    ours, theirs = parameters(root, root), parameters(trained, trained)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


def test_a_run_is_exported_and_read_back(trained: Path, tmp_path: Path) -> None:
    exported = checkpoint_to_hf(trained, tmp_path / "hf", dtype="float32")
    assert exported.step == 2
    assert "A captioner of images" in (tmp_path / "hf" / "README.md").read_text()
    placement = Placement.build(MeshConfig(fsdp=1), jax.devices()[:1])
    wanted = parameters(trained, trained)
    checkpoint_from_hf(tmp_path / "hf", tmp_path / "orbax", family=NAMED)
    for folder in ("hf", "orbax"):
        model = load_model(tmp_path / folder, placement=placement, family=NAMED)
        assert isinstance(model, RecurrentCaptioner)
        found = flat_parameters(model)
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("path", [None, "Tiny"])
def test_a_run_is_planned(checkpoint: Path, path: str | None) -> None:
    named = [] if path is None else [f"model.path={path}"]
    config = configured(checkpoint, "data.max_pixels=1024", "data.buckets={tokens: [64]}", *named)
    devices = jax.devices()[:1]
    only = None if path is None else frozenset({"decode"})
    plan = make_plan(config, hardware("h100x1"), devices=(devices, devices), only=only)
    assert plan.sizes.tokens == 64
    assert plan.sizes.visual == 16
    names = {row.name.split()[0] for row in plan.rows}
    if path is None:
        assert names == {"copy", "vision", "prefill", "decode", "log-probabilities", "gradient", "optimizer"}
        assert plan.fits
    else:
        assert names == {"decode"}


SPEC = Spec(vocab_size=40, picture_token_id=5, eos_token_id=1)


def prompts(groups: int) -> Prompts:
    rng = np.random.default_rng(3)
    tokens = rng.integers(8, 40, (groups, 20)).astype(np.int32)
    tokens[:, :16] = 5
    lengths = np.array([20 - b % 3 for b in range(groups)], np.int32)
    return Prompts(tokens, lengths, rng.integers(0, 256, (groups, 16, 192), np.uint8))


@pytest.mark.parametrize(
    "short",
    [pytest.param({}, marks=pytest.mark.slow), {"short_groups": 3, "short_length": 4}],
    ids=["", "short"],
)
def test_what_is_decoded_is_what_is_trained(short: dict[str, int]) -> None:
    """Groups that come and go, shapes that shrink as captions end, and groups that wait on the host: each token has
    the memory, the keys and the values of its own caption. The oracle draws from the training forward, which knows no
    states."""
    model = drawn(SPEC, seed=2)
    graphdef, params = nnx.split(model)
    batch, ends, banned = prompts(5), [1, 8, 9, 10], [5]
    features = jax.jit(lambda vision: model.encode_vision(vision))(batch.vision)
    sampling = SamplingConfig(temperature=1.5, top_p=1.0, top_k=0, repetition_penalty=1.0)
    config = RolloutConfig(
        group_size=2,
        max_completion_length=12,
        groups_per_batch=2,
        decode_steps_per_call=3,
        sampling=sampling,
        **short,
    )
    sampler = GroupSampler(graphdef, config, end_ids=ends, banned_ids=banned)
    waiting = PromptGroups(batch.without_vision(), features, range(5))
    groups = sorted(
        sampler.stream_batches(params, nnx.State({}), [waiting], seed=1, step=0), key=lambda g: g.index
    )
    tokens = np.stack([group.tokens for group in groups])
    lengths = np.stack([group.lengths for group in groups])
    assert len(set(lengths.flat)) > 3  # or no shape would have shrunk

    @jax.jit
    def forward(tokens: np.ndarray) -> jax.Array:
        return model.caption_hidden(batch.without_vision(), features, tokens) @ model.head()

    logits = forward(tokens)
    keys = candidate_keys(1, 0, jnp.arange(5), 2)
    draw = jax.jit(partial(sample, config=sampling, banned=tuple(banned)))
    for t in range(12):
        drawn_tokens = np.asarray(draw(logits[:, :, t], keys, jnp.full((5, 1), t)))
        going = t < lengths
        np.testing.assert_array_equal(tokens[:, :, t][going], drawn_tokens[going], err_msg=f"token {t}")


def test_a_family_that_fails_is_named_with_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = "from tests.models.recurrent_family.family import RecurrentFamily\n\n"
    (tmp_path / "ended_family.py").write_text("raise SystemExit('no')\n")
    failing = "class Family(RecurrentFamily):\n    def __init__(self):\n        raise KeyError('size')\n"
    (tmp_path / "failing_family.py").write_text(start + failing)
    monkeypatch.syspath_prepend(tmp_path)
    for named, told in {
        "ended_family:Family": r"cannot be imported: SystemExit: no \(.*ended_family\.py:1",
        "failing_family:Family": r"cannot be made: KeyError: 'size' \(.*failing_family\.py:5, in __init__\)",
    }.items():
        with pytest.raises(ModelFamilyError, match=told):
            load_family(named)


def test_a_family_that_cannot_be_used_is_named(checkpoint: Path, tmp_path: Path) -> None:
    assert family_at(checkpoint, NAMED) is load_family(NAMED)
    assert family_at(BACKBONE_FOLDER).model_type in FAMILIES
    # A named family reads its own checkpoints; others are still their own family's.
    assert family_at(BACKBONE_FOLDER, NAMED) is family_at(BACKBONE_FOLDER)
    assert family_of(nnx.split(drawn(SPEC))[0]) is not None
    with pytest.raises(ModelFamilyError, match=r"'tiny_recurrent'.*qwen3_vl.*model\.family="):
        family_at(checkpoint)
    for named, told in {
        "nothing": "no import path",
        "no.such.module:Family": "cannot be imported.*PYTHONPATH",
        "tests.models.recurrent_family.family:Missing": "has no Missing",
        "tests.models.recurrent_family.model:Spec": "lacks .*decoder",
    }.items():
        with pytest.raises(ModelFamilyError, match=told):
            load_family(named)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="model_type"):
        family_at(tmp_path)
