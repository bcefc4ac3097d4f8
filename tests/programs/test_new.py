"""scripts/new: docs/own_kernel.md as its reader would do it, in a copy of the repository.

--update replaces the first output in docs/own_kernel.md, --for-all --update the others.
"""

import re
import resource
import shutil
import sys

from copies import BUILD, ROOT, Folder, for_all, main, on_page, said, typed
from flash_steps.nvcc import find_nvcc

DOC = ROOT / "docs" / "own_kernel.md"


class Copy(Folder):
    """A copy of the repository without its large files."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "repository"
        unwanted = shutil.ignore_patterns("__pycache__", "*.json", "*.html", "*.svg")
        for name in ("docs", "scripts", "steps", "tests"):
            shutil.copytree(ROOT / name, self.root / name, ignore=unwanted)
        shutil.copytree(ROOT / "common", self.root / "common")
        for name in ("CMakeLists.txt", "CMakePresets.json"):
            shutil.copy(ROOT / name, self.root)
        self.list = self.root / "steps" / "CMakeLists.txt"
        self.mine = self.root / "steps" / "mine"


class Scaffold(Copy):
    def new(self, *args, status=0):
        done = self.ended(typed(self.root / "scripts" / "new", *args), status)
        self.assertLessEqual(len(done.stderr.splitlines()), 1)
        return done.stderr

    def files(self):
        files = (path for path in self.root.rglob("*") if path.suffix != ".pyc")
        return {path: path.stat().st_size for path in files if path.is_file()}

    def test_a_file_that_cannot_be_written_leaves_nothing_behind(self):
        self.list.write_text(self.list.read_text() + "# " + "x" * 4000 + "\n")
        before = self.files()
        # A full disk, at the first large file, or at the last: steps/CMakeLists.txt.
        for limit in (1000, before[self.list] + 5):
            done = said(
                [sys.executable, "-BS", self.root / "scripts" / "new", "mine"],
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
            )
            self.refused(done, 1, "cannot be written: File too large; nothing was changed")
            self.assertEqual(self.files(), before)

    def test_makes_and_removes_a_step_of_ones_own(self):
        before = self.files()
        self.new("mine")
        made = self.files()
        names = {"README.md", "kernel.cuh", "main.cu", "step.cuh", "test.cu"}
        self.assertEqual({path.name for path in made.keys() - before.keys()}, names)
        for name in names:
            text = (self.mine / name).read_text()
            self.assertIn("mine", text, name)
            self.assertNotIn("@NAME@", text, name)
        self.assertEqual(self.list.read_text().splitlines()[-1], "fa_step(mine)")
        self.assertIn("steps/mine exists already", self.new("mine", status=2))
        for by_hand in (False, True):
            if by_hand:  # deleted by hand, and made again over the line that is left
                self.new("mine")
                shutil.rmtree(self.mine)
                self.new("mine")
                self.assertEqual(self.files(), made)
                shutil.rmtree(self.mine)
            self.new("--remove", "mine")
            self.assertEqual(self.files(), before)
        for name in ("mine", "01_naive", "exercise_checker", "../scripts"):  # no new names
            self.assertTrue(self.new("--remove", name, status=2))
        self.assertEqual(self.files(), before)

    def test_refuses_what_is_no_name(self):
        before = self.files()
        for name in (
            *("9th", "Mine", "a-b", "../up", "", "x" * 300),
            *("docs", "all", "exercises", "01_naive", "exercise_prelude"),
            *("test_harness", "fa_step", "step_mine", "mine_library", "linked", "std"),
            *("float", "delete", "exp"),  # from C++, or declared by the steps' headers
        ):
            self.assertTrue(self.new(name, status=2), name)
        self.assertEqual(self.files(), before)
        self.assertIn("usage", typed(self.root / "scripts" / "new").stderr)


class OwnProgram(Folder):
    def test_page(self):
        page = DOC.read_text()
        example = re.search(r"<!-- program: (\S+) -->\n```cpp\n(.*?)```", page, re.DOTALL)
        name, text = example.groups()
        barrier = "part[t] += part[t + n];\n"
        right = text.replace(barrier, barrier + "    __syncthreads();\n", 1)
        self.assertNotEqual(right, text)
        shown = self.run_program(name, text, status=1)
        line = 1 + text[: text.index("part[t] +=")].count("\n")
        self.assertIn(f"Line {line} adds", page)
        self.assertRegex(shown, rf"race on shared memory(.|\n)*{name}:{line}")
        output = f"$ ./scripts/sim --analyse {name}\n{shown.strip()}\n"
        self.assertEqual(output, on_page(DOC, "sim", output))
        self.assertIn("no finding", self.run_program(name, right, status=0))

    def run_program(self, name, text, status):
        self.write(name, text)
        command = f"{ROOT}/scripts/sim --analyse {name} 2>&1"
        done = self.ended(said(["bash", "-c", command], cwd=self.folder), status)
        return done.stdout


class OwnKernel(Copy):
    """One build tree for all stages, with BUILD's objects for all but the reader's files."""

    def setUp(self):
        super().setUp()
        self.kernel = self.mine / "kernel.cuh"
        page = DOC.read_text().partition("## Scaffold")[2]
        self.blocks = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
        self.diffs = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
        self.take_built_library()
        self.take_what_tests_share()

    def take_built_library(self):
        """The copy links BUILD's library: compiling common/ again would take a minute."""
        common = self.root / "common"
        for path in common.rglob("*.cpp"):
            kept = path.name in ("main.cpp", "library.cpp")
            if not kept and path.parent.name not in ("any", "program", "ranks"):
                path.unlink()
        self.write(common / "harness/cli.cpp", "// libfa_step_main.a\n")
        files = ("ranks/on_threads", "counts/clock", "counts/built_already", "sim/observers/trace")
        for name in files:
            self.write(common / f"{name}.cpp", "// libfa_common.a\n")
        lines = []
        for target, source in (
            ("fa_common", "harness/built_already.cpp"),
            ("fa_step_main", "program/step_main.cpp"),
        ):
            self.write(common / source, f"// lib{target}.a\n")
            library = f"{BUILD}/common/lib{target}.a"
            option = f"LINKER:--whole-archive,{library},--no-whole-archive"  # nothing is removed
            lines.append(f"target_link_options({target} INTERFACE {option})")
        with open(common / "CMakeLists.txt", "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def take_what_tests_share(self):
        """Catch2's main() and the precompiled header, which would take a quarter of a minute."""
        tests, built = self.root / "tests", f"{BUILD}/tests/CMakeFiles"
        self.write(tests / "main.cpp", "// fa_test_main.dir/main.cpp.o\n")
        text = (tests / "CMakeLists.txt").read_text()
        self.write(
            tests / "CMakeLists.txt",
            "function(target_precompile_headers target)\n"
            "  target_compile_options(${target} PRIVATE\n"
            f'    "SHELL:-include {built}/fa_test_headers.dir/cmake_pch.hxx")\n'
            f"endfunction()\n{text}"
            f"target_sources(fa_test_main INTERFACE {built}/fa_test_main.dir/main.cpp.o)\n",
        )

    def sh(self, *command, status=0):
        done = self.ended(said(command, cwd=self.root), status)
        return done.stdout + done.stderr

    def build(self, target="mine"):
        text = self.sh("cmake", "--build", "--preset", "sim", "--target", target)
        self.assertNotIn("warning:", text)

    def type_in(self, kernel):
        text = self.kernel.read_text()
        start, end = text.index("// O = softmax"), text.index("// --- host")
        self.kernel.write_text(text[:start] + kernel + "\n" + text[end:])

    def apply(self, diff):
        """Applies a diff of the page to kernel.cuh, step.cuh and the list of steps."""
        for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
            old, new = (
                "".join(line[1:] + "\n" for line in hunk.splitlines() if line[0] in signs)
                for signs in (" -", " +")
            )
            changed = 0
            for path in (self.kernel, self.mine / "step.cuh", self.list):
                text = path.read_text()
                changed += text.count(old)
                path.write_text(text.replace(old, new))
            self.assertEqual(changed, 1, hunk)

    def insert(self, text, before):
        kernel = self.kernel.read_text()
        self.assertEqual(kernel.count(before), 1)
        self.kernel.write_text(kernel.replace(before, f"{text}\n{before}"))

    def predict(self, line):
        before, formula, after = self.kernel.read_text().partition('\n  t["K"]')
        self.assertTrue(formula)
        self.kernel.write_text(f"{before}\n{line}{after.partition(chr(10))[2]}")

    def run_mine(self, *args, status=0):
        return self.sh("build/sim/steps/mine", *args, status=status)

    def show(self, name, options, *parts):
        on_page(DOC, name, "\n".join([f"$ build/sim/steps/mine {options}", *parts, ""]))

    def right_at_the_edges(self):
        for causal in ([], ["--causal"]):
            for n in ("1", "129"):
                self.run_mine("--n", n, "--d", "32", *causal)

    def own_test(self, status=0):
        self.build("test_step_mine")
        words = ("--preset", "sim", "-R", "test_step_mine", "--output-on-failure")
        return self.sh("ctest", *words, status=status)

    def show_buffers(self, name):
        verdict, _, rest = self.run_mine("--n", "200").partition("\n\n")
        self.show(name, "--n 200", verdict, "...", re.search("buffers.*", rest)[0], "...")

    def scaffold(self):
        self.sh("./scripts/new", "mine")
        return self.sh("cmake", "--preset", "sim")

    def test_from_empty_to_right(self):
        with open(self.list, "a", encoding="utf-8") as file:
            file.write("fa_step(gone)\n")  # deleted by hand: the others still build
        words = "flash-steps: steps/gone is gone: ./scripts/new --remove gone forgets it"
        self.assertEqual(self.scaffold().splitlines().count(words), 1)
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
        self.show_buffers("mine")
        naive = self.run_mine("--n", "200", "--details")
        # One row of 64 floats for each of the 200 keys, in each of 4 * 200 threads.
        self.assertRegex(naive, rf"K +{4 * 200 * 200 * 64 * 4:,} +=")
        self.right_at_the_edges()
        self.own_test()

        self.apply(self.diffs[0])
        self.predict(self.blocks[1])
        self.build()
        self.show_buffers("shared")
        self.assertIn("no finding", self.run_mine("--n", "200", "--analyse"))
        self.right_at_the_edges()

        shared = self.kernel.read_text()
        barriers = [line for line in shared.splitlines() if "__syncthreads" in line]
        self.assertEqual(len(barriers), 2)
        self.kernel.write_text(shared.replace(barriers[0] + "\n", ""))
        self.build()
        race = self.run_mine("--n", "200", "--analyse", status=1)
        self.assertRegex(race, r"finding: .*race")
        self.show("race", "--n 200 --analyse", race.partition("\n\n")[0], "...")
        lines = self.kernel.read_text().splitlines()
        named = [int(n) for n in re.findall(r"kernel\.cuh:(\d+)", race)]
        self.assertTrue(named, race)
        self.assertTrue(all(re.search(r"s[KV]\[", lines[n - 1]) for n in named), race)
        self.assertIn("race on shared memory", self.own_test(status=8))

        self.kernel.write_text(shared)
        self.add_a_backward()

    def add_a_backward(self):
        kernels, host, formula = self.blocks[2:]
        with_backward, for_hopper = self.diffs[1:]
        self.apply(with_backward)
        self.insert(kernels, before="// --- host")
        self.insert(host, before="}  // namespace")
        self.build()
        shown = self.run_mine("--n", "200", "--details")
        self.assertNotIn("predicted  ", shown[shown.index("\nbackward, bytes") :])
        self.assertIn("and not predicted in the backward", " ".join(shown.split()))

        self.insert(formula, before="}  // namespace")
        self.apply(
            "@@\n-          .backward = backward};\n+          .backward = backward,\n"
            "+          .backward_traffic = backward_traffic};\n"
        )
        self.build()
        verdict, _, rest = self.run_mine("--n", "200", "--details").partition("\n\n")
        shown = rest[rest.index("backward, bytes") :].partition("\nHBM")[0]
        self.show("backward", "--n 200 --details", verdict, "...", shown, "...")
        self.assertRegex(shown, rf"dQ +atomic +{4 * 4 * 200 * 200 * 64:,} +=")
        self.assertIn("no finding", self.run_mine("--n", "140", "--d", "32", "--analyse"))
        self.right_at_the_edges()

        if find_nvcc():
            shown = self.sh("./scripts/ptxas", "mine", status=1)
            on_page(DOC, "ptxas", f"$ ./scripts/ptxas mine\n{shown.strip()}\n")
            self.assertIn("mine for sm_90, ", shown)
            self.assertRegex(shown, r"finding: mine::gradient_kernel<64>: .*spills")
        self.apply(for_hopper)
        self.build()
        self.run_mine("--n", "129", "--d", "32")
        refused = self.sh("build/sim/steps/mine", "--gpu", "A100", status=2)
        self.assertIn("this step needs sm_90a", refused)
        if find_nvcc():
            self.assertIn("mine for sm_90a, ", self.sh("./scripts/ptxas", "mine", status=1))


if __name__ == "__main__":
    main()
