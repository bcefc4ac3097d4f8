#include "common/counts/counts.h"
#include "common/counts/format.h"
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

TEST_CASE("words are broken at the screen's end, and only long ones are cut", "[screen]") {
  const std::string a(30, 'a'), b(38, 'b'), more(81, 'm');
  CHECK(fa::wrapped("x: ", "one two", 2) == "x: one two\n");
  CHECK(fa::wrapped("x: ", "", 2) == "x:\n");
  CHECK(fa::wrapped("0123456789 ", a + " " + b, 2) == "0123456789 " + a + " " + b + "\n");  // 80
  CHECK(fa::wrapped("0123456789 ", a + " " + b + "b", 2) == "0123456789 " + a + "\n  " + b + "b\n");
  CHECK(fa::wrapped("", b + " " + b + " c d", 4) == b + " " + b + " c\n    d\n");
  CHECK(fa::wrapped("", b + " " + b + " c " + a, 4) == b + " " + b + " c\n    " + a + "\n");
  CHECK(fa::wrapped("", std::string(80, 'e') + " f", 4) == std::string(80, 'e') + "\n    f\n");
  CHECK(fa::wrapped("", more, 4) == std::string(80, 'm') + "\n    m\n");
  CHECK(fa::wrapped("x ", more, 4) == "x " + std::string(78, 'm') + "\n    mmm\n");
  // A word that fits in a line is not cut.
  CHECK(fa::wrapped("x ", b + " " + std::string(76, 'n'), 4) ==
        "x " + b + "\n    " + std::string(76, 'n') + "\n");
  CHECK(fa::labelled("note", "one") == "note      one\n");
  CHECK(fa::labelled("", b + " " + a + " c d") == "          " + b + " " + a + "\n          c d\n");
}

TEST_CASE("for a narrow terminal later lines stand further to the right", "[screen]") {
  CHECK(fa::fitted("one two\n", 7) == "one two\n");
  CHECK(fa::fitted("one two\n", 6) == "one\n  two\n");
  CHECK(fa::fitted("one two three\n", 7) == "one two\n  three\n");
  CHECK(fa::fitted("one two three\n\nfour", 11) == "one two\n  three\n\nfour\n");
  CHECK(fa::fitted("    one two three\n", 12) == "   one two\n     three\n");  // at most a quarter
  CHECK(fa::fitted("  one two three\n", 12) == "  one two\n    three\n");
}
