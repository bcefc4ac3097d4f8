"""Draws which lane holds which element, and which bank: docs/pictures/mma_*.svg and wgmma_*.svg.

    maintain layouts

Everything is from the functions of common/dialect/ptx/layouts.h, which the simulator uses to
execute the instructions. print_layouts.cpp, compiled on the fly ($CXX, or c++), prints them.
Exit status: 0 done, 1 the layouts contradict each other, 2 bad use, 3 no compiler.
"""

import os

from . import command
from .files import ROOT, replace_text
from .layout_data import read_layouts
from .layout_pictures import pictures_of

PICTURES = os.path.join(ROOT, "docs", "pictures")


def main():
    command.parser(__doc__).parse_args()
    for name, svg in pictures_of(read_layouts()).items():
        path = os.path.join(PICTURES, name)
        replace_text(path, svg)
        print(os.path.relpath(path))
    return 0
