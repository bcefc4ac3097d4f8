// Step 11 beyond: which kernel runs which problem, in the variant direct.
#pragma once

#include "steps/11_hopper_backward/beyond/direct.cuh"
#include "steps/11_hopper_backward/beyond/halves.cuh"
#include "steps/11_hopper_backward/beyond/heads.cuh"
#include "steps/11_hopper_backward/beyond/meeting.cuh"
#include "steps/11_hopper_backward/beyond/paired.cuh"
#include "steps/11_hopper_backward/beyond/shares.cuh"

namespace step11_fastest {

using namespace step11;

// Where the ends of walks cost more than the shorter rings: up to 17 tiles in the mean, and four
// walks for each SM (measured).
inline bool short_walks(const fa::Problem& p) {
  const int walks = fa::ceil_div(p.Nk, Bc) * int(p.kv_heads());
  return p.d == 64 && p.H / p.Hkv * p.N <= (p.causal ? 4096 : 2048) && walks >= 4 * p.gpu.sms;
}

// Without the mask `places` gains 2 to 8%, with it nothing; with N = 3000 it loses 2% (measured,
// d = 128, 12 to 15 blocks per SM).
inline bool places_pay(const fa::Problem& p) {
  const int rows = p.H / p.Hkv * padded_rows(p), walks = fa::ceil_div(p.Nk, Bc);
  const size_t sums = 4 * size_t(step11_places::first_places(p)) * rows * p.d;
  return p.d == 128 && !p.causal && p.N % Bc == 0 && rows <= 8192 && sums <= size_t{20} << 20 &&
         walks * int(p.kv_heads()) >= 8 * p.gpu.sms;
}

inline fa::Support support() { return {.d = {64, 128, 256}, .gqa = true, .cross = true}; }

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  if (p.d == 256) return step11_columns::workspace(p);
  if (!step11_meeting::pays(p) && step11_shares::pays(p)) return step11_shares::workspace(p);
  return places_pay(p) ? step11_places::workspace(p) : step11_persistent::workspace(p);
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  if (p.d == 256) return step11_paired::backward_traffic(p);
  if (step11_meeting::pays(p)) return step11_meeting::backward_traffic(p);
  if (step11_shares::pays(p)) return step11_shares::backward_traffic(p);
  if (step11_halves::pays(p)) return step11_halves::backward_traffic(p);
  if (step11_direct::pays(p)) return step11_direct::backward_traffic(p);
  if (step11_heads::pays(p)) return step11_heads::backward_traffic(p);
  if (places_pay(p)) return step11_places::backward_traffic(p);
  return short_walks(p) ? step11_persistent::backward_traffic(p) : step11_sums::backward_traffic(p);
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (p.d == 256) return step11_paired::backward(p, t);
  if (step11_meeting::pays(p)) return step11_meeting::backward(p, t);
  if (step11_shares::pays(p)) return step11_shares::backward(p, t);
  if (step11_halves::pays(p)) return step11_halves::backward(p, t);
  if (step11_direct::pays(p)) return step11_direct::backward(p, t);
  if (step11_heads::pays(p)) return step11_heads::backward(p, t);
  if (places_pay(p)) return step11_places::backward(p, t);
  short_walks(p) ? step11_persistent::backward(p, t) : step11_sums::backward(p, t);
}

}  // namespace step11_fastest
