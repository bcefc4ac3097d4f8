#include "common/harness/inputs.h"
#include "common/counts/files.h"

#include <cmath>
#include <filesystem>
#include <set>

#include "common/harness/npy.h"
#include "tests/harness/files.h"
#include "tests/test.h"

using fa::DType;
using fa::Problem;
using fa::test::bytes_of, fa::test::Folder, fa::test::header_of, fa::test::npy_file;
using fa::test::refusal_of;

namespace {

struct Moments {
  double mean = 0, variance = 0, kurtosis = 0;
};
Moments moments(const std::vector<float>& a) {
  Moments m;
  const auto n = static_cast<double>(a.size());
  for (const float x : a) m.mean += x / n;
  for (const float x : a) m.variance += (x - m.mean) * (x - m.mean) / n;
  for (const float x : a) m.kurtosis += std::pow(x - m.mean, 4) / (n * m.variance * m.variance);
  return m;
}

double correlation(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum / static_cast<double>(a.size());
}

std::string shipped_data(const std::string& name) {
  return (std::filesystem::path(__FILE__).parent_path() / "../../common/data" / name).string();
}

std::string refusal(const fa::InputFiles& files) {
  return refusal_of([&] { fa::problem_of(files, {}); });
}

}  // namespace

TEST_CASE("normal inputs are N(0,1), independent, and the same on every machine", "[inputs]") {
  Problem p;
  const fa::Inputs in = fa::normal_inputs(p, 1);
  for (const auto* tensor : {&in.Q, &in.K, &in.V, &in.dO}) {
    const Moments m = moments(*tensor);
    CHECK(std::abs(m.mean) < 0.01);
    CHECK(m.variance == Approx(1).margin(0.02));
    CHECK(m.kurtosis == Approx(3).margin(0.1));
  }
  CHECK(std::abs(correlation(in.Q, in.K)) < 0.01);
  CHECK(std::abs(correlation(in.K, in.V)) < 0.01);
  CHECK(std::abs(correlation(in.V, in.dO)) < 0.01);
  CHECK(in.note.empty());

  CHECK(fa::normal_inputs(p, 1).dO == in.dO);
  CHECK(std::abs(correlation(in.Q, fa::normal_inputs(p, 2).Q)) < 0.01);
  // Recorded once: another library, compiler or machine must agree.
  CHECK(in.Q[0] == -1.2887725830078125f);
  CHECK(in.V[100] == 0.1934051513671875f);
}

TEST_CASE("the inputs of a seed are exactly these, of each kind", "[inputs]") {
  Problem p;
  p.B = 2, p.H = 6, p.Hkv = 3, p.N = 20, p.Nk = 30, p.d = 96, p.dtype = DType::bf16;
  p.score_mod.sinks = true;
  p.cache.lengths = {30, 17};
  const auto digests = [](const fa::Inputs& in) {
    std::vector<double> sums;
    for (const auto* t : {&in.Q, &in.K, &in.V, &in.dO, &in.sinks}) {
      double sum = 0;
      for (size_t i = 0; i < t->size(); ++i)
        sum += (*t)[i] * static_cast<double>(1 + i * 7919 % 13);
      sums.push_back(sum);
    }
    return sums;
  };
  const auto require = [&](const fa::Inputs& in, const std::vector<double>& want) {
    const std::vector<double> got = digests(in);
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i, got[i]);
      CHECK(got[i] == Approx(want.at(i)).epsilon(1e-9));
    }
  };
  require(fa::normal_inputs(p, 3),
          {1300.2963562012, -174.142868042, -1797.002822876, 796.7388763428, -4.6519317627});
  require(fa::outlier_inputs(p, 3),
          {1612.7792663574, -302.9318695068, -2031.7507476807, 796.7388763428, -4.6519317627});
  require(fa::real_inputs(p, 3),
          {-1793.0179080963, 2668.4006767273, 2815.6089406013, 796.7388763428, -4.6519317627});
  CHECK(fa::normal_inputs(p, 3).sinks != fa::normal_inputs(p, 4).sinks);
  p.cache.page = 16;
  CHECK(fa::shuffled_table(p, 5) == std::vector<int>{1, 0, 2, 3});
  p.B = 5, p.cache.lengths = {30, 0, 1, 16, 17};
  CHECK(fa::shuffled_table(p, 6) == std::vector<int>{2, 1, -1, -1, 5, -1, 4, -1, 3, 0});
}

