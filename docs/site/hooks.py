"""What MkDocs reads: the repository's Markdown where it lies, the files that it links to, and
Doxygen's pages of common/, which build.py has put beside the site."""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
NOT_SEARCHED = ("build", "learn")  # and what starts with a dot
LANGUAGES = {
    ".cu": "cuda",
    ".cuh": "cuda",
    ".h": "cuda",
    ".cpp": "cpp",
    ".py": "python",
    ".sh": "bash",
    ".toml": "toml",
    ".json": "json",
    ".txt": "text",
    ".yml": "yaml",
    "": "bash",
}
LINK = re.compile(r"""(?:\]\(|\bsrc(?:set)?=")([^)"\s#]+)""")  # of Markdown, or a picture of HTML
LARGEST_PAGE = 300_000  # a longer file is a download
API = """# API of common/

What kernels, steps and tests include. The reference is made by Doxygen:
[all headers](api/files.html), [all types](api/annotated.html).
"""


class Source(File):
    """A source file, shown as a page: 1_merge.cuh.html."""

    @property
    def name(self):
        return os.path.basename(self.src_uri)

    def is_documentation_page(self):
        return True

    @property
    def content_string(self):
        text = super().content_string
        fence = "`" * (max([2, *map(len, re.findall("`+", text))]) + 1)
        language = LANGUAGES[Path(self.src_uri).suffix]
        return (
            f"# {self.name} ({Path(self.src_uri).parent.name})\n\n`{self.src_uri}`, "
            f"{len(text.splitlines())} lines\n\n"
            f'{fence}{{ .{language} linenums="1" }}\n{text.rstrip()}\n{fence}\n'
        )


def markdown_files():
    for folder, folders, files in os.walk(ROOT):
        inside = Path(folder).relative_to(ROOT)
        folders[:] = [f for f in folders if f[0] != "." and str(inside / f) not in NOT_SEARCHED]
        yield from ((inside / name).as_posix() for name in files if name.endswith(".md"))


def chapter(folder):
    """A step in the side navigation: its chapter, its lesson files, its worklog, and what is beyond
    the lesson."""
    path = folder.relative_to(ROOT).as_posix()
    title = (folder / "README.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    files = sorted(folder.glob("[0-9]*_*.cuh"), key=lambda file: int(file.name.partition("_")[0]))
    below = [{file.name: f"{path}/{file.name}"} for file in files]
    for label, name in (("Worklog", "worklog.md"), ("Beyond", "beyond/README.md")):
        below += [{label: f"{path}/{name}"}] * (folder / name).exists()
    return {title: [f"{path}/README.md", *below]}


def on_config(config):
    steps = sorted(path.parent for path in ROOT.glob("steps/[0-9]*/README.md"))
    for part in config.nav:
        if "Chapters" in part:
            part["Chapters"] = [chapter(folder) for folder in steps]


def on_files(files, config):
    def add(path, kind=File, inclusion=InclusionLevel.UNDEFINED):
        file = kind(path, ROOT, config.site_dir, False, inclusion=inclusion)
        if path.endswith("README.md") and (ROOT / path).with_name("index.html").exists():
            file.dest_uri = path.removesuffix(".md") + ".html"  # index.html is that page's place
        files.append(file)

    wanted = [*ROOT.glob("steps/[0-9]*/[0-9]*_*.cuh"), *ROOT.glob("docs/explorer/*.js")]
    wanted += ROOT.glob("docs/explorer/src/explorer.*")
    linked = {str(path.relative_to(ROOT)) for path in wanted}
    for path in markdown_files():
        add(path)
        for target in LINK.findall((ROOT / path).read_text(encoding="utf-8")):
            linked.add(os.path.normpath(os.path.join(os.path.dirname(path), target)))
    for path in sorted(linked):
        file = ROOT / path
        if file.suffix == ".md" or not file.is_file():
            continue
        shown = file.suffix in LANGUAGES and file.stat().st_size <= LARGEST_PAGE
        add(path, *((Source, InclusionLevel.NOT_IN_NAV) if shown else ()))
    files.append(File.generated(config, "api.md", content=API))
    beside = Path(config.site_dir).parent
    for file in sorted((beside / "api").rglob("*")):
        if file.is_file():
            path = file.relative_to(beside).as_posix()
            files.append(File(path, beside, config.site_dir, False))
    return files


def on_nav(nav, config, files):
    """Next and previous lead from chapter to chapter; what is below a chapter has its own."""
    below = re.compile(r"\.cuh$|/(worklog|beyond/README)\.md$")
    main = [page for page in nav.pages if not below.search(page.file.src_uri)]
    for before, after in zip(main, main[1:]):
        before.next_page, after.previous_page = after, before
