#include "common/counts/counts.h"

#include "tests/test.h"

using fa::BufferCount;
using fa::Bytes;
using fa::Counts;
using fa::Prediction;

TEST_CASE("bytes add by direction, and an atomic is neither read nor write", "[traffic]") {
  Bytes sum{1, 2, 3};
  sum += Bytes{10, 20, 30};
  CHECK(sum == Bytes{11, 22, 33});
  CHECK(sum.total() == 66);
}

TEST_CASE("a prediction's total covers all buffers", "[traffic]") {
  Prediction p;
  CHECK(p.total() == Bytes{});
  p["Q"].read = 100;
  p["S"] = {7, 5, 0};
  p["dQ"].atomic = 3;
  CHECK(p.total() == Bytes{107, 5, 3});
}

TEST_CASE("differing_buffers compares both sides, to the byte", "[traffic]") {
  Prediction p;
  p["O"].write = 64;
  p["Q"].read = 1ull << 40;  // more than 32 bits
  Counts c;
  c.buffers["O"].bytes.write = 64;
  c.buffers["Q"].bytes.read = 1ull << 40;
  CHECK(fa::differing_buffers(p, c).empty());

  SECTION("one byte") {
    c.buffers["Q"].bytes.read += 1;
    CHECK(fa::differing_buffers(p, c) == std::vector<std::string>{"Q"});
  }
  SECTION("the right number of bytes in the wrong direction") {
    c.buffers["O"].bytes = {64, 0, 0};
    CHECK(fa::differing_buffers(p, c) == std::vector<std::string>{"O"});
  }
  SECTION("a buffer without a prediction, and one that was not touched") {
    c.buffers["scratch"].bytes.read = 4;
    c.buffers.erase("O");
    CHECK(fa::differing_buffers(p, c) == std::vector<std::string>{"O", "scratch"});
  }
  SECTION("a predicted zero needs no count, a counted zero no prediction") {
    p["LSE"] = {};
    c.buffers["V"] = BufferCount{};
    CHECK(fa::differing_buffers(p, c).empty());
  }
}
