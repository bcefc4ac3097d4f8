// Step 06: runs, checks, counts and times kernel.cuh, register.cuh and backward.cuh.
#include "steps/04_fused/kernel.cuh"
#include "steps/05_recompute_backward/kernel.cuh"
#include "steps/06_work_partitioning/backward.cuh"
#include "steps/06_work_partitioning/kernel.cuh"
#include "steps/06_work_partitioning/register.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "06_work_partitioning";
  step.idea = "FlashAttention-2: a block a tile of Q; O, m and l stay in registers";
  step.parent = {"04_fused", step04::traffic};
  step.variants = {{.name = "kernel",
                    .idea = "loops swapped, a warp 4 rows, a lane one key",
                    .forward = step06::forward,
                    .traffic = step06::traffic,
                    .writes_lse = true},
                   {.name = "register",
                    .idea = "64 x 64 tiles, 8 x 4 scores a thread in registers",
                    .forward = step06_register::forward,
                    .traffic = step06_register::traffic,
                    .writes_lse = true,
                    .parent = {"06 kernel", step06::traffic}},
                   {.name = "backward",
                    .idea = "register's forward; backward: a block a tile of keys, dQ by atomics",
                    .forward = step06_backward::forward,
                    .traffic = step06_backward::traffic,
                    .workspace = step06_backward::workspace,
                    .writes_lse = true,
                    .backward = step06_backward::backward,
                    .backward_traffic = step06_backward::backward_traffic,
                    .parent = {"06 kernel", step06::traffic},
                    .backward_parent = {"05_recompute_backward", step05::backward_traffic}}};
  return fa::step_main(argc, argv, step);
}
