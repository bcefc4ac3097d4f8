// Step 07: runs, checks, counts and times kernel.cuh.
#include "steps/06_work_partitioning/register.cuh"
#include "steps/07_tensor_cores/kernel.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "07_tensor_cores";
  step.idea = "mma.sync, ldmatrix, swizzle, cp.async: FlashAttention-2 in bf16";
  step.parent = {"06 register", step06_register::traffic};
  step.support = {.d = {64, 128}, .gqa = true, .cross = true};
  step.needs = "sm_80";
  step.variants = {{.name = "kernel",
                    .idea = "128 rows a block, 32 a warp; S becomes P in registers",
                    .forward = step07::forward,
                    .traffic = step07::traffic,
                    .writes_lse = true}};
  return fa::step_main(argc, argv, step);
}
