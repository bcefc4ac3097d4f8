// fp8: conversions of one, two and four numbers, with and without saturation.
#include <cuda_fp8.h>

#include "check.h"

__global__ void convert(const float* in, float* out, __nv_fp8_e4m3* small) {
  const int i = threadIdx.x;
  small[i] = __nv_fp8_e4m3(in[i]);
  out[i] = float(small[i]);
  out[32 + i] = __half2float(__half(
      __nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(in[i], __NV_NOSAT, __NV_E5M2), __NV_E5M2)));
  if (i % 4 == 0) {
    const __nv_fp8x4_e5m2 four(make_float4(in[i], in[i + 1], in[i + 2], in[i + 3]));
    const float4 back = float4(four);
    reinterpret_cast<float4*>(out + 64)[i / 4] = back;
  }
}

int main() {
  float* in = room<float>(32);
  float* out = room<float>(96);
  __nv_fp8_e4m3* small = room<__nv_fp8_e4m3>(32);
  for (int i = 0; i < 32; ++i) in[i] = i / 8.f;
  in[28] = 1000, in[29] = -1e6, in[30] = 0.001f, in[31] = 17;
  convert<<<1, 32>>>(in, out, small);
  done();
  for (int i = 0; i <= 16; ++i) EXPECT(out[i] == in[i]);
  EXPECT(out[17] == 2.f && out[19] == 2.5f && out[28] == 448 && out[31] == 16);  // 4 bits, to even
  EXPECT(out[30] == 0.001953125f * (in[30] > 0.0009765625f));
  EXPECT(out[32 + 17] == 2 && out[32 + 28] == 1024 && out[32 + 29] < -1e9f && out[32 + 31] == 16);
  EXPECT(out[64 + 29] == -57344 && out[64 + 7] == 0.875f);
  EXPECT(small[8].__x == 0x38);
  EXPECT(__nv_cvt_float2_to_fp8x2(make_float2(1, 500), __NV_NOSAT, __NV_E4M3) == 0x7f38);
  // The largest number, the midpoint above it, and NaN.
  const auto bits = [](float x, bool nosat, bool e4m3) {
    return __nv_cvt_float_to_fp8(x, nosat ? __NV_NOSAT : __NV_SATFINITE,
                                 e4m3 ? __NV_E4M3 : __NV_E5M2);
  };
  EXPECT(bits(464, true, true) == 0x7e && bits(464.1f, true, true) == 0x7f);
  EXPECT(bits(464.1f, false, true) == 0x7e && bits(-1e9f, true, true) == 0xff);
  EXPECT(bits(61439, true, false) == 0x7b && bits(61440, true, false) == 0x7c);
  EXPECT(bits(-61440, true, false) == 0xfc && bits(61440, false, false) == 0x7b);
  EXPECT(bits(NAN, true, true) == 0x7f && (bits(NAN, true, false) & 0x7f) > 0x7c);
  const __nv_fp8x2_e4m3 two(make_float2(1, -2));
  EXPECT(two.__x == 0xc038 && float2(two).x == 1 && float2(two).y == -2);
  EXPECT(__nv_fp8x2_e5m2(__floats2half2_rn(1, -2)).__x == 0xc03c);
  EXPECT(__nv_fp8x2_e5m2(__floats2bfloat162_rn(1, -2)).__x == 0xc03c);
  const __nv_fp8x4_e4m3 four(__floats2half2_rn(1, -2), __floats2half2_rn(4, 8));
  EXPECT(four.__x == 0x5048c038 && float4(four).z == 4 && float4(four).w == 8);
  EXPECT(float(__half(__nv_cvt_fp8_to_halfraw(0x7b, __NV_E5M2))) == 57344);
  EXPECT(__nv_cvt_double_to_fp8(1.0625, __NV_SATFINITE, __NV_E4M3) == 0x38);  // a tie, to even
  EXPECT(__nv_cvt_double_to_fp8(1.1875 - 1e-12, __NV_SATFINITE, __NV_E4M3) == 0x39);
  EXPECT(__nv_cvt_double_to_fp8(1.0625 + 1e-12, __NV_SATFINITE, __NV_E4M3) == 0x39);
  return verdict();
}
