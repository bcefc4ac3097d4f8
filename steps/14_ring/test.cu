// Tests of step 14 in one process: its formulas, its merge, and ranks that are threads. Ranks
// started by mpirun: tests/programs/test_ranks.py.
#include "common/ranks/threads.h"
#include "steps/14_ring/3_backward.cuh"
#include "tests/attention.h"
#include "tests/harness/files.h"

using fa::test::bf16_problem;
using step14::Block, step14::Cut;

// fp32 and mma, and in a build for Hopper plain, heads, zigzag and fused.
static const std::vector<fa::Variant>& variants() {
  const auto is_14 = [](const fa::Step& s) { return s.id == "14_ring"; };
  return std::find_if(fa::linked_steps().begin(), fa::linked_steps().end(), is_14)->variants;
}
static bool has(const std::string& name) {
  const auto named = [&](const fa::Variant& v) { return "14 " + v.name == name; };
  return std::any_of(variants().begin(), variants().end(), named);
}
static const fa::Variant& zigzag() {
  return fa::linked_variant(has("14 zigzag") ? "14 zigzag" : "14 mma");  // mma is cut as zigzag
}

// The variant on this many ranks, as one that a session can run. Its backward runs the forward,
// too, whose buffers end with the ranks.
// \param sent      the bytes of each rank, or null
// \param busy_sms  that messages pretend to use
// \param times     how often the ranks run
static fa::Variant on_ranks(const fa::Variant& v, int ranks, std::vector<uint64_t>* sent = nullptr,
                            int busy_sms = 0, int times = 1) {
  fa::Variant several = v;
  several.workspace = nullptr;
  const fa::DType dtype = v.forward.dtype();
  several.forward = fa::Runner(dtype, [](const fa::Problem&, const fa::Tensors<void>&) {});
  several.backward = fa::Runner(
      dtype, [=, sharding = v.extras.sharding](const fa::Problem& p, const fa::Tensors<void>& t) {
        fa::run_on_threads(*sharding, ranks, p, t, sent, busy_sms, times);
      });
  return several;
}

TEST_CASE("step 14: every visible score is computed once, by the rank that has its row",
          "[step14]") {
  const Cut cut = GENERATE(Cut::plain, Cut::zigzag);
  const int ranks = GENERATE(1, 2, 3, 4, 8), N = GENERATE(16, 37, 64);
  const bool causal = GENERATE(false, true);
  std::vector<int> computed(N * N);
  std::vector<int> owned(N);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto whole = [&](int of, int local) {
      for (const fa::Rows& r : step14::rows_of(cut, N, of, ranks)) {
        if (local < r.size()) return r.begin + local;
        local -= r.size();
      }
      return -1;
    };
    const int rows = fa::count_rows(step14::rows_of(cut, N, rank, ranks));
    for (int r = 0; r < rows; ++r) ++owned[whole(rank, r)];
    uint64_t scores = 0;
    for (int hop = 0; hop < ranks; ++hop) {
      const int from = step14::forward_source(rank, hop, ranks);
      const Block b = step14::block_of(cut, N, causal, rank, from, ranks);
      scores += b.empty() ? 0 : step14::scores_of(b);
      for (int r = b.rows.begin; r < b.rows.end; ++r) {
        for (int c = b.keys.begin; c < b.keys.end; ++c) {
          if (b.causal && c - b.keys.begin > r - b.rows.begin) continue;
          ++computed[whole(rank, r) * N + whole(from, c)];
        }
      }
    }
    fa::Problem p = bf16_problem(N, N, 64, causal, /*B=*/2, /*H=*/3, /*Hkv=*/3);
    uint64_t predicted = 0;
    for (uint64_t s : step14::predict(cut, p, rank, ranks).scores) predicted += s;
    CHECK(predicted == 6 * scores);
  }
  CHECK(owned == std::vector<int>(N, 1));
  for (int r = 0; r < N; ++r) {
    for (int c = 0; c < N; ++c) {
      CAPTURE(r, c);
      REQUIRE(computed[r * N + c] == (causal && c > r ? 0 : 1));
    }
  }
}

TEST_CASE("step 14: with a causal mask zig-zag is fair in every hop", "[step14]") {
  const int ranks = GENERATE(2, 3, 4, 8), N = ranks * 2 * 16;
  const fa::Problem p = bf16_problem(N, N, 64, true);
  for (int hop = 1; hop < ranks; ++hop) {
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK(step14::predict(Cut::zigzag, p, rank, ranks).scores[hop] == 32 * 16);
    }
  }
  CHECK(step14::predict(Cut::plain, p, 0, ranks).scores[1] == 0);
}

