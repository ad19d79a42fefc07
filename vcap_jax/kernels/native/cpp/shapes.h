// Sizes of a call, and operands packed as the products take them.
#pragma once

#include <algorithm>

#include "parallel.h"
#include "products.h"

namespace vcap {

// queries [N, S, H, d]; keys and values [N, L, K, d], H a multiple of K: head h reads key head h / (H / K).
struct Shape {
  int64_t batch, queries, heads, keys, key_heads, size;
  bool causal;

  int64_t padded() const { return round_up(size, kColumns); }
  int64_t query_blocks(int64_t rows) const { return (queries + rows - 1) / rows; }
  int64_t key_blocks() const { return (keys + kKeys - 1) / kKeys; }
  float scale() const { return 1.0f / __builtin_sqrtf(static_cast<float>(size)); }

  // How many keys from `key` on the query sees; at most 0 where it sees none.
  int64_t seen(int64_t query, int64_t key, int64_t length) const {
    return (causal ? std::min(query + 1, length) : length) - key;
  }
};

// [rows][stride] -> [count][padded], times `factor`; rows from `rows` on and columns from `size` on are zeros.
inline void pack_rows(
    const float* from, int64_t stride, int64_t rows, int64_t count, int64_t size, int64_t padded, float factor,
    float* to) {
  for (int64_t row = 0; row < count; ++row) {
    float* out = to + row * padded;
    if (row < rows) {
      for (int64_t i = 0; i < size; ++i) out[i] = from[row * stride + i] * factor;
      std::fill(out + size, out + padded, 0.0f);
    } else {
      std::fill(out, out + padded, 0.0f);
    }
  }
}

// [rows][stride] -> panels [count / kPanel][size][kPanel], the transposed operand of product A.
inline void pack_panels(const float* from, int64_t stride, int64_t rows, int64_t count, int64_t size, float* to) {
  for (int64_t first = 0; first < count; first += kPanel) {
    float* panel = to + first * size;
    for (int64_t i = 0; i < kPanel; ++i) {
      const bool real = first + i < rows;
      for (int64_t j = 0; j < size; ++j) panel[j * kPanel + i] = real ? from[(first + i) * stride + j] : 0.0f;
    }
  }
}

// Puts `value` in place of scores [seen, keys) of a row.
inline void mask(float* scores, int64_t seen, int64_t keys, float value) {
  for (int64_t i = std::max<int64_t>(seen, 0); i < keys; ++i) scores[i] = value;
}

}  // namespace vcap
