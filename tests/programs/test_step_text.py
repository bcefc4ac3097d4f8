"""The digest that results carry, and `maintain tables --check` after a change of a kernel."""

import json
import os
import shutil
import sys
import tempfile
import unittest

from copies import ROOT, maintain
from flash_steps import standing, step_text
from flash_steps.results import PICTURES, published


def code(text):
    return step_text.code_of(text)[0]


class Code(unittest.TestCase):
    def same(self, a, b):
        self.assertEqual(code(a), code(b))

    def differ(self, a, b):
        self.assertNotEqual(code(a), code(b))

    def test_comments_and_white_space_do_not_count(self):
        self.same("int a = 1;  // one\n", "int a=1;/* two\nlines */")
        self.same("f(a,\n  b);\n\n\n", "f(a, b);")
        self.same("// it's a comment\nint a;", "int a;")
        self.same("for (int i = 0; i < 1'024; ++i) x();  // don't", "for(int i=0;i<1'024;++i)x();")
        self.same('#include "a.h"\n#include <b>\n#pragma once\nint a;', "int a;")

    def test_each_character_of_code_counts(self):
        for a, b in (
            ("int a = 1;", "int a = 2;"),
            ("int ab;", "int a b;"),
            ("x = a - -b;", "x = a-- b;"),
            ("#pragma unroll\nfor (;;);", "for (;;);"),
            ("#define A 1\n+B;", "#define A 1 + B\n;"),
            ("#define A (b)", "#define A(b)"),
            ('f("a b");', 'f("a  b");'),
            ('f("// a");', 'f("// b");'),
            ('f(\'"\'); g("//"); h();', 'f(\'"\'); g("//"); i();'),
            ('R"(/* a */)";', 'R"(/* b */)";'),
        ):
            self.differ(a, b)

    def test_the_simulators_branches_do_not_count(self):
        text = (
            "#if defined(__CUDACC__)\ngpu();\n#elif !FA_BACKEND_GPU\nsim();\n#else\nhost();\n#endif"
        )
        self.assertEqual(code(text), "gpu();")
        self.assertEqual(code("#if !FA_BACKEND_GPU\na();\n#else\nb();\n#endif\nc();"), "b();c();")
        self.assertEqual(
            code("#if defined(__CUDACC__) || defined(FA_GPU)\na();\n#else\nb();\n#endif"), "a();"
        )
        self.assertEqual(code("#ifndef __CUDACC__\na();\n#endif\nb();"), "b();")
        for condition in ("(FA_BACKEND_GPU)", "!(FA_BACKEND_GPU && 0)", "defined ( __CUDACC__ )"):
            self.assertEqual(code(f"#if {condition}\na();\n#else\nb();\n#endif"), "a();", condition)
        odd = "#if FA_BACKEND_GPU)\na();\n#endif"  # no compiler takes it: it stays
        self.assertIn("a();", code(odd))
        # A condition on anything else: both branches, and all within.
        text = "#if CUDART_VERSION >= 12050\na();\n#else\nb();\n#endif"
        self.assertEqual([word in code(text) for word in ("a()", "b()", "12050")], [True] * 3)
        nested = "#if FA_BACKEND_GPU\n#if X\na();\n#endif\n#else\n#if X\nb();\n#endif\n#endif"
        self.assertEqual(["a()" in code(nested), "b()" in code(nested)], [True, False])