TEST_CASE("step 14: both passes meet each rank's keys once, its own at the right time",
          "[step14]") {
  const int ranks = GENERATE(1, 2, 3, 8), rank = GENERATE_COPY(0, ranks - 1);
  std::vector<int> forward(ranks), backward(ranks);
  for (int hop = 0; hop < ranks; ++hop) {
    ++forward[step14::forward_source(rank, hop, ranks)];
    ++backward[step14::backward_source(rank, hop, ranks)];
  }
  CHECK(forward == std::vector<int>(ranks, 1));
  CHECK(backward == forward);
  CHECK(step14::forward_source(rank, 0, ranks) == rank);
  CHECK(step14::backward_source(rank, ranks - 1, ranks) == rank);
  CHECK(step14::backward_source(rank, 0, ranks) == step14::forward_source(rank, ranks - 1, ranks));
}

TEST_CASE("step 14: the merge is stable, and knows rows without a key", "[step14]") {
  const float inf = INFINITY;
  const auto same = step14::merge(3.f, 3.f);
  CHECK(same.LSE == Approx(3.f + std::log(2.f)));
  CHECK(same.old_weight == 0.5f);
  CHECK(same.new_weight == 0.5f);
  const auto far = step14::merge(-1000.f, 1000.f);  // exp(1000) overflows
  CHECK(far.LSE == 1000.f);
  CHECK(far.old_weight == 0.f);
  CHECK(far.new_weight == 1.f);
  const auto nothing_new = step14::merge(-5.f, -inf);
  CHECK(nothing_new.LSE == -5.f);
  CHECK(nothing_new.old_weight == 1.f);
  CHECK(nothing_new.new_weight == 0.f);
  const auto none = step14::merge(-inf, -inf);
  CHECK(none.LSE == -inf);
  CHECK(none.old_weight == 0.f);
  CHECK(none.new_weight == 0.f);
}

TEST_CASE("step 14: right on ranks that are threads", "[step14]") {
  struct Case {
    const char* variant;
    int ranks, d;
    bool causal;
    int N = 143;  // which no number of ranks divides
    int times = 1;
  };
  // plain has fp32 sums between the merges of more than two ranks. In fused, the late rows of ranks
  // 0 and 1 of 3 begin a tile of 128 rows if N = 770, and are read in place. The early chunk of
  // rank 1 of 3 is the larger one if N = 141.
  const Case c = GENERATE(Case{"14 fp32", 2, 64, true, 140}, Case{"14 fp32", 4, 128, false, 140},
                          Case{"14 mma", 2, 64, true, 143, 2}, Case{"14 mma", 3, 128, false},
                          Case{"14 plain", 4, 64, true}, Case{"14 heads", 2, 128, true, 143, 2},
                          Case{"14 heads", 3, 64, true}, Case{"14 zigzag", 1, 64, true},
                          Case{"14 zigzag", 3, 128, true}, Case{"14 zigzag", 3, 64, true, 141, 2},
                          Case{"14 fused", 2, 128, false}, Case{"14 fused", 3, 128, true, 143, 2},
                          Case{"14 fused", 2, 64, true}, Case{"14 fused", 3, 64, true, 770},
                          Case{"14 fused", 3, 128, true, 770});
  if (!has(c.variant)) return;
  const fa::Variant& v = fa::linked_variant(c.variant);
  const int ranks = c.ranks;
  CAPTURE(v.name, ranks, c.N, c.causal, c.d);
  const bool fp32 = v.forward.dtype() == fa::DType::f32;
  const bool heads = v.name == "heads";  // whose messages are per batch entry
  const int B = heads || (c.N < 200 && c.d == 64) ? 2 : 1;
  const int H = heads ? 2 * ranks : c.N < 200 ? 4 / B : 2;
  fa::Problem p = bf16_problem(c.N, c.N, c.d, c.causal, B, H, fp32 ? H : H / 2);
  p.dtype = v.forward.dtype();
  fa::test::require_right(on_ranks(v, ranks, nullptr, 0, c.times), p);
}

// Merging warps then alternate between the two places of Q, and reuse each.
TEST_CASE("step 14: right where a block has many work tiles", "[step14][all]") {
  if (!has("14 fused")) return;
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(2)) return;
  const fa::Problem p = bf16_problem(770, 770, 128, causal, 1, 4, 2);
  const fa::Variant& v = fa::linked_variant("14 fused");
  fa::test::require_right(on_ranks(v, 3, nullptr, p.gpu.sms - 1), p);
}

static const fa::Variant& variant_number(int i) { return variants()[i % variants().size()]; }