TEST_CASE("a forward's inputs are a backward's without dO", "[inputs]") {
  Problem p;
  p.N = p.Nk = 20;
  for (const auto make : {fa::normal_inputs, fa::outlier_inputs, fa::real_inputs}) {
    const fa::Inputs all = make(p, 3, true), some = make(p, 3, false);
    CHECK(some.dO.empty());
    CHECK_FALSE(all.dO.empty());
    CHECK(some.Q == all.Q);
    CHECK(some.K == all.K);
    CHECK(some.V == all.V);
  }
}

TEST_CASE("a longer problem starts with the numbers of a shorter one", "[inputs]") {
  Problem small, large;
  small.H = small.Hkv = 1, small.N = small.Nk = 100;
  large.H = large.Hkv = 1;
  const auto a = fa::normal_inputs(small, 3).Q, b = fa::normal_inputs(large, 3).Q;
  CHECK(std::equal(a.begin(), a.end(), b.begin()));
}

TEST_CASE("inputs are rounded to the problem's type", "[inputs]") {
  Problem p;
  p.N = p.Nk = 64;
  p.dtype = GENERATE(DType::bf16, DType::e4m3);
  for (const fa::Inputs& in :
       {fa::normal_inputs(p, 1), fa::outlier_inputs(p, 1), fa::real_inputs(p, 1)}) {
    for (const auto* tensor : {&in.Q, &in.K, &in.V, &in.dO}) {
      for (const float x : *tensor) REQUIRE(x == fa::round_to(p.dtype, x));
    }
  }
}

TEST_CASE("one element in a thousand is an outlier", "[inputs]") {
  Problem p;
  const fa::Inputs in = fa::outlier_inputs(p, 1);
  for (const auto* tensor : {&in.Q, &in.K, &in.V}) {
    CHECK(moments(*tensor).variance == Approx(1 + 100 * 0.001).margin(0.04));
    const auto n = static_cast<double>(tensor->size());
    double large = 0;
    for (const float x : *tensor) large += std::abs(x) > 6;
    CHECK(large / n == Approx(0.001 * std::erfc(6 / std::sqrt(2 * 101.0))).epsilon(0.3));
  }
  CHECK(moments(in.dO).variance == Approx(1).margin(0.02));
}

TEST_CASE("the default problem's real input is the shipped files themselves", "[inputs]") {
  const fa::Inputs in = fa::real_inputs({}, 1);
  CHECK(in.note.empty());
  CHECK(in.Q == fa::read_npy(shipped_data("q.npy")).data);
  CHECK(in.K == fa::read_npy(shipped_data("k.npy")).data);
  CHECK(in.V == fa::read_npy(shipped_data("v.npy")).data);
  CHECK(moments(in.dO).variance == Approx(1).margin(0.02));
  double largest = 0;  // trained attention is peaked; noise at this scale stays below 7
  Problem p;
  for (int h = 0; h < p.H; ++h) {
    for (int r = 0; r < p.N; r += 7) {
      for (int c = 0; c <= r; ++c) {
        double s = 0;
        for (int x = 0; x < p.d; ++x) {
          s += in.Q[(size_t(h) * p.N + r) * p.d + x] * in.K[(size_t(h) * p.N + c) * p.d + x];
        }
        largest = std::max(largest, std::abs(s * p.scale()));
      }
    }
  }
  CHECK(largest > 12);
  CHECK(largest < 25);
}

