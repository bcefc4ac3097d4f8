"""docs/museum: each program has the finding shown on the page, and none with the page's fix.

--update replaces the outputs in docs/museum/README.md by the current ones.
"""

import re
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from copies import ROOT, SCRIPTS, main, on_page, said
from flash_steps.files import read_json

FOLDER = ROOT / "docs" / "museum"
PAGE = FOLDER / "README.md"
NAMES = sorted(path.stem for path in FOLDER.glob("*.cu"))


def fixed(text, diff):
    """The text with all hunks of a diff without line numbers."""
    for hunk in re.split(r"^@@\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines()
        old, new = ("\n".join(x[1:] for x in lines if x[0] in signs) for signs in (" -", " +"))
        if text.count(old) != 1:
            raise AssertionError(f"not there, or more than once:\n{old}")
        text = text.replace(old, new)
    return text


def words_for(path):
    needs_b200 = "tcgen05" in Path(path).read_text(encoding="utf-8")
    return ["--gpu", "B200", "--analyse"] if needs_b200 else ["--analyse"]


def report_of(path):
    """How it ends, its findings, its output, and the first places in SARIF."""
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, SCRIPTS / "sim", *words_for(path), "--sarif", file.name, path]
        done = said(command, timeout=300)
        results = read_json(file.name)["runs"][0]["results"]
    places = [result["locations"][0]["physicalLocation"] for result in results]
    places = [(p["artifactLocation"]["uri"], p["region"]["startLine"]) for p in places]
    findings = re.findall(r"^finding: .*\n(?:  .*\n)*", done.stderr, re.MULTILINE)
    return done.returncode, "".join(findings), done.stdout, places


def reports(_cache=[]):
    """Each program's results, unchanged and with its fix."""
    if not _cache:
        page = PAGE.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
            for name in NAMES:
                diff = re.search(rf"(?s)^## {name}\n.*?^```diff\n(.*?)```", page, re.MULTILINE)[1]
                text = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
                Path(folder, f"{name}.cu").write_text(fixed(text, diff), encoding="utf-8")
            paths = [f"{where}/{name}.cu" for name in NAMES for where in (FOLDER, folder)]
            found = list(pool.map(report_of, paths))
            _cache += zip(NAMES, found[::2], found[1::2])
    return _cache


class Museum(unittest.TestCase):
    def test_the_page_shows_what_the_simulator_says(self):
        for name, (status, found, printed, places), _ in reports():
            with self.subTest(name):
                self.assertEqual(status, 1)
                first = re.findall(rf"(?s)^finding: .*?{name}\.cu:(\d+)", found, re.MULTILINE)
                self.assertEqual(places, [(f"docs/museum/{name}.cu", int(n)) for n in first])
                words = " ".join(words_for(FOLDER / f"{name}.cu"))
                command = f"./scripts/sim {words} docs/museum/{name}.cu"
                output = f"$ {command}\n{found}{printed}"
                self.assertEqual(output, on_page(PAGE, name, output))

    def test_with_the_fix_it_is_silent_and_right(self):
        for name, _, (status, found, printed, places) in reports():
            with self.subTest(name):
                self.assertEqual((status, found, places), (0, "", []))
                self.assertRegex(printed, r"^0 \w+ are wrong\n$")


if __name__ == "__main__":
    main()
