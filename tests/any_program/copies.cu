// Copies and fills: every direction, rows with a pitch, asynchronous, pinned and mapped memory.
#include <stdlib.h>
#include <string.h>

#include "check.h"

__global__ void add_rows(int* p, size_t pitch, int width, int height) {
  const int x = threadIdx.x, y = blockIdx.x;
  if (x < width && y < height) ((int*)((char*)p + y * pitch))[x] += 100 * y;
}
__global__ void add_one(int* p) { p[threadIdx.x] += 1; }

int main() {
  int host[64], back[64];
  for (int i = 0; i < 64; ++i) host[i] = i * i;
  int *a, *b;
  CHECK(cudaMalloc((void**)&a, sizeof host));
  CHECK(cudaMalloc((void**)&b, sizeof host));
  CHECK(cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(b, a, sizeof host, cudaMemcpyDeviceToDevice));
  CHECK(cudaMemcpy(back, b, sizeof host, cudaMemcpyDeviceToHost));
  EXPECT(memcmp(back, host, sizeof host) == 0);
  memset(back, 0, sizeof back);
  CHECK(cudaMemcpy(back, host, sizeof host, cudaMemcpyHostToHost));
  EXPECT(memcmp(back, host, sizeof host) == 0);

  // Direction from the pointers; part of a buffer.
  CHECK(cudaMemset(b, 0, sizeof host));
  CHECK(cudaMemcpy(b + 8, host, 32, cudaMemcpyDefault));
  CHECK(cudaMemcpy(b + 32, b + 8, 32, cudaMemcpyDefault));
  CHECK(cudaMemcpy(back, b, sizeof host, cudaMemcpyDefault));
  for (int i = 0; i < 64; ++i) {
    EXPECT(back[i] == (i / 8 == 1 || i / 8 == 4 ? host[i % 8] : 0));
  }

  CHECK(cudaMemset(a, 0x5a, 10));
  CHECK(cudaMemsetAsync((char*)a + 12, 0xff, 4, 0));
  CHECK(cudaMemcpy(back, a, sizeof host, cudaMemcpyDeviceToHost));
  EXPECT(back[0] == 0x5a5a5a5a && back[1] == 0x5a5a5a5a && back[2] == 0x5a5a && back[3] == -1);
  EXPECT(back[4] == 16);

  int* pitched;
  size_t pitch = 0;
  CHECK(cudaMallocPitch(&pitched, &pitch, 5 * sizeof(int), 6));
  EXPECT(pitch >= 5 * sizeof(int) && pitch % 32 == 0);
  CHECK(cudaMemset2D(pitched, pitch, 0xff, 5 * sizeof(int), 6));
  CHECK(cudaMemcpy2D(pitched, pitch, host, 8 * sizeof(int), 4 * sizeof(int), 6,
                     cudaMemcpyHostToDevice));
  add_rows<<<6, 32>>>(pitched, pitch, 5, 6);
  memset(back, 0, sizeof back);
  CHECK(cudaMemcpy2DAsync(back, 8 * sizeof(int), pitched, pitch, 5 * sizeof(int), 6,
                          cudaMemcpyDeviceToHost, 0));
  CHECK(cudaDeviceSynchronize());
  for (int y = 0; y < 6; ++y) {
    for (int x = 0; x < 8; ++x) {
      EXPECT(back[8 * y + x] == (x < 4 ? host[8 * y + x] + 100 * y : x == 4 ? 100 * y - 1 : 0));
    }
  }
  EXPECT(cudaMemcpy2D(pitched, 4, host, 32, 16, 6, cudaMemcpyHostToDevice) ==
         cudaErrorInvalidPitchValue);
  EXPECT(cudaGetLastError() == cudaErrorInvalidPitchValue);

  EXPECT(cudaMemcpy2D(pitched, 32, host, 12, 16, 6, cudaMemcpyHostToDevice) ==
         cudaErrorInvalidPitchValue);
  EXPECT(cudaMemcpy2DAsync(back, 12, pitched, pitch, 16, 6, cudaMemcpyDeviceToHost) ==
         cudaErrorInvalidPitchValue);
  EXPECT(cudaGetLastError() == cudaErrorInvalidPitchValue && pitch == 512);
  EXPECT(cudaMalloc((void**)nullptr, 4) == cudaErrorInvalidValue);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
  int* none = a;
  CHECK(cudaMalloc(&none, 0));
  EXPECT(none == nullptr);
  size_t wide = 0;
  CHECK(cudaMallocPitch(&none, &wide, 513, 3));
  EXPECT(wide == 1024);
  CHECK(cudaMemset2D((char*)none + 2, wide, 7, 3, 3));
  CHECK(cudaMemset((char*)none + 2 * wide, 0, 2));
  CHECK(cudaMemcpyPeer(b, 0, (char*)none + 2 * wide, 0, 4));
  CHECK(cudaMemcpyPeerAsync(b + 1, 0, b, 0, 4));
  CHECK(cudaMemcpy(back, b, 8, cudaMemcpyDeviceToHost));
  EXPECT(back[0] == 0x07070000 && back[1] == 0x07070000);
  CHECK(cudaFree(none));

  // Pinned memory belongs to the host; mapped memory also to the device.
  int *pinned, *mapped, *on_device;
  CHECK(cudaMallocHost(&pinned, sizeof host));
  memcpy(pinned, host, sizeof host);
  CHECK(cudaMemcpyAsync(a, pinned, sizeof host, cudaMemcpyHostToDevice, 0));
  add_one<<<1, 64>>>(a);
  CHECK(cudaMemcpyAsync(pinned, a, sizeof host, cudaMemcpyDeviceToHost, 0));
  CHECK(cudaStreamSynchronize(0));
  for (int i = 0; i < 64; ++i) EXPECT(pinned[i] == host[i] + 1);
  CHECK(cudaHostAlloc((void**)&mapped, sizeof host, cudaHostAllocMapped));
  CHECK(cudaHostGetDevicePointer((void**)&on_device, mapped, 0));
  memcpy(mapped, host, sizeof host);
  add_one<<<1, 64>>>(on_device);
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < 64; ++i) EXPECT(mapped[i] == host[i] + 1);

  int *name_of_23_characters_x, *name_of_24_characters_xy;  // the report cuts the longer one
  CHECK(cudaMalloc(&name_of_23_characters_x, 4));
  CHECK(cudaMalloc(&name_of_24_characters_xy, 8));
  CHECK(cudaMemset(name_of_23_characters_x, 0, 4));
  CHECK(cudaMemset(name_of_24_characters_xy, 0, 8));
  CHECK(cudaFree(name_of_23_characters_x));
  CHECK(cudaFree(name_of_24_characters_xy));
  CHECK(cudaMemcpy(a, host, 0, cudaMemcpyHostToDevice));
  CHECK(cudaFree(nullptr));
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaFreeHost(mapped));
  CHECK(cudaFree(pitched));
  int* later;
  CHECK(cudaMallocAsync((void**)&later, sizeof host, 0));
  CHECK(cudaMemcpyAsync(later, host, sizeof host, cudaMemcpyHostToDevice, 0));
  CHECK(cudaMemcpyAsync(back, later, sizeof host, cudaMemcpyDeviceToHost, 0));
  CHECK(cudaFreeAsync(later, 0));
  CHECK(cudaStreamSynchronize(0));
  EXPECT(memcmp(back, host, sizeof host) == 0);
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
  return verdict();
}
