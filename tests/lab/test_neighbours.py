"""Each lesson file adds little to the one that it changes; and chapters are short."""

import pathlib
import tempfile
import unittest

from basis import ROOT
from flash_steps.command import BadInput
from lab import neighbours

LONGEST, LONGEST_CHAPTER = 375, 350
# They change no other file.
NEW = {"01 1_naive", "03 1_merge", "12 1_quantise", "12 7_rotation", "13 2_merge", "14 1_merge"}
NEW |= {"14 2_hops", "14 3_ring", "14 4_backward", "14 5_heads", "14 6_fused"}


class Neighbours(unittest.TestCase):
    def test_each_file_is_within_the_limits_or_has_a_reason(self):
        found = neighbours.neighbours()
        self.assertEqual({n.file for n in found if not n.other}, NEW)
        self.assertEqual([n.file for n in found if n.lines > LONGEST], [])
        leaps = {n.file for n in found if n.other and n.is_leap}
        self.assertEqual(leaps, set(neighbours.LEAPS))

    def test_a_chapter_is_one_sitting(self):
        chapters = sorted(ROOT.glob("steps/[0-9][0-9]_*/README.md"))
        self.assertGreaterEqual(len(chapters), 10)
        lengths = {path.parent.name: len(path.read_text().splitlines()) for path in chapters}
        self.assertEqual({name: n for name, n in lengths.items() if n > LONGEST_CHAPTER}, {})

    def test_white_space_is_no_change_and_moved_lines_are(self):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in (
                ("01_one/1_first.cuh", "a\nb\nc\nx y\n"),
                ("02_two/1_second.cuh", "// Changed   since 01 1_first: all\n  a\nc\nb\nxy\nd\n"),
            ):
                file = pathlib.Path(folder, "steps", path)
                file.parent.mkdir(parents=True)
                file.write_text(text)
            found = neighbours.neighbours(folder)[1]
            self.assertEqual((found.lines, found.added, found.removed), (6, 3, 1))
            file.write_text("// Changed   since 03 9_none: all\n")
            with self.assertRaisesRegex(BadInput, "02 1_second: its header changes 03 9_none"):
                neighbours.neighbours(folder)


if __name__ == "__main__":
    unittest.main(argv=["test"])
