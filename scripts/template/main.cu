// Runs, checks, counts and times kernel.cuh.
#include "steps/@NAME@/kernel.cuh"

int main(int argc, char** argv) {
  fa::Step step;
  step.id = "@NAME@";
  step.idea = "a step of your own";
  step.support.d = {32, 64};
  step.variants = {{.name = "kernel",
                    .idea = "one thread a query row",
                    .forward = @NAME@::forward,
                    .traffic = @NAME@::traffic}};
  return fa::step_main(argc, argv, step);
}
