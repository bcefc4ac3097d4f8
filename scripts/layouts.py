#!/usr/bin/env python3
"""Which lane holds which element, and which bank: the layouts of the tensor-core instructions.

    layouts.py mma_a                the A fragment of mma.m16n8k16: a text table
    layouts.py mma_a --svg FILE     the same as a picture
    layouts.py --pictures           draws all of docs/pictures/mma_*.svg and wgmma_*.svg anew

    mma_a mma_b mma_d       the fragments of D[16][8] += A[16][16] B[16][8]
    ldmatrix                one 8x8 matrix in the registers of a warp
    p_as_a                  the accumulators of S, packed to bf16, are the A operand of P V
    swizzle_64 swizzle_128  a tile of rows of 64 or 128 bf16, and the banks that an access touches
    wgmma_d wgmma_a         of a warpgroup: 16 columns of D[64][N], and an A from registers
    wgmma_k_major           operands of wgmma in shared memory, as TMA lays them down: Q or K,
    wgmma_mn_major          and V, with what one product reads

All of it comes from the functions of common/dialect/ptx/layouts.h, with which the simulator executes the
instructions: common/dialect/ptx/print_layouts.cpp, compiled on the spot ($CXX, or c++), prints them.
Exit status: 0 done, 1 the layouts contradict each other, 2 bad use, 3 no compiler.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRINTER = os.path.join("common", "dialect", "ptx", "print_layouts.cpp")
PICTURES = os.path.join(ROOT, "docs", "pictures")
EXAMPLE = 5  # the lane, and the chunk or row, that pictures single out
EXAMPLE_CHUNK, EXAMPLE_ROW = 2, 3
EXAMPLE_WARP, EXAMPLE_PRODUCT = 1, 1  # of a warpgroup; of those that walk along an operand
QUARTER = 8  # lanes that move 16 bytes each in one wavefront at best


class NoCompiler(Exception):
    """One sentence; exit status 3."""


class WrongLayout(Exception):
    """One sentence; exit status 1."""


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
            raise NoCompiler(
                f"no compiler '{compiler[0]}': set CXX to a C++20 compiler, or ./scripts/setup.sh"
            ) from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            first = (errors or done.stderr.splitlines() or ["no message"])[0]
            raise NoCompiler(f"{compiler[0]} does not compile {PRINTER}: {first}")
        printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    layouts = json.loads(printed)
    check_layouts(layouts)
    return layouts


def check_layouts(layouts):
    """Raises WrongLayout unless each element has one holder and each chunk one place."""
    for name, f in FRAGMENTS.items():
        holders = {}
        for c in cells_of(layouts, name):
            holders.setdefault((c.row, c.col), []).append(c.lane)
        for row in range(f.shape[0]):
            for col in range(f.shape[1]):
                lanes = holders.pop((row, col), [])
                if len(lanes) != 1:
                    raise WrongLayout(
                        f"{name}: element [{row}][{col}] of {f.tile} is held by "
                        f"{len(lanes)} lanes, not by one"
                    )
        for row, col in holders:
            raise WrongLayout(f"{name}: [{row}][{col}] lies outside {f.tile}")
        for c in cells_of(layouts, name):
            own = range(c.lane // 32 * f.rows_of_warp, (c.lane // 32 + 1) * f.rows_of_warp)
            if c.row not in own:
                raise WrongLayout(
                    f"{name}: thread {c.lane} holds [{c.row}][{c.col}], but rows "
                    f"{own[0]} to {own[-1]} are its warp's"
                )
    for name in OPERANDS:
        Operand(layouts, name)
    for d in (64, 128):
        for row, places in enumerate(layouts[f"swizzle_{d}"]["places"]):
            if sorted(places) != list(range(len(places))):
                raise WrongLayout(f"swizzle_{d}: two chunks of row {row} lie at one place")


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
        panel_bytes, row_bytes, chunk_bytes = 64 * 128, 128, 16
        for product, mn, k, byte in layouts[name]:
            row, along = (mn, k) if self.k_major else (k, mn)
            at = (
                byte // panel_bytes,
                byte % panel_bytes // row_bytes,
                byte % row_bytes // chunk_bytes,
            )
            what = along // 8, product
            if (
                at[1] != row
                or byte % chunk_bytes != along % 8 * 2
                or self.places.setdefault(at, what) != what
            ):
                raise WrongLayout(
                    f"{name}: element mn = {mn}, k = {k} lies at byte {byte}, where "
                    "no whole chunk of its row is"
                )
        self.panels = 1 + max(panel for panel, _, _ in self.places)
        self.rows = 1 + max(row for _, row, _ in self.places)
        if len(self.places) != self.panels * self.rows * 8:
            raise WrongLayout(
                f"{name}: {len(self.places)} places hold something, not "
                f"{self.panels * self.rows * 8}"
            )

    def is_example(self, at):
        return self.places[at][1] == EXAMPLE_PRODUCT


OPERANDS = ("wgmma_k_major", "wgmma_mn_major")


def check_packed_scores(layouts):
    """The cells of packed scores. Raises WrongLayout unless they are the A fragment's."""
    scores = cells_of(layouts, "packed_scores")
    fragment = {(c.lane, c.register, c.half): c for c in cells_of(layouts, "mma_a")}
    for s in scores:
        a = fragment.pop((s.lane, s.register, s.half), None)
        if a is None or a.key() != s.key():
            where = f"at [{a.row}][{a.col}]" if a else "nowhere"
            raise WrongLayout(
                f"lane {s.lane}: half {s.half} of a[{s.register}] is S[{s.row}][{s.col}] when the "
                f"accumulators are packed, but the A operand has it {where}"
            )
    if fragment:
        raise WrongLayout(f"{len(fragment)} elements of the A operand are packed from nothing")
    return scores


