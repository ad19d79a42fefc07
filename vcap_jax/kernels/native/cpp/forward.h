// softmax(q k^T / sqrt(d)) v and its log-sum-exp, a block of scores at a time (Dao et al., FlashAttention-2).
#pragma once

#include <cmath>

#include "shapes.h"

namespace vcap {

constexpr float kMasked = -1e30f;  // finite, so that differences of two of them are no NaN
constexpr float kMost = 16384.0f;  // of a block's sum of weights, which are at most 1 each if `largest` is the largest

// The softmax of some rows as far as keys have been seen: the largest score, or a number not much less; the sum of
// exponentials with that subtracted; weighted values. Scores are times log2(e) here and everywhere between packing and
// results, so that powers of 2 do for exponentials.
template <int Height>
struct Running {
  float largest[Height];
  float total[Height];
  Buffer out;  // [Height][padded]

  explicit Running(int64_t padded) : out(Height * padded) {}

  void clear(int64_t rows, int64_t padded) {
    std::fill(largest, largest + rows, kMasked);
    std::fill(total, total + rows, 0.0f);
    std::fill(out + 0, out + rows * padded, 0.0f);
  }

  // Takes in scores [Rows][kKeys] of rows from `row` on with `keys` keys, which become weights. Columns from `keys` to
  // the end of their panel must hold kMasked.
  template <int Rows = kRowsB>
  void add(int64_t row, float* scores, int64_t keys, const float* values, int64_t padded) {
    const int64_t width = round_up(keys, kPanel);
    // Row after row for one thing, then for the next: a row's largest score is a long chain of steps, and rows overlap.
    constexpr int kPadded = (Rows + kLanes - 1) / kLanes * kLanes;
    float now[kPadded] = {}, keep[kPadded] = {};
    for (int i = 0; i < Rows; ++i) {
      Vector best = all(largest[row + i]);
      for (int64_t j = 0; j < width; j += kLanes) best = larger(load(scores + i * kKeys + j), best);
      now[i] = vcap::largest(best);
      keep[i] = largest[row + i] - now[i];
    }
    for (int i = 0; i < kPadded; i += kLanes) store(keep + i, exp2(load(keep + i)));
    for (int i = 0; i < Rows; ++i) {
      float* s = scores + i * kKeys;
      Vector sums = {};
      for (int64_t j = 0; j < width; j += kLanes) {
        const Vector weight = exp2(load(s + j) - now[i]);
        sums += weight;
        store(s + j, weight);
      }
      total[row + i] = total[row + i] * keep[i] + sum(sums);
      largest[row + i] = now[i];
    }
    weighted_sum<Rows, kKeys, 1>(scores, values, keys, padded, keep, out + row * padded);
  }

  // Takes in a block of keys that kRowsB rows see whole, unless scores are so much larger than those before that weights
  // sum to more than kMost: then false, and nothing has changed. Scores become weights in the registers they are summed
  // in, with `largest` as it is, so no largest score is looked for, and nothing summed so far is scaled.
  template <typename Ahead>
  bool add_seen(
      int64_t row, const float* left, int64_t size, const Panels& panels, const float* values, int64_t padded,
      float* weights, Ahead& ahead) {
    float start[kRowsB];
    for (int i = 0; i < kRowsB; ++i) {
      if (largest[row + i] == kMasked) return false;
      start[i] = -largest[row + i];
    }
    Vector sums[kRowsB] = {};
    block_product<kRowsB>(
        left, size, panels, size, kKeys, start,
        [&](int i, int64_t first, const PanelSums& x) VCAP_IN_REGISTERS {
          PanelSums weight;
#pragma GCC unroll 4
          for (int v = 0; v < kVectorsA; ++v) weight[v] = exp2(x[v]);
          store_panel(weights + i * kKeys + first, weight);
          Vector all_of = weight[0];
#pragma GCC unroll 4
          for (int v = 1; v < kVectorsA; ++v) all_of += weight[v];
          sums[i] += all_of;
        },
        ahead);
    float all_of[kRowsB];
    for (int i = 0; i < kRowsB; ++i) {
      all_of[i] = sum(sums[i]);
      if (!(all_of[i] <= kMost)) return false;
    }
    for (int i = 0; i < kRowsB; ++i) total[row + i] += all_of[i];
    weighted_sum<kRowsB, kKeys, 1>(weights, values, kKeys, padded, nullptr, out + row * padded);
    return true;
  }
};

struct Packed {
  Buffer panels;  // [N][K][key blocks][kKeys / kPanel][d][kPanel]
  Buffer rows;    // [N][K][key blocks][kKeys][padded]