TEST_CASE("real input of other sizes: positions are the last of the keys", "[inputs]") {
  const fa::Inputs shipped = fa::real_inputs({}, 1);
  Problem p;
  p.N = 24;
  CHECK(fa::real_inputs(p, 1).Q[0] == shipped.Q[1000 * 64]);
  CHECK(fa::real_inputs(p, 1).K == shipped.K);
  p.N = 1024, p.Nk = 1000;  // 24 positions before the first
  CHECK(fa::real_inputs(p, 1).Q[0] == shipped.Q[1000 * 64]);
  CHECK(fa::real_inputs(p, 1).Q[24 * 64] == shipped.Q[0]);
  p.B = 2, p.N = 2, p.cache.lengths = {1000, 10};  // of each batch entry
  const fa::Inputs in = fa::real_inputs(p, 1);
  CHECK(in.Q[0] == shipped.Q[998 * 64]);
  CHECK(in.Q[4 * 2 * 64] == shipped.Q[8 * 64]);  // of the second entry, also head 0 of the text
  p = {};
  p.N = p.Nk = 100;
  CHECK(fa::real_inputs(p, 1).K[(3 * 100 + 99) * 64] == shipped.K[(3 * 1024 + 99) * 64]);
}

TEST_CASE("a missing data folder is named", "[inputs]") {
  setenv("FLASH_STEPS_DATA", "/nowhere/data", 1);
  CHECK_THROWS_WITH(fa::real_inputs({}, 1), "/nowhere/data/q.npy: cannot be opened");
  unsetenv("FLASH_STEPS_DATA");
}

TEST_CASE("files give the problem's sizes", "[inputs]") {
  Folder folder;
  const auto q = folder.zeros("q", {2, 6, 10, 32}), k = folder.zeros("k", {2, 3, 20, 32});
  Problem p = fa::problem_of({q, k, k, q}, {});
  CHECK(fa::describe(p) == "B=2 H=6 Hkv=3 N=10 Nk=20 d=32 fp32");
  p = fa::problem_of({q, "", "", ""}, {});  // the rest follows
  CHECK(fa::describe(p) == "B=2 H=6 N=10 d=32 fp32");
  p = fa::problem_of({"", "", k, ""}, {});
  CHECK(fa::describe(p) == "B=2 H=3 N=20 d=32 fp32");
  Problem cross;
  cross.Nk = 7;
  CHECK(fa::problem_of({q, "", "", ""}, cross).Nk == 7);  // given by hand: stays
  CHECK(fa::describe(fa::problem_of({}, cross)) == fa::describe(cross));
}

TEST_CASE("load_inputs replaces what the files give, rounded", "[inputs]") {
  Folder folder;
  Problem p;
  p.H = p.Hkv = 1, p.N = p.Nk = 2, p.d = 32, p.dtype = DType::bf16;
  fa::Inputs in = fa::normal_inputs(p, 1);
  const fa::Inputs before = in;
  const auto k = folder.tensor("k", {1, 1, 2, 32}, [](size_t i) { return 1 + float(i) * 0x1p-9f; });
  fa::load_inputs({"", k, "", ""}, p, in);
  CHECK(in.Q == before.Q);
  CHECK(in.V == before.V);
  CHECK(in.K[1] == 1);
  CHECK(in.K[63] == fa::round_to(DType::bf16, 1 + 63 * 0x1p-9f));

  const auto huge =
      folder.tensor("huge", {1, 1, 2, 32}, [](size_t i) { return i == 3 ? 3.4e38f : 0; });
  CHECK_THROWS_WITH(fa::load_inputs({huge, "", "", ""}, p, in),
                    ContainsSubstring("element 3 is 3.4e+38, which bf16 cannot hold"));
  p.N = 3;
  CHECK_THROWS_WITH(fa::load_inputs({k, "", "", ""}, p, in),
                    k + ": its shape is [1, 1, 2, 32], but the problem's is [1, 1, 3, 32]");
}

// --- a cache of 8 bits ---------------------------------------------------------------------------

