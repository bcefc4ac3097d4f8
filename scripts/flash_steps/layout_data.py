"""The layouts that print_layouts.cpp prints, and checks of them."""

import json
import os
import shlex
import subprocess
import tempfile

from .command import Failure, NotHere
from .steps import ROOT

PRINTER = os.path.join("scripts", "flash_steps", "print_layouts.cpp")
EXAMPLE = 5  # the lane, and the chunk or row, that pictures single out
EXAMPLE_CHUNK, EXAMPLE_ROW = 2, 3
EXAMPLE_WARP, EXAMPLE_PRODUCT = 1, 1  # of a warpgroup; of those that walk along an operand
QUARTER = 8  # lanes that move 16 bytes each in one wavefront at best


def read_layouts():
    """What print_layouts.cpp prints."""
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "print_layouts")
        try:
            done = subprocess.run(
                [*compiler, "-std=c++20", "-I", ROOT, os.path.join(ROOT, PRINTER), "-o", program],
                capture_output=True,
                text=True,
            )
        except OSError:
            raise NotHere(
                f"no compiler '{compiler[0]}': set CXX to a C++20 compiler, or ./scripts/setup.sh"
            ) from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            first = (errors or done.stderr.splitlines() or ["no message"])[0]
            raise NotHere(f"{compiler[0]} does not compile {PRINTER}: {first}")
        printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return json.loads(printed)


class Cell:
    """One element of a fragment: where it stands and who holds it."""

    def __init__(self, lane, register, half, row, col, *source):
        self.lane, self.register, self.half, self.row, self.col = lane, register, half, row, col
        self.source = source  # packed scores: n8 tile and number of the accumulator

    def key(self):
        return self.lane, self.register, self.half, self.row, self.col


def cells_of(layouts, name):
    return [Cell(*numbers) for numbers in layouts[name]]


def transposed(cells):
    return [Cell(c.lane, c.register, c.half, c.col, c.row) for c in cells]


def shape(cells):
    """(rows, columns) of the tile that the cells cover."""
    return 1 + max(c.row for c in cells), 1 + max(c.col for c in cells)


class Fragment:
    """How a fragment is told: its tile, what the axes mean, the letter of its registers."""

    def __init__(self, letter, name, tile_shape, rows, cols, packed=True):
        self.letter, self.shape, self.rows, self.cols = letter, tile_shape, rows, cols
        self.tile = name + "".join(f"[{n}]" for n in tile_shape)
        self.packed = packed  # two bf16 a register
        self.rows_of_warp = min(16, tile_shape[0])
        self.warps = tile_shape[0] // self.rows_of_warp
        self.instruction = "mma.m16n8k16" if self.warps == 1 else "wgmma.m64nNk16"

    def half(self, cell):
        return ("lo", "hi")[cell.half] if self.packed else ""


FRAGMENTS = {
    "mma_a": Fragment("a", "A", (16, 16), "row", "k"),
    "mma_b": Fragment("b", "B", (16, 8), "k", "col"),
    "mma_d": Fragment("d", "D", (16, 8), "row", "col", packed=False),
    "ldmatrix": Fragment("r", "a matrix", (8, 8), "row", "col"),
    "wgmma_d": Fragment("d", "D", (64, 16), "row", "col", packed=False),
    "wgmma_a": Fragment("a", "A", (64, 16), "row", "k"),
}


def cells_of_one_warp(layouts, name):
    """(cells, first row) of the only warp, or of the example's in a warpgroup; lanes 0 to 31."""
    f = FRAGMENTS[name]
    if name == "wgmma_d":
        check_wgmma_scores(layouts)  # its notes say so
    warp = EXAMPLE_WARP if f.warps > 1 else 0
    first = warp * f.rows_of_warp
    return [
        Cell(c.lane % 32, c.register, c.half, c.row - first, c.col)
        for c in cells_of(layouts, name)
        if c.lane // 32 == warp
    ], first


