// The installed Thrust with the simulator's memory: each algorithm that its others lead to.
#include <thrust/adjacent_difference.h>
#include <thrust/binary_search.h>
#include <thrust/count.h>
#include <thrust/device_free.h>
#include <thrust/device_malloc.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/extrema.h>
#include <thrust/for_each.h>
#include <thrust/host_vector.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/constant_iterator.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/logical.h>
#include <thrust/merge.h>
#include <thrust/partition.h>
#include <thrust/remove.h>
#include <thrust/scan.h>
#include <thrust/scatter.h>
#include <thrust/sequence.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/swap.h>
#include <thrust/system/cuda/error.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system/cuda/vector.h>
#include <thrust/system_error.h>
#include <thrust/transform_reduce.h>
#include <thrust/unique.h>
#include <thrust/universal_vector.h>

#include <string>
#include <vector>

#include "check.h"

struct Square {
  __host__ __device__ int operator()(int x) const { return x * x; }
};
struct Store {  // to the target of a plain pointer
  int* p;
  __device__ void operator()(int i) const { p[i] = 2 * i; }
};
__global__ void add_one(int* p) { p[threadIdx.x] += 1; }
__global__ void sums_in_a_kernel(int* p, int n) {
  if (threadIdx.x == 0) thrust::inclusive_scan(thrust::device, p, p + n, p);
}
__constant__ int scale = 3;
struct Scaled {
  __device__ int operator()(int x) const { return scale * x; }
};

using Ints = thrust::device_vector<int>;
static bool are(const Ints& v, const std::vector<int>& expected) {
  bool same = v.size() >= expected.size();
  for (size_t i = 0; same && i < expected.size(); ++i) same = v[i] == expected[i];
  return same;
}
static Ints of(const std::vector<int>& v) { return v; }

