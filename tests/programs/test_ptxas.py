"""scripts/ptxas: finds spills, stack frames and remarks on wgmma, passes a clean kernel, keeps
common/data/registers.json up to date, and refuses bad input with one sentence."""

import os
import re
import shutil
import unittest
from unittest import mock

from copies import ROOT, Folder, for_all, main, typed
from flash_steps import nvcc, ptxas
from flash_steps.command import Failure
from flash_steps.files import read_json

PAGE = ROOT / "docs" / "ptxas.md"
PAGE_NVCC = "13.0"  # remarks differ between versions

# Output of ptxas 13.0: two remarks on one kernel, one on a function not inlined, one unnamed.
SAID = """\
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine \
register count at entry.
ptxas info    : (C7519) warpgroup.arrive is injected in around line 68 by compiler to allow use of \
registers in GMMA in function '_Z7productRA32_fmm'
ptxas info    : (C7519) warpgroup.arrive is injected in around line 70 by compiler to allow use of \
registers in GMMA in function '_Z4callPf'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to wgmma pipeline crossing function boundary at a function call in the function '_Z4callPf'
ptxas info    : Compiling entry function '_Z4callPf' for 'sm_90a'
ptxas info    : Function properties for _Z4callPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 63 registers, used 2 barriers, 16384 bytes smem
ptxas info    : Compiling entry function '_Z5otherPf' for 'sm_90a'
ptxas info    : Function properties for _Z5otherPf
    0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for _Z7productRA32_fmm
    8 bytes stack frame, 0 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers
"""

PTX = """\
	.loc	1 9 0
	.loc	1 12 5
	.loc	2 93 13, function_name $L__info_string3, inlined_at 1 12 5
	wgmma.mma_async
	.file	1 "/home/me/kernel.cuh"
	.file	2 "/home/me/common/dialect/ptx/wgmma.h"
"""

# 64 values live across the barrier, with 32 registers per thread.
SPILLS = """
__global__ void __launch_bounds__(1024, 2) spills(float* x) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[i] = x[threadIdx.x + i * 1024];
  __syncthreads();
  for (int i = 0; i < 64; ++i) x[threadIdx.x + i * 1024] = v[i] * v[63 - i];
}
"""

# Of nvcc as much as is asked of it.
NVCC = """#!/bin/sh
case $1 in
--version) echo 'release 13.0, V13.0.88'; exit ;;
--list-gpu-code) echo sm_75 sm_80 sm_89 sm_90 sm_100; exit ;;
esac
for word; do
  case $word in *.cu) source=$word ;; -ptx) ptx=yes ;; esac
done
[ ! $ptx ] || cat $source.ptx > $word
cat $source.said >&2
"""

# The loop of the page, in a kernel.
WGMMA = """\
#include <cstdio>
#include "common/dialect/cuda.h"
#include "common/dialect/ptx/ptx.h"

__global__ void __launch_bounds__(128) kernel(float* o, const float* x, int n) {
  __shared__ alignas(1024) char s[32768];
  const uint64_t a = fa::wgmma_descriptor(s, fa::Swizzle::b128, 16, 1024);
  const uint64_t b = fa::wgmma_descriptor(s + 8192, fa::Swizzle::b128, 16, 1024);
  float d[32] = {}, e[32] = {};
  for (int k = 0; k < n; ++k) {
    fa::wgmma_fence();
    fa::wgmma(d, a, b);
    fa::wgmma_commit();
    fa::wgmma_wait<0>();
    fa::pin_registers(d);
  }
  for (int i = 0; i < 32; ++i) o[i * 128 + threadIdx.x] = d[i] + e[i];
}
"""
FENCE = "    fa::wgmma_fence();\n"
E = "    fa::wgmma(e, a, b);\n"
END = "    fa::pin_registers(d);\n"  # of the loop
CALL = END + '    if (x[k] < 0.f) printf("%d", k);\n'
# A wait between two wgmma, after which the second one needs its own fence.
TWO = """\
    fa::wgmma_commit();
    fa::mbarrier_wait(reinterpret_cast<uint64_t*>(s), k & 1);
    fa::wgmma(e, a, b);
    fa::wgmma_commit();
    fa::wgmma_wait<0>();
    fa::pin_registers(e);
"""