def check_wgmma_scores(layouts):
    """Raises WrongLayout unless wgmma leaves D where its A operand wants it."""
    for d, a in zip(cells_of(layouts, "wgmma_d"), cells_of(layouts, "wgmma_a")):
        if (d.lane, d.row, d.col) != (a.lane, a.row, a.col):
            raise WrongLayout(
                f"thread {d.lane} of a warpgroup has D[{d.row}][{d.col}] where A "
                f"wants A[{a.row}][{a.col}]"
            )


# --- text -----------------------------------------------------------------------------------------


def grid(cells, text, first_row=0):
    """Lines of a table, with the numbers of its rows and columns."""
    at = {(c.row, c.col): text(c) for c in cells}
    height, width = shape(cells)
    size = max(len(t) for t in at.values())
    return ["  " + "".join(f" {c:>{size}}" for c in range(width))] + [
        f"{r + first_row:>2}" + "".join(f" {at[r, c]:>{size}}" for c in range(width))
        for r in range(height)
    ]


def fragment_text(layouts, name):
    f = FRAGMENTS[name]
    cells, first_row = cells_of_one_warp(layouts, name)
    if name == "ldmatrix":
        plain = grid(cells, lambda c: f"{c.lane}:{f.half(c)[0]}")
        trans = grid(transposed(cells), lambda c: f"{c.lane}:{f.half(c)[0]}")
        wide = len(plain[0]) + 5
        return [
            f"lane:half of {f.tile}: 7:h is the high half of the register of lane 7.",
            "Lane 8m + r of x4 passes the address of row r of matrix m, which arrives in r[m].",
            "",
            f"{'ldmatrix':<{wide}}ldmatrix.trans",
            *(f"{a:<{wide}}{b}" for a, b in zip(plain, trans)),
        ]
    if f.packed:
        key = f"7:1h is the high half of {f.letter}[1] of lane 7"
        lines = grid(cells, lambda c: f"{c.lane}:{c.register}{f.half(c)[0]}", first_row)
    else:
        key = f"7:{f.letter}1 is {f.letter}[1] of lane 7"
        lines = grid(cells, lambda c: f"{c.lane}:{f.letter}{c.register}", first_row)
    head = [f"lane:register of {f.tile}; down: {f.rows}, across: {f.cols}. {key}."]
    return head + warpgroup_notes(f) + ["", *lines]


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
    for (panel, row, place), (chunk, _) in o.places.items():
        if place != chunk % 8 ^ row % 8:
            raise WrongLayout(f"panel {panel}, row {row}: chunk {chunk} lies at place {place}")
    if o.k_major:
        return [
            f"8 features, a chunk of 16 bytes, lie at place chunk ^ row % 8. The rows from "
            f"{o.rows} on go on alike.",
            f"Product {EXAMPLE_PRODUCT} reads 16 features of all rows. Its descriptor starts "
            "32 bytes after that of product 0. 8 rows are 1024 bytes (stride).",
        ]
    return [
        f"8 features, a chunk of 16 bytes, lie at place chunk % 8 ^ key % 8. The keys from "
        f"{o.rows} on go on alike.",
        f"Product {EXAMPLE_PRODUCT} reads 16 keys with all features. Its descriptor starts "
        "2048 bytes after that of product 0. 8 keys are 1024 bytes (stride), a panel of 64 "
        "keys 8192 (leading).",
    ]


