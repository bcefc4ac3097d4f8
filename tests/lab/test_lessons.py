"""One file is one kernel: how long a lesson's file is, how many there are, and what each opens."""

import re
import unittest

from basis import ROOT
from flash_steps.steps import changed_since, lesson_files

LONGEST, LONGEST_PARTS, LONGEST_CHAPTER, MOST_FILES = 450, 350, 350, 9
# Of a step's files, the most that one opens, and the most lines of these: its own, those that it
# includes, and theirs. Headers of common/ are not counted, nor a file of which the host calls a
# function "as a whole", as the comment after its include says: no reader needs to open it.
OPENS = {
    "01": (1, 150),
    "02": (1, 250),
    "03": (3, 400),
    "04": (2, 450),
    "05": (3, 600),
    "06": (2, 500),
    "07": (1, 300),
    "08": (3, 800),
    "09": (2, 650),
    "10": (2, 650),
    "11": (4, 1050),
    "12": (4, 850),
    "13": (3, 700),
    "14": (4, 750),
    "15": (4, 1000),
    "16": (2, 600),
}
OTHERS = (4, 1000)  # of a step that has no row


def lines(path):
    return len((ROOT / path).read_text().splitlines())


def opened(path, found):
    """`path` and all files of steps that it includes, directly or not."""
    found.add(path)
    for line in (ROOT / path).read_text().splitlines():
        if line.startswith('#include "steps/') and not line.endswith("as a whole"):
            other = line.split('"')[1]
            if other not in found:
                opened(other, found)
    return found


class Lessons(unittest.TestCase):
    def test_each_file_is_one_kernel(self):
        known = lesson_files()
        self.assertGreaterEqual(len(known), 45)
        for name, path in known.items():
            with self.subTest(name):
                there = opened(path, set())
                self.assertFalse([other for other in there if "/beyond/" in other], name)
                self.assertLessEqual((lines(path), name), (LONGEST, name))
                files, most = OPENS.get(name[:2], OTHERS)
                self.assertLessEqual(len(there), files, sorted(there))
                self.assertLessEqual(sum(map(lines, there)), most, sorted(there))
                other = changed_since((ROOT / path).read_text())
                self.assertIn(other, {None, *known})

    def test_a_step_has_few_files_in_an_order_that_a_listing_shows(self):
        for folder in ROOT.glob("steps/[0-9][0-9]_*"):
            with self.subTest(folder.name):
                numbers = [int(re.match(r"\d+", f.name)[0]) for f in folder.glob("[0-9]*.cuh")]
                self.assertEqual(sorted(numbers), list(range(1, len(numbers) + 1)))
                self.assertLessEqual(len(numbers), MOST_FILES)
                parts = folder / "parts.cuh"
                if parts.exists():
                    self.assertLessEqual(lines(parts), LONGEST_PARTS)

    def test_a_chapter_is_one_sitting(self):
        chapters = sorted(ROOT.glob("steps/[0-9][0-9]_*/README.md"))
        self.assertGreaterEqual(len(chapters), 10)
        found = {path.parent.name: len(path.read_text().splitlines()) for path in chapters}
        self.assertEqual({name: n for name, n in found.items() if n > LONGEST_CHAPTER}, {})


if __name__ == "__main__":
    unittest.main(argv=["test"])
