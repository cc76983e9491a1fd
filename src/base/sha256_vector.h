// The code that the AVX2 and AVX-512 kernels share, over a vector type V of
// 32-bit words with V::kLanes lanes. Each kernel includes this file once, so
// the namespace is unnamed.

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/sha256_rounds.h"

namespace haulway {
namespace {

// Two vectors used as one: while the processor waits for a result of one, it
// works on the other.
template <class V>
struct Twice {
  static constexpr size_t kLanes = 2 * V::kLanes;

  static Twice Load(const uint32_t* words) {
    return {V::Load(words), V::Load(words + V::kLanes)};
  }
  static Twice All(uint32_t word) { return {V::All(word), V::All(word)}; }
  void Store(uint32_t* words) const {
    a.Store(words);
    b.Store(words + V::kLanes);
  }
  friend Twice operator+(Twice x, Twice y) { return {x.a + y.a, x.b + y.b}; }
  static Twice Choose(Twice x, Twice y, Twice z) {
    return {V::Choose(x.a, y.a, z.a), V::Choose(x.b, y.b, z.b)};
  }
  static Twice Majority(Twice x, Twice y, Twice z) {
    return {V::Majority(x.a, y.a, z.a), V::Majority(x.b, y.b, z.b)};
  }
  static Twice Sigma0(Twice x) { return {V::Sigma0(x.a), V::Sigma0(x.b)}; }
  static Twice Sigma1(Twice x) { return {V::Sigma1(x.a), V::Sigma1(x.b)}; }
  static Twice Gamma0(Twice x) { return {V::Gamma0(x.a), V::Gamma0(x.b)}; }
  static Twice Gamma1(Twice x) { return {V::Gamma1(x.a), V::Gamma1(x.b)}; }

  static void LoadBlocks(const std::byte* const* messages, size_t offset,
                         Twice words[16]) {
    V half[16];
    V::LoadBlocks(messages, offset, half);
    for (int i = 0; i < 16; ++i) words[i].a = half[i];
    V::LoadBlocks(messages + V::kLanes, offset, half);
    for (int i = 0; i < 16; ++i) words[i].b = half[i];
  }

  V a;
  V b;
};

// Runs one round. Only d and h change; the caller renames the variables.
template <class V>
[[gnu::always_inline]] inline void Sha256Round(V a, V b, V c, V* d, V e, V f,
                                               V g, V* h, V word_and_constant) {
  // Terms that do not depend on the previous round come first.
  const V t = (*h + word_and_constant) + (V::Choose(e, f, g) + V::Sigma1(e));
  *d = *d + t;
  *h = t + (V::Sigma0(a) + V::Majority(a, b, c));
}

// Runs sixteen rounds on words `w` or, if kNext, on the sixteen words after
// them, which replace `w`. Each new word is computed right before its round:
// half of that work is rotation, which only few execution units can do.
template <bool kNext, class V>
[[gnu::always_inline]] inline void SixteenSha256Rounds(V s[8], V w[16],
                                                       const uint32_t* k) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if constexpr (kNext) {
      w[i] = (w[i] + w[(i + 9) & 15]) +
             (V::Gamma0(w[(i + 1) & 15]) + V::Gamma1(w[(i + 14) & 15]));
    }
    Sha256Round(s[-i & 7], s[(1 - i) & 7], s[(2 - i) & 7], &s[(3 - i) & 7],
                s[(4 - i) & 7], s[(5 - i) & 7], s[(6 - i) & 7], &s[(7 - i) & 7],
                w[i] + V::All(k[i]));
  }
}

template <class V>
[[gnu::always_inline]] inline void CompressSha256(
    uint32_t* states, const std::byte* const* messages, size_t blocks) {
  V state[8];
  for (int i = 0; i < 8; ++i) state[i] = V::Load(states + i * V::kLanes);
  for (size_t block = 0; block < blocks; ++block) {
    V w[16];
    V::LoadBlocks(messages, block * 64, w);
    V s[8];
    for (int i = 0; i < 8; ++i) s[i] = state[i];
    SixteenSha256Rounds<false>(s, w, kSha256Rounds);
    for (int round = 16; round < 64; round += 16) {
      SixteenSha256Rounds<true>(s, w, kSha256Rounds + round);
    }
    for (int i = 0; i < 8; ++i) state[i] = state[i] + s[i];
  }
  for (int i = 0; i < 8; ++i) state[i].Store(states + i * V::kLanes);
}

}  // namespace
}  // namespace haulway
