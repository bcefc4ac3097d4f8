"""docs/museum: each program has the finding that the page shows, and none with the page's fix."""

import re
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from copies import ROOT, SCRIPTS, main, said
from flash_steps.files import read_json

FOLDER = ROOT / "docs" / "museum"
PAGE = FOLDER / "README.md"
NAMES = sorted(path.stem for path in FOLDER.glob("*.cu"))
SHOWN = r"(?s)(<!-- output: {} -->\n)(.*?)(<!-- /output -->)"


def fixed(text, diff):
    """The text with all hunks of a diff without line numbers."""
    for hunk in re.split(r"^@@\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines()
        old, new = ("\n".join(x[1:] for x in lines if x[0] in signs) for signs in (" -", " +"))
        if text.count(old) != 1:
            raise AssertionError(f"not there, or more than once:\n{old}")
        text = text.replace(old, new)
    return text


def report_of(path):
    """How it ends, its findings, what it prints itself, and the places that SARIF names first."""
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, SCRIPTS / "sim", "--analyse", "--sarif", file.name, path]
        done = said(command, timeout=300)
        results = read_json(file.name)["runs"][0]["results"]
    places = [result["locations"][0]["physicalLocation"] for result in results]
    places = [(p["artifactLocation"]["uri"], p["region"]["startLine"]) for p in places]
    findings = re.findall(r"^finding: .*\n(?:  .*\n)*", done.stderr, re.MULTILINE)
    return done.returncode, "".join(findings), done.stdout, places


def reports(_cache=[]):
    """Of each program as it is, and with its fix."""
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


def shown(name, found, printed):
    return f"```\n$ ./scripts/sim --analyse docs/museum/{name}.cu\n{found}{printed}```\n"


class Museum(unittest.TestCase):
    def test_the_page_shows_what_the_simulator_says(self):
        page = PAGE.read_text(encoding="utf-8")
        for name, (status, found, printed, places), _ in reports():
            with self.subTest(name):
                self.assertEqual(status, 1)
                first = re.findall(rf"(?s)^finding: .*?{name}\.cu:(\d+)", found, re.MULTILINE)
                self.assertEqual(places, [(f"docs/museum/{name}.cu", int(n)) for n in first])
                on_page = re.search(SHOWN.format(name), page)[2]
                self.assertEqual(on_page, shown(name, found, printed))

    def test_with_the_fix_it_is_silent_and_right(self):
        for name, _, (status, found, printed, places) in reports():
            with self.subTest(name):
                self.assertEqual((status, found, places), (0, "", []))
                self.assertRegex(printed, r"^0 \w+ are wrong\n$")

    def test_each_is_short(self):
        for name in NAMES:
            self.assertLessEqual(len((FOLDER / f"{name}.cu").read_text().splitlines()), 60, name)


def update():
    """Puts the real outputs between the page's markers."""
    text = PAGE.read_text(encoding="utf-8")
    for name, (_, found, printed, _), _ in reports():
        said = shown(name, found, printed)
        text = re.sub(SHOWN.format(name), lambda m, said=said: m[1] + said + m[3], text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if "--update" in sys.argv:
        update()
    main()
