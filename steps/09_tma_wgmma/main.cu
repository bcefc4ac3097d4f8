// Step 09: runs, checks, counts and times kernel.cuh.
#include "steps/07_tensor_cores/kernel.cuh"
#include "steps/09_tma_wgmma/kernel.cuh"

int main(int argc, char** argv) {
  const fa::Support support = {.d = {64, 128}, .gqa = true, .cross = true};
  fa::Step step;
  step.id = "09_tma_wgmma";
  step.idea = "tensor maps, mbarriers, wgmma: whole tiles instead of fragments";
  step.parent = {"07_tensor_cores", step07::traffic, support};
  step.support = support;
  step.needs = "sm_90a";
  step.variants = {{.name = "kernel",
                    .idea = "2 warpgroups of 64 rows, 64 keys a tile; one thread orders the copies",
                    .forward = step09::forward,
                    .traffic = step09::traffic,
                    .writes_lse = true}};
  return fa::step_main(argc, argv, step);
}
