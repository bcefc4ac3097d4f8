// Faults of programs, and what a kernel cannot have. The first argument selects one, a second one
// corrects it. test_sim_faults.py compiles it once; a line to be reported ends with the argument.
#include <assert.h>
#include <cooperative_groups.h>
#include <cublas_v2.h>
#include <dirent.h>
#include <cstdio>
#include <cstring>

// --- between host and device ---

__global__ void child(int* x) { x[threadIdx.x] = 1; }
__global__ void parent(int* x) {
  if (threadIdx.x == 3) child<<<1, 4>>>(x);  // launches
}
__device__ int* take(int bytes) {
  int* p;
  cudaMalloc(&p, bytes);  // allocates
  return p;
}
__global__ void allocates(int** x) { *x = take(4); }
__global__ void waits() {
#ifndef NVCC_REFUSES_IT     // as from nvcc 12 on
  cudaDeviceSynchronize();  // waits
#endif
}

// A class as in a course: it owns device memory.
struct Vector {
  static inline int made = 0, gone = 0;
  int *p, n, copies = 0, rest[40];
  static const int kThree = 3;
  explicit Vector(int n) : n(n) { cudaMalloc(&p, n * sizeof(int)), ++made; }
  Vector(const Vector& v) : n(v.n), copies(v.copies + 1) {
    cudaMalloc(&p, n * sizeof(int)), ++made;
    cudaMemcpy(p, v.p, n * sizeof(int), cudaMemcpyDeviceToDevice);
    memcpy(rest, v.rest, sizeof rest);
  }
  ~Vector() { cudaFree(p), ++gone; }
};
template <class V>
__global__ void add(V v, int by, int* out) {
  out[threadIdx.x] = v.p[threadIdx.x] + v.rest[39] + by;
  v.p = nullptr;  // each thread has its own
  v.copies += threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 31) out[32] = v.copies;
}
int arguments() {
  int *out, got[33];
  cudaMalloc(&out, sizeof got);
  Vector v(32);
  cudaMemset(v.p, 0, 32 * sizeof(int));
  v.rest[39] = 4;
  add<<<1, 32>>>(v, Vector::kThree, out);
  cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
  printf("%d %d, made %d, gone %d\n", got[5], got[32], Vector::made, Vector::gone);
  int by = 1;
  void* all[] = {&v, &by, &out};
  cudaLaunchKernel((void*)add<Vector>, dim3(1), dim3(32), all, 0, 0);
  cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
  printf("%d %d, made %d, gone %d\n", got[5], got[32], Vector::made, Vector::gone);
  return 0;
}

__global__ void tree(int* out) {
  __shared__ int s[64];
  s[threadIdx.x] = 1;
  for (int n = 32; n > 0; n /= 2) {
    if (threadIdx.x < n) s[threadIdx.x] += s[threadIdx.x + n];  // races
  }
  out[threadIdx.x] = s[threadIdx.x];
}
__global__ void reverse(int* x) { x[63 - threadIdx.x] = x[threadIdx.x]; }
__global__ void some(int* out) {  // 24 are written, 32 are read
  __shared__ int s[32];
  const int v = s[31 - threadIdx.x];  // never
  if (threadIdx.x < 24) s[threadIdx.x] = 1;
  out[threadIdx.x] = v;
}

// 100 blocks of 1024 threads at once: an H200 has room for them.
__global__ void many_at_once(int* p) {
  cooperative_groups::this_grid().sync();
  if (blockIdx.x < 64 && threadIdx.x == 0) p[blockIdx.x] = 1;
}
// Its 192 KiB are the stack's.
__global__ void deep(int* p, int n) {
  int all[48 << 10];
  for (int i = 0; i < n; ++i) all[i] = i;
  p[0] = all[n - 1];
}
int threads_of_process() {
  int n = 0;
  DIR* all = opendir("/proc/self/task");
  while (readdir(all)) ++n;
  return closedir(all), n - 2;
}

