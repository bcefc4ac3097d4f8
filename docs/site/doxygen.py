#!/usr/bin/env python3
"""Runs Doxygen and fails on its warnings: doxygen.py DOXYGEN DOXYFILE.

What it says about its own configuration is shown and is no failure: a later Doxygen calls a tag
obsolete that an older one needs.

Each class, function, type and macro of a public header needs a comment. A member of a documented
class does not when its name says all: a comment that repeats the name helps nobody, and Doxygen
has no switch between all and none.
"""

import re
import subprocess
import sys

SELF_EXPLANATORY = re.compile(r"Member .* of (struct|class) .* is not documented\.$")

# "warning: Tag 'X' at line 80 of file 'Doxyfile' has become obsolete." and indented lines below it
# "warning: ignoring unsupported tag 'X' at line 80, file Doxyfile"
CONFIGURATION = re.compile("warning: (Tag '|ignoring unsupported tag )")


def findings(text):
    """(what must be fixed, remarks on the configuration): lines of Doxygen's stderr."""
    wrong, remarks = [], []
    into = wrong
    for line in text.splitlines():
        if not line.startswith(" "):  # an indented line goes on with the one before
            into = remarks if CONFIGURATION.match(line) else wrong
        if line.strip() and not SELF_EXPLANATORY.search(line):
            into.append(line)
    return wrong, remarks


def run(program, doxyfile):
    """Runs Doxygen and prints what it warns of; 0 where nothing is wrong."""
    done = subprocess.run(
        [program, doxyfile], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    wrong, remarks = findings(done.stderr)
    for line in remarks + wrong:
        print(line)
    return 1 if wrong or done.returncode else 0


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