def operand_text(layouts, name):
    o = Operand(layouts, name)
    what = (
        "K-major: rows of 64 features, as Q and K have them; the products sum over features."
        if o.k_major
        else "MN-major: rows of 64 features, as V has them; the products sum over keys, the rows."
    )
    lines = [what, "At each place of a row: which 8 features, 2 for 16 to 23."]
    lines += [f"[ ]: what product {EXAMPLE_PRODUCT} reads."]
    lines += [line for note in operand_notes(o) for line in textwrap.wrap(note, 96)]
    pad = " " * 3
    lines += ["", pad.join([f"{'place':>8}" + "".join(f"{p:>4} " for p in range(8))] * o.panels)]
    for row in range(o.rows):
        cells = []
        for panel in range(o.panels):
            text = f"{'row' if o.k_major else 'key'} {row:>2}".rjust(8)
            for place in range(8):
                at = panel, row, place
                number = str(o.places[at][0])
                text += f"{'[' + number + ']' if o.is_example(at) else number + ' ':>5}"
            cells.append(text)
        lines.append(pad.join(cells))
        if row % 8 == 7 and row + 1 < o.rows:
            lines.append("")
    return [line.rstrip() for line in lines]


def p_as_a_text(layouts):
    scores = check_packed_scores(layouts)
    lanes = (0, EXAMPLE, 31)
    lines = [
        "Accumulators of S, two neighbouring n8 tiles, packed to bf16 -> A operand of P V",
        "",
        f"{'A operand':<13}{'accumulator':<18}"
        + "".join(f"{'in lane ' + str(lane):<16}" for lane in lanes),
    ]
    for c in [c for c in scores if c.lane == 0]:
        tile, d = c.source
        same = [s for s in scores if (s.register, s.half) == (c.register, c.half)]
        at = {s.lane: f"S[{s.row}][{s.col}]" for s in same}
        lines.append(
            f"a[{c.register}].{('lo', 'hi')[c.half]:<8}tile {tile}, d[{d}]{'':<6}"
            + "".join(f"{at[lane]:<16}" for lane in lanes)
        )
    lanes_held = len({c.lane for c in scores})
    return [line.rstrip() for line in lines] + [
        "",
        f"Every element stands where mma's A operand wants it: {lanes_held} lanes x "
        f"{len(scores) // lanes_held} elements.",
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


def swizzle_text(layouts, d):
    s = Swizzle(layouts, d)
    lines = [
        f"A tile of rows of {d} bf16: the 16-byte chunk that lies at each place of a row.",
        "Without the swizzle place p holds chunk p.",
        "",
        "      place" + "".join(f"{p:>4}" for p in range(s.chunks)),
        " first bank" + "".join(f"{p * 4 % 32:>4}" for p in range(s.chunks)),
    ]
    for r in range(len(s.places)):
        lines.append(f"      row {r}" + "".join(f"{s.chunk_at(r, p):>4}" for p in range(s.chunks)))
    lines += [
        "",
        "Words that each bank moves, for groups of four banks from bank",
        f"{'':<40}{'':<10}" + "".join(f"{b:>4}" for b in range(0, 32, 4)) + "  wavefronts",
    ]
    for what, words in s.accesses():
        for kind in ("plain", "swizzled"):
            lines.append(
                f"{what if kind == 'plain' else '':<40}{kind:<10}"
                + "".join(f"{w:>4}" for w in groups_of_four(words[kind]))
                + f"{max(words[kind]):>12}"
            )
    lines += ["", "The same of any chunk column and any row"]
    for name, accesses in (
        (f"ldmatrix of chunk 0 to {s.chunks - 1}", s.ldmatrix),
        (f"cp.async of row 0 to {len(s.places) - 1}", s.cp_async),
    ):
        for kind in ("plain", "swizzled"):
            counts = sorted({max(a[kind]) for a in accesses})
            lines.append(
                f"{name if kind == 'plain' else '':<40}{kind:<10}{'':<32}"
                + f"{' or '.join(map(str, counts)):>12}"
            )
    return lines


def text_of(layouts, name):
    if name in FRAGMENTS:
        return fragment_text(layouts, name)
    if name in OPERANDS:
        return operand_text(layouts, name)
    if name == "p_as_a":
        return p_as_a_text(layouts)
    return swizzle_text(layouts, int(name.split("_")[1]))


# --- pictures -------------------------------------------------------------------------------------

WIDTH = 800
INK, QUIET, PAPER, EDGE, BAR = "#1b1f24", "#57606a", "#ffffff", "#d0d7de", "#4c8dd6"
COLORS = ("#cfe3f8", "#fde0b8", "#cdebc9", "#f5cfe0", "#e2d6f5", "#fdf3b0", "#c9ecec", "#e3e3e0")


STYLE = (
    f"text {{ font: 12px Helvetica, Arial, sans-serif; fill: {INK} }} "
    f"text.small {{ font-size: 10px }} text.title {{ font-size: 17px }} "
    f".middle {{ text-anchor: middle }} .end {{ text-anchor: end }} "
    f".quiet {{ fill: {QUIET} }} .bold {{ font-weight: bold }} "
    f"rect {{ stroke: {PAPER} }} .edge {{ stroke: {EDGE} }} "
    f".frame {{ fill: none; stroke: {INK}; stroke-width: 2px }} "
    f".arrow {{ fill: none; stroke: {INK}; stroke-width: 2px }}"
)


class Picture:
    """SVG with a paper of its own, so that it reads the same on dark and on light pages."""

    def __init__(self, title, width=WIDTH):
        self.parts, self.width, self.bottom = [], width, 0
        self.text(20, 32, title, "title bold")

    def add(self, part, bottom):
        self.parts.append(part)
        self.bottom = max(self.bottom, bottom)

    def text(self, x, y, words, look=""):
        """look: words of STYLE."""
        words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        look = f' class="{look}"' if look else ""
        self.add(f'<text x="{x:g}" y="{y:g}"{look}>{words}</text>', y + 6)

    def box(self, x, y, width, height, fill, look=""):
        look = f' class="{look}"' if look else ""
        self.add(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"'
            f"{look}/>",
            y + height,
        )

    def frame(self, x, y, width, height):
        """Singles out what lies inside."""
        self.add(
            f'<rect x="{x + 1:g}" y="{y + 1:g}" width="{width - 2:g}" '
            f'height="{height - 2:g}" class="frame"/>',
            y + height,
        )

    def line(self, x1, x2, y):
        self.add(f'<path d="M {x1:g} {y:g} H {x2:g}" class="edge"/>', y)

    def arrow(self, x1, x2, y):
        self.add(
            f'<path d="M {x1:g} {y:g} H {x2:g} M {x2 - 7:g} {y - 5:g} L {x2:g} {y:g} '
            f'L {x2 - 7:g} {y + 5:g}" class="arrow"/>',
            y + 5,
        )

    def svg(self):
        width, height = self.width, self.bottom + 16
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" '
                f'viewBox="0 0 {width} {height:g}">',
                f"<style>{STYLE}</style>",
                f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1:g}" rx="8" '
                f'fill="{PAPER}" class="edge"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


