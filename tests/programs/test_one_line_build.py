"""The nvcc line of docs/gpu.md builds the step without CMake; without a GPU the program says so.

nvcc passes the .cpp files to g++. A stand-in for g++ takes those that do not depend on the backend
from the build folder, and forwards the others to the real one.
"""

import re
import shutil
import unittest

from copies import BUILD, ROOT, Folder, main, said
from flash_steps.nvcc import find_nvcc

NVCC = find_nvcc()

HOST_COMPILER = """#!/usr/bin/env python3
import glob, os, shutil, sys
UNIT = "@BUILD@/common/sim/CMakeFiles/fa_cold.dir/Unity/unity_counts_cxx.cxx.o"
words = sys.argv[1:]
sources = [w for w in words if w.startswith("common/") and w.endswith(".cpp")]
BACKEND = "FA_", "dialect/", "device_memory", "multiprocessors"
def knows_nothing(path):
    code = open(path).read()
    for word in "FA_WIDE_", "FA_DATA_DIR", "dialect/errors":
        code = code.replace(word, "")
    return not any(word in code for word in BACKEND)
if "-c" in words and len(sources) == 1 and knows_nothing(sources[0]):
    found = glob.glob("@BUILD@/common/CMakeFiles/*/" + sources[0][7:] + ".o")
    if "/counts/" in sources[0] and "clock" not in sources[0]:  # the unit has all of them
        if "json" not in sources[0]:
            out = words[words.index("-o") + 1]
            os.execvp("g++", ["g++", "-x", "c++", "-c", "/dev/null", "-o", out])
        found = [UNIT]
    for built in found:
        with open("@LOG@", "a") as log:
            print(sources[0], file=log)
        shutil.copy(built, words[words.index("-o") + 1])
        sys.exit()
os.execvp("g++", ["g++", *words])
"""


@unittest.skipUnless(NVCC, "nvcc is not installed")
class OneLineBuild(Folder):
    def test_builds_and_refuses_without_a_gpu(self):
        page = (ROOT / "docs/gpu.md").read_text()
        command = re.search(r"```sh\n(nvcc .*?)```", page, re.DOTALL)[1]
        program, log = self.folder / "01_naive", self.folder / "log"
        text = HOST_COMPILER.replace("@BUILD@", str(BUILD)).replace("@LOG@", str(log))
        compiler = self.program("g++", text)
        for old, new in (  # -O0: it will only be refused
            ("nvcc ", f"{NVCC} "),
            ("-o 01_naive", f"-o {program}"),
            (" -O3 ", f" -O0 -ccbin {compiler} "),
        ):
            self.assertIn(old, command)
            command = command.replace(old, new, 1)
        self.ended(said(["bash", "-c", command], cwd=ROOT))
        taken = {f"common/{x}.cpp" for x in ("harness/report", "program/step_main", "counts/json")}
        self.assertLessEqual(taken, set(log.read_text().split()))
        done = said([program, "--n", "64"], cwd=ROOT)
        if shutil.which("nvidia-smi"):
            self.assertIn(done.returncode, (0, 3), done.stderr)
        else:
            words = "no GPU found: run build/sim/steps/01_naive in the simulator instead\n"
            self.refused(done, 3, f"01_naive: {words}")
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    main()
