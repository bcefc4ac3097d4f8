// main() of every step's program; the step's main.cu names the step.
#include "common/program/program.h"

int main(int argc, char** argv) { return fa::step_main(argc, argv, fa::linked_steps().at(0)); }
