"""docs/asynchrony: each program is right, and says what the page shows without its marked line.

--update replaces the outputs in docs/asynchrony/README.md by the current ones.
"""

import collections
import re
import shutil
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from copies import ROOT, SCRIPTS, for_all, main, on_page, said
from flash_steps.files import read_json

FOLDER = ROOT / "docs" / "asynchrony"
PAGE = FOLDER / "README.md"
MINUTES = 15  # at 200 words and 18 lines a minute
# By program: without its marked line, the kind of each finding, and the lines that it names.
FOUND = {
    "mbarriers": [("invalid-use", [22])],
    "named_barriers": [("deadlock", [16])],
    "proxies": [("race", [12, 9])],
    "wgmma_groups": [("race", [20, 16])],
    "matrix_descriptors": [],  # a wrong result
    "tensor_memory": [("race", [23, 19])],
}


def is_marked(line):
    return line.rstrip().endswith("// delete this line")


def run(path):
    """How it ends, its findings as the terminal shows them, its output, and [(kind, lines)]."""
    report = path.with_suffix(".json")
    done = said([sys.executable, SCRIPTS / "sim", "--analyse", "--json", report, path.name],
                cwd=path.parent, timeout=300)  # fmt: skip
    shown = "".join(re.findall(r"^finding: .*\n(?:  .*\n)*", done.stderr, re.MULTILINE))
    found = [(f["rule"], [p["line"] for p in f["places"]]) for f in read_json(report)["findings"]]
    return done.returncode, shown, done.stdout, found


def runs(_cache={}):
    """Of each program: (unchanged, without its marked line)."""
    if not _cache:
        with tempfile.TemporaryDirectory() as there, ThreadPoolExecutor(2) as pool:
            paths = []
            for name in FOUND:
                lines = (FOLDER / f"{name}.cu").read_text().splitlines(keepends=True)
                for kind, kept in (
                    ("right", lines),
                    ("less", [x for x in lines if not is_marked(x)]),
                ):
                    path = Path(there, kind, f"{name}.cu")
                    path.parent.mkdir(exist_ok=True)
                    shutil.copy(FOLDER / "ptx.h", path.parent)
                    path.write_text("".join(kept))
                    paths.append(path)
            results = list(pool.map(run, paths))
        _cache.update(zip(FOUND, zip(results[::2], results[1::2])))
    return _cache


class Asynchrony(unittest.TestCase):
    def test_each_program_is_right_and_short_and_has_one_marked_line(self):
        self.assertEqual(sorted(FOUND), sorted(path.stem for path in FOLDER.glob("*.cu")))
        for name, (right, _) in runs().items():
            with self.subTest(name):
                self.assertEqual(right, (0, "", "0 numbers are wrong\n", []))
                lines = (FOLDER / f"{name}.cu").read_text().splitlines()
                self.assertEqual(sum(map(is_marked, lines)), 1)
                self.assertLessEqual(len(lines), 40)

    def test_without_that_line_it_says_what_the_page_shows(self):
        for name, (_, (status, shown, printed, found)) in runs().items():
            with self.subTest(name):
                self.assertEqual((status, found), (1, FOUND[name]))
                if not found:
                    self.assertNotEqual(printed, "0 numbers are wrong\n")
                output = f"$ ./scripts/sim --analyse docs/asynchrony/{name}.cu\n{shown}{printed}"
                self.assertEqual(output, on_page(PAGE, name, output))

    def test_page_and_programs_take_a_quarter_of_an_hour(self):
        read = [path.read_text().split("\nint main() {")[0] for path in FOLDER.glob("*.cu")]
        lines = sum(len(text.splitlines()) for text in read)  # main compares the results
        self.assertLessEqual(lines / 18 + len(PAGE.read_text().split()) / 200, MINUTES)

    def test_the_steps_of_mbarriers(self):
        with tempfile.TemporaryDirectory() as there:
            report = Path(there, "report.json")
            command = [sys.executable, SCRIPTS / "sim", FOLDER / "mbarriers.cu", "--barriers"]
            done = said([*command, "--json", report])
            self.assertEqual(done.returncode, 0, done.stderr)
            steps = read_json(report)["barriers"]
            self.assertEqual(said(command).returncode, 2)  # where to?
        counts = collections.Counter(
            (s["what"], s["barrier"]) for s in steps if s["what"] != "wait"
        )
        for s in (0, 1):
            self.assertEqual(counts["bytes", f"full[{s}]"], 3)
            self.assertEqual(counts["arrive", f"full[{s}]"], 3)
            self.assertEqual(counts["pass", f"full[{s}]"], 3 * 64)
            self.assertEqual(counts["arrive", f"empty[{s}]"], 3 * 64)
            self.assertEqual(counts["pass", f"empty[{s}]"], 3)
        self.assertEqual({s["phase"] for s in steps if s["what"] == "bytes"}, {1, 2, 3})
        waiting = [s["thread"] for s in steps if (s["what"], s["phase"]) == ("wait", 0)]
        self.assertEqual(sorted({*range(65)} - {*waiting}), [])
        self.assertEqual({s["line"] for s in steps} - {""}, {
            f"{FOLDER}/mbarriers.cu:{n}" for n in (12, 13, 22, 23, 26, 28)
        })  # fmt: skip

    @for_all
    @unittest.skipUnless(shutil.which("nvcc"), "nvcc is not here")
    def test_nvcc_compiles_them(self):
        with tempfile.TemporaryDirectory() as there:
            for name in FOUND:
                arch = "100a" if name == "tensor_memory" else "90a"
                words = ["nvcc", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xptxas=-v"]
                done = said([*words, "-o", f"{there}/{name}", FOLDER / f"{name}.cu"])
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("injected", done.stderr)  # ptxas's remark on wgmma


if __name__ == "__main__":
    main()
