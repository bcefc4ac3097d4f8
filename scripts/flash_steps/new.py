"""Writes an attention kernel of your own, still empty, as a PyTorch extension.

    new mine.cu
    judge mine.cu       right or wrong, races, bytes, what to do next

It never overwrites a file; docs/own_kernel.md leads from the empty kernel to a correct one. Exit
status: 0 done, 2 bad use.
"""

import os
import shutil

from . import command
from .command import BadInput
from .files import ROOT


def main():
    parser = command.parser(__doc__)
    parser.add_argument("file", metavar="FILE.cu")
    file = parser.parse_args().file
    if not file.endswith(".cu"):
        raise BadInput(f"{file}: its name must end with .cu")
    if os.path.lexists(file):
        raise BadInput(f"{file} exists already: choose another name, or remove it first")
    shutil.copyfile(os.path.join(ROOT, "scripts", "template.cu"), file)
    print(f"wrote {file}: write your kernel there, and then\n  ./scripts/judge {file}")
    return 0