static void algorithms() {
  using namespace thrust::placeholders;
  Ints v = of({5, 1, 4, 1, 3}), sorted = v, out(8, -1);
  thrust::sort(sorted.begin(), sorted.end());
  EXPECT(are(sorted, {1, 1, 3, 4, 5}));
  thrust::adjacent_difference(v.begin(), v.end(), out.begin());
  EXPECT(are(out, {5, -4, 3, -3, 2, -1}));
  EXPECT(thrust::binary_search(sorted.begin(), sorted.end(), 4));
  EXPECT(thrust::lower_bound(sorted.begin(), sorted.end(), 3) - sorted.begin() == 2);
  thrust::upper_bound(sorted.begin(), sorted.end(), v.begin(), v.end(), out.begin());
  EXPECT(are(out, {5, 2, 4, 2, 3}));
  EXPECT(thrust::copy_if(v.begin(), v.end(), out.begin(), _1 > 3) - out.begin() == 2);
  thrust::copy_n(v.begin(), 2, out.begin() + 2);
  EXPECT(are(out, {5, 4, 5, 1}));
  EXPECT(thrust::find(v.begin(), v.end(), 1) - v.begin() == 1);
  EXPECT(thrust::min_element(v.begin(), v.end()) - v.begin() == 1);
  EXPECT(thrust::max_element(v.begin(), v.end()) - v.begin() == 0);
  EXPECT(thrust::minmax_element(v.begin(), v.end()).second - v.begin() == 0);
  EXPECT(thrust::all_of(v.begin(), v.end(), _1 > 0) && thrust::count(v.begin(), v.end(), 1) == 2);
  EXPECT(thrust::inner_product(v.begin(), v.end(), v.begin(), 1) == 53);
  thrust::exclusive_scan(v.begin(), v.end(), out.begin());
  EXPECT(are(out, {0, 5, 6, 10, 11}));
  thrust::inclusive_scan(v.begin(), v.end(), out.begin(), thrust::maximum<int>());
  EXPECT(are(out, {5, 5, 5, 5, 5}));
  Ints keys = of({1, 1, 2, 2, 2, 1}), ends(6);
  thrust::inclusive_scan_by_key(keys.begin(), keys.begin() + 5, v.begin(), out.begin());
  EXPECT(are(out, {5, 6, 4, 5, 8}));
  thrust::exclusive_scan_by_key(keys.begin(), keys.begin() + 5, v.begin(), out.begin(), 10);
  EXPECT(are(out, {10, 15, 10, 14, 15}));
  const auto ones = thrust::make_constant_iterator(1);
  thrust::reduce_by_key(keys.begin(), keys.end(), ones, ends.begin(), out.begin());
  EXPECT(are(ends, {1, 2, 1}) && are(out, {2, 3, 1}));
  Ints a = of({1, 3, 5}), b = of({2, 3, 6});
  thrust::merge(a.begin(), a.end(), b.begin(), b.end(), out.begin());
  EXPECT(are(out, {1, 2, 3, 3, 5, 6}));
  thrust::merge_by_key(a.begin(), a.end(), b.begin(), b.end(), b.begin(), a.begin(), ends.begin(),
                       out.begin());
  EXPECT(are(ends, {1, 2, 3, 3, 5, 6}) && are(out, {2, 1, 3, 3, 6, 5}));
#define SET(name) thrust::name(a.begin(), a.end(), b.begin(), b.end(), out.begin()) - out.begin()
  EXPECT(SET(set_union) == 5 && SET(set_intersection) == 1);
  EXPECT(SET(set_difference) == 2 && SET(set_symmetric_difference) == 4);
  EXPECT(are(out, {1, 2, 5, 6}));
  const auto even = _1 % 2 == 0;
  EXPECT(thrust::partition(out.begin(), out.begin() + 4, even) - out.begin() == 2);
  thrust::sort(out.begin() + 2, out.begin() + 4);
  EXPECT(out[0] + out[1] == 8 && out[2] == 1 && out[3] == 5);
  thrust::stable_partition_copy(a.begin(), a.end(), out.begin(), out.begin() + 4, _1 > 3);
  EXPECT(out[0] == 5 && out[3] == 5 && out[4] == 1 && out[5] == 3);
  thrust::stable_sort_by_key(v.begin(), v.end(), keys.begin(), thrust::greater<int>());
  EXPECT(are(v, {5, 4, 3, 1, 1}) && are(keys, {1, 2, 2, 1, 2}));
  thrust::unique_by_key_copy(v.begin(), v.end(), keys.begin(), out.begin(), ends.begin());
  EXPECT(are(out, {5, 4, 3, 1, 1}) && are(ends, {1, 2, 2, 1}));
  thrust::unique_by_key(keys.begin(), keys.begin() + 5, v.begin());
  EXPECT(are(keys, {1, 2, 1, 2}) && are(v, {5, 4, 1, 1}));
  EXPECT(thrust::unique(v.begin(), v.begin() + 4) - v.begin() == 3);
  thrust::unique_copy(v.begin(), v.begin() + 4, out.begin());
  EXPECT(are(out, {5, 4, 1}));
  EXPECT(thrust::remove(v.begin(), v.begin() + 4, 1) - v.begin() == 2);
  thrust::remove_copy_if(v.begin(), v.begin() + 2, out.begin(), _1 == 5);
  EXPECT(are(out, {4, 4, 1}));
  thrust::swap_ranges(a.begin(), a.end(), b.begin());
  Ints::reference x = a[0], y = b[0];
  thrust::swap(x, y);
  EXPECT(are(a, {1, 3, 6}) && are(b, {2, 3, 5}));
  thrust::scatter(a.begin(), a.end(), thrust::make_counting_iterator(1), out.begin());
  EXPECT(are(out, {4, 1, 3, 6}));
}

