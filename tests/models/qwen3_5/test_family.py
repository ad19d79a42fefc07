"""A checkpoint of Qwen3.5 is found by its model_type, trains, stops and goes on, is exported, planned, and cut."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from tests.models.public_arrays import set_public_arrays
from tests.models.qwen3_5 import parity_cases
from tests.models.recurrent_family.reward import STOP
from vcap_jax.commands import serve_rollout
from vcap_jax.configuration import load_config
from vcap_jax.export.hugging_face import checkpoint_from_hf, checkpoint_to_hf
from vcap_jax.kernels import attention
from vcap_jax.models.family import opaque
from vcap_jax.models.policy import ModelConfig
from vcap_jax.models.qwen3_5.config import Qwen35Config, TextConfig
from vcap_jax.models.qwen3_5.family import Qwen35Family
from vcap_jax.models.qwen3_5.model import Qwen35
from vcap_jax.models.qwen3_vl.config import VisionConfig
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisionInputs
from vcap_jax.models.registry import family_at
from vcap_jax.models.weight_map import flat_parameters
from vcap_jax.parallel.group_sharding import GroupShardedJit
from vcap_jax.parallel.processes import ALONE
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.plan.abstract import abstract_parameters, model_of
from vcap_jax.plan.planning import make_plan
from vcap_jax.recipes.grpo import run
from vcap_jax.report.metrics import deterministic, read_metrics
from vcap_jax.rollout.sampler import GroupSampler, PromptGroups, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig, candidate_keys, sample
from vcap_jax.rollout.vllm_weights import WeightFiles
from vcap_jax.run.checkpoint_source import load_captioner
from vcap_jax.run.checks import check_run
from vcap_jax.run.config import RunConfig
from vcap_jax.run.folders import open_run
from vcap_jax.run.model_loading import load_model, load_policy
from vcap_jax.system.hardware import hardware
from vcap_jax.system.shutdown import Stopped
from vcap_jax.world.backbone import BACKBONE_FOLDER

SETTINGS = [
    "reward.family=tests.models.recurrent_family.reward:Letters",
    "mesh={data: 1, fsdp: 1, tensor: 1}",
    "max_steps=2",
    "world={train_scenes: 4, heldout_scenes: 2}",
    "grpo={groups_per_step: 2, groups_per_micro_batch: 1, objective: {beta: 0.05}}",
    "rollout={group_size: 3, max_completion_length: 12, groups_per_batch: 2, decode_steps_per_call: 16, shrink: 1}",
    "optimizer.learning_rate=0.01",
    "logging={save_every: 1, samples_every: 1}",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in Hugging Face form: the embedded world's tokenizer and preprocessor, random weights."""
    folder = tmp_path_factory.mktemp("tiny") / "qwen35"
    left_out = shutil.ignore_patterns("*.safetensors", "config.json", "card.json")
    shutil.copytree(BACKBONE_FOLDER, folder, ignore=left_out)
    known = json.loads((BACKBONE_FOLDER / "config.json").read_text())
    text = TextConfig(
        vocab_size=known["text_config"]["vocab_size"],
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        mrope_section=(2, 1, 1),
        full_attention_interval=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        eos_token_id=known["text_config"]["eos_token_id"],
        initializer_range=0.2,
    )
    vision = VisionConfig(
        depth=1,
        hidden_size=16,
        intermediate_size=24,
        num_heads=2,
        out_hidden_size=32,
        num_position_embeddings=16,
        deepstack_visual_indexes=(),
    )
    tokens = {name: value for name, value in known.items() if name.endswith("_token_id")}
    config = Qwen35Config(text=text, vision=vision, tie_word_embeddings=True, **tokens)
    Qwen35Family().save(Qwen35(config, rngs=nnx.Rngs(0), dtype=jnp.float32), folder, dtype=jnp.float32)
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


def placement() -> Placement:
    return Placement.build(MeshConfig(fsdp=1), jax.devices()[:1])


