"""The commit that results carry, and `maintain tables --check` after a change of a kernel."""

import json
import os
import shutil
import sys
import unittest
from unittest import mock

from basis import HAVE_GIT, ROOT, Folder, commit_all, for_all, main, maintain, said
from flash_steps import commits
from flash_steps.results import PICTURES, published
from flash_steps.standing import rows_of
from flash_steps.steps import numbered_steps

ALL = [step[:2] for step in numbered_steps()]
FIRST = {f"{n:02}" for n in range(1, 15)}  # whose includes this test knows
ASK = """
import sys
sys.path.insert(0, "scripts")
from flash_steps import commits
from flash_steps.steps import numbered_steps
commit = sys.argv[1] if len(sys.argv) > 1 else commits.here()
print(commit, *[step[:2] for step in numbered_steps() if not commits.is_current(step, commit)])
"""


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

    def ask(self, *commit, **environment):
        """(the commit, the steps that differ from it)"""
        call = [sys.executable, "-c", ASK, *commit]
        done = said(call, cwd=self.folder, env={**os.environ, **environment}, check=True)
        commit, *steps = done.stdout.split()
        return commit, steps

    def changed(self):
        return set(self.ask(self.commit)[1])

    def test_what_decides_a_steps_result(self):
        self.assertEqual(self.changed(), set())
        fp32 = {"01", "02", "03", "04", "05", "06", "08", "14"}  # by their includes
        nothing = (
            ("steps/01_naive/1_naive.cuh", "//", "// reworded:"),
            ("steps/01_naive/1_naive.cuh", ";\n", ";  /* why */\n"),
            ("steps/01_naive/1_naive.cuh", "#include", "\n#include <array>\n#include"),
            ("common/sim/sim.h", "#pragma once", "#pragma once\nint more;"),
            ("common/dialect/cuda_vocabulary.h", "#pragma once", "#pragma once\nint a;"),
            ("common/harness/step.h", "#pragma once", "#pragma once\nint more;"),
            ("steps/10_warp_specialized/test.cu", "#include", "int more;\n#include"),
        )
        for change in nothing:
            self.replace(*change)
        self.assertEqual(self.changed(), set())
        for path, before, after, steps in (
            ("steps/09_tma_wgmma/2_wgmma.cuh", "\n\n", "\nint a;\n", {"09", "10"}),
            ("steps/01_naive/1_naive.cuh", "kBlockY = 8;", "kBlockY = 9;", fp32),
            ("common/dialect/cuda.h", "kWarp = 32", "kWarp = 33", FIRST),
            ("steps/14_ring/step.cuh", "Cut::zigzag", "Cut::plain", {"14"}),
            ("common/harness/ranks.h", "\n\n", "\nint more;\n", {"14"}),
        ):
            with self.subTest(path=path, after=after):
                text = self.read(path)
                self.replace(path, before, after)
                changed = self.changed()
                self.write(path, text)
                self.assertEqual(changed & FIRST, steps)

    def test_a_file_that_is_only_moved_changes_nothing(self):
        moved = self.folder / "steps/03_online_softmax/1_merge.cuh"
        moved.rename(moved.with_name("4_moved.cuh"))
        includer = "steps/03_online_softmax/3_online.cuh"
        self.replace(includer, "softmax/1_merge.cuh", "softmax/4_moved.cuh")
        commit_all(self.folder)
        self.assertEqual(self.changed(), set())

    def test_another_text_may_be_the_same_to_a_gpu(self):
        self.replace("steps/14_ring/step.cuh", "one problem", "a problem")
        self.replace("steps/02_tiled/step.cuh", "tiles", "squares")
        at = commit_all(self.folder)
        self.assertEqual(self.changed(), {"02", "14"})

        def says(**entry):
            entry = {"since": self.commit, "at": at, "steps": ["14_ring"], "how": "", **entry}
            self.write("docs/results/equal_code.json", json.dumps([entry]))
            return self.changed()

        self.assertEqual(says(), {"02"})
        self.assertEqual(says(since=at), {"02", "14"})  # from another commit's results
        self.assertEqual(says(at="0123456789ab"), {"02", "14"})
        self.replace("steps/14_ring/step.cuh", "Cut::zigzag", "Cut::plain")
        self.assertEqual(says(), {"02", "14"})  # what came later

    def test_the_commit_of_a_result(self):
        self.assertEqual(self.ask()[0], self.commit)
        self.write("README.md", "other")
        self.assertEqual(self.ask()[0], self.commit)  # changes without influence
        self.replace("steps/02_tiled/step.cuh", "\n\n", "\nint more;\n")
        self.assertEqual(self.ask(), (self.commit + "+", []))
        commit_all(self.folder)  # earlier measurements belong to no commit
        self.assertEqual(self.ask(self.commit + "+")[1], ALL)
        self.assertEqual(self.ask("0123456789ab")[1], ALL)  # a shallow clone
        shutil.rmtree(self.folder / ".git")
        self.assertEqual(self.ask(), ("unknown", []))
        self.assertEqual(self.ask(FLASH_STEPS_COMMIT="0123"), ("0123", []))
        self.assertEqual(self.ask("4567", FLASH_STEPS_COMMIT="0123")[1], ALL)
        self.assertEqual(self.ask("4567")[1], [])  # a copy: its results came with it

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
