// What XLA calls: shapes are read from the buffers, which the Python side has checked.

#include "backward.h"
#include "decode.h"
#include "few_rows.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace vcap {
namespace {

using Floats = ffi::Buffer<ffi::F32>;
using Lengths = ffi::Buffer<ffi::S32>;
using Visible = ffi::Buffer<ffi::PRED>;
using Result = ffi::Result<Floats>;

Shape shape_of(const Floats& queries, const Floats& keys, bool causal) {
  const auto q = queries.dimensions(), k = keys.dimensions();
  return {q[0], q[1], q[2], k[1], k[2], q[3], causal};
}

template <typename Call>
ffi::Error guarded(const Call& call) {
  try {
    call();
    return ffi::Error::Success();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "out of memory");
  }
}

ffi::Error Forward(
    ffi::ThreadPool pool, Floats queries, Floats keys, Floats values, Lengths lengths, Result out, Result lse,
    bool causal) {
  return guarded([&] {
    forward(
        pool, shape_of(queries, keys, causal), queries.typed_data(), keys.typed_data(), values.typed_data(),
        lengths.typed_data(), out->typed_data(), lse->typed_data());
  });
}

ffi::Error Backward(
    ffi::ThreadPool pool, Floats queries, Floats keys, Floats values, Lengths lengths, Floats out, Floats lse,
    Floats gradient, Result d_queries, Result d_keys, Result d_values, bool causal) {
  return guarded([&] {
    backward(
        pool, shape_of(queries, keys, causal), queries.typed_data(), keys.typed_data(), values.typed_data(),
        lengths.typed_data(), out.typed_data(), lse.typed_data(), gradient.typed_data(), d_queries->typed_data(),
        d_keys->typed_data(), d_values->typed_data());
  });
}

ffi::Error Decode(
    ffi::ThreadPool pool, Floats queries, Floats prompt_keys, Floats prompt_values, Visible prompt_visible,
    Floats caption_keys, Floats caption_values, Visible caption_visible, Result out) {
  return guarded([&] {
    const auto q = queries.dimensions(), p = prompt_values.dimensions(), c = caption_values.dimensions();
    const DecodeShape shape{q[0], q[1], q[2], p[1], q[3], p[2], c[1]};
    decode(
        pool, shape, queries.typed_data(), prompt_keys.typed_data(), prompt_values.typed_data(),
        prompt_visible.typed_data(), caption_keys.typed_data(), caption_values.typed_data(),
        caption_visible.typed_data(), out->typed_data());
  });
}

ffi::Error FewRowsProduct(ffi::ThreadPool pool, Floats left, Floats weight, Result out) {
  return guarded([&] {
    const auto l = left.dimensions(), w = weight.dimensions();
    few_rows(pool, {l[0], w[0], w[1]}, left.typed_data(), weight.typed_data(), out->typed_data());
  });
}

}  // namespace
}  // namespace vcap

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    vcap_attention_forward, vcap::Forward,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Lengths>()
        .Ret<vcap::Floats>()
        .Ret<vcap::Floats>()
        .Attr<bool>("causal"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    vcap_attention_backward, vcap::Backward,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Lengths>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Ret<vcap::Floats>()
        .Ret<vcap::Floats>()
        .Ret<vcap::Floats>()
        .Attr<bool>("causal"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    vcap_attention_decode, vcap::Decode,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Visible>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Visible>()
        .Ret<vcap::Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    vcap_few_rows, vcap::FewRowsProduct,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<vcap::Floats>()
        .Arg<vcap::Floats>()
        .Ret<vcap::Floats>());