def draw_tile(picture, x, y, cells, size, axes, label=None, first_row=0):
    """A tile with numbered rows and columns; label(cell) is a second, small line."""
    width, height = size
    tall, wide = shape(cells)
    for c in range(wide):
        picture.text(x + (c + 0.5) * width, y - 6, str(c), "middle quiet")
    for r in range(tall):
        picture.text(x - 7, y + (r + 0.5) * height + 4, str(r + first_row), "end quiet")
    picture.text(x - 7, y - 6, " \\ ".join(axes), "end quiet")
    for c in cells:
        left, top = x + c.col * width, y + c.row * height
        picture.box(left, top, width, height, COLORS[c.register])
        middle = left + width / 2
        if label:
            picture.text(middle, top + height / 2 - 2, str(c.lane), "middle bold")
            picture.text(middle, top + height - 6, label(c), "small middle")
        else:
            picture.text(middle, top + height / 2 + 4, str(c.lane), "middle")
    for c in cells:
        if c.lane == EXAMPLE:
            picture.frame(x + c.col * width, y + c.row * height, width, height)


def legend(picture, x, y, fill, words):
    """A square of this colour, or the frame, and what it means."""
    if fill:
        picture.box(x, y, 16, 16, fill, "edge")
    else:
        picture.frame(x, y, 16, 16)
    picture.text(x + 24, y + 12.5, words)


