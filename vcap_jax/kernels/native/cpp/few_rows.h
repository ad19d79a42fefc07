// A matrix product of few rows, bound by the time that reading the weight takes: what a decoded token is made of.
//
// The weight is read as it lies, a panel of its columns after the other, once for all rows. Packing it first would make
// its lines neighbours, and would be a second copy or as much work as the product.
#pragma once

#include <type_traits>

#include "parallel.h"
#include "products.h"

namespace vcap {

// left [rows, inputs]; weight [inputs, outputs]; out [rows, outputs].
struct FewRows {
  int64_t rows, inputs, outputs;
};

constexpr int kDepth = 128;  // rows of a block of a panel, which stays in the first cache until all of `left` has had it
constexpr int kAhead = 16;   // rows ahead of which one tile asks for the panel; several ask for the next block

// out[row][0..kColumns) = sum over i < depth of left[row][i] * block[i][0..kColumns), added to what is there if `more`.
// Rows of left, block and out lie so far apart as said. Leaves the block in `kept`, if Keep, without gaps: its rows lie
// so far apart in a weight that few of them fit into the first cache together, whatever its size. Asks for those rows
// of the block at `next` that fall to this one of `tiles`.
template <int Rows, bool Keep>
inline void few_rows_tile(
    const float* left, int64_t left_stride, const float* block, int64_t stride, int64_t depth, float* kept, bool more,
    float* out, int64_t out_stride, const float* next, int64_t next_stride, int64_t tile, int64_t tiles) {
  Vector sums[Rows][kVectorsB];
#pragma GCC unroll 16
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 2
    for (int v = 0; v < kVectorsB; ++v) sums[row][v] = more ? load(out + row * out_stride + v * kLanes) : Vector{};
  // An address for every three rows. Of one per row, which compilers make, many would wait in vector registers, and
  // fetching them from there takes the multiplications' turn; so they are kept from knowing that all are one.
  constexpr int kBases = (Rows + 2) / 3;
  const float* base[kBases];
  for (int b = 0; b < kBases; ++b) base[b] = left + 3 * b * left_stride;
  const int64_t step = ((int64_t{1} << 32) + tiles - 1) / tiles;
  int64_t place = tile * kDepth * step;
  for (int64_t i = 0; i < depth; ++i) {
    const float* ahead = next + (place >> 32) * next_stride;
    place += step;
    Vector right[kVectorsB];
#pragma GCC unroll 2
    for (int v = 0; v < kVectorsB; ++v) {
      right[v] = load(block + v * kLanes);
      __builtin_prefetch(ahead + v * kLanes);
      if constexpr (Keep) store(kept + i * kColumns + v * kLanes, right[v]);
    }
    block += stride;
#pragma GCC unroll 16
    for (int row = 0; row < Rows; ++row) {
      const Vector x = all(base[row / 3][row % 3 * left_stride]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectorsB; ++v) sums[row][v] += x * right[v];
    }
#pragma GCC unroll 4
    for (int b = 0; b < kBases; ++b) {
      ++base[b];
      asm("" : "+r"(base[b]));
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 2
    for (int v = 0; v < kVectorsB; ++v) store(out + row * out_stride + v * kLanes, sums[row][v]);
}

// Calls body with `rows`, at most Rows, as a constant.
template <int Rows = kRowsB, typename Body>
inline void with_rows(int64_t rows, const Body& body) {
  if constexpr (Rows > 0) {
    if (rows == Rows)
      body(std::integral_constant<int, Rows>{});
    else
      with_rows<Rows - 1>(rows, body);
  }
}

// Columns [depth][stride], the first `real` of them -> a block [depth][kColumns]; what is left of it is zero.
inline void last_block(const float* from, int64_t stride, int64_t real, int64_t depth, float* to) {
  for (int64_t j = 0; j < depth; ++j) {
    std::copy(from + j * stride, from + j * stride + real, to + j * kColumns);
    std::fill(to + j * kColumns + real, to + (j + 1) * kColumns, 0.0f);
  }
}

// A task is a panel of columns. The sum of a number of `out` is made in the order of the inputs, whatever the other rows
// are and however many threads there are.
inline void few_rows(
    xla::ffi::ThreadPool& pool, const FewRows& p, const float* left, const float* weight, float* out) {
  // Tiles as high as each other: 7 + 6 rows, not 12 + 1.
  const int64_t tiles = std::max<int64_t>(1, (p.rows + kRowsB - 1) / kRowsB), height = (p.rows + tiles - 1) / tiles;
  for_each(pool, (p.outputs + kColumns - 1) / kColumns, [&](int64_t task) {
    const int64_t column = task * kColumns, real = std::min<int64_t>(kColumns, p.outputs - column);
    const bool whole = real == kColumns;
    const float* panel = weight + column;
    alignas(64) float kept[kDepth * kColumns];
    Buffer last(whole ? 0 : p.rows * kColumns);
    float* const to = whole ? out + column : last + 0;
    const int64_t to_stride = whole ? p.outputs : kColumns;
    for (int64_t first = 0; first < p.inputs; first += kDepth) {
      const int64_t depth = std::min<int64_t>(kDepth, p.inputs - first);
      const float* block = panel + first * p.outputs;
      // Behind the last block comes the next panel, which is not unlikely to be this thread's. Asking for what lies
      // behind the weight's end is in vain and does no harm.
      const int64_t then = first + (tiles == 1 ? kAhead : kDepth);
      const float* next = then < p.inputs ? panel + then * p.outputs : panel + kColumns;
      if (!whole) last_block(block, p.outputs, real, depth, kept);
      for (int64_t tile = 0, row = 0; row < p.rows; ++tile, row += height)
        with_rows(std::min(height, p.rows - row), [&](auto rows) {
          constexpr int kRows = rows;
          const bool from_weight = whole && tile == 0;
          const auto add = from_weight && tiles > 1 ? few_rows_tile<kRows, true> : few_rows_tile<kRows, false>;
          add(left + row * p.inputs + first, p.inputs, from_weight ? block : kept, from_weight ? p.outputs : kColumns,
              depth, kept, first > 0, to + row * to_stride, to_stride, next, p.outputs, tile, tiles);
        });
    }
    for (int64_t row = 0; !whole && row < p.rows; ++row)
      std::copy(last + row * kColumns, last + row * kColumns + real, out + row * p.outputs + column);
  });
}

}  // namespace vcap