class Copy(unittest.TestCase):
    """A copy of what results and pages need, to be changed."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ("README.md", "docs", "scripts", "steps", "common"):
            path = os.path.join(ROOT, name)
            if os.path.isdir(path):
                unwanted = shutil.ignore_patterns("__pycache__", "exercises", "*.npy", "learn_lib")
                shutil.copytree(path, os.path.join(self.root, name), ignore=unwanted)
            else:
                shutil.copy(path, self.root)

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            return file.read()

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as file:
            file.write(text)

    def replace(self, path, before, after):
        text = self.read(path)
        self.assertIn(before, text)
        self.write(path, text.replace(before, after, 1))

    def printed(self):
        done = maintain("step_text", "--root", self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(line.split()[::-1] for line in done.stdout.splitlines())

    def digests(self):
        """The same, without a new Python for each."""
        step_text.digest_of.cache_clear()
        step_text.code_of_file.cache_clear()
        names = os.listdir(os.path.join(self.root, "steps"))
        digests = {name: step_text.digest_of(name, self.root) for name in names}
        return {name: digest for name, digest in digests.items() if digest}

    def changed(self, before):
        after = self.digests()
        return {step[:2] for step in before if before[step] != after[step]}

    def test_what_decides_a_steps_result(self):
        before = self.printed()
        self.assertEqual((len(before), before), (14, self.digests()))
        for path, text, steps in (
            ("steps/01_naive/1_naive.cuh", "// more\n", set()),
            ("common/sim/sim.h", "int more;\n", set()),
            ("common/harness/step.h", "int more;\n", set()),  # the harness
            ("steps/09_tma_wgmma/2_wgmma.cuh", "int more;\n", {"09", "10", "11", "12", "14"}),
            ("common/dialect/ptx/wgmma.h", "int more;\n", {"09", "10", "11", "12", "13", "14"}),
            ("steps/07_tensor_cores/4_lazy.cuh", "int more;\n", {"07", "08", "09", "14"}),
            # 02 takes its softmax from it, 03 to 06 a part of 02, and 14 the kernels of 06
            (
                "steps/01_naive/1_naive.cuh",
                "int more;\n",
                {"01", "02", "03", "04", "05", "06", "14"},
            ),
        ):
            self.write(path, self.read(path) + text)
            self.assertEqual(self.changed(before), steps, path)
            before = self.digests()
        self.replace("common/dialect/cuda.h", "c.cluster > 8", "c.cluster > 4")  # launch()
        self.assertEqual(self.changed(before), set())
        description = "steps/10_warp_specialized/step.cuh"
        self.replace(description, "the maximum moves", "the largest one moves")
        self.assertEqual(self.changed(before), set())
        self.replace(description, "forward<false>", "forward<true>")
        self.assertEqual(self.changed(before), {"10"})
        before = self.digests()
        self.replace(description, ".forward = f", ".prepare_traffic = t, .forward = f")
        self.assertEqual(self.changed(before), set())
        self.replace(description, ".forward = f", ".prepare = quantise, .forward = f")
        self.assertEqual(self.changed(before), {"10"})
        before = self.digests()
        for text, other in (
            ("kWarp = 32", "kWarp = 33"),
            ('_Pragma("unroll")', '_Pragma("unroll 2")'),
            ("__align__(1024)", "__align__(512)"),
        ):
            self.replace("common/dialect/cuda.h", text, other)
            self.assertEqual(len(self.changed(before)), 14)
            before = self.digests()

    def test_a_file_that_is_only_moved_changes_nothing(self):
        before = self.digests()
        folder = os.path.join(self.root, "steps", "03_online_softmax")
        os.rename(os.path.join(folder, "1_merge.cuh"), os.path.join(folder, "4_moved.cuh"))
        for path in ("03_online_softmax/3_online.cuh", "14_ring/1_merge.cuh"):
            self.replace(f"steps/{path}", "softmax/1_merge.cuh", "softmax/4_moved.cuh")
        self.assertEqual(self.changed(before), set())

    def test_a_description_in_main_cu_is_that_of_step_cuh(self):
        before = self.digests()
        folder = "steps/10_warp_specialized"
        for name in ("main.cu", "test.cu"):  # neither counts beside a step.cuh
            self.write(f"{folder}/{name}", "int more;")
            self.assertEqual(self.changed(before), set())
        self.write(f"{folder}/main.cu", self.read(f"{folder}/step.cuh"))
        os.remove(os.path.join(self.root, folder, "step.cuh"))
        self.assertEqual(self.changed(before), set())
        self.replace(f"{folder}/main.cu", "forward<false>", "forward<true>")
        self.assertEqual(self.changed(before), {"10"})

    def tables(self, *args):
        done = maintain("tables", *args, root=self.root, python=["-S"])
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def measured_with_this_text(self):
        """As if all results had been measured with this tree's kernels, and the pages filled."""
        digests = self.digests()

        def stamp(tree):
            for value in tree.values() if isinstance(tree, dict) else tree:
                if isinstance(value, (dict, list)):
                    stamp(value)
            if isinstance(tree, dict) and tree.get("step"):
                tree["text"] = digests[tree["step"]]
                for run in tree.get("repeats", []):
                    run["text"] = tree["text"]

        folder = os.path.join(self.root, "docs", "results")
        for name in os.listdir(folder):
            if name.endswith(".json"):
                tree = json.loads(self.read(f"docs/results/{name}"))
                stamp(tree)
                self.write(f"docs/results/{name}", json.dumps(tree))
        for name in PICTURES:
            os.remove(os.path.join(self.root, "docs", "pictures", name))
        self.tables()

    def test_the_check_of_tables_fails_after_one_changed_character(self):
        self.measured_with_this_text()
        self.assertEqual(self.tables("--check"), (0, ""))
        said = "f an older text of the kernel"
        for step, before, after in (
            ("01_naive/1_naive.cuh", "kBlockY = 8;", "kBlockY = 9;"),
            ("10_warp_specialized/4_persistent.cuh", "int d = T::d", "int d = T::b"),
        ):
            kernel, step = f"steps/{step}", step.split("/")[0]
            page = f"steps/{step}/README.md"
            self.assertNotIn(said, self.read(page))
            text = self.read(kernel)
            self.write(kernel, text.replace("//", "// reworded:", 1))
            self.assertEqual(self.tables("--check"), (0, ""))
            self.replace(kernel, before, after)
            status, out = self.tables("--check")
            self.assertEqual(status, 1)
            self.assertIn(f"{page}: out of date", out)
            self.assertIn("README.md: out of date", out)
            self.tables()
            self.assertIn(f"{said}: {step}", self.read(page))
            self.assertEqual(self.tables("--check"), (0, ""))

    def test_the_pictures_must_be_of_the_results(self):
        self.measured_with_this_text()
        rows = standing.rows_of(published(os.path.join(self.root, "docs/results")))
        drawn = {}
        for name, rows_of_picture in PICTURES.items():
            picture = f"docs/pictures/{name}"
            texts = {row.any.data["step"]: row.gpu.get("text") for row in rows_of_picture(rows)}
            drawn[picture] = texts["02_tiled"]
            self.write(picture, " ".join(f"{step}={text}" for step, text in texts.items()))
        self.assertEqual(self.tables("--check"), (0, ""))
        for picture, text in drawn.items():
            self.replace(picture, f"02_tiled={text}", "02_tiled=0123456789abcdef")
            said = "drawn from other results (02_tiled): run ./scripts/maintain plots"
            self.assertEqual(self.tables("--check"), (1, f"{picture}: {said}\n"))
            self.replace(picture, "02_tiled=0123456789abcdef", f"02_tiled={text}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])  # the build folder that ctest passes is not needed