class Operand:
    """An operand of wgmma in shared memory: what lies at each 16-byte place, and who reads it."""

    def __init__(self, layouts, name):
        self.k_major = name == "wgmma_k_major"
        self.places = {}  # (panel, row of memory, place): (chunk, product)
        for product, mn, k, byte in layouts[name]:
            along = k if self.k_major else mn
            at = byte // (64 * 128), byte % (64 * 128) // 128, byte % 128 // 16
            self.places[at] = along // 8, product
        self.panels = 1 + max(panel for panel, _, _ in self.places)
        self.rows = 1 + max(row for _, row, _ in self.places)


OPERANDS = ("wgmma_k_major", "wgmma_mn_major")


def check_packed_scores(layouts):
    """The cells of packed scores. \raises Failure unless they are the A fragment's."""
    fragment = {(c.lane, c.register, c.half): c for c in cells_of(layouts, "mma_a")}
    scores = cells_of(layouts, "packed_scores")
    for s in scores:
        a = fragment[s.lane, s.register, s.half]
        if a.key() != s.key():
            raise Failure(
                f"lane {s.lane}: half {s.half} of a[{s.register}] is S[{s.row}][{s.col}] when the "
                f"accumulators are packed, but the A operand has it at [{a.row}][{a.col}]"
            )
    return scores


def check_wgmma_scores(layouts):
    """\raises Failure unless wgmma leaves D where its A operand wants it."""
    for d, a in zip(cells_of(layouts, "wgmma_d"), cells_of(layouts, "wgmma_a")):
        if (d.lane, d.row, d.col) != (a.lane, a.row, a.col):
            raise Failure(
                f"thread {d.lane} of a warpgroup has D[{d.row}][{d.col}] where A "
                f"wants A[{a.row}][{a.col}]"
            )


def warpgroup_notes(f):
    if f.warps == 1:
        return []
    notes = [
        f"Warp {EXAMPLE_WARP} of a warpgroup; warp w holds rows 16w to 16w + 15 in the same way."
    ]
    if not f.packed:
        notes.append(
            "Each further 8 columns take the next 4 registers. Of 16 columns, packed to bf16,"
        )
        notes.append("d[i] is half i % 2 of register i / 2 of an A operand: where wgmma_a has it.")
    return notes


def operand_notes(o):
    """Where what lies, and what a product reads, in words of its descriptor."""
    if o.k_major:
        return [
            f"8 features, a chunk of 16 bytes, are at place chunk ^ row % 8. The rows from "
            f"{o.rows} on continue in the same way.",
            f"Product {EXAMPLE_PRODUCT} reads 16 features of all rows. Its descriptor starts "
            "32 bytes after that of product 0. 8 rows are 1024 bytes (stride).",
        ]
    return [
        f"8 features, a chunk of 16 bytes, are at place chunk % 8 ^ key % 8. The keys from "
        f"{o.rows} on continue in the same way.",
        f"Product {EXAMPLE_PRODUCT} reads 16 keys with all features. Its descriptor starts "
        "2048 bytes after that of product 0. 8 keys are 1024 bytes (stride), a panel of 64 "
        "keys 8192 (leading).",
    ]


class Swizzle:
    """One tile of rows of d bf16 and what its two accesses touch."""

    def __init__(self, layouts, d):
        self.d = d
        self.places = layouts[f"swizzle_{d}"]["places"]  # [row][chunk]
        self.ldmatrix = layouts[f"swizzle_{d}"]["ldmatrix"]
        self.cp_async = layouts[f"swizzle_{d}"]["cp_async"]
        self.chunks = len(self.places[0])

    def chunk_at(self, row, place):
        return self.places[row].index(place)

    def accesses(self):
        """[(what, {"plain": words of each bank, "swizzled": ...})] of the example."""
        first = "" if self.chunks == QUARTER else f", chunks 0-{QUARTER - 1}"
        return [
            (f"ldmatrix reads chunk {EXAMPLE_CHUNK} of 8 rows", self.ldmatrix[EXAMPLE_CHUNK]),
            (f"cp.async writes row {EXAMPLE_ROW}{first}", self.cp_async[EXAMPLE_ROW]),
        ]


def groups_of_four(words):
    """Words of 32 banks -> of 8 groups; 16 bytes touch four neighbours alike."""
    return [max(words[g : g + 4]) for g in range(0, len(words), 4)]
