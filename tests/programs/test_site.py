"""The documentation site: errors that fail its build, the order of its pages, and their look in a
browser. Argument: a build folder, where the site must be up to date (target docs)."""

import importlib.util
import os
import re
import shutil
import unittest

import browser
from copies import BUILD, ROOT, Folder, main, said

HTML = BUILD / "docs" / "html"
SITE = ROOT / "docs" / "site"
TOOLS = ROOT / "build" / "site"

TINY = {
    "README.md": "# Tiny\n\n[The chapter](steps/01_a/README.md), [a tool](tool.py)\n\n"
    '<picture><source srcset="dark.svg"><img src="light.svg"></picture>\n',
    "dark.svg": "<svg></svg>",
    "light.svg": "<svg></svg>",
    "tool.py": 'print("```")\n',
    "steps/01_a/README.md": "# 01 A\n\n[the file](1_a.cuh), [terms](../../words.md#two-words_2)\n",
    "steps/01_a/1_a.cuh": "int ticks = 3;\n",
    "steps/01_a/worklog.md": "# 01 A: worklog\n\n[The chapter](README.md)\n",
    "steps/02_b/README.md": "# 02 B\n\nText.\n",
    "seen/README.md": "# A look\n\n[It](index.html)\n",
    "seen/index.html": "<p>Look</p>",
    "words.md": "# Words\n\n## Two `words_2`\n\n- one\n  - below\n",
}


def has_tools():
    """Can nothing be missing, by build.py's rule?"""
    made, wanted = TOOLS / "requirements.txt", SITE / "requirements.txt"
    return made.exists() and made.read_text() == wanted.read_text()


def link(relation, page):
    """The target of <link rel="next"> or "prev" of a page of the site."""
    found = re.search(rf'<link rel="{relation}" href="([^"]*)"', page.read_text(encoding="utf-8"))
    return found and (page.parent / found[1]).resolve()


def chain(html):
    pages = [(html / "index.html").resolve()]
    while (after := link("next", pages[-1])) and after not in pages:
        pages.append(after)
    return [str(page.relative_to(html.resolve())) for page in pages]


@unittest.skipUnless(has_tools(), "the target docs was not built here since its tools changed")
class Tiny(Folder):
    """mkdocs.yml and hooks.py with the pages of TINY."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "repository"
        shutil.copytree(SITE, self.root / "docs" / "site")
        self.put("docs/site/mkdocs.yml", self.with_nav("words.md, seen/README.md"))
        for path, text in TINY.items():
            self.put(path, text)
        self.html = self.folder / "out" / "html"
        for name in ("files", "annotated"):
            self.write(f"out/api/{name}.html", "")

    def with_nav(self, pages):
        text = (SITE / "mkdocs.yml").read_text(encoding="utf-8")
        nav = f"\nnav: [README.md, Chapters: [], {pages}, api.md]\n"
        return re.sub(r"(?s)\nnav:\n.*?\n(?=validation:)", nav, text)

    def put(self, path, text):
        self.write(self.root / path, text)

    def build(self):
        call = [TOOLS / "bin/mkdocs", "build", "-f", self.root / "docs/site/mkdocs.yml"]
        quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        done = said([*call, "-d", self.html], env=quiet)
        output = done.stdout + done.stderr
        return done.returncode, re.sub(r"(?m)^INFO .*\n", "", output)

    def test_a_good_book_is_built_without_a_word(self):
        self.assertEqual(self.build(), (0, ""))
        chapters = ["steps/01_a/index.html", "steps/02_b/index.html"]
        self.assertEqual(chain(self.html)[:4], ["index.html", *chapters, "words.html"])
        lesson = self.html / "steps/01_a/1_a.cuh.html"
        self.assertIn("ticks", lesson.read_text(encoding="utf-8"))
        self.assertEqual(link("next", lesson), (lesson.parent / "worklog.html").resolve())
        chapter = (self.html / chapters[0]).read_text(encoding="utf-8")
        self.assertIn('href="1_a.cuh.html"', chapter)
        self.assertIn("```", (self.html / "tool.py.html").read_text(encoding="utf-8"))
        self.assertTrue((self.html / "dark.svg").exists() and (self.html / "light.svg").exists())
        seen = (self.html / "seen" / "index.html").read_text(encoding="utf-8")
        self.assertEqual(seen, TINY["seen/index.html"])  # its README is another page
        self.assertIn("A look", (self.html / "seen" / "README.html").read_text(encoding="utf-8"))
        words = (self.html / "words.html").read_text(encoding="utf-8")
        self.assertRegex(words, r"<li>one\s*<ul>\s*<li>below")

    def test_what_is_wrong_fails_it(self):
        for path, text, words in (
            ("words.md", "[x](README.md#gone)\n", "no such anchor '#gone'|does not contain"),
            ("words.md", "[x](gone.md)\n", "'gone.md', but the target is not found"),
            ("words.md", "[x](gone.py)\n", "'gone.py', but the target is not found"),
            ("words.md", "[x](steps/01_a)\n", "unrecognized relative link 'steps/01_a'"),
            ("more.md", "# More\n", 'not included in the "nav" configuration:\n  - more.md'),
            ("docs/site/mkdocs.yml", self.with_nav("gone.md"), "'gone.md' is included in"),
        ):
            with self.subTest(words):
                before = TINY.get(path, "")
                self.put(path, before + text)
                status, output = self.build()
                self.assertEqual(status, 1, output)
                self.assertRegex(output, words)
                self.put(path, before) if before else (self.root / path).unlink()


class Doxygen(unittest.TestCase):
    """The warnings that fail build.py."""

    @classmethod
    def setUpClass(cls):
        spec = importlib.util.spec_from_file_location("build", SITE / "build.py")
        cls.build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.build)

    OBSOLETE = """\
