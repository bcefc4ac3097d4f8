// cuFFT: sizes with odd factors, real numbers in place, two dimensions, and rows at a distance.
#include <cufft.h>
#include <math.h>

#include "check.h"

#define FFT(call) EXPECT((call) == CUFFT_SUCCESS)
static bool near(double a, double b) { return fabs(a - b) < 1e-4; }

int main() {
  const int n = 12, rows = 3;
  cufftComplex* z = room<cufftComplex>(n * rows);
  cufftHandle plan;
  for (int i = 0; i < n; ++i) z[i].x = cos(2 * M_PI * 2 * i / n), z[i].y = i == 0;
  FFT(cufftPlan1d(&plan, n, CUFFT_C2C, 1));
  FFT(cufftExecC2C(plan, z, z, CUFFT_FORWARD));
  CHECK(cudaDeviceSynchronize());
  for (int k = 0; k < n; ++k) EXPECT(near(z[k].x, k == 2 || k == 10 ? 6 : 0) && near(z[k].y, 1));
  FFT(cufftExecC2C(plan, z, z, CUFFT_INVERSE));
  CHECK(cudaDeviceSynchronize());
  EXPECT(near(z[0].x, n) && near(z[0].y, n) && near(z[6].x, n) && near(z[1].x, n / 2));
  FFT(cufftDestroy(plan));

  float* x = room<float>(rows * (n + 2));  // in place: padded rows
  for (int i = 0; i < rows * n; ++i) x[i / n * (n + 2) + i % n] = i * i % 7;
  FFT(cufftPlan2d(&plan, rows, n, CUFFT_R2C));
  FFT(cufftExecR2C(plan, x, (cufftComplex*)x));
  CHECK(cudaDeviceSynchronize());
  double sum = 0, re = 0, im = 0;  // the first coefficient, and that of row 1, column 2
  for (int i = 0; i < rows * n; ++i) {
    const double angle = -2 * M_PI * (1. * (i / n) / rows + 2. * (i % n) / n);
    sum += i * i % 7, re += i * i % 7 * cos(angle), im += i * i % 7 * sin(angle);
  }
  EXPECT(near(x[0], sum) && near(x[n + 2 + 4], re) && near(x[n + 2 + 5], im));
  FFT(cufftDestroy(plan));
  FFT(cufftPlan2d(&plan, rows, n, CUFFT_C2R));
  FFT(cufftExecC2R(plan, (cufftComplex*)x, x));
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < rows * n; ++i) {
    EXPECT(near(x[i / n * (n + 2) + i % n], rows * n * (i * i % 7)));
  }
  FFT(cufftDestroy(plan));

  int size = 4;  // two transforms of every second number
  for (int i = 0; i < 16; ++i) z[i].x = i, z[i].y = 0;
  FFT(cufftPlanMany(&plan, 1, &size, &size, 2, 8, &size, 1, 4, CUFFT_C2C, 2));
  FFT(cufftExecC2C(plan, z, z + 16, CUFFT_FORWARD));
  CHECK(cudaDeviceSynchronize());
  EXPECT(near(z[16].x, 0 + 2 + 4 + 6) && near(z[20].x, 8 + 10 + 12 + 14) && near(z[18].x, -4));
  FFT(cufftDestroy(plan));
  return verdict();
}
