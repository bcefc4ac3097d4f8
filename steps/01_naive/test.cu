// Tests of step 01. steps/CMakeLists.txt says what it is linked with.
#include "tests/attention.h"

static const fa::Variant& naive() { return fa::linked_variant("01 naive"); }

TEST_CASE("step 01: O matches the fp64 reference at tile edges", "[step01][all]") {
  fa::test::require_right_at_edges_fp32(naive());
}

TEST_CASE("step 01: right for real input and outliers, behaves as attention must", "[step01]") {
  fa::test::require_fp32_properties(naive());
}

#if !FA_BACKEND_GPU
TEST_CASE("step 01: predicted bytes are counted bytes", "[step01][all]") {
  fa::test::require_predicted_fp32(naive());
}

TEST_CASE("step 01: the analysis finds nothing", "[step01][all]") {
  fa::test::require_no_finding_fp32(naive());
}
#endif
