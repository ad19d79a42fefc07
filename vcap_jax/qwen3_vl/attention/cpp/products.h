// The two small matrix products that attention is made of, with their sums in registers.
#pragma once

#include "vectors.h"

namespace vcap {

constexpr int kPanel = kVectorsA * kLanes;     // keys side by side in a panel
constexpr int kColumns = kVectorsB * kLanes;   // head sizes are padded to a multiple of this
constexpr int kKeys = 192;                     // keys of a block: whole panels, and whole tiles B
constexpr int kRows = 96;                      // queries of a block: whole tiles A and B
static_assert(kKeys % kPanel == 0 && kKeys % kRowsB == 0 && kRows % kRowsB == 0 && kRowsB % kRowsA == 0);

inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// What is inlined into a product, where its sums are in registers.
#define VCAP_IN_REGISTERS __attribute__((always_inline))

constexpr float kZeros[kRowsB] = {};

// A: x[row][0..kPanel) = start[row] + sum over i < depth of left[row][i] * panel[i][0..kPanel), for kRowsA rows; calls
// finish(row, x[row]) for each. left: rows `left_stride` apart; panel: `panel_stride`. ahead: memory of a panel's shape of
// which a vector's width per row is brought near; nullptr for none.
template <typename Finish>
inline void product_a(
    const float* left, int64_t left_stride, const float* panel, int64_t panel_stride, int64_t depth, const float* start,
    const Finish& finish, const float* ahead = nullptr) {
  Vector sums[kRowsA][kVectorsA];
#pragma GCC unroll 8
  for (int row = 0; row < kRowsA; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kVectorsA; ++v) sums[row][v] = all(start[row]);
  for (int64_t i = 0; i < depth; ++i) {
    if (ahead != nullptr) __builtin_prefetch(ahead + i * panel_stride);
    Vector right[kVectorsA];
#pragma GCC unroll 4
    for (int v = 0; v < kVectorsA; ++v) right[v] = load(panel + i * panel_stride + v * kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRowsA; ++row) {
      const Vector x = all(left[row * left_stride + i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectorsA; ++v) sums[row][v] += x * right[v];
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRowsA; ++row) finish(row, sums[row]);
}

// Panels of a row in registers.
using PanelSums = Vector[kVectorsA];

VCAP_IN_REGISTERS inline void store_panel(float* to, const PanelSums& x) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectorsA; ++v) store(to + v * kLanes, x[v]);
}

// Products A of kRowsB rows with the first `keys` keys of a block, rounded up to whole panels; calls
// finish(row, first key of the panel, x).
template <typename Finish>
inline void block_product(
    const float* left, int64_t stride, const float* panels, int64_t size, int64_t keys, const float* start,
    const Finish& finish) {
  for (int64_t first = 0; first < keys; first += kPanel)
    for (int row = 0; row < kRowsB; row += kRowsA)
      product_a(
          left + row * stride, stride, panels + first * size, kPanel, size, start + row,
          [&](int i, const PanelSums& x) VCAP_IN_REGISTERS { finish(row + i, first, x); });
}

// B: out[row][0..kColumns) = out[row][..] * keep[row] + sum over i < depth of left(row, i) * right[i][0..kColumns).
// left(row, i) = left[row * RowStride + i * DepthStride]. right, out: rows `stride` apart. keep: nullptr for ones.
template <int Rows, int RowStride, int DepthStride>
inline void product_b(
    const float* left, const float* right, int64_t depth, int64_t stride, const float* keep, float* out) {
  Vector sums[Rows][kVectorsB];
#pragma GCC unroll 16
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 2
    for (int v = 0; v < kVectorsB; ++v) {
      sums[row][v] = load(out + row * stride + v * kLanes);
      if (keep != nullptr) sums[row][v] *= keep[row];
    }
  for (int64_t i = 0; i < depth; ++i) {
    Vector x[kVectorsB];
#pragma GCC unroll 2
    for (int v = 0; v < kVectorsB; ++v) x[v] = load(right + i * stride + v * kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) {
      const Vector weight = all(left[row * RowStride + i * DepthStride]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectorsB; ++v) sums[row][v] += weight * x[v];
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 2
    for (int v = 0; v < kVectorsB; ++v) store(out + row * stride + v * kLanes, sums[row][v]);
}

// Product B over all columns of a padded head.
template <int Rows, int RowStride, int DepthStride>
inline void weighted_sum(
    const float* left, const float* right, int64_t depth, int64_t padded, const float* keep, float* out) {
  for (int64_t c = 0; c < padded; c += kColumns)
    product_b<Rows, RowStride, DepthStride>(left, right + c, depth, padded, keep, out + c);
}

}  // namespace vcap
