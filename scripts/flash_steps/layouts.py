"""Which lane holds which element, and which bank: the layouts of the tensor-core instructions.

    layouts.py mma_a                the A fragment of mma.m16n8k16: a text table
    layouts.py --pictures           redraws docs/pictures/mma_*.svg and wgmma_*.svg

    mma_a mma_b mma_d       the fragments of D[16][8] += A[16][16] B[16][8]
    ldmatrix                one 8x8 matrix in the registers of a warp
    p_as_a                  the accumulators of S, packed to bf16, are the A operand of P V
    swizzle_64 swizzle_128  a tile of rows of 64 or 128 bf16, and the banks that an access touches
    wgmma_d wgmma_a         for a warpgroup: 16 columns of D[64][N], and an A from registers
    wgmma_k_major           operands of wgmma in shared memory, as TMA stores them: Q or K,
    wgmma_mn_major          and V, with what one product reads

Everything comes from the functions of common/dialect/ptx/layouts.h, which the simulator uses to
execute the instructions. print_layouts.cpp, compiled on the fly ($CXX, or c++), prints them.
Exit status: 0 done, 1 the layouts contradict each other, 2 bad use, 3 no compiler.
"""

import os

from . import command
from .files import replace_text
from .layout_data import NAMES, read_layouts
from .layout_pictures import svg_of
from .layout_tables import text_of
from .steps import ROOT

PICTURES = os.path.join(ROOT, "docs", "pictures")


def picture_path(name):
    named = name.startswith(("mma_", "wgmma_"))
    return os.path.join(PICTURES, name if named else f"mma_{name}") + ".svg"


def main():
    parser = command.parser(__doc__)
    parser.add_argument("name", nargs="?", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--pictures", action="store_true", help="draw them all")
    args = parser.parse_args()
    if args.pictures == bool(args.name):
        parser.error("give one NAME, or --pictures")
    layouts = read_layouts()
    if args.pictures:
        for name in NAMES:
            replace_text(picture_path(name), svg_of(layouts, name))
            print(os.path.relpath(picture_path(name)))
    else:
        print("\n".join(text_of(layouts, args.name)))
    return 0