class Words(Folder):
    def test_remarks_belong_to_the_function_that_they_name(self):
        call, other, product, nameless = sorted(
            ptxas.parse(SAID), key=lambda k: (not k.entry, k.name == "", k.name)
        )
        self.assertEqual((call.name, call.registers, call.barriers), ("_Z4callPf", 63, 2))
        self.assertEqual([(r.code, r.line) for r in call.remarks], [("C7519", 70), ("C7510", 0)])
        self.assertEqual((call.smem, other.stack, other.spills, other.remarks), (16384, 8, 16, []))
        self.assertEqual((product.entry, nameless.entry, nameless.name), (False, False, ""))
        self.assertRegex(nameless.remarks[0].words, "^'setmaxnreg' ignored; .* at entry$")
        lines = SAID.splitlines(keepends=True)
        [only] = ptxas.parse("".join([lines[0], *lines[4:8]]))
        self.assertEqual([r.code for r in only.remarks], ["C7508"])

    def test_a_line_of_the_ptx_is_where_the_dialect_was_called(self):
        found = [ptxas.place_in(PTX, line) for line in (0, 1, 4)]
        self.assertEqual(found, ["", "kernel.cuh:9", "kernel.cuh:12"])

    @unittest.skipUnless(shutil.which("c++filt"), "no c++filt here")
    def test_names_are_the_simulators(self):
        names = ["_ZN6step041kILi64EEEvPKf", "plain", "_ZN3abc1mILNS_1EE1EEEvPf"]
        self.assertEqual(
            ptxas.demangled([*names, "_ZN12_GLOBAL__N_11kEPf"]),
            ["step04::k<64>", "plain", "abc::m<(abc::E)1>", "(anonymous namespace)::k"],
        )

    def test_the_page_has_every_remark(self):
        rows = re.findall(r"^\| (C\d+) \|", PAGE.read_text(), re.MULTILINE)
        expected = [*range(7509, 7516), *range(7517, 7521), 7504, 7505, 7507, 7508]
        self.assertEqual(rows, [f"C{code}" for code in expected])

    def test_the_architectures_of_a_step(self):
        made = "sm_75 sm_80 sm_89 sm_90 sm_100"
        fake = str(self.program("nvcc", f"#!/bin/sh\nprintf '%s\\n' {made}\n"))
        for needs, usual, every in (
            (None, "sm_80 sm_90", "sm_75 sm_80 sm_89 sm_90"),
            ("sm_80", "sm_80 sm_90", "sm_80 sm_89 sm_90"),
            ("sm_89", "sm_89 sm_90", "sm_89 sm_90"),
            ("sm_90", "sm_90", "sm_90"),
            ("sm_90a", "sm_90a", "sm_90a"),
            ("sm_100a", "sm_100a", "sm_100a"),  # this nvcc does not support sm_103
            ("sm_120a", "sm_120a", ""),
        ):
            self.assertEqual(nvcc.arches_of(needs), tuple(usual.split()))
            self.assertEqual(nvcc.every_arch_of(needs, fake), tuple(every.split()))
        jobs = ptxas.jobs_of_steps(["07_tensor_cores", "14_ring"], False, fake)
        self.assertEqual([job.arch for job in jobs], ["sm_90", "sm_90a"])
        jobs = ptxas.jobs_of_steps(["07_tensor_cores", "14_ring"], True, fake)
        older = ["sm_80", "sm_89", "sm_90"]
        self.assertEqual([job.arch for job in jobs if not job.options], [*older, "sm_90a"])
        self.assertEqual([job.arch for job in jobs if job.options], older)
        self.assertEqual([job.arch for job in jobs if not job.older], ["sm_80", "sm_90", "sm_90a"])
        names = "01_naive 02_tiled 07_tensor_cores 12_fp8 13_decode 14_ring".split()
        jobs = [job.what for job in ptxas.jobs_of_steps(names, False, fake)]
        together = [["07_tensor_cores"], ["12_fp8", "13_decode", "14_ring"]]
        self.assertEqual(jobs, [["01_naive"], ["02_tiled"], *together])


class Compare(Folder):
    """The words on registers.json, compared with kernels that ptxas has just seen."""

    def test_each_difference_is_one_sentence(self):
        path, mine, step = str(self.folder / "registers.json"), "mine::k", "step01::k<64>"
        before = {step: ptxas.Kernel("", 40, 512), mine: ptxas.Kernel("", 20, 0)}
        more = {step: ptxas.Kernel("", 41, 512), mine: ptxas.Kernel("", 20, 8)}
        for written, seen, words in (
            (before, before, None),
            (before, {**before, step: more[step]}, step),
            (before, {**before, mine: more[mine]}, mine),
            (before, more, f"{mine} and 1 more"),
            ({}, before, step),
            ({}, {mine: before[mine]}, None),  # a user's own need not be listed
            (before, {step: before[step]}, mine),  # of no step
        ):
            ptxas.write_registers(path, "13.0.1", written)
            finding, _ = ptxas.compare_registers(path, "13.0.1", seen, {step})
            told = words and f"{ptxas.REGISTERS} differs from ptxas on {words}: {ptxas.UPDATE}"
            self.assertEqual(finding, told)
        compare = ptxas.compare_registers
        finding, remark = compare(path, "12.4.99", more, {step})
        self.assertIsNone(finding)
        self.assertIn("comes from nvcc 13.0.1, this is 12.4.99: not compared", remark)
        for words in ("{", "[]", "{}", '{"nvcc": "13.0.1", "kernels": {"k": [1]}}', None):
            self.write(path, words) if words else os.remove(path)
            finding, _ = compare(path, "13.0.1", before, set())
            self.assertRegex(finding, "^common/data/registers.json cannot be read .*--update$")


