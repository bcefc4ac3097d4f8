// Step 08: runs, checks, counts and times kernel.cuh, deterministic.cuh and roles.cuh.
#include "steps/06_work_partitioning/backward.cuh"
#include "steps/07_tensor_cores/kernel.cuh"
#include "steps/08_tensor_core_backward/deterministic.cuh"
#include "steps/08_tensor_core_backward/kernel.cuh"
#include "steps/08_tensor_core_backward/roles.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "08_tensor_core_backward";
  step.idea = "the backward on tensor cores: transposed scores stay in registers";
  step.parent = {"07_tensor_cores", step07::traffic, {.d = {64, 128}, .gqa = true, .cross = true}};
  step.support = {.d = {64, 128}, .gqa = true, .cross = true};
  step.needs = "sm_80";
  step.variants = {{.name = "kernel",
                    .idea = "a block 128 keys; dS through shared memory, dQ by atomics",
                    .forward = step08::forward,
                    .traffic = step07::traffic,
                    .workspace = step08::workspace,
                    .writes_lse = true,
                    .backward = step08::backward,
                    .backward_traffic = step08::backward_traffic,
                    .backward_parent = {"06 backward", step06_backward::backward_traffic}},
                   {.name = "deterministic",
                    .idea = "dQ by a second kernel, 7 products instead of 5: always the same bits",
                    .forward = step08_deterministic::forward,
                    .traffic = step07::traffic,
                    .workspace = step08_deterministic::workspace,
                    .writes_lse = true,
                    .backward = step08_deterministic::backward,
                    .backward_traffic = step08_deterministic::backward_traffic,
                    .backward_parent = {"08 kernel", step08::backward_traffic, step.support}},
                   {.name = "roles",
                    .idea = "pairs of warps: one makes P and dV, the other dS and dK",
                    .forward = step08::forward,
                    .traffic = step07::traffic,
                    .workspace = step08::workspace,
                    .writes_lse = true,
                    .backward = step08_roles::backward,
                    .backward_traffic = step08::backward_traffic,
                    .backward_parent = {"08 kernel", step08::backward_traffic, step.support}}};
  return fa::step_main(argc, argv, step);
}
