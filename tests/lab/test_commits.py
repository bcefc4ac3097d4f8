"""The commit that results carry, and `maintain tables --check` after a change of a kernel."""

import json
import os
import shutil
import unittest
from unittest import mock

from basis import HAVE_GIT, Folder, commit_all, main
from flash_steps import commits


@unittest.skipUnless(HAVE_GIT, "git is not installed")
class Small(Folder):
    """Two steps, of which the second includes a file of the first."""

    FILES = {
        "steps/01_a/main.cu": '#include "steps/01_a/step.cuh"\n',
        "steps/01_a/step.cuh": '#include "common/harness/step.h"\n#include "steps/01_a/1_x.cuh"\n',
        "steps/01_a/1_x.cuh": '#include "common/dialect/a.h"\nint  x;  // here\n\nint y;\n',
        "steps/01_a/test.cu": "int t;\n",
        "steps/02_b/main.cu": '#include "./steps/01_a/1_x.cuh"\n#include "common/harness/tiles.h"',
        "common/dialect/a.h": "#pragma once\n#define A 1\n",
        "common/dialect/b.h": "int b;\n",
        "common/harness/step.h": "int s;\n",
        "common/harness/tiles.h": "int t;\n",
        "docs/a.md": "a\n",
    }

    def setUp(self):
        super().setUp()
        for path, text in self.FILES.items():
            self.write(path, text)
        self.commit = commit_all(self.folder)
        environment = {k: v for k, v in os.environ.items() if k != "FLASH_STEPS_COMMIT"}
        self.enterContext(mock.patch.dict(os.environ, environment, clear=True))
        self.enterContext(mock.patch.object(commits, "ROOT", str(self.folder)))
        self.enterContext(mock.patch.object(commits, "EQUAL_CODE", str(self.folder / "e.json")))
        self.forget()
        self.addCleanup(self.forget)

    def forget(self):
        for cached in ("here", "files_since", "has_changed", "files_of", "has_same_code"):
            getattr(commits, cached).cache_clear()
        commits.is_current.cache_clear()
        commits.equal_code.cache_clear()

    def changed(self, since=None):
        """The steps that have changed."""
        self.forget()
        since = since or self.commit
        return [s for s in ("01_a", "02_b") if not commits.is_current(s, since)]

    def test_what_changes_a_step(self):
        both, first, second, none = ["01_a", "02_b"], ["01_a"], ["02_b"], []
        for path, text, steps in (
            ("steps/01_a/1_x.cuh", "int x; /* there */ int\ny;\n", both),
            ("steps/01_a/1_x.cuh", '#include "common/dialect/a.h"\nint x;\n  int y;\n', none),
            ("steps/01_a/1_x.cuh", '#include "common/dialect/b.h"\nint x;\nint y;\n', none),
            ("steps/01_a/step.cuh", '#include "steps/01_a/1_x.cuh"\nint z;\n', first),
            ("steps/01_a/test.cu", "int other;\n", none),
            ("common/dialect/a.h", "#pragma once\n#define A 2\n", both),
            ("common/dialect/b.h", "int other;\n", none),
            ("common/harness/step.h", "int other;\n", none),
            ("common/harness/tiles.h", "int other;\n", second),
            ("docs/a.md", "other\n", none),
        ):
            with self.subTest(path, text=text):
                self.write(path, text)
                self.assertEqual(self.changed(), steps)
                other = path.split("/")[0] != "docs"
                self.assertEqual(commits.here(), self.commit + "+" * other)
                self.write(path, self.FILES[path])
        self.assertEqual(commits.code_of("a  b // c\n\n #define x  1\n"), ["a b", "#define x 1"])
        self.assertEqual(commits.git("no-such-command"), None)

    def test_files_that_move_appear_and_go(self):
        (self.folder / "steps/01_a/1_x.cuh").rename(self.folder / "steps/01_a/2_y.cuh")
        for path in ("steps/01_a/step.cuh", "steps/02_b/main.cu"):
            self.write(path, self.FILES[path].replace("1_x", "2_y"))
        self.write("steps/02_b/z.cuh", "int z;\n")
        last = commit_all(self.folder)
        self.assertEqual(self.changed(), [])
        since = commits.files_since(self.commit)
        self.assertEqual(since["steps/01_a/2_y.cuh"], "steps/01_a/1_x.cuh")
        self.assertEqual(since["steps/02_b/main.cu"], "steps/02_b/main.cu")
        self.assertIsNone(since["steps/02_b/z.cuh"])
        self.write("steps/02_b/main.cu", '#include "steps/02_b/z.cuh"\n')
        self.assertEqual(self.changed(), ["02_b"])
        self.assertEqual(commits.files_of("02_b"), {"steps/02_b/main.cu", "steps/02_b/z.cuh"})
        self.assertIsNone(commits.files_of("03_c"))
        self.assertFalse(commits.has_same_code("03_c", last))
        with mock.patch.object(commits.subprocess, "run", side_effect=OSError):  # no compiler
            self.forget()
            names = ("step.cuh", "2_y.cuh", "main.cu", "test.cu")
            self.assertEqual(commits.files_of("01_a"), {f"steps/01_a/{name}" for name in names})
            self.assertEqual(commits.code_of("a // b\n\n"), ["a // b"])
            self.assertEqual(commits.here(), "unknown")

    def test_commits_that_say_nothing(self):
        for commit, steps in (
            *((self.commit, []), (self.commit + "+", ["01_a", "02_b"])),
            *(("0123456789ab", ["01_a", "02_b"]), ("", ["01_a", "02_b"])),
        ):
            self.forget()
            found = [s for s in ("01_a", "02_b") if not commits.is_current(s, commit)]
            self.assertEqual(found, steps, commit)
        with mock.patch.dict(os.environ, {"FLASH_STEPS_COMMIT": "4567"}):
            self.assertEqual(self.changed("4567"), [])
            self.assertEqual(commits.here(), "4567")
            self.assertEqual(self.changed("4568"), ["01_a", "02_b"])
        shutil.rmtree(self.folder / ".git")
        self.assertEqual(self.changed("4568"), [])  # a copy: its results came with it
        self.assertEqual(commits.here(), "unknown")

    def test_a_chain_of_equal_code(self):
        self.write("steps/01_a/1_x.cuh", "int z;\n")
        middle = commit_all(self.folder)
        self.write("steps/01_a/1_x.cuh", "int w;\n")
        last = commit_all(self.folder)
        one = {"since": self.commit, "at": middle, "steps": ["01_a"], "how": "one"}
        two = {"since": middle, "at": last, "steps": ["01_a", "02_b"], "how": "two"}
        for entries, steps in (
            *(([], ["01_a", "02_b"]), ([one], ["01_a", "02_b"]), ([two], ["01_a", "02_b"])),
            *(([one, two], ["02_b"]), ([two, {**one, "steps": ["01_a", "02_b"]}], [])),
        ):
            self.write("e.json", json.dumps(entries))
            self.assertEqual(self.changed(), steps, entries)
        self.assertEqual(commits.proof_of("01_a", self.commit, [two, one]), [one, two])
        self.assertEqual(commits.proof_of("01_a", last, [two, one]), [])
        self.assertIsNone(commits.proof_of("02_b", self.commit, [two, one]))


main()
