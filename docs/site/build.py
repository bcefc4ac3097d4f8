#!/usr/bin/env python3
"""Builds the documentation site: build.py DOXYGEN FOLDER [--tools VENV] [--root REPOSITORY].

FOLDER holds the Doxyfile; the site comes to FOLDER/html. Fails on a warning of Doxygen or Sphinx,
on a page that is in no part of the book, and on a dead link.

Sphinx comes from PyPI at the versions of requirements.txt, into VENV, once: Furo, its theme, loads
files that are not there as Debian 12 and 13 have it, and each version of Sphinx warns of other
things. After that no network is needed.
"""

import argparse
import filecmp
import os
import shutil
import subprocess
import sys

import doxygen
from book import ROOT, Book, BookError
from dead_links import dead_links

HERE = os.path.dirname(os.path.abspath(__file__))


def api(program, folder):
    """Doxygen's part. Its menu gets a way back to the book."""
    layout = os.path.join(folder, "layout.xml")
    subprocess.run([program, "-l", layout], check=True, stdout=subprocess.DEVNULL)
    with open(layout, encoding="utf-8") as file:
        text = file.read()
    back = '<tab type="user" visible="yes" url="../index.html" title="The book"/>'
    with open(layout, "w", encoding="utf-8") as file:
        file.write(text.replace("<navindex>", f"<navindex>\n    {back}", 1))
    return doxygen.run(program, os.path.join(folder, "Doxyfile"))


def install(venv):
    """The program sphinx-build at the versions of requirements.txt, or None."""
    wanted = os.path.join(HERE, "requirements.txt")
    stamp = os.path.join(venv, "requirements.txt")
    if not (os.path.exists(stamp) and filecmp.cmp(wanted, stamp, shallow=False)):
        print("installing Sphinx and its theme from PyPI, once", flush=True)
        pip = os.path.join(venv, "bin", "pip")
        for command in (
            [sys.executable, "-m", "venv", "--clear", venv],
            [pip, "-q", "--disable-pip-version-check", "install", "-r", wanted],
        ):
            if subprocess.run(command).returncode:
                print("cannot install Sphinx: needs python3-venv, and PyPI once")
                return None
        shutil.copyfile(wanted, stamp)
    return os.path.join(venv, "bin", "sphinx-build")


def sphinx(program, source, html, folder, root):
    """Sphinx's part. What it prints is a warning."""
    done = subprocess.run(
        [program, "-b", "html", "-q", "-W", "--keep-going", "-j", "auto", "-c", HERE]
        + ["-d", os.path.join(folder, "doctrees"), source, html],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FA_ROOT": root, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    for line in done.stdout.splitlines():
        print(line.replace(source + os.sep, ""))
    return done.returncode


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("doxygen")
    parser.add_argument("folder")
    parser.add_argument("--tools", default=os.path.join(ROOT, "build", "site"))
    parser.add_argument("--root", default=ROOT)
    options = parser.parse_args()
    folder = os.path.abspath(options.folder)
    source, html = os.path.join(folder, "pages"), os.path.join(folder, "html")
    for old in (source, html, os.path.join(folder, "doctrees")):
        shutil.rmtree(old, ignore_errors=True)
    os.makedirs(html)
    sphinx_build = install(options.tools)
    if not sphinx_build:
        return 1
    bad = api(options.doxygen, folder)
    try:
        book = Book(options.root)
        book.write(source, os.path.join(folder, "api.tag"))
    except BookError as error:
        print(error)
        return 1
    bad |= sphinx(sphinx_build, source, html, folder, options.root)
    if not os.path.exists(os.path.join(html, "README.html")):
        return 1
    book.copy_plain(source, html)
    shutil.copyfile(os.path.join(html, "README.html"), os.path.join(html, "index.html"))
    with open(os.path.join(html, "llms.txt"), "w", encoding="utf-8") as file:
        file.write(book.llms_txt())
    for sentence in dead_links(html):
        print(f"dead link: {sentence}")
        bad = 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
