"""Figures and tables for people."""

import math
import textwrap
from dataclasses import dataclass


def scaled(value, units):
    """Three significant digits: 1073741824 -> "1.07 G" with units of ("", "K", "M", "G")."""
    if value is None:
        return "-"
    exponent = 0
    while abs(value) >= 999.5 and exponent < len(units) - 1:
        value /= 1000
        exponent += 1
    if exponent == 0 and value == int(value):
        return f"{value:.0f} {units[0]}".rstrip()
    shown = abs(float(f"{value:.3g}"))  # 9.996 is shown as 10.0
    digits = max(0, 2 - int(math.log10(shown)))
    return f"{value:.{digits}f} {units[exponent]}".rstrip()


def bytes_text(value):
    return scaled(value, ("B", "kB", "MB", "GB", "TB"))


def count_text(value):
    return scaled(value, ("", "K", "M", "G", "T"))


def time_text(ms):
    return "-" if ms is None else scaled(ms * 1e3, ("us", "ms", "s"))


def percent_text(share):
    return "-" if share is None else f"{100 * share:.1f}%"


def three_digits(x, always=False):
    """3.14, 31.4, 314, and 3,142 instead of 3.14e+03; 3.1, or 3.10 with always three digits."""
    if x >= 999.5:
        return f"{x:,.0f}"
    return f"{x:#.3g}".rstrip(".") if always else f"{x:.3g}"


def range_text(values, text):
    """ "36.9", or "36.9 to 37.9"."""
    return " to ".join(dict.fromkeys(text(value) for value in (min(values), max(values))))


def flops_text(per_second):
    return "-" if per_second is None else three_digits(per_second / 1e12)


def common_lines(one, other):
    """The number of lines that two texts share in order, that is, the length of their longest
    common subsequence, in time len(one) * len(other) / 64. Hyyro, "Bit-parallel LCS-length
    computation revisited", 2004: a bit of `row` is 0 where the length grows."""
    places = {}
    for bit, line in enumerate(one):
        places[line] = places.get(line, 0) | 1 << bit
    everything = (1 << len(one)) - 1
    row = everything
    for line in other:
        matches = row & places.get(line, 0)
        row = (row + matches | row - matches) & everything
    return len(one) - bin(row).count("1")


@dataclass
class Column:
    head: tuple  # two lines
    cell: object  # Row -> text
    left: bool = False

    @property
    def title(self):
        return " ".join(self.head).strip().replace("- ", "").replace("/ ", "/")


def for_screen(sentence):
    """A program's text has at most 80 columns, by docs/CONTRIBUTING.md."""
    return textwrap.fill(sentence, 80)


def aligned(rows, left=(0,)):
    """Rows of cells as lines in columns, those in `left` left-aligned."""
    rows = list(rows)
    columns = [
        [cell.ljust(w) if at in left else cell.rjust(w) for cell in cells]
        for at, cells in enumerate(zip(*rows))
        for w in [max(map(len, cells))]
    ]
    return ["  ".join(cells).rstrip() for cells in zip(*columns)]


def text_table(columns, rows):
    """Aligned text, as wide as its cells."""
    cells = [[c.head[i] for c in columns] for i in (0, 1)]
    cells += [[c.cell(row) for c in columns] for row in rows]
    lines = aligned(cells, [at for at, c in enumerate(columns) if c.left])
    return "\n".join([*lines[:2], "-" * max(map(len, lines)), *lines[2:]])


def markdown_table(columns, rows):
    lines = [
        "| " + " | ".join(c.title for c in columns) + " |",
        "|" + "|".join(":--" if c.left else "--:" for c in columns) + "|",
    ]
    lines += ["| " + " | ".join(c.cell(row) for c in columns) + " |" for row in rows]
    return "\n".join(lines)
