"""The documentation site as a book: its pages in order, and their text as the site needs it.

book.toml names the pages. write() fills a folder with what Sphinx reads: each page at its place in
the repository, each source file that a page links to as a page of its own (1_merge.cuh.html), and
the tables of contents. conf.py asks neighbours() for previous and next. copy_plain() puts the plain
Markdown beside the HTML, and llms_txt() lists it.
"""

import fnmatch
import os
import re
import shutil
import tomllib
import xml.etree.ElementTree
from dataclasses import dataclass, field
from urllib.parse import unquote

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Folders without pages. Paths that start with a dot are left out, too.
NOT_SEARCHED = ("build", "learn", "docs/site")
LANGUAGES = {
    ".cu": "cuda",
    ".cuh": "cuda",
    ".h": "cuda",
    ".cpp": "cpp",
    ".py": "python",
    ".sh": "bash",
    ".toml": "toml",
    ".json": "json",
}
EXPLORER = "docs/explorer"
LARGEST_SOURCE = 300_000  # a longer file is a download
FENCES = re.compile(r"(^ *```.*?^ *```[^\n]*$|^ *~~~.*?^ *~~~[^\n]*$)", re.DOTALL | re.MULTILINE)
SPANS = re.compile(r"(``.+?``|`[^`]+`)")
TARGET = re.compile(r"\]\(([^)\s]+)\)")
RAW_TARGET = re.compile(r'<a href="([^"]+)"')


class BookError(Exception):
    """A sentence about a page, for whoever wrote it."""


@dataclass
class Page:
    path: str  # in the repository
    about: str
    part: str
    name: str = ""  # in the side navigation, instead of the title
    generated: bool = False  # the page has no file: the list of headers
    # Pages below it in the side navigation: a chapter's lesson files, then its worklog.
    below: list = field(default_factory=list)

    @property
    def doc(self):
        """Sphinx's name of the page: its path without the suffix .md."""
        return self.path.removesuffix(".md")


def outside_code(text, change):
    """`text` with change() applied to all Markdown that is no code."""
    out = []
    for i, block in enumerate(FENCES.split(text)):
        pieces = [block] if i % 2 else SPANS.split(block)
        out += [piece if i % 2 or j % 2 else change(piece) for j, piece in enumerate(pieces)]
    return "".join(out)


def without_comments(text):
    """Markdown without HTML comments, which are the marks of our scripts. Code stays as it is."""
    return "".join(
        block if i % 2 else re.sub(r"<!--.*?-->\n?", "", block, flags=re.DOTALL)
        for i, block in enumerate(FENCES.split(text))
    )


