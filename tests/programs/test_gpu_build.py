"""The build for a GPU where there is none: its architectures, the one line of docs/gpu.md, and the
messages between GPUs by way of the host's memory. The rest of copy_world.cpp needs GPUs."""

import os
import re
import shutil
import tempfile
import unittest

from copies import BUILD, ROOT, Folder, fake_gpu_compiler, main, said
from flash_steps import mpi
from flash_steps.nvcc import find_nvcc

NVCC = find_nvcc()
NVCC_12 = "50 52 60 70 75 80 86 87 89 90"
NVCC_13 = "75 80 86 87 88 89 90 100 110 103 120 121"

HOST_COMPILER = """#!/usr/bin/env python3
import glob, os, re, shutil, sys
UNITS = {  # each has all files of these names
    "counts/(?!clock|json)|harness/(npy|tensors)": "",
    "counts/json": "@BUILD@/common/sim/CMakeFiles/fa_cold.dir/Unity/unity_counts_cxx.cxx.o",
    "harness/inputs": "@BUILD@/common/CMakeFiles/fa_reference.dir/Unity/unity_inputs_cxx.cxx.o",
}
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
    found.sort(key=os.path.getmtime, reverse=True)  # an older target may have left another one
    for unit in (unit for files, unit in UNITS.items() if re.search(files, sources[0])):
        if not unit:
            out = words[words.index("-o") + 1]
            os.execvp("g++", ["g++", "-x", "c++", "-c", "/dev/null", "-o", out])
        found = [unit]
    for built in found:
        with open("@LOG@", "a") as log:
            print(sources[0], file=log)
        shutil.copy(built, words[words.index("-o") + 1])
        sys.exit()
os.execvp("g++", ["g++", *words])
"""


class Architectures(Folder):
    """common/gpu/architectures.cmake, with stubs of nvcc and nvidia-smi."""

    def run_cmake(self, needs, codes=NVCC_13, gpus="", override=None):
        """CMake's answer for a machine with these GPUs ("9.0 8.6") and an nvcc with these codes."""
        one = "#!/bin/sh\nfor c in %s; do echo %s$c; done\n"
        nvcc = self.program("nvcc", one % (codes, "sm_") if codes else "#!/bin/sh\nexit 1\n")
        none = "#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2; exit 9\n"
        self.program("nvidia-smi", one % (gpus, "") if gpus else none)
        script = self.write(
            "script.cmake",
            f"cmake_policy(VERSION 3.25)\ninclude({ROOT}/common/gpu/architectures.cmake)\n"
            f'fa_architectures(result "{needs}" older)\n'
            'message("RESULT ${result} COMMON ${CMAKE_CUDA_ARCHITECTURES} OLDER ${older}")\n',
        )
        command = ["cmake", f"-DCMAKE_CUDA_COMPILER={nvcc}"]
        command += [f"-DCMAKE_CUDA_ARCHITECTURES={override}"] if override else []
        path = f"{self.folder}:{os.environ['PATH']}"
        return said([*command, "-P", script], env={**os.environ, "PATH": path})

    def test_what_is_compiled_for(self):
        """That of the GPUs that run it; with none the oldest that step and nvcc allow."""
        both, twelve = "sm_90a;sm_80", dict(codes=NVCC_12)
        for needs, machine, chosen, older in (
            ("", dict(gpus="9.0"), "90-real", False),
            ("sm_80", dict(gpus="9.0"), "90-real", False),
            ("", dict(gpus="9.0 9.0 8.6"), "90-real;86-real", False),
            ("sm_80", dict(gpus="7.5 8.6"), "86-real", False),
            ("", twelve, "50", False),
            ("", {}, "75", False),
            ("sm_80", {}, "80", False),
            ("sm_80", dict(gpus="7.5"), "80", False),  # runs nowhere here, but compiles
            ("", dict(gpus="12.0", **twelve), "90-virtual", False),
            # As the user wishes.
            ("", dict(gpus="9.0", override="86;90-virtual"), "86;90-virtual", False),
            ("sm_80", dict(override="75;86"), "86", False),
            ("", dict(override="native"), "native", False),
            # An `a` step for that architecture, whatever is there.
            ("sm_90a", dict(gpus="8.6"), "90a-real", False),
            ("sm_90a", dict(override="80"), "90a-real", False),
            # A step with older kernels, too: these where no GPU runs the newest.
            *((both, dict(gpus=gpus), "90a-real", False) for gpus in ("9.0", "8.0 9.0", "")),
            *(
                (both, dict(override=override), "90a-real", False)
                for override in ("80;90", "90a", "90a-real", "native", "all-major")
            ),
            (both, dict(gpus="8.0 8.6"), "80-real;86-real", True),
            (both, dict(override="75;80;120"), "80;120", True),
            (both, dict(override="120a-real"), "120a-real", True),
            (both, dict(gpus="12.0", **twelve), "90-virtual", True),
            (both, dict(gpus="7.5"), "80", True),
        ):
            with self.subTest(needs=needs, machine=machine):
                said = self.ended(self.run_cmake(needs, **machine)).stderr
                self.assertEqual(said.partition("RESULT ")[2].partition(" COMMON")[0], chosen)
                self.assertIn(f"OLDER {str(older).upper()}", said)

    def test_a_gpu_older_than_the_nvcc_is_named(self):
        done = self.ended(self.run_cmake("", gpus="6.1"))
        self.assertIn("makes no code for a GPU of sm_61", done.stderr)
        self.assertIn("RESULT 75 ", done.stderr)

    def test_what_cannot_be_compiled_is_refused_in_one_sentence(self):
        for needs, codes, words in (
            ("sm_90a", "75 80", "makes no code for sm_90a"),
            ("", "", "it must be the nvcc of CUDA 12.4 or newer"),
            ("hopper", NVCC_13, "expected sm_NN or sm_NNa"),
        ):
            done = self.run_cmake(needs, codes=codes)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, " ".join(done.stderr.split()))


