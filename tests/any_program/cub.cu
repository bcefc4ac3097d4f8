// CUB: collectives of a block and a warp, and device-wide calls.
#include <cub/cub.cuh>

#include "check.h"

constexpr int T = 96, kItems = 2, N = T * kItems;

struct Larger {
  __device__ int operator()(int a, int b) const { return a < b ? b : a; }
};
__global__ void collectives(const int* in, int* out, int* sums) {
  using Load = cub::BlockLoad<int, T, kItems, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Scan = cub::BlockScan<int, T>;
  using Reduce = cub::BlockReduce<int, T>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Scan::TempStorage scan;
    typename Reduce::TempStorage reduce;
  } room;
  int v[kItems], total;
  Load(room.load).Load(in, v);
  __syncthreads();
  int before[kItems];
  Scan(room.scan).ExclusiveSum(v, before, total);
  for (int i = 0; i < kItems; ++i) out[threadIdx.x * kItems + i] = before[i];
  __syncthreads();
  const int all = Reduce(room.reduce).Sum(v);
  __syncthreads();
  const int largest = Reduce(room.reduce).Reduce(v[0], Larger(), 50);  // of the first 50 threads
  if (threadIdx.x == 0) sums[0] = total, sums[1] = all, sums[2] = largest;
  using Warp = cub::WarpReduce<int, 8>;
  __shared__ typename Warp::TempStorage parts[T / 8];
  const int part = Warp(parts[threadIdx.x / 8]).Sum(threadIdx.x);
  if (threadIdx.x == 24) sums[3] = part;
}
// Scans and reductions of partial warps and blocks, by one element and several; guarded accesses.
constexpr int kOdd = 40;
__global__ void more(const int* in, int* out) {
  const int t = threadIdx.x;
  int* row = out + 20 * t;
  using Scan = cub::BlockScan<int, kOdd>;
  using Reduce = cub::BlockReduce<int, kOdd>;
  __shared__ typename Scan::TempStorage scan[8];
  __shared__ typename Reduce::TempStorage reduce[3];
  int total, v[2] = {in[2 * t], in[2 * t + 1]}, w[2];
  Scan(scan[0]).InclusiveSum(v[0], row[0]);
  Scan(scan[1]).ExclusiveSum(v[0], row[1], row[2]);
  Scan(scan[2]).InclusiveScan(v[0], row[3], cub::Max());
  Scan(scan[3]).ExclusiveScan(v[0], row[4], 1000, cub::Min());
  Scan(scan[4]).InclusiveScan(v, w, cub::Max(), total);
  row[5] = w[0], row[6] = w[1], row[7] = total;
  Scan(scan[5]).ExclusiveScan(v, w, -7, cub::Max());
  row[8] = w[0], row[9] = w[1];
  row[10] = Reduce(reduce[0]).Sum(v[0], 33);
  row[11] = Reduce(reduce[1]).Reduce(v[0], cub::Min());
  row[12] = Reduce(reduce[2]).Sum(v);
  using Eight = cub::WarpScan<int, 8>;
  __shared__ typename Eight::TempStorage parts;
  Eight(parts).InclusiveSum(v[0], row[13], row[14]);
  Eight(parts).ExclusiveSum(v[0], row[15]);
  Eight(parts).ExclusiveScan(v[0], row[16], 5, cub::Max());
  row[17] = Eight(parts).Broadcast(v[0], 3);
  using Warp = cub::WarpReduce<int>;
  __shared__ typename Warp::TempStorage whole[2];
  row[18] = Warp(whole[t / 32]).Sum(v[0], 5);
  row[19] = Warp(whole[t / 32]).Reduce(v[0], cub::Max());
}
__global__ void loads(const int* in, int* out) {
  using Striped = cub::BlockLoad<int, 4, 3, cub::BLOCK_LOAD_STRIPED, 2>;
  using Direct = cub::BlockLoad<int, 8, 3>;
  using Store = cub::BlockStore<int, 4, 3, cub::BLOCK_STORE_STRIPED, 2>;
  __shared__ typename Striped::TempStorage a;
  __shared__ typename Store::TempStorage s;
  int v[3];
  const int t = threadIdx.x + 4 * threadIdx.y;
  Striped(a).Load(in, v, 20, -1);
  for (int i = 0; i < 3; ++i) out[3 * t + i] = v[i];
  Store(s).Store(out + 24, v, 22);
  __shared__ typename cub::BlockLoad<int, 4, 3, cub::BLOCK_LOAD_DIRECT, 2>::TempStorage d;
  v[2] = -9;
  cub::BlockLoad<int, 4, 3, cub::BLOCK_LOAD_DIRECT, 2>(d).Load(in, v, 23);
  cub::BlockStore<int, 4, 3, cub::BLOCK_STORE_DIRECT, 2>().Store(out + 48, v);
}
static void expect_more() {
  int *in = room<int>(2 * kOdd), *out = room<int>(20 * kOdd);
  for (int i = 0; i < 2 * kOdd; ++i) in[i] = i * 37 % 101 - 50;
  more<<<1, kOdd>>>(in, out);
  done();
  int sum = 0, largest = -99, all_largest = -99, least = 1000, sum_of_33 = 0, all = 0, each = 0;
  for (int t = 0; t < kOdd; ++t) each += in[2 * t], sum_of_33 += t < 33 ? in[2 * t] : 0;
  for (int i = 0; i < 2 * kOdd; ++i) all += in[i], all_largest = max(all_largest, in[i]);
  int before = -7, pairs = -99;
  for (int t = 0; t < kOdd; ++t) {
    const int *row = out + 20 * t, a = in[2 * t], b = in[2 * t + 1], first = t / 8 * 8;
    EXPECT(row[1] == sum && row[2] == each && row[4] == least);
    sum += a, least = min(least, a), largest = max(largest, a);
    EXPECT(row[0] == sum && row[3] == largest && row[7] == all_largest);
    EXPECT(row[5] == max(pairs, a) && row[6] == max(pairs, max(a, b)));
    EXPECT(row[8] == before && row[9] == max(before, a));
    pairs = max(pairs, max(a, b)), before = max(before, max(a, b));
    int part = 0, scanned = 0, most = 5;
    for (int k = first; k < first + 8; ++k) {
      part += in[2 * k];
      if (k <= t) scanned += in[2 * k];
      if (k < t) most = max(most, in[2 * k]);
    }
    EXPECT(row[13] == scanned && row[14] == part && row[15] == scanned - a && row[16] == most);
    EXPECT(row[17] == in[2 * (first + 3)]);
  }
  EXPECT(out[10] == sum_of_33 && out[11] == least && out[12] == all);
  int five = 0, most = -99;
  for (int k = 0; k < 32; ++k) five += k < 5 ? in[2 * k] : 0, most = max(most, in[2 * k]);
  EXPECT(out[18] == five && out[19] == most);
  most = -99;
  for (int k = 32; k < 40; ++k) most = max(most, in[2 * k]);
  EXPECT(out[20 * 32 + 19] == most);

  for (int i = 0; i < 80; ++i) in[i] = i, out[i] = -5;
  loads<<<1, dim3(4, 2)>>>(in, out);
  done();
  for (int t = 0; t < 8; ++t) {
    for (int i = 0; i < 3; ++i) EXPECT(out[3 * t + i] == (8 * i + t < 20 ? 8 * i + t : -1));
  }
  for (int i = 0; i < 24; ++i) {
    EXPECT(out[24 + i] == (i < 20 ? i : i < 22 ? -1 : -5) && out[48 + i] == (i < 23 ? i : -9));
  }
}
struct IsOdd {
  __host__ __device__ bool operator()(int x) const { return x % 2 != 0; }
};

