// Step 05: runs, checks, counts and times standard.cuh and kernel.cuh, forward and backward.
#include "steps/05_recompute_backward/kernel.cuh"
#include "steps/05_recompute_backward/standard.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "05_recompute_backward";
  step.idea = "the backward recomputes P from LSE; beside it the one that stores P";
  step.parent = {"04_fused", step04::traffic};
  step.variants = {{.name = "standard",
                    .idea = "P stays in HBM from forward to backward; dP and dS are written",
                    .forward = step05_standard::forward,
                    .traffic = step05_standard::traffic,
                    .workspace = step05_standard::workspace,
                    .backward = step05_standard::backward,
                    .backward_traffic = step05_standard::backward_traffic,
                    .parent = {"02_tiled", step02::traffic}},
                   {.name = "kernel",
                    .idea = "Algorithm 4: P from Q, K and LSE, tile by tile; dQ through HBM",
                    .forward = step05::forward,
                    .traffic = step05::traffic,
                    .workspace = step05::workspace,
                    .writes_lse = true,
                    .backward = step05::backward,
                    .backward_traffic = step05::backward_traffic,
                    .backward_parent = {"05 standard", step05_standard::backward_traffic}}};
  return fa::step_main(argc, argv, step);
}