@unittest.skipUnless(NVCC, "nvcc is not installed")
class OneLineBuild(Folder):
    """The nvcc line of docs/gpu.md, without CMake. A stand-in for g++, which gets the .cpp files,
    takes those that do not depend on the backend from the build folder."""

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


class Messages(Folder):
    def mpi_flags(self):
        """Of g++, as CMake found them."""
        cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
        found = dict(re.findall(r"^(MPI_\w+?):\w+=(.*)$", cache, re.M))
        folders = found.get("MPI_CXX_COMPILER_INCLUDE_DIRS", "").split(";")
        names = [n for n in found.get("MPI_CXX_LIB_NAMES", "").split(";") if n]
        libraries = [found[f"MPI_{name}_LIBRARY"] for name in names]
        return [f"-I{folder}" for folder in folders if folder], libraries

    def test_each_rank_receives_what_its_neighbour_sent(self):
        flags, libraries = self.mpi_flags()
        if not libraries or not shutil.which("mpirun"):
            print("NOT RUN: messages by way of the host: no mpirun here, or no MPI", flush=True)
            raise unittest.SkipTest("no MPI")
        names = ("copy_world", "gpu_world", "mpi_world", "devices")
        sources = [ROOT / f"common/ranks/{name}.cpp" for name in names]
        sources += [ROOT / "tests/programs/fake_gpu/messages.cpp"]
        program = self.folder / "messages"
        how = ["-include", "several.h", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]
        self.ended(said([*fake_gpu_compiler(), *how, *flags, *sources, *libraries, "-o", program]))
        for ranks in (2, 3):
            environment = mpi.environment(tempfile.gettempdir())
            self.ended(said(["mpirun", "-n", ranks, program], timeout=60, env=environment))


if __name__ == "__main__":
    main()