def parameters(path: Path, root: Path) -> dict[str, np.ndarray]:
    policy = load_captioner(load_config(RunConfig, [root / "config.yaml"]), str(path), placement())
    return {name: np.asarray(array) for name, array in flat_parameters(policy.merge()).items()}


@pytest.mark.long
def test_two_steps_change_the_decoder_and_leave_the_vision_tower(checkpoint: Path, trained: Path) -> None:
    before, after = parameters(checkpoint, trained), parameters(trained, trained)
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert np.array_equal(array, after[name]) == name.startswith("visual."), name
    assert all(row["grad_norm"] > 0 for row in read_metrics(trained / "metrics.jsonl"))


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


@pytest.mark.slow
def test_a_run_is_exported_and_read_back(trained: Path, tmp_path: Path) -> None:
    checkpoint_to_hf(trained, tmp_path / "hf", dtype="float32")
    model = load_model(tmp_path / "hf", placement=placement())
    assert isinstance(model, Qwen35)
    found = flat_parameters(model)
    for name, array in parameters(trained, trained).items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.slow
def test_a_checkpoint_in_bfloat16_comes_through_an_orbax_folder_as_it_was(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Some of its parameters are kept in float32 there: they are computed with in it."""
    base = tmp_path / "base"
    shutil.copytree(checkpoint, base, ignore=shutil.ignore_patterns("*.safetensors"))
    Qwen35Family().save(load_model(checkpoint, placement=placement()), base, dtype=jnp.bfloat16)
    assert checkpoint_from_hf(base, tmp_path / "orbax") == ("bfloat16", "bfloat16")
    # Memory is that of the stored numbers.
    kept = [
        flat_parameters(load_model(folder, placement=placement())) for folder in (base, tmp_path / "orbax")
    ]
    types = [{name: array.dtype for name, array in arrays.items()} for arrays in kept]
    assert types[0] == types[1]
    assert types[0]["text.embed_tokens"] == jnp.bfloat16
    checkpoint_to_hf(tmp_path / "orbax", tmp_path / "hf")
    before, after = ((folder / "model.safetensors").read_bytes() for folder in (base, tmp_path / "hf"))
    assert before == after


@pytest.mark.slow
def test_a_vllm_server_is_told_all_that_it_asks_for(
    checkpoint: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the decoder it asks whether there is a head to be read: without a word it takes memory as it comes for one."""
    policy = load_captioner(load_config(RunConfig, [trained / "config.yaml"]), str(trained), placement())
    graphdef, params = nnx.split(policy.merge())
    files = WeightFiles(tmp_path / "sent", graphdef, nnx.State({}), dtype=jnp.dtype("float32"))
    sent = files.write(params, "1").folder
    head = load_file(sent / "model-head.safetensors")["lm_head.weight"]
    np.testing.assert_array_equal(head, parameters(trained, trained)["text.embed_tokens"])
    told = json.loads((sent / "config.json").read_text())["text_config"]
    assert told["tie_word_embeddings"] is True
    assert told["mamba_ssm_dtype"] == "float32"

    def command(*more: str) -> list[str]:
        with pytest.raises(Started) as started:
            serve_rollout.main(
                ["--vllm=/bin/true", "--port=1", f"model.path={checkpoint}", *more, "--", "--last"]
            )
        return started.value.args[0]

    def execve(executable: str, command: list[str], environment: dict[str, str]) -> None:
        raise Started(command)

    monkeypatch.setattr(os, "execve", execve)
    folder = f"--folder={tmp_path / 'served'}"
    assert "--no-enable-prefix-caching" in command(folder, "--cpu")
    assert "--no-enable-prefix-caching" not in command(f"{folder}-2")


class Started(Exception):
    """In place of the server, with its command."""


@pytest.mark.long
def test_a_run_is_planned(checkpoint: Path) -> None:
    config = configured(checkpoint, "data.max_pixels=16384")
    devices = jax.devices()[:1]
    plan = make_plan(config, hardware("h100x1"), devices=(devices, devices))
    names = {row.name.split()[0] for row in plan.rows}
    assert names == {"copy", "vision", "prefill", "decode", "log-probabilities", "gradient", "optimizer"}
    assert plan.fits


def test_what_is_computed_with_in_float32_is_drawn_with_as_it_is_trained(checkpoint: Path) -> None:
    """In bfloat16 a convolution's kernel would be another one, and its small updates never reach what is drawn."""
    params = nnx.state(load_model(checkpoint, placement=placement()), nnx.Param)
    types = Qwen35Family().decoded_types(params, jnp.bfloat16)
    kept = {
        path[-1] for path, dtype in nnx.to_flat_state(types) if dtype == jnp.float32 and path[0] == "text"
    }
    assert kept == {"scale", "log_rate", "rate_bias", "conv"}


@pytest.mark.parametrize("more", ["", "model.lora={rank: 2}", "model.frozen=[visual, text.delta_layers]"])
def test_what_is_computed_with_in_float32_is_never_rounded(checkpoint: Path, more: str) -> None:
    """The anchor of the KL term, an adapter's base and frozen layers are the policy that the checkpoint holds."""

    def layers(params: nnx.State) -> nnx.State:
        return params["text"]["delta_layers"]

    kept = layers(nnx.state(load_model(checkpoint, placement=placement()), nnx.Param))["delta"]
    settings = [f"model.path={checkpoint}", "model.dtype=bfloat16", "model.frozen_dtype=bfloat16"]
    config = load_config(RunConfig, [], [*settings, *([more] if more else [])])
    policy = load_policy(config.model, placement=placement())
    base = policy.frozen if more else policy.reference_params("bfloat16")
    for name in ("log_rate", "rate_bias", "conv"):
        value = kept[name][...]
        assert layers(base)["delta"][name][...].dtype == jnp.float32
        np.testing.assert_array_equal(layers(base)["delta"][name][...], value)
    assert (value != value.astype(jnp.bfloat16)).any(), "rounding the convolution would show"
    assert layers(base)["delta"]["enter"]["kernel"][...].dtype == jnp.bfloat16
    planned = abstract_parameters(config, model_of(config.model), attention.kernel("dense"))
    same = planned.frozen if more else planned.reference
    assert jax.tree.map(lambda x: x.dtype, same) == jax.tree.map(lambda x: x.dtype, base)
    assert {x.dtype for x in jax.tree.leaves(policy.frozen["visual"])} == {jnp.dtype(jnp.bfloat16)}


def test_published_sizes_are_found_by_name() -> None:
    named = model_of(ModelConfig(path="Qwen/Qwen3.5-4B"))
    assert named.family.model_type == "qwen3_5"
    assert named == model_of(ModelConfig(path="Qwen3.5-4B-Base"))
    assert model_of(ModelConfig(path="9B")).family is named.family
    assert model_of(ModelConfig(path="Qwen3-VL-4B-Instruct")).family.model_type == "qwen3_vl"


def test_the_family_is_found_and_checked(checkpoint: Path) -> None:
    assert family_at(checkpoint).name == "Qwen3.5"
    assert opaque(Qwen35Family()).published_sizes


CONFIG = parity_cases.MODELS["tied"]


def filled() -> Qwen35:
    model = Qwen35(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.float32)
    set_public_arrays(model, parity_cases.weights(CONFIG, seed=5))
    return model


def prompts(groups: int) -> PromptBatch:
    """A picture of four visual tokens and a few words, of different lengths."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(8, 60, (groups, 12)).astype(np.int32)
    tokens[:, 2:6] = parity_cases.IMAGE
    index = np.full((groups, 12), -1, np.int32)
    index[:, 2:6] = range(4)
    positions = np.broadcast_to(np.arange(12, dtype=np.int32), (groups, 3, 12))
    patches = rng.integers(0, 256, (groups, 1, 16, CONFIG.vision.patch_dim), np.uint8)
    vision = VisionInputs(patches, np.full((groups, 1, 2), 4, np.int32))
    return PromptBatch(
        tokens, positions, np.array([12 - b % 3 for b in range(groups)], np.int32), index, vision
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "short",
    [{}, {"short_groups": 3, "short_length": 4}],
    ids=["", "short"],
)
def test_what_is_decoded_is_what_is_trained(short: dict[str, int]) -> None:
    """Groups that come and go, shapes that shrink as captions end, and groups that wait on the host. The oracle draws
    from the training forward, which knows no states."""
    model = filled()
    graphdef, params = nnx.split(model)
    batch, ends, banned = prompts(5), [1, *range(8, 20)], [parity_cases.IMAGE]
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
    drawn = sampler.stream_batches(params, nnx.State({}), [waiting], seed=1, step=0)
    groups = sorted(drawn, key=lambda g: g.index)
    tokens = np.stack([group.tokens for group in groups])
    lengths = np.stack([group.lengths for group in groups])
    assert len(set(lengths.flat)) > 3  # or no shape would have shrunk

    @jax.jit
    def forward(tokens: np.ndarray) -> jax.Array:
        return model.logits(model.caption_hidden(batch.without_vision(), features, tokens))

    logits, keys = forward(tokens), candidate_keys(1, 0, jnp.arange(5), 2)
    draw = jax.jit(partial(sample, config=sampling, banned=tuple(banned)))
    for t in range(12):
        drawn_tokens = np.asarray(draw(logits[:, :, t], keys, jnp.full((5, 1), t)))
        going = t < lengths
        np.testing.assert_array_equal(tokens[:, :, t][going], drawn_tokens[going], err_msg=f"token {t}")


@pytest.fixture(scope="module")
def one() -> tuple[object, object]:
    return on_devices(MeshConfig(fsdp=1))


@pytest.mark.long
@pytest.mark.parametrize(
    "axes",
    [
        {"fsdp": 4},
        {"data": 2, "fsdp": 2},
        {"fsdp": 2, "tensor": 2},
    ],
    ids=str,
)
def test_devices_compute_what_one_computes(axes: dict[str, int], one: tuple[object, object]) -> None:
    """Captions' hidden states and gradients over four devices."""
    four = on_devices(MeshConfig(**axes))
    for (path, ours), theirs in zip(
        jax.tree_util.tree_flatten_with_path(four)[0], jax.tree.leaves(one), strict=True
    ):
        scale = np.abs(np.asarray(theirs)).max() + 1e-6
        np.testing.assert_allclose(ours, theirs, atol=1e-3 * scale, err_msg=jax.tree_util.keystr(path))


def on_devices(mesh: MeshConfig) -> tuple[object, object]:
    """Hidden states that predict captions, and the gradients of a random function of them."""
    graphdef, params = nnx.split(filled())
    count = mesh.data * mesh.fsdp * mesh.tensor
    place = Placement.build(mesh, jax.devices()[:count], rules=Qwen35Family.partition_rules)
    captions = np.random.default_rng(4).integers(8, 60, (4, 2, 6)).astype(np.int32)
    params, batch = place.state(params), place.batch({"prompt": prompts(4), "captions": captions})

    def loss(params: nnx.State, batch: dict) -> tuple[jax.Array, jax.Array]:
        model, prompt = nnx.merge(graphdef, params), batch["prompt"]
        features = model.encode_vision(prompt.vision)
        hidden = model.caption_hidden(prompt.without_vision(), features, batch["captions"])
        weights = np.random.default_rng(6).standard_normal(hidden.shape).astype(np.float32)
        return jnp.sum(hidden * weights), hidden

    gradients, hidden = GroupShardedJit(jax.grad(loss, has_aux=True))(params, batch)
    return hidden, gradients
