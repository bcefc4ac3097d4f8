#!/usr/bin/env python3
"""The documentation site: the order of its pages, links, llms.txt, and how pages look in a browser.

The site itself is looked at where it was built from this tree (target docs), its looks where there
is a Chromium.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path

import browser

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "sim").resolve()
HTML = BUILD / "docs" / "html"
TOOLS = ROOT / "build" / "site"


def load(name):
    """docs/site/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
book = load("book")
dead_links = load("dead_links").dead_links

TINY = {
    "docs/site/book.toml": """\
title = "tiny"
summary = "A book."
not_in_the_book = []
[[part]]
title = "Start"
pages = [{ path = "README.md", name = "Overview", about = "what it is" }]
[[part]]
title = "Chapters"
pages = [{ path = "steps/[0-9]*/README.md" }]
[[part]]
title = "Names"
pages = [
  { path = "docs/glossary.md", about = "the terms" },
  { path = "docs/claims.md", optional = true, about = "claims" },
  { path = "docs/explorer/README.md", optional = true, about = "see" },
]
""",
    "README.md": "# Tiny\n\n| step | type | lesson |\n|---|---|---|\n"
    "| [01_a](steps/01_a/README.md) | fp32 | the first |\n"
    "| [02_b](steps/02_b/README.md) | fp32 | the `second` |\n\nSee [steps](steps/01_a).\n",
    "steps/01_a/README.md": "# 01 A\n\n<!-- table: x -->\n[the file](1_a.cuh), "
    "[worklog](worklog.md), [terms](../../docs/glossary.md#two-words)\n\n"
    "```\n[no link](nowhere.md) <!-- code -->\n```\n",
    "steps/01_a/1_a.cuh": "// Step 01 -- the idea.\nint ticks = 3;  // ```\n",
    "steps/01_a/worklog.md": "# 01 A: worklog\n\nBack to [the chapter](README.md).\n",
    "steps/02_b/README.md": "# 02 B\n\nText.\n",
    "docs/glossary.md": "# Names\n\n## Two words\n\n[a tool](../scripts/tool.py)\n",
    "scripts/tool.py": "print(1)\n",
    "common/one.h": "/// \\file\n/// One.\n#pragma once\n/// Two.\nint one();\n",
}


