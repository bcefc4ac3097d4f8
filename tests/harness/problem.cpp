#include "common/harness/problem.h"
#include <bit>

#include "common/harness/tiles.h"

#include "tests/harness/files.h"
#include "tests/masks.h"
#include "tests/test.h"

using fa::DType;
using fa::Problem;
using fa::Support;

namespace {

std::string refusal(const Problem& p, const Support& support = {}) {
  return fa::test::refusal_of([&] { fa::validate(p, support); });
}

}  // namespace

TEST_CASE("bf16 rounds to nearest even", "[problem]") {
  auto bf16 = [](float x) { return fa::round_to(DType::bf16, x); };
  CHECK(bf16(1.0f) == 1.0f);
  CHECK(bf16(1.0f + 0x1p-8f) == 1.0f);                // a tie: 1 is even
  CHECK(bf16(1.0f + 3 * 0x1p-8f) == 1.0f + 0x1p-6f);  // a tie: upwards to even
  CHECK(bf16(1.0f + 0x1.02p-8f) == 1.0f + 0x1p-7f);   // just above a tie
  CHECK(bf16(-3.14159f) == -3.140625f);
  CHECK(bf16(3.4e38f) == INFINITY);
  CHECK(bf16(-INFINITY) == -INFINITY);
  CHECK(std::isnan(bf16(NAN)));
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
    CHECK(std::isnan(bf16(std::bit_cast<float>(bits))));
  }
  CHECK(fa::round_to(DType::f32, 1.0f + 0x1p-23f) == 1.0f + 0x1p-23f);
}

TEST_CASE("e4m3 rounds to nearest even, saturates at 448 and keeps NaN", "[problem]") {
  auto e4m3 = [](float x) { return fa::round_to(DType::e4m3, x); };
  CHECK(e4m3(448) == 448);
  CHECK(e4m3(1e9f) == 448);
  CHECK(e4m3(-INFINITY) == -448);
  CHECK(e4m3(17) == 16);  // between 16 and 18: a tie, to even
  CHECK(e4m3(19) == 20);  // between 18 and 20: a tie, to even
  CHECK(e4m3(0.3f) == 0.3125f);
  CHECK(e4m3(0x1p-9f) == 0x1p-9f);  // the smallest subnormal
  CHECK(e4m3(0x1p-10f) == 0);       // half of it: a tie, to even
  CHECK(e4m3(-0x1.8p-10f) == -0x1p-9f);
  CHECK(std::isnan(e4m3(NAN)));
  // Every representable value rounds to itself, and there are 2 * 127 of them with both zeros.
  int values = 0;
  for (int exponent = 0; exponent < 16; ++exponent) {
    for (int mantissa = 0; mantissa < 8; ++mantissa) {
      if (exponent == 15 && mantissa == 7) continue;  // NaN
      const float x = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                    : std::ldexp(float(8 + mantissa), exponent - 10);
      CHECK(e4m3(x) == x);
      CHECK(e4m3(-x) == -x);
      ++values;
    }
  }
  CHECK(values == 127);
}

TEST_CASE("the closed form of the visible scores is their number", "[problem]") {
  Problem p;
  p.causal = GENERATE(false, true);
  p.N = GENERATE(1, 5, 64, 100);
  p.Nk = GENERATE(1, 5, 63, 257);
  CAPTURE(p.causal, p.N, p.Nk);
  uint64_t count = 0;
  for (int r = 0; r < p.N; ++r) {
    int visible = 0;
    for (int c = 0; c < p.Nk; ++c) visible += !p.causal || c <= r + p.Nk - p.N;
    CHECK(p.visible(r) == visible);
    count += visible;
  }
  CHECK(p.visible_scores() == count);
}

