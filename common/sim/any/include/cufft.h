/// \file
/// Stands in for cuFFT's header: batched plans of one to three dimensions, on the host in fp64.
#pragma once

#include <complex>
#include <vector>

#include "cuComplex.h"

typedef float cufftReal;
typedef double cufftDoubleReal;
typedef cuComplex cufftComplex;
typedef cuDoubleComplex cufftDoubleComplex;
enum cufftResult {
  CUFFT_SUCCESS,
  CUFFT_INVALID_PLAN,
  CUFFT_ALLOC_FAILED,
  CUFFT_INVALID_TYPE,
  CUFFT_INVALID_VALUE,
  CUFFT_INTERNAL_ERROR,
  CUFFT_EXEC_FAILED,
  CUFFT_SETUP_FAILED,
  CUFFT_INVALID_SIZE
};
enum cufftType {
  CUFFT_C2C = 0x29,
  CUFFT_R2C,
  CUFFT_C2R = 0x2c,
  CUFFT_Z2Z = 0x69,
  CUFFT_D2Z,
  CUFFT_Z2D = 0x6c
};
constexpr int CUFFT_FORWARD = -1, CUFFT_INVERSE = 1;
typedef struct CufftPlan* cufftHandle;

/// The layout of numbers: extents from the slowest dimension on, empty for cuFFT's default.
struct CufftLayout {
  std::vector<int> embed;
  int stride = 1, distance = 0;
};
struct CufftPlan {
  std::vector<int> n;
  CufftLayout in, out;
  int batch = 1;
};

namespace sim::any {

using Complexes = std::vector<std::complex<double>>;

/// Splits off the smallest prime factor; does not divide by n. `roots`: of 1, a multiple of n.
inline Complexes fourier(const Complexes& x, const Complexes& roots) {
  const size_t n = x.size();
  size_t p = 2;
  while (p < n && n % p) ++p;
  if (n == 1) return x;
  const size_t m = n / p;
  std::vector<Complexes> parts(p, Complexes(m));
  for (size_t i = 0; i < n; ++i) parts[i % p][i / p] = x[i];
  for (Complexes& part : parts) part = fourier(part, roots);
  Complexes y(n);
  for (size_t k = 0; k < n; ++k) {
    for (size_t r = 0; r < p; ++r) {
      y[k] += roots[k * r % n * (roots.size() / n)] * parts[r][k % m];
    }
  }
  return y;
}

/// From In to Out; of a real transform's spectrum only half of the last dimension is stored.
template <class In, class Out>
cufftResult execute(cufftHandle plan, const In* in, Out* out, int sign) {
  if (!plan) return CUFFT_INVALID_PLAN;
  const Library library("cuFFT");
  Library::need_device(in);
  Library::need_device(out);
  constexpr bool from_real = std::is_arithmetic_v<In>, to_real = std::is_arithmetic_v<Out>;
  const bool in_place = static_cast<const void*>(in) == out;
  const size_t rank = plan->n.size();
  const int last = plan->n[rank - 1];
  std::vector<int> place(rank);
  const auto offset = [&](const CufftLayout& l, bool real, int b) {
    const int extent = real                   ? in_place ? 2 * (last / 2 + 1) : last
                       : from_real || to_real ? last / 2 + 1
                                              : last;
    long long at = 0, all = 1;
    for (size_t d = 0; d < rank; ++d) {
      const int e = !l.embed.empty() ? l.embed[d] : d + 1 == rank ? extent : plan->n[d];
      at = at * e + place[d], all *= e;
    }
    return at * l.stride + b * (l.embed.empty() ? all : l.distance);
  };
  size_t count = 1;
  for (int n : plan->n) count *= static_cast<size_t>(n);
  const auto find_place = [&](size_t i) {
    for (size_t d = rank; d-- > 0; i /= plan->n[d]) place[d] = static_cast<int>(i % plan->n[d]);
  };
  for (int b = 0; b < plan->batch; ++b) {
    Complexes x(count);
    for (size_t i = 0; i < count; ++i) {
      find_place(i);
      if constexpr (from_real) {
        x[i] = in[offset(plan->in, true, b)];
      } else {
        const bool mirrored = to_real && place[rank - 1] > last / 2;
        for (size_t d = 0; mirrored && d < rank; ++d)
          place[d] = (plan->n[d] - place[d]) % plan->n[d];
        const In v = in[offset(plan->in, false, b)];
        x[i] = {v.x, mirrored ? -v.y : v.y};
      }
    }
    size_t step = count;
    for (int n : plan->n) {
      step /= static_cast<size_t>(n);
      Complexes roots(static_cast<size_t>(n));
      for (int k = 0; k < n; ++k) roots[k] = std::polar(1.0, sign * 2 * M_PI * k / n);
      for (size_t i = 0; i < count; ++i) {
        if (i / step % static_cast<size_t>(n)) continue;
        Complexes line(static_cast<size_t>(n));
        for (size_t k = 0; k < line.size(); ++k) line[k] = x[i + k * step];
        line = fourier(line, roots);
        for (size_t k = 0; k < line.size(); ++k) x[i + k * step] = line[k];
      }
    }
    for (size_t i = 0; i < count; ++i) {
      find_place(i);
      if constexpr (to_real) {
        out[offset(plan->out, true, b)] = static_cast<Out>(x[i].real());
      } else if (!from_real || place[rank - 1] <= last / 2) {
        using R = decltype(out->x);
        out[offset(plan->out, false, b)] = {static_cast<R>(x[i].real()),
                                            static_cast<R>(x[i].imag())};
      }
    }
  }
  return CUFFT_SUCCESS;
}

}  // namespace sim::any

