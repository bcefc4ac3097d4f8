// A thread multiplies a matrix of ones by one of twos, twice; 128 threads load a row each.
#include "ptx.h"

__global__ void products(const float* in, float* out) {
  __shared__ alignas(128) __nv_bfloat16 A[128 * 16], B[16 * 16];
  __shared__ uint64_t done;
  __shared__ uint32_t base;  // where in tensor memory
  const int t = threadIdx.x, warp = t / 32;
  for (int i = t; i < 128 * 16; i += 128) A[i] = in[0];
  for (int i = t; i < 16 * 16; i += 128) B[i] = in[1];
  if (t == 0) mbarrier_init(&done, 1);
  if (warp == 0) tcgen05_alloc(&base, 32);  // columns
  fence_proxy_async();                      // tcgen05.mma reads shared memory by the async proxy
  __syncthreads();
  float sum = 0, d;
  for (int i = 0; i < 2; ++i) {
    if (t == 0) {
      tcgen05_fence_after_thread_sync();  // the barrier's
      tcgen05_mma(base, tcgen05_descriptor(A), tcgen05_descriptor(B), kProduct);
      tcgen05_commit(&done);  // arrives at `done` when the product is complete
    }
    mbarrier_wait(&done, i);
    tcgen05_fence_after_thread_sync();   // delete this line
    tcgen05_ld(d, base + (warp << 21));  // lane 32 * warp, column 0
    tcgen05_wait_ld();                   // d is there
    sum += d;
    tcgen05_fence_before_thread_sync();
    __syncthreads();  // all have loaded: the next product may overwrite
  }
  out[t] = sum;
  if (warp == 0) tcgen05_dealloc(base, 32);
}

int main() {
  return check<float>([](auto in, auto out) { products<<<1, 128>>>(in, out); }, 2, 128,
                      [](int i) { return i + 1.f; }, [](const float*, int) { return 2 * 32.f; });
}
