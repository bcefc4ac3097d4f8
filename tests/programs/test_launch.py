"""fa::launch refuses an argument that its kernel's parameter would narrow, in both compilers."""

import unittest

from copies import ROOT, Folder, main, said
from flash_steps.nvcc import find_nvcc

SENTENCE = "this argument may not fit the kernel's parameter"
SOURCE = """\
#include "common/dialect/cuda.h"
struct Shape {
  int N;
};
__global__ void kernel(const float*, int, float, size_t, unsigned, bool, Shape) {}
void host(float* p, int i, size_t n, double x, unsigned u, Shape s) {
"""
RIGHT = ["p", "i", "1.f", "n", "u", "true", "s"]
RIGHT_TOO = ["nullptr", "7", "0.5f", "u", "32u", "false", "Shape{4}"]  # each fits its parameter
WRONG = {  # place: arguments that do not fit there
    1: ["n", "x", "u", "2.5"],
    2: ["x", "i"],
    3: ["i", "x", "-1"],
    4: ["n", "i"],
    5: ["i"],
}


class Launch(Folder):
    def compile(self, command, calls):
        """The compiler's error; "" when it succeeds."""
        lines = [f"  fa::launch(kernel, {{1, 32}}, {', '.join(call)});\n" for call in calls]
        source = self.write("launch.cu", SOURCE + "".join(lines) + "}\n")
        done = said([*command, "-std=c++20", f"-I{ROOT}", source, "-o", self.folder / "out"])
        self.assertEqual(done.returncode != 0, SENTENCE in done.stderr, done.stderr)
        return done.stderr if done.returncode else ""

    def require(self, command):
        self.assertEqual(self.compile(command, [RIGHT, RIGHT_TOO]), "")
        wrong = [[*RIGHT[:at], x, *RIGHT[at + 1 :]] for at, words in WRONG.items() for x in words]
        said = self.compile(command, wrong)
        for i, call in enumerate(wrong):
            line = SOURCE.count("\n") + 1 + i
            self.assertRegex(said, rf"launch\.cu:{line}:|at line {line} of", call)

    def test_simulator(self):
        self.require(["g++", "-x", "c++", "-Wno-attributes", "-fsyntax-only"])

    @unittest.skipUnless(find_nvcc(), "no nvcc here")
    def test_gpu(self):
        self.require([find_nvcc(), "-ptx", "-Xcudafe", "--display_error_number"])


if __name__ == "__main__":
    main()
