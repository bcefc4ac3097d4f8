// Managed memory: host and device take turns, also through pointers stored in it.
#include "check.h"

struct Node {
  int value;
  Node* next;
};
__global__ void add(int n, const float* x, float* y) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
    y[i] = x[i] + y[i];
  }
}
__global__ void walk(const Node* node, int* sum) {
  for (; node; node = node->next) *sum += node->value;
}

class Managed {
 public:
  void* operator new(size_t bytes) {
    void* p = nullptr;
    cudaMallocManaged(&p, bytes);
    return p;
  }
  void operator delete(void* p) { cudaFree(p); }
};
struct Total : Managed {
  int sum = 0;
  __device__ void take(int v) { sum += v; }
};
__global__ void into(Total* total) {
  for (int i = 1; i <= 10; ++i) total->take(i);
}

int main() {
  const int n = 3000;
  float *x, *y;
  CHECK(cudaMallocManaged(&x, n * sizeof(float)));
  CHECK(cudaMallocManaged((void**)&y, n * sizeof(float), cudaMemAttachGlobal));
  for (int i = 0; i < n; ++i) x[i] = 1.f, y[i] = i;
  add<<<4, 128>>>(n, x, y);
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < n; ++i) EXPECT(y[i] == i + 1.f);
  for (int i = 0; i < n; ++i) x[i] = -y[i];  // the host's turn again
  add<<<4, 128>>>(n, x, y);
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < n; ++i) EXPECT(y[i] == 0);

  Node* nodes;
  int* sum;
  CHECK(cudaMallocManaged(&nodes, 5 * sizeof(Node)));
  CHECK(cudaMallocManaged(&sum, sizeof(int)));
  *sum = 0;
  for (int i = 0; i < 5; ++i) nodes[i] = Node{i * i, i < 4 ? nodes + i + 1 : nullptr};
  walk<<<1, 1>>>(nodes, sum);
  CHECK(cudaDeviceSynchronize());
  EXPECT(*sum == 30);
  CHECK(cudaMemset(sum, 0, sizeof(int)));
  CHECK(cudaDeviceSynchronize());
  EXPECT(*sum == 0);
  // It is on both sides of a copy.
  int *device, got = 0;
  CHECK(cudaMalloc(&device, sizeof(int)));
  *sum = 4;
  CHECK(cudaMemcpy(device, sum, sizeof(int), cudaMemcpyHostToDevice));
  *sum = 5;
  CHECK(cudaMemcpy(sum, device, sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&got, sum, sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT(*sum == 4 && got == 4);
  CHECK(cudaFree(device));

  Total* total = new Total;
  into<<<1, 1>>>(total);
  CHECK(cudaDeviceSynchronize());
  EXPECT(total->sum == 55);
  delete total;

  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, x));
  EXPECT(attributes.type == cudaMemoryTypeManaged && attributes.devicePointer == x);
  EXPECT(attributes.device == 0 && attributes.hostPointer == x);
  int* plain;
  CHECK(cudaMalloc(&plain, 4));
  CHECK(cudaPointerGetAttributes(&attributes, plain));
  EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.devicePointer == plain);
  EXPECT(attributes.hostPointer == nullptr);
  CHECK(cudaPointerGetAttributes(&attributes, &attributes));
  EXPECT(attributes.type == cudaMemoryTypeUnregistered && attributes.devicePointer == nullptr);
  CHECK(cudaFree(plain));
  CHECK(cudaFree(x));
  CHECK(cudaFree(y));
  CHECK(cudaFree(nodes));
  CHECK(cudaFree(sum));
  return verdict();
}