class Book:
    def __init__(self, root=ROOT):
        self.root = root
        with open(os.path.join(root, "docs", "site", "book.toml"), "rb") as file:
            order = tomllib.load(file)
        self.title, self.summary = order["title"], order["summary"]
        self.left_out = order["not_in_the_book"]
        files = self._files()
        self.ladder = self._ladder()
        self.parts = [part["title"] for part in order["part"]]
        self.pages = []
        for part in order["part"]:
            for entry in part["pages"]:
                self.pages += self._pages(entry, part["title"], files)
        for page in self.pages:
            page.below = self._below(page, files)
        self._everything_is_there(files)
        self.of_path = {page.path: page for page in self.all_pages()}
        # Files that a page links to: path in the repository -> "source" (a page of its own), "file"
        self.linked = {}

    def _files(self):
        """All files of the repository, as paths."""
        found = []
        for folder, folders, files in os.walk(self.root):
            inside = os.path.relpath(folder, self.root)
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith((".", "__"))
                and os.path.normpath(os.path.join(inside, name)) not in NOT_SEARCHED
            )
            found += [os.path.normpath(os.path.join(inside, name)) for name in sorted(files)]
        return found

    def _ladder(self):
        """What README.md's ladder says about each step: {"steps/01_naive/README.md": lesson}"""
        rows = re.findall(
            r"^\| \[\w+\]\((steps/\w+/README\.md)\) \|[^|]*\| (.*) \|$",
            self.read("README.md"),
            re.MULTILINE,
        )
        return dict(rows)

    def _pages(self, entry, part, files):
        path, about = entry["path"], entry.get("about", "")
        if entry.get("generated"):
            return [Page(path, about, part, generated=True)]
        if "*" in path:
            found = fnmatch.filter(files, path)
            strange = [name for name in found if name not in self.ladder]
            if strange:
                raise BookError(f"README.md: its ladder has no row for {strange[0]}")
            return [Page(name, self.ladder[name], part) for name in found]
        if path in files:
            return [Page(path, about, part, entry.get("name", ""))]
        if entry.get("optional"):
            return []
        raise BookError(f"docs/site/book.toml: {path} does not exist")

    def _below(self, page, files):
        folder = os.path.dirname(page.path)
        if not re.fullmatch(r"steps/\d\d_\w+", folder):
            return []
        below = []
        for path in fnmatch.filter(files, f"{folder}/[0-9]_*.cuh"):
            about = re.match(r"// .*? -- (.*)\n", self.read(path))
            below.append(Page(path + ".md", about[1] if about else "", page.part))
            below[-1].name = os.path.basename(path)
        if f"{folder}/worklog.md" in files:
            about = "details and what was tried, with measurements"
            below.append(Page(f"{folder}/worklog.md", about, page.part, "Worklog"))
        return below

    def _everything_is_there(self, files):
        here = {page.path for page in self.all_pages()} | set(self.left_out)
        for path in files:
            if path.endswith(".md") and path not in here:
                raise BookError(f"{path} is in no part of the book: add it to docs/site/book.toml")

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            return file.read()

    def explorer(self):
        """The HTML pages of the explorer, its table of contents first."""
        folder = os.path.join(self.root, EXPLORER)
        names = os.listdir(folder) if os.path.isdir(folder) else []
        pages = [name for name in names if name.endswith(".html")]
        return sorted(pages, key=lambda name: (name != "index.html", name))

    def all_pages(self):
        for page in self.pages:
            yield page
            yield from page.below

    def neighbours(self, doc):
        """(previous, next) of a page in reading order; None where there is none.

        The chain of the chapters does not pass through lesson files and worklogs: those have their
        own, which starts at the chapter and ends at the next chapter.
        """
        for i, page in enumerate(self.pages):
            after = self.pages[i + 1] if i + 1 < len(self.pages) else None
            if page.doc == doc:
                return (self.pages[i - 1] if i else None), after
            chain = [page, *page.below, after]
            for j, inner in enumerate(page.below, 1):
                if inner.doc == doc:
                    return chain[j - 1], chain[j + 1]
        folder = os.path.dirname(doc)  # a source file beside the book
        home = self.of_path.get(f"{folder}/README.md")
        return home, None

    # --- the text of a page ---

    def markdown(self, path):
        """The plain Markdown of a page, as a reader of the site gets it beside the HTML."""
        if not path.endswith(".md"):
            return self.read(path)

        def folders(text):
            return TARGET.sub(lambda found: f"]({self._to_page(found[1], path)})", text)

        text = self.read(path)
        if path == EXPLORER + "/README.md":
            text += "\n## The pages\n\n" + "".join(map(self._explorer_row, self.explorer()))
        return outside_code(without_comments(text), folders)

    def _explorer_row(self, name):
        title = re.search(r"<title>(.*?)</title>", self.read(f"{EXPLORER}/{name}"), re.DOTALL)
        return f"- [{title[1].strip() if title else name}]({name})\n"

    def _to_page(self, target, page):
        """A link to a folder goes to its README.md. What does not exist is an error."""
        if re.match(r"\w+:|#", target):
            return target
        place, mark, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), unquote(place)))
        if os.path.isdir(os.path.join(self.root, path)):
            place, path = place.rstrip("/") + "/README.md", path + "/README.md"
        if path in self.of_path:
            return place + mark + anchor
        if path.startswith("..") or not os.path.exists(os.path.join(self.root, path)):
            raise BookError(f"{page}: links to {target}, which does not exist")
        if path.endswith(".md"):
            raise BookError(f"{page}: links to {target}, which is no page of the book")
        size = os.path.getsize(os.path.join(self.root, path))
        text = os.path.splitext(path)[1] not in (".svg", ".png", ".npy", ".html", ".ipynb")
        self.linked[path] = "source" if text and size <= LARGEST_SOURCE else "file"
        return place + mark + anchor

    def for_sphinx(self, path):
        """The Markdown of a page for Sphinx: links to source files go to their pages."""

        def change(text):
            # Sphinx would make a download of a link to a page of docs/explorer.
            text = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+\.html)\)", r'<a href="\2">\1</a>', text)
            text = TARGET.sub(lambda found: f"]({self._to_source(found[1], path)})", text)
            return RAW_TARGET.sub(lambda found: self._raw(found[1], path), text)

        return outside_code(self.markdown(path), change)

    def _to_source(self, target, page):
        place = target.partition("#")[0]
        path = os.path.normpath(os.path.join(os.path.dirname(page), unquote(place)))
        return place + ".md" if self.linked.get(path) == "source" else target

    def _raw(self, target, page):
        """A link in HTML, which Sphinx leaves alone."""
        place, mark, anchor = self._to_page(target, page).partition("#")
        if place.endswith(".md"):
            place = place.removesuffix(".md") + ".html"
        return f'<a href="{place}{mark}{anchor}"'

    def source_page(self, path):
        """The page that shows a source file."""
        text = self.read(path)
        fence = "`" * (max([2, *map(len, re.findall("`+", text))]) + 1)
        language = LANGUAGES.get(os.path.splitext(path)[1], "text")
        folder, name = os.path.split(path)
        return (
            f"# {name} ({os.path.basename(folder)})\n\n`{path}`, {len(text.splitlines())} lines\n\n"
            f"{fence}{{code-block}} {language}\n:linenos:\n:force:\n\n{text.rstrip()}\n{fence}\n"
        )

    # --- what is written ---

    def write(self, folder, tags=None):
        """Fills `folder` with Sphinx's input. `tags`: Doxygen's tag file."""
        texts = {}
        for page in self.all_pages():
            if page.generated:
                texts[page.path] = self.api_page(tags)
            elif page.path.endswith(".cuh.md"):
                self.linked[page.path.removesuffix(".md")] = "source"
            else:
                texts[page.path] = self.for_sphinx(page.path)
        for path, kind in self.linked.items():
            if kind == "source":
                orphan = "" if path + ".md" in self.of_path else "---\norphan: true\n---\n"
                texts[path + ".md"] = orphan + self.source_page(path)
        for page in self.pages:
            texts[page.path] += self._contents(page)
        for path, text in texts.items():
            place = os.path.join(folder, path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "w", encoding="utf-8") as file:
                file.write(text)
        for path, kind in self.linked.items():
            copy = os.path.join(folder, path)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(os.path.join(self.root, path), copy)

    def _contents(self, page):
        """The tables of contents that stand, hidden, on a page."""

        def tree(pages, caption=""):
            lines = ["\n\n```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else [])]
            for inner in pages:
                place = "self" if inner is page else "/" + inner.doc
                lines.append(f"{inner.name} <{place}>" if inner.name else place)
            return "\n".join([*lines, "```\n"])

        if page is self.pages[0]:
            parts = [[one for one in self.pages if one.part == part] for part in self.parts]
            return "".join(tree(pages, pages[0].part) for pages in parts if pages)
        return tree(page.below) if page.below else ""

    def api_page(self, tags):
        """The public headers, each with the first sentence of its comment."""
        pages = {}
        for compound in xml.etree.ElementTree.parse(tags).iterfind("compound[@kind='file']"):
            path = os.path.join(compound.findtext("path"), compound.findtext("name"))
            pages[os.path.relpath(path, self.root)] = compound.findtext("filename")
        text = (
            "# API of common/\n\nWhat kernels, steps and tests include. The reference of each "
            'header is made by Doxygen: <a href="../api/index.html">all headers</a>, '
            '<a href="../api/annotated.html">all types</a>.\n'
        )
        folder = None
        for path in sorted(pages, key=lambda path: (os.path.dirname(path), path)):
            if not path.endswith(".h"):
                continue
            if os.path.dirname(path) != folder:
                folder = os.path.dirname(path)
                text += f"\n## {folder}\n\n| header | what it holds |\n|---|---|\n"
            page = pages[path] if pages[path].endswith(".html") else pages[path] + ".html"
            comment = re.search(r"^/// \\file\n((?:///.*\n)+)", self.read(path), re.MULTILINE)
            words = re.sub(r"\s*\n?///\s*", " ", comment[1].split("///\n")[0]) if comment else ""
            about = re.match(r".*?\.(?= |$)|.*", words.strip())[0]
            about = re.sub(r"([|*_<>\[\]])", r"\\\1", about)
            text += f'| <a href="../api/{page}">{os.path.basename(path)}</a> | {about} |\n'
        return text

    def copy_plain(self, written, html):
        """Beside each page's HTML its plain Markdown, and the files that it links to."""
        pages = [f"{EXPLORER}/{name}" for name in self.explorer()]
        for path in pages:
            text = RAW_TARGET.sub(lambda found: self._raw(found[1], path), self.read(path))
            with open(os.path.join(html, path), "w", encoding="utf-8") as file:
                file.write(text)
        for page in self.all_pages():
            place = os.path.join(html, page.path)
            if page.path.endswith(".cuh.md"):
                continue  # the source file itself is there
            if page.generated:
                with open(os.path.join(written, page.path), encoding="utf-8") as file:
                    text = file.read()
            else:
                text = self.markdown(page.path)
            with open(place, "w", encoding="utf-8") as file:
                file.write(text)
        for path in set(self.linked).difference(pages):
            os.makedirs(os.path.join(html, os.path.dirname(path)), exist_ok=True)
            shutil.copyfile(os.path.join(self.root, path), os.path.join(html, path))

    def plain(self, page):
        """Where a page's plain text lies in the site: its Markdown, or the source file."""
        return page.path.removesuffix(".md") if page.path.endswith(".cuh.md") else page.path

    def llms_txt(self):
        """The pages' list for language models, in the form of llmstxt.org."""

        def row(page, title):
            about = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", page.about)
            return f"- [{title}]({self.plain(page)})" + (f": {about}" if about else "")

        lines = [f"# {self.title}", "", "> " + self.summary]
        for part in self.parts:
            pages = [page for page in self.pages if page.part == part]
            if pages:
                lines += ["", f"## {part}", ""]
                lines += [row(page, self.title_of(page)) for page in pages]
        lines += ["", "## Optional", ""]
        for page in self.pages:
            step = os.path.basename(os.path.dirname(page.path))
            lines += [row(inner, f"{step}: {inner.name}") for inner in page.below]
        return "\n".join(lines) + "\n"

    def title_of(self, page):
        if page.generated:
            return "API of common/"
        title = re.search(r"^# (.*)$", self.read(page.path), re.MULTILINE)
        return page.name or title[1].replace("`", "")
