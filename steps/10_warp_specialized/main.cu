// Step 10: runs, checks, counts and times specialized.cuh and kernel.cuh.
#include "steps/09_tma_wgmma/kernel.cuh"
#include "steps/10_warp_specialized/kernel.cuh"
#include "steps/10_warp_specialized/specialized.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "10_warp_specialized";
  step.idea = "FlashAttention-3 and past it: roles, a lazy maximum, items that overlap";
  step.support = {.d = {64, 128}, .gqa = true, .cross = true};
  step.parent = {"09_tma_wgmma", step09::traffic, step.support};
  step.needs = "sm_90a";
  const fa::Parent specialized = {"10 specialized", step10_specialized::traffic, step.support};
  step.variants = {{.name = "specialized",
                    .idea = "one warpgroup copies, the others take turns: FlashAttention-3",
                    .forward = step10_specialized::forward<false>,
                    .traffic = step10_specialized::traffic,
                    .writes_lse = true},
                   {.name = "lazy",
                    .idea = "the maximum moves when a score has passed it by 2^8",
                    .forward = step10_specialized::forward<true>,
                    .traffic = step10_specialized::traffic,
                    .writes_lse = true,
                    .parent = specialized},
                   {.name = "kernel",
                    .idea = "as many blocks as SMs; their items overlap",
                    .forward = step10::forward,
                    .traffic = step10::traffic,
                    .workspace = step10::workspace,
                    .writes_lse = true,
                    .parent = {"10 lazy", step10_specialized::traffic, step.support}}};
  return fa::step_main(argc, argv, step);
}
