"""Products of few rows in C++, and that decoding takes them where it may."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.kernels.attention.new_tokens import first_columns
from tests.kernels.native.compiler import NARROWER, compiled_for, needs_compiler
from tests.models.parity import laid_out
from tests.models.qwen3_vl import parity_cases as cases
from vcap_jax.kernels.attention import Chunked
from vcap_jax.kernels.attention.native import Native
from vcap_jax.kernels.native import skinny_matmul as few_rows
from vcap_jax.models import lora
from vcap_jax.models.family import CaptionState
from vcap_jax.models.qwen3_vl.caches import empty_caches
from vcap_jax.models.qwen3_vl.decoding import DecodeModel
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.parallel.sharding import MeshConfig, make_mesh

ROWS = (1, 7, 8, 12, 13, 32, few_rows.MOST_ROWS)
SIZES = ((256, 384), (128, 64), (129, 65), (300, 33), (33, 61), (5, 3), (97, 1), (1, 40))
CONFIG = cases.MODELS["tied"]
GROUPS, CAPTIONS, PROMPT, TOKENS = 2, 3, 9, 4


def operands(rows: int, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows * inputs * outputs)
    return (
        rng.standard_normal((rows, inputs)).astype(np.float32),
        rng.standard_normal((inputs, outputs)).astype(np.float32),
    )


def check(rows: int, inputs: int, outputs: int) -> None:
    x, weight = operands(rows, inputs, outputs)
    exact = x.astype(np.float64) @ weight.astype(np.float64)
    ours = np.asarray(few_rows.product(jnp.asarray(x), jnp.asarray(weight)))
    # The roundings of a sum are as large as its terms are, whatever they come to.
    assert (np.abs(ours - exact) <= 1e-6 * (np.abs(x) @ np.abs(weight))).all()


@needs_compiler
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_it_is_the_product(rows: int, inputs: int, outputs: int) -> None:
    check(rows, inputs, outputs)


@needs_compiler
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 384), (300, 33)])
def test_a_row_does_not_depend_on_time_or_company(inputs: int, outputs: int) -> None:
    """Threads take panels as they come, and more rows make other tiles; the sums are made in one order."""
    x, weight = map(jnp.asarray, operands(40, inputs, outputs))
    first = np.asarray(few_rows.product(x, weight))
    for _ in range(20):
        np.testing.assert_array_equal(few_rows.product(x, weight), first)
    for rows in (1, 8, 13, 25):
        np.testing.assert_array_equal(few_rows.product(x[:rows], weight), first[:rows])


@needs_compiler
def test_a_number_that_is_none_stays_in_its_row_and_column() -> None:
    x, weight = operands(13, 130, 70)
    x[5, 129] = np.nan
    expected = np.zeros((13, 70), bool)
    expected[5] = True
    np.testing.assert_array_equal(np.isnan(few_rows.product(jnp.asarray(x), jnp.asarray(weight))), expected)
    x[5, 129], weight[0, 69] = 0, np.inf
    out = np.asarray(few_rows.product(jnp.asarray(x), jnp.asarray(weight)))
    assert np.isinf(out[:, 69]).all()
    assert np.isfinite(out[:, :69]).all()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("processor", NARROWER)
def test_processors_with_narrower_vectors(processor: str, tmp_path_factory) -> None:
    with compiled_for(processor, tmp_path_factory):
        for rows in ROWS:
            for inputs, outputs in SIZES:
                check(rows, inputs, outputs)


@needs_compiler
def test_many_rows_are_left_to_xla() -> None:
    def program(rows: int) -> str:
        x, weight = operands(rows, 16, 24)
        return jax.jit(few_rows.product).lower(x, weight).as_text()

    assert "vcap_few_rows" in program(few_rows.MOST_ROWS)
    assert "vcap_few_rows" not in program(few_rows.MOST_ROWS + 1)


def decoder(adapters: bool = False, **settings: Any) -> tuple[Any, Any, Any]:
    """What gives the logits behind one token of each caption of an empty prompt; its parameters and caches."""
    model = Qwen3VL(CONFIG, rngs=nnx.Rngs(0), **{"dtype": jnp.float32, "kernel": Native(), **settings})
    if adapters:
        lora.attach(model, lora.LoraConfig(rank=2))
        rng = np.random.default_rng(1)
        for node in lora.adapters(model).values():
            node.b.set_value(jnp.asarray(rng.standard_normal(node.b.shape), jnp.float32))
    graphdef, params = nnx.split(model)
    sizes = {"groups": GROUPS, "captions": CAPTIONS, "prompt_tokens": PROMPT, "caption_tokens": TOKENS}
    caches = empty_caches(CONFIG.text, CONFIG.text.num_hidden_layers, model.dtype, **sizes)
    for_decoding = jax.jit(lambda params: laid_out(graphdef, params))(params)

    def decode(params: Any, caches: Any) -> jax.Array:
        model, (prompt, captions) = DecodeModel(graphdef, params), caches
        tokens = jnp.arange(GROUPS * CAPTIONS).reshape(GROUPS, CAPTIONS)
        own = first_columns(1, GROUPS, CAPTIONS, TOKENS)
        rotations, seen = model.ahead(jnp.zeros((GROUPS, 1), jnp.int32), prompt)
        rotation = jax.tree.map(lambda x: x[:, 0], rotations)
        hidden, _ = model.decode(
            tokens, rotation, seen, jnp.int32(0), own, prompt, CaptionState(captions, ())
        )
        return model.logits(hidden)

    return decode, for_decoding, caches


def run(decode: Any, *arguments: Any) -> tuple[int, np.ndarray]:
    """How many products of its program are in C++, and what it computes."""
    compiled = jax.jit(decode).lower(*arguments).compile()
    return compiled.as_text().count('custom_call_target="vcap_few_rows'), np.asarray(compiled(*arguments))


@needs_compiler
@pytest.mark.parametrize("adapters", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_decoding_takes_it_for_every_matrix_of_the_layers(adapters: bool, monkeypatch) -> None:
    decode, *arguments = decoder(adapters)
    calls, ours = run(decode, *arguments)
    assert calls == 4 * CONFIG.text.num_hidden_layers
    monkeypatch.setattr(few_rows, "usable", lambda dtype: False)
    calls, plain = run(decoder(adapters)[0], *arguments)
    assert calls == 0
    np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-5 * np.abs(plain).max())
    assert np.abs(plain).max() > 0


@needs_compiler
def test_a_mesh_of_several_devices_keeps_xlas(caplog) -> None:
    few_rows._note.cache_clear()
    decode, *arguments = decoder()
    ours, again = run(decode, *arguments)[1], decoder()[0]
    with caplog.at_level(logging.INFO), jax.set_mesh(make_mesh(MeshConfig(fsdp=2, tensor=2))):
        calls, divided = run(again, *arguments)
    assert calls == 0
    assert "for one device, and these are 4" in caplog.text
    np.testing.assert_allclose(divided, ours, rtol=0, atol=1e-5 * np.abs(ours).max())


@needs_compiler
def test_what_is_taken_is_said_once(caplog) -> None:
    few_rows._note.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            decode, *arguments = decoder()
            jax.eval_shape(decode, *arguments)
    assert caplog.text.count(f"products of up to {few_rows.MOST_ROWS} rows are in C++") == 1


@needs_compiler
@pytest.mark.parametrize(
    ("settings", "said"),
    [({"dtype": jnp.bfloat16}, "this is bfloat16"), ({"kernel": Chunked()}, None)],
    ids=["bfloat16", "chunked"],
)
def test_other_models_keep_xlas(settings: dict[str, Any], said: str | None, caplog) -> None:
    few_rows._note.cache_clear()
    with caplog.at_level(logging.INFO):
        decode, *arguments = decoder(**settings)
        calls, _ = run(decode, *arguments)
    assert calls == 0
    assert said is None or said in caplog.text


@needs_compiler
def test_a_model_that_has_been_decoded_with_can_still_be_trained() -> None:
    """The product has no gradient: what decodes must leave the definition it is made from as it was."""
    model = Qwen3VL(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.float32, kernel=Native())
    graphdef, params = nnx.split(model)
    DecodeModel(graphdef, laid_out(graphdef, params))
    x = jnp.ones((1, 4, CONFIG.text.hidden_size))
    cos = jnp.ones((1, 4, CONFIG.text.head_dim // 2))

    def loss(params: Any) -> jax.Array:
        text = nnx.merge(graphdef, params).text

        return text(x, cos, 0 * cos, lambda q, k, v: q)[0, 0, 0]

    kernel = jax.jit(jax.grad(loss))(params).text.layers.mlp.down.kernel
    assert np.abs(kernel[...]).max() > 0