class Tiny(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "repository"
        for path, text in TINY.items():
            self.put(path, text)

    def put(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def add(self, path, text):
        self.put(path, (self.root / path).read_text(encoding="utf-8") + text)

    def book(self):
        return book.Book(str(self.root))

    def written(self):
        folder = self.root.parent / "pages"
        shutil.rmtree(folder, ignore_errors=True)
        self.book().write(str(folder))
        return folder


class Order(Tiny):
    def test_of_the_pages(self):
        self.assertEqual(
            [page.path for page in self.book().all_pages()],
            [
                "README.md",
                "steps/01_a/README.md",
                "steps/01_a/1_a.cuh.md",
                "steps/01_a/worklog.md",
                "steps/02_b/README.md",
                "docs/glossary.md",
            ],
        )

    def chain(self, start):
        """The pages that "next" leads to."""
        found, one = [start], self.book()
        while one.neighbours(found[-1])[1]:
            found.append(one.neighbours(found[-1])[1].doc)
        return found

    def test_next_goes_from_chapter_to_chapter(self):
        chapters = ["README", "steps/01_a/README", "steps/02_b/README", "docs/glossary"]
        self.assertEqual(self.chain("README"), chapters)
        one = self.book()
        for before, after in zip(chapters, chapters[1:]):
            self.assertEqual(one.neighbours(after)[0].doc, before)

    def test_next_of_a_lesson_file_leads_back_to_the_chapters(self):
        self.assertEqual(
            self.chain("steps/01_a/1_a.cuh"),
            ["steps/01_a/1_a.cuh", "steps/01_a/worklog", "steps/02_b/README", "docs/glossary"],
        )

    def test_an_optional_page_is_taken_once_it_is_there(self):
        self.put("docs/claims.md", "# Claims\n")
        self.assertEqual(self.book().pages[-1].path, "docs/claims.md")

    def refused(self, sentence):
        with self.assertRaises(book.BookError) as caught:
            self.written()
        self.assertEqual(str(caught.exception), sentence)

    def test_a_page_outside_the_book_is_refused(self):
        self.put("docs/more.md", "# More\n")
        self.refused("docs/more.md is in no part of the book: add it to docs/site/book.toml")

    def test_a_page_that_is_gone_is_refused(self):
        (self.root / "docs/glossary.md").unlink()
        self.refused("docs/site/book.toml: docs/glossary.md does not exist")

    def test_a_chapter_needs_a_row_in_the_ladder(self):
        self.put("steps/03_c/README.md", "# 03 C\n")
        self.refused("README.md: its ladder has no row for steps/03_c/README.md")

    def test_a_link_to_nothing_is_refused(self):
        self.add("docs/glossary.md", "[gone](../scripts/gone.py)\n")
        self.refused("docs/glossary.md: links to ../scripts/gone.py, which does not exist")


class Text(Tiny):
    def test_links_and_comments(self):
        folder = self.written()
        chapter = (folder / "steps/01_a/README.md").read_text(encoding="utf-8")
        self.assertNotIn("table: x", chapter)
        self.assertIn("[the file](1_a.cuh.md)", chapter)
        self.assertIn("[no link](nowhere.md) <!-- code -->", chapter)
        self.assertIn("[steps](steps/01_a/README.md)", (folder / "README.md").read_text())
        self.assertIn("(../scripts/tool.py.md)", (folder / "docs/glossary.md").read_text())
        self.assertTrue((folder / "scripts/tool.py.md").read_text().startswith("---\norphan"))

    def test_a_source_file_is_shown_whole(self):
        text = (self.written() / "steps/01_a/1_a.cuh.md").read_text(encoding="utf-8")
        self.assertIn("````{code-block} cuda", text)
        self.assertIn(TINY["steps/01_a/1_a.cuh"], text)

    def test_plain_markdown_lies_beside_the_html(self):
        one, html = self.book(), self.root.parent / "html"
        one.write(str(self.root.parent / "pages"))
        for page in one.all_pages():
            (html / page.path).parent.mkdir(parents=True, exist_ok=True)
        one.copy_plain(str(self.root.parent / "pages"), str(html))
        for page in one.all_pages():
            self.assertTrue((html / one.plain(page)).is_file(), page.path)
        self.assertIn("[the file](1_a.cuh)", (html / "steps/01_a/README.md").read_text())
        self.assertTrue((html / "scripts/tool.py").is_file())

    def test_llms_txt(self):
        self.assertEqual(
            self.book().llms_txt(),
            "# tiny\n\n> A book.\n\n## Start\n\n- [Overview](README.md): what it is\n\n"
            "## Chapters\n\n- [01 A](steps/01_a/README.md): the first\n"
            "- [02 B](steps/02_b/README.md): the second\n\n"
            "## Names\n\n- [Names](docs/glossary.md): the terms\n\n## Optional\n\n"
            "- [01_a: 1_a.cuh](steps/01_a/1_a.cuh): the idea.\n"
            "- [01_a: Worklog](steps/01_a/worklog.md): "
            "details and what was tried, with measurements\n",
        )


class Explorer(Tiny):
    def test_its_pages_are_copied_and_listed(self):
        self.put("docs/explorer/README.md", "# The explorer\n")
        self.put("docs/explorer/index.html", "<title>All</title>")
        self.put(
            "docs/explorer/01.html",
            '<title>Tiles</title><a href="../../steps/01_a/README.md">1</a>'
            '<a href="index.html">all</a><a href="../glossary.md">words</a>',
        )
        self.add("docs/glossary.md", "[tiles](explorer/01.html)\n")
        one, html = self.book(), self.root.parent / "html"
        folder = self.root.parent / "pages"
        one.write(str(folder))
        glossary = (folder / "docs/glossary.md").read_text(encoding="utf-8")
        self.assertIn('<a href="explorer/01.html">tiles</a>', glossary)
        for page in one.all_pages():
            (html / page.path).parent.mkdir(parents=True, exist_ok=True)
        one.copy_plain(str(folder), str(html))
        self.assertEqual(  # there the chapters are pages, too
            (html / "docs/explorer/01.html").read_text(encoding="utf-8"),
            '<title>Tiles</title><a href="../../steps/01_a/README.html">1</a>'
            '<a href="index.html">all</a><a href="../glossary.html">words</a>',
        )
        text = (html / "docs/explorer/README.md").read_text(encoding="utf-8")
        self.assertIn("- [All](index.html)\n- [Tiles](01.html)\n", text)
        self.assertIn("- [The explorer](docs/explorer/README.md): see", one.llms_txt())


class DeadLinks(unittest.TestCase):
    def found(self, body, **files):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "folder").mkdir()
            Path(folder, "other.html").write_text('<h1 id="here">x</h1><a name="old">')
            Path(folder, "page.html").write_text(body)
            for name, text in files.items():
                Path(folder, name.replace("_", ".")).write_text(text)
            return dead_links(folder)

    def test_what_is_there_is_no_finding(self):
        self.assertEqual(
            self.found(
                '<p id="me"><a href="other.html#here">x</a> <a href="other.html#old">x</a>'
                '<a href="#me">x</a> <a href="#">x</a> <a href="https://example.org/x#y">x</a>'
                '<a href="javascript:void(0)">x</a> <img src="data:image/png;base64,AA==">'
            ),
            [],
        )

    def test_each_kind_is_found(self):
        for link, why in (
            ('<a href="gone.html">', "gone.html does not exist"),
            ('<a href="other.html#gone">', "other.html#gone has no anchor #gone"),
            ('<a href="#gone">', "#gone has no anchor #gone"),
            ('<a href="folder">', "folder is a folder"),
            ('<img src="gone.svg">', "gone.svg does not exist"),
            ('<script src="https://cdn/x.js">', "https://cdn/x.js is loaded from the network"),
            (
                "<script>import x from 'https://cdn/x.mjs';</script>",
                "https://cdn/x.mjs is loaded from the network",
            ),
            ('<link href="//cdn/x.css">', "//cdn/x.css is loaded from the network"),
        ):
            self.assertEqual(self.found(link), [f"page.html: {why}"])

    def test_a_style_sheet_that_loads_from_elsewhere(self):
        self.assertEqual(
            self.found("", a_css="p { src: url('font.woff') } @import url(https://f/x.css);"),
            [
                "a.css: font.woff does not exist",
                "a.css: https://f/x.css is loaded from the network",
            ],
        )


def has_tools():
    """Whether nothing has to be installed, as build.py decides it."""
    made, wanted = TOOLS / "requirements.txt", ROOT / "docs" / "site" / "requirements.txt"
    return shutil.which("doxygen") and made.exists() and made.read_text() == wanted.read_text()


@unittest.skipUnless(has_tools(), "no Doxygen, or the target docs was not built here since")
class Build(Tiny):
    """docs/site/build.py, with Doxygen and Sphinx."""

    def run_build(self):
        out = self.root.parent / "out"
        out.mkdir(exist_ok=True)
        (out / "Doxyfile").write_text(
            f"INPUT = {self.root}/common\nOUTPUT_DIRECTORY = {out}/html\nHTML_OUTPUT = api\n"
            f"LAYOUT_FILE = {out}/layout.xml\nGENERATE_TAGFILE = {out}/api.tag\n"
            "GENERATE_LATEX = NO\nQUIET = YES\nHAVE_DOT = NO\n"
        )
        done = subprocess.run(
            [sys.executable, "-B", str(ROOT / "docs/site/build.py"), "doxygen", str(out)]
            + ["--tools", str(TOOLS), "--root", str(self.root)],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    def test_a_good_book_is_built_without_a_word(self):
        self.assertEqual(self.run_build(), (0, ""))
        for name in ("index.html", "llms.txt", "README.md", "scripts/tool.py.html"):
            self.assertTrue((self.root.parent / "out/html" / name).is_file(), name)

    def test_what_is_wrong_fails_it(self):
        page = "docs/glossary.md"
        for text, word in (
            ("[x](../README.md#gone)\n", "gone"),
            ('<p><a href="../README.md#gone">x</a></p>\n', "dead link: docs/glossary.html"),
            ("[x](gone.md)\n", "links to gone.md, which does not exist"),
            ("# Two\n\n#### Deep\n", "WARNING"),
        ):
            with self.subTest(text):
                self.put(page, TINY[page] + "\n" + text)
                status, output = self.run_build()
                self.assertEqual(status, 1, output)
                self.assertIn(word, output)

    def test_a_warning_of_doxygen_fails_it(self):
        self.put("common/one.h", "/// \\file\n/// \\nonsense\n")
        status, output = self.run_build()
        self.assertEqual(status, 1)
        self.assertIn("nonsense", output)


class Head(HTMLParser):
    """<link rel="next" href="..."> and its like."""

    def __init__(self, path):
        super().__init__()
        self.links = {}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "link" and values.get("rel") in ("next", "prev"):
            self.links[values["rel"]] = values["href"]


def site():
    """Why the site cannot be looked at; None: it is there and of this tree."""
    if not (HTML / "llms.txt").exists():
        return "the site is not built: cmake --build --preset sim --target docs"
    one = book.Book()
    fresh = (HTML / "llms.txt").read_text(encoding="utf-8") == one.llms_txt() and all(
        (HTML / page.path).read_text(encoding="utf-8") == one.markdown(page.path)
        for page in one.all_pages()
        if not page.generated and not page.path.endswith(".cuh.md")
    )
    return None if fresh else "the site is older than its pages: build the target docs"


@unittest.skipIf(site(), site())
class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.book = book.Book()

    def follow(self, relation, page):
        href = Head(HTML / page).links.get(relation)
        return href and os.path.normpath(os.path.join(os.path.dirname(page), href))

    def test_next_visits_all_chapters_in_order_and_previous_comes_back(self):
        wanted = [page.doc + ".html" for page in self.book.pages]
        forward = ["README.html"]
        while self.follow("next", forward[-1]):
            forward.append(self.follow("next", forward[-1]))
            self.assertLessEqual(len(forward), len(wanted))
        self.assertEqual(forward, wanted)
        chapters = [page for page in forward if re.match(r"steps/\d\d_", page)]
        self.assertEqual(chapters, sorted(chapters))
        self.assertGreaterEqual(len(chapters), 12)
        for before, after in zip(forward, forward[1:]):
            self.assertEqual(self.follow("prev", after), before)

    def test_llms_txt_lists_each_page(self):
        text = (HTML / "llms.txt").read_text(encoding="utf-8")
        listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", text, re.MULTILINE)
        self.assertEqual(listed, [*dict.fromkeys(listed)])
        for page in self.book.all_pages():
            self.assertIn(self.book.plain(page), listed)
            self.assertTrue((HTML / self.book.plain(page)).is_file(), page.path)
            self.assertTrue((HTML / (page.doc + ".html")).is_file(), page.path)

    def test_there_is_no_dead_link(self):
        self.assertEqual(dead_links(str(HTML)), [])

    def test_the_source_of_a_lesson_is_a_page(self):
        text = (HTML / "steps/01_naive/1_naive.cuh.html").read_text(encoding="utf-8")
        self.assertIn("scores_kernel", text)
        chapter = (HTML / "steps/01_naive/README.html").read_text(encoding="utf-8")
        self.assertIn('href="1_naive.cuh.html"', chapter)

    @unittest.skipUnless(browser.FOUND, browser.MISSING)
    def test_pages_in_a_browser(self):
        pages = ("index", "steps/02_tiled/1_shared.cuh", "steps/07_tensor_cores/README")
        pages += ("docs/results/h200", "docs/api", "docs/simulator", "search", "api/check_8h")
        with browser.Browser() as chromium:
            for name in pages:
                for width in (1200, 400):
                    for dark in (False, True):
                        with self.subTest(page=name, width=width, dark=dark):
                            page = chromium.open(HTML / f"{name}.html", width, dark=dark)
                            self.assertEqual(page.errors(), [])
                            self.assertEqual(page.overflow(), 0)
                            colour = page.eval("getComputedStyle(document.body).backgroundColor")
                            red = int(re.search(r"\d+", colour)[0])
                            self.assertEqual(red < 128, dark, colour)
                            page.close()

    @unittest.skipUnless(browser.FOUND, browser.MISSING)
    def test_the_search_works_from_a_file(self):
        with browser.Browser() as chromium:
            page = chromium.open(HTML / "search.html")
            page.go_to((HTML / "search.html").as_uri() + "?q=swizzle")
            found = page.eval(
                "new Promise(done => { const look = () => {"
                " const n = document.querySelectorAll('#search-results li a').length;"
                " if (n > 3) done(n); else setTimeout(look, 100) }; look() })"
            )
            self.assertGreater(found, 3)
            self.assertEqual(page.errors(), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