namespace {

Problem cached(int B, int Hkv, int Nk, std::vector<int> lengths, int page = 0) {
  Problem p;
  p.B = B, p.H = p.Hkv = Hkv, p.N = 1, p.Nk = Nk, p.d = 32;
  p.cache.lengths = std::move(lengths), p.cache.page = page;
  p.dtype = DType::bf16;
  return p;
}

}  // namespace

TEST_CASE("a cache of 8 bits holds scale * e4m3, with a scale for each key head", "[inputs]") {
  Problem p = cached(2, 3, 20, {20, 11});
  fa::Inputs in = fa::normal_inputs(p, 1);
  const fa::Inputs before = in;
  CHECK(in.K_scale.empty());
  for (size_t i = 0; i < 20 * 32; ++i) in.K[2 * 20 * 32 + i] *= 1000;  // head 2 of entry 0
  const fa::Inputs large = in;
  fa::quantise_cache(p, in);
  REQUIRE((in.K_scale.size() == 6 && in.V_scale.size() == 6));
  CHECK(in.Q == before.Q);
  CHECK(in.K_scale[2] > 100 * in.K_scale[1]);
  CHECK(std::set<float>(in.V_scale.begin(), in.V_scale.end()).size() > 2);
  for (size_t head = 0; head < 6; ++head) {
    const size_t keys = head < 3 ? 20 : 11;
    float most = 0, most_before = 0;
    for (size_t i = 0; i < 20 * 32; ++i) {
      const size_t at = head * 20 * 32 + i;
      if (i >= keys * 32) {  // after the last key nothing is compared
        REQUIRE(in.K[at] == large.K[at]);
        continue;
      }
      const float e4m3 = fa::round_to(DType::e4m3, in.K[at] / in.K_scale[head]);
      REQUIRE(in.K[at] == in.K_scale[head] * e4m3);
      REQUIRE(std::abs(in.K[at] - large.K[at]) <=
              std::max(std::abs(large.K[at]) / 15, in.K_scale[head] * 0x1p-10f));
      most = std::max(most, std::abs(e4m3));
      most_before = std::max(most_before, std::abs(large.K[at]));
    }
    CHECK(most == 448);
    CHECK(in.K_scale[head] == most_before / 448);
  }
  fa::Inputs again = in;
  fa::quantise_cache(p, again);  // changes rounded values by at most a rounding
  for (size_t i = 0; i < in.V.size(); ++i) {
    REQUIRE(std::abs(again.V[i] - in.V[i]) <= 1e-6f * std::abs(in.V[i]));
  }
}

TEST_CASE("all inputs of a cache of 8 bits are quantised, zeros and tiny numbers too", "[inputs]") {
  Problem p = cached(1, 2, 8, {});
  p.cache.fp8 = true;
  for (const fa::Inputs& in :
       {fa::normal_inputs(p, 1), fa::outlier_inputs(p, 1), fa::real_inputs(p, 1)}) {
    REQUIRE(in.V_scale.size() == 2);
    for (size_t i = 0; i < in.V.size(); ++i) {
      const float scale = in.V_scale[i / (8 * 32)];
      REQUIRE(in.V[i] == scale * fa::round_to(DType::e4m3, in.V[i] / scale));
    }
  }
  Folder folder;
  fa::Inputs in = fa::normal_inputs(p, 1);
  const auto v = folder.tensor("v", {1, 2, 8, 32}, [](size_t i) { return i < 256 ? 0 : 1e-37f; });
  fa::load_inputs({"", "", v, ""}, p, in);
  CHECK(in.V_scale[0] == 1);
  CHECK(in.V[0] == 0);
  CHECK(in.V_scale[1] >= 0x1p-126f);
  const auto ones = folder.tensor("ones", {1, 2, 8, 32}, [](size_t) { return 1.0f; });
  fa::load_inputs({"", ones, "", ""}, p, in);
  CHECK(in.K_scale == std::vector<float>{1.0f / 448, 1.0f / 448});
}