class Program(Folder):
    def write(self, text, name="kernel.cu"):
        return super().write(name, text)

    def ptxas(self, *args):
        return typed("ptxas", *args)

    def check(self, text, status=0, name="kernel.cu"):
        """(the kernels' lines as words, the findings)"""
        done = self.ptxas(self.write(text, name))
        self.assertEqual((done.returncode, done.stderr), (status, ""), done.stdout)
        lines = done.stdout.splitlines()
        findings = [line for line in lines if line.startswith("finding: ")]
        self.assertEqual(lines[-1].startswith("no finding"), not findings)
        return [line.split() for line in lines[2:] if line.startswith(" ")], findings

    def refuses(self, words, *args, status=2):
        done = self.ptxas(*args)
        self.refused(done, status)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, words)

    def test_bad_input(self):
        self.refuses("there_is_none.cu does not exist", "there_is_none.cu")
        self.refuses("steps are 01_naive, 02_", "99")
        self.refuses("neither a .cu nor a .cuh", self.write("", "kernel.txt"))
        self.refuses("main.cu does not exist", self.folder)
        self.refuses("nvcc was not found", "01", "--nvcc", "/there/is/none", status=3)
        for more in ("--update", "--every-arch"):
            self.refuses("apply to all steps: name none", more, "01")