// A kernel reads what cuBLAS has written.
__global__ void copy_product(const float* product, int* out) {
  out[threadIdx.x] = product[threadIdx.x];
}
int product(int* out) {
  cublasHandle_t blas;
  float *two, *sums, one = 1, zero = 0;
  int got[4];
  cudaMalloc(&two, 16), cudaMalloc(&sums, 16);
  const float all[4] = {2, 2, 2, 2};
  cudaMemcpy(two, all, 16, cudaMemcpyHostToDevice);
  cublasCreate(&blas);
  cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, two, 2, two, 2, &zero, sums, 2);
  copy_product<<<1, 4>>>(sums, out);
  cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
  return got[3] == 8 ? 0 : 5;
}

struct Pair {
  double sum;
  int count;
};
__global__ void fill(int* out, int n) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) out[i] = i;
}
__global__ void pairs(Pair* out) { out[threadIdx.x].sum = 1, out[threadIdx.x].count = 2; }
int copies(bool reads) {
  int *most, *room, got[1000], sum = 0;
  Pair *p, back[32];
  cudaMalloc(&most, 4000), cudaMalloc(&room, 4000), cudaMalloc(&p, sizeof back);
  fill<<<3, 256>>>(most, 1000);
  fill<<<1, 256>>>(room, 7);
  pairs<<<1, 32>>>(p);
  cudaMemcpy(back, p, sizeof back, cudaMemcpyDeviceToHost);
  for (const Pair& q : back) sum += q.count;
  cudaMemcpy(got, room, 4000, cudaMemcpyDeviceToHost);
  for (int i = 0; i < 7; ++i) sum += got[i];
  cudaMemset(room, 0xff, 4000);
  cudaMemcpy(got, room, 4000, cudaMemcpyDeviceToHost);
  for (const int i : got) sum += i;  // now all are written
  cudaMemcpy(got, most, 4000, cudaMemcpyDeviceToHost);
  got[900] = -1;
  sum += got[900];
  cudaMemcpy(got, most, 4000, cudaMemcpyDeviceToHost);
  snprintf(reinterpret_cast<char*>(got + 900), 40, "%d no hook sees these stores", sum);
  sum += got[901];
  memset(got + 760, 0xff, 960);
  sum += got[900];
  cudaMemcpyAsync(got + 10, most + 10, 3960, cudaMemcpyDeviceToHost);  // copies
  for (int i = 0; i < (reads ? 1000 : 768); ++i) sum += got[i];        // reads
  printf("%d\n", sum);
  return 0;
}
int copies_all() {
  int *nothing, *other, got[10];
  cudaMalloc(&nothing, 4000), cudaMalloc(&other, 4000);
  cudaMemcpy(other, nothing, 4000, cudaMemcpyDeviceToDevice);
  cudaMemcpy2D(got, 4, other, 40, 4, 10, cudaMemcpyDeviceToHost);  // all
  return 0;
}

// All bytes but some, and those from `last` on, have a value; the host copies all, stores to those
// beside the gap and reads all.
__global__ void all_but(char* out, int n, int from, int bytes, int last) {
  for (int i = 0; i < last; ++i) {
    if (i < from || i >= from + bytes) out[i] = 1;
  }
}
int gaps(int n, int from, int bytes, int last) {
  char* some;
  alignas(4) char got[104];
  int sum = 0;
  cudaMalloc(&some, n);
  all_but<<<1, 1>>>(some, n, from, bytes, last);
  cudaMemcpy(got, some, n, cudaMemcpyDeviceToHost);
  if (from > 0) got[from - 1] = 1;
  got[from + bytes] = 1;
  sum += *reinterpret_cast<const int*>(got + from / 4 * 4);  // ends
  for (int i = from ? 0 : bytes; i < n; ++i) sum += got[i];
  return sum == 12345;
}
int gap_of_part(int from) {
  char *some, got[90];
  cudaMalloc(&some, 100);
  all_but<<<1, 1>>>(some, 100, from, 3, 100);
  cudaMemcpy(got, some + 10, 90, cudaMemcpyDeviceToHost);
  return got[from - 10] == 1;  // part
}
int gap_of_rows(bool right) {
  char *some, got[3 * 50] = {};
  cudaMalloc(&some, 3 * 40);
  all_but<<<1, 1>>>(some, 120, 50, 10, 120);
  cudaMemcpy2D(got, 50, some, 40, 30, 3, cudaMemcpyDeviceToHost);
  const int before = got[59] + got[70] + got[160 - 50];
  return before + (right ? got[10] : got[60]) == 12345;  // rows
}

