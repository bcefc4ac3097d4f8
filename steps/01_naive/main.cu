// Step 01: runs, checks, counts and times kernel.cuh.
#include "steps/01_naive/kernel.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "01_naive";
  step.idea = "three kernels; S and P in HBM";
  step.variants = {{.name = "kernel",
                    .idea = "one thread an output, nothing shared",
                    .forward = step01::forward,
                    .traffic = step01::traffic,
                    .workspace = step01::workspace}};
  return fa::step_main(argc, argv, step);  // parse, allocate, check, count, time, print
}
