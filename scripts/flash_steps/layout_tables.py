"""The text tables of layouts.py."""

import textwrap

from .layout_data import (
    EXAMPLE,
    EXAMPLE_PRODUCT,
    FRAGMENTS,
    OPERANDS,
    Operand,
    Swizzle,
    cells_of_one_warp,
    check_packed_scores,
    groups_of_four,
    operand_notes,
    shape,
    transposed,
    warpgroup_notes,
)


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
        f"Every element is where mma's A operand needs it: {lanes_held} lanes x "
        f"{len(scores) // lanes_held} elements.",
    ]


def swizzle_text(layouts, d):
    s = Swizzle(layouts, d)
    lines = [
        f"A tile of rows of {d} bf16: which 16-byte chunk is at each place of a row.",
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
    lines += ["", "The same for any chunk column and any row"]
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
