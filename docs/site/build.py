#!/usr/bin/env python3
"""Builds the documentation site: build.py DOXYGEN FOLDER.

FOLDER holds the Doxyfile; the site comes to FOLDER/html. Fails on a warning of Doxygen or MkDocs:
an undocumented function, a dead link, a page outside the book.

MkDocs, its theme and that of Doxygen's pages come from PyPI at the versions of requirements.txt,
into build/site, once. After that no network is needed.
"""

import filecmp
import glob
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "site")

# Each class, function, type and macro of a public header needs a comment. A member of a documented
# class does not when its name says all, and Doxygen has no switch between all and none.
SELF_EXPLANATORY = re.compile(r"Member .* of (struct|class) .* is not documented\.$")
# A later Doxygen calls a tag obsolete that an older one needs; indented lines below say more.
CONFIGURATION = re.compile("warning: (Tag '|ignoring unsupported tag )")


def findings(text):
    """(what must be fixed, remarks on the configuration): lines of Doxygen's stderr."""
    wrong, remarks = [], []
    into = wrong
    for line in text.splitlines():
        if not line.startswith(" "):
            into = remarks if CONFIGURATION.match(line) else wrong
        if line.strip() and not SELF_EXPLANATORY.search(line):
            into.append(line)
    return wrong, remarks


def api(program, folder):
    """Doxygen's part: 0 where nothing is wrong. In its menu the book stands for its empty first
    page."""
    shutil.rmtree(os.path.join(folder, "api"), ignore_errors=True)
    layout = os.path.join(folder, "layout.xml")
    subprocess.run([program, "-l", layout], check=True, stdout=subprocess.DEVNULL)
    with open(layout, encoding="utf-8") as file:
        text = file.read().replace('"mainpage"', '"user" url="../index.html"', 1)
    with open(layout, "w", encoding="utf-8") as file:
        file.write(text.replace('title=""', 'title="The book"', 1))
    with open(os.path.join(folder, "Doxyfile"), encoding="utf-8") as file:
        wanted = file.read()
    theme = glob.glob(os.path.join(VENV, "lib/*/site-packages/doxygen_awesome_css"))[0]
    done = subprocess.run(
        [program, "-"],
        input=f"{wanted}\nHTML_EXTRA_STYLESHEET = {theme}/doxygen-awesome.css\n",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wrong, remarks = findings(done.stderr)
    for line in remarks + wrong:
        print(line)
    return 1 if wrong or done.returncode else 0


def install():
    """Whether MkDocs is there at the versions of requirements.txt."""
    wanted, stamp = os.path.join(HERE, "requirements.txt"), os.path.join(VENV, "requirements.txt")
    if os.path.exists(stamp) and filecmp.cmp(wanted, stamp, shallow=False):
        return True
    print("installing MkDocs and its theme from PyPI, once", flush=True)
    pip = [os.path.join(VENV, "bin", "pip"), "-q", "--disable-pip-version-check", "install"]
    for command in ([sys.executable, "-m", "venv", "--clear", VENV], [*pip, "-r", wanted]):
        if subprocess.run(command).returncode:
            print("cannot install MkDocs: needs python3-venv, and PyPI once")
            return False
    shutil.copyfile(wanted, stamp)
    return True


def main():
    program, folder = sys.argv[1], os.path.abspath(sys.argv[2])
    if not install():
        return 1
    print("1 of 2: the API, by Doxygen", flush=True)
    bad = api(program, folder)
    print("2 of 2: the book, by MkDocs", flush=True)
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "NO_MKDOCS_2_WARNING": "1"}
    mkdocs = [os.path.join(VENV, "bin", "mkdocs"), "build", "-c"]  # -q would hide its warnings
    mkdocs += ["-f", os.path.join(HERE, "mkdocs.yml"), "-d", os.path.join(folder, "html")]
    done = subprocess.run(mkdocs, env={**os.environ, **quiet}, stderr=subprocess.PIPE, text=True)
    print("".join(x for x in done.stderr.splitlines(True) if not x.startswith("INFO ")), end="")
    return 1 if bad or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
