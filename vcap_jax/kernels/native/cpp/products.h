// The two small matrix products that attention is made of, with their sums in registers.
#pragma once

#include <algorithm>

#include "vectors.h"

namespace vcap {

constexpr int kPanel = kVectorsA * kLanes;     // keys side by side in a panel
constexpr int kColumns = kVectorsB * kLanes;   // head sizes are padded to a multiple of this
constexpr int kKeys = 192;                     // keys of a block: whole panels, and whole tiles B
static_assert(kKeys % kPanel == 0 && kKeys % kRowsB == 0 && kRowsB % kRowsA == 0);

inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// What is inlined into a product, where its sums are in registers.
#define VCAP_IN_REGISTERS __attribute__((always_inline))

constexpr float kZeros[kRowsB] = {};

// A: x[row][0..kPanel) = start[row] + sum over i < depth of left[row][i] * panel[i][0..kPanel), for kRowsA rows; calls
// finish(row, x[row]) for each, and asks `ahead` for lines of what comes next, some with every i. left: rows
// `left_stride` apart; panel: `panel_stride`.
template <typename Finish, typename Ahead>
inline void product_a(
    const float* left, int64_t left_stride, const float* panel, int64_t panel_stride, int64_t depth, const float* start,
    const Finish& finish, Ahead& ahead) {
  Vector sums[kRowsA][kVectorsA];
#pragma GCC unroll 8
  for (int row = 0; row < kRowsA; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kVectorsA; ++v) sums[row][v] = all(start[row]);
  const auto lines = ahead.next();
  for (int64_t i = 0; i < depth; ++i) {
    lines(i);
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

// The keys of a block as panels of product A.
struct Panels {
  const float* first;
  int64_t apart;   // from a panel to the next
  int64_t stride;  // from a row of a panel to the next
};

// Asks for nothing, see `product_a`.
struct Nothing {
  auto next() const {
    return [](int64_t) {};
  }
};
constexpr Nothing nothing{};

// Asks for the memory of a block that comes next while another is computed, with every product for the keys of `Lanes`
// lines and as many values, so that reading and computing take the longer of their times and not both. No processor
// guesses where the panels of a cache are, whose rows lie a page apart. Branches in the product would cost what is won.
template <int Lanes>
class NextBlock {
 public:
  // values: [keys][size]. keys: may be 0.
  NextBlock(const Panels& panels, const float* values, int64_t keys, int64_t size)
      : panels_(panels), values_(values), keys_(round_up(keys, kLine)), size_(size) {}

  auto next() {
    struct Lines {
      const float* keys[Lanes];
      const float* values[Lanes];
      int64_t key_stride, value_stride;
      void operator()(int64_t i) const {
#pragma GCC unroll 4
        for (int lane = 0; lane < Lanes; ++lane) {
          __builtin_prefetch(keys[lane] + i * key_stride);
          __builtin_prefetch(values[lane] + i * value_stride);
        }
      }
    } lines;
    for (int lane = 0; lane < Lanes; ++lane, key_ += kLine) {
      const int64_t key = std::min(key_, keys_ - kLine);  // the last ones again and again, when they are near
      lines.keys[lane] = keys_ == 0 ? kZeros : panels_.first + key / kPanel * panels_.apart + key % kPanel;
      lines.values[lane] = keys_ == 0 ? kZeros : values_ + key * size_;
    }
    lines.key_stride = keys_ == 0 ? 0 : panels_.stride;
    lines.value_stride = keys_ == 0 ? 0 : kLine;
    return lines;
  }

 private:
  static constexpr int64_t kLine = std::min(kPanel, 16);  // floats of a line of memory
  const Panels panels_;
  const float* const values_;
  const int64_t keys_, size_;
  int64_t key_ = 0;
};

// Products A of `Rows` rows with the first `keys` keys of a block, rounded up to whole panels; calls
// finish(row, first key of the panel, x).
template <int Rows, typename Finish, typename Ahead>
inline void block_product(
    const float* left, int64_t left_stride, const Panels& panels, int64_t size, int64_t keys, const float* start,
    const Finish& finish, Ahead& ahead) {
  for (int64_t first = 0; first < keys; first += kPanel)
    for (int row = 0; row < Rows; row += kRowsA)
      product_a(
          left + row * left_stride, left_stride, panels.first + first / kPanel * panels.apart, panels.stride, size,
          start + row, [&](int i, const PanelSums& x) VCAP_IN_REGISTERS { finish(row + i, first, x); }, ahead);
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
