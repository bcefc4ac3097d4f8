// Step 15: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/15_masks/4_packed_backward.cuh"
#include "steps/15_masks/6_lists_backward.cuh"
#include "steps/15_masks/8_scores_backward.cuh"

namespace step15 {

inline fa::Variant window() {
  return {.name = "window",
          .idea = "a sliding window: the first and the last tile by arithmetic",
          .parent = "07 lazy",
          .support = step15_window::support(),
          .forward = step15_window::forward,
          .traffic = step15_window::traffic,
          .workspace = step08::workspace,
          .writes_lse = true,
          .backward_parent = "08 atomics",
          .backward = step15_backward::backward,
          .backward_traffic = step08::backward_traffic};
}

inline fa::Variant packed() {
  return {.name = "packed",
          .idea = "documents behind each other: a table of all their tiles, longest first",
          .parent = "15 window",
          .support = step15_packed::support(),
          .forward = step15_packed::forward,
          .traffic = step15_packed::traffic,
          .workspace = step15_packed_backward::workspace,
          .tables = step15_packed_backward::tables,
          .writes_lse = true,
          .backward_parent = "15 window",
          .backward = step15_packed_backward::backward,
          .backward_traffic = step15_packed_backward::backward_traffic};
}

inline fa::Variant lists() {
  return {.name = "lists",
          .idea = "any mask: lists of cut and of full tiles, and a bit for each score of a cut one",
          .parent = "15 window",
          .support = step15_lists::support(),
          .forward = step15_lists::forward,
          .traffic = step15_lists::traffic,
          .workspace = step08::workspace,
          .tables = step15_lists_backward::tables,
          .writes_lse = true,
          .backward_parent = "15 window",
          .backward = step15_lists_backward::backward,
          .backward_traffic = step15_lists_backward::backward_traffic};
}

inline fa::Variant scores() {
  return {.name = "scores",
          .idea = "what changes a score: a soft cap, ALiBi; and sinks in the softmax's sum",
          .parent = "15 packed",
          .support = step15_scores::support(),
          .forward = step15_scores::forward,
          .traffic = step15_scores::traffic,
          .workspace = step15_packed_backward::workspace,
          .tables = step15_packed_backward::tables,
          .writes_lse = true,
          .backward_parent = "15 packed",
          .backward = step15_scores_backward::backward,
          .backward_traffic = step15_scores_backward::backward_traffic};
}

// What any of the variants supports.
inline fa::Support support() {
  fa::Support s = step15_lists::support();
  s.score_mod = true;
  return s;
}

inline fa::Step step() {
  return {.id = "15_masks",
          .idea = "a mask is a list of tiles to visit, and a test in those that it cuts",
          .support = support(),
          .parents = {{.id = "07 lazy", .traffic = step07::traffic, .support = step07::support()},
                      {.id = "08 atomics",
                       .backward_traffic = step08::backward_traffic,
                       .support = step07::support()}},
          .predicates = predicates(),
          .variants = {window(), packed(), lists(), scores()}};
}

}  // namespace step15
