"""The nvcc line of chapter 01 builds the step without CMake; without a GPU the program says so."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


@unittest.skipUnless(NVCC, "nvcc is not installed")
class OneLineBuild(unittest.TestCase):
    def test_builds_and_refuses_without_a_gpu(self):
        with open(os.path.join(ROOT, "steps/01_naive/README.md"), encoding="utf-8") as file:
            command = re.search(r"```sh\n(nvcc .*?)```", file.read(), re.DOTALL)[1]
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "01_naive")
            self.assertIn(" -O3 ", command)
            command = command.replace("nvcc ", NVCC + " ", 1).replace(
                "-o 01_naive", "-o " + program
            )
            command = command.replace(" -O3 ", " -O0 ")  # it will not run, only say so
            built = subprocess.run(
                ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True
            )
            self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
            done = subprocess.run([program, "--n", "64"], cwd=ROOT, capture_output=True, text=True)
        if shutil.which("nvidia-smi"):
            self.assertIn(done.returncode, (0, 3), done.stderr)
        else:
            self.assertEqual(done.returncode, 3)
            self.assertEqual(
                done.stderr,
                "01_naive: no GPU found: run build/sim/steps/01_naive in the simulator instead\n",
            )
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