int main() {
  algorithms();
  thrust::host_vector<int> h(8);
  for (int i = 0; i < 8; ++i) h[i] = 5 * i % 8;  // 0 5 2 7 4 1 6 3
  Ints d = h, index(8);
  thrust::sequence(index.begin(), index.end());
  thrust::sort_by_key(d.begin(), d.end(), index.begin());
  EXPECT(d[3] == 3 && index[3] == 7 && index[5] == 1);
  d[0] = 10, d[1] += 2, ++d[1];
  d.push_back(9);
  d.insert(d.begin() + 1, 2, 6);
  d.erase(d.begin());
  EXPECT(are(d, {6, 6, 4, 2, 3, 4, 5, 6, 7, 9}) && d != index && d.back() == 9);
  h = d;
  EXPECT(h[9] == 9 && h == d);

  // Kernels and the host work on the same memory, in every way to name it.
  add_one<<<1, 10>>>(thrust::raw_pointer_cast(d.data()));
  sums_in_a_kernel<<<1, 32>>>(thrust::raw_pointer_cast(&d[0]), 10);
  EXPECT(are(d, {7, 14, 19, 22, 26, 31, 37, 44, 52, 62}));
  int *raw, two[2];
  CHECK(cudaMalloc(&raw, 8 * sizeof(int)));
  thrust::for_each_n(thrust::make_counting_iterator(0), 8, Store{raw});
  thrust::device_ptr<int> p(raw), q = thrust::device_malloc<int>(4);
  thrust::transform(thrust::device, raw, raw + 2, raw, Scaled());
  thrust::copy(p + 1, p + 3, two);
  EXPECT(two[0] == 6 && two[1] == 4 && *p == 0 && p[7] == 14);
  thrust::copy(h.begin(), h.begin() + 4, q);
  add_one<<<1, 4>>>(q.get());
  CHECK(cudaMemcpy(two, q.get(), sizeof two, cudaMemcpyDeviceToHost));
  EXPECT(two[0] == 7 && two[1] == 7);
  thrust::device_free(q);
  thrust::universal_vector<int> shared(4, 5);
  add_one<<<1, 4>>>(thrust::raw_pointer_cast(shared.data()));
  CHECK(cudaDeviceSynchronize());
  EXPECT(shared[3] == 6);

  // Policies with a stream and with an allocator.
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  thrust::cuda::vector<int> w(d.rbegin(), d.rend());
  thrust::device_allocator<char> own;
  thrust::exclusive_scan(thrust::cuda::par.on(stream), w.begin(), w.end(), w.begin());
  EXPECT(thrust::reduce(thrust::cuda::par(own).on(stream), w.begin(), w.begin() + 3) == 176);
  thrust::fill(thrust::cuda::par_nosync.on(stream), w.begin(), w.begin() + 1, 3);
  EXPECT(w[0] == 3 && w[1] == 62 && w[2] == 114);
  const auto pairs = thrust::make_zip_iterator(thrust::make_tuple(index.begin(), w.begin()));
  thrust::sort(pairs, pairs + 3, thrust::greater<thrust::tuple<int, int>>());
  EXPECT(thrust::get<0>(pairs[0]) == 5 && thrust::get<1>(pairs[1]) == 114 && w[2] == 3);

  // A sum of many equal numbers is as accurate as a tree of sums.
  const thrust::device_vector<float> many(1 << 18, 0.1f);
  const float sum = thrust::reduce(many.begin(), many.end());
  EXPECT(sum > 26214 && sum < 26215);
  const thrust::counting_iterator<int> first(1);
  EXPECT(thrust::transform_reduce(first, first + 4, Square(), 7, thrust::plus<int>()) == 37);
  EXPECT(thrust::reduce(first, first + 100, 7, thrust::maximum<int>()) == 100);
  try {
    throw thrust::system_error(cudaErrorInvalidValue, thrust::cuda_category(), "here");
  } catch (const thrust::system_error& e) {
    EXPECT(e.what() == std::string("here: invalid argument"));
  }
  return verdict();
}
