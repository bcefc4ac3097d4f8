"""One file is one kernel: how long a lesson's file is, how many there are, what each opens, and how
many minutes a student needs for a chapter."""

import re
import unittest

from basis import ROOT
from flash_steps.steps import changed_since, lesson_files

LONGEST, LONGEST_PARTS, LONGEST_CHAPTER, MOST_FILES = 450, 350, 350, 9
# Of a step's files, the most that one opens, and the most lines of these: its own, those that it
# includes, and theirs. Headers of common/ are not counted, nor a file of another step of which the
# host calls a function "as a whole", as the comment after its include says: no reader needs it.
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
    "11": (3, 850),
    "12": (3, 700),
    "13": (3, 700),
    "14": (4, 750),
    "15": (3, 750),
    "16": (2, 600),
    "17": (3, 850),
}
OTHERS = (4, 1000)  # of a step that has no row
RUNGS, UNNUMBERED = 2, 1  # earlier numbered files that one opens, and unnumbered ones of its step
# A chapter with its lesson's files, at 200 words and 18 lines a minute; lines of a file of beyond/.
MINUTES, LONGEST_BEYOND = 90, 500


def lines(path):
    return len((ROOT / path).read_text().splitlines())


def is_numbered(path):
    return path.split("/")[-1][0].isdigit()


def includes(path):
    """Files of steps that `path` includes, except another step's that is called as a whole."""
    for line in (ROOT / path).read_text().splitlines():
        if line.startswith('#include "steps/'):
            other = line.split('"')[1]
            if not line.endswith("as a whole") or other.split("/")[1] == path.split("/")[1]:
                yield other


def opened(path, found):
    """`path` and all files of steps that it includes, directly or not."""
    found.add(path)
    for other in includes(path):
        if other not in found:
            opened(other, found)
    return found


def folders():
    """("06", folder) of each step."""
    return [(folder.name[:2], folder) for folder in sorted(ROOT.glob("steps/[0-9][0-9]_*"))]


def sources(folder):
    """The lesson's files, and those that they share."""
    found = [*folder.glob("*.cuh"), *folder.glob("*.h")]
    return sorted(str(f.relative_to(ROOT)) for f in found if f.name != "step.cuh")


class Lessons(unittest.TestCase):
    def at_most(self, limit, found, *of):
        self.assertLessEqual(found, limit, " ".join(map(str, of)))

    def test_each_file_is_one_kernel(self):
        known = lesson_files()
        self.assertEqual(set(OPENS) - {name[:2] for name in known}, set())
        for name, path in known.items():
            with self.subTest(name):
                there, step = sorted(opened(path, set())), name[:2]
                own = [other for other in there if other.startswith(path[: path.rindex("/")])]
                unnumbered = [other for other in own if not is_numbered(other)]
                files, most = OPENS.get(step, OTHERS)
                self.at_most(LONGEST, lines(path), name)
                self.at_most(files, len(there), *there)
                self.at_most(most, sum(map(lines, there)), *there)
                self.at_most(RUNGS, sum(map(is_numbered, there)) - 1, *there)
                self.at_most(UNNUMBERED, len(unnumbered), *unnumbered)
                other = changed_since((ROOT / path).read_text())
                self.assertIn(other, {None, *known})

    def test_no_line_of_a_lesson_is_for_beyond(self):
        hook = re.compile(r'^[^/]*\bvirtual\b|#include ".*/beyond/')
        for _, folder in folders():
            for path in sources(folder):
                found = filter(hook.search, (ROOT / path).read_text().splitlines())
                self.assertEqual(list(found), [], path)

    def test_a_step_has_few_files_in_an_order_that_a_listing_shows(self):
        for _, folder in folders():
            with self.subTest(folder.name):
                numbers = [int(re.match(r"\d+", f.name)[0]) for f in folder.glob("[0-9]*.cuh")]
                self.assertEqual(sorted(numbers), list(range(1, len(numbers) + 1)))
                self.at_most(MOST_FILES, len(numbers))
                for path in sources(folder):
                    if not is_numbered(path):
                        self.at_most(LONGEST_PARTS, lines(path), path)
                for path in [*folder.glob("beyond/*.cuh"), *folder.glob("beyond/*.h")]:
                    self.at_most(LONGEST_BEYOND, lines(path), path.name)

    def test_a_chapter_is_one_sitting(self):
        for step, folder in folders():
            with self.subTest(folder.name):
                text = (folder / "README.md").read_text()
                self.at_most(LONGEST_CHAPTER, len(text.splitlines()), "lines")
                minutes = sum(map(lines, sources(folder))) / 18 + len(text.split()) / 200
                self.at_most(MINUTES, minutes, "minutes")


if __name__ == "__main__":
    unittest.main(argv=["test"])
