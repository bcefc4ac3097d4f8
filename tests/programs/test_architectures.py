"""common/gpu/architectures.cmake with stubs of nvcc and nvidia-smi: needs neither."""

import os

from copies import ROOT, Folder, main, said

NVCC_12 = "50 52 60 70 75 80 86 87 89 90"
NVCC_13 = "75 80 86 87 88 89 90 100 110 103 120 121"


class Architectures(Folder):
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

    def chosen(self, needs, **machine):
        done = self.ended(self.run_cmake(needs, **machine))
        return done.stderr.partition("RESULT ")[2].partition(" COMMON")[0]

    def test_the_gpu_that_is_there(self):
        self.assertEqual(self.chosen("", gpus="9.0"), "90-real")
        self.assertEqual(self.chosen("sm_80", gpus="9.0"), "90-real")
        self.assertEqual(self.chosen("", gpus="9.0 9.0 8.6"), "90-real;86-real")
        self.assertEqual(self.chosen("sm_80", gpus="7.5 8.6"), "86-real")

    def test_an_a_step_is_compiled_for_that_architecture_whatever_is_there(self):
        for machine in (dict(gpus="9.0"), dict(gpus="8.6"), dict(), dict(override="80")):
            self.assertEqual(self.chosen("sm_90a", **machine), "90a-real")

    def test_a_step_with_older_kernels_too_takes_them_where_no_gpu_runs_the_newest(self):
        both = "sm_90a;sm_80"
        overrides = ("80;90", "90a", "90a-real", "native", "all-major")
        machines = [dict(override=override) for override in overrides]
        for machine in (dict(gpus="9.0"), dict(gpus="8.0 9.0"), dict(), *machines):
            self.assertEqual(self.chosen(both, **machine), "90a-real", machine)
            self.assertIn("OLDER FALSE", self.run_cmake(both, **machine).stderr)
        for machine in (dict(gpus="8.0 8.6"), dict(override="80"), dict(override="120a-real")):
            self.assertIn("OLDER TRUE", self.run_cmake(both, **machine).stderr)
        for needs in ("", "sm_80", "sm_90a"):
            self.assertIn("OLDER FALSE", self.run_cmake(needs).stderr)
        self.assertEqual(self.chosen(both, gpus="8.0 8.6"), "80-real;86-real")
        self.assertEqual(self.chosen(both, override="75;80;120"), "80;120")
        self.assertEqual(self.chosen(both, override="120a-real"), "120a-real")
        self.assertEqual(self.chosen(both, gpus="12.0", codes=NVCC_12), "90-virtual")
        self.assertEqual(self.chosen(both, gpus="7.5"), "80")  # runs nowhere here, but compiles

    def test_no_gpu_takes_the_oldest_that_step_and_nvcc_allow(self):
        self.assertEqual(self.chosen("", codes=NVCC_12), "50")
        self.assertEqual(self.chosen(""), "75")
        self.assertEqual(self.chosen("sm_80"), "80")
        self.assertEqual(self.chosen("sm_80", gpus="7.5"), "80")  # runs nowhere here, but compiles

    def test_an_nvcc_older_than_the_gpu_makes_ptx(self):
        self.assertEqual(self.chosen("", codes=NVCC_12, gpus="12.0"), "90-virtual")

    def test_a_gpu_older_than_the_nvcc_is_named(self):
        done = self.ended(self.run_cmake("", gpus="6.1"))
        self.assertIn("makes no code for a GPU of sm_61", done.stderr)
        self.assertIn("RESULT 75 ", done.stderr)

    def test_the_user_overrides(self):
        self.assertEqual(self.chosen("", gpus="9.0", override="86;90-virtual"), "86;90-virtual")
        self.assertEqual(self.chosen("sm_80", override="75;86"), "86")
        self.assertEqual(self.chosen("", override="native"), "native")

    def test_what_cannot_be_compiled_is_refused_in_one_sentence(self):
        for needs, codes, words in (
            ("sm_90a", "75 80", "makes no code for sm_90a"),
            ("", "", "it must be the nvcc of CUDA 12.4 or newer"),
            ("hopper", NVCC_13, "expected sm_NN or sm_NNa"),
        ):
            done = self.run_cmake(needs, codes=codes)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, " ".join(done.stderr.split()))


if __name__ == "__main__":
    main()