__global__ void stores_on(volatile int* p, int n) {
  for (int i = 0; i < n; ++i) *p = i;
}
__global__ void computes_on(int x, int* out) {
  while (x != 7) x = x * 2 | 1;  // computes
  *out = x;
}

// Slow, but makes progress: no fault.
__global__ void works(const int* p, int n, int* out) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += p[i % 1024] * p[i % 512];
  *out = sum;
}
__global__ void makes() {
  int* p = new int[4];  // makes
  p[0] = threadIdx.x;
  delete[] p;
}

__global__ void makes_one(int** p) {
  *p = new int(3);  // makes one
}
__global__ void takes_room(void** p) {
  *p = malloc(4);  // takes room
}
__global__ void no_cluster(int* p) { p[(blockIdx.z * 2 + blockIdx.y) * 4 + blockIdx.x] = 1; }
void launch_cluster(int* p, int large) {
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {4, 2, 2};
  cudaLaunchConfig_t config = {dim3(4, 2, 2), 1};
  config.attrs = &cluster, config.numAttrs = 1;
  cudaFuncSetAttribute(no_cluster, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024);
  cudaFuncSetAttribute(no_cluster, cudaFuncAttributeNonPortableClusterSizeAllowed, large);
  cudaLaunchKernelEx(&config, no_cluster, p);  // large cluster
}

// --- one fault each ---

__global__ void gives_up() {
  if (threadIdx.x == 2) __trap();  // gives up
}

__shared__ int s[32];  // s is also the name of short in symbols
__global__ void global_array(int* p, bool right) {
  if (right) s[threadIdx.x] = 1;
  p[threadIdx.x] = s[threadIdx.x];  // global array
}
__global__ void share(const int* by, int* p) {
  p[threadIdx.x] = 100 % by[threadIdx.x];  // divides
}
__global__ void from_absent(int* p, int width) {
  p[threadIdx.x] =
      __shfl_down_sync(threadIdx.x < 32 ? ~0u : 0xffffu, threadIdx.x, 8, width);  // absent
}
template <class A, class B>
struct RatherLong {};
template <class T>
__global__ void long_name(int* p) {
  p[64] = 1;  // long name
}
using Long = RatherLong<RatherLong<float, int>, RatherLong<int, float>>;

