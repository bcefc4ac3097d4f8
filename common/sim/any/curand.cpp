// XORWOW's subsequences: its five words are linear over bits, so a jump is a matrix of bits.
#define FA_ANY_PROGRAM
#include <array>
#include <vector>

#include "common/sim/any/include/curand_kernel.h"

namespace sim::any {

namespace {

constexpr int kBits = 160;
constexpr unsigned kSubsequence = 67;  // 2^67 numbers
using Words = std::array<uint32_t, 5>;
using Matrix = std::array<Words, kBits>;  // the image of each bit

Words times(const Matrix& m, const Words& v) {
  Words sum{};
  for (int bit = 0; bit < kBits; ++bit) {
    if (!(v[bit / 32] >> bit % 32 & 1)) continue;
    for (int i = 0; i < 5; ++i) sum[i] ^= m[bit][i];
  }
  return sum;
}

// The matrices of 2^k steps.
const std::vector<Matrix>& leaps() {
  static const std::vector<Matrix> all = [] {
    std::vector<Matrix> powers(kSubsequence + 64);
    for (int bit = 0; bit < kBits; ++bit) {
      curandStateXORWOW s{};
      s.v[bit / 32] = 1u << bit % 32;
      s.next();
      std::copy(s.v, s.v + 5, powers[0][bit].begin());
    }
    for (size_t k = 1; k < powers.size(); ++k) {
      for (int bit = 0; bit < kBits; ++bit) {
        powers[k][bit] = times(powers[k - 1], powers[k - 1][bit]);
      }
    }
    return powers;
  }();
  return all;
}

}  // namespace

void skip_xorwow(uint32_t (&words)[5], uint64_t steps, bool subsequences) {
  Words v;
  std::copy(words, words + 5, v.begin());
  for (int k = 0; steps >> k; ++k) {
    if (steps >> k & 1) v = times(leaps()[k + (subsequences ? kSubsequence : 0)], v);
    if (k == 63) break;
  }
  std::copy(v.begin(), v.end(), words);
}

}  // namespace sim::any