inline cufftResult cufftCreate(cufftHandle* plan) {
  *plan = new CufftPlan;
  return CUFFT_SUCCESS;
}
inline cufftResult cufftDestroy(cufftHandle plan) { return delete plan, CUFFT_SUCCESS; }
inline cufftResult cufftSetStream(cufftHandle, cudaStream_t) { return CUFFT_SUCCESS; }
inline cufftResult cufftMakePlanMany(cufftHandle plan, int rank, int* n, int* in_embed,
                                     int in_stride, int in_distance, int* out_embed, int out_stride,
                                     int out_distance, cufftType, int batch, size_t* work) {
  *plan = {{n, n + rank}, {}, {}, batch};
  if (in_embed) plan->in = {{in_embed, in_embed + rank}, in_stride, in_distance};
  if (out_embed) plan->out = {{out_embed, out_embed + rank}, out_stride, out_distance};
  if (work) *work = 0;
  return CUFFT_SUCCESS;
}
inline cufftResult cufftPlanMany(cufftHandle* plan, int rank, int* n, int* in_embed, int in_stride,
                                 int in_distance, int* out_embed, int out_stride, int out_distance,
                                 cufftType type, int batch) {
  cufftCreate(plan);
  return cufftMakePlanMany(*plan, rank, n, in_embed, in_stride, in_distance, out_embed, out_stride,
                           out_distance, type, batch, nullptr);
}
inline cufftResult cufftPlan1d(cufftHandle* plan, int n, cufftType, int batch) {
  *plan = new CufftPlan{{n}, {}, {}, batch};
  return CUFFT_SUCCESS;
}
inline cufftResult cufftPlan2d(cufftHandle* plan, int n0, int n1, cufftType) {
  *plan = new CufftPlan{{n0, n1}, {}, {}};
  return CUFFT_SUCCESS;
}
inline cufftResult cufftPlan3d(cufftHandle* plan, int n0, int n1, int n2, cufftType) {
  *plan = new CufftPlan{{n0, n1, n2}, {}, {}};
  return CUFFT_SUCCESS;
}
#define SIM_FFT(name, In, Out, parameter, sign)                                      \
  inline cufftResult cufftExec##name(cufftHandle plan, In* in, Out* out parameter) { \
    return sim::any::execute(plan, in, out, sign);                                   \
  }
#define SIM_DIRECTION , int direction
SIM_FFT(C2C, cufftComplex, cufftComplex, SIM_DIRECTION, direction)
SIM_FFT(Z2Z, cufftDoubleComplex, cufftDoubleComplex, SIM_DIRECTION, direction)
SIM_FFT(R2C, cufftReal, cufftComplex, , -1)
SIM_FFT(D2Z, cufftDoubleReal, cufftDoubleComplex, , -1)
SIM_FFT(C2R, cufftComplex, cufftReal, , 1)
SIM_FFT(Z2D, cufftDoubleComplex, cufftDoubleReal, , 1)
#undef SIM_DIRECTION
#undef SIM_FFT
