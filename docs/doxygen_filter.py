#!/usr/bin/env python3
"""Doxygen's input filter: doxygen_filter.py FILE prints the file as Doxygen wants to read it.

Markdown: GitHub writes a formula $x$, Doxygen \\f$x\\f$. A link to a folder goes to its README.md,
one to a header or a kernel to the page of that file; a link to anything that is no page of the
documentation becomes plain text. Code is left as it is.
Kernels: \\file makes Doxygen give each a page, with the source.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# As in CMakeLists.txt and Doxyfile.in.
PAGES = re.compile(
    r"common/(dialect|harness)/(ptx/(more/)?)?\w+\.h|common/sim/sim\.h|steps/\w+/\w+\.cuh"
)


def link(text, target, folder):
    path, _, anchor = target.partition("#")
    if not path or "://" in target or target.startswith("mailto:"):
        return f"[{text}]({target})"
    path = os.path.normpath(os.path.join(folder, path))
    if os.path.exists(os.path.join(path, "README.md")):
        return f"[{text}]({target.rstrip('/')}/README.md)"
    if os.path.exists(path) and path.endswith(".md"):
        return f"[{text}]({target.split('#')[0]})" if anchor else f"[{text}]({target})"
    name = os.path.relpath(path, ROOT)
    if os.path.exists(path) and PAGES.fullmatch(name):
        title = text.replace("`", "").replace('"', "'")
        return f'@ref {name} "{title}"'
    return text


def convert_text(text):
    """A piece of Markdown without code."""
    text = re.sub(r"\$\$(.+?)\$\$", r"\\f[\1\\f]", text, flags=re.DOTALL)
    # A formula starts and ends without a blank, so "$5 and $6" is none.
    text = re.sub(r"(?<![\\\w$])\$(?! )([^$\n]+?)(?<! )\$(?![\w$])", r"\\f$\1\\f$", text)
    return text


def convert(text, folder):
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    fences = re.compile(r"(^```.*?^```[^\n]*$|^~~~.*?^~~~[^\n]*$)", re.DOTALL | re.MULTILINE)
    spans = re.compile(r"(``.+?``|`[^`\n]+`)")
    out = []
    for i, block in enumerate(fences.split(text)):
        if i % 2:
            out.append(block)
            continue
        block = re.sub(
            r"(?<!!)\[([^\]\n]+)\]\(([^)\s]+)\)",
            lambda found: link(found[1], found[2], folder),
            block,
        )
        out += [part if j % 2 else convert_text(part) for j, part in enumerate(spans.split(block))]
    return "".join(out)


def main():
    path = os.path.abspath(sys.argv[1])
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".md"):
        sys.stdout.write(convert(text, os.path.dirname(path)))
    else:
        # A comma in its arguments makes two of them, which Doxygen's macro does not have.
        text = re.sub(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)", "", text)
        sys.stdout.write("/** \\file */ " + text)


if __name__ == "__main__":
    main()
