"""The commit that results carry, and `maintain tables --check` after a change of a kernel."""

import json
import os
import shutil
import unittest
from unittest import mock

from basis import HAVE_GIT, ROOT, Folder, commit_all, for_all, main, maintain
from flash_steps import commits
from flash_steps.results import PICTURES, published
from flash_steps.standing import rows_of


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


@for_all
@unittest.skipUnless(HAVE_GIT, "git is not installed")
class Copy(Folder):
    """A copy of what results and pages need, with its own history, to be changed."""

    def setUp(self):
        super().setUp()
        unwanted = shutil.ignore_patterns("__pycache__", "exercises", "*.npy", "learn_lib")
        for name in ("docs", "scripts", "steps", "common"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=unwanted)
        shutil.copy(ROOT / "README.md", self.folder)
        self.commit = commit_all(self.folder)

    def read(self, path):
        return (self.folder / path).read_text()

    def replace(self, path, before, after):
        text = self.read(path)
        self.assertIn(before, text)
        self.write(path, text.replace(before, after, 1))

    def tables(self, *args):
        done = maintain("tables", *args, root=self.folder, python=["-S"])
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def measured_here(self):
        """As if all results had been measured at this commit, and the pages filled."""

        def stamp(tree):
            for value in tree.values() if isinstance(tree, dict) else tree:
                if isinstance(value, (dict, list)):
                    stamp(value)
            if isinstance(tree, dict) and tree.get("step"):
                tree["commit"] = self.commit

        folder = self.folder / "docs/results"
        for path in folder.glob("*.json"):
            tree = json.loads(path.read_text())
            stamp(tree)
            path.write_text(json.dumps(tree))
        rows = rows_of(published(folder))
        for name, rows_of_picture in PICTURES.items():
            steps = {row.any.data["step"] for row in rows_of_picture(rows)}
            self.write(f"docs/pictures/{name}", " ".join(f"{x}={self.commit}" for x in steps))
        self.tables()

    def test_the_check_of_tables_fails_after_one_changed_character(self):
        self.measured_here()
        self.assertEqual(self.tables("--check"), (0, ""))
        for name in PICTURES:
            picture = f"docs/pictures/{name}"
            self.replace(picture, f"02_tiled={self.commit}", "02_tiled=0123456789ab")
            why = "drawn from other results (02_tiled): run ./scripts/maintain plots"
            self.assertEqual(self.tables("--check"), (1, f"{picture}: {why}\n"))
            self.replace(picture, "02_tiled=0123456789ab", f"02_tiled={self.commit}")
        older = "f an earlier version of the kernel"
        kernel = "steps/10_warp_specialized/3_persistent.cuh"
        step = kernel.split("/")[1]
        page = f"steps/{step}/README.md"
        self.assertNotIn(older, self.read(page))
        self.replace(kernel, "//", "// reworded:")
        self.assertEqual(self.tables("--check"), (0, ""))
        self.replace(kernel, "int d = T::d", "int d = T::b")
        status, out = self.tables("--check")
        self.assertEqual(status, 1)
        self.assertIn(f"{page}: out of date", out)
        self.assertIn("README.md: out of date", out)
        self.tables()
        self.assertIn(f"{older}: {step[:2]} ", self.read(page))


main()
