// main() of every step's program; its main.cu says which step.
#include "common/program/program.h"

int main(int argc, char** argv) { return fa::step_main(argc, argv, fa::linked_steps().at(0)); }
