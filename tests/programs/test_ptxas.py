"""scripts/ptxas: finds spills and what ptxas remarks on wgmma, passes a clean kernel, and says one
sentence on bad input. docs/ptxas.md: each of its examples gets the remark that it stands under."""

import os
import re
import sys
import unittest
from pathlib import Path

from copies import ROOT, SCRIPTS, Folder, main, maintain, said
from flash_steps import nvcc, ptxas, ptxas_report
from test_nvcc import SPILLS

PAGE = Path(ROOT, "docs", "ptxas.md")
PAGE_NVCC = "13.0"  # remarks differ between versions

# What ptxas 13.0 says: two remarks on one kernel, one on a function that was not inlined, one that
# names none.
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
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
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

# The loop of docs/ptxas.md's kernel reads its accumulators before the wait.
WAIT = "    fa::wgmma_wait<0>();\n"
READS_EARLY = "    for (int i = 0; i < 32; ++i) d[i] *= x[k];\n" + WAIT

# Two head dimensions, as a step's host function chooses them.
TWO_D = """
#include "common/harness/step.h"
template <int d>
__global__ void copy(float* x) { x[threadIdx.x] = x[threadIdx.x + d]; }
inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) { fa::launch(copy<d>, {1, 32}, t.O); });
}
"""


def blocks():
    """{the name before it: the text} of the examples on the page."""
    return dict(re.findall(r"<!-- (\w+) -->\n```cpp\n(.*?)```", PAGE.read_text(), re.DOTALL))


def base():
    return "#include <cstdio>\n" + blocks()["base"]


def with_body(body):
    """The page's kernel with another loop."""
    before, loop, after = base().partition("  for (int k = 0; k < n; ++k) {\n")
    _, end, after = after.partition("\n  }\n")
    assert loop and end
    return before + loop + body.rstrip() + end + after


def example(name):
    """A block of the page as a file: a whole kernel, or the body of the loop."""
    block = blocks()[name]
    if not block.startswith("__global__"):
        return with_body(block)
    includes = "".join(line + "\n" for line in base().splitlines() if line.startswith("#include"))
    return includes + block


class Parse(unittest.TestCase):
    def test_remarks_belong_to_the_function_that_they_name(self):
        call, other, product, nameless = sorted(
            ptxas_report.parse(SAID), key=lambda k: (not k.entry, k.name == "", k.name)
        )
        self.assertEqual((call.name, call.registers, call.barriers), ("_Z4callPf", 63, 2))
        self.assertEqual([r.code for r in call.remarks], ["C7519", "C7510"])
        self.assertEqual([r.line for r in call.remarks], [70, 0])
        self.assertEqual(other.faults, ["a stack frame of 8 bytes", "16 bytes of spills"])
        self.assertEqual((product.entry, nameless.entry, nameless.name), (False, False, ""))
        self.assertRegex(nameless.remarks[0].words, "^'setmaxnreg' ignored; .* at entry$")

    def test_a_remark_without_a_name_is_the_only_kernels(self):
        lines = SAID.splitlines(keepends=True)
        [call] = ptxas_report.parse("".join([lines[0], *lines[4:8]]))
        self.assertEqual([r.code for r in call.remarks], ["C7508"])

    def test_a_line_of_the_ptx_is_where_the_dialect_was_called(self):
        places = ptxas.Places(PTX)
        self.assertEqual([places.of(line) for line in (1, 4)], ["kernel.cuh:9", "kernel.cuh:12"])
        self.assertEqual(places.of(0), "")

    def test_a_name_without_its_parameters(self):
        for function, name in (
            ("void ns::k<(ns::E)1>(float (&) [32], int)", "ns::k<(ns::E)1>"),
            ("(anonymous namespace)::k(float*)", "(anonymous namespace)::k"),
            ("plain", "plain"),
        ):
            self.assertEqual(nvcc.without_parameters(function), name)

    def test_every_remark_has_its_section(self):
        sections = re.findall(r"^### (C\d+)$", PAGE.read_text(), re.MULTILINE)
        expected = [*range(7509, 7516), *range(7517, 7521), 7504, 7505, 7507, 7508]
        self.assertEqual(sections, [f"C{code}" for code in expected])


class Program(Folder):
    def write(self, text, name="kernel.cu"):
        return super().write(name, text)

    def ptxas(self, *args):
        return said([sys.executable, os.path.join(SCRIPTS, "ptxas"), *args], cwd=self.folder)

    def check(self, text, *args, status=0, name="kernel.cu"):
        """(the kernels' lines as words, the findings)"""
        done = self.ptxas(self.write(text, name), *args)
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