__global__ void neighbours(int* p, bool right) {
  __shared__ int s[64];
  s[threadIdx.x] = 0;
  __syncthreads();
  s[threadIdx.x] = threadIdx.x;
  if (right) __syncthreads();
  p[threadIdx.x] = s[(threadIdx.x + 1) % 64];  // race
}
// The last block sums what all have stored; `how`: does its atomic hand that over?
template <int how>
__global__ void last_sums(int* p) {
  unsigned before;
  p[1 + blockIdx.x] = 1;
  if (how == 0) asm volatile("atom.relaxed.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p));
  if (how == 1) asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p));
  if (how == 2) asm volatile("atom.release.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p));
  if (before == gridDim.x - 1) {
    for (int i = 0; i < gridDim.x; ++i) p[60] += p[1 + i];  // handed over
  }
}
__global__ void plus_one(const int* in, int* out) {
  out[threadIdx.x] = in[threadIdx.x] + 1;  // uninitialised
}
template <class T>
__global__ void fill_all(T* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    out[i] = T(i);  // out of bounds
  }
}
// clang-format off
__device__ unsigned lane() {
  unsigned id;
  asm volatile(
      "{\n"
      "  mov.u32 %0,"
      "  %%laneid;\n"
      "}\n"
      : "=r"(id)
      :
      : "memory");
  return id;
}
__global__ void divide(const int* by, int* out) {
  extern
      __shared__
      int s[];
  s[threadIdx.x] = lane();
  out[threadIdx.x] = s[threadIdx.x] + by[0];  // after asm
}
void launch_divide(const int* by, int* out) {
  divide
      <<<1, 32,
         128>>>
      (by, out);
}
// clang-format on
__global__ void shared_overrun(int* p, int n) {
  __shared__ int s[30];
  for (int i = 0; i < n && threadIdx.x == 0; ++i) {
    s[i] = i;  // overrun
  }
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x % 30];
}
__global__ void endless(volatile int* p) {
  while (*p == 0) {  // endless
  }
}
__global__ void idle(int x) {
  while (x != 7) x = x * 2 | 1;  // idle
  if (x == 9) __trap();
}
__global__ void below(int n) {
  assert(threadIdx.x < n);  // asserts
}
__global__ void own_array(int* p, int n) {
  float a[8], b[4][8] = {};
  b[0][8 + threadIdx.x % 8] = 1;                   // the next row, as in hardware
  for (int i = 0; i < n; ++i) a[i] = i + b[1][0];  // own array
  p[threadIdx.x] = a[n - 1];
}
// The column tells which array is meant.
__global__ void own_arrays(int* p, int i, unsigned j) {
  int a[4] = {}, ba[4] = {}, to[4] = {i, i, i, i};
  p[threadIdx.x] = ba[j] + a[to[j]] + a[0];  // own arrays
}
__global__ void shared_index(int* p, int i) {
  __shared__ float s[64], neighbour[4096];
  s[threadIdx.x] = neighbour[threadIdx.x] = 1;
  s[i] = 2;  // shared index
  p[threadIdx.x] = s[threadIdx.x];
}
__global__ void plain_grid() {
  cooperative_groups::this_grid().sync();  // plain grid
}
__global__ void divergent(int* p) {
  int v;
  if (threadIdx.x < 16) {
    v = __shfl_sync(~0u, 1, 0);
  } else {
    v = __shfl_sync(~0u, 2, 0);  // divergent
  }
  p[threadIdx.x] = v;
}
__global__ void polls(int* p, int arrivals) {
  __shared__ unsigned long long full;
  const unsigned bar = (unsigned)__cvta_generic_to_shared(&full);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(bar));
  __syncthreads();
  if (threadIdx.x < arrivals) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar));
  unsigned complete = 0;
  while (!complete) {
    asm volatile(  // polls
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(complete)
        : "r"(bar));
  }
  p[threadIdx.x] = complete;
}
// One test may find the phase incomplete: then the load has not arrived.
__global__ void tests_once(const int* in, int* out, bool waits) {
  __shared__ alignas(16) int tile[32];
  __shared__ unsigned long long full;
  const unsigned bar = (unsigned)__cvta_generic_to_shared(&full);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(bar));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, "
        "[%2];" ::"r"((unsigned)__cvta_generic_to_shared(tile)),
        "l"(in), "r"(bar));
  }
  __syncthreads();
  unsigned complete = 0;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(complete)
        : "r"(bar));
  } while (waits && !complete);
  out[threadIdx.x] = tile[threadIdx.x];  // tests once
  if (threadIdx.x == 0) {
    asm volatile(
        "{\n.reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n"
        "@!p bra AGAIN;\n}" ::"r"(bar));
  }
}
// The second kernel may run in parallel with the first until one of its threads waits.
__global__ void first_kernel(int* x) {
  asm volatile("griddepcontrol.launch_dependents;");
  x[threadIdx.x] = threadIdx.x;
}
__global__ void second_kernel(const int* x, const int* other, int* y, bool waits) {
  int sum = other[threadIdx.x];
  if (waits && threadIdx.x == 0) asm volatile("griddepcontrol.wait;" ::: "memory");
  __syncthreads();
  sum += x[threadIdx.x ^ 1];  // overlaps
  y[threadIdx.x] = sum;
}
// For a launch that may begin during the previous one.
const cudaLaunchConfig_t* early(bool allowed = true) {
  static cudaLaunchConfig_t config = {};
  static cudaLaunchAttribute attribute = {};
  config.gridDim = 1, config.blockDim = 32;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = allowed;
  config.attrs = &attribute, config.numAttrs = 1;
  return &config;
}
int overlaps(int* x, int* other, bool waits, bool synchronizes, bool by_event = false,
             bool allowed = true) {
  int* y;
  cudaMalloc(&y, 128);
  cudaMemset(other, 0, 128);
  first_kernel<<<1, 32>>>(x);
  cudaEvent_t done;
  cudaEventCreate(&done), cudaEventRecord(done);
  if (synchronizes) by_event ? cudaEventSynchronize(done) : cudaDeviceSynchronize();
  return cudaLaunchKernelEx(early(allowed), second_kernel, (const int*)x, (const int*)other, y,
                            waits);
}
__global__ void reads_first(const int* x, int* y) {
  asm volatile("griddepcontrol.launch_dependents;");
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void stores_early(int* x, bool waits) {
  if (waits) asm volatile("griddepcontrol.wait;" ::: "memory");
  x[threadIdx.x] = 1;  // overwrites
}
int overwrites(int* x, int* y, bool waits) {
  cudaMemset(x, 0, 128);
  reads_first<<<1, 32>>>(x, y);
  return cudaLaunchKernelEx(early(), stores_early, x, waits);
}
// In the last round some threads skip the barrier and the vote, and end.
__global__ void skips(int* p, int n, bool returns) {
  __shared__ int s[64];
  if (returns && threadIdx.x >= 36) return;
  s[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x < n) {
    s[threadIdx.x] += 1;
    __syncthreads();                                          // skips
    p[threadIdx.x] = __ballot_sync(~0u, s[threadIdx.x] > 0);  // votes
  }
}
// Two threads of the block run when the grid, which is this block, synchronises.
__global__ void alone(int* sum, bool again) {
  if (threadIdx.x >= 2) {
    sum[threadIdx.x] = 1;
    return;
  }
  atomicAdd(sum, 1);
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) sum[1] = sum[0] + sum[31];
  if (again && threadIdx.x == 0) cooperative_groups::this_grid().sync();  // alone
  if (again && threadIdx.x == 1) __syncthreads();
}
int grid_alone(int* sum, bool again) {
  void* all[] = {&sum, &again};
  cudaMemset(sum, 0, 256);
  cudaLaunchCooperativeKernel((void*)alone, dim3(1), dim3(32), all);
  int got[2];
  cudaMemcpy(got, sum, sizeof got, cudaMemcpyDeviceToHost);
  return got[1] == 3 ? 0 : 5;
}
__global__ void store(int* p) { p[threadIdx.x] = 1; }  // null
__global__ void odd(int* p) {
  *reinterpret_cast<int2*>(p + 1) = {1, 2};  // odd
}
__global__ void transpose(int* p, bool reached) {
  if (reached) asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(*p));  // ptx
  p[0] = 5;
}
__global__ void power(int* p) {
  asm("ex2.approx.f32 %0, %1;" : "=r"(p[0]) : "r"(p[1]));  // bits
}
__global__ void shared_atomics() {
  __shared__ int s;
  if (!threadIdx.x) s = 0;
  __syncthreads();
  atomicAdd(&s, 1);
}