TEST_CASE("more visible scores than an int holds", "[problem]") {
  Problem p;
  p.causal = GENERATE(false, true);
  p.N = 2, p.Nk = 2'000'000'000;
  CHECK(p.visible_scores() == 4'000'000'000u - p.causal);
}

TEST_CASE("FLOPs follow FlashAttention's convention", "[problem]") {
  Problem p;
  p.B = 2, p.H = 3, p.N = 10, p.Nk = 20, p.d = 32;
  CHECK(p.flops_forward() == 4.0 * 2 * 3 * 10 * 20 * 32);
  CHECK(p.flops_backward() == 2.5 * p.flops_forward());
  p.causal = true;
  CHECK(p.flops_forward() == 2.0 * 2 * 3 * 10 * 20 * 32);
}

TEST_CASE("query heads of a group read the same K/V head", "[problem]") {
  Problem p;
  p.B = 2, p.H = 6, p.Hkv = 2;
  const size_t want[] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3};
  for (size_t bh = 0; bh < p.heads(); ++bh) CHECK(p.kv_head_of(bh) == want[bh]);
}

TEST_CASE("a refusal names the flag, its value and what is supported", "[problem]") {
  Support all;
  all.gqa = all.cross = all.lengths = all.pages = all.score_mod = true;
  all.window = all.documents = true;
  struct Row {
    void (*change)(Problem&);
    std::string said;
    Support support = {};
  };
#define REFUSED(change, ...)                \
  Row {                                     \
    [](Problem& p) { change; }, __VA_ARGS__ \
  }
  const std::string product = ": their product must be at most 65535, the size of a CUDA grid";
  const std::string pages = ": this step supports pages of 16, 32, 64, 128 or 256 keys";
  const std::string one_each = ": must be one for each batch entry, --b ";
  const std::string heads = "as many key/value heads as query heads (--h 4)";
  const std::string only = ": this step supports only ", least = ": must be at least 1";
  const std::string scores = ": this step changes no scores",
                    most = ": at most 268435456 is supported";
  const std::string no_mask = ": this step has no such mask";
  const std::string multiple = ": --h 4 must be a multiple of it";
  const std::string lengths = ": each must be 0 to 1024, the keys of --nk",
                    sevens = "7,7,7,7,7,7,7,7";
  const Row rows[] = {
      REFUSED((void)p, "accepted"), REFUSED(p.N = 0, "--n 0" + least),
      REFUSED(p.B = -1, "--b -1" + least), REFUSED(p.H = 0, "--h 0" + least),
      REFUSED(p.Hkv = 0, "--hkv 0" + least), REFUSED(p.Nk = 0, "--nk 0" + least),
      REFUSED(p.d = 80, "--d 80: this step supports --d 32, 64, 96, 128"),
      REFUSED(p.Hkv = 2, "accepted", all), REFUSED(p.Hkv = 2, "--hkv 2" + only + heads),
      REFUSED(p.Hkv = 3, "--hkv 3" + multiple, all), REFUSED(p.Hkv = 8, "--hkv 8" + multiple, all),
      REFUSED(p.Nk = 77, "accepted", all),
      REFUSED(p.Nk = 77, "--nk 77" + only + "as many keys as queries (--n 1024)"),
      REFUSED(p.method.smem = 7, "--smem 7: the tiles of this step have a fixed size"),
      REFUSED(p.score_mod.cap = 2.5f, "--cap 2.5" + scores),
      REFUSED(p.score_mod.alibi = true, "--alibi" + scores),
      REFUSED(p.score_mod.sinks = true, "--sinks" + scores),
      REFUSED(p.score_mod.cap = 1e30f, "--cap 1e+30: must be 0, for none, or 2^-20 to 2^20", all),
      REFUSED(p.cache.lengths = {0},
              "--lengths 0" + only + "as many keys in each batch entry (--nk 1024)"),
      REFUSED(p.cache.lengths.assign({1, 2, 3}), "--lengths 1,2,3" + one_each + "1", all),
      REFUSED(p.cache.lengths.assign(8, 7), "--lengths " + sevens + one_each + "1", all),
      REFUSED((p.B = 20, p.cache.lengths.assign(19, 7)),
              "--lengths " + sevens + ",..." + one_each + "20", all),
      REFUSED(p.cache.lengths = {1025}, "--lengths 1025" + lengths, all),
      REFUSED(p.cache.lengths = {-1}, "--lengths -1" + lengths, all),
      REFUSED(p.cache.page = 64, "--page 64: this step has no paged cache"),
      REFUSED(p.mask.left = 3, "--window 3,-1" + no_mask),
      REFUSED((p.mask.row_starts = p.mask.key_starts = {0, 1024}),
              "--lengths of 1 documents" + no_mask),
      REFUSED(p = fa::test::with_random_predicate(p, 3), "--mask random" + no_mask),
      REFUSED((p.mask.left = -2, p.mask.right = 0),
              "--window -2,0: each must be 0 to 268435456, or -1 for no limit", all),
      REFUSED((p.mask.row_starts = p.mask.key_starts = {0, 1000}),
              "--lengths: the documents must fill --n 1024, one after the other", all),
      REFUSED((p.mask.row_starts = {0, 5, 1024}, p.mask.key_starts = {0, 1024}),
              "--lengths: 2 documents of rows and 1 of keys", all),
      REFUSED(p.cache.page = 48, "--page 48" + pages, all),
      REFUSED(p.N = 17, "--n 17: this step supports at most 16 queries",
              Support{.cross = true, .most_n = 16}),
      // Sizes that would overflow; in the last ones a product of ints.
      REFUSED(p.N = p.Nk = 1 << 29, "--n 536870912" + most),
      REFUSED(p.Nk = (1 << 28) + 1, "--nk 268435457" + most, all),
      REFUSED(p.N = p.Nk = 1 << 28,
              "--b 1 --h 4 --n 268435456 --nk 268435456: b * h * n * nk must be at most 2^53, so "
              "that byte counts fit 64 bits"),
      REFUSED(p.B = 65536, "--b 65536 --h 4" + product),
      REFUSED(p.B = p.H = p.Hkv = 65536, "--b 65536 --h 65536" + product)};
#undef REFUSED
  for (const auto& [change, said, support] : rows) {
    Problem p;
    change(p);
    CHECK(refusal(p, support) == said);
  }
  Problem p;
  p.d = 48;
  CHECK(fa::test::refusal_of([&] { fa::validate(p, Support{.d = {64}}, "variant x"); }) ==
        "--d 48: variant x supports --d 64");
}

