// Gradients of attention from output and log-sum-exp, a block of scores at a time, which are computed again.
#pragma once

#include "forward.h"

namespace vcap {

// Key blocks are dealt out to so many tasks per sequence and key head, each with a sum of the queries' gradients of its
// own. A number of shapes alone, since sums in another order would be other numbers on another machine.
inline int64_t backward_parts(const Shape& s) {
  return std::min<int64_t>(s.key_blocks(), std::max<int64_t>(1, 16 / (s.batch * s.key_heads)));
}

// out, lse, gradient (of the output): of the whole softmax that these keys are part of.
inline void backward(
    xla::ffi::ThreadPool& pool, const Shape& s, const float* queries, const float* keys, const float* values,
    const int32_t* lengths, const float* out, const float* lse, const float* gradient, float* d_queries,
    float* d_keys, float* d_values) {
  constexpr int64_t kRows = 96;  // queries of a block; its weights and slopes stay in the second cache
  static_assert(kRows % kRowsB == 0);
  const int64_t padded = s.padded(), group = s.heads / s.key_heads;
  const int64_t blocks = s.query_blocks(kRows), height = blocks * kRows;
  const int64_t parts = backward_parts(s), stride = s.heads * s.size, key_stride = s.key_heads * s.size;
  const int64_t every = s.batch * s.heads * height;
  Buffer lefts(every * padded), gradients(every * padded), sums(parts * every * padded);
  Buffer minus_deltas(every), minus_logs(every);  // what the products of a row start from
  Packed packed_keys(s), packed_values(s);
  for_each(pool, s.batch * s.key_heads * s.key_blocks(), [&](int64_t task) {
    packed_keys.pack(s, task, keys, keys);
    packed_values.pack(s, task, values, values);
  });
  // Queries and gradients of a head after each other, [N][H][height][padded].
  for_each(pool, s.batch * s.heads * blocks, [&](int64_t task) {
    const int64_t block = task % blocks, head = task / blocks % s.heads;
    const int64_t batch = task / blocks / s.heads, first = block * kRows;
    const int64_t rows = std::min<int64_t>(kRows, s.queries - first), to = task * kRows;
    const int64_t at = ((batch * s.queries + first) * s.heads + head) * s.size;
    pack_rows(queries + at, stride, rows, kRows, s.size, padded, s.scale() * kLog2E, lefts + to * padded);
    pack_rows(gradient + at, stride, rows, kRows, s.size, padded, 1.0f, gradients + to * padded);
    for (int64_t row = 0; row < kRows; ++row) {
      float delta = 0;
      for (int64_t i = 0; row < rows && i < s.size; ++i)
        delta += out[at + row * stride + i] * gradient[at + row * stride + i];
      *(minus_deltas + to + row) = -delta;
      // What is no query gets weights of zero.
      *(minus_logs + to + row) =
          row < rows ? lse[(batch * s.heads + head) * s.queries + first + row] * -kLog2E : kMasked;
    }
    for (int64_t part = 0; part < parts; ++part)
      std::fill(sums + (part * every + to) * padded, sums + (part * every + to + kRows) * padded, 0.0f);
  });

  for_each(pool, s.batch * s.key_heads * parts, [&](int64_t task) {
    const int64_t part = task % parts, pair = task / parts;
    const int64_t batch = pair / s.key_heads, key_head = pair % s.key_heads;
    const int64_t length = std::min<int64_t>(lengths[batch], s.keys);
    Buffer weights(kRows * kKeys), slopes(kRows * kKeys), key_sums(kKeys * padded), value_sums(kKeys * padded);
    for (int64_t block = part; block < s.key_blocks(); block += parts) {
      const int64_t first_key = block * kKeys, k = pair * s.key_blocks() + block;
      const int64_t count = std::min<int64_t>(kKeys, s.keys - first_key);
      std::fill(key_sums + 0, key_sums + kKeys * padded, 0.0f);
      std::fill(value_sums + 0, value_sums + kKeys * padded, 0.0f);
      for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
        for (int64_t first = s.causal ? first_key / kRows * kRows : 0; first < s.queries; first += kRows) {
          const int64_t rows = std::min<int64_t>(kRows, s.queries - first);
          const int64_t width = round_up(rows, kRowsB), at = (batch * s.heads + head) * height + first;
          const int64_t seen = std::min<int64_t>(count, s.seen(first + rows - 1, first_key, length));
          if (seen <= 0) continue;
          const int64_t columns = std::max(round_up(seen, kPanel), round_up(seen, kRowsB));
          for (int64_t row = 0; row < width; row += kRowsB) {
            float *w = weights + row * kKeys, *d = slopes + row * kKeys;
            const int64_t last = std::min(first + row + kRowsB, s.queries) - 1;
            const int64_t mine = std::max<int64_t>(0, std::min(seen, s.seen(last, first_key, length)));
            const int64_t wide = round_up(mine, kPanel);
            const float* left = lefts + (at + row) * padded;
            block_product<kRowsB>(
                left, padded, packed_keys.block(k, s.size), s.size, mine, minus_logs + at + row,
                [&](int i, int64_t first, const PanelSums& x) VCAP_IN_REGISTERS {
                  PanelSums weight;
#pragma GCC unroll 4
                  for (int v = 0; v < kVectorsA; ++v) weight[v] = exp2(x[v]);
                  store_panel(w + i * kKeys + first, weight);
                },
                nothing);
            for (int i = 0; i < kRowsB; ++i)
              mask(w + i * kKeys, s.seen(first + row + i, first_key, length), columns, 0.0f);
            block_product<kRowsB>(
                gradients + (at + row) * padded, padded, packed_values.block(k, s.size), s.size, mine,
                minus_deltas + at + row, [&](int i, int64_t first, const PanelSums& x) VCAP_IN_REGISTERS {
                  PanelSums slope;
#pragma GCC unroll 4
                  for (int v = 0; v < kVectorsA; ++v) slope[v] = x[v] * load(w + i * kKeys + first + v * kLanes);
                  store_panel(d + i * kKeys + first, slope);
                },
                nothing);
            for (int i = 0; i < kRowsB; ++i) mask(d + i * kKeys, wide, columns, 0.0f);
            if (mine > 0)
              weighted_sum<kRowsB, kKeys, 1>(
                  d, packed_keys.rows + k * kKeys * padded, mine, padded, nullptr,
                  sums + (part * every + at + row) * padded);
          }
          for (int64_t key = 0; key < seen; key += kRowsB) {
            // Rows in front of the first key of the tile see none of it.
            const int64_t start = s.causal ? std::max<int64_t>(0, first_key + key - first) : 0;
            if (start >= rows) continue;
            weighted_sum<kRowsB, 1, kKeys>(
                weights + start * kKeys + key, gradients + (at + start) * padded, rows - start, padded, nullptr,
                value_sums + key * padded);
            weighted_sum<kRowsB, 1, kKeys>(
                slopes + start * kKeys + key, lefts + (at + start) * padded, rows - start, padded, nullptr,
                key_sums + key * padded);
          }
        }
      const int64_t to = ((batch * s.keys + first_key) * s.key_heads + key_head) * s.size;
      for (int64_t row = 0; row < count; ++row) {
        // The queries they are sums of were times log2(e).
        for (int64_t i = 0; i < s.size; ++i) (d_keys + to + row * key_stride)[i] = (key_sums + row * padded)[i] * kLn2;
        std::copy(value_sums + row * padded, value_sums + row * padded + s.size, d_values + to + row * key_stride);
      }
    }
  });

  for_each(pool, s.batch * s.heads * blocks, [&](int64_t task) {
    const int64_t block = task % blocks, head = task / blocks % s.heads;
    const int64_t batch = task / blocks / s.heads, first = block * kRows;
    const int64_t rows = std::min<int64_t>(kRows, s.queries - first);
    for (int64_t row = 0; row < rows; ++row) {
      float* to = d_queries + ((batch * s.queries + first + row) * s.heads + head) * s.size;
      const int64_t from = task * kRows + row;
      for (int64_t i = 0; i < s.size; ++i) {
        float total = 0;
        for (int64_t part = 0; part < parts; ++part) total += *(sums + (part * every + from) * padded + i);
        to[i] = total * s.scale();
      }
    }
  });
}

}  // namespace vcap
