// Graphs, captured and of nodes: nothing runs while they are made, all of it at each launch, with
// the arguments of that time.
#include "check.h"

__global__ void add(int* p, int by) { p[threadIdx.x] += by; }
static void count(void* calls) { ++*static_cast<int*>(calls); }

int main() {
  int *p, *q, got[32], calls = 0;
  CHECK(cudaMalloc(&p, sizeof got));
  CHECK(cudaMalloc(&q, sizeof got));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMemset(q, 0, sizeof got));
  cudaGraph_t graph;
  cudaGraphExec_t run;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK(cudaMemsetAsync(p, 0, sizeof got, stream));
  for (int i = 1; i <= 3; ++i) add<<<1, 32, 0, stream>>>(p, i);
  add<<<1, 32, 0, stream>>>(q, 1);
  CHECK(cudaMemcpyAsync(got, p, sizeof got, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaLaunchHostFunc(stream, count, &calls));
  cudaStreamCaptureStatus state;
  CHECK(cudaStreamIsCapturing(stream, &state));
  EXPECT(state == cudaStreamCaptureStatusActive && calls == 0);
  CHECK(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT(nodes == 7);
  CHECK(cudaGraphInstantiate(&run, graph, nullptr, nullptr, 0));
  cudaGraph_t both;
  cudaGraphExec_t run_both;
  cudaGraphNode_t child, kernel;
  CHECK(cudaGraphCreate(&both, 0));
  CHECK(cudaGraphAddChildGraphNode(&child, both, nullptr, 0, graph));
  int by = 10;
  void* args[] = {&q, &by};
  const cudaKernelNodeParams node{(void*)add, dim3(1), dim3(32), 0, args, nullptr};
  CHECK(cudaGraphAddKernelNode(&kernel, both, &child, 1, &node));
  by = 1000;
  CHECK(cudaGraphInstantiate(&run_both, both, nullptr, nullptr, 0));
  CHECK(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(run, stream));
  CHECK(cudaGraphLaunch(run_both, stream));
  CHECK(cudaStreamSynchronize(stream));
  EXPECT(got[0] == 6 && got[31] == 6 && calls == 3);
  CHECK(cudaMemcpy(got, q, sizeof got, cudaMemcpyDeviceToHost));
  EXPECT(got[7] == 1 + 1 + 11);
  CHECK(cudaGraphExecDestroy(run));
  CHECK(cudaStreamDestroy(stream));
  return verdict();
}
