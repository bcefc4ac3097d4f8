"""ptxas_report.py: finds spills, stack frames and serialised wgmma, and passes a clean kernel."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import ptxas_report  # noqa: E402

CLEAN = """
__global__ void reverse(float* x) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[31 - threadIdx.x];
}
"""

# 64 values live across the barrier, and 32 registers a thread.
SPILLS = """
__global__ void __launch_bounds__(1024, 2) spills(float* x) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[i] = x[threadIdx.x + i * 1024];
  __syncthreads();
  for (int i = 0; i < 64; ++i) x[threadIdx.x + i * 1024] = v[i] * v[63 - i];
}
"""

# An index that is known at run time only moves the array out of the registers.
STACK = """
__global__ void indexed(float* x, const int* k) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[k[i] & 63] = x[i];
  x[0] = v[k[64] & 63];
}
"""

SERIALISED = """\
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to non wgmma instructions defining accumulator registers of a wgmma between start and end of \
the pipeline stage in the function '_Z1kPf'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90a'
ptxas info    : Function properties for _Z1kPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 1024 bytes smem
ptxas info    : Compiling entry function '_Z1jPf' for 'sm_90a'
ptxas info    : Function properties for _Z1jPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""


class Parse(unittest.TestCase):
    def test_serialised_wgmma_belongs_to_its_kernel(self):
        k, j = ptxas_report.parse(SERIALISED)
        self.assertEqual((k.name, k.registers, k.smem, k.serialised, k.clean),
                         ("_Z1kPf", 168, 1024, True, False))
        self.assertEqual((j.name, j.registers, j.serialised, j.clean), ("_Z1jPf", 40, False, True))

    def test_steps_and_their_architectures(self):
        steps = dict(ptxas_report.steps_and_needs())
        self.assertEqual(steps["01_naive"], "sm_80")
        for name in steps:
            self.assertTrue(os.path.exists(os.path.join(ROOT, "steps", name, "main.cu")), name)


@unittest.skipUnless(ptxas_report.find_nvcc(), "no nvcc here")
class Compile(unittest.TestCase):
    def report(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "kernel.cu")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return subprocess.run(
                [sys.executable, os.path.join(ROOT, "scripts", "ptxas_report.py"), "--out", folder,
                 path], capture_output=True, text=True)

    def test_clean(self):
        done = self.report(CLEAN)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        cells = done.stdout.splitlines()[1].split()
        self.assertEqual((cells[1], cells[3:]), ("sm_80", ["128", "0", "0", "reverse"]))

    def test_spills(self):
        done = self.report(SPILLS)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"finding: kernel: spills has .*\d+ bytes of spills")

    def test_stack_frame(self):
        done = self.report(STACK)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("finding: kernel: indexed has a stack frame of 256 bytes", done.stdout)

    def test_does_not_compile(self):
        done = self.report("__global__ void k() { nonsense }")
        self.assertEqual(done.returncode, 1)
        self.assertIn("does not compile", done.stdout)
        self.assertIn("nonsense", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
