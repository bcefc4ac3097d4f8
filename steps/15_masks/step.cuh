// Step 15: its description, for its program, library, tests and exercises.
#pragma once

#include "common/harness/step_options.h"
#include "steps/07_tensor_cores/4_lazy.cuh"
#include "steps/08_tensor_core_backward/5_atomics.cuh"
#include "steps/15_masks/beyond/backward.cuh"
#include "steps/15_masks/predicates.h"
#ifndef FA_NO_WGMMA
#include "steps/15_masks/beyond/wgmma_lists.cuh"
#endif

namespace step15 {

inline std::vector<fa::Table> joined(std::vector<fa::Table> all,
                                     const std::vector<fa::Table>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
inline std::vector<fa::Table> packed_tables(const fa::Problem& p) {
  return joined(step15_packed::tables(p), step15_packed_backward::tables(p));
}

inline fa::Variant window() {
  return {.name = "window",
          .idea = "a sliding window: the first and the last tile by arithmetic",
          .parent = "07 lazy",
          .support = step15_window::support(),
          .forward = step15_window::forward,
          .traffic = step15_window::traffic,
          .workspace = step15_backward::workspace,
          .writes_lse = true,
          .backward_parent = "08 atomics",
          .backward = step15_backward::backward,
          .backward_traffic = step15_backward::backward_traffic};
}

inline fa::Variant packed() {
  return {.name = "packed",
          .idea = "documents back to back: a table of all their tiles, longest first",
          .parent = "15 window",
          .support = step15_packed::support(),
          .forward = step15_packed::forward,
          .traffic = step15_packed::traffic,
          .workspace = step15_backward::workspace,
          .writes_lse = true,
          .backward_parent = "15 window",
          .backward = step15_packed_backward::backward,
          .backward_traffic = step15_packed_backward::backward_traffic,
          .extras = {.tables = packed_tables}};
}

inline fa::Variant lists() {
  return {.name = "lists",
          .idea = "any mask: lists of cut and of full tiles, and a bit for each score of a cut one",
          .parent = "15 window",
          .support = step15_lists::support(),
          .forward = step15_lists::forward,
          .traffic = step15_lists::traffic,
          .workspace = step15_lists_backward::workspace,
          .writes_lse = true,
          .backward_parent = "15 window",
          .backward = step15_lists_backward::backward,
          .backward_traffic = step15_lists_backward::backward_traffic,
          .extras = {.tables = step15_lists_backward::tables}};
}

inline fa::Variant scores() {
  return {.name = "scores",
          .idea = "what changes a score: a soft cap, ALiBi; and sinks in the softmax's sum",
          .parent = "15 packed",
          .support = step15_scores::support(),
          .forward = step15_scores::forward,
          .traffic = step15_scores::traffic,
          .workspace = step15_backward::workspace,
          .writes_lse = true,
          .backward_parent = "15 packed",
          .backward = step15_scores_backward::backward,
          .backward_traffic = step15_scores_backward::backward_traffic,
          .extras = {.tables = packed_tables}};
}

#ifndef FA_NO_WGMMA  // else nvcc compiles for GPUs that are not Hopper's
inline fa::Variant wgmma() {
  return {.name = "wgmma",
          .idea = "windows and packs in 10's kernel: its scheduler draws from the table",
          .parent = "15 packed",
          .support = step15_wgmma::support(),
          .newer = true,
          .forward = step15_wgmma::forward,
          .traffic = step15_wgmma::traffic,
          .workspace = step15_wgmma_backward::workspace,
          .writes_lse = true,
          .backward_parent = "15 packed",
          .backward = step15_wgmma_backward::backward,
          .backward_traffic = step15_wgmma_backward::backward_traffic,
          .extras = {.tables = step15_wgmma_backward::tables}};
}

inline fa::Variant wgmma_lists() {
  fa::Variant v = wgmma();
  v.name = "wgmma_lists", v.idea = "any mask in 10's kernel: lists, and bits while products run";
  v.parent = "15 lists", v.support = step15_wgmma_lists::support();
  v.forward = step15_wgmma_lists::forward, v.traffic = step15_wgmma_lists::traffic;
  v.workspace = step15_wgmma_lists_backward::workspace;
  v.extras.tables = step15_wgmma_lists_backward::tables;
  v.backward_parent = "15 lists", v.backward = step15_wgmma_lists_backward::backward;
  v.backward_traffic = step15_wgmma_lists_backward::backward_traffic;
  return v;
}

inline fa::Variant wgmma_scores() {
  fa::Variant v = wgmma();
  v.name = "wgmma_scores", v.idea = "soft cap, ALiBi and sinks in 10's kernel";
  v.parent = "15 scores", v.support = step15_wgmma_scores::support();
  v.forward = step15_wgmma_scores::forward, v.traffic = step15_wgmma_scores::traffic;
  // Their backward is sm_80's: 11's subtracts LSE before a score could be capped.
  v.workspace = [](const fa::Problem& p) {
    std::vector<fa::Scratch> all = step15_wgmma::workspace(p);
    for (const fa::Scratch& more : step15_backward::workspace(p)) all.push_back(more);
    return all;
  };
  v.extras.tables = [](const fa::Problem& p) {
    return joined(step15_wgmma::tables(p), step15_packed_backward::tables(p));
  };
  v.backward_parent = "15 packed", v.backward = step15_scores_backward::backward;
  v.backward_traffic = step15_scores_backward::backward_traffic;
  return v;
}
#endif

// The union of what the variants support.
inline fa::Support support() {
  fa::Support s = step15_lists::support();
  s.score_mod = true;
  return s;
}

inline fa::Step step() {
  fa::Step s{
      .id = "15_masks",
      .idea = "a mask is a list of tiles to visit, and a test in those that it cuts",
      .support = support(),
      .parents = {{.id = "07 lazy", .traffic = step07::traffic, .support = step07::support()},
                  {.id = "08 atomics",
                   .backward_traffic = step08::backward_traffic,
                   .support = step07::support()}},
      .options = fa::mask_options(predicates()),
      .variants = {window(), packed(), lists(), scores()}};
#ifndef FA_NO_WGMMA
  for (const fa::Variant& v : {wgmma_scores(), wgmma_lists(), wgmma()}) s.variants.push_back(v);
#endif
  return s;
}

}  // namespace step15
