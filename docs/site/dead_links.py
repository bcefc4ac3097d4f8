#!/usr/bin/env python3
"""Finds what a folder of HTML pages links to and does not hold: dead_links.py FOLDER.

Prints each link to a file or an anchor that is not there, and whatever a page would load from the
network: the pages must work offline. A link to another site is not followed. Exit status: 0 all
is there, 1 something is not.
"""

import os
import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

# Doxygen 1.17 puts links to letters above an index that is too short to have them; the style sheet
# of 1.9.8 names pictures that it does not write.
DOXYGENS_OWN = re.compile(
    r"globals\w*\.html: #index_\w has no anchor #index_\w$|(?:^|/)doxygen\.css: \S+ does not exist$"
)
IMPORT = re.compile(r"\b(?:from|import)\s*\(?\s*['\"]((?:https?:)?//[^'\"]+)")
LOADED = {"script", "img", "iframe", "source", "video", "audio", "embed", "link"}


class Links(HTMLParser):
    """The anchors of a page, what it links to or loads, [(tag, target)], and what its scripts
    import from the network."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.targets, self.imports, self.tag = set(), [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tag = tag
        for name in ("id", "name") if tag == "a" else ("id",):
            if values.get(name):
                self.anchors.add(values[name])
        for name in ("href", "src"):
            if values.get(name) is not None:
                self.targets.append((tag, values[name]))

    def handle_data(self, data):
        if self.tag == "script":
            self.imports += IMPORT.findall(data)


def files_below(folder, suffix):
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            if name.endswith(suffix):
                yield os.path.join(place, name)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def wrong(tag, target, page, pages):
    """What is wrong with a link, or None."""
    try:
        scheme, host, path, _, anchor = urlsplit(target)
    except ValueError:
        return "is no address"
    if scheme in ("data", "javascript"):
        return None
    if scheme or host:
        return "is loaded from the network" if tag in LOADED else None
    place = os.path.normpath(os.path.join(os.path.dirname(page), unquote(path))) if path else page
    if not os.path.isfile(place):
        return "is a folder" if os.path.isdir(place) else "does not exist"
    if anchor and place in pages and unquote(anchor) not in pages[place].anchors:
        return f"has no anchor #{anchor}"
    return None


def dead_links(folder):
    """Sentences, each about one link."""
    folder = os.path.abspath(folder)
    pages = {path: Links(read(path)) for path in files_below(folder, ".html")}
    found = []
    for page, links in pages.items():
        for tag, target in dict.fromkeys(links.targets):
            why = wrong(tag, target, page, pages)
            if why:
                found.append(f"{os.path.relpath(page, folder)}: {target} {why}")
        for target in links.imports:
            found.append(f"{os.path.relpath(page, folder)}: {target} is loaded from the network")
    for sheet in files_below(folder, ".css"):
        for target in re.findall(r"url\(\s*['\"]?([^'\")]+)", read(sheet)):
            why = None if target.startswith("#") else wrong("link", target, sheet, {})
            if why:
                found.append(f"{os.path.relpath(sheet, folder)}: {target} {why}")
    return [sentence for sentence in found if not DOXYGENS_OWN.search(sentence)]


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        print("dead_links: it needs one folder", file=sys.stderr)
        return 2
    found = dead_links(sys.argv[1])
    for sentence in found:
        print(f"dead link: {sentence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
