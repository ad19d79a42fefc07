// Attention of one new token of each caption of a group, over the prompt they share and the captions themselves.
#pragma once

#include "forward.h"

namespace vcap {

// queries [B, G, H, d]; prompt keys [B, K, d, P], values [B, K, P, d], visible [B, P]; caption keys [B G K, d, T],
// values [B G K, T, d], visible [B, T]. out [B, G, H, d].
struct DecodeShape {
  int64_t batch, captions, heads, key_heads, size, prompt, tokens;
};

constexpr int kDecodeRows = 96;  // at most, heads of all captions, that read a block of keys together
static_assert(kDecodeRows % kRowsB == 0);

constexpr int kFewRows = 4;  // of the heads of one caption; the products of one tile A
static_assert(kFewRows <= kRowsA);

// Keys [size][length] from `first` on as a panel of product A; what is beyond the last key is zero.
inline void pack_last(const float* from, int64_t length, int64_t first, int64_t size, float* to) {
  for (int64_t j = 0; j < size; ++j) {
    const float* in = from + j * length;
    std::copy(in + first, in + length, to + j * kPanel);
    std::fill(to + j * kPanel + length - first, to + (j + 1) * kPanel, 0.0f);
  }
}

struct DecodeScratch {
  Buffer panel, values, scores;

  DecodeScratch(int64_t size, int64_t padded)
      : panel(kPanel * size), values(kKeys * padded), scores(kRowsB * kKeys) {}
};

// Keys [size][length] and values [length][size] of one head, and where they are seen.
struct Cache {
  const float* keys;
  const float* values;
  const bool* visible;
  int64_t length;

  // Keys of the block from `first` on, as far as its last visible one.
  int64_t count(int64_t first) const {
    int64_t count = std::min<int64_t>(kKeys, length - first);
    while (count > 0 && !visible[first + count - 1]) --count;
    return count;
  }

