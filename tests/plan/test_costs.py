"""Operations, bytes and messages counted from programs whose work is known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vcap_jax.plan.costs import Cost, Counter
from vcap_jax.plan.hlo import parse, shapes_in


def counted(text: str, **settings: int) -> Cost:
    return Counter(parse(text), **settings).total()


def test_a_scan_counts_as_often_as_it_runs() -> None:
    def layers(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0]

    compiled = jax.jit(layers).lower(jnp.zeros((32, 64)), jnp.zeros((7, 64, 64))).compile()
    cost = counted(compiled.as_text())
    assert cost.flops == 7 * 2 * 32 * 64 * 64
    assert cost.flops == pytest.approx(7 * compiled.cost_analysis()["flops"], rel=0.01)
    # Each round reads its own matrix, not the stack.
    assert 7 * 64 * 64 * 4 <= cost.moved < 7 * 7 * 64 * 64 * 4


def test_a_loop_of_unknown_length_counts_as_told() -> None:
    def decode(x: jax.Array, w: jax.Array, stop: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda s: s[0] < stop, lambda s: (s[0] + 1, s[1] @ w), (0, x))[1]

    text = jax.jit(decode).lower(jnp.zeros((8, 64)), jnp.zeros((64, 64)), 3).compile().as_text()
    assert counted(text).flops == 2 * 8 * 64 * 64
    assert counted(text, open_loops=5).flops == 5 * 2 * 8 * 64 * 64


def test_messages_between_devices() -> None:
    mesh = jax.make_mesh((4,), ("fsdp",), devices=jax.devices()[:4])
    whole, cut = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("fsdp",)))
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=cut)
    text = jax.jit(lambda x: x, out_shardings=whole).lower(x).compile().as_text()
    assert counted(text).sent == 64 * 128 * 4 * 3 / 4
    total = jax.jit(lambda x: x.sum(0), out_shardings=whole).lower(x).compile().as_text()
    assert counted(total).sent == 2 * 128 * 4 * 3 / 4


GPU = """\
HloModule m

%fused (p: f32[36,256,256], i: s32[]) -> f32[256,256] {
  %p = f32[36,256,256]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice = f32[1,256,256]{2,1,0} dynamic-slice(%p, %i, %zero, %zero), dynamic_slice_sizes={1,256,256}
}

