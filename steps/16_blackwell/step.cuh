// Step 16: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/16_blackwell/1_tmem.cuh"
#include "steps/16_blackwell/2_issuer.cuh"
#include "steps/16_blackwell/3_roles.cuh"
#include "steps/16_blackwell/4_pair.cuh"
#include "steps/16_blackwell/beyond/ctas.cuh"

namespace step16 {

inline fa::Variant tmem() {
  return {.name = "tmem",
          .idea = "S, P and O in tensor memory; a thread owns a row",
          .forward = step16_tmem::forward,
          .traffic = traffic,
          .writes_lse = true};
}

inline fa::Variant issuer() {
  return {.name = "issuer",
          .idea = "a warp copies and another multiplies, beside the softmax",
          .parent = "16 tmem",
          .forward = step16_issuer::forward,
          .traffic = traffic,
          .writes_lse = true};
}

inline fa::Variant roles() {
  return {.name = "roles",
          .idea = "a second warpgroup rescales O",
          .parent = "16 issuer",
          .forward = step16_roles::forward,
          .traffic = traffic,
          .writes_lse = true};
}

inline fa::Variant pair() {
  return {.name = "pair",
          .idea = "two tiles of rows in turn, in FlashAttention-4's plan of columns",
          .parent = "16 roles",
          .forward = step16_pair::forward_exact,
          .traffic = step16_pair::traffic,
          .writes_lse = true};
}

inline fa::Variant exp2() {
  return {.name = "exp2",
          .idea = "a quarter of the exponentials by a polynomial; lazy rescale",
          .parent = "16 pair",
          .forward = step16_pair::forward,
          .traffic = step16_pair::traffic,
          .writes_lse = true};
}

inline fa::Variant ctas() {
  return {.name = "ctas",
          .idea = "two blocks multiply together; each copies half of K and V",
          .parent = "16 exp2",
          .forward = step16_ctas::forward,
          .traffic = step16_ctas::traffic,
          .writes_lse = true};
}

inline fa::Step step() {
  return {.id = "16_blackwell",
          .idea =
              "compiled for sm_100a and run in the simulator; not yet run on a card: tensor "
              "memory, and FlashAttention-4's forward",
          .support = support(),
          .variants = {tmem(), issuer(), roles(), pair(), exp2(), ctas()}};
}

}  // namespace step16
