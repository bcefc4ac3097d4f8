"""layouts.py: its tables and pictures follow the functions of common/dialect/ptx/layouts.h."""

import copy
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from copies import ROOT
from flash_steps import chapter_pictures, layout_data, layout_pictures, layout_tables, layouts
from flash_steps.command import Failure

FRAGMENTS = ("mma_a", "mma_b", "mma_d", "ldmatrix")


def run(*args, **environment):
    return subprocess.run(
        [sys.executable, "-S", os.path.join(ROOT, "scripts", "layouts.py"), *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


class Layouts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.layouts = layout_data.read_layouts()  # compiles, once

    def table(self, name):
        return "\n".join(layout_tables.text_of(self.layouts, name)) + "\n"

    def grid(self, name):
        """The cells of a fragment's table, [row][col]."""
        lines = self.table(name).splitlines()
        return [line.split()[1:] for line in lines if re.match(r"( \d|[123]\d) ", line)]

    def test_the_command_prints_the_table(self):
        done = run("mma_b", CXX="")  # c++ itself
        self.assertEqual((done.returncode, done.stdout), (0, self.table("mma_b")), done.stderr)

    def test_shipped_pictures_are_what_the_script_draws(self):
        for name in layout_data.NAMES:
            with open(layouts.picture_path(name), encoding="utf-8") as file:
                shipped = file.read()
            self.assertEqual(layout_pictures.svg_of(self.layouts, name), shipped, name)
            root = xml.etree.ElementTree.fromstring(shipped)
            self.assertLessEqual(int(root.get("width")), 800, name)
        for name, svg in chapter_pictures.drawings().items():
            with open(os.path.join(layouts.PICTURES, name), encoding="utf-8") as file:
                self.assertEqual(svg, file.read(), name)

    def test_what_the_chapters_say_of_scores_is_checked(self):
        for name, table, words in (
            ("mma_a", "p_as_a", r"lane 0: half 0 of a\[1\] is S\[8\]\[0\] .* has it at \[0\]\[8\]"),
            (
                "wgmma_a",
                "wgmma_d",
                r"thread 0 of a warpgroup has D\[8\]\[0\] where A wants A\[0\]\[8\]",
            ),
        ):
            changed = copy.deepcopy(self.layouts)
            for cell in changed[name]:  # registers 1 and 2 change places
                cell[3:] = [cell[3] - 8, cell[4] + 8] if cell[1] == 1 else cell[3:]
            with self.assertRaisesRegex(Failure, words):
                layout_tables.text_of(changed, table)

    def test_fragments_are_those_of_the_ptx_manual(self):
        # The manual's groupID is lane / 4, its threadID_in_group lane % 4.
        a, b, d, ldmatrix = (self.grid(name) for name in FRAGMENTS)
        self.assertEqual([len(t) for t in (a, b, d)], [16, 16, 16])
        for lane in range(32):
            group, thread = divmod(lane, 4)
            for i in range(8):
                row = group + (8 if i in (2, 3, 6, 7) else 0)
                col = 2 * thread + i % 2 + (8 if i >= 4 else 0)
                self.assertEqual(a[row][col], f"{lane}:{i // 2}{'lh'[i % 2]}")
            for i in range(4):
                row = 2 * thread + i % 2 + (8 if i >= 2 else 0)
                self.assertEqual(b[row][group], f"{lane}:{i // 2}{'lh'[i % 2]}")
                row = group + (8 if i >= 2 else 0)
                self.assertEqual(d[row][2 * thread + i % 2], f"{lane}:d{i}")
            for i in range(2):
                self.assertEqual(ldmatrix[group][2 * thread + i], f"{lane}:{'lh'[i]}")
                # The transposed matrix stands to the right, behind its own row number.
                self.assertEqual(ldmatrix[2 * thread + i][9 + group], f"{lane}:{'lh'[i]}")

    def test_swizzle_is_an_exclusive_or(self):
        for d in (64, 128):
            text = self.table(f"swizzle_{d}")
            rows = re.findall(r"^ +row \d((?: +\d+)+)$", text, re.MULTILINE)
            self.assertEqual(len(rows), 8)
            for r, row in enumerate(rows):
                self.assertEqual([int(c) for c in row.split()], [p ^ r for p in range(d // 8)])
            # In order: the example's ldmatrix and cp.async, then those of any chunk and row.
            waves = re.findall(r"(plain|swizzled) .* (\d+)$", text, re.MULTILINE)
            self.assertEqual(
                waves, 2 * [("plain", "8"), ("swizzled", "1"), ("plain", "1"), ("swizzled", "1")]
            )

    def test_packed_scores(self):
        text = self.table("p_as_a")
        self.assertRegex(text, r"a\[2\]\.hi +tile 1, d\[1\] +S\[0\]\[9\] +S\[1\]\[11\]")
        self.assertIn("32 lanes x 8 elements", text)

    def test_wgmma_fragments_are_those_of_the_ptx_manual(self):
        # The manual's D of wgmma, m64: row 16 w + lane / 4, eight rows below for i % 4 >= 2;
        # columns 8 (i / 4) + 2 (lane % 4) + i % 2. Its A: the same, register i / 2, half i % 2.
        d, a = self.grid("wgmma_d"), self.grid("wgmma_a")
        self.assertEqual([len(t) for t in (d, a)], [16, 16])
        for lane in range(32):
            for i in range(8):
                row, col = lane // 4 + i % 4 // 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2
                self.assertEqual(d[row][col], f"{lane}:d{i}")
                self.assertEqual(a[row][col], f"{lane}:{i // 2}{'lh'[i % 2]}")
        for name in ("wgmma_d", "wgmma_a"):  # warp 1
            self.assertRegex(self.table(name), r"\n16  0:[^\n]*\n17  4:")

    def test_wgmma_operands_are_the_swizzled_tile(self):
        def rows(name):
            """{row: [the places of each panel]} with the brackets of product 1."""
            found = re.findall(r"^ *(?:row|key) +(\d+) (.*)$", self.table(name), re.MULTILINE)
            return {int(row): re.split(r" +key +\d+ ", rest) for row, rest in found}

        k = rows("wgmma_k_major")
        self.assertEqual(list(k), list(range(16)))
        for r, (row,) in k.items():
            self.assertEqual(re.findall(r"\d+", row), [str(p ^ r % 8) for p in range(8)])
            self.assertEqual(sorted(re.findall(r"\[(\d+)\]", row)), ["2", "3"])
        mn = rows("wgmma_mn_major")
        self.assertEqual(list(mn), list(range(32)))
        for r, panels in mn.items():
            self.assertEqual(len(panels), 2)
            for panel, row in enumerate(panels):
                self.assertEqual(
                    re.findall(r"\d+", row), [str(8 * panel + (p ^ r % 8)) for p in range(8)]
                )
                self.assertEqual(row.count("["), 8 if r >= 16 else 0)

    def test_text_is_100_columns_at_most(self):
        for name in layout_data.NAMES:
            self.assertLessEqual(max(map(len, self.table(name).splitlines())), 100, name)

    def test_bad_use(self):
        for args in (
            (),
            ("mma_c",),
            ("mma_a", "--pictures"),
        ):
            done = run(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertNotIn("Traceback", done.stderr)

    def test_no_compiler(self):
        for compiler, words in (("no-such-compiler", "no compiler"), ("false", "does not compile")):
            done = run("mma_a", CXX=compiler)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (3, 1))
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
