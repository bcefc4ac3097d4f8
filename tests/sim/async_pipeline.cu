// The pattern of a Hopper attention kernel, complete and small, with one fault planted at a time: a
// producer thread fills a ring by TMA, a warpgroup multiplies, the result leaves through Q's tile
// by stmatrix and TMA, and the next work item's Q arrives in the same tile.
#include <map>
#include <random>

#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::Swizzle;
using fa::TensorMap;
using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

using bf16 = __nv_bfloat16;

constexpr int kRows = 64, kWidth = 64, kStages = 2, kTiles = 5, kItems = 3;
constexpr int kTileBytes = kRows * kWidth * 2;

enum class Fault {
  none,
  no_q_wait,          // the consumer does not wait for Q
  no_full_wait,       // nor for a tile of K
  no_empty_wait,      // the producer does not wait for an empty stage
  empty_too_early,    // the consumer hands a stage back before its wgmma_wait
  one_group_early,    // its wait leaves the last product running
  o_too_early,        // O is staged while wgmma may still read Q
  no_proxy_fence,     // stmatrix, then TMA
  late_proxy_fence,   // only by the thread that issues the store
  no_store_barrier,   // TMA may store what three warps have not written yet
  no_read_wait,       // Q is loaded while TMA may still read O
  no_last_wait,       // the block ends while TMA may still read O
  one_tile_too_many,  // the producer loads a tile without a wait for it
};

struct Memory {
  alignas(1024) char q[kTileBytes];
  alignas(1024) char k[kStages][kTileBytes];
  uint64_t q_full, q_empty, full[kStages], empty[kStages];
};

__device__ void produce(Memory& s, const TensorMap* map_q, const TensorMap* map_k, Fault fault) {
  for (int item = 0, n = 0; item < kItems; ++item) {
    fa::mbarrier_wait(&s.q_empty, (item & 1) ^ 1);
    fa::mbarrier_arrive_expect_tx(&s.q_full, kTileBytes);
    fa::tma_load(s.q, map_q, &s.q_full, {0, item * kRows});
    const bool last = item == kItems - 1;
    const int tiles = kTiles + (fault == Fault::one_tile_too_many && last);
    for (int j = 0; j < tiles; ++j, ++n) {
      const int stage = n % kStages;
      if (fault != Fault::no_empty_wait) fa::mbarrier_wait(&s.empty[stage], (n / kStages & 1) ^ 1);
      fa::mbarrier_arrive_expect_tx(&s.full[stage], kTileBytes);
      fa::tma_load(s.k[stage], map_k, &s.full[stage], {0, j % kTiles * kRows});
    }
  }
}

__device__ void consume(Memory& s, const TensorMap* map_o, Fault fault) {
  const int t = threadIdx.x % 128, warp = t / 32, lane = t % 32;
  const uint64_t q = fa::wgmma_descriptor(s.q, Swizzle::b128, 16, 1024);
  const uint64_t k = fa::wgmma_descriptor(s.k[0], Swizzle::b128, 16, 1024);
  const auto release = [&](uint64_t* bar) {
    if (lane == 0) fa::mbarrier_arrive(bar);
  };
  for (int item = 0, n = 0; item < kItems; ++item) {
    if (fault != Fault::no_q_wait) fa::mbarrier_wait(&s.q_full, item & 1);
    float o[kWidth / 2] = {};
    for (int j = 0; j < kTiles; ++j, ++n) {
      const int stage = n % kStages;
      if (fault != Fault::no_full_wait) fa::mbarrier_wait(&s.full[stage], n / kStages & 1);
      fa::wgmma_fence();
      UNROLL
      for (int step = 0; step < kWidth / 16; ++step) {
        fa::wgmma(o, fa::wgmma_advance(q, step * 32),
                  fa::wgmma_advance(k, stage * kTileBytes + step * 32));
      }
      fa::wgmma_commit();
      if (fault == Fault::empty_too_early) release(&s.empty[stage]);
      if (fault == Fault::one_group_early) {
        fa::wgmma_wait<1>();
      } else if (fault != Fault::o_too_early || j < kTiles - 1) {
        fa::wgmma_wait<0>();
      }
      if (fault != Fault::empty_too_early) release(&s.empty[stage]);
    }
    // Lane 16 h + r holds the address of row r, chunk h of a 16 x 16 piece.
    char* row = s.q + (warp * 16 + lane % 16) * 128;
    UNROLL
    for (int i = 0; i < kWidth / 16; ++i) {
      const int chunk = (2 * i + lane / 16) ^ (lane % 8);
      uint32_t r[4] = {};
      if (fault != Fault::o_too_early && fault != Fault::one_group_early) {
        for (int h = 0; h < 4; ++h) r[h] = fa::pack_bf16(o[8 * i + 2 * h], o[8 * i + 2 * h + 1]);
      }
      fa::stmatrix_x4(row + chunk * 16, r);
    }
    if (fault != Fault::no_proxy_fence && fault != Fault::late_proxy_fence) fa::fence_proxy_async();
    if (fault != Fault::no_store_barrier) fa::bar_sync(1, 128);
    if (t == 0) {
      if (fault == Fault::late_proxy_fence) fa::fence_proxy_async();
      fa::tma_store(map_o, s.q, {0, item * kRows});
      fa::tma_store_commit();
      const bool wait =
          fault != Fault::no_read_wait && (fault != Fault::no_last_wait || item < kItems - 1);
      if (wait) fa::tma_store_wait_read<0>();
      fa::mbarrier_arrive(&s.q_empty);
    }
  }
}

