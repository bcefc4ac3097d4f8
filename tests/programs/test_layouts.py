"""The pictures of fragments and swizzles follow the functions of common/dialect/ptx/layouts.h."""

import copy
import os
import unittest
import xml.etree.ElementTree

from copies import maintain
from flash_steps import chapter_pictures, layout_data, layout_pictures, layouts
from flash_steps.command import Failure
from flash_steps.files import read_text


class Layouts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.layouts = layout_data.read_layouts()  # compiles, once

    def held(self, name):
        """{(row, column): (lane, register, half)} of a fragment."""
        cells = layout_data.cells_of(self.layouts, name)
        return {(c.row, c.col): (c.lane, c.register, c.half) for c in cells}

    def test_shipped_pictures_are_what_is_drawn(self):
        drawn = {**layout_pictures.pictures_of(self.layouts), **chapter_pictures.drawings()}
        for name, svg in drawn.items():
            self.assertEqual(svg, read_text(os.path.join(layouts.PICTURES, name)), name)
            root = xml.etree.ElementTree.fromstring(svg)
            self.assertLessEqual(int(root.get("width")), 800, name)

    def test_what_the_chapters_say_of_scores_is_checked(self):
        for name, words in (
            ("mma_a", r"lane 0: half 0 of a\[1\] is S\[8\]\[0\] .* has it at \[0\]\[8\]"),
            ("wgmma_a", r"thread 0 of a warpgroup has D\[8\]\[0\] where A wants A\[0\]\[8\]"),
        ):
            changed = copy.deepcopy(self.layouts)
            for cell in changed[name]:  # registers 1 and 2 change places
                cell[3:] = [cell[3] - 8, cell[4] + 8] if cell[1] == 1 else cell[3:]
            with self.assertRaisesRegex(Failure, words):
                layout_pictures.pictures_of(changed)

    def test_fragments_are_those_of_the_ptx_manual(self):
        # The manual's groupID is lane / 4, its threadID_in_group lane % 4.
        a, b, d, ldmatrix = map(self.held, ("mma_a", "mma_b", "mma_d", "ldmatrix"))
        self.assertEqual([len(tile) for tile in (a, b, d, ldmatrix)], [256, 128, 128, 64])
        for lane in range(32):
            group, thread = divmod(lane, 4)
            for i in range(8):
                row = group + (8 if i in (2, 3, 6, 7) else 0)
                col = 2 * thread + i % 2 + (8 if i >= 4 else 0)
                self.assertEqual(a[row, col], (lane, i // 2, i % 2))
            for i in range(4):
                row = 2 * thread + i % 2 + (8 if i >= 2 else 0)
                self.assertEqual(b[row, group], (lane, i // 2, i % 2))
                self.assertEqual(d[group + i // 2 * 8, 2 * thread + i % 2], (lane, i, 0))
            for i in range(2):
                self.assertEqual(ldmatrix[group, 2 * thread + i], (lane, 0, i))

    def test_wgmma_fragments_are_those_of_the_ptx_manual(self):
        # The manual's D of wgmma, m64: row 16 w + lane / 4, eight rows below for i % 4 >= 2;
        # columns 8 (i / 4) + 2 (lane % 4) + i % 2. Its A: the same, register i / 2, half i % 2.
        d, a = self.held("wgmma_d"), self.held("wgmma_a")
        self.assertEqual([len(tile) for tile in (d, a)], [1024, 1024])
        for thread in range(128):
            warp, lane = divmod(thread, 32)
            for i in range(8):
                row = 16 * warp + lane // 4 + i % 4 // 2 * 8
                col = i // 4 * 8 + lane % 4 * 2 + i % 2
                self.assertEqual(d[row, col], (thread, i, 0))
                self.assertEqual(a[row, col], (thread, i // 2, i % 2))

    def test_swizzle_is_an_exclusive_or(self):
        for d in (64, 128):
            swizzle = layout_data.Swizzle(self.layouts, d)
            for row in range(8):
                chunks = [swizzle.chunk_at(row, place) for place in range(d // 8)]
                self.assertEqual(chunks, [place ^ row for place in range(d // 8)])
            for accesses, plain in ((swizzle.ldmatrix, 8), (swizzle.cp_async, 1)):
                waves = {(max(a["plain"]), max(a["swizzled"])) for a in accesses}
                self.assertEqual(waves, {(plain, 1)})

    def test_wgmma_operands_are_the_swizzled_tile(self):
        k = layout_data.Operand(self.layouts, "wgmma_k_major")
        self.assertEqual((k.panels, k.rows), (1, 16))
        for (_, row, place), (chunk, product) in k.places.items():
            self.assertEqual((chunk, product), (place ^ row % 8, chunk // 2))
        mn = layout_data.Operand(self.layouts, "wgmma_mn_major")
        self.assertEqual((mn.panels, mn.rows), (2, 32))
        for (panel, row, place), (chunk, product) in mn.places.items():
            self.assertEqual((chunk, product), (8 * panel + (place ^ row % 8), row // 16))

    def test_no_compiler(self):
        for compiler, words in (("no-such-compiler", "no compiler"), ("false", "does not compile")):
            done = maintain("layouts", CXX=compiler)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (3, 1))
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=["test"])
