// Step 03: runs, checks, counts and times softmax.cuh and kernel.cuh.
#include "steps/02_tiled/kernel.cuh"
#include "steps/03_online_softmax/kernel.cuh"
#include "steps/03_online_softmax/softmax.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "03_online_softmax";
  step.idea = "running m and l; P never exists, S stays in HBM";
  step.parent = {"02_tiled", step02::traffic};
  step.variants = {{.name = "naive",
                    .idea = "02 with a softmax that takes no maximum",
                    .forward = step03_softmax::naive_forward,
                    .traffic = step03_softmax::naive_traffic,
                    .workspace = step02::workspace},
                   {.name = "safe",
                    .idea = "02 with a softmax that takes the maximum first",
                    .forward = step03_softmax::safe_forward,
                    .traffic = step03_softmax::safe_traffic,
                    .workspace = step02::workspace},
                   {.name = "online",
                    .idea = "02 with a softmax that finds maximum and sum in one pass",
                    .forward = step03_softmax::online_forward,
                    .traffic = step03_softmax::online_traffic,
                    .workspace = step02::workspace},
                   {.name = "kernel",
                    .idea = "softmax and P V in one pass over S",
                    .forward = step03::forward,
                    .traffic = step03::traffic,
                    .workspace = step03::workspace}};
  return fa::step_main(argc, argv, step);
}