TEST_CASE("after the keys of a batch entry a file may hold anything", "[inputs]") {
  Folder folder;
  Problem p = cached(2, 2, 8, {3, 0});
  p.cache.fp8 = GENERATE(false, true);
  const auto file = [&](const char* name, size_t row_of_nan) {
    return folder.tensor(name, {2, 2, 8, 32}, [=](size_t i) {
      const bool used = i / 32 < 16 && i / 32 % 8 < 3;
      return i / 32 == row_of_nan ? NAN : used ? 1 : i % 2 ? INFINITY : 3.4e38f;
    });
  };
  fa::Inputs in = fa::normal_inputs(p, 1);
  const auto cache = file("cache", 16);
  fa::load_inputs({"", cache, cache, ""}, p, in);
  for (size_t h = 0; h < 2; ++h) CHECK(in.K[h * 8 * 32] == 1);
  if (p.cache.fp8) CHECK(in.V_scale == std::vector<float>{1.f / 448, 1.f / 448, 1, 1});
  const auto bad = file("bad", 8 + 2);  // the last key of the second head
  CHECK_THROWS_WITH(fa::load_inputs({"", "", bad, ""}, p, in),
                    ContainsSubstring("bad: element 320 is nan"));
  p.cache.lengths = {};
  CHECK_THROWS_WITH(fa::load_inputs({"", cache, "", ""}, p, in),
                    ContainsSubstring("cache: element 96 is 3.4e+38, which"));
}

// --- pages ---------------------------------------------------------------------------------------

TEST_CASE("a table hands each page out once, in a seeded order", "[inputs]") {
  const Problem p = cached(4, 2, 1000, {1000, 0, 16, 17}, 16);
  CHECK(p.pages() == 63);
  CHECK(fa::needed_pages(p) == 63 + 0 + 1 + 2);
  const std::vector<int> table = fa::shuffled_table(p, 1);
  REQUIRE(table.size() == 4 * 63);
  CHECK_NOTHROW(fa::validate_table(p, table, "x"));
  CHECK(fa::pool_pages(p, table) == 66);
  std::set<int> used;
  size_t unused = 0, in_order = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i] < 0)
      ++unused;
    else
      used.insert(table[i]);
    in_order += i > 0 && table[i] == table[i - 1] + 1;
  }
  CHECK(used.size() == 66);
  CHECK(*used.rbegin() == 65);
  CHECK(unused == 4 * 63 - 66);
  CHECK(in_order < 10);
  CHECK(table[63] == -1);
  CHECK(table[2 * 63] >= 0);
  CHECK(table[2 * 63 + 1] == -1);
  CHECK(fa::shuffled_table(p, 1) == table);
  CHECK(fa::shuffled_table(p, 2) != table);
}

TEST_CASE("a page table that no kernel may meet is refused", "[inputs]") {
  const Problem p = cached(2, 1, 64, {64, 33}, 16);
  const std::vector<int> good = {0, 1, 2, 3, 4, 5, 6, 99};  // 99 is after the last key
  const auto refused = [&p](const std::vector<int>& table) {
    return refusal_of([&] { fa::validate_table(p, table, "--table F.npy"); });
  };
  const auto with = [&](size_t at, int page) {
    auto table = good;
    table[at] = page;
    return refused(table);
  };
  CHECK(refused(good) == "accepted");
  CHECK(with(2, 7) == "accepted");  // a pool may have pages without an owner
  CHECK(fa::pool_pages(p, {0, 1, 7, 3, 4, 5, 6, 99}) == 8);
  CHECK(with(3, 8) == "--table F.npy: entry [0, 3] is 8, but the pool has the pages 0 to 7");
  CHECK(with(4, -1) == "--table F.npy: entry [1, 0] is -1, but the pool has the pages 0 to 7");
  CHECK(with(6, 1) ==
        "--table F.npy: entry [1, 2] is 1, as entry [0, 1] is, but a page holds the keys of one "
        "entry");
  CHECK(refused({0, 1}) ==
        "--table F.npy: has 2 entries, but the problem's 2 batch entries of up to 64 keys have 4 "
        "pages of 16 each");
}