def fragment_svg(layouts, name):
    if name == "ldmatrix":
        return ldmatrix_svg(layouts)
    f = FRAGMENTS[name]
    cells, first_row = cells_of_one_warp(layouts, name)
    entries = [(COLORS[r], f"{f.letter}[{r}]") for r in sorted({c.register for c in cells})]
    entries.append((None, f"what lane {EXAMPLE} holds"))
    notes = [
        "bold: the lane, 0 to 31",
        "lo, hi: half of its 32-bit register" if f.packed else "each register is one fp32",
    ]
    wide = f.shape[1] > 8  # the legend goes below
    picture = Picture(f"{f.instruction}: who holds {f.tile}", WIDTH if wide else 680)
    size = (44, 34)
    left, top = 84, 78
    draw_tile(
        picture,
        left,
        top,
        cells,
        size,
        (f.rows, f.cols),
        lambda c: f"{f.letter}{c.register} {f.half(c)}".strip(),
        first_row,
    )
    if wide:
        below = top + f.rows_of_warp * size[1] + 20
        for i, (fill, words) in enumerate(entries):
            legend(picture, left + i * (80 if len(entries) < 8 else 66), below, fill, words)
        picture.text(left, below + 40, "; ".join(notes))
        for i, note in enumerate(warpgroup_notes(f)):
            picture.text(left, below + 60 + 20 * i, note)
    else:
        beside = left + f.shape[1] * size[0] + 32
        for i, (fill, words) in enumerate(entries):
            legend(picture, beside, top + i * 24, fill, words)
        for i, note in enumerate(notes):
            picture.text(beside, top + 24 * len(entries) + 20 + 20 * i, note)
    return picture.svg()


