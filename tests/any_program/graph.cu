// Graphs, captured and built: everything runs at each launch, with the arguments of construction.
#include "check.h"

__global__ void add(int* p, int by) { p[threadIdx.x] += by; }
static void count(void* calls) { ++*static_cast<int*>(calls); }
__device__ int symbol;

int main() {
  int *p, *q, got[32], rows[4] = {}, calls = 0;
  CHECK(cudaMalloc(&p, sizeof got));
  CHECK(cudaMalloc(&q, sizeof got));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMemset(q, 0, sizeof got));
  cudaGraph_t graph;
  cudaGraphExec_t run;
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);
  EXPECT(cudaGetLastError() == cudaErrorIllegalState);
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK(cudaMemsetAsync(p, 0, sizeof got, stream));
  for (int i = 1; i <= 3; ++i) add<<<1, 32, 0, stream>>>(p, i);
  add<<<1, 32, 0, stream>>>(q, 1);
  CHECK(cudaMemcpyAsync(got, p, sizeof got, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaLaunchHostFunc(stream, count, &calls));
  CHECK(cudaMemset2DAsync(q + 8, 16, 0x01, 4, 2, stream));  // q[8] and q[12]
  CHECK(cudaMemcpy2DAsync(rows, 8, q + 8, 16, 4, 2, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaMemcpyToSymbolAsync(symbol, q + 8, 4, 0, cudaMemcpyDeviceToDevice, stream));
  CHECK(cudaMemcpyFromSymbolAsync(rows + 3, symbol, 4, 0, cudaMemcpyDeviceToHost, stream));
  EXPECT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaErrorIllegalState);
  EXPECT(cudaGetLastError() == cudaErrorIllegalState);
  EXPECT(rows[0] == 0 && rows[3] == 0);
  cudaStreamCaptureStatus state;
  CHECK(cudaStreamIsCapturing(stream, &state));
  EXPECT(state == cudaStreamCaptureStatusActive && calls == 0);
  CHECK(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT(nodes == 11);
  CHECK(cudaStreamIsCapturing(stream, &state));
  EXPECT(state == cudaStreamCaptureStatusNone);
  cudaGraphNode_t each[11] = {};
  nodes = 2;
  CHECK(cudaGraphGetNodes(graph, each, &nodes));
  EXPECT(nodes == 2 && each[0] != each[1] && !each[2]);
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
  EXPECT(got[7] == 1 + 1 + 11 && got[9] == 13 && got[8] == 0x01010101 + 10);
  EXPECT(rows[0] == 0x01010101 && rows[2] == 0x01010101 && rows[1] == 0 && rows[3] == rows[0]);
  // The source of a graph may change later; a copied graph does not.
  CHECK(cudaGraphLaunch(run_both, stream));
  CHECK(cudaMemcpy(got, q, sizeof got, cudaMemcpyDeviceToHost));
  EXPECT(got[7] == 13 + 11 && calls == 4 && child != kernel);
  CHECK(cudaGraphDestroy(both));
  CHECK(cudaGraphExecDestroy(run_both));
  CHECK(cudaGraphExecDestroy(run));
  CHECK(cudaStreamDestroy(stream));
  return verdict();
}