TEST_CASE("a page table comes from a file of integers", "[inputs]") {
  Folder folder;
  const Problem p = cached(1, 1, 40, {}, 16);
  const auto file = [&](const char* type, const char* shape, const auto& pages) {
    return folder.file("table", npy_file(1, header_of(type, shape), bytes_of(pages)));
  };
  const std::vector<int64_t> wide = {2, 0, 1};
  CHECK(fa::load_table(file("<i8", "(1, 3)", wide), p) == std::vector<int>{2, 0, 1});
  CHECK(fa::load_table(file("<i4", "(1, 3)", std::vector<int>{1, 2, 0}), p) ==
        std::vector<int>{1, 2, 0});
  const std::string flat = file("<i8", "(3,)", wide);
  CHECK_THROWS_WITH(fa::load_table(flat, p),
                    "--table " + flat +
                        ": its shape is [3], but 1 batch entries of up to 40 keys "
                        "in pages of 16 need [1, 3]");
  const std::string huge =
      file("<i8", "(1, 3)", std::vector<int64_t>{0, 1, (int64_t{1} << 32) + 2});
  CHECK_THROWS_WITH(fa::load_table(huge, p), ContainsSubstring("entry [0, 2] is "));
  CHECK_THROWS_WITH(fa::load_table(folder.zeros("floats", {1, 3}), p),
                    ContainsSubstring("supported are int32 and int64"));
}

TEST_CASE("real input is read by its own sizes, whatever they are", "[inputs]") {
  const Folder folder;
  const auto number = [](size_t i) { return static_cast<float>(i); };
  const auto put = [&](const std::vector<size_t>& q, const std::vector<size_t>& k,
                       const std::vector<size_t>& v) {
    folder.tensor("q.npy", q, number), folder.tensor("k.npy", k, number);
    folder.tensor("v.npy", v, number);
  };
  setenv("FLASH_STEPS_DATA", folder.path().c_str(), 1);
  const std::vector<size_t> shape = {1, 2, 4, 2};
  Problem p;
  p.B = 1, p.H = p.Hkv = 3, p.N = 5, p.Nk = 6, p.d = 4;
  put(shape, shape, shape);
  const fa::Inputs in = fa::real_inputs(p, 1);
  const auto element = [](size_t head, int token, size_t x) {
    return static_cast<float>((head % 2 * 4 + (token + 4) % 4) * 2 + x / 2);
  };
  const double factor = std::pow(0.5, 0.25);
  for (size_t head = 0; head < 3; ++head) {
    for (int r = 0; r < 6; ++r) {
      for (size_t x = 0; x < 4; ++x) {
        const size_t key = (head * 6 + r) * 4 + x, query = (head * 5 + r) * 4 + x;
        REQUIRE(in.V[key] == element(head, r, x));
        REQUIRE(in.K[key] == static_cast<float>(factor * element(head, r, x)));
        if (r < 5) REQUIRE(in.Q[query] == static_cast<float>(factor * element(head, r + 1, x)));
      }
    }
  }
  CHECK(in.note ==
        "real input tiled from N=4 to N=6, repeated from 2 to 3 heads, resampled from d=2 to d=4");
  p.H = p.Hkv = 2, p.N = 1, p.Nk = 4, p.d = 2;
  CHECK(fa::real_inputs(p, 1).note.empty());
  p.H = p.Hkv = 1, p.Nk = 3;  // fewer heads need no note
  CHECK(fa::real_inputs(p, 1).note == "real input cut from N=4 to N=3");

  const std::string q = fa::data_file("q.npy"), k = fa::data_file("k.npy");
  const auto refused = [&] { return refusal_of([&] { fa::real_inputs(p, 1); }); };
  const std::string instead = " instead of [1, heads, tokens, features]";
  put({2, 2, 4, 2}, shape, shape);
  CHECK(refused() == q + ": holds [2, 2, 4, 2]" + instead);
  put({2, 4, 2}, shape, shape);
  CHECK(refused() == q + ": holds [2, 4, 2]" + instead);
  put(shape, {1, 0, 4, 2}, shape);
  CHECK(refused() == k + ": holds [1, 0, 4, 2]" + instead);
  for (const int i : {1, 2, 3}) {
    std::vector<size_t> other = shape;
    other[i] = 1;
    const std::string differs = q + ": its shape differs from those of k.npy and v.npy";
    put(shape, other, shape);
    CHECK(refused() == differs);
    put(shape, shape, other);
    CHECK(refused() == differs);
  }
  unsetenv("FLASH_STEPS_DATA");
}