// O = Q (K_0 + K_1 + ...)^T for each item's Q.
__global__ void __launch_bounds__(256, 1)
    pipeline(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
             const __grid_constant__ TensorMap map_o, Fault fault) {
  Memory& s = *fa::dynamic_shared<Memory>();
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&s.q_full, 1);
    fa::mbarrier_init(&s.q_empty, 1);
    for (int i = 0; i < kStages; ++i) {
      fa::mbarrier_init(&s.full[i], 1);
      fa::mbarrier_init(&s.empty[i], 4);  // one arrival per warp
    }
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    fa::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) produce(s, &map_q, &map_k, fault);
  } else {
    fa::setmaxnreg_inc<232>();
    consume(s, &map_o, fault);
  }
}

struct Run {
  Run()
      : Q("Q", kItems * kRows * kWidth),
        K("K", kTiles * kRows * kWidth),
        O("O", kItems * kRows * kWidth) {
    std::mt19937 rng(1);
    for (auto* x : {&q, &k}) {
      x->resize((x == &q ? kItems : kTiles) * kRows * kWidth);
      for (bf16& e : *x) e = bf16(static_cast<float>(static_cast<int>(rng() % 3) - 1));
    }
    Q.upload(q);
    K.upload(k);
  }
  void start(Fault fault = Fault::none) {
    const auto map = [](bf16* p, uint64_t rows) {
      return fa::tensor_map(p, {{kWidth, 1, kWidth}, {rows, kWidth, kRows}}, Swizzle::b128);
    };
    fa::launch(pipeline, {1, 256, sizeof(Memory)}, map(Q, kItems * kRows), map(K, kTiles * kRows),
               map(O, kItems * kRows), fault);
  }
  // Integers: exact in fp32, then rounded once.
  bool right() const {
    const auto o = O.download();
    for (int r = 0; r < kItems * kRows; ++r) {
      for (int c = 0; c < kRows; ++c) {
        float want = 0;
        for (int j = 0; j < kTiles; ++j) {
          for (int x = 0; x < kWidth; ++x) {
            want += static_cast<float>(q[r * kWidth + x]) *
                    static_cast<float>(k[(j * kRows + c) * kWidth + x]);
          }
        }
        if (o[r * kWidth + c].bits != bf16(want).bits) return false;
      }
    }
    return true;
  }
  std::vector<bf16> q, k;
  Buffer<bf16> Q, K, O;
};

}  // namespace

TEST_CASE("a warp-specialised pipeline is right and has no finding", "[sim][races][async]") {
  Run run;
  const bool analyse = GENERATE(false, true);
  WithOptions with({.requests = analyse, .analyse = analyse});
  SILENT([&] { run.start(); });
  CHECK(run.right());
}