TEST_CASE("validate accepts each limit and refuses what lies one past it", "[problem]") {
  Support all;
  all.gqa = all.cross = all.lengths = all.pages = all.window = all.documents = all.score_mod = true;
  const auto require = [&](bool accepted, auto change) {
    Problem p;
    p.B = 2, p.H = p.Hkv = 1, p.N = p.Nk = 8;
    change(p);
    const std::string said = refusal(p, all);
    CAPTURE(said);
    CHECK((said == "accepted") == accepted);
  };
  require(true, [](Problem& p) { p.B = 13107, p.H = 5; });  // 65535 heads
  require(false, [](Problem& p) { p.B = 1 << 15, p.H = 2; });
  require(true, [](Problem& p) { p.N = 1 << 28; });
  require(false, [](Problem& p) { p.N = (1 << 28) + 1; });
  require(true, [](Problem& p) { p.Nk = 1 << 28; });
  require(false, [](Problem& p) { p.Nk = (1 << 28) + 1; });
  require(true, [](Problem& p) { p.N = p.Nk = 1 << 26; });  // 2^53 scores
  require(false, [](Problem& p) { p.N = p.Nk = 1 << 26, p.N += 1; });
  for (const float cap : {0.f, 0x1p-20f, 1.f, 0x1p20f}) {
    require(true, [=](Problem& p) { p.score_mod.cap = cap; });
  }
  for (const float cap : {1e-30f, 0x1.fffffep-21f, 0x1.000002p20f, 1e30f, -1.f, -1e-30f, NAN}) {
    CAPTURE(cap);
    require(false, [=](Problem& p) { p.score_mod.cap = cap; });
  }
  for (const int length : {-1, 0, 8, 9}) {
    require(length >= 0 && length <= 8, [=](Problem& p) { p.cache.lengths = {1, length}; });
  }
  for (int page = -1; page <= 512; ++page) {
    const bool right = page == 0 || (page >= 16 && page <= 256 && (page & (page - 1)) == 0);
    require(right, [=](Problem& p) { p.cache.page = page; });
  }
  for (const int limit : {-2, -1, 0, 1 << 28, (1 << 28) + 1}) {
    require(limit >= -1 && limit <= 1 << 28, [=](Problem& p) { p.mask.left = limit; });
    require(limit >= -1 && limit <= 1 << 28, [=](Problem& p) { p.mask.right = limit; });
  }
  using Starts = std::vector<int>;
  for (const auto& [starts, right] :
       {std::pair(Starts{0, 8}, true), std::pair(Starts{0, 0, 5, 8, 8}, true),
        std::pair(Starts{1, 8}, false), std::pair(Starts{0, 7}, false),
        std::pair(Starts{0, 9}, false), std::pair(Starts{0, 5, 4, 8}, false)}) {
    require(right, [&, s = starts](Problem& p) {
      p.mask.row_starts = s, p.mask.key_starts.assign(s.size(), 0), p.mask.key_starts.back() = 8;
    });
    require(right, [&, s = starts](Problem& p) {
      p.mask.key_starts = s, p.mask.row_starts.assign(s.size(), 0), p.mask.row_starts.back() = 8;
    });
  }
  all.most_n = 8;
  require(true, [](Problem& p) { p.N = 8; });
  require(false, [](Problem& p) { p.N = 9; });
}