TEST_CASE("two files that differ are both named, with the size in which they do", "[inputs]") {
  const Folder folder;
  const auto f = folder.zeros("f", {1, 4, 8, 32});
  const std::vector<size_t> shapes[] = {{2, 4, 8, 32}, {1, 2, 8, 32}, {1, 4, 9, 32}, {1, 4, 8, 64}};
  const char* const words[] = {"B", "the heads", "the length", "d"};
  for (int i = 0; i < 4; ++i) {
    const auto other = folder.zeros("other", shapes[i]);
    const std::string differ = f + " and " + other + ": their shapes [1, 4, 8, 32] and " +
                               fa::text_of(shapes[i]) + " differ in " + words[i];
    const std::string of_two = i == 0 || i == 3 ? differ : "accepted";
    CHECK(refusal({f, "", "", other}) == differ);
    CHECK(refusal({"", f, other, ""}) == differ);
    CHECK(refusal({f, other, "", ""}) == of_two);
    CHECK(refusal({f, "", other, ""}) == of_two);
    CHECK(refusal({"", other, "", f}) == of_two);
    CHECK(refusal({"", "", other, f}) == of_two);
  }
  const auto flat = folder.zeros("flat", {8, 32});
  CHECK(refusal({flat, "", "", ""}) == flat + ": its shape is [8, 32], not [B, H, N, d]");
  CHECK_THAT(refusal({"/nowhere.npy", "", "", ""}), ContainsSubstring("cannot be opened"));
  const auto empty = folder.zeros("empty", {1, 4, 0, 32});
  CHECK(refusal({"", "", empty, ""}) ==
        empty + ": its shape [1, 4, 0, 32] has a size that is not supported");
  Problem cross;
  cross.N = 7, cross.H = 8;
  CHECK(fa::describe(fa::problem_of({"", f, "", ""}, cross)) == "B=1 H=8 Hkv=4 N=7 Nk=8 d=32 fp32");
  CHECK(fa::describe(fa::problem_of({f, "", "", ""}, cross)) ==
        "B=1 H=4 N=8 Nk=1024 d=32 fp32");  // 4 key heads, as before
}

TEST_CASE("a NaN is refused in each file, also where the lengths are short", "[inputs]") {
  const Folder folder;
  Problem p;
  p.B = 2, p.H = 2, p.Hkv = 1, p.N = 2, p.Nk = 3, p.d = 32, p.cache.lengths = {1, 0};
  fa::Inputs in = fa::normal_inputs(p, 1);
  const auto queries =
      folder.tensor("q", {2, 2, 2, 32}, [](size_t i) { return i == 255 ? NAN : 1; });
  const std::string sentence = queries + ": element 255 is nan, which fp32 cannot hold as a number";
  CHECK_THROWS_WITH(fa::load_inputs({queries, "", "", ""}, p, in), sentence);
  CHECK_THROWS_WITH(fa::load_inputs({"", "", "", queries}, p, in), sentence);
  const auto keys = folder.tensor("k", {2, 1, 3, 32}, [](size_t i) { return i < 32 ? 1 : NAN; });
  fa::load_inputs({"", keys, keys, ""}, p, in);
  CHECK((in.K[31] == 1 && in.V[31] == 1 && std::isnan(in.K[32]) && std::isnan(in.V[191])));
}

