// Step 04: runs, checks, counts and times kernel.cuh.
#include "steps/03_online_softmax/kernel.cuh"
#include "steps/04_fused/kernel.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "04_fused";
  step.idea = "FlashAttention-1: S and P stay on chip; O, m and l go through HBM";
  step.parent = {"03_online_softmax", step03::traffic, {.smem = true}};
  step.support.smem = true;
  step.variants = {{.name = "kernel",
                    .idea = "Algorithm 1 as printed: K/V tiles outside, Q tiles inside",
                    .forward = step04::forward,
                    .traffic = step04::traffic,
                    .workspace = step04::workspace,
                    .writes_lse = true}};
  return fa::step_main(argc, argv, step);
}
