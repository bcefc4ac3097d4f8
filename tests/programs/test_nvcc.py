"""maintain ptxas_report: finds spills, stack frames and serialised wgmma, passes a clean kernel,
and keeps common/data/registers.json up to date."""

import json
import os
import shutil
import unittest

from copies import ROOT, Folder, copy_scripts, main, maintain
from flash_steps import nvcc, ptxas_report, steps
from flash_steps.files import read_json

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


class Parse(Folder):
    def test_serialised_wgmma_belongs_to_its_kernel(self):
        k, j = ptxas_report.parse(SERIALISED)
        self.assertEqual((k.name, k.registers, k.smem, k.clean), ("_Z1kPf", 168, 1024, False))
        [fault] = k.faults
        self.assertRegex(
            fault, r"^C7510 \(wgmma.mma_async .* serialized due to non wgmma .* stage\)$"
        )
        self.assertEqual((j.name, j.registers, j.faults), ("_Z1jPf", 40, []))

    def test_steps_and_their_architectures(self):
        known = dict(steps.steps_and_needs())
        self.assertIsNone(known["01_naive"])
        self.assertEqual(known["07_tensor_cores"], "sm_80")
        self.assertEqual(known["10_warp_specialized"], "sm_90a")
        for name in known:
            self.assertTrue(os.path.exists(os.path.join(ROOT, "steps", name, "main.cu")), name)

    def test_every_step_is_compiled_for_the_architecture_of_the_file(self):
        for needs, arches in (
            (None, ("sm_80", "sm_90")),
            ("sm_80", ("sm_80", "sm_90")),
            ("sm_89", ("sm_89", "sm_90")),
            ("sm_90", ("sm_90",)),
            ("sm_90a", ("sm_90a",)),
        ):
            self.assertEqual(nvcc.arches_of(needs), arches)

    def test_every_architecture_is_what_the_step_and_the_toolkit_allow(self):
        knows = "#!/bin/sh\nprintf 'sm_75\\nsm_80\\nsm_87\\nsm_89\\nsm_90\\n'\n"
        fake = str(self.program("nvcc", knows))
        for needs, arches in (
            (None, ("sm_75", "sm_80", "sm_89", "sm_90")),
            ("sm_80", ("sm_80", "sm_89", "sm_90")),
            ("sm_90a", ("sm_90a",)),
        ):
            self.assertEqual(nvcc.every_arch_of(needs, fake), arches)

    @unittest.skipUnless(shutil.which("c++filt"), "no c++filt here")
    def test_names_are_the_simulators(self):
        self.assertEqual(
            nvcc.demangled(["_ZN6step041kILi64EEEvPKf", "plain", "_ZN3abc1mILNS_1EE1EEEvPf"]),
            ["step04::k<64>", "plain", "abc::m<(abc::E)1>"],
        )


class Compare(Folder):
    """What is said of a file, against kernels that ptxas has just seen."""

    def setUp(self):
        super().setUp()
        self.path = str(self.folder / "registers.json")
        self.kernels = {
            "step01::k<64>": ptxas_report.Kernel("", 40, 512),
            "mine::k": ptxas_report.Kernel("", 20, 0),
        }
        ptxas_report.write_registers(self.path, "13.0.1", "0123456789abcdef", self.kernels)

    def compare(self, version="13.0.1", all_steps=True):
        return ptxas_report.compare_registers(
            self.path, version, self.kernels, {"step01::k<64>"}, all_steps
        )

    def test_what_was_written_is_right(self):
        written = read_json(self.path)
        self.assertEqual(written["nvcc"], "13.0.1")
        expected = {"step01::k<64>": {"registers": 40, "shared_bytes": 512}}
        expected["mine::k"] = {"registers": 20, "shared_bytes": 0}
        self.assertEqual(written["kernels"], expected)
        self.assertEqual(self.compare(), (None, None))

    def test_another_figure(self):
        for change in ({"registers": 41}, {"smem": 1024}):
            with self.subTest(**change):
                self.setUp()
                for key, value in change.items():
                    setattr(self.kernels["step01::k<64>"], key, value)
                finding, _ = self.compare()
                self.assertIn("gives step01::k<64> 40 registers and 512 B", finding)
                self.assertIn("--update", finding)
                self.assertEqual(len(finding.splitlines()), 1)

    def test_a_steps_kernel_must_be_there_a_users_need_not(self):
        ptxas_report.write_registers(self.path, "13.0.1", "0123456789abcdef", {})
        self.assertIn("lacks step01::k<64>:", self.compare()[0])
        del self.kernels["step01::k<64>"]
        self.assertEqual(self.compare(), (None, None))

    def test_a_kernel_that_is_gone(self):
        del self.kernels["mine::k"]
        self.assertIn("holds mine::k, which no step has", self.compare()[0])
        self.assertEqual(self.compare(all_steps=False), (None, None))

    def test_several_faults_are_one_sentence(self):
        for kernel in self.kernels.values():
            kernel.registers += 8
        self.assertIn("(and 1 more like this)", self.compare()[0])

    def test_another_nvcc_is_not_compared(self):
        self.kernels["step01::k<64>"].registers += 8
        finding, remark = self.compare(version="12.4.99")
        self.assertIsNone(finding)
        self.assertIn("comes from nvcc 13.0.1, this is 12.4.99: not compared", remark)

    def test_no_file_or_a_damaged_one(self):
        for words in ("{", "[]", "{}", '{"nvcc": "13.0.1", "kernels": {"k": {}}}', None):
            if words is None:
                os.remove(self.path)
            else:
                self.write(self.path, words)
            finding, _ = self.compare()
            self.assertIn("common/data/registers.json cannot be read", finding, words)
            self.assertIn("--update", finding)
            self.assertEqual(len(finding.splitlines()), 1)