def ldmatrix_svg(layouts):
    f = FRAGMENTS["ldmatrix"]
    cells = cells_of(layouts, "ldmatrix")
    picture = Picture("ldmatrix: one 8x8 matrix of bf16 in the registers of a warp")
    size, top = (37, 34), 96
    for x, title, drawn in ((92, "ldmatrix", cells), (484, "ldmatrix.trans", transposed(cells))):
        picture.text(x, 66, title, "bold")
        draw_tile(picture, x, top, drawn, size, (f.rows, f.cols), f.half)
    below = top + 8 * size[1] + 20
    legend(picture, 92, below, None, f"what lane {EXAMPLE} holds")
    picture.text(
        92,
        below + 42,
        "bold: the lane, 0 to 31; lo, hi: half of its 32-bit register. "
        "Both show the matrix as it lies in memory.",
    )
    picture.text(
        92,
        below + 62,
        "x4: lane 8m + r passes the address of row r of matrix m, whose "
        "elements arrive in register r[m].",
    )
    return picture.svg()


def p_as_a_svg(layouts):
    scores = check_packed_scores(layouts)
    picture = Picture("The accumulators of S, packed to bf16, are the A operand of P V")
    size = (20, 22)
    left, right, top = 68, 464, 98
    picture.text(left, 66, "S = Q K^T: accumulators of two n8 tiles", "bold")
    picture.text(right, 66, "P: A operand of P V", "bold")
    draw_tile(picture, left, top, scores, size, ("row", "key"))
    draw_tile(picture, right, top, cells_of(layouts, "mma_a"), size, ("row", "k"))
    picture.arrow(left + 16 * size[0] + 14, right - 30, top + 8 * size[1])
    below = top + 16 * size[1] + 20
    for register in sorted({c.register for c in scores}):
        halves = sorted(
            (c for c in scores if c.lane == 0 and c.register == register), key=lambda c: c.half
        )
        tile = halves[0].source[0]
        words = ", ".join(f"d[{c.source[1]}]" for c in halves)
        legend(
            picture,
            (left, right)[register % 2],
            below + register // 2 * 24,
            COLORS[register],
            f"a[{register}] = pack_bf16({words}) of tile {tile}",
        )
    legend(picture, left, below + 48, None, f"what lane {EXAMPLE} holds")
    picture.text(right, below + 60.5, "number: the lane; nothing moves between lanes")
    return picture.svg()


def swizzle_svg(layouts, d):
    s = Swizzle(layouts, d)
    picture = Picture(f"A tile of rows of {d} bf16 in shared memory: 16-byte chunks and banks")
    side, left, top, height = 328, (68, 456), 100, 28
    width = side / s.chunks
    for x, kind in zip(left, ("plain", "swizzled")):
        picture.text(x, 66, "without a swizzle" if kind == "plain" else "with the swizzle", "bold")
        picture.text(x - 7, top - 8, "first bank", "small end quiet")
        for p in range(s.chunks):
            picture.text(x + (p + 0.5) * width, top - 8, str(p * 4 % 32), "small middle quiet")
        framed = []
        for r in range(len(s.places)):
            picture.text(x - 7, top + (r + 0.5) * height + 4, f"row {r}", "end quiet")
            for p in range(s.chunks):
                chunk = p if kind == "plain" else s.chunk_at(r, p)
                picture.box(
                    x + p * width, top + r * height, width, height, COLORS[chunk % len(COLORS)]
                )
                picture.text(
                    x + (p + 0.5) * width, top + (r + 0.5) * height + 4, str(chunk), "middle"
                )
                if chunk == EXAMPLE_CHUNK:
                    framed.append((x + p * width, top + r * height, width, height))
        for place in framed:
            picture.frame(*place)
        y = top + len(s.places) * height + 32
        for what, words in s.accesses():
            room = max(max(w) for w in words.values())  # the same on both sides
            y = draw_banks(picture, x, y, side, what, words[kind], room) + 30
    picture.text(
        left[0],
        y,
        f"In the tiles number and colour are the chunk; framed is chunk {EXAMPLE_CHUNK}.",
    )
    picture.text(
        left[0],
        y + 20,
        "In the accesses a bar is a wavefront in which these four banks move a word each.",
    )
    return picture.svg()


