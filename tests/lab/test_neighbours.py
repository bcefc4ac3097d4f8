#!/usr/bin/env python3
"""maintain neighbours: each lesson file adds little to the one that it changes; and chapters are
short."""

import os
import pathlib
import tempfile
import unittest

import basis  # noqa: F401 -- finds the packages
from flash_steps.command import BadInput
from lab import neighbours

ROOT = pathlib.Path(basis.ROOT)

LONGEST_CHAPTER = 350
NEW = (
    "01 1_naive",
    "03 1_merge",
    "12 1_quantise",
    "13 2_merge",
    "14 1_merge",
    "14 2_hops",
    "14 3_ring",
    "14 4_backward",
    "14 5_heads",
    "14 6_fused",
)  # they change no other file


class Marks(unittest.TestCase):
    """Of this tree."""

    def test_each_file_names_the_one_that_it_changes(self):
        found = neighbours.neighbours()
        self.assertGreater(len(found), 20)
        self.assertEqual([n.file for n in found if not n.other], list(NEW))

    def test_each_file_is_within_the_marks_or_excused_with_a_reason(self):
        beyond = {n.file: n.beyond for n in neighbours.neighbours() if n.beyond}
        self.assertEqual(sorted(beyond), sorted(neighbours.EXCUSED), beyond)
        self.assertTrue(all(len(why) > 20 for _, why in neighbours.EXCUSED.values()))


class Pages(unittest.TestCase):
    def test_a_chapter_is_one_sitting(self):
        chapters = sorted(ROOT.glob("steps/[0-9][0-9]_*/README.md"))
        self.assertGreaterEqual(len(chapters), 10)
        lengths = {
            str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in chapters
        }
        self.assertEqual({name: n for name, n in lengths.items() if n > LONGEST_CHAPTER}, {})


class Measure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def file(self, step, name, lines):
        path = os.path.join(self.root, "steps", step, name + ".cuh")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
        return path

    def two_files(self, old, new):
        """The numbers that the tool finds, and the files."""
        a = self.file("01_one", "1_first", old)
        b = self.file("02_two", "1_second", ["// Changed   since 01 1_first: all", *new])
        return neighbours.neighbours(self.root)[1], a, b

    def test_white_space_is_no_change_and_moved_lines_are(self):
        found, _, _ = self.two_files(["a", "b", "c", "x y"], ["  a", "c", "b", "xy", "d"])
        self.assertEqual((found.lines, found.added, found.removed), (6, 3, 1))
        self.assertEqual(found.other, "01 1_first")

    def test_marks(self):
        def beyond(file="02 1_x", other="01 1_y", lines=100, added=10):
            return neighbours.Neighbour(file, other, lines, added, 0).beyond

        self.assertIsNone(beyond())
        self.assertIsNone(beyond(added=50))
        self.assertEqual(beyond(added=51), "51% new")
        self.assertEqual(beyond(lines=375, added=188), "50% new")
        self.assertEqual(beyond(lines=376), "376 lines")
        self.assertIsNone(beyond(other=None, added=100))

    def test_an_excuse_has_a_limit(self):
        def excused(file, lines, added):
            return neighbours.Neighbour(file, "01 1_y", lines, added, 0).excused

        file, (share, _) = next(iter(neighbours.EXCUSED.items()))
        self.assertTrue(excused(file, 300, int(300 * share)))
        self.assertFalse(excused(file, 300, int(300 * share) + 1))
        self.assertFalse(excused(file, 376, 10))
        self.assertFalse(excused("01 9_z", 100, 51))

    def test_a_header_that_names_no_file_is_refused(self):
        self.file("01_one", "1_first", ["// Changed   since 03 9_none: all"])
        with self.assertRaisesRegex(BadInput, "01 1_first: its header changes 03 9_none"):
            neighbours.neighbours(self.root)


if __name__ == "__main__":
    unittest.main(argv=["test"])
