"""./scripts/sim: findings and refusals at run time. The first argument of faults.cu selects one."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from copies import main, said
from flash_steps.files import read_json
from test_sim import SIM, sim, told

NAME = "host side.cu"
TEXT = Path(__file__).with_name("faults.cu").read_text(encoding="utf-8")

# What a kernel cannot have: status 2, and a sentence; @ is the line that ends in the word.
REFUSED = {
    "launches": r"a kernel that launches child \(@\)",
    "allocates": r"a kernel that calls cudaMalloc \(@\)",
    "waits": r"a kernel that calls cudaDeviceSynchronize \(@\)",
    "makes one": r"new in a kernel \(@\)",
    "takes room": r"malloc in a kernel \(@\)",
    "makes": r"new in a kernel \(@\)",
    "ptx": r"the PTX instruction movmatrix.sync.aligned.m8n8.trans.b16 \(@\)",
    "bits": r"the PTX 'ex2.* with an operand that is no float \(@\)",
}
# One finding, status 1. Those of `--analyse`, ...
ANALYSED = {
    "race": r"race on shared memory: kernel neighbours, .* at @",
    "uninitialised": "uninitialised .*unset.* at @",
    "out of bounds": "kernel fill_all, .*4-byte store at @ at byte 256 of buffer x, which has 256",
    "after asm": "uninitialised .*unset.* at @",
    "overrun": "4-byte store at @ past the end of the shared array s, at byte 120 of 120",
    "global array": "uninitialised shared memory: .* load of s, byte 0 at @",
    "handed over": "race on device memory: kernel last_sums<0>, .*: load of x, byte 4 at @",
    "reads": "host code at @ reads byte 3072 of most, copied at .*, which nothing has written",
    "all": "the host copies 40 bytes of other at @",
    # Short gaps belong to a struct, except at the end of an array.
    "ends": "host code at @ reads byte 62 of some, copied at ",
    "starts": "host code at .* reads byte 0 of some, copied at ",
    "eight": "host code at .* reads byte 50 of some, copied at ",
    "part": "host code at @ reads byte 10 of some, copied at ",
    "part at the end": "host code at .* reads byte 97 of some, copied at ",
    "refused": "kernel bounded: a block of 256 threads",  # and what it lacks is no finding
    "rows": "host code at @ reads byte 50 of some, copied at ",
    "tests once": "race on shared memory: kernel tests_once, .* load of tile, byte .* at @ .* have "
    "no wait on its mbarrier",
    "overlaps": r"race on device memory: kernel second_kernel, .* load of x, byte 4 at @ and a "
    r"store by kernel first_kernel at .* have no griddepcontrol.wait between them",
    "overwrites": r"race on device memory: kernel stores_early, .* store of x, byte 0 at @ and a "
    r"load by kernel reads_first at .* have no griddepcontrol.wait between them",
}
# ... and those of any run.
FOUND = {
    "asserts": r'kernel below, .* thread \(3,0,0\): assertion "threadIdx.x < n" failed at @',
    "own array": r"kernel own_array, .* thread \(0,0,0\): index 8 at @ is outside of the array a "
    r"\(float \[8\]\)",
    "own arrays": r"index -1 at @ is outside of the array a \(int \[4\]\)",
    "unsigned index": r"index 4294967295 at .* is outside of the array ba \(int \[4\]\)",
    "gives up": r"kernel gives_up, .* thread \(2,0,0\) gives up: __trap\(\) at @",
    "divides": r"kernel share, .* thread \(0,0,0\): integer division by zero at @",
    "absent": "the shuffle at @ lane 8 of warp 1 reads from lane 16, which the block does not have",
    "long name": r"kernel long_name<RatherLong<.{59} \.\.\. .{40}, block .* at @ ",
    "shared index": r"kernel shared_index, .* thread \(0,0,0\): index 2000 at @ is outside of the "
    r"array s \(float \[64\]\)",
    "divergent": "divergent warp operation: kernel divergent, .* calls __shfl_sync at @ ",
    "polls": r"deadlock in kernel polls.*mbarrier wait @",
    "alone": r"deadlock in kernel alone.*1 thread wait at __syncthreads .*1 thread wait at "
    r"grid.sync\(\) @",
    "plain grid": "kernel plain_grid, .* a barrier of the grid at @ in a plain launch; it needs "
    "cudaLaunchCooperativeKernel",
    "endless": "kernel endless, .* spins at @: .* for 1 s; ",
    "idle": "kernel idle spins at @ without a memory access",  # it touches none
    "on host": "host code dereferences a device pointer at @; use cudaMemcpy",
    "twice": "cudaFree of an address that cudaMalloc did not return, or freed twice",
    "freed": "host code uses p at @ after it was freed",
    "odd": "8-byte access at @ of x at an address that is not a multiple of 8",
    "null": "store at @ by way of a null pointer",
    "copies a variable": "cudaMemcpy: the destination is the host's address of out, .* at @$",
    "passes a variable": "4-byte store at @ of out by the host's address; ",
    "by reference": "4-byte load at @ of host memory",
    "by function": "call at @ by a function's address that the host took",
    "by virtual": r"a virtual function of an object that the host made is called at @ "
    r"\(vtable for Square\)",
    "bounds": "kernel bounded: a block of 256 threads; __launch_bounds__ at .*:[0-9]+ allows 128, "
    "at @$",
    "large cluster": "kernel no_cluster: a cluster of 16 blocks; more than 8 need "
    r"cudaFuncSetAttribute\(.*, at @$",
    "memset": r"cudaMemset: 4 bytes in host memory \(the address of a pointer\?\), at @$",
    "direction": "cudaMemcpyHostToDevice: the destination is host memory, at @$",
}
RULES = {  # of some, by their names in the report
    "race": "race",
    "uninitialised": "uninitialised-read",
    "polls": "deadlock",
    "endless": "endless-loop",
    "odd": "misaligned-access",
    "null": "out-of-bounds",
    "memset": "invalid-use",
}
RIGHT = ("race", "uninitialised", "out of bounds", "after asm", "overrun")  # have a correct twin
RIGHT += ("asserts", "own array", "shared index", "divergent", "polls", "tests once")
RIGHT += ("own arrays", "unsigned index")
RIGHT += ("overlaps", "overwrites", "ends", "starts", "rows")
RIGHT += ("alone", "handed over", "global array", "divides", "absent")
RIGHT += ("passes a variable", "by reference", "by function", "by virtual", "bounds")
RIGHT += ("large cluster",)


def placed(pattern, word):
    lines = TEXT.splitlines()
    at = [n for n, x in enumerate(lines, 1) if x.endswith("// " + word)]
    return pattern.replace("@", f"{NAME}:{at[0]}") if at else pattern


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.source = os.path.join(cls.folder, NAME)
        cls.program = os.path.join(cls.folder, "program")
        Path(cls.source).write_text(TEXT, encoding="utf-8")
        kept = sim(cls.source, "-o", cls.program)
        if kept.returncode or kept.stderr:  # no remark: PTX sets what is used
            raise RuntimeError(kept.stderr)

    def run_as(self, mode, *wishes, words=(), right=(), status=None):
        """As ./scripts/sim starts the program."""
        wishes = {"FLASH_STEPS_SIM": "\n".join(wishes)}
        command = [*words, self.program, mode, *right]
        done = told(said(command, timeout=120, env={**os.environ, **wishes}))
        if status is not None:
            self.assertEqual(done.returncode, status, done.stderr)
        done.findings = re.findall(r"^finding: (.*)$", done.stderr, re.MULTILINE)
        return done

    def test_what_a_kernel_cannot_have_is_refused_by_name_and_line(self):
        for mode, pattern in REFUSED.items():
            with self.subTest(mode):
                done = self.run_as(mode, status=2)
                words = placed(f"^sim: not supported: {pattern}\n", mode)
                self.assertRegex(done.stderr, words)
        self.run_as("unreached", status=0)  # code that no thread executes does not matter
        self.assertRegex(
            self.run_as("race", "gpu Voodoo2", status=2).stderr, "^sim: .*Voodoo2.*\n$"
        )

    def test_each_fault_is_one_finding_at_its_line_and_its_twin_is_silent(self):
        report = os.path.join(self.folder, "fault.json")
        for mode, pattern in {**ANALYSED, **FOUND}.items():
            with self.subTest(mode):
                wishes = ("watchdog 1", "json " + report, *["analyse"] * (mode in ANALYSED))
                done = self.run_as(mode, *wishes, status=1)
                self.assertEqual(len(done.findings), 1, done.stderr)
                self.assertRegex(done.findings[0], placed(pattern, mode))
                if mode in RULES:
                    (finding,) = read_json(report)["findings"]
                    self.assertEqual(finding["rule"], RULES[mode])
                if mode in RIGHT:
                    twin = self.run_as(mode, *wishes, right=["right"], status=0)
                    self.assertEqual(twin.findings, [], twin.stderr)

    def test_a_kernel_that_overlaps_with_nothing_need_not_wait(self):
        for words in ((), ("by an event",), ("not allowed",)):
            done = self.run_as("overlaps not", "analyse", right=words, status=0)
            self.assertEqual(done.findings, [], words)

    def test_threads_that_have_returned_are_not_waited_for_by_a_grid_of_one_block(self):
        self.assertEqual(self.run_as("alone", "analyse", right=["right"], status=0).findings, [])

    def test_threads_that_skip_a_barrier_and_end_are_a_remark(self):
        done = self.run_as("skips", "analyse", status=0)
        remarks = " ".join(done.stderr.split())
        for what, word in (("__syncthreads", "skips"), ("__ballot_sync", "votes")):
            pattern = f"block \\(0,0,0\\): threads 36-63 never reached the {what} of @ and ended"
            self.assertRegex(remarks, placed(pattern, word))
        done = self.run_as("skips", "analyse", right=("right",), status=0)
        self.assertNotIn("never reached", done.stderr)  # an early return is different

    def test_a_kernel_that_works_is_not_endless(self):
        self.assertEqual(self.run_as("works", "watchdog 0.1", status=0).findings, [])

    def expect(self, mode, *patterns, printed, right):
        """These findings and no other, and none in the correct twin; the output of both."""
        done = self.run_as(mode, status=1)
        for found, (pattern, word) in zip(done.findings, patterns):
            self.assertRegex(found, placed(pattern, word))
        self.assertEqual(len(done.findings), len(patterns), done.stderr)
        twin = self.run_as(mode, right=["right"], status=0)
        self.assertEqual((twin.findings, twin.stdout), ([], right), twin.stderr)
        self.assertEqual(done.stdout, printed)

    def test_a_copy_does_not_leave_its_symbol(self):
        to = "cudaMemcpyToSymbol: 36 bytes do not lie inside weights, 32 bytes, at @"
        self.expect(
            "symbols",
            (to, "to a symbol"),
            ("8 bytes at byte 28 do not lie inside weights, 32 bytes, at @", "at an offset"),
            ("FromSymbolAsync: 12 bytes .* inside total, 8 bytes, at @", "from a symbol"),
            printed="111 7\n",
            right="000 7\n",
        )

    def test_host_code_has_no_variable_of_the_device(self):
        """Its stores reach no kernel; const, managed and guarded variables are allowed."""
        self.expect(
            "variables",
            ("host code at @ writes factor, .*; cudaMemcpyToSymbol copies", "writes a variable"),
            ("host code at @ writes weights, ", "writes many"),
            ("host code at @ reads total, .*; cudaMemcpyFromSymbol copies", "reads a variable"),
            printed="0 1\n",
            right="96 1\n",
        )

    def test_a_finding_of_a_loop_is_told_once_with_a_count(self):
        report = os.path.join(self.folder, "loop.json")
        done = self.run_as("loop", "analyse", "json " + report, status=1)
        self.assertEqual(len(done.findings), 1, done.stderr)
        self.assertRegex(" ".join(done.stderr.split()), "1 finding: race .*; in 20 launches races")
        self.assertEqual([f["times"] for f in read_json(report)["findings"]], [20])

        done = self.run_as("calls", "json " + report, status=1)
        self.assertRegex(" ".join(done.stderr.split()), "1 finding: cudaMemset: .*; in 2 calls$")
        self.assertEqual([f["times"] for f in read_json(report)["findings"]], [2])

    def test_the_exit_status(self):
        """A finding turns 0 into 1, an unwritable report into 3; otherwise the program's status."""
        none = "json /none/x"
        for mode, wishes, status in (
            ("shared atomics", (), 0),
            ("shared atomics", (none,), 3),
            ("memset", (none,), 1),
            ("status", (), 7),
            ("status", (none,), 7),
            ("null", (none,), 1),
        ):
            done = self.run_as(mode, *wishes, status=status)
            self.assertEqual("sim: --json /none/x" in done.stderr, bool(wishes), done.stderr)
        self.assertEqual(self.run_as("shared atomics", "quiet", status=0).stderr, "")

    def test_too_little_memory_ends_the_run_by_a_sentence(self):
        done = self.run_as("stores on", "analyse", "reserve 1e18", status=3)
        words = " ".join(done.stderr.split())
        self.assertRegex(words, "sim: too little memory is left: .*--analyse")

    def test_sigterm_reports_as_control_c_does(self):
        command = [sys.executable, SIM, self.source, "--watchdog", "100", "--", "endless"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as process:
            self.assertEqual(process.stdout.readline(), "begins\n")
            process.terminate()
            _, told = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, told)
        self.assertRegex(told, "(?s)sim: ended by SIGTERM; the report is of .*endless, 1 launch")

    def test_a_second_control_c_ends_a_kernel_that_touches_no_memory(self):
        environment = {**os.environ, "FLASH_STEPS_SIM": "watchdog 100"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([self.program, "idle"], env=environment, **pipes) as process:
            self.assertEqual(process.stdout.readline(), "begins\n")
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                process.send_signal(number)
                time.sleep(0.03)
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_what_cublas_writes_is_written_and_after_it_the_run_may_end(self):
        self.assertEqual(self.run_as("product", "analyse", status=0).findings, [])
        done = self.run_as("product", "limit 0.0001", status=124)
        self.assertIn("after a library's call", " ".join(done.stderr.split()))

    def test_options_are_those_of_the_run(self):
        threads = [int(self.run_as("workers", f"workers {n}", status=0).stdout) for n in (1, 2, 4)]
        self.assertEqual([n - threads[0] for n in threads], [0, 1, 3])
        self.assertRegex(self.run_as("deep", status=1).findings[0], "deep, .* needs more than 64 ")
        self.run_as("deep", "stack 300000", status=0)
        self.run_as("at once", status=0)
        (finding,) = self.run_as("at once", "gpu L4", status=720 % 256).findings
        pattern = "a cooperative launch of 100 blocks; .* holds 58 of them at a time, at @$"
        self.assertRegex(finding, placed(pattern, "at once"))

    def test_counts_of_a_launch_that_stopped_are_partial(self):
        done = self.run_as("null")
        self.assertIn("stopped inside a launch: of that one the counts are partial", done.stderr)
        self.assertNotIn("estimated", done.stderr)
        # The estimate is of the launches that have one, also of those after it.
        report = os.path.join(self.folder, "stopped.json")
        for mode, first in ("asserts", "below, 2 launches of 1 x 4"), ("goes on", "fill_four, 3 "):
            both, stopped = [], []
            for words in (), ("right",):
                both.append(self.run_as(mode, "json " + report, right=words))
                stopped.append(read_json(report)["kernels"][-1]["stopped"])
            self.assertEqual(stopped, [True, False])
            self.assertIn("\n" + first, both[0].stderr)
            estimates = [re.findall(r"\n  estimated (.*) a launch: ", x.stderr) for x in both]
            self.assertEqual(len(estimates[0]), 1)
            self.assertEqual(*estimates)

    def test_atomics_in_shared_memory_are_counted(self):
        report = os.path.join(self.folder, "shared.json")
        done = self.run_as("shared atomics", "json " + report, status=0)
        self.assertRegex(done.stderr, r"shared memory +atomic +128\n")
        shared = read_json(report)["kernels"][-1]["shared"]
        self.assertEqual((shared["read"], shared["write"], shared["atomic"]), (0, 4, 128))

    def test_the_host_copies_the_arguments_once(self):
        # cudaLaunchKernel runs no constructor
        expected = "7 32, made 2, gone 1\n5 31, made 2, gone 1\n"
        self.assertEqual(self.run_as("arguments", status=0).stdout, expected)

    def test_reads_that_a_race_explains_are_no_findings_of_their_own(self):
        for mode in ("races", "reverse"):
            findings = self.run_as(mode, "analyse").findings
            self.assertTrue(findings)
            for finding in findings:
                self.assertTrue(finding.startswith("race on "), finding)
        findings = self.run_as("never", "analyse").findings
        self.assertEqual(len(findings), 2, findings)  # the last 8 are unwritten
        self.assertTrue(findings[0].startswith("uninitialised shared memory"), findings)

    def test_what_the_host_does_not_use_may_be_unwritten(self):
        report = os.path.join(self.folder, "reads.json")
        self.run_as("reads", "analyse", "json " + report, status=1)
        self.assertEqual([f["times"] for f in read_json(report)["findings"]], [1])
        self.assertEqual(self.run_as("copies", "analyse", status=0).findings, [])

    def test_a_program_that_was_ended_has_no_clean_bill(self):
        report = os.path.join(self.folder, "report.json")
        for mode, limit in (("stores on", "limit 0.01"), ("computes on", "limit 0.5")):
            wishes = (limit, "patience 0", "analyse", "watchdog 2", "json " + report)
            done = self.run_as(mode, *wishes, status=124)
            last = "no race and no other finding until it was ended: the rest did not run\n"
            self.assertTrue(done.stderr.endswith(last), done.stderr)
            self.assertNotIn("spins", done.stderr)
            self.assertFalse(read_json(report)["complete"])
        self.assertIn(placed("computes_on was ended at @\n", "computes"), done.stderr)
        done = self.run_as("races on", *wishes, status=1)  # what was found counts
        self.assertTrue(done.findings[0].startswith("race on "), done.stderr)

    def test_only_a_kernel_that_uses_the_hosts_memory_lets_the_host_go_on(self):
        done = self.run_as("two faults", status=1)
        self.assertEqual((len(done.findings), done.stdout), (2, ""), done.stderr)

    def test_the_last_line_says_whether_races_were_looked_for(self):
        done = self.run_as("races", "looks ./scripts/sim --analyse x.cu", status=0)
        last = "\nraces were not looked for: ./scripts/sim --analyse x.cu\n"
        self.assertTrue(done.stderr.endswith(last), done.stderr)
        done = self.run_as("races", "analyse")
        self.assertRegex(done.stderr, "\\d findings?, reported above\nraces were looked for\n$")
        done = self.run_as("copies", "analyse")
        self.assertRegex(done.stderr, "\nno finding: no race, .*\n$")
        done = sim(self.source, "--gpu", "H100", "--", "races")
        self.assertRegex(
            done.stderr, rf"looked for: \S+/sim --analyse '{self.source}' --gpu H100 -- races\n$"
        )

    def test_far_below_a_finding_it_is_told_again(self):
        done = self.run_as("far", "analyse", "lines")
        report = done.stderr.split("\n\n")[1]
        self.assertRegex(report, r"\d findings?:\n(  .*\n)+races were looked for\n$")
        again = " ".join(report.rpartition("findings:\n")[2].split())
        self.assertIn(" ".join(done.findings[0].split()), again)

    @unittest.skipUnless(shutil.which("unshare"), "there is no unshare")
    def test_without_proc_lines_are_known(self):
        hide = "mount -t tmpfs none /proc && cd / && exec "
        words = ["unshare", "-rm", "sh", "-c", hide + '"$0" "$@"']
        if said([*words, "true"]).returncode:
            self.skipTest("no file system can be mounted here")
        done = self.run_as("races", "analyse", words=words)
        self.assertIn(placed(" at @", "races"), done.findings[0])
        nowhere = self.run_as("races", "analyse", words=["env", "PATH=/nowhere"])
        self.assertIn("addr2line", nowhere.stderr)


if __name__ == "__main__":
    main()