def operand_svg(layouts, name):
    o = Operand(layouts, name)
    picture = Picture(
        "wgmma: Q or K in shared memory, K-major"
        if o.k_major
        else "wgmma: V in shared memory, MN-major"
    )
    side, height, top = (420, 22, 98) if o.k_major else (320, 16, 98)
    width, left = side / 8, (84, 468)
    for panel in range(o.panels):
        x = left[panel]
        picture.text(x, 66, f"features {64 * panel} to {64 * panel + 63}", "bold")
        for p in range(8):
            picture.text(x + (p + 0.5) * width, top - 7, str(p), "middle quiet")
        picture.text(x - 7, top - 7, "place", "end small quiet")
        for row in range(o.rows):
            y = top + row * height + row // 8 * 8  # a gap behind each group of 8 rows
            picture.text(
                x - 7,
                y + height / 2 + 4,
                ("row " if o.k_major else "key ") + str(row),
                "end small quiet",
            )
            for p in range(8):
                chunk, product = o.places[panel, row, p]
                picture.box(x + p * width, y, width, height, COLORS[product])
                picture.text(x + (p + 0.5) * width, y + height / 2 + 4, str(chunk), "middle")
    # The words stand beside one panel, or below two.
    x, y, room = (
        (left[0] + side + 36, top + 2, 36) if o.k_major else (left[0], picture.bottom + 18, 96)
    )
    for product in sorted({product for _, product in o.places.values()}):
        right, down = (0, 26) if o.k_major else (110, 0)
        legend(
            picture, x + right * product, y + down * product, COLORS[product], f"product {product}"
        )
    y += down * product + 44
    for note in ["Number: which 8 features, 2 for 16 to 23.", *operand_notes(o)]:
        for line in textwrap.wrap(note, room):
            picture.text(x, y, line)
            y += 20
        y += 8
    return picture.svg()


def draw_banks(picture, x, y, side, what, words, room):
    """A bar for each wavefront in which a group of four banks takes part. Returns the bottom."""
    waves = max(words)
    picture.text(x, y, f"{what}: {waves} wavefront{'s' if waves > 1 else ''}", "bold")
    step, width = 9, side / 8
    base = y + 12 + room * step
    for g, count in enumerate(groups_of_four(words)):
        for i in range(count):
            picture.box(x + g * width + 2, base - (i + 1) * step, width - 4, step - 1, BAR)
        picture.text(x + (g + 0.5) * width, base + 13, f"{4 * g}-{4 * g + 3}", "small middle quiet")
    picture.line(x, x + side, base + 0.5)
    return base + 13


def svg_of(layouts, name):
    if name in FRAGMENTS:
        return fragment_svg(layouts, name)
    if name == "p_as_a":
        return p_as_a_svg(layouts)
    if name in OPERANDS:
        return operand_svg(layouts, name)
    return swizzle_svg(layouts, int(name.split("_")[1]))


NAMES = [*FRAGMENTS, "p_as_a", "swizzle_64", "swizzle_128", *OPERANDS]


def picture_path(name):
    named = name.startswith(("mma_", "wgmma_"))
    return os.path.join(PICTURES, name if named else f"mma_{name}") + ".svg"


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    print(os.path.relpath(path))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--svg", metavar="FILE", help="a picture instead of text")
    parser.add_argument("--pictures", action="store_true", help="all pictures of docs/pictures")
    args = parser.parse_args()
    if args.pictures == bool(args.name):
        parser.error("one NAME or --pictures is needed")
    if args.pictures and args.svg:
        parser.error("--svg takes a NAME")
    layouts = read_layouts()
    if args.pictures:
        for name in NAMES:
            write(picture_path(name), svg_of(layouts, name))
    elif args.svg:
        write(args.svg, svg_of(layouts, args.name))
    else:
        print("\n".join(text_of(layouts, args.name)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (WrongLayout, NoCompiler, OSError) as error:
        print(f"layouts.py: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, WrongLayout) else 3 if isinstance(error, NoCompiler) else 2)
