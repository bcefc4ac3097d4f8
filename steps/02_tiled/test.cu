// Tests of step 02. steps/CMakeLists.txt says what it is linked with.
#include "tests/attention.h"

static const fa::Variant& parent() { return fa::linked_variant("01 naive"); }
static const fa::Variant& shared() { return fa::linked_variant("02 shared"); }
static const fa::Variant& registers() { return fa::linked_variant("02 registers"); }

static const fa::Variant& any() { return *GENERATE(&shared(), &registers()); }

TEST_CASE("step 02: O matches the fp64 reference at tile edges", "[step02][all]") {
  fa::test::require_right_at_edges_fp32(any());
}

TEST_CASE("step 02: right for real input and outliers, behaves as attention must", "[step02]") {
  fa::test::require_fp32_properties(any());
}

TEST_CASE("step 02: agrees with step 01", "[step02]") {
  fa::test::require_agrees_fp32(any(), parent());
}

#if !FA_BACKEND_GPU
TEST_CASE("step 02: predicted bytes are counted bytes", "[step02][all]") {
  fa::test::require_predicted_fp32(any());
}

TEST_CASE("step 02: no bank conflicts, coalesced loads", "[step02][all]") {
  fa::test::require_clean_accesses_fp32(any());
}

TEST_CASE("step 02: requests fall by the tile width, the N*N in HBM stays", "[step02]") {
  const auto p = fa::test::problem(256, 64, false);
  const auto naive = parent().traffic(p), tiled = shared().traffic(p),
             wide = registers().traffic(p);
  CHECK(naive.buffers.at("K").read == 32 * tiled.buffers.at("K").read);
  CHECK(naive.buffers.at("K").read == 64 * wide.buffers.at("K").read);
  CHECK(naive.hbm == tiled.hbm);
  CHECK(naive.hbm == wide.hbm);
}

TEST_CASE("step 02: the analysis finds nothing", "[step02][all]") {
  fa::test::require_no_finding_fp32(any());
}
#endif
