"""fa::launch refuses an argument that its kernel's parameter would narrow: a sentence in both
compilers. Argument: a build folder (not used)."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from flash_steps.nvcc import find_nvcc  # noqa: E402

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
WRONG = {  # place: what does not fit there
    1: ["n", "x", "u", "2.5"],
    2: ["x", "i"],
    3: ["i", "x", "-1"],
    4: ["n", "i"],
    5: ["i"],
}


class Launch(unittest.TestCase):
    def compile(self, command, calls):
        """What the compiler says; "" when it is content."""
        lines = [f"  fa::launch(kernel, {{1, 32}}, {', '.join(call)});\n" for call in calls]
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "launch.cu")
            with open(source, "w", encoding="utf-8") as file:
                file.write(SOURCE + "".join(lines) + "}\n")
            done = subprocess.run(
                [*command, "-std=c++20", f"-I{ROOT}", source, "-o", os.path.join(folder, "out")],
                capture_output=True,
                text=True,
            )
        self.assertEqual(done.returncode != 0, SENTENCE in done.stderr, done.stderr)
        return done.stderr if done.returncode else ""

    def require(self, command):
        self.assertEqual(self.compile(command, [RIGHT, RIGHT_TOO]), "")
        wrong = [
            [*RIGHT[:place], word, *RIGHT[place + 1 :]]
            for place, words in WRONG.items()
            for word in words
        ]
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
    unittest.main(argv=sys.argv[:1])
