"""layouts.py: its tables and pictures follow the functions of common/dialect/ptx/layouts.h."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

from copies import ROOT, copy_scripts
from flash_steps import layout_data, layout_tables

HEADER = os.path.join("common", "dialect", "ptx", "layouts.h")
FRAGMENTS = ("mma_a", "mma_b", "mma_d", "ldmatrix")
NAMES = (
    *FRAGMENTS,
    "p_as_a",
    "swizzle_64",
    "swizzle_128",
    "wgmma_d",
    "wgmma_a",
    "wgmma_k_major",
    "wgmma_mn_major",
)


def run(*args, root=ROOT, **environment):
    return subprocess.run(
        [sys.executable, "-S", os.path.join(root, "scripts", "layouts.py"), *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


# c++ as layouts.py calls it, but once for each text of the header: most of a run is compiling.
COMPILER = """#!/bin/sh
[ "$1 $2 $4 $5" = "-std=c++20 -I $3/scripts/flash_steps/print_layouts.cpp -o" ] || exit 9
made=$0.$(sha256sum < "$3/common/dialect/ptx/layouts.h" | cut -c 1-64)
[ -e "$made" ] || c++ "$@" && cp -n "$6" "$made"
cp "$made" "$6"
"""


class Layouts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        compiler = os.path.join(folder.name, "compiler")
        with open(compiler, "w", encoding="utf-8") as file:
            file.write(COMPILER)
        os.chmod(compiler, 0o755)
        environment = mock.patch.dict(os.environ, CXX=compiler)
        environment.start()
        cls.addClassCleanup(environment.stop)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    read = {}  # what read_layouts() gave, by the text of the header

    def table(self, name, root=ROOT):
        """What the command prints."""
        with open(os.path.join(root, HEADER), encoding="utf-8") as file:
            header = file.read()
        if header not in self.read:
            with mock.patch.object(layout_data, "ROOT", root):
                self.read[header] = layout_data.read_layouts()
        return "\n".join(layout_tables.text_of(self.read[header], name)) + "\n"

    def grid(self, name):
        """The cells of a fragment's table, [row][col]."""
        lines = self.table(name).splitlines()
        return [line.split()[1:] for line in lines if re.match(r"( \d|[123]\d) ", line)]

    def copy(self):
        """A copy of what layouts.py reads; returns its root."""
        root = os.path.join(self.folder, "repository")
        shutil.copytree(
            os.path.join(ROOT, "common"),
            os.path.join(root, "common"),
            ignore=shutil.ignore_patterns("data", "gpu"),
        )
        copy_scripts(root)
        os.makedirs(os.path.join(root, "docs", "pictures"))
        shutil.copy(os.path.join(ROOT, "scripts", "layouts.py"), os.path.join(root, "scripts"))
        return root

    def change(self, root, old, new):
        path = os.path.join(root, HEADER)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text.count(old), 1, old)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))

    def pictures(self, root):
        done = run("--pictures", root=root)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.shipped(root)

    def shipped(self, root=ROOT):
        folder = os.path.join(root, "docs", "pictures")
        found = {}
        for name in os.listdir(folder):
            if name.startswith(("mma_", "wgmma_")):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    found[name] = file.read()
        return found

    def test_the_command_prints_the_table(self):
        for name, environment in (("mma_b", {"CXX": ""}), ("swizzle_64", {})):  # c++ itself first
            done = run(name, **environment)
            self.assertEqual((done.returncode, done.stdout), (0, self.table(name)), done.stderr)

    def test_shipped_pictures_are_what_the_script_draws(self):
        shipped = self.shipped()
        self.assertEqual(len(shipped), len(NAMES))
        self.assertEqual(self.pictures(self.copy()), shipped)

    def test_pictures_are_svg_of_readable_size(self):
        for name, text in self.shipped().items():
            root = xml.etree.ElementTree.fromstring(text)
            self.assertLessEqual(int(root.get("width")), 800, name)
            sizes = [
                int(size)
                for size in re.findall(r"(\d+)px Helvetica|font-size: (\d+)px", text)
                for size in size
                if size
            ]
            self.assertGreaterEqual(min(sizes), 10, name)

    def test_a_changed_function_changes_its_picture_and_its_table(self):
        root = self.copy()
        before = self.pictures(root)
        # Registers 1 and 2 of A change places; the packed scores fit no more.
        self.change(
            root,
            "{lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8}",
            "{lane / 4 + i / 4 * 8, lane % 4 * 2 + i % 2 + i / 2 % 2 * 8}",
        )
        done = run("p_as_a", root=root)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1))
        self.assertIn("lane 0: half 0 of a[1]", done.stderr)
        path = os.path.join(self.folder, "a.svg")
        self.assertEqual(run("mma_a", "--svg", path, root=root).returncode, 0)
        with open(path, encoding="utf-8") as file:
            self.assertNotEqual(file.read(), before["mma_a.svg"])
        self.assertNotEqual(self.table("mma_a", root), self.table("mma_a"))
        self.assertEqual(self.table("mma_b", root), self.table("mma_b"))

    def test_a_changed_swizzle_shows_its_conflicts(self):
        root = self.copy()
        self.change(root, "address >> 7 &", "address >> 8 &")
        text = self.table("swizzle_64", root)
        self.assertNotEqual(text, self.table("swizzle_64"))
        self.assertRegex(text, r"swizzled( +2){4}( +0){4} +2\n")  # two rows share a place

    def test_a_wrong_function_is_told_in_one_sentence(self):
        root = self.copy()
        self.change(root, "{lane / 4, lane % 4 * 2 + i}", "{lane / 4, lane % 4 * 2}")
        done = run("ldmatrix", root=root)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1))
        self.assertIn("[0][0]", done.stderr)

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

    def test_a_wrong_operand_of_wgmma_is_told_in_one_sentence(self):
        for old, new, words in (
            ("inner % width + row % 8 * width", "inner % width + row % 8 * 16", "wgmma_k_major"),
            (
                "thread / 32 * 16 + e.row, i / 4 * 8",
                "thread / 64 * 32 + e.row, i / 4 * 8",
                "wgmma_d",
            ),
        ):
            root = self.copy()
            self.change(root, old, new)
            done = run("wgmma_k_major", root=root)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn(words, done.stderr)
            shutil.rmtree(root)

    def test_scores_of_wgmma_are_an_operand_of_wgmma(self):
        root = self.copy()
        self.change(
            root,
            "const RowCol e = mma_a_element(thread % 32, i);",
            "const RowCol e = mma_a_element(thread % 32, i ^ 2);",
        )
        done = run("wgmma_d", root=root)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertIn("thread 0 of a warpgroup has D[0][0] where A wants A[8][0]", done.stderr)

    def test_text_is_100_columns_at_most(self):
        for name in NAMES:
            self.assertLessEqual(max(map(len, self.table(name).splitlines())), 100, name)

    def test_bad_use(self):
        for args in (
            (),
            ("mma_c",),
            ("mma_a", "--pictures"),
            ("--pictures", "--svg", "x.svg"),
            ("mma_a", "--svg", os.path.join(self.folder, "none", "x.svg")),
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
