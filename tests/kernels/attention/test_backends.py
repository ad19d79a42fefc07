"""Which kernel a name means where, and what is said when it cannot be had."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from tests.kernels.attention import new_tokens
from tests.kernels.native.compiler import needs_compiler
from vcap_jax.kernels import attention
from vcap_jax.kernels.attention import cudnn, splash
from vcap_jax.models.policy import ModelConfig
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.run.model_loading import load_policy

HEADS = {"text": 128, "vision": 72}


def choose(name: str, platform: str, dtype: str = "bfloat16", **head_sizes: int) -> attention.Kernel:
    return attention.choose(name, platform=platform, dtype=dtype, head_sizes=head_sizes or HEADS)


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        pytest.param("cpu", "native", marks=needs_compiler),
        ("gpu", "cudnn"),
        ("cuda", "cudnn"),
        ("tpu", "splash"),
    ],
)
def test_auto_takes_the_kernel_of_the_platform_and_says_so(platform, name, caplog) -> None:
    with caplog.at_level(logging.INFO):
        assert choose("auto", platform).name == name
    assert name in caplog.text


def test_a_model_that_attends_nowhere_is_required_to_call_nothing() -> None:
    for platform in ("cpu", "gpu", "tpu"):
        chosen = attention.choose("auto", platform=platform, dtype="bfloat16", head_sizes={})
        attention.require_kernel(chosen, "a program without a call")


def test_heads_that_cudnn_cannot_cut_are_refused_with_the_remedy() -> None:
    attention.check_tensor("cudnn", 1)
    attention.check_tensor("chunked", 2)
    with pytest.raises(
        attention.UnsupportedAttention, match=r"mesh\.tensor is 2.*mesh.tensor=1, or model.attention"
    ):
        attention.check_tensor("cudnn", 2)


@pytest.mark.parametrize(("dtype", "head"), [("float32", 128), ("bfloat16", 100), ("bfloat16", 256)])
def test_auto_warns_where_the_own_kernel_cannot_compute(dtype, head, caplog) -> None:
    assert choose("auto", "gpu", dtype, text=head).name == "chunked"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize(
    ("name", "platform", "dtype", "head", "remedy"),
    [
        ("cudnn", "cpu", "bfloat16", 128, "model.attention=auto .native there"),
        ("cudnn", "tpu", "bfloat16", 128, "model.attention=auto .splash there"),
        ("splash", "gpu", "bfloat16", 128, "model.attention=auto .cudnn there"),
        ("native", "tpu", "bfloat16", 128, "model.attention=auto .splash there"),
        ("native", "cpu", "float16", 128, "model.dtype"),
        ("cudnn", "gpu", "float32", 128, "model.dtype=bfloat16"),
        ("cudnn", "gpu", "bfloat16", 100, "multiple of 8 up to 128.*vision heads have size 100"),
        ("splash", "tpu", "float16", 128, "model.dtype"),
    ],
)
def test_a_demand_that_cannot_be_met_is_refused_with_the_remedy(name, platform, dtype, head, remedy) -> None:
    with pytest.raises(attention.UnsupportedAttention, match=remedy):
        choose(name, platform, dtype, text=128, vision=head)


def test_what_anything_can_run_is_taken_anywhere() -> None:
    for name in ("dense", "chunked"):
        for platform in ("cpu", "gpu", "tpu"):
            assert choose(name, platform, "float32", text=7).name == name


def test_unknown_names_are_refused() -> None:
    kernels = "'auto', 'dense', 'chunked', 'native', 'cudnn' or 'splash'"
    with pytest.raises(ValueError, match=rf"attention\n.* {kernels} .*input_value='flash'"):
        ModelConfig(attention="flash")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"remat\n.* 'none', 'layer', 'attention', 'mlp'.*input_value='yes'"):
        ModelConfig(remat="yes")  # type: ignore[arg-type]


def test_a_policy_carries_its_kernel_and_refuses_one_of_another_platform() -> None:
    placement = Placement.build(MeshConfig(fsdp=1))
    policy = load_policy(ModelConfig(attention="dense"), placement=placement)
    assert policy.merge().kernel.name == policy.merge().visual.kernel.name == "dense"
    with pytest.raises(attention.UnsupportedAttention, match="runs on cuda, but the devices are cpu"):
        load_policy(ModelConfig(attention="cudnn"), placement=placement)


@pytest.mark.parametrize("kernel", [cudnn.CuDNN(), splash.Splash()], ids=["cudnn", "splash"])
def test_a_release_of_jax_that_has_moved_a_kernel_is_told(kernel, monkeypatch) -> None:
    """What is private may change; then the error says what to do, and nothing else is tried."""
    kernel.check(jnp.bfloat16, 128)
    monkeypatch.setattr(cudnn, "PARAMETERS", ({cudnn.FORWARD: "query key value something_else"},))
    monkeypatch.setattr(splash, "BACKWARD", "something_else")
    with pytest.raises(
        attention.UnsupportedAttention, match=r"has moved .* install jax .* model.attention=chunked"
    ):
        kernel.check(jnp.bfloat16, 128)


OLDER, NEWER = cudnn.PARAMETERS


@pytest.mark.parametrize(
    ("forward", "backward"), [(OLDER, OLDER), (NEWER, NEWER), (OLDER, NEWER), (NEWER, OLDER)]
)
def test_cudnn_is_called_as_each_release_of_jax_wants_it(forward, backward, monkeypatch) -> None:
    """JAX 0.12 takes a function that changes the scores; functions of two releases together are none that is known."""
    calls: dict[str, dict[str, Any]] = {}

    def stand_in(name: str, parameters: str, result: tuple[jax.Array, ...]) -> None:
        def called(**arguments: Any) -> tuple[jax.Array, ...]:
            calls[name] = arguments
            return result

        named = {"called": called}
        taken = ", ".join(parameters.split())
        given = ", ".join(f"{word}={word}" for word in parameters.split())
        exec(f"def function({taken}): return called({given})", named)
        monkeypatch.setattr(fused_attention_stablehlo, name, named["function"])

    q, k, v, out = (jnp.full((1, 8, 2, 16), i, jnp.bfloat16) for i in range(4))
    lse = jnp.zeros((1, 2, 8))
    stand_in(cudnn.FORWARD, forward[cudnn.FORWARD], (out, lse))
    stand_in(cudnn.BACKWARD, backward[cudnn.BACKWARD], (q, k, v))
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    kernel, lengths = attention.CuDNN(), jnp.array([5])
    if forward is not backward:
        with pytest.raises(attention.UnsupportedAttention, match="_bwd_rule takes scale seed"):
            kernel.forward(q, k, v, lengths, causal=False)
        return
    assert kernel.forward(q, k, v, lengths, causal=False) == (out, lse)
    assert kernel.backward((q, k, v, lengths, out, lse), out, causal=False) == (q, k, v)
    given, kept = calls[cudnn.FORWARD], calls[cudnn.BACKWARD]["res"]
    assert (given["query"], given["key"], given["value"]) == (q, k, v)
    assert (given["kv_seqlen"].tolist(), given["return_residual"]) == ([5], True)
    assert kept[:3] == (q, k, v)
    assert kept[-2:] == (lse, out)
    assert len(kept) == (12 if forward is OLDER else 13)
    assert [x for x in kept if isinstance(x, tuple)] == ([] if forward is OLDER else [()])
    assert calls[cudnn.BACKWARD]["grad_output"] is out
    assert calls[cudnn.BACKWARD]["return_residual"] is False


def test_this_release_of_jax_writes_down_both_calls_of_cudnn(monkeypatch) -> None:
    """The real functions, with arguments in whatever order they are here."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    q = jax.ShapeDtypeStruct((2, 256, 4, 128), jnp.bfloat16)
    lengths = jax.ShapeDtypeStruct((2,), jnp.int32)

    def loss(q: jax.Array, lengths: jax.Array) -> jax.Array:
        return attention.frames(q, q, q, lengths, attention.CuDNN()).astype(jnp.float32).sum()

    lowered = jax.jit(jax.grad(loss)).trace(q, lengths).lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmax(" in lowered
    assert "__cudnn$fmhaSoftmaxBackward(" in lowered
    assert lowered.count("PADDING") == 2


def test_a_program_tells_which_kernel_it_calls() -> None:
    """The real calls, as a GPU's and a TPU's compiler get them; no device is needed to write them down."""
    q = jax.ShapeDtypeStruct((1, 256, 4, 128), jnp.bfloat16)

    def lowered(kernel: attention.Kernel, platform: str) -> str:
        program = jax.jit(lambda q: attention.causal(q, q, q, kernel))
        return program.trace(q).lower(lowering_platforms=(platform,)).as_text()

    plain = lowered(attention.CHUNKED, "cpu")
    assert attention.kernels_in(plain) == frozenset()
    attention.require_kernel(attention.CHUNKED, plain)
    with pytest.raises(attention.UnsupportedAttention, match="the fast path is not taken"):
        attention.require_kernel(attention.Splash(), plain)
    text = lowered(attention.Splash(), "tpu")
    assert attention.kernels_in(text) == {"splash"}
    attention.require_kernel(attention.Splash(), text)


def decoding(
    name: str, platform: str, capability: str | None = None, base: str = "auto", **heads: int
) -> str:
    """The kernel for new tokens that is chosen in bfloat16."""
    heads = heads or HEADS
    chosen = attention.choose(base, platform=platform, dtype="bfloat16", head_sizes=heads)
    paired = attention.choose_decoding(
        name, chosen, platform=platform, dtype="bfloat16", head_sizes=heads, capability=capability
    )
    assert paired.name == chosen.name
    return paired.decoding


@pytest.mark.parametrize(
    ("platform", "capability", "base", "expected"),
    [
        ("gpu", "9.0", "auto", "hopper"),
        ("gpu", "8.0", "auto", "dense"),
        ("gpu", "10.0", "auto", "dense"),
        ("gpu", "9.0", "chunked", "dense"),
        ("tpu", None, "auto", "tpu"),
        ("tpu", None, "dense", "dense"),
        ("cpu", None, "dense", "dense"),
        pytest.param("cpu", None, "auto", "native", marks=needs_compiler),
    ],
)
def test_auto_takes_the_device_s_kernel_for_new_tokens_and_says_so(
    platform, capability, base, expected, caplog
) -> None:
    with caplog.at_level(logging.INFO):
        assert decoding("auto", platform, capability, base) == expected
    assert f"attention of new tokens: {expected}" in caplog.text


def test_auto_warns_where_the_kernel_for_new_tokens_cannot_compute(caplog) -> None:
    assert decoding("auto", "gpu", "9.0", text=96, vision=72) == "dense"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "heads of 64 or 128, not of 96" in caplog.text


def test_vision_has_no_new_tokens() -> None:
    assert decoding("hopper", "gpu", "9.0", text=128, vision=72) == "hopper"


@pytest.mark.parametrize(
    ("name", "platform", "capability", "said"),
    [
        ("hopper", "gpu", "8.0", "Hopper GPUs, but the devices are cuda of compute capability 8.0"),
        ("hopper", "tpu", None, "Hopper GPUs, but the devices are tpu"),
        ("tpu", "gpu", "9.0", "tpu, but the devices are cuda"),
        ("native", "gpu", "9.0", "cpu, but the devices are cuda"),
        ("hopper", "gpu", "9.0", "heads of 64 or 128.*text heads have size 80"),
    ],
)
def test_a_demand_for_new_tokens_that_cannot_be_met_is_refused(name, platform, capability, said) -> None:
    with pytest.raises(attention.UnsupportedAttention, match=said):
        decoding(name, platform, capability, text=80)


def test_unknown_names_for_new_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'dense', 'native', 'hopper' or 'tpu'"):
        ModelConfig(decode_attention="cudnn")  # type: ignore[arg-type]


def test_a_program_that_decodes_tells_whether_it_has_the_kernel() -> None:
    """The real calls, as the compilers of both platforms get them; no device is needed to write them down."""
    sizes = new_tokens.Sizes(1, 2, 2, 1, prompt=128, start=128, late=128)
    arguments = jax.eval_shape(lambda: new_tokens.caches(sizes)[0]), *new_tokens.caches(sizes)[1:]

    def program(kernel: attention.TokenKernel, platform: str) -> str:
        return jax.jit(kernel.decode).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()

    def paired(tokens: attention.TokenKernel) -> attention.Kernel:
        return attention.Paired(sequences=attention.CHUNKED, tokens=tokens)

    plain = program(attention.Dense(), "tpu")
    assert attention.kernels_in(plain) == frozenset()
    attention.require_decoding(attention.CHUNKED, plain)
    text = program(attention.TpuDecode(), "tpu")
    assert attention.kernels_in(text) == {"tpu"}
    attention.require_decoding(paired(attention.TpuDecode()), text)
    text = program(attention.Hopper(), "cuda")
    assert attention.kernels_in(text) == {"hopper"}
    attention.require_decoding(paired(attention.Hopper()), text)
    for tokens in (attention.TpuDecode(), attention.Hopper()):
        with pytest.raises(attention.UnsupportedAttention, match=r"set model\.decode_attention=dense"):
            attention.require_decoding(paired(tokens), plain)