TEST_CASE("describe leaves out what is at its default meaning", "[problem]") {
  Problem p;
  CHECK(fa::describe(p) == "B=1 H=4 N=1024 d=64 fp32");
  p.causal = true, p.Hkv = 2, p.Nk = 99, p.dtype = DType::bf16;
  CHECK(fa::describe(p) == "B=1 H=4 Hkv=2 N=1024 Nk=99 d=64 causal bf16");
  p = {};
  p.B = 3, p.N = 1, p.dtype = DType::bf16, p.cache.lengths = {1024, 3, 700}, p.cache.page = 64;
  CHECK(fa::describe(p) == "B=3 H=4 N=1 Nk=1024 d=64 lengths=3..1024 page=64 bf16");
  p.cache.lengths = {5, 5, 5}, p.cache.page = 0, p.cache.fp8 = true;
  CHECK(fa::describe(p) == "B=3 H=4 N=1 Nk=1024 d=64 lengths=5 bf16 fp8 cache");
  p = {};
  p.score_mod = {2.5f, true, true}, p.method.smem = 512;
  CHECK(fa::describe(p) == "B=1 H=4 N=1024 d=64 cap=2.5 alibi sinks smem=512 fp32");
  p = {};
  p.mask.left = 3;
  CHECK(fa::describe(p) == "B=1 H=4 N=1024 d=64 window=3,-1 fp32");
  CHECK(fa::describe(fa::test::with_random_predicate({}, 5)) ==
        "B=1 H=4 N=1024 d=64 mask=random:5 fp32");
}

TEST_CASE("the size of a tile becomes a template argument, or an error", "[problem]") {
  int chosen = 0;
  fa::dispatch_tile<32, 64>(64, [&](auto n) { chosen = n; });
  CHECK(chosen == 64);
  CHECK_THROWS_AS((fa::dispatch_tile<32, 64>(48, [&](auto n) { chosen = n; })), std::logic_error);
  CHECK(chosen == 64);
}

TEST_CASE("each batch entry sees its own keys", "[problem]") {
  Problem p;
  p.B = 3, p.N = 2, p.Nk = 7, p.cache.lengths = {0, 1, 7};
  for (size_t b = 0; b < 3; ++b) {
    CHECK(p.keys_of(b) == p.cache.lengths[b]);
    for (int r = 0; r < 2; ++r) CHECK(p.visible(r, b) == p.cache.lengths[b]);
  }
  p.causal = true;  // aligned to the last key of the entry
  const int want[3][2] = {{0, 0}, {0, 1}, {6, 7}};
  for (size_t b = 0; b < 3; ++b) {
    for (int r = 0; r < 2; ++r) CHECK(p.visible(r, b) == want[b][r]);
  }
  CHECK(p.flops_forward() == 4.0 * 4 * 2 * 64 * (0 + 1 + 7) / 2);
  p.cache.page = 16;
  CHECK(p.pages() == 1);
  p.Nk = 17;
  CHECK(p.pages() == 2);
}

TEST_CASE("slopes of ALiBi are powers of two of the head", "[problem]") {
  for (int h = 0; h < 8; ++h) CHECK(fa::alibi_slope(h, 8) == std::ldexp(1.0, -h - 1));
  CHECK(fa::alibi_slope(1, 4) == 0x1p-4);
  CHECK(fa::alibi_slope(15, 16) == 0x1p-8);
}