warning: Tag 'HTML_TIMESTAMP' at line 79 of file 'Doxyfile' has become obsolete.
         This tag has been replaced by: TIMESTAMP"""
    UNKNOWN = "warning: ignoring unsupported tag 'HTML_COLORSTYLE' at line 70, file Doxyfile"
    REAL = "common/harness/run.h:12: warning: Member f() of namespace fa is not documented."
    NAMED = "common/harness/run.h:9: warning: Member ms (variable) of struct X is not documented."

    def test_its_own_configuration_is_none(self):
        text = "\n".join([self.OBSOLETE, self.UNKNOWN, self.NAMED])
        self.assertEqual(
            self.build.findings(text), ([], [*self.OBSOLETE.splitlines(), self.UNKNOWN])
        )

    def test_any_other_is(self):
        for text in (self.REAL, self.OBSOLETE + "\n" + self.REAL, "warning: x.svg is not found"):
            self.assertEqual(self.build.findings(text)[0], text.splitlines()[-1:])


def site():
    """Why the site cannot be tested; None: it exists and is newer than its pages."""
    if not (HTML / "index.html").exists():
        return "the site is not built: cmake --build --preset sim --target docs"
    made = (HTML / "index.html").stat().st_mtime
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("steps/*/*.md")]
    late = [page for page in [*pages, *SITE.glob("*.*")] if page.stat().st_mtime > made]
    return f"the site is older than {late[0].name}: build the target docs" if late else None


@unittest.skipIf(site(), site())
class Site(unittest.TestCase):
    def test_next_visits_all_chapters_in_order_and_previous_comes_back(self):
        pages = chain(HTML)
        chapters = sorted(str(p.parent.relative_to(ROOT)) for p in ROOT.glob("steps/[0-9]*/*.cuh"))
        found = [page for page in pages if re.match(r"steps/\d\d_", page)]
        self.assertEqual(found, [f"{folder}/index.html" for folder in dict.fromkeys(chapters)])
        for before, after in zip(pages, pages[1:]):
            self.assertEqual(link("prev", HTML / after), (HTML / before).resolve())

    @unittest.skipUnless(browser.FOUND, browser.MISSING)
    def test_pages_in_a_browser(self):
        pages = ("index", "steps/02_tiled/1_shared.cuh", "steps/07_tensor_cores/index")
        pages += ("docs/results/h200", "docs/simulator", "api/check_8h")
        with browser.Browser() as chromium:
            for name in pages:
                for width in (1200, 400):
                    for dark in (False, True):
                        with self.subTest(page=name, width=width, dark=dark):
                            page = chromium.open(HTML / f"{name}.html", width, dark=dark)
                            colour = page.eval("getComputedStyle(document.body).backgroundColor")
                            red = int(re.search(r"\d+", colour)[0])
                            self.assertEqual(red < 128, dark, colour)
                            self.assertEqual(page.overflow(), 0)
                            self.assertEqual(page.errors(), [])  # nor anything from the network
                            page.close()

    @unittest.skipUnless(browser.FOUND, browser.MISSING)
    def test_the_search_works_from_a_file(self):
        with browser.Browser() as chromium:
            page = chromium.open(HTML / "docs" / "glossary.html", query="?q=swizzle")
            page.until("document.querySelectorAll('.md-search-result__item').length > 3")
            self.assertEqual(page.errors(), [])


if __name__ == "__main__":
    main()