TEST_CASE("what may leave fp32 is refused from these sizes on", "[inputs]") {
  Problem p;
  p.B = 1, p.H = 4, p.Hkv = 2, p.N = 50, p.Nk = 64, p.d = 64;
  const auto said = [&p](float Q, float K, float V, float dO) {
    fa::Inputs in;
    in.Q.assign(p.q_size(), 0), in.dO = in.Q;
    in.K.assign(p.kv_size(), 0), in.V = in.K;
    in.Q.back() = -Q, in.K.back() = -K, in.V.back() = -V, in.dO.back() = -dO;
    return refusal_of([&] { fa::require_range(p, in, dO != 0); });
  };
  // Each limit: FLT_MAX, 3.4028e38, over the factors.
  for (const float v : {0.f, 1e-38f, 1e30f}) CHECK(said(1, 1, v, 0) == "accepted");
  for (const float v : {0.f, 1e-30f, 1e7f}) CHECK(said(1, 1, v, 1) == "accepted");
  CHECK(said(1, 1, 2.07e34f, 0) == "accepted");  // 2^8 * 64
  CHECK(said(1, 1, 2.08e34f, 0) ==
        "V reaches 2.1e+34: sums of P V may pass 3.4e+38, where fp32 ends; scale V down");
  CHECK(said(0.01f, 1, 1, 2.65e36f) == "accepted");  // 2 * 64 * dO * V
  CHECK(said(0.01f, 1, 1, 2.67e36f) ==
        "dO reaches 2.7e+36, V 1.0e+00, Q 1.0e-02 and K 1.0e+00: gradients or dO V^T may pass "
        "3.4e+38, where fp32 ends; scale dO down");
  CHECK(said(0, 80, 1, 2.65e35f) == "accepted");  // K / sqrt(d): 10 times as much
  CHECK_THAT(said(0, 80, 1, 2.67e35f), ContainsSubstring("K 8.0e+01: gradients"));
  CHECK(said(0.8f, 0, 1, 2.65e35f) == "accepted");  // 50 rows of 2 heads of Q / sqrt(d)
  CHECK_THAT(said(0.8f, 0, 1, 2.67e35f), ContainsSubstring("Q 8.0e-01 and K 0.0e+00: gradients"));
  CHECK(said(1, 1, 1, 7.71e-34f) == "accepted");  // 9.86e-32
  CHECK(said(1, 1, 1, 7.69e-34f) ==
        "dO ends at 7.7e-34 and V at 1.0e+00: dO V^T stays below 9.9e-32, where fp32 loses "
        "digits; scale dO up");
  p.N = 4000;
  CHECK_THAT(said(1, 1, 1e34f, 1), ContainsSubstring("gradients or dO V^T may pass"));  // of dK
  p.cache.fp8 = true;
  CHECK(said(1, 1, 1e35f, 0) == "accepted");
  p.cache.fp8 = false, p.cache.lengths = {60};  // after the keys anything may lie
  CHECK(said(1, 1, 1e38f, 0) == "accepted");
  p.cache.lengths = {}, p.N = 50, p.method.fp8 = true;
  for (const int largest : {0, 1, 2}) {  // sqrt(64) times it
    const auto of = [&](float x) {
      return said(largest == 0 ? x : 1, largest == 1 ? x : 1, largest == 2 ? x : 1, 0);
    };
    CHECK(of(4.25e37f) == "accepted");
    CHECK_THAT(of(4.26e37f), ContainsSubstring("sums of a row may pass 3.4e+38"));
  }
  CHECK(said(1e38f, 2, 3, 0) ==
        "Q reaches 1.0e+38, K 2.0e+00 and V 3.0e+00: sums of a row may pass 3.4e+38, where fp32 "
        "ends; scale them down");
}
