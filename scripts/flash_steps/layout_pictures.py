"""The pictures that layouts.py writes."""

import textwrap

from .layout_data import (
    EXAMPLE,
    EXAMPLE_CHUNK,
    FRAGMENTS,
    OPERANDS,
    Operand,
    Swizzle,
    cells_of,
    cells_of_one_warp,
    check_packed_scores,
    groups_of_four,
    operand_notes,
    shape,
    transposed,
    warpgroup_notes,
)
from .picture import CELLS, STRONG, WIDTH, Picture


def draw_cells(picture, cells, size):
    """[(x, y, colour, words, what stands below them or "")], all of one size: a path of each
    colour, and an element for the words of each row."""
    width, height = size
    for color in sorted({cell[2] for cell in cells}):
        picture.boxes([(*c[:2], *size) for c in cells if c[2] == color], "cell", CELLS[color])
    for top in sorted({cell[1] for cell in cells}):
        row = sorted(cell for cell in cells if cell[1] == top)
        middles = [x + width / 2 for x, *_ in row]
        below = [cell[4] for cell in row]
        y, look = (
            (top + height / 2 - 2, "middle bold") if below[0] else (top + height / 2 + 4, "middle")
        )
        picture.texts(y, zip(middles, (cell[3] for cell in row)), look)
        if below[0]:
            picture.texts(top + height - 6, zip(middles, below), "small middle")


def number_columns(picture, x, y, width, names, look="middle quiet"):
    picture.texts(y, [(x + (i + 0.5) * width, str(name)) for i, name in enumerate(names)], look)


def draw_tile(picture, x, y, cells, size, axes, label=None, first_row=0):
    """A tile with numbered rows and columns; label(cell) is a second, small line."""
    width, height = size
    tall, wide = shape(cells)
    number_columns(picture, x, y - 6, width, range(wide))
    for r in range(tall):
        picture.text(x - 7, y + (r + 0.5) * height + 4, str(r + first_row), "end quiet")
    picture.text(x - 7, y - 6, " \\ ".join(axes), "end quiet")
    drawn = [(x + c.col * width, y + c.row * height, c) for c in cells]
    words = [
        (left, top, c.register, str(c.lane), label(c) if label else "") for left, top, c in drawn
    ]
    draw_cells(picture, words, size)
    picture.frames([(left, top, *size) for left, top, c in drawn if c.lane == EXAMPLE])


def legend(picture, x, y, fill, words):
    """A square of this colour, or the frame, and what it means."""
    if fill:
        picture.box(x, y, 16, 16, fill, "edge")
    else:
        picture.frames([(x, y, 16, 16)])
    picture.text(x + 24, y + 12.5, words)


def fragment_svg(layouts, name):
    f = FRAGMENTS[name]
    cells, first_row = cells_of_one_warp(layouts, name)
    entries = [(CELLS[r], f"{f.letter}[{r}]") for r in sorted({c.register for c in cells})]
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
        "Both show the matrix as it is in memory.",
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
    middle = top + 8 * size[1]
    picture.arrow(left + 16 * size[0] + 14, middle, right - 30, middle)
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
            CELLS[register],
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
        banks = [p * 4 % 32 for p in range(s.chunks)]
        number_columns(picture, x, top - 8, width, banks, "small middle quiet")
        cells = []
        for r in range(len(s.places)):
            picture.text(x - 7, top + (r + 0.5) * height + 4, f"row {r}", "end quiet")
            for p in range(s.chunks):
                chunk = p if kind == "plain" else s.chunk_at(r, p)
                color = chunk % len(CELLS)
                cells.append((x + p * width, top + r * height, color, str(chunk), ""))
        draw_cells(picture, cells, (width, height))
        framed = [cell for cell in cells if cell[3] == str(EXAMPLE_CHUNK)]
        picture.frames([(*cell[:2], width, height) for cell in framed])
        y = top + len(s.places) * height + 32
        for what, words in s.accesses():
            room = max(max(w) for w in words.values())  # the same on both sides
            y = draw_banks(picture, x, y, side, what, words[kind], room) + 30
    picture.text(
        left[0],
        y,
        f"In the tiles, number and colour show the chunk; chunk {EXAMPLE_CHUNK} is framed.",
    )
    picture.text(
        left[0],
        y + 20,
        "In the accesses, each bar is a wavefront in which these four banks move one word each.",
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
        number_columns(picture, x, top - 7, width, range(8))
        picture.text(x - 7, top - 7, "place", "end small quiet")
        cells = []
        for row in range(o.rows):
            y = top + row * height + row // 8 * 8  # a gap behind each group of 8 rows
            name = f"{'row' if o.k_major else 'key'} {row}"
            picture.text(x - 7, y + height / 2 + 4, name, "end small quiet")
            for p in range(8):
                chunk, product = o.places[panel, row, p]
                cells.append((x + p * width, y, product, str(chunk), ""))
        draw_cells(picture, cells, (width, height))
    # The words stand beside one panel, or below two.
    x, y, room = (
        (left[0] + side + 36, top + 2, 36) if o.k_major else (left[0], picture.bottom + 18, 96)
    )
    for product in sorted({product for _, product in o.places.values()}):
        right, down = (0, 26) if o.k_major else (110, 0)
        legend(
            picture, x + right * product, y + down * product, CELLS[product], f"product {product}"
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
    bars = [
        (x + g * width + 2, base - (i + 1) * step, width - 4, step - 1)
        for g, count in enumerate(groups_of_four(words))
        for i in range(count)
    ]
    picture.boxes(bars, "cell", STRONG[0])
    groups = [f"{4 * g}-{4 * g + 3}" for g in range(8)]
    number_columns(picture, x, base + 13, width, groups, "small middle quiet")
    picture.line(x, x + side, base + 0.5)
    return base + 13


def pictures_of(layouts):
    """{name of a file: its SVG}"""
    found = {name: fragment_svg(layouts, name) for name in FRAGMENTS if name != "ldmatrix"}
    found |= {name: operand_svg(layouts, name) for name in OPERANDS}
    found |= {f"mma_swizzle_{d}": swizzle_svg(layouts, d) for d in (64, 128)}
    found |= {"mma_ldmatrix": ldmatrix_svg(layouts), "mma_p_as_a": p_as_a_svg(layouts)}
    return {f"{name}.svg": svg for name, svg in found.items()}