TEST_CASE("TMA and wgmma have rows with their wavefronts of shared memory", "[sim][requests]") {
  const bool races = GENERATE(false, true);
  Run run;
  const auto count = [&](bool sites) {
    WithOptions with({.requests = true, .sites = sites, .analyse = races});
    return sim::test::counted([&] { run.start(); });
  };
  const fa::Counts without = count(false), counts = count(true);
  CHECK(without.sites.empty());
  std::map<std::string, std::vector<fa::SiteCount>> rows;
  for (const fa::SiteCount& s : counts.sites) rows[s.what].push_back(s);
  const auto check = [&](const std::string& what, size_t lines, uint64_t n, uint64_t wavefronts) {
    CAPTURE(what);
    REQUIRE(rows[what].size() == lines);
    fa::SiteCount sum;
    for (const fa::SiteCount& s : rows[what]) {
      CHECK_THAT(s.where, ContainsSubstring("async_pipeline.cu:"));
      CHECK(s.ideal == s.transfers);
      CHECK(s.clocks == 0);  // the estimate leaves them out
      sum.requests += s.requests;
      sum.transfers += s.transfers;
    }
    CHECK(sum.requests == n);
    CHECK(sum.transfers == wavefronts);
  };
  constexpr int kProducts = kItems * kTiles * kWidth / 16;
  check("shared wgmma", 1, kProducts, kProducts * (16 + kRows / 4));
  check("shared TMA load", 2, kItems * (1 + kTiles), kItems * (1 + kTiles) * kTileBytes / 128);
  check("shared TMA store", 1, kItems, kItems * kTileBytes / 128);
  // Counts that need no rows are unchanged.
  const fa::KernelCount &a = without.kernels[0], &b = counts.kernels[0];
  CHECK(b.wgmma_wavefronts == kProducts * (16 + kRows / 4));
  CHECK(a.wgmma_wavefronts == b.wgmma_wavefronts);
  CHECK(b.work[0].wgmma_columns == kProducts * kRows);
  CHECK(counts.tensor_flops == uint64_t{kProducts} * 2 * 64 * kRows * 16);
  CHECK(a.shared_wavefronts == b.shared_wavefronts);
  CHECK(a.shared_requests == b.shared_requests);
  CHECK(a.work[0].wavefronts == b.work[0].wavefronts);
  CHECK(a.work[0].latency == b.work[0].latency);
}

ANALYSED("each fault planted in the pipeline is found", "[sim][races][async]") {
  Run run;
  const std::pair<Fault, std::string> faults[] = {
      {Fault::no_q_wait,
       "wgmma that reads s.q[0], byte 0 ... a TMA load by thread (0,0,0) ... no wait on its "
       "mbarrier"},
      {Fault::no_full_wait,
       "wgmma that reads s.k[0][0], byte 8192 ... a TMA load by thread (0,0,0) ... no wait on its "
       "mbarrier"},
      {Fault::no_empty_wait, "one arrival too many: mbarrier.arrive.expect_tx"},
      {Fault::empty_too_early,
       "TMA load into s.k[ ... a wgmma by the warpgroup of thread (128,0,0) ... no order "
       "(wgmma_wait, then a barrier or an mbarrier) between them: it is overwritten too early"},
      {Fault::one_group_early,
       "TMA load into s.k[ ... a wgmma by the warpgroup of thread (128,0,0) ... no order "
       "(wgmma_wait, then a barrier or an mbarrier) between them: it is overwritten too early"},
      {Fault::o_too_early,
       "store of s.q[0], byte 0 of dynamic shared memory ... a wgmma by the warpgroup of thread "
       "(128,0,0) ... no wgmma_wait between them"},
      {Fault::no_proxy_fence,
       "TMA store that reads s.q[0], byte 0 of dynamic shared memory ... a store by thread "
       "(128,0,0) ... no fence.proxy.async (fence_proxy_async) between them"},
      {Fault::late_proxy_fence,
       "TMA store that reads ... a store by thread ( ... no fence.proxy.async (fence_proxy_async "
       "by the storing thread, before the barrier)"},
      {Fault::no_store_barrier,
       "TMA store that reads ... a store by thread (144,0,0) ... no barrier between them"},
      {Fault::no_read_wait,
       "TMA load into s.q[0], byte 0 ... a TMA store by thread (128,0,0) ... no order "
       "(tma_store_wait_read, then a barrier or an mbarrier) between them: it is overwritten too "
       "early"},
      {Fault::no_last_wait,
       "thread (128,0,0) returns while its TMA store at async_pipeline.cu: ... "
       "tma_store_wait_read<0>() must come first"},
      {Fault::one_tile_too_many,
       "block (0,0,0) ends without a wait for a TMA load by thread (0,0,0) at async_pipeline.cu:"}};
  for (const auto& [fault, pattern] : faults) FOUND(pattern, [&] { run.start(fault); });
}
