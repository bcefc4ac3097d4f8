// cuFFT: sizes with odd factors, real numbers in place, two dimensions, strided rows.
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

  // Spectra of unpadded reals, and back; batches of a plan; fp64; three dimensions.
  double* d = room<double>(2 * 5);
  cufftDoubleComplex* s = room<cufftDoubleComplex>(2 * 3);
  for (int i = 0; i < 10; ++i) d[i] = i * i % 7 + (i == 9);
  FFT(cufftPlan1d(&plan, 5, CUFFT_D2Z, 2));
  FFT(cufftExecD2Z(plan, d, s));
  CHECK(cudaDeviceSynchronize());
  for (int b = 0; b < 2; ++b) {
    for (int k = 0; k < 3; ++k) {
      double right[2] = {};
      for (int i = 0; i < 5; ++i) {
        right[0] += d[5 * b + i] * cos(2 * M_PI * k * i / 5);
        right[1] -= d[5 * b + i] * sin(2 * M_PI * k * i / 5);
      }
      EXPECT(near(s[3 * b + k].x, right[0]) && near(s[3 * b + k].y, right[1]));
    }
  }
  FFT(cufftDestroy(plan));
  double* again = room<double>(10);
  FFT(cufftPlan1d(&plan, 5, CUFFT_Z2D, 2));
  FFT(cufftExecZ2D(plan, s, again));
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < 10; ++i) EXPECT(near(again[i], 5 * d[i]));
  FFT(cufftDestroy(plan));
  cufftDoubleComplex* cube = room<cufftDoubleComplex>(2 * 3 * 4);
  cube[(1 * 3 + 2) * 4 + 3] = {1, 0};  // at 1, 2, 3 of 2 x 3 x 4
  FFT(cufftPlan3d(&plan, 2, 3, 4, CUFFT_Z2Z));
  FFT(cufftExecZ2Z(plan, cube, cube, CUFFT_FORWARD));
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < 24; ++i) {
    const double turn = i / 12 * 1 / 2. + i / 4 % 3 * 2 / 3. + i % 4 * 3 / 4.;
    EXPECT(near(cube[i].x, cos(2 * M_PI * turn)) && near(cube[i].y, -sin(2 * M_PI * turn)));
  }
  FFT(cufftDestroy(plan));
  EXPECT(cufftExecZ2Z(cufftHandle{}, cube, cube, CUFFT_FORWARD) == CUFFT_INVALID_PLAN);
  size_t work = 1;
  int five = 5, wide = 6;  // strided rows, every second number of the result
  FFT(cufftCreate(&plan));
  FFT(cufftMakePlanMany(plan, 1, &five, &five, 1, 5, &wide, 2, 1, CUFFT_D2Z, 1, &work));
  FFT(cufftExecD2Z(plan, d + 5, cube));
  CHECK(cudaDeviceSynchronize());
  EXPECT(work == 0 && near(cube[0].x, s[3].x) && near(cube[2].x, s[4].x) &&
         near(cube[4].y, s[5].y));
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
