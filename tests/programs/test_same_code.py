"""maintain same_code: a step that only names things otherwise has the same machine code, and keeps
its results; a step with another constant has not."""

import os
import shutil
import sys
import tempfile
import unittest

from copies import copy_scripts, maintain
from flash_steps import nvcc, same_code, step_text

KERNEL = """
namespace step01 {
__device__ const float kTable[] = {1, 2, 3, 5, 8, 13, 21, 34};
__global__ void scale_kernel(float* x, int N) {
  __shared__ float s[32];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = i < N ? x[i] : 0.f;
  __syncthreads();
  if (i < N) x[i] = 2.5f * s[31 - threadIdx.x] * kTable[i % 8];
}
template <int d>
__global__ void fill_kernel(float* x) {
  x[threadIdx.x] = d;
}
template __global__ void fill_kernel<32>(float*);
template __global__ void fill_kernel<64>(float*);
}  // namespace step01
"""
OTHER = "namespace step02 {\n__global__ void other_kernel(int* x) { *x = %d; }\n}\n"
NEEDS = """
struct Step {
  const char* needs;
};
inline Step step() {
  return {
          .needs = "sm_90a"};
}
"""


class Names(unittest.TestCase):
    def test_a_kernels_step_is_that_of_its_namespace(self):
        for name, number in (
            ("_ZN6step0113scores_kernelILi64EEEvPKf", 1),
            ("_ZN18step10_specialized16flash_fwd_kernelIN6step106TilingEEEvv", 10),
            ("_ZN2my6step01E", None),
            ("reverse", None),
        ):
            self.assertEqual(same_code.step_of(name), number, name)