TEST_CASE("step 14: right for random problems and ranks", "[step14]") {
  std::mt19937 random(14);
  for (int i = 0; i < (FA_BACKEND_GPU ? 120 : 6); ++i) {
    const fa::Variant& v = variant_number(i);
    fa::Problem p = fa::test::random_problem(random);
    const int ranks = 2 + int(random() % 4);
    p.N = 2 * ranks + int(random() % (FA_BACKEND_GPU ? 150 : 80));
    if (!FA_BACKEND_GPU) p.B = 1;
    if (v.name == "fp32") p.N -= p.N % ranks, p.H = p.Hkv, p.dtype = fa::DType::f32;
    if (v.name == "heads") p.H = p.H / p.Hkv * ranks, p.Hkv = ranks;
    p.Nk = p.N;
    CAPTURE(v.name, fa::describe(p), ranks);
    v.extras.sharding->validate(p, ranks);
    fa::test::require_right(on_ranks(v, ranks), p);
  }
}

TEST_CASE("step 14: the sent bytes are those predicted", "[step14]") {
  const fa::Variant& v = variant_number(GENERATE(range(0, 6)));
  const int ranks = GENERATE(2, 3);  // of two, none has keys of another one to pass on backwards
  const bool fp32 = v.forward.dtype() == fa::DType::f32;
  const int N = fp32 ? 36 : 37;  // 37: no number of ranks divides it
  const int Hkv = v.name == "heads" ? ranks : 1;
  fa::Problem p = bf16_problem(N, N, 64, true, 2, fp32 ? Hkv : 2 * Hkv, Hkv);
  p.dtype = v.forward.dtype();
  CAPTURE(v.name, ranks);
  std::vector<uint64_t> sent;
  fa::run(on_ranks(v, ranks, &sent), p, fa::normal_inputs(p, 1));
  for (int rank = 0; rank < ranks; ++rank) {
    const fa::RankPrediction predicted = v.extras.sharding->predict(p, rank, ranks);
    CAPTURE(rank);
    CHECK(sent[rank] == predicted.forward_bytes + predicted.backward_bytes);
  }
}

#if !FA_BACKEND_GPU
TEST_CASE("step 14: the analysis finds nothing on ranks that are threads", "[step14][all]") {
  const fa::Variant& v = variant_number(GENERATE(range(0, 6)));
  const int some = GENERATE(2, 3);
  if (!fa::test::one_in(5)) return;
  // At d = 128 fused merges in its kernel; the middle one of three ranks reuses each buffer of Q.
  const bool inside = v.name == "fused", fp32 = v.forward.dtype() == fa::DType::f32;
  const int ranks = inside ? 3 : some, Hkv = v.name == "heads" || inside ? ranks : 1;
  const int N = fp32 ? 78 : 79;
  fa::Problem p = bf16_problem(N, N, inside ? 128 : 64, true, 1, Hkv, Hkv);
  p.dtype = v.forward.dtype();
  CAPTURE(v.name, ranks);
  const int busy_sms = inside ? p.gpu.sms - 1 : 0;
  fa::test::count_backward(on_ranks(v, ranks, nullptr, busy_sms), p, /*analyse=*/true);
}
#endif

TEST_CASE("step 14: one rank is the step that it takes its kernels from", "[step14]") {
  const fa::Problem p = bf16_problem(140, 140, 64, true, 1, 2, 1);
  fa::test::require_right(zigzag(), p);
}

TEST_CASE("step 14: what ranks cannot share is refused", "[step14]") {
  const auto said = [](const fa::Variant& v, int N, int ranks, int Hkv = 2) {
    return fa::test::refusal_of(
        [&] { v.extras.sharding->validate(bf16_problem(N, N, 64, true, 1, 2 * Hkv, Hkv), ranks); });
  };
  CHECK(said(zigzag(), 8, 4) == "accepted");
  CHECK(said(zigzag(), 7, 4) == "--n 7: 4 ranks need at least 8 rows");
  const fa::Variant& fp32 = fa::linked_variant("14 fp32");
  CHECK(said(fp32, 4, 4) == "accepted");
  CHECK(said(fp32, 3, 4) == "--n 3: 4 ranks need at least 4 rows");
  CHECK(said(fp32, 6, 4) == "--n 6: for 4 ranks this variant needs a multiple of 4");
  if (!has("14 heads")) return;
  CHECK(said(fa::linked_variant("14 plain"), 7, 4) == "accepted");
  const fa::Variant& heads = fa::linked_variant("14 heads");
  CHECK(said(heads, 7, 4, 4) == "accepted");
  CHECK(said(heads, 3, 4, 4) == "--n 3: 4 ranks need at least 4 rows");
  CHECK_THAT(said(heads, 7, 4), ContainsSubstring("--hkv 2: 4 ranks share the heads, so it must be "
                                                  "a multiple of 4"));
}

TEST_CASE("step 14: huge and tiny inputs that make the same scores", "[step14]") {
  for (const fa::Variant* v : {&fa::linked_variant("14 fp32"), &zigzag()}) {
    fa::test::require_any_scale(on_ranks(*v, 2), {});
  }
}