  Panels panels(int64_t first) const { return {keys + first, kPanel, length}; }
};

// Adds all visible keys of a cache to the first `rows` rows of a running softmax, `Rows` at a time. then: what will be
// added after it.
template <int Rows>
inline void add_cache(
    const float* left, int64_t rows, const Cache& cache, const Cache& then, int64_t size, int64_t padded,
    DecodeScratch& scratch, Running<kDecodeRows>& running) {
  float* scores = scratch.scores + 0;
  const auto keep = [&](int64_t at) {
    return [=](int i, int64_t first, const PanelSums& x)
               VCAP_IN_REGISTERS { store_panel(scores + i * kKeys + at + first, x); };
  };
  for (int64_t first = 0; first < cache.length; first += kKeys) {
    const int64_t count = cache.count(first), wide = round_up(count, kPanel);
    if (count == 0) continue;
    const bool* seen = cache.visible + first;
    float hidden[kKeys];  // what is added to the scores
    for (int64_t j = 0; j < wide; ++j) hidden[j] = j < count && seen[j] ? 0.0f : kMasked;
    const bool whole = std::all_of(hidden, hidden + wide, [](float x) { return x == 0.0f; });
    const float* values = cache.values + first * size;
    if (padded != size) {
      pack_rows(values, size, count, count, size, padded, 1.0f, scratch.values + 0);
      values = scratch.values + 0;
    }
    // The last panel may go beyond the last key.
    const int64_t inside = first + wide > cache.length ? wide - kPanel : wide;
    if (inside < wide) pack_last(cache.keys, cache.length, first + inside, size, scratch.panel + 0);
    const Panels panels = cache.panels(first), last{scratch.panel + 0, 0, kPanel};
    const bool more = first + kKeys < cache.length;
    const Cache& after = more ? cache : then;
    const int64_t next = more ? first + kKeys : 0;
    constexpr int kAtOnce = Rows <= kRowsA ? 4 : 1;  // few rows have few products
    NextBlock<kAtOnce> next_block(after.panels(next), after.values + next * size, after.count(next), size);
    for (int64_t row = 0; row < rows; row += Rows) {
      const float* mine = left + row * size;
      if constexpr (Rows == kRowsB) {
        const bool seen_whole = whole && inside == kKeys;
        if (seen_whole && running.add_seen(row, mine, size, panels, values, padded, scores, next_block)) continue;
      }
      block_product<Rows>(mine, size, panels, size, inside, kZeros, keep(0), next_block);
      block_product<Rows>(mine, size, last, size, wide - inside, kZeros, keep(inside), next_block);
      for (int64_t i = 0; !whole && i < Rows; ++i)
        for (int64_t j = 0; j < wide; j += kLanes)
          store(scores + i * kKeys + j, load(scores + i * kKeys + j) + load(hidden + j));
      running.add<Rows>(row, scores, count, values, padded);
    }
  }
}

inline void decode(
    xla::ffi::ThreadPool& pool, const DecodeShape& s, const float* queries, const float* prompt_keys,
    const float* prompt_values, const bool* prompt_visible, const float* caption_keys, const float* caption_values,
    const bool* caption_visible, float* out) {
  const int64_t padded = round_up(s.size, kColumns), together = s.heads / s.key_heads;
  const float scale = kLog2E / __builtin_sqrtf(static_cast<float>(s.size));
  // A task has so many captions that the rows of their heads fit a block: they read a block of the prompt once.
  const int64_t most = std::max<int64_t>(1, kDecodeRows / together);
  const int64_t pieces = (s.captions + most - 1) / most;
  for_each(pool, s.batch * s.key_heads * pieces, [&](int64_t task) {
    const int64_t piece = task % pieces, key_head = task / pieces % s.key_heads, batch = task / pieces / s.key_heads;
    const int64_t first = piece * most, captions = std::min(most, s.captions - first);
    Buffer left((kDecodeRows + kRowsB) * s.size);
    DecodeScratch scratch(s.size, padded);
    Running<kDecodeRows> running(padded), own(padded);
    // [captions][H / K][d], one row after another.
    const auto query = [&](int64_t caption) {
      return ((batch * s.captions + first + caption) * s.heads + key_head * together) * s.size;
    };
    const int64_t rows = captions * together, cache = batch * s.key_heads + key_head;
    for (int64_t c = 0; c < captions; ++c)
      pack_rows(queries + query(c), s.size, together, together, s.size, s.size, scale, left + c * together * s.size);
    std::fill(left + rows * s.size, left + (rows + kRowsB) * s.size, 0.0f);
    running.clear(round_up(rows, kRowsB), padded);
    const Cache prompt{
        prompt_keys + cache * s.size * s.prompt, prompt_values + cache * s.size * s.prompt,
        prompt_visible + batch * s.prompt, s.prompt};
    const auto caption = [&](int64_t c) -> Cache {
      if (c == captions) return {};
      const int64_t at = ((batch * s.captions + first + c) * s.key_heads + key_head) * s.size * s.tokens;
      return {caption_keys + at, caption_values + at, caption_visible + batch * s.tokens, s.tokens};
    };
    add_cache<kRowsB>(left + 0, rows, prompt, caption(0), s.size, padded, scratch, running);
    for (int64_t c = 0; c < captions; ++c) {
      const auto add = together <= kFewRows ? add_cache<kFewRows> : add_cache<kRowsB>;
      own.clear(round_up(together, kRowsB), padded);
      add(left + c * together * s.size, together, caption(c), caption(c + 1), s.size, padded, scratch, own);
      for (int64_t i = 0; i < together; ++i) {
        // Two parts of one softmax.
        const int64_t row = c * together + i;
        const float best = std::max(running.largest[row], own.largest[i]);
        const float a = std::exp2(running.largest[row] - best), b = std::exp2(own.largest[i] - best);
        const float total = running.total[row] * a + own.total[i] * b;
        float* to = out + query(c) + i * s.size;
        for (int64_t j = 0; j < s.size; ++j)
          to[j] = ((running.out + row * padded)[j] * a + (own.out + i * padded)[j] * b) / total;
      }
    }
  });
}

}  // namespace vcap