int main() {
  int *in = room<int>(N), *out = room<int>(N), *sums = room<int>(8);
  int total = 0, odd = 0;
  for (int i = 0; i < N; ++i) in[i] = i * 37 % 101 - 50, total += in[i], odd += in[i] % 2 != 0;
  collectives<<<1, T>>>(in, out, sums);
  done();
  EXPECT(sums[0] == total && sums[1] == total);
  int before = 0, largest = in[0];
  for (int i = 0; i < N; ++i) {
    EXPECT(out[i] == before);
    before += in[i];
    if (i < 100 && i % kItems == 0) largest = in[i] > largest ? in[i] : largest;
  }
  EXPECT(sums[2] == largest);
  EXPECT(sums[3] == 24 + 25 + 26 + 27 + 28 + 29 + 30 + 31);

  int *d_in, *d_out;
  CHECK(cudaMalloc(&d_in, N * sizeof(int)));
  CHECK(cudaMalloc(&d_out, N * sizeof(int)));
  CHECK(cudaMemcpy(d_in, in, N * sizeof(int), cudaMemcpyDefault));
  void* temporary = nullptr;
  size_t bytes = 0;
  CHECK(cub::DeviceReduce::Sum(temporary, bytes, d_in, sums, N));
  CHECK(cudaMalloc(&temporary, bytes));
  CHECK(cub::DeviceReduce::Sum(temporary, bytes, d_in, sums, N));
  CHECK(cub::DeviceReduce::Max(temporary, bytes, d_in, sums + 1, N));
  CHECK(cub::DeviceScan::InclusiveSum(temporary, bytes, d_in, d_out, N));
  CHECK(cudaMemcpy(out, d_out, N * sizeof(int), cudaMemcpyDefault));
  EXPECT(sums[0] == total && sums[1] == 50 && out[N - 1] == total);
  CHECK(cub::DeviceSelect::If(temporary, bytes, d_in, d_out, sums, N, IsOdd()));
  EXPECT(sums[0] == odd);
  CHECK(cub::DeviceRadixSort::SortKeys(temporary, bytes, d_in, d_out, N));
  CHECK(cudaMemcpy(out, d_out, N * sizeof(int), cudaMemcpyDefault));
  for (int i = 1; i < N; ++i) EXPECT(out[i - 1] <= out[i]);
  EXPECT(out[0] == -50);

  // Keys with a sign, floats, and some bits of keys. Equal keys keep their order.
  expect_more();
  bytes = 0;
  CHECK(cub::DeviceReduce::Min(nullptr, bytes, d_in, sums, N));
  EXPECT(bytes > 0);
  sums[0] = 77;
  CHECK(cub::DeviceReduce::Sum(nullptr, bytes, d_in, sums, N));
  EXPECT(sums[0] == 77);  // only the required room
  CHECK(cub::DeviceReduce::Min(temporary, bytes, d_in, sums, N));
  CHECK(cub::DeviceReduce::Reduce(temporary, bytes, d_in, sums + 1, N, cub::Max(), 60));
  EXPECT(sums[0] == -50 && sums[1] == 60);
  CHECK(cub::DeviceReduce::Sum(temporary, bytes, d_in, sums, 3));
  EXPECT(sums[0] == in[0] + in[1] + in[2]);
  CHECK(cub::DeviceScan::ExclusiveSum(temporary, bytes, in, out, 4));
  EXPECT(out[0] == 0 && out[1] == in[0] && out[3] == in[0] + in[1] + in[2]);
  CHECK(cub::DeviceScan::ExclusiveScan(temporary, bytes, in, out, cub::Max(), -60, 3));
  EXPECT(out[0] == -60 && out[1] == in[0] && out[2] == max(in[0], in[1]));
  CHECK(cub::DeviceScan::InclusiveScan(temporary, bytes, in, out, cub::Min(), 3));
  EXPECT(out[0] == in[0] && out[2] == min(in[0], min(in[1], in[2])));
  const int keys[] = {5, -1, 0x105, 3, -1}, up[] = {1, 4, 3, 0, 2}, down[] = {2, 0, 3, 1, 4},
            low_bits[] = {3, 0, 2, 1, 4};
  for (int i = 0; i < 5; ++i) in[i] = keys[i], in[8 + i] = i;
  const auto order = [&](const int* right) {
    for (int i = 0; i < 5; ++i) EXPECT(out[i] == keys[right[i]] && out[8 + i] == right[i]);
  };
  CHECK(cub::DeviceRadixSort::SortPairs(temporary, bytes, in, out, in + 8, out + 8, 5));
  order(up);
  CHECK(cub::DeviceRadixSort::SortPairsDescending(temporary, bytes, in, out, in + 8, out + 8, 5));
  order(down);
  CHECK(cub::DeviceRadixSort::SortPairs(temporary, bytes, in, out, in + 8, out + 8, 5, 0, 8));
  order(low_bits);
  CHECK(cub::DeviceRadixSort::SortPairs(temporary, bytes, in, out, in + 8, out + 8, 5, 1, 3));
  EXPECT(out[8] == 3 && out[9] == 0 && out[10] == 2 && out[11] == 1);
  CHECK(cub::DeviceRadixSort::SortKeysDescending(temporary, bytes, in, out, 5));
  EXPECT(out[0] == 0x105 && out[4] == -1);
  float *f = room<float>(5), *sorted = room<float>(5);
  f[0] = 2, f[1] = -3, f[2] = 0.5f, f[3] = -0.25f;
  CHECK(cub::DeviceRadixSort::SortKeys(temporary, bytes, f, sorted, 4));
  EXPECT(sorted[0] == -3 && sorted[1] == -0.25f && sorted[2] == 0.5f && sorted[3] == 2);
  auto* unsigneds = room<unsigned>(2);
  unsigneds[0] = ~0u;
  CHECK(cub::DeviceRadixSort::SortKeys(temporary, bytes, unsigneds, (unsigned*)out, 2));
  EXPECT(out[0] == 0 && out[1] == -1);
  const int runs[] = {4, 4, 4, 7, 4};
  for (int i = 0; i < 5; ++i) in[i] = runs[i], in[8 + i] = i == 1 || i == 3;
  CHECK(cub::DeviceRunLengthEncode::Encode(temporary, bytes, in, out, out + 8, sums, 5));
  EXPECT(sums[0] == 3 && out[0] == 4 && out[1] == 7 && out[8] == 3 && out[9] == 1 && out[10] == 1);
  CHECK(cub::DeviceReduce::ReduceByKey(temporary, bytes, in, out, in + 8, out + 8, sums, cub::Sum(),
                                       5));
  EXPECT(sums[0] == 3 && out[8] == 1 && out[9] == 1 && out[10] == 0);
  CHECK(cub::DeviceSelect::Flagged(temporary, bytes, in, in + 8, out, sums, 5));
  EXPECT(sums[0] == 2 && out[0] == 4 && out[1] == 7);
  using Pair = cub::KeyValuePair<int, float>;
  const Pair a{1, 2.f}, b{2, 3.f}, c{0, 3.f};
  EXPECT(cub::ArgMax()(a, b).key == 2 && cub::ArgMin()(a, b).key == 1);
  EXPECT(cub::ArgMax()(b, c).key == 0 && cub::ArgMin()(c, b).key == 0);
  return verdict();
}
