// Step 07's forward in CuTe, the layout algebra of CUTLASS: what 07 writes as index arithmetic is a
// layout here. N is a multiple of 128. With CUTLASS 4 beside this tree:
//   nvcc -O3 -std=c++17 -arch=native --expt-relaxed-constexpr -I ../cutlass/include -shared
//        -Xcompiler -fPIC docs/languages/cute_forward.cu -o build/libcute_forward.so
#include <cute/tensor.hpp>

using namespace cute;
using bf16 = bfloat16_t;
constexpr int Br = 128, Bc = 64, kThreads = 256;

// Accumulators by row and column, and as operand A of the next product: other views, no moves.
template <class C>
__device__ auto by_row(C const& c) {
  auto l = logical_divide(c.layout(), Shape<_2>{});  // ((2 columns, 2 rows), bands, columns / 8)
  return make_layout(make_layout(get<0, 1>(l), get<1>(l)), make_layout(get<0, 0>(l), get<2>(l)));
}
template <class C>
__device__ auto as_operand(C const& c) {
  auto l = logical_divide(c.layout(), Shape<Underscore, Underscore, _2>{});  // 8 keys, 8 more
  return make_layout(make_layout(get<0>(l), get<2, 0>(l)), get<1>(l), get<2, 1>(l));
}

