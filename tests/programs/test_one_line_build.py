"""The nvcc line of chapter 01 builds the step without CMake; without a GPU the program says so.

nvcc hands the .cpp files to g++. Those that know nothing of the backend are in the build folder
already; a stand-in for g++ takes them from there and leaves everything else to the real one.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILD = None  # the build folder that ctest passes
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


HOST_COMPILER = """#!/usr/bin/env python3
import os, re, shutil, sys
words = sys.argv[1:]
sources = [w for w in words if w.startswith("common/") and w.endswith(".cpp")]
BACKEND = r"FA_(?!WIDE_)|dialect/(?!errors)|device_memory"
if "-c" in words and len(sources) == 1 and not re.search(BACKEND, open(sources[0]).read()):
    built = "@BUILD@/common/CMakeFiles/fa_common.dir/" + sources[0].removeprefix("common/") + ".o"
    if os.path.exists(built):
        with open("@LOG@", "a") as log:
            print(sources[0], file=log)
        shutil.copy(built, words[words.index("-o") + 1])
        sys.exit()
os.execvp("g++", ["g++", *words])
"""


@unittest.skipUnless(NVCC, "nvcc is not installed")
class OneLineBuild(unittest.TestCase):
    def test_builds_and_refuses_without_a_gpu(self):
        with open(os.path.join(ROOT, "steps/01_naive/worklog.md"), encoding="utf-8") as file:
            command = re.search(r"```sh\n(nvcc .*?)```", file.read(), re.DOTALL)[1]
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "01_naive")
            self.assertIn(" -O3 ", command)
            command = command.replace("nvcc ", NVCC + " ", 1).replace(
                "-o 01_naive", "-o " + program
            )
            log, compiler = os.path.join(folder, "log"), os.path.join(folder, "g++")
            with open(compiler, "w", encoding="utf-8") as file:
                file.write(HOST_COMPILER.replace("@BUILD@", BUILD).replace("@LOG@", log))
            os.chmod(compiler, 0o755)
            # It will not run, only say so.
            command = command.replace(" -O3 ", f" -O0 -ccbin {shlex.quote(compiler)} ")
            built = subprocess.run(
                ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True
            )
            self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
            with open(log, encoding="utf-8") as file:
                self.assertIn("common/harness/report.cpp", file.read().split())
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
    BUILD = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
