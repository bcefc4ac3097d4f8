// Step 13: its description, for its program, library, tests and exercises.
#pragma once

#include "common/harness/step_options.h"
#include "steps/07_tensor_cores/4_lazy.cuh"
#include "steps/13_decode/1_warps.cuh"
#include "steps/13_decode/2_splits.cuh"
#include "steps/13_decode/3_groups.cuh"
#include "steps/13_decode/4_pages.cuh"
#include "steps/13_decode/5_once.cuh"
#include "steps/13_decode/6_fp8.cuh"
#include "steps/13_decode/beyond/early.cuh"
#ifndef FA_NO_WGMMA
#include "steps/13_decode/beyond/wgmma.cuh"
#endif

namespace step13 {

// The problems that the kernels support; all others are refused.
inline fa::Support limits(bool paged) {
  return {
      .d = {64, 128}, .gqa = true, .cross = true, .most_n = kMma, .lengths = paged, .pages = paged};
}

inline fa::Variant warps() {
  return {.name = "warps",
          .idea = "one block per head; its warps share the keys",
          .parent = "07 lazy",
          .support = limits(/*paged=*/false),
          .forward = step13_warps::forward,
          .traffic = step13_warps::traffic,
          .writes_lse = true};
}

inline fa::Variant splits() {
  return {.name = "splits",
          .idea = "a head's keys in as many splits as fill the GPU, merged by LSE",
          .parent = "13 warps",
          .support = limits(/*paged=*/false),
          .forward = step13_splits::forward,
          .traffic = step13_splits::traffic,
          .workspace = step13_splits::workspace,
          .writes_lse = true};
}

inline fa::Variant groups() {
  return {.name = "groups",
          .idea = "the query heads of a group in one tile: K and V once for all of them",
          .parent = "13 splits",
          .support = limits(/*paged=*/false),
          .forward = step13_groups::forward,
          .traffic = step13_groups::traffic,
          .workspace = step13_groups::workspace,
          .writes_lse = true};
}

inline fa::Variant pages() {
  return {.name = "pages",
          .idea = "the cache in pages anywhere; a length for each sequence",
          .parent = "13 groups",
          .support = limits(/*paged=*/true),
          .forward = step13_pages::forward,
          .traffic = step13_pages::traffic,
          .workspace = step13_pages::workspace,
          .writes_lse = true};
}

inline fa::Variant once() {
  return {.name = "once",
          .idea = "one launch: the last block of some rows merges their splits",
          .parent = "13 pages",
          .support = limits(/*paged=*/true),
          .forward = step13_once::forward,
          .traffic = step13_once::traffic,
          .workspace = step13_once::workspace,
          .writes_lse = true};
}

inline fa::Variant early() {
  return {.name = "early",
          .idea = "all SMs merge, in a kernel that is launched early",
          .parent = "13 once",
          .support = limits(/*paged=*/true),
          .forward = step13_early::forward,
          .traffic = step13_early::traffic,
          .workspace = step13_early::workspace,
          .writes_lse = true};
}

#ifndef FA_NO_WGMMA  // else nvcc compiles for GPUs that are not Hopper's
inline fa::Variant wgmma() {
  return {.name = "wgmma",
          .idea = "more than 16 rows for a key head: one wgmma, keys by TMA",
          .parent = "13 early",
          .support = limits(/*paged=*/true),
          .newer = true,
          .forward = step13_wgmma::forward,
          .traffic = step13_wgmma::traffic,
          .workspace = step13_wgmma::workspace,
          .writes_lse = true};
}
#endif

inline fa::Variant fp8() {
  return {.name = "fp8",
          .idea = "K and V in 8 bits, multiplied in 16",
          .parent = "13 once",
          .support = limits(/*paged=*/true),
          .forward = step13_fp8::forward,
          .traffic = step13_fp8::traffic,
          .workspace = step13_fp8::workspace,
          .writes_lse = true,
          .extras = {.cache8 = true}};
}

inline fa::Step step() {
  fa::Step s{
      .id = "13_decode",
      .idea = "one query, a long KV cache: nothing but memory bandwidth",
      .support = limits(/*paged=*/true),
      .parents = {{.id = "07 lazy", .traffic = step07::traffic, .support = step07::support()}},
      .options = fa::cache_options(),
      .variants = {warps(), splits(), groups(), pages(), once(), fp8(), early()}};
#ifndef FA_NO_WGMMA
  s.variants.push_back(wgmma());
#endif
  return s;
}

}  // namespace step13
