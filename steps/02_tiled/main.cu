// Step 02: runs, checks, counts and times shared.cuh and kernel.cuh.
#include "steps/01_naive/kernel.cuh"
#include "steps/02_tiled/kernel.cuh"
#include "steps/02_tiled/shared.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "02_tiled";
  step.idea = "shared tiles, then register tiles; S and P stay in HBM";
  step.parent = {"01_naive", step01::traffic};
  step.variants = {{.name = "shared",
                    .idea = "32 x 32 tiles in shared memory",
                    .forward = step02_shared::forward,
                    .traffic = step02_shared::traffic,
                    .workspace = step02_shared::workspace},
                   {.name = "kernel",
                    .idea = "64 x 64 tiles, 4 x 4 scores a thread in registers",
                    .forward = step02::forward,
                    .traffic = step02::traffic,
                    .workspace = step02::workspace}};
  return fa::step_main(argc, argv, step);
}
