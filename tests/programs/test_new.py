"""scripts/new: docs/own_kernel.md as its reader would do it, in a copy of the repository.

With --update the outputs in docs/own_kernel.md are replaced by the real ones.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

from copies import BUILD, ROOT, for_all, main, typed
from flash_steps.nvcc import find_nvcc

DOC = os.path.join(ROOT, "docs", "own_kernel.md")
OUTPUTS = {}  # what the page shows, by the name in its markers


def copy_of_repository(folder):
    root = os.path.join(folder, "repository")
    os.makedirs(root)
    unwanted = shutil.ignore_patterns("__pycache__", "*.json", "*.html", "*.svg")
    for name in ("CMakeLists.txt", "CMakePresets.json"):
        shutil.copy(os.path.join(ROOT, name), root)
    for name in ("docs", "scripts", "steps", "tests"):
        shutil.copytree(os.path.join(ROOT, name), os.path.join(root, name), ignore=unwanted)
    shutil.copytree(os.path.join(ROOT, "common"), os.path.join(root, "common"))
    return root


class Scaffold(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = copy_of_repository(folder.name)
        self.list = os.path.join(self.root, "steps", "CMakeLists.txt")

    def new(self, *args, status=0):
        done = typed(os.path.join(self.root, "scripts", "new"), *args)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertLessEqual(len(done.stderr.splitlines()), 1)
        return done.stderr

    def files(self):
        """Each file of the copy, with its size."""
        return {
            os.path.join(folder, name): os.path.getsize(os.path.join(folder, name))
            for folder, _, names in os.walk(self.root)
            for name in names
        }

    def test_a_file_that_cannot_be_written_leaves_nothing_behind(self):
        with open(self.list, "a", encoding="utf-8") as file:
            file.write("# " + "x" * 4000 + "\n")
        before = self.files()
        # A full disk, met at the first large file, or at the last: steps/CMakeLists.txt.
        for limit in (1000, before[self.list] + 5):
            done = subprocess.run(
                [sys.executable, "-S", os.path.join(self.root, "scripts", "new"), "mine"],
                capture_output=True,
                text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
            )
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn("cannot be written: File too large; nothing was changed", done.stderr)
            self.assertEqual(self.files(), before)

    def test_makes_and_removes_a_step_of_ones_own(self):
        before = self.files()
        mine = os.path.join(self.root, "steps", "mine")
        self.new("mine")
        made = self.files()
        names = ["README.md", "kernel.cuh", "main.cu", "step.cuh", "test.cu"]
        self.assertEqual(sorted(os.listdir(mine)), names)
        for name in names:
            with open(os.path.join(mine, name), encoding="utf-8") as file:
                text = file.read()
            self.assertIn("mine", text, name)
            self.assertNotIn("@NAME@", text, name)
        with open(self.list, encoding="utf-8") as file:
            self.assertEqual(file.read().splitlines()[-1], "fa_step(mine)")
        self.assertIn("steps/mine exists already", self.new("mine", status=2))
        shutil.rmtree(mine)  # by hand: it can be made again
        self.new("mine")
        self.assertEqual(self.files(), made)
        for by_hand in (False, True):
            if by_hand:
                self.new("mine")
                shutil.rmtree(mine)
            self.new("--remove", "mine")
            self.assertEqual(self.files(), before)
        for name in ("mine", "01_naive", "exercise_checker", "../scripts"):  # none of one's own
            self.assertTrue(self.new("--remove", name, status=2))
        self.assertEqual(self.files(), before)

    def test_refuses_what_is_no_name(self):
        before = self.files()
        for name in (
            *("9th", "Mine", "a-b", "../up", "", "x" * 300),
            *("float", "delete", "co_await", "not_eq"),  # words of C++
            *("docs", "all", "install", "test", "exercises", "fa_common", "fa_step", "01_naive"),
            *("test_harness", "test_mine", "step_mine", "mine_library", "mine_built"),  # or forms
            *("linked", "std"),  # names of this project
            *("fa", "exp", "float4"),  # declared by what every step includes
        ):
            self.assertTrue(self.new(name, status=2), name)
        self.assertEqual(self.files(), before)
        self.assertIn("usage", typed(os.path.join(self.root, "scripts", "new")).stderr)
        self.new("--help")


class Architecture(unittest.TestCase):
    """What the build's own text gives to a test of a step that needs an architecture."""

    def between(self, path, first, last):
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        start = text.index(first)
        return text[start : text.index(last, start) + len(last)]

    def test_an_own_step_is_tested_for_what_it_needs(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)

        def write(path, text):
            path = os.path.join(folder.name, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

        words = {
            "07_tensor_cores": " NEEDS sm_80",
            "mine": " NEEDS sm_90a",
            "mimic": " TESTED_WITH mine 07_tensor_cores",
            "gone": "",
        }
        for step in list(words)[:3]:
            write(f"steps/{step}/step.cuh", "")
            write(f"steps/{step}/test.cu", "")
        write(
            "steps/CMakeLists.txt",
            self.between("steps/CMakeLists.txt", "function(fa_step", "endfunction()\n")
            + "".join(f"fa_step({step}{more})\n" for step, more in words.items()),
        )
        write(
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.25)\nproject(x NONE)\n"
            "function(fa_step_program name)\n"
            "  add_custom_target(${name})\n  add_custom_target(${name}_library)\n"
            "endfunction()\n"
            'function(fa_kernel_test)\n  message("${ARGV}")\nendfunction()\n'
            'function(target_sources)\n  message("link ${ARGV}")\nendfunction()\n'
            "add_subdirectory(steps)\n"
            + self.between(
                "tests/CMakeLists.txt", "get_property(steps", "fa_kernel_test(test_l"
            ).removesuffix("fa_kernel_test(test_l"),
        )
        build = os.path.join(folder.name, "build")
        done = subprocess.run(
            ["cmake", "-S", folder.name, "-B", build], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        said = "flash-steps: steps/gone is gone: ./scripts/new --remove gone forgets it"
        self.assertEqual(done.stderr.splitlines().count(said), 1, done.stderr)
        tests = dict(re.findall(r"^test_(\w+);.*?NEEDS;?(\w*)$", done.stderr, re.MULTILINE))
        self.assertEqual(tests, {"step07": "sm_80", "step_mine": "sm_90a", "step_mimic": ""})
        links = re.findall(r"^link test_(\w+);PRIVATE;\$<TARGET_OBJECTS:(\w+)_k", done.stderr, re.M)
        expected = [("step07", "07_tensor_cores"), ("step_mine", "mine")]
        expected += [("step_mimic", step) for step in ("mimic", "mine", "07_tensor_cores")]
        self.assertEqual(sorted(links), sorted(expected))


class OwnProgram(unittest.TestCase):
    def test_page(self):
        with open(DOC, encoding="utf-8") as file:
            page = file.read()
        name, text = re.search(
            r"<!-- program: (\S+) -->\n```cpp\n(.*?)```", page, re.DOTALL
        ).groups()
        barrier = "part[t] += part[t + n];\n"
        right = text.replace(barrier, barrier + "    __syncthreads();\n", 1)
        self.assertNotEqual(right, text)
        with tempfile.TemporaryDirectory() as folder:
            status, said = self.run_program(folder, name, text)
            self.assertEqual(status, 1, said)
            OUTPUTS["sim"] = f"$ ./scripts/sim --analyse {name}\n{said.strip()}"
            line = 1 + text[: text.index("part[t] +=")].count("\n")
            self.assertIn(f"Line {line} adds", page)
            self.assertRegex(said, rf"race on shared memory(.|\n)*{name}:{line}")
            if "--update" not in sys.argv:
                self.assertIn(f"```\n{OUTPUTS['sim']}\n```\n", page)
            status, said = self.run_program(folder, name, right)
            self.assertEqual(status, 0, said)
            self.assertIn("no finding", said)

    def run_program(self, folder, name, text):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
        done = subprocess.run(
            [os.path.join(ROOT, "scripts", "sim"), "--analyse", name],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout


class OwnKernel(unittest.TestCase):
    """One build tree for all stages; what is not the reader's own is taken from BUILD."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = copy_of_repository(folder.name)
        self.kernel = os.path.join(self.root, "steps", "mine", "kernel.cuh")
        with open(DOC, encoding="utf-8") as file:
            page = file.read().partition("## Scaffold")[2]
        self.blocks = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
        self.diffs = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
        self.take_built_library()
        self.take_what_tests_share()

    def take_built_library(self):
        """The copy links BUILD's library: compiling common/ again would take a minute."""
        common = os.path.join(self.root, "common")
        for folder, _, names in os.walk(common):
            for name in names:
                kept = name in ("main.cpp", "library.cpp") or folder.endswith(("program", "ranks"))
                if name.endswith(".cpp") and not kept:
                    os.remove(os.path.join(folder, name))
        lines = []
        for target, source in (
            ("fa_common", "harness/built_already.cpp"),
            ("fa_step_main", "program/step_main.cpp"),
        ):
            with open(os.path.join(common, source), "w", encoding="utf-8") as file:
                file.write(f"// lib{target}.a\n")
            lines += [
                f"target_link_options({target} INTERFACE",  # one option: none is taken away
                f"  LINKER:--whole-archive,{BUILD}/common/lib{target}.a,--no-whole-archive)",
            ]
        with open(os.path.join(common, "CMakeLists.txt"), "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def take_what_tests_share(self):
        """Catch2's main() and the precompiled header, which would take a quarter of a minute."""
        tests, built = os.path.join(self.root, "tests"), os.path.join(BUILD, "tests", "CMakeFiles")
        with open(os.path.join(tests, "main.cpp"), "w", encoding="utf-8") as file:
            file.write("// fa_test_main.dir/main.cpp.o\n")
        path = os.path.join(tests, "CMakeLists.txt")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                "function(target_precompile_headers target)\n"
                "  target_compile_options(${target} PRIVATE\n"
                f'    "SHELL:-include {built}/fa_test_headers.dir/cmake_pch.hxx")\n'
                f"endfunction()\n{text}"
                f"target_sources(fa_test_main INTERFACE {built}/fa_test_main.dir/main.cpp.o)\n"
            )

    def sh(self, *command, status=0):
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def build(self, target="mine"):
        text = self.sh("cmake", "--build", "--preset", "sim", "--target", target)
        self.assertNotIn("warning:", text)

    def type_in(self, kernel):
        """Replaces attention_kernel, as a reader does with an editor."""
        with open(self.kernel, encoding="utf-8") as file:
            text = file.read()
        start, end = text.index("// O = softmax"), text.index("// --- host")
        with open(self.kernel, "w", encoding="utf-8") as file:
            file.write(text[:start] + kernel + "\n" + text[end:])

    def apply(self, diff):
        """Changes the files of the step as a diff of the page says."""
        for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
            old, new = (
                "".join(line[1:] + "\n" for line in hunk.splitlines() if line[0] in signs)
                for signs in (" -", " +")
            )
            changed = 0
            for name in ("kernel.cuh", "step.cuh", "../CMakeLists.txt"):
                path = os.path.join(os.path.dirname(self.kernel), name)
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                changed += text.count(old)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text.replace(old, new))
            self.assertEqual(changed, 1, hunk)

    def insert(self, text, before):
        with open(self.kernel, encoding="utf-8") as file:
            kernel = file.read()
        self.assertEqual(kernel.count(before), 1)
        with open(self.kernel, "w", encoding="utf-8") as file:
            file.write(kernel.replace(before, f"{text}\n{before}"))

    def predict(self, line):
        """Replaces the formula for K and V."""
        with open(self.kernel, encoding="utf-8") as file:
            text = file.read()
        before, formula, after = text.partition('\n  t["K"]')
        self.assertTrue(formula)
        text = f"{before}\n{line}{after.partition(chr(10))[2]}"
        with open(self.kernel, "w", encoding="utf-8") as file:
            file.write(text)

    def run_mine(self, *args, status=0, name=None):
        text = self.sh("build/sim/steps/mine", *args, status=status)
        if name:
            OUTPUTS[name] = "$ build/sim/steps/mine " + " ".join(args) + "\n" + text.strip()
        return text

    def show_backward(self, text, name):
        """The table of the backward and the verdict of a run with --n 200."""
        table = text[text.index("\nbackward") :]
        table, verdict = table[: table.index("\nHBM")], table[table.index("\nright") :]
        shown = f"{table}\n...{verdict}".rstrip()
        OUTPUTS[name] = f"$ build/sim/steps/mine --n 200\n...{shown}"
        return shown

    def scaffold(self):
        self.sh("./scripts/new", "mine")
        self.sh("cmake", "--preset", "sim")

    def test_from_empty_to_right(self):
        self.scaffold()
        self.build()
        empty = self.run_mine("--n", "200", status=1)
        self.assertIn("never written", empty)
        self.type_in(self.blocks[0])
        self.build()
        self.run_mine("--n", "129", "--d", "32")

    @for_all
    def test_the_whole_page(self):
        self.scaffold()
        self.type_in(self.blocks[0])
        self.build()
        naive = self.run_mine("--n", "200", name="mine")
        # One row of 64 floats for each of the 200 keys, in each of 4 * 200 threads.
        self.assertRegex(naive, rf"K +{4 * 200 * 200 * 64 * 4:,} +=")
        for causal in ([], ["--causal"]):
            for n in ("1", "129"):
                self.run_mine("--n", n, "--d", "32", *causal)
        self.build("test_step_mine")
        self.sh("ctest", "--preset", "sim", "-R", "test_step_mine", "--output-on-failure")

        shared = self.blocks[1]
        self.type_in(shared)
        self.predict(self.blocks[2])
        self.build()
        self.run_mine("--n", "200", name="shared")
        self.assertIn("no finding", self.run_mine("--n", "200", "--analyse"))

        barriers = [line for line in shared.splitlines() if "__syncthreads" in line]
        self.assertEqual(len(barriers), 2)
        self.type_in(shared.replace(barriers[1] + "\n", ""))
        self.build()
        race = self.run_mine("--n", "200", "--analyse", status=1, name="race")
        self.assertRegex(race, r"finding: .*race")
        with open(self.kernel, encoding="utf-8") as file:
            lines = file.read().splitlines()
        named = [int(n) for n in re.findall(r"kernel\.cuh:(\d+)", race)]
        self.assertTrue(named, race)
        self.assertTrue(all(re.search(r"s[KV]\[", lines[n - 1]) for n in named), race)
        self.build("test_step_mine")
        tests = self.sh(
            "ctest", "--preset", "sim", "-R", "test_step_mine", "--output-on-failure", status=8
        )
        self.assertIn("race on shared memory", tests)

        self.type_in(shared)
        self.add_a_backward()

    def add_a_backward(self):
        kernels, host, formula = self.blocks[3:]
        with_backward, for_hopper = self.diffs
        self.apply(with_backward)
        self.insert(kernels, before="// --- host")
        self.insert(host, before="}  // namespace")
        self.build()
        unpredicted = self.run_mine("--n", "200", name="unpredicted")
        shown = self.show_backward(unpredicted, "unpredicted")
        self.assertNotIn("predicted  ", shown)
        self.assertIn("and not predicted in the backward", " ".join(shown.split()))

        self.insert(formula, before="}  // namespace")
        self.apply(
            "@@\n-          .backward = backward};\n+          .backward = backward,\n"
            "+          .backward_traffic = backward_traffic};\n"
        )
        self.build()
        predicted = self.run_mine("--n", "200")
        shown = self.show_backward(predicted, "backward")
        self.assertRegex(shown, rf"dQ +atomic +{4 * 4 * 200 * 200 * 64:,} +=")
        self.assertIn("no finding", self.run_mine("--n", "140", "--d", "32", "--analyse"))
        for causal in ([], ["--causal"]):
            for n in ("1", "129"):
                self.run_mine("--n", n, "--d", "32", *causal)

        if find_nvcc():
            said = self.sh("./scripts/ptxas", "mine", status=1)
            OUTPUTS["ptxas"] = "$ ./scripts/ptxas mine\n" + said.strip()
            self.assertIn("mine for sm_90, ", said)
            self.assertRegex(said, r"finding: mine::gradient_kernel<64>: .*spills")
        self.apply(for_hopper)
        self.build()
        self.run_mine("--n", "129", "--d", "32")
        refused = self.sh("build/sim/steps/mine", "--gpu", "A100", status=2)
        self.assertIn("this step needs sm_90a", refused)
        if find_nvcc():
            self.assertIn("mine for sm_90a, ", self.sh("./scripts/ptxas", "mine", status=1))


def update():
    """Puts the real outputs between the page's markers."""
    with open(DOC, encoding="utf-8") as file:
        text = file.read()
    for name, output in OUTPUTS.items():
        text = re.sub(
            rf"(<!-- output: {name} -->\n).*?(<!-- /output -->)",
            lambda m: f"{m[1]}```\n{output}\n```\n{m[2]}",
            text,
            flags=re.DOTALL,
        )
    with open(DOC, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    try:
        main()
    except SystemExit as end:
        if "--update" in sys.argv and not end.code:  # with --for-all: the whole page
            update()
        raise