ENTRY %main (a: bf16[4096,4096], b: bf16[4096,1024], s: f32[36,256,256], n: s32[]) -> bf16[4096,1024] {
  %a = bf16[4096,4096]{1,0} parameter(0)
  %b = bf16[4096,1024]{1,0} parameter(1)
  %s = f32[36,256,256]{2,1,0} parameter(2)
  %n = s32[] parameter(3)
  %layer = f32[1,256,256]{2,1,0} fusion(%s, %n), kind=kLoop, calls=%fused
  %ag-start = (bf16[4096,1024]{1,0}, bf16[4096,6144]{1,0}) all-gather-start(%b), replica_groups=mesh['axis_0'=1,\
'axis_1'=6] {'axis_1'}, dimensions={1}
  %ag = bf16[4096,6144]{1,0} all-gather-done(%ag-start)
  ROOT %gemm = bf16[4096,1024]{1,0} custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config=\
{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
}
"""


def test_library_products_slices_and_gathers_as_a_gpu_compiler_writes_them() -> None:
    cost = counted(GPU)
    assert cost.flops == 2 * 4096 * 1024 * 4096
    assert cost.sent == 4096 * 1024 * 2 * 5
    sliced = 2 * 256 * 256 * 4 + 4
    gathered = (4096 * 1024 + 4096 * 6144) * 2
    product = (4096 * 4096 + 2 * 4096 * 1024) * 2
    assert cost.moved == sliced + gathered + product


TPU = """\
HloModule m

ENTRY %main (x: bf16[8,512,128], w: bf16[8,2048,128]) -> f32[8,512,2048] {
  %x = bf16[8,512,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %w = bf16[8,2048,128]{2,1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %c = f32[8,512,2048]{2,1,0:T(8,128)} convolution(%x, %w), window={size=8 stride=7 pad=0_0 lhs_dilate=8}, \
dim_labels=0bf_0oi->0bf
}
"""


def test_a_batched_product_as_a_tpu_compiler_writes_it() -> None:
    cost = counted(TPU)
    assert cost.flops == 8 * 2 * 512 * 2048 * 128
    # What lives on the chip costs no traffic.
    assert cost.moved == 8 * 512 * 128 * 2 + 8 * 512 * 2048 * 4


def test_an_attention_kernel_by_its_scores() -> None:
    text = GPU.replace("__cublas$gemm", "__cudnn$fmhaSoftmax").replace(
        '"gemm_backend_config":{',
        '"cudnn_fmha_backend_config": {"mask_type": "CAUSAL", "intermediate_tensor_shape": {"element_type": "BF16", '
        '"dimensions": ["1", "32", "4096", "4096"]},',
    )
    head = 4096 * 4096 / (32 * 4096)
    causal = 2 * 2 * 32 * 4096 * 4096 * head / 2
    assert counted(text).flops == counted(text).by_formula == causal
    # Of keys whose number the data tell, those that are seen.
    padded = text.replace("CAUSAL", "PADDING")
    assert counted(padded).flops == 2 * causal
    assert Counter(parse(padded), seen=0.25).total().flops == causal / 2


SPLASH = """\
HloModule m

ENTRY %main (t: s8[1,4,4], q: bf16[8,2048,128], k: bf16[2,1024,128], v: bf16[2,1024,128]) -> bf16[8,2048,128] {
  %t = s8[1,4,4]{2,1,0} parameter(0)
  %q = bf16[8,2048,128]{2,1,0} parameter(1)
  %k = bf16[2,1024,128]{2,1,0} parameter(2)
  %v = bf16[2,1024,128]{2,1,0} parameter(3)
  ROOT %NAME.2 = RESULTS custom-call(%t, %t, %q, %k, %v), custom_call_target="tpu_custom_call"
}
"""


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("splash_mha_fwd_segmented_residuals", 2),
        ("splash_mha_fwd_residuals", 2 / 2),
        ("splash_mha_dkv_segmented_no_residuals", 5),
        ("splash_mha_dkv_no_residuals", 5 * (4 + 3 + 2 + 1) / 4**2),
    ],
)
def test_splash_by_its_name_and_shapes(name: str, products: float) -> None:
    results = "bf16[8,2048,128]{2,1,0}"
    if "dkv" in name:
        results = "(bf16[4,8,2048,128]{3,2,1,0}, bf16[2,1024,128]{2,1,0}, bf16[2,1024,128]{2,1,0})"
    cost = counted(SPLASH.replace("NAME", name).replace("RESULTS", results))
    assert cost.flops == cost.by_formula == products * 2 * 8 * 2048 * 1024 * 128
    assert not cost.unknown


NEW_TOKENS = """HloModule jit_f

ENTRY %main (q: bf16[48,1,32,128], k: bf16[48,128,4224], v: bf16[48,4224,128], n: s32[6,2]) -> f32[48,1,4,32,128] {
  %q = bf16[48,1,32,128]{3,2,1,0} parameter(0)
  %k = bf16[48,128,4224]{2,1,0} parameter(1)
  %v = bf16[48,4224,128]{2,1,0} parameter(2)
  %n = s32[6,2]{1,0} parameter(3)
  ROOT %mpmd_map.9 = f32[48,1,4,32,128]{4,3,2,1,0} custom-call(%q, %k, %v, %n), custom_call_target="mosaic_gpu_v2", \
metadata={op_name="jit(f)/NAME/mpmd_map"}
}
"""


def test_new_tokens_by_the_shapes_of_their_kernel() -> None:
    cost = Counter(parse(NEW_TOKENS.replace("NAME", "vcap_decode_captions"))).total()
    assert cost.flops == cost.by_formula == 4 * 48 * 32 * 128 * 4224
    assert cost.moved > 2 * 48 * 128 * 4224 * 2
    assert not cost.unknown
    assert Counter(parse(NEW_TOKENS.replace("NAME", "another"))).total().unknown


def test_a_kernel_that_is_not_known_is_named() -> None:
    cost = counted(SPLASH.replace("NAME", "somebodys_kernel"))
    assert (cost.flops, cost.unknown) == (0, {"somebodys_kernel.2"})


LOOP = """\
HloModule m

%cond (c: (f32[8,8], u32[], u32[])) -> pred[] {
  %c = (f32[8,8]{1,0}, u32[], u32[]) parameter(0)
  %n = u32[] constant(7)
  %at = u32[] get-tuple-element(%c), index=1
  ROOT %more = pred[] compare(%at, %n), direction=LT
}

%body (b: (f32[8,8], u32[], u32[])) -> (f32[8,8], u32[], u32[]) {
  %b = (f32[8,8]{1,0}, u32[], u32[]) parameter(0)
  %x = f32[8,8]{1,0} get-tuple-element(%b), index=0
  %i = u32[] get-tuple-element(%b), index=1
  %same = u32[] get-tuple-element(%b), index=2
  %one = u32[] constant(1)
  %first = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %second = f32[8,8]{1,0} dot(%first, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %once = u32[] add(%i, %one)
  %twice = u32[] add(%once, STEP)
  ROOT %next = (f32[8,8]{1,0}, u32[], u32[]) tuple(%second, %twice, /*index=2*/%same)
}

ENTRY %main (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  %zero = u32[] constant(1)
  %start = (f32[8,8]{1,0}, u32[], u32[]) tuple(%x, %zero, /*index=2*/%zero)
  %loop = (f32[8,8]{1,0}, u32[], u32[]) while(%start), condition=%cond, body=%body
  ROOT %result = f32[8,8]{1,0} get-tuple-element(%loop), index=0
}
"""


def test_a_loop_that_counts_by_two_runs_half_as_often() -> None:
    # From 1 to 7 by 2, two products a round: what TPU's compiler makes of a product with gathered parameters.
    cost = counted(LOOP.replace("STEP", "%one"))
    assert cost.flops == 3 * 2 * (2 * 8 * 8 * 8)
    assert not cost.unknown


def test_a_loop_whose_step_cannot_be_read_is_counted_once_and_named() -> None:
    cost = counted(LOOP.replace("STEP", "%same"))
    assert cost.flops == 2 * (2 * 8 * 8 * 8)
    assert cost.unknown == {"loop"}


def test_types_with_layouts() -> None:
    first, second = shapes_in("(f32[8,2]{1,0:T(8,128)}, /*index=1*/bf16[3]{0:T(128)S(1)})")
    assert (first.dims, first.bytes, second.dims, second.bytes) == ((8, 2), 64, (3,), 0)


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("hello")