int freed_twice() {
  int* p;
  cudaMalloc(&p, 4);
  if (cudaFree(p) != cudaSuccess) return 2;
  if (cudaFree(p) != cudaErrorInvalidValue) return 3;
  return cudaGetLastError() == cudaErrorInvalidValue ? 0 : 4;
}
int freed_managed() {
  int* p;
  cudaMallocManaged(&p, 4);
  *p = 1;
  cudaFree(p);
  return *p;  // freed
}
int too_large() {
  int* p = nullptr;
  cudaMalloc(&p, size_t(1) << 45);
  store<<<1, 32>>>(p);
  return cudaDeviceSynchronize();
}
int unreached() {
  int *p, got;
  cudaMalloc(&p, 4);
  transpose<<<1, 1>>>(p, false);
  cudaMemcpy(&got, p, 4, cudaMemcpyDeviceToHost);
  return got == 5 ? 0 : 3;
}

// --- different meanings on host and device ---

__constant__ float weights[8];
__device__ int factor, total[2];
__device__ int out[4];
__device__ const int squares[4] = {0, 1, 4, 9};
__managed__ int shared_by_both = 1;
__global__ void sum() { atomicAdd(total, factor); }
__global__ void fill_four(int* t) {
  t[threadIdx.x] = 1;  // passes a variable
}
int symbols(bool right) {
  const float nine[9] = {};
  int three[3] = {7, 7, 7};
  const auto to = cudaMemcpyToSymbol(weights, nine, right ? 32 : 36);         // to a symbol
  const auto part = cudaMemcpyToSymbol(weights, nine, 8, right ? 24 : 28);    // at an offset
  const auto from = cudaMemcpyFromSymbolAsync(three, total, right ? 8 : 12);  // from a symbol
  printf("%d%d%d %d\n", to, part, from, three[2]);
  return 0;
}
#ifdef __CUDACC__                                                // true on both sides
void read_total(int* two) { memcpy(two, total, sizeof total); }  // reads a variable
#endif
#ifdef __CUDA_ARCH__
__host__ __device__ int both_sides() { return factor; }
#else
__host__ __device__ int both_sides() { return 0; }
#endif
int variables(bool right) {
  int two[2] = {5, 5};
  const int three = 3;
  const auto store = [](int v) { factor = v; };  // writes a variable
  if (right) cudaMemcpyToSymbol(factor, &three, 4);
  if (!right) store(4), store(3), memset(weights, 1, sizeof weights);  // writes many
  sum<<<1, 32>>>();
  if (right) cudaMemcpyFromSymbol(two, total, 8);
  if (!right) read_total(two), store(5);
  int seen = 7;
  cudaMemcpyFromSymbol(&seen, factor, 4);
  if (seen != (right ? 3 : 0)) return 6;
  cudaMemcpyFromSymbol(&seen, weights, 4, 28);
  if (seen != 0) return 7;
  cudaMemcpyToSymbol(factor, &three, 4), cudaMemcpyFromSymbol(&seen, factor, 4);
  if (seen != 3) return 8;              // undone once
  if (both_sides() == 12345) return 5;  // one compiler: the device's half
  shared_by_both += squares[two[0] % 4];
  printf("%d %d\n", two[0], shared_by_both);
  return 0;
}
int copies_variable() {
  const auto status = cudaMemcpy(out, &factor, 4, cudaMemcpyDefault);  // copies a variable
  return status == cudaErrorInvalidValue ? 0 : 3;
}
int passes_variable(bool right) {
  void* p = out;
  if (right) cudaGetSymbolAddress(&p, out);
  fill_four<<<1, 4>>>(static_cast<int*>(p));
  return right ? 0 : cudaDeviceSynchronize() == cudaErrorIllegalAddress ? 0 : 3;
}