  explicit Packed(const Shape& s)
      : panels(s.batch * s.key_heads * s.key_blocks() * kKeys * s.size),
        rows(s.batch * s.key_heads * s.key_blocks() * kKeys * s.padded()) {}

  void pack(
      const Shape& s, int64_t task, const float* for_panels, const float* for_rows) {
    const int64_t block = task % s.key_blocks(), head = task / s.key_blocks() % s.key_heads;
    const int64_t batch = task / s.key_blocks() / s.key_heads, first = block * kKeys;
    const int64_t stride = s.key_heads * s.size, at = ((batch * s.keys + first) * s.key_heads + head) * s.size;
    const int64_t real = std::min<int64_t>(kKeys, s.keys - first), width = round_up(real, kPanel);
    pack_panels(for_panels + at, stride, real, width, s.size, panels + task * kKeys * s.size);
    pack_rows(for_rows + at, stride, real, width, s.size, s.padded(), 1.0f, rows + task * kKeys * s.padded());
  }

  // Block `k` of all blocks of all heads.
  Panels block(int64_t k, int64_t size) const { return {panels + k * kKeys * size, kPanel * size, kPanel}; }
};

// Queries that read a block of keys one after the other: where keys are more than the second cache takes, it comes from
// the third, or from memory, once for all of them.
constexpr int kForwardRows = 192;
static_assert(kForwardRows % kRowsB == 0);

// lengths: [N], how many keys are seen. out: [N, S, H, d]; lse: [N, H, S]. Rows that see no key get 0 and kMasked.
inline void forward(
    xla::ffi::ThreadPool& pool, const Shape& s, const float* queries, const float* keys, const float* values,
    const int32_t* lengths, float* out, float* lse) {
  const int64_t padded = s.padded(), stride = s.heads * s.size;
  Packed packed(s);
  for_each(pool, s.batch * s.key_heads * s.key_blocks(), [&](int64_t task) { packed.pack(s, task, keys, values); });

  const int64_t blocks = s.query_blocks(kForwardRows);
  for_each(pool, s.batch * s.heads * blocks, [&](int64_t task) {
    // The last rows see most where attention is causal: they come first, so that no thread ends with one alone.
    const int64_t block = blocks - 1 - task % blocks;
    const int64_t head = task / blocks % s.heads, batch = task / blocks / s.heads;
    const int64_t first = block * kForwardRows, rows = std::min<int64_t>(kForwardRows, s.queries - first);
    const int64_t width = round_up(rows, kRowsB), at = ((batch * s.queries + first) * s.heads + head) * s.size;
    Buffer left(kForwardRows * s.size), scores(kRowsB * kKeys);
    Running<kForwardRows> running(padded);
    pack_rows(queries + at, stride, rows, width, s.size, s.size, s.scale() * kLog2E, left + 0);
    running.clear(width, padded);

    const int64_t length = std::min<int64_t>(lengths[batch], s.keys);
    const int64_t cache = (batch * s.key_heads + head * s.key_heads / s.heads) * s.key_blocks();
    for (int64_t key = 0, k = cache; s.seen(first + rows - 1, key, length) > 0; key += kKeys, ++k)
      for (int64_t row = 0; row < width; row += kRowsB) {
        const int64_t last = std::min(first + row + kRowsB, s.queries) - 1;
        const int64_t seen = std::min<int64_t>(kKeys, s.seen(last, key, length));
        if (seen <= 0) continue;
        const float *mine = left + row * s.size, *rows_of_values = packed.rows + k * kKeys * padded;
        const Panels panels = packed.block(k, s.size);
        const bool whole = s.seen(first + row, key, length) >= kKeys;
        if (whole && running.add_seen(row, mine, s.size, panels, rows_of_values, padded, scores + 0, nothing)) continue;
        block_product<kRowsB>(
            mine, s.size, panels, s.size, seen, kZeros,
            [&](int i, int64_t at, const PanelSums& x) VCAP_IN_REGISTERS { store_panel(scores + i * kKeys + at, x); },
            nothing);
        for (int i = 0; i < kRowsB; ++i)
          mask(scores + i * kKeys, s.seen(first + row + i, key, length), round_up(seen, kPanel), kMasked);
        running.add(row, scores + 0, seen, rows_of_values, padded);
      }

    for (int64_t row = 0; row < rows; ++row) {
      const float total = running.total[row];
      for (int64_t i = 0; i < s.size; ++i)
        out[at + row * stride + i] = total == 0 ? 0.0f : (running.out + row * padded)[i] / total;
      lse[(batch * s.heads + head) * s.queries + first + row] =
          total == 0 ? kMasked : (running.largest[row] + std::log2(total)) * kLn2;
    }
  });
}

}  // namespace vcap