@unittest.skipUnless(nvcc.find_nvcc(), "no nvcc here")
class SameCode(unittest.TestCase):
    """Two small trees: `here` has the tools, `there` is before the change."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.here = os.path.join(folder.name, "here")
        self.there = os.path.join(folder.name, "there")
        copy_scripts(self.here)
        for root in (self.here, self.there):
            self.write(root, "steps/CMakeLists.txt", "fa_step(01_small)\nfa_step(02_other)\n")
            self.step(root, "01_small", "small.cuh", KERNEL)
            self.step(root, "02_other", "1_other.cuh", OTHER % 1, NEEDS)

    def step(self, root, name, file, kernel, more=""):
        """As a step is: main.cu includes the description, which includes the kernel."""
        self.write(root, f"steps/{name}/{file}", kernel)
        self.write(root, f"steps/{name}/step.cuh", f'#include "steps/{name}/{file}"\n{more}')
        self.write(root, f"steps/{name}/main.cu", f'#include "steps/{name}/step.cuh"\n')

    def write(self, root, path, text):
        path = os.path.join(root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def run_tool(self, *args, before=None):
        done = maintain("same_code", "--before", before or self.there, *args, root=self.here)
        self.assertNotIn("Traceback", done.stderr)
        return done.returncode, done.stdout, done.stderr

    def kernel_here(self, *changes):
        text = KERNEL
        for before, after in changes:
            self.assertIn(before, text)
            text = text.replace(before, after)
        self.write(self.here, "steps/01_small/small.cuh", text)

    def verdict(self):
        status, out, _ = self.run_tool("01")
        words = out.split()
        self.assertEqual(status, 0 if words[1] == "same" else 1, out)
        return words[1]

    def test_names_files_and_order_do_not_count(self):
        os.remove(os.path.join(self.here, "steps/01_small/small.cuh"))
        fill = KERNEL[KERNEL.index("template <int d>") : KERNEL.index("}  // namespace")]
        text = KERNEL.replace(fill, "").replace(
            "namespace step01 {", "namespace step01_new {\n" + fill
        )
        text = "\n\n" + text.replace("scale_kernel", "twist").replace("kTable", "kFactors")
        self.step(self.here, "01_small", "1_small.cuh", text.replace("s[", "sX["))
        status, out, _ = self.run_tool()
        self.assertEqual(status, 0, out)
        self.assertEqual(out.count("same "), 2)
        self.assertIn("3 kernels, sm_90", out)
        self.assertIn("1 kernel, sm_90a", out)  # as its description says

    def test_what_a_gpu_runs_counts(self):
        for change in (
            ("2.5f", "2.25f"),
            ("13, 21", "14, 21"),  # in a table beside the code
            ("s[32]", "s[33]"),
            ("i < N ?", "i <= N ?"),
            ("fill_kernel<32>", "fill_kernel<96>"),
        ):
            with self.subTest(change=change):
                self.kernel_here(change)
                self.assertEqual(self.verdict(), "differs")
        self.kernel_here(("template __global__ void fill_kernel<32>(float*);\n", ""))
        self.assertEqual(self.verdict(), "differs")  # a kernel is gone

    def test_another_steps_kernel_that_comes_along_does_not_count(self):
        along = OTHER.replace("step02", "step01") % 3
        self.write(self.here, "steps/02_other/1_other.cuh", along + OTHER % 1)
        self.assertEqual(self.run_tool("02")[0], 0)
        self.write(self.here, "steps/02_other/1_other.cuh", along + OTHER % 2)
        self.assertEqual(self.run_tool("02")[0], 1)

    def test_a_kernel_taken_from_the_parent_is_the_same(self):
        copy = KERNEL.replace("step01", "step02")
        self.write(self.there, "steps/02_other/1_other.cuh", copy)
        self.write(self.here, "steps/02_other/1_other.cuh", KERNEL)
        self.assertEqual(self.run_tool("02")[0], 0)

    def digests(self):
        """({step: its digest there}, the same here)"""
        step_text.digest_of.cache_clear()
        step_text.code_of_file.cache_clear()
        steps = ("01_small", "02_other")
        return [
            {s: step_text.digest_of(s, root) for s in steps} for root in (self.there, self.here)
        ]

    def results(self, text=None):
        path = "docs/results/gpu.json"
        if text is not None:
            self.write(self.here, path, text)
        with open(os.path.join(self.here, path), encoding="utf-8") as file:
            return file.read()

    RESTAMP = ("--restamp", "--same-launches")
    RENAMED = (("int i", "int n"), ("i <", "n <"), ("[i", "[n"))

    def test_restamp_follows_the_steps_that_are_the_same(self):
        self.kernel_here(*self.RENAMED)
        self.write(self.here, "steps/02_other/1_other.cuh", OTHER % 2)
        old, new = self.digests()
        for step in old:
            self.assertNotEqual(old[step], new[step])
        results = '{{"text": "{01_small}", "more": ["{02_other}", "{01_small}"]}}\n'
        self.results(results.format(**old))
        status, out, error = self.run_tool(*self.RESTAMP)
        self.assertEqual(status, 1)  # step 02 differs, and keeps the digest of what was measured
        self.assertIn("docs/results/gpu.json: 2 digests updated to this tree", out)
        self.assertEqual(error, "maintain same_code: 1 of 2 steps differ\n")
        self.assertEqual(self.results(), results.format(**{**old, "01_small": new["01_small"]}))
        self.assertEqual(self.run_tool("01", *self.RESTAMP)[0], 0)  # once more: nothing to do

    def test_restamp_leaves_a_step_that_takes_along_a_kernel_that_differs(self):
        """Its own kernels are the same, and its results come from the other's as well."""
        own = '#include "steps/01_small/small.cuh"\n' + OTHER % 1
        for root in (self.here, self.there):
            self.write(root, "steps/02_other/1_other.cuh", own)
        self.kernel_here(("2.5f", "2.25f"))
        old, new = self.digests()
        self.assertNotEqual(old["02_other"], new["02_other"])
        results = self.results('["{01_small}", "{02_other}"]\n'.format(**old))
        status, out, error = self.run_tool("02", *self.RESTAMP)
        self.assertEqual((status, self.results()), (1, results), out)
        self.assertRegex(out, r"(?m)^02_other +same ")
        self.assertIn("02_other keeps its digest: another step's kernel differs: step01::", out)
        self.assertEqual(error, "maintain same_code: not updated: 02_other\n")
        self.kernel_here(*self.RENAMED)
        self.assertEqual(self.run_tool("02", *self.RESTAMP)[0], 0)
        self.assertIn(self.digests()[1]["02_other"], self.results())

    def test_restamp_is_told_that_the_launches_are_the_same(self):
        results = self.results("[]\n")
        status, out, error = self.run_tool("--restamp", "--nvcc", "/no/nvcc")
        self.assertEqual((status, out, len(error.splitlines())), (2, "", 1))
        self.assertIn("--same-launches", error)
        self.assertEqual(self.results(), results)

    def test_restamp_names_a_step_that_was_not_measured_with_the_text_there(self):
        self.kernel_here(*self.RENAMED)
        results = self.results('{"text": "0123456789abcdef"}\n')
        status, _, error = self.run_tool(*self.RESTAMP)
        self.assertEqual((status, len(error.splitlines())), (1, 1), error)
        self.assertIn("01_small: no result in docs/results", error)
        self.assertEqual(self.results(), results)

    def test_what_is_not_there(self):
        status, _, error = self.run_tool(before="/nowhere")
        self.assertEqual((status, len(error.splitlines())), (2, 1))
        self.assertEqual(self.run_tool("77")[0], 2)
        shutil.rmtree(os.path.join(self.there, "steps", "02_other"))
        self.write(self.here, "steps/01_small/small.cuh", "nonsense")
        status, out, _ = self.run_tool()
        self.assertEqual(status, 1)
        self.assertRegex(
            out,
            r"01_small .*: does not compile here: .*small.cuh.*error.*\n02_other .*: not there",
        )


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
