// Tests of step 13. The build links the steps that linked_variant() names here.
#include "tests/attention.h"

using fa::test::bf16_problem;

static const fa::Variant& warps() { return fa::linked_variant("13 warps"); }

TEST_CASE("step 13: right", "[step13]") {
  fa::test::require_right(warps(), bf16_problem(1, 300, 128, false, 1, 4, 2));
}