struct Size {
  int w;
};
struct Shape {
  virtual __device__ int area() { return 1; }
};
struct Square : Shape {
  __device__ int area() override { return 2; }
};
typedef int (*Function)(int);
__device__ int twice(int x) { return 2 * x; }
__device__ Function twice_of_device = twice;
__global__ void by_reference(int* o, const Size& s) {
  *o = s.w;  // by reference
}
__global__ void by_function(int* o, Function f) {
  *o = f(1);  // by function
}
__global__ void by_virtual(int* o, Shape* s) {
  *o = s->area();  // by virtual
}
__global__ void make_square(Square* s) { new (s) Square; }
int handed_over(const char* how, bool right, int* o) {
  if (!strcmp(how, "by reference")) {
    Size here{2}, *managed;
    cudaMallocManaged(&managed, sizeof here);
    *managed = here;
    if (right) by_reference<<<1, 1>>>(o, *managed);
    if (!right) by_reference<<<1, 1>>>(o, here);
  } else if (!strcmp(how, "by function")) {
    Function f = twice;
    if (right) cudaMemcpyFromSymbol(&f, twice_of_device, sizeof f);
    by_function<<<1, 1>>>(o, f);
  } else {
    Square here, *there;
    cudaMalloc(&there, sizeof here);
    cudaMemcpy(there, &here, sizeof here, cudaMemcpyHostToDevice);
    if (right) make_square<<<1, 1>>>(there);
    by_virtual<<<1, 1>>>(o, there);
    cudaMemcpy(&here, there, sizeof here, cudaMemcpyDeviceToHost);
    Shape* again = &here;
    if (!right && again->area() != 2) return 5;  // the host's copy is unchanged
  }
  int got = 0;
  if (right) cudaMemcpy(&got, o, 4, cudaMemcpyDeviceToHost);
  return right ? got != 2 : cudaGetLastError() != cudaErrorIllegalAddress;
}
__global__ void __launch_bounds__(128, 2) bounded(int* p) { p[threadIdx.x % 64] = 1; }
int beyond_bounds(int* p, int threads) {
  int got[64];
  bounded<<<1, threads>>>(p);                              // bounds
  cudaMemcpy(got, p, sizeof got, cudaMemcpyDeviceToHost);  // unwritten, as the launch was refused
  return threads > 128 && cudaGetLastError() != cudaErrorInvalidValue;
}
int wrong_calls(int* p, const char* what) {
  int host = 0;
  if (!strcmp(what, "memset")) cudaMemset(&p, 0, 4);                                // memset
  for (int i = 0; i < 2 && !strcmp(what, "calls"); ++i) cudaMemset(&p, 0, 4);       // calls
  if (!strcmp(what, "direction")) cudaMemcpy(&host, p, 4, cudaMemcpyHostToDevice);  // direction
  return cudaGetLastError() == cudaErrorInvalidValue ? 0 : 3;
}
__global__ void shifted(int* a, int shift) {
  if (threadIdx.x < 2) a[shift] = threadIdx.x;  // loop
}