@unittest.skipUnless(nvcc.find_nvcc(), "no nvcc here")
class Compile(Program):
    def test_a_good_kernel(self):
        [cells], findings = self.check(base())
        self.assertEqual((cells[1:], findings), (["16384", "0", "0", "0", "kernel"], []))
        self.assertGreater(int(cells[0]), 32)  # the accumulators

    def test_a_kernel_that_serialises(self):
        text = base().replace(WAIT, READS_EARLY)
        self.assertNotEqual(text, base())
        _, findings = self.check(text, status=1)
        serialised = [f for f in findings if "serialized" in f]
        self.assertEqual(len(serialised), 1, findings)
        self.assertRegex(serialised[0], r"^finding: kernel: (C\d+): .*\(docs/ptxas\.md#c\d+\)$")

    def test_a_kernel_that_spills(self):
        [cells], [finding] = self.check(SPILLS, "--arch", "sm_80", status=1)
        self.assertEqual(cells[-1], "spills")
        self.assertGreater(int(cells[3]), 0)
        self.assertRegex(finding, f"^finding: spills: .*{cells[3]} bytes of spills")

    def test_a_header_and_one_head_dimension_of_it(self):
        kernels, _ = self.check(TWO_D, name="kernel.cuh")
        self.assertEqual([cells[-1] for cells in kernels], ["copy<64>", "copy<128>"])
        kernels, _ = self.check(TWO_D, "--d", "128", name="kernel.cuh")
        self.assertEqual([cells[-1] for cells in kernels], ["copy<128>"])
        self.refuses("kernel.cu has no kernel of this d", self.write(TWO_D), "--d", "96")

    def test_a_step_has_the_registers_of_the_report(self):
        done = self.ptxas("01")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("01_naive for sm_90, nvcc", done.stdout)
        shown = [line.split() for line in done.stdout.splitlines()[2:-1]]
        report = maintain("ptxas_report", "--out", str(self.folder), "01_naive").stdout
        rows = re.findall(r"^01_naive +sm_90 +(\d+) +(\d+) +(\d+) +(\d+) +(\S.*)$", report, re.M)
        self.assertEqual([[*cells[:4], " ".join(cells[5:])] for cells in shown], [*map(list, rows)])
        self.assertTrue(rows, report)

    def test_what_does_not_compile_and_what_cannot_be_compiled_for(self):
        done = self.ptxas(self.write("__global__ void k() { nonsense }"))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("kernel.cu does not compile:\n", done.stderr)
        self.assertIn('"nonsense" is undefined', done.stderr)
        for step, arch, words in (
            ("07", "sm_75", "sm_75: 07_tensor_cores needs sm_80"),
            ("14", "sm_75", "sm_75: 14_ring needs sm_80"),
            ("10", "sm_90", "sm_90: 10_warp_specialized needs"),
            ("01", "fast", r"fast: \S+ knows .*sm_90"),
        ):
            self.refuses(words, step, "--arch", arch)
        self.refuses("has no kernel", self.write("int x;"))

    def test_the_examples_of_the_page(self):
        version = nvcc.version_of(nvcc.find_nvcc())
        if not version.startswith(PAGE_NVCC + "."):
            self.skipTest(f"the page is of nvcc {PAGE_NVCC}, this is {version}")
        names = [name for name in blocks() if name != "base"]
        self.assertEqual(names, [f"C{code}" for code in (*range(7510, 7516), *range(7517, 7521))])
        for name in names:
            with self.subTest(example=name):
                _, findings = self.check(example(name), status=1)
                self.assertIn(name, {code for f in findings for code in re.findall(r"C\d+", f)})

    def test_the_cures_of_the_page(self):
        fence, wait = "    fa::wgmma_fence();\n", WAIT + "    fa::pin_registers(d);\n"
        commit = "    fa::wgmma_commit();\n"
        for name, *changes in (  # (what to replace, by what): the wait up, a fence, more registers
            ("C7510", ('printf("tile %d\\n", k)', "__trap()")),
            ("C7511", ("(512)", "(256)")),
            ("C7512", ("(128, 6)", "(128, 4)")),
            *((name, (wait, ""), (commit, commit + wait)) for name in ("C7513", "C7514", "C7518")),
            ("C7515", ("    fa::wgmma(d, a, b);\n", "    fa::wgmma(d, a, b);\n" + commit + wait)),
            ("C7517", ("wait<1>", "wait<0>")),
            ("C7519", ("    fa::wgmma(e, a, b);\n", fence + "    fa::wgmma(e, a, b);\n")),
            ("C7520", ("      fa::wgmma(d, a, b);\n", fence + "      fa::wgmma(d, a, b);\n")),
        ):
            with self.subTest(example=name):
                text = example(name)
                for old, new in changes:
                    self.assertEqual(text.count(old), 1, old)
                    text = text.replace(old, new)
                done = self.ptxas(self.write(text))
                self.assertNotRegex(done.stdout, r"C\d{4}|bytes of spills")
                self.assertIn("  kernel\n", done.stdout, done.stderr)

    def test_the_line_of_a_missing_fence(self):
        text = example("C7519")
        at = 1 + [i for i, line in enumerate(text.splitlines()) if "wgmma(e, a, b)" in line][0]
        _, findings = self.check(text, status=1)
        self.assertTrue(findings and all(f" at kernel.cu:{at} (" in f for f in findings), findings)


if __name__ == "__main__":
    main()
