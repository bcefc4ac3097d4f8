"""Rows that peers.py, `maintain decode` and `maintain ring` measured, and columns for them.

A table is (columns, lines): text.py prints it on the screen or for a page.
"""

import statistics

from flash_steps.command import BadInput
from flash_steps.problems import flops_of
from flash_steps.results import get
from flash_steps.text import Column, three_digits


def place_of(row):
    """Equal for two measurements of the same thing."""
    keys = ("what", "step", "variant", "direction", "problem", "shape", "channels")
    return tuple(row.get(key) for key in keys)


def repeats_of(row):
    """The results of each repeat of a row of peers.py: {ms, of_matmul, ratios}."""
    return row.get("repeats") or [row]


def median_row(row, repeats):
    """A row of peers.py with the medians of these repeats."""
    names = dict.fromkeys(name for run in repeats for name in run["ratios"])
    ratios = {
        name: statistics.median(run["ratios"][name] for run in repeats if name in run["ratios"])
        for name in names
    }
    ms, of_matmul = (statistics.median(run[key] for run in repeats) for key in ("ms", "of_matmul"))
    rate = flops_of(row, row["direction"]) / (ms * 1e-3)
    found = {"ms": ms, "flops_per_s": rate, "of_matmul": of_matmul, "ratios": ratios}
    return {**row, **found, "repeats": repeats}


def matmul_of(row, run):
    return flops_of(row, row["direction"]) / (run["ms"] * 1e-3) / run["of_matmul"]


def least_of(rows, name):
    """(the least ratio of all repeats, its row)"""
    found = [
        (run["ratios"][name], i)
        for i, row in enumerate(rows)
        for run in repeats_of(row)
        if name in run["ratios"]
    ]
    ratio, i = min(found)
    return ratio, rows[i]


def column(head, what, text=str, left=False):
    """A column for a figure of a row: a key, such as forward.ms, or a function; "-" for None."""

    def cell(row):
        value = what(row) if callable(what) else get(row, what)
        return "-" if value is None else text(value)

    return Column(("", head), cell, left=left)


def ratio_text(ratio):
    return f"{three_digits(ratio, always=True)}x"


def against_n(title, entries):
    r"""A table of [(label, N, text)]: a line per label, a column per N.
    \raises BadInput where a cell has two results."""
    cells = {}
    for label, n, text in entries:
        if (label, n) in cells:
            raise BadInput(f"two results of {label} at N={n}: choose one d, mask and direction")
        cells[label, n] = text
    columns = [Column(("", title), str, left=True)]
    for n in sorted({n for _, n in cells}):
        columns.append(Column(("", f"N={n}"), lambda label, n=n: cells.get((label, n), "-")))
    return columns, list(dict.fromkeys(label for label, _ in cells))