int main(int n, char** words) {
  const auto is = [&](const char* word) { return n > 1 && !strcmp(words[1], word); };
  const bool right = n > 2;
  if (is("twice")) return freed_twice();
  if (is("freed")) return freed_managed();
  if (is("null")) return too_large();
  if (is("unreached")) return unreached();
  if (is("arguments")) return arguments();
  if (is("copies")) return copies(false);
  if (is("reads")) return copies(true);
  if (is("all")) return copies_all();
  if (is("ends") && right) return gaps(64, 61, 3, 64) + gaps(100, 50, 7, 100) + gaps(100, 0, 3, 97);
  if (is("ends")) return gaps(65, 62, 3, 65);
  if (is("starts")) return right ? gaps(64, 0, 3, 64) : gaps(65, 0, 3, 65);
  if (is("eight")) return gaps(100, 50, 8, 100);
  if (is("part")) return gap_of_part(10);
  if (is("part at the end")) return gap_of_part(97);
  if (is("rows")) return gap_of_rows(right);
  int *x, *unset, **y;
  cudaMalloc(&x, is("works") ? 4096 : 256), cudaMalloc(&unset, 256), cudaMalloc(&y, 8);
  if (right) cudaMemset(unset, 0, 256);
  if (is("workers")) fill<<<64, 256>>>(x, 64), printf("%d\n", threads_of_process());
  if (is("deep")) deep<<<1, 1>>>(x, 48 << 10);
  if (is("symbols")) return symbols(right);
  if (is("variables")) return variables(right);
  if (is("copies a variable")) return copies_variable();
  if (is("passes a variable")) return passes_variable(right);
  if (is("goes on")) {
    passes_variable(true);
    if (!right) passes_variable(false);
    passes_variable(true);
  }
  if (n > 1 && !strncmp(words[1], "by ", 3)) return handed_over(words[1], right, x);
  if (is("bounds") || is("refused")) return beyond_bounds(x, right ? 128 : 256);
  if (is("memset") || is("calls") || is("direction")) return wrong_calls(x, words[1]);
  for (int i = 0; is("loop") && i < 20; ++i) shifted<<<1, 32>>>(x, i);
  if (is("launches")) parent<<<1, 4>>>(x);
  if (is("allocates")) allocates<<<1, 1>>>(y);
  if (is("waits")) waits<<<1, 32>>>();
  if (is("races") || is("far")) tree<<<1, 64>>>(x);
  if (is("far")) fill<<<1, 64>>>(x, 64), stores_on<<<1, 1>>>(x, 1);
  if (is("reverse")) reverse<<<1, 64>>>(x);
  if (is("never")) some<<<1, 32>>>(x);
  if (is("stores on")) stores_on<<<1, 1>>>(x, 1000000), stores_on<<<1, 1>>>(x, 10);
  if (is("computes on")) stores_on<<<1, 1>>>(x, 1), computes_on<<<1, 1>>>(1024, x);
  if (is("races on")) tree<<<1, 64>>>(x), computes_on<<<1, 1>>>(1024, x);
  if (is("two faults")) passes_variable(false), shared_overrun<<<1, 32>>>(x, 31), puts("goes on");
  if (is("race")) neighbours<<<1, 64>>>(x, right);
  if (is("uninitialised")) plus_one<<<1, 64>>>(unset, x);
  if (is("out of bounds")) fill_all<<<2, 64>>>(x, right ? 64 : 65);
  if (is("after asm")) launch_divide(unset, x);
  if (is("overrun")) shared_overrun<<<1, 32>>>(x, right ? 30 : 31);
  if (is("handed over")) {
    cudaMemset(x, 0, 256);
    right ? last_sums<1><<<4, 1>>>(x) : last_sums<0><<<4, 1>>>(x);
    if (right) cudaMemset(x, 0, 256), last_sums<2><<<4, 1>>>(x);
  }
  if (is("works")) works<<<1, 1>>>(x, 3000000, x + 63);
  if (is("makes")) makes<<<1, 32>>>();
  if (is("makes one")) makes_one<<<1, 1>>>(y);
  if (is("takes room")) takes_room<<<1, 1>>>((void**)y);
  if (is("large cluster")) {
    launch_cluster(x, right);
    if (!right && cudaGetLastError() != cudaErrorInvalidClusterSize) return 5;
  }
  if (is("product")) return product(x);
  if (is("gives up")) gives_up<<<1, 32>>>();
  if (is("status")) return cudaMemset(&x, 0, 4) ? 7 : 0;
  if (is("global array")) global_array<<<1, 32>>>(x, right);
  if (is("divides")) cudaMemset(x, right, 256), share<<<1, 32>>>(x, x + 32);
  if (is("absent")) from_absent<<<1, 48>>>(x, right ? 16 : 32);
  void* arguments[] = {&x};
  cudaLaunchConfig_t one = {1, 1};
  if (is("long name")) {
    cudaLaunchKernelExC(&one, (void*)long_name<RatherLong<Long, Long>>, arguments);
  }
  if (is("asserts")) below<<<1, 4>>>(4), below<<<1, 4>>>(right ? 4 : 3);
  if (is("own array")) own_array<<<1, 32>>>(x, 8), own_array<<<1, 32>>>(x, right ? 8 : 9);
  if (is("own arrays")) own_arrays<<<1, 1>>>(x, right ? 3 : -1, 3);
  if (is("unsigned index")) own_arrays<<<1, 1>>>(x, 3, right ? 3 : ~0u);
  if (is("shared index")) shared_index<<<1, 64>>>(x, right ? 63 : 2000);
  if (is("divergent")) divergent<<<1, right ? 16 : 32>>>(x);
  if (is("polls")) polls<<<1, 32>>>(x, right ? 2 : 1);
  if (is("tests once")) cudaMemset(unset, 0, 256), tests_once<<<1, 32>>>(unset, x, right);
  if (is("overlaps")) return overlaps(x, unset, right, false);
  if (is("overwrites")) return overwrites(x, unset, right);
  if (is("overlaps not")) {
    const bool allowed = !right || strcmp(words[2], "not allowed");
    return overlaps(x, unset, false, allowed, right, allowed);
  }
  if (is("skips")) skips<<<1, 64>>>(x, 36, right);
  if (is("alone")) return grid_alone(x, !right);
  cudaLaunchAttribute plain = {};
  plain.id = cudaLaunchAttributeCooperative;  // 0
  cudaLaunchConfig_t two = {2, 32};
  two.attrs = &plain, two.numAttrs = 1;
  if (is("plain grid")) cudaLaunchKernelEx(&two, plain_grid);
  if (is("at once")) {
    return cudaLaunchCooperativeKernel((void*)many_at_once, 100, 1024, arguments);  // at once
  }
  if (is("endless") || is("idle")) puts("begins"), fflush(stdout);
  if (is("endless")) cudaMemset(x, 0, 4), endless<<<1, 1>>>(x);
  if (is("idle")) idle<<<1, 1>>>(1024);
  if (is("odd")) odd<<<1, 1>>>(x);
  if (is("ptx")) transpose<<<1, 1>>>(x, true);
  if (is("bits")) power<<<1, 1>>>(x);
  if (is("shared atomics")) shared_atomics<<<1, 32>>>();
  if (is("on host")) printf("%d\n", *x);  // on host
  return cudaDeviceSynchronize();
}