class Pretended(Folder):
    """An nvcc that says what stands beside the file, and one that compiles nothing."""

    @unittest.skipUnless(shutil.which("c++filt"), "no c++filt here")
    def test_what_is_shown_of_a_file(self):
        call = ["--nvcc", self.program("nvcc", NVCC)]
        path = self.write("kernel.cu", "")
        self.enterContext(mock.patch.dict(os.environ, CCACHE_DISABLE="1"))
        self.write("kernel.cu.ptx", PTX)
        lines = SAID.splitlines()
        self.write("kernel.cu.said", "\n".join([*lines, lines[2]]))  # one place, told twice
        done = self.ended(typed("ptxas", path, *call), 1)
        self.assertEqual(
            [" ".join(line.split()) for line in done.stdout.splitlines()],
            [
                f"{path} for sm_90a, nvcc 13.0.88",
                "registers smem stack spills barriers kernel",
                "63 16384 0 0 2 call",
                "40 0 8 16 0 other",
                "finding: a kernel of this file: C7508: 'setmaxnreg' ignored; unable to determine "
                "register count at entry (docs/ptxas.md)",
                "finding: call: C7519: warpgroup.arrive is injected by compiler to allow use of "
                "registers in GMMA at kernel.cuh:12 (docs/ptxas.md)",
                "finding: call: C7510: wgmma.mma_async instructions are serialized due to wgmma "
                "pipeline crossing function boundary at a function call (docs/ptxas.md)",
                "finding: other: a stack frame of 8 bytes and 16 bytes of spills "
                "(docs/ptxas.md#spills)",
                "finding: product: C7519: warpgroup.arrive is injected by compiler to allow use of "
                "registers in GMMA at kernel.cuh:12 (docs/ptxas.md)",
            ],
        )
        self.write("kernel.cu.said", "\n".join(SAID.splitlines()[5:9]))
        done = self.ended(typed("ptxas", path, *call))
        self.assertIn("\nno finding: ", done.stdout)
        self.write("kernel.cu.said", "")
        self.refused(typed("ptxas", path, *call), 2, "kernel.cu: no kernel")
        (self.folder / "kernel.cu.said").unlink()
        done = self.ended(typed("ptxas", path, *call), 1)
        self.assertIn("kernel.cu does not compile:\n", done.stderr)

    @unittest.skipUnless(shutil.which("c++filt"), "no c++filt here")
    def test_all_steps_and_the_file(self):
        registers = {"sm_90": 40, "sm_90a": 90, "sm_100a": 100}
        fails, spills, only_alone = set(), set(), set()
        steps = ["01_naive", "07_tensor_cores", "08_tensor_core_backward", "14_ring"]
        steps += ["16_blackwell", "mine"]

        def compiled(_, job):
            if fails & {*job.what} or len(job.what) > 1 and only_alone & {*job.what}:
                raise Failure(f"{' '.join(job.what)}: a failure")
            used = registers.get(job.arch, 255)
            found = [(f"{what}::k<64>", ptxas.Kernel("k", used, 512)) for what in job.what]
            found.append(("a function", ptxas.Kernel("f", entry=False)))
            return found, [f"spills for {job.arch}"] if job.arch in spills else []

        self.write(ptxas.REGISTERS, "")
        for name, value in (("compiled", compiled), ("ROOT", str(self.folder)), ("listed", None)):
            value = value or (lambda: steps)
            self.enterContext(mock.patch.object(ptxas, name, value))
        call = ["--nvcc", self.program("nvcc", NVCC)]

        def says(*words, status=1, args=()):
            done = self.ended(typed("ptxas", *call, *args), status)
            for each in words:
                self.assertIn(each, done.stdout)
            return done.stdout

        says("finding: common/data/registers.json cannot be read")
        spills.add("sm_100a")
        self.assertNotIn("wrote", says("finding: spills for sm_100a", args=["--update"]))
        spills.clear()
        says("wrote common/data/registers.json: 6 kernels", status=0, args=["--update"])
        kernels = read_json(self.folder / ptxas.REGISTERS)["kernels"]
        self.assertEqual(list(kernels), [f"{step}::k" for step in steps])
        used = [kernel["<64>"][0] for kernel in kernels.values()]
        self.assertEqual(used, [40, 40, 40, 90, 100, 40])
        says("no finding", status=0)
        only_alone.add("07_tensor_cores")  # what compiles only alone is compared
        said = says(
            "remark: 07_tensor_cores 08_tensor_core_backward: a fail", "no finding", status=0
        )
        self.assertRegex(
            said, "\n07_tensor_cores for sm_90(?s:.*)\n08_tensor_core_backward for sm_90"
        )
        only_alone.clear()
        steps.append("new")  # a user's own need not be in the file
        says("no finding", status=0)
        steps.remove("new")
        # What is older is looked at, and no finding.
        spills.add("sm_89")
        said = says("remark: for sm_89, spills", "no find", status=0, args=["--every-arch"])
        self.assertNotIn("sm_86", said)
        steps.remove("mine")  # and a row of no step is too much
        says(f"differs from ptxas on mine::k<64>: {ptxas.UPDATE}")
        steps.append("mine")
        fails.add("07_tensor_cores")
        said = says(
            "finding: 07_tensor_cores: a failure", "\n08_tensor_core_backward for sm_90, nvcc"
        )
        self.assertNotIn("differs", said)
        registers["sm_90a"] = 91
        fails.clear()
        says("differs from ptxas on 14_ring::k<64>: ")


@for_all
@unittest.skipUnless(nvcc.find_nvcc(), "no nvcc here")
class Compile(Program):
    def test_a_good_kernel_in_a_header(self):
        [cells], findings = self.check(WGMMA, name="kernel.cuh")
        self.assertEqual((cells[1:], findings), (["32768", "0", "0", "0", "kernel"], []))
        self.assertGreater(int(cells[0]), 32)  # the accumulators

    def test_a_kernel_that_spills(self):
        [cells], [finding] = self.check(SPILLS, status=1)
        self.assertEqual(cells[-1], "spills")
        self.assertGreater(int(cells[3]), 0)
        self.assertRegex(finding, f"^finding: spills: .*{cells[3]} bytes of spills")

    def test_remarks_are_findings_with_their_lines(self):
        version = nvcc.version_of(nvcc.find_nvcc())
        if not version.startswith(PAGE_NVCC + "."):
            self.skipTest(f"the page is of nvcc {PAGE_NVCC}, this is {version}")
        _, findings = self.check(WGMMA.replace(END, CALL), status=1)
        self.assertIn("C7510", "".join(findings))
        text = WGMMA.replace("    fa::wgmma_commit();\n    fa::wgmma_wait<0>();\n", TWO)
        _, findings = self.check(text, status=1)
        line = text[: text.index(E)].count("\n") + 1
        for finding in findings:
            self.assertRegex(finding, rf"C7519.* at kernel.cu:{line} \(docs/ptxas.md\)")
        _, findings = self.check(text.replace(E, FENCE + E))
        self.assertEqual(findings, [])


if __name__ == "__main__":
    main()
