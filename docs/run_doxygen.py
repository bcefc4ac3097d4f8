#!/usr/bin/env python3
"""Runs Doxygen and fails on its warnings: run_doxygen.py DOXYGEN DOXYFILE.

Each class, function, type and macro of a public header needs a comment. A member of a documented
class does not when its name says all: a comment that repeats the name helps nobody, and Doxygen
has no switch between all and none. A kernel's comments are its chapter's, and plain //.
"""

import re
import subprocess
import sys

SELF_EXPLANATORY = re.compile(
    r"(Member .* of (struct|class) .*|/steps/\w+/\w+\.cuh:\d+: .*) is not documented\.$"
)


def main():
    doxygen, doxyfile = sys.argv[1:]
    done = subprocess.run(
        [doxygen, doxyfile], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    warnings = [
        line
        for line in done.stderr.splitlines()
        if line.strip() and not SELF_EXPLANATORY.search(line)
    ]
    print("\n".join(warnings), end="\n" if warnings else "")
    return 1 if warnings or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
