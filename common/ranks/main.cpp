// main() of a step that several ranks can share; its main.cu says which step. Started alone, the
// program is any step's.
#include "common/ranks/ranks_main.h"
#include "common/ranks/world.h"

int main(int argc, char** argv) {
  const fa::Step& step = fa::linked_steps().at(0);
  const int ranks = fa::started_ranks();
  return ranks > 1 || (ranks == 1 && fa::kHasMpi) ? fa::ranks_main(argc, argv, step)
                                                  : fa::step_main(argc, argv, step);
}
