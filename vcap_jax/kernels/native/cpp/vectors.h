// Vectors of float as the compiler's own type, so that one source serves every processor, and what a softmax needs.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

namespace vcap {

// Lanes of a vector, and the tiles of sums that fit the registers (see products.h): rows x vectors of "A" and "B".
#if defined(__AVX512F__)
constexpr int kLanes = 16, kRowsA = 6, kVectorsA = 4, kRowsB = 12;
#elif defined(__AVX__)
constexpr int kLanes = 8, kRowsA = 6, kVectorsA = 2, kRowsB = 6;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kRowsA = 6, kVectorsA = 4, kRowsB = 12;
#else
constexpr int kLanes = 4, kRowsA = 6, kVectorsA = 2, kRowsB = 6;
#endif
constexpr int kVectorsB = 2;

using Vector = float __attribute__((vector_size(4 * kLanes)));
using Integers = uint32_t __attribute__((vector_size(4 * kLanes)));
using Unaligned = float __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vector x) { *reinterpret_cast<Unaligned*>(to) = x; }
inline Vector all(float x) { return x - Vector{}; }  // not 0 + x, which an addition of -0 keeps from being a copy
inline Vector larger(Vector x, Vector y) { return x > y ? x : y; }

inline Integers counting() {
  Integers lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

// Every lane beside its neighbour `Distance` further on, a power of 2.
template <int Distance>
inline Vector turned(Vector x) {
#if defined(__clang__)
  Vector y;
  for (int i = 0; i < kLanes; ++i) y[i] = x[i ^ Distance];
  return y;
#else
  return __builtin_shuffle(x, counting() ^ static_cast<uint32_t>(Distance));
#endif
}

template <int Distance = kLanes / 2>
inline float largest(Vector x) {
  x = larger(x, turned<Distance>(x));
  if constexpr (Distance > 1) return largest<Distance / 2>(x);
  return x[0];
}

template <int Distance = kLanes / 2>
inline float sum(Vector x) {
  x += turned<Distance>(x);
  if constexpr (Distance > 1) return sum<Distance / 2>(x);
  return x[0];
}

constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// 2^x, infinity from 128 on, 0 from -150 down; NaN gives NaN. 2 to what is left of x beside a whole number next to it
// is a polynomial with a relative error of at most 1e-7; the whole number goes into the exponent.
inline Vector exp2(Vector x) {
#if defined(__AVX512DQ__)
  constexpr int kFloorNoException = 9;
  const Vector r = (Vector)_mm512_reduce_ps((__m512)x, kFloorNoException);  // from 0 to 1
  Vector p = r * 1.86713027858228e-3f + 9.01702988035272e-3f;
  p = p * r + 5.57999134193149e-2f;
  p = p * r + 2.40164450068388e-1f;
  p = p * r + 6.93151311811725e-1f;
  p = p * r + 1.0f;
  return (Vector)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  x = all(-127.0f) > x ? all(-127.0f) : x;
  x = all(128.0f) < x ? all(128.0f) : x;
  const Vector shifted = x + kShift, r = x - (shifted - kShift);  // from -1/2 to 1/2
  Vector p = r * 1.326472731307149e-3f + 9.671512991189957e-3f;
  p = p * r + 5.550733581185341e-2f;
  p = p * r + 2.4022242426872253e-1f;
  p = p * r + 6.931470036506653e-1f;
  p = p * r + 1.0f;
  // The whole number + 127 in the place of the exponent; for -127 that is a zero, for 128 infinity.
  const Integers power = (reinterpret_cast<Integers>(shifted) + 127u) << 23;
  return p * reinterpret_cast<Vector>(power);
#endif
}

}  // namespace vcap