@unittest.skipUnless(nvcc.find_nvcc() and shutil.which("c++filt"), "no nvcc or no c++filt here")
class Update(Folder):
    """A repository of one small step."""

    def setUp(self):
        super().setUp()
        for path, text in (
            ("steps/CMakeLists.txt", "fa_step(01_small)\n"),
            ("steps/01_small/main.cu", CLEAN),
            ("steps/01_small/step.cuh", ""),
        ):
            self.write(path, text)
        self.registers = self.folder / "common/data/registers.json"
        self.registers.parent.mkdir(parents=True)
        copy_scripts(self.folder)

    def run_report(self, *args):
        done = maintain("ptxas_report", *map(str, args), root=self.folder)
        return done.returncode, done.stdout, done.stderr

    def test_update_then_check(self):
        status, out, _ = self.run_report()
        self.assertEqual(status, 1)
        self.assertIn("finding: common/data/registers.json cannot be read", out)
        status, out, _ = self.run_report("--update")
        self.assertEqual(status, 0, out)
        written = read_json(self.registers)
        self.assertRegex(written["nvcc"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(list(written["kernels"]), ["reverse"])
        self.assertEqual(written["kernels"]["reverse"]["shared_bytes"], 128)
        self.assertGreater(written["kernels"]["reverse"]["registers"], 3)
        status, out, _ = self.run_report()
        self.assertEqual((status, out.count("finding")), (0, 0), out)
        self.assertIn(" reverse", out)

        self.write("steps/01_small/main.cu", CLEAN.replace("s[32]", "s[64]"))
        status, out, _ = self.run_report("01_small")
        self.assertEqual(status, 1)
        self.assertRegex(
            out,
            r"finding: .*registers.json gives reverse \d+ registers and 128 B of "
            r"shared memory, ptxas \d+ and 256: run ./scripts/maintain ptxas_report",
        )

    def test_what_this_nvcc_has_seen_is_not_compiled_again(self):
        status, out, _ = self.run_report("--changed")
        self.assertEqual(status, 1)  # there is no file yet
        self.assertEqual(self.run_report("--update")[0], 0)
        for text in (CLEAN, "// a comment\n" + CLEAN):
            self.write("steps/01_small/main.cu", text)
            status, out, _ = self.run_report("--changed")
            self.assertEqual((status, len(out.splitlines())), (0, 1), out)
            self.assertRegex(
                out, r"nvcc \d+\.\d+\.\d+ found them clean: common/data/registers.json"
            )
        written = read_json(self.registers)
        for change in ({"nvcc": "12.4.99"}, {"text": "0123456789abcdef"}, {"text": None}):
            self.registers.write_text(json.dumps({**written, **change}))
            self.assertIn(" reverse", self.run_report("--changed")[1], change)
        self.registers.write_text(json.dumps(written))
        self.write("common/harness/small.h", "inline int two() { return 2; }\n")
        self.write("steps/01_small/main.cu", '#include "common/harness/small.h"\n' + CLEAN)
        self.assertIn(" reverse", self.run_report("--changed")[1])
        self.assertEqual(self.run_report("--update")[0], 0)
        self.assertNotIn(" reverse", self.run_report("--changed")[1])
        for text in ("nonsense\n", "#include <nowhere.h>\ninline int two() { return 2; }\n"):
            self.write("common/harness/small.h", text)
            status, out, _ = self.run_report("--changed")
            self.assertEqual(status, 1)
            self.assertIn("finding: 01_small does not compile", out)

        self.write("common/harness/small.h", "inline int two() { return 2; }\n")
        self.write("steps/CMakeLists.txt", "fa_step(01_small)\nfa_step(mine)\n")
        self.write("steps/mine/main.cu", STACK)
        status, out, _ = self.run_report("--changed")
        self.assertEqual((status, out.count(" reverse")), (1, 0), out)
        self.assertIn("finding: mine: indexed has a stack frame", out)

    def test_what_does_not_go_together_is_refused(self):
        for words in (
            *(("--changed", more) for more in ("--update", "--every-arch", "01_small")),
            ("--update", "01_small"),
        ):
            status, _, error = self.run_report(*words)
            self.assertEqual((status, len(error.splitlines())), (2, 1), error)
        self.assertIn("--update compiles all steps", error)

    def test_a_finding_leaves_the_file_alone(self):
        self.write("steps/01_small/main.cu", STACK)
        status, out, _ = self.run_report("--update")
        self.assertEqual(status, 1, out)
        self.assertNotIn("registers.json", out)
        self.assertFalse(self.registers.exists())

    def test_a_file_that_spills(self):
        path = self.write("kernel.cu", SPILLS)
        status, out, _ = self.run_report("--out", self.folder, path)
        self.assertEqual(status, 1, out)
        self.assertRegex(out, r"finding: kernel: spills has .*\d+ bytes of spills")


if __name__ == "__main__":
    main()
