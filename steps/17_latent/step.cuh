// Step 17: its description, for its program, library, tests and exercises.
#pragma once

#include "common/harness/step_options.h"
#include "steps/17_latent/1_absorbed.cuh"
#include "steps/17_latent/2_panels.cuh"
#include "steps/17_latent/3_exchange.cuh"
#include "steps/17_latent/4_splits.cuh"
#include "steps/17_latent/beyond/pairs.cuh"

namespace step17 {

// K and V per head have, as in DeepSeek-V2, 128 features, and K 64 more for the position.
inline std::string cache(const fa::Problem& p) {
  const int per_head = 2 * (128 + 64 + 128), tenths = 10 * p.H * per_head / (2 * d);
  return std::to_string(2 * d) + " B per token; K and V of each head would be " +
         std::to_string(p.H * per_head) + " B, " + std::to_string(tenths / 10) + "." +
         std::to_string(tenths % 10) + " times as much";
}

inline fa::Variant absorbed() {
  return {.name = "absorbed",
          .idea = "one latent vector per key is K and V of all heads; CUDA cores",
          .support = support(),
          .forward = step17_absorbed::forward,
          .traffic = step17_absorbed::traffic,
          .writes_lse = true,
          .extras = {.latent = dv, .cache = cache}};
}

inline fa::Variant panels() {
  return {.name = "panels",
          .idea = "64 rows of all heads per block; a tile is read as K and, transposed, as V",
          .parent = "17 absorbed",
          .support = support(),
          .forward = step17_panels::forward,
          .traffic = step17_panels::traffic,
          .writes_lse = true,
          .extras = {.latent = dv, .cache = cache}};
}

inline fa::Variant exchange() {
  return {.name = "exchange",
          .idea = "S once: two warpgroups exchange P through shared memory",
          .parent = "17 panels",
          .support = support(),
          .forward = step17_exchange::forward,
          .traffic = step17_exchange::traffic,
          .writes_lse = true,
          .extras = {.latent = dv, .cache = cache}};
}

inline fa::Variant splits() {
  return {.name = "splits",
          .idea = "the cache in splits, pages and lengths; parts of O merged",
          .parent = "17 exchange",
          .support = support(/*paged=*/true),
          .forward = step17_splits::forward,
          .traffic = step17_splits::traffic,
          .workspace = step17_splits::workspace,
          .writes_lse = true,
          .extras = {.latent = dv, .cache = cache}};
}

inline fa::Variant resident() {
  return {.name = "resident",
          .idea = "Q in the registers of one warpgroup, which computes P; three tiles",
          .parent = "17 splits",
          .support = support(/*paged=*/true),
          .forward = step17_resident::forward,
          .traffic = step17_splits::traffic,
          .workspace = step17_splits::workspace,
          .writes_lse = true,
          .extras = {.latent = dv, .cache = cache}};
}

inline fa::Variant pairs() {
  return {.name = "pairs",
          .idea = "two splits merge through distributed shared memory",
          .parent = "17 resident",
          .support = support(/*paged=*/true),
          .forward = step17_pairs::forward,
          .traffic = step17_pairs::traffic,
          .workspace = step17_pairs::workspace,
          .writes_lse = true,
          .extras = {.latent = dv, .cache = cache}};
}

inline fa::Step step() {
  return {.id = "17_latent",
          .idea = "latent attention (MLA): one vector per key for all heads",
          .support = support(/*paged=*/true),
          .options = fa::cache_options(),
          .variants = {absorbed(), panels(), exchange(), splits(), resident(), pairs()}};
}

}  // namespace step17