template <int d>
__global__ void __launch_bounds__(kThreads)
    flash_fwd_kernel(const bf16* Q, const bf16* K, const bf16* V, bf16* O,  // [BH, N, d]
                     int N, float scale_log2, bool causal) {
  const int i = gridDim.x - 1 - blockIdx.x, t = threadIdx.x;
  auto tiles = [&](auto* p, auto rows) {  // [rows, d, N / rows] of this head
    auto all = make_layout(make_shape(N, Int<d>{}), LayoutRight{});
    return local_tile(make_tensor(make_gmem_ptr(p + size_t(blockIdx.y) * N * d), all),
                      make_shape(rows, Int<d>{}), make_coord(_, _0{}));
  };
  auto gQ = tiles(Q, Int<Br>{})(_, _, i);
  auto gO = tiles(O, Int<Br>{})(_, _, i);
  auto gK = tiles(K, Int<Bc>{}), gV = tiles(V, Int<Bc>{});

  // Shared memory, swizzled in atoms of 8 rows of 128 bytes. V^T is V seen by columns.
  extern __shared__ __align__(128) bf16 smem[];
  auto atom = composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{});
  auto tile = tile_to_shape(atom, Shape<Int<Bc>, Int<d>>{});
  auto sQ = make_tensor(make_smem_ptr(smem), tile_to_shape(atom, Shape<Int<Br>, Int<d>>{}));
  auto sK = make_tensor(make_smem_ptr(smem + Br * d), tile);
  auto sV = make_tensor(make_smem_ptr(smem + Br * d + Bc * d), tile);
  auto columns = make_layout(Shape<Int<d>, Int<Bc>>{}, LayoutRight{});
  auto sVt = make_tensor(sV.data(), composition(tile, columns));

  // Who copies 16 bytes of what; which thread holds which element of a product.
  auto copies = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, bf16>{},
                                Layout<Shape<_32, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{});
  auto mma = make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TN{}, Layout<Shape<_8, _1, _1>>{},
                            Tile<_128, _16, _16>{});
  using Ldmatrix = Copy_Atom<SM75_U32x4_LDSM_N, bf16>;
  auto load_Q = make_tiled_copy_A(Ldmatrix{}, mma);
  auto load_K = make_tiled_copy_B(Ldmatrix{}, mma);
  auto load_Vt = make_tiled_copy_B(Copy_Atom<SM75_U16x8_LDSM_T, bf16>{}, mma);
  auto my = mma.get_slice(t);
  auto rQ = my.partition_fragment_A(sQ);
  auto rK = my.partition_fragment_B(sK);
  auto rVt = my.partition_fragment_B(sVt);
  auto to_shared = [&](auto const& g, auto&& s) {
    copy(copies, copies.get_slice(t).partition_S(g), copies.get_slice(t).partition_D(s));
  };
  auto multiply = [&](auto const& rA, auto const& load, auto const& sB, auto& rB, auto& rC) {
    auto from = load.get_slice(t).partition_S(sB);
    auto to = load.get_slice(t).retile_D(rB);
    CUTE_UNROLL
    for (int k = 0; k < size<2>(rA); ++k) {  // 16 summands at a time
      copy(load, from(_, _, k), to(_, _, k));
      gemm(mma, rA(_, _, k), rB(_, _, k), rC);
    }
  };

  auto rO = partition_fragment_C(mma, Shape<Int<Br>, Int<d>>{});
  auto rS = partition_fragment_C(mma, Shape<Int<Br>, Int<Bc>>{});
  auto rP = make_fragment_like<bf16>(rS);
  auto o = make_tensor(rO.data(), by_row(rO));
  auto s = make_tensor(rS.data(), by_row(rS));
  auto where = my.partition_C(make_identity_tensor(Shape<Int<Br>, Int<Bc>>{}));
  auto at = make_tensor(where.data(), by_row(where));  // (row, key) of each element of s
  constexpr int kRows = size<0>(o);
  float m[kRows], l[kRows] = {};
  for (float& x : m) x = -INFINITY;
  clear(rO);

  const int end = causal ? (i + 1) * (Br / Bc) : N / Bc;
  for (int j = 0; j < end; ++j) {
    __syncthreads();  // all warps are done with the tile before
    if (j == 0) to_shared(gQ, sQ);
    to_shared(gK(_, _, j), sK);
    to_shared(gV(_, _, j), sV);
    cp_async_fence();
    cp_async_wait<0>();
    __syncthreads();
    if (j == 0) copy(load_Q, load_Q.get_slice(t).partition_S(sQ), load_Q.get_slice(t).retile_D(rQ));
    clear(rS);
    multiply(rQ, load_K, sK, rK, rS);  // S = Q K^T
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float m_new = m[r];
      CUTE_UNROLL
      for (int c = 0; c < size<1>(s); ++c) {
        auto [row, key] = at(r, c);
        if (causal && j * Bc + key > i * Br + row) s(r, c) = -INFINITY;
        m_new = max(m_new, s(r, c) * scale_log2);
      }
      m_new = max(m_new, __shfl_xor_sync(~0u, m_new, 1));
      m_new = max(m_new, __shfl_xor_sync(~0u, m_new, 2));
      const float alpha = exp2f(m[r] - m_new);
      m[r] = m_new;
      l[r] *= alpha;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(s); ++c) l[r] += s(r, c) = exp2f(s(r, c) * scale_log2 - m_new);
      CUTE_UNROLL
      for (int x = 0; x < size<1>(o); ++x) o(r, x) *= alpha;
    }
    copy(rS, rP);                                                             // rounds to bf16
    multiply(make_tensor(rP.data(), as_operand(rP)), load_Vt, sVt, rVt, rO);  // O += P V
  }
  CUTE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    l[r] += __shfl_xor_sync(~0u, l[r], 1);
    l[r] += __shfl_xor_sync(~0u, l[r], 2);
    CUTE_UNROLL
    for (int x = 0; x < size<1>(o); ++x) o(r, x) /= l[r];
  }
  copy(rO, my.partition_C(gO));
}

extern "C" void cute_forward(const bf16* Q, const bf16* K, const bf16* V, bf16* O, int BH, int N,
                             int d, bool causal, cudaStream_t stream) {
  auto start = [&](auto kernel) {
    const int bytes = (Br + 2 * Bc) * d * sizeof(bf16);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    kernel<<<dim3(N / Br, BH), kThreads, bytes, stream>>>(Q, K, V, O, N, 1.4426950f / sqrtf(d),
                                                          causal);
  };
  d == 64 ? start(flash_fwd_kernel<64>) : start(flash_fwd_kernel<128>);
}
