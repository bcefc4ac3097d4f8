"""Sphinx's configuration. build.py says how Sphinx is called; book.py writes what it reads."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from book import Book  # noqa: E402

book = Book(os.environ["FA_ROOT"])

project = book.title
root_doc = "README"
extensions = ["myst_parser"]
myst_heading_anchors = 6  # as GitHub does
# Text that GitHub takes as text.
myst_disable_syntax = ["myst_line_comment", "myst_block_break", "myst_target", "myst_role"]
smartquotes = False
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]  # a fence may hold a part of a program

html_theme = "furo"
pygments_style = "github-light"
pygments_dark_style = "github-dark"
html_title = book.title
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"sidebar_hide_name": False}
html_show_search_summary = False  # it would fetch pages, which a page from a file may not
html_show_copyright = False
html_copy_source = False
html_use_index = False
html_domain_indices = False


def on_page(app, name, template, context, doctree):
    """Previous and next in the order of the book, and a link to the plain text."""
    for key, page in zip(("prev", "next"), book.neighbours(name)):
        context[key] = page and {
            "link": app.builder.get_relative_uri(name, page.doc),
            "title": book.title_of(page) if not page.path.endswith(".cuh.md") else page.name,
        }
    page = book.of_path.get(name + ".md")
    if page and context.get("body"):
        plain = os.path.basename(book.plain(page))
        words = "This page as plain text" if plain.endswith(".md") else "This file"
        context["body"] += f'<p class="plain-text"><a href="{plain}">{words}</a></p>'


def setup(app):
    app.connect("html-page-context", on_page, priority=100)
