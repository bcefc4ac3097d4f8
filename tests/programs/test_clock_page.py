#!/usr/bin/env python3
"""docs/clock.md gives each figure of common/data/clock_h200.json with its value, and the figure of
the microbenchmarks that it comes from."""

import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.argv = sys.argv[:1]

FIGURES = ROOT / "common" / "data" / "clock_h200.json"
PAGE = ROOT / "docs" / "clock.md"
MEASURED = ROOT / "docs" / "results" / "microbenchmarks_h200.json"
CLOSE = 0.03  # constants are rounded


def rows_of(text):
    """[(name, value, source)] of a page's table rows `name` | number | source."""
    rows = []
    for line in text.splitlines():
        row = re.fullmatch(r"\| *`(\w+)` *\|([^|]*)\|([^|]*)\|", line.strip())
        if row:
            name, value, source = (cell.strip() for cell in row.groups())
            rows.append((name, float(value), source))
    return rows


def differences(constants, rows):
    """What the page says of the figures that is not so, in words."""
    named = [name for name, _, _ in rows]
    found = [f"{name}: not on the page" for name in constants if name not in named]
    seen = set()
    for name, value, source in rows:
        if name in seen:
            found.append(f"{name}: twice on the page")
        seen.add(name)
        if name not in constants:
            found.append(f"{name}: no such constant")
        elif abs(constants[name] - value) > 1e-9 * abs(value):
            found.append(f"{name}: is {constants[name]:g}, the page says {value:g}")
        if len(source) < 3:
            found.append(f"{name}: comes from nowhere")
    return found


def far_from_measured(rows, measured):
    """Rows whose value is not the figure that they name."""
    found = []
    for name, value, source in rows:
        for formula in re.findall(r"micro:\{([^}]*)\}", source):
            want = eval(formula, {"__builtins__": {}}, measured)  # our own page's arithmetic
            if abs(value - want) > CLOSE * abs(want):
                found.append(f"{name}: {value:g}, but {formula} is {want:g}")
        for inverse, figure in re.findall(r"(1/)?micro:(\w+)", source):
            if figure not in measured:
                found.append(f"{name}: no figure {figure}")
                continue
            want = 1 / measured[figure] if inverse else measured[figure]
            if abs(value - want) > CLOSE * abs(want):
                found.append(f"{name}: {value:g}, but {inverse}{figure} is {want:g}")
    return found


class Page(unittest.TestCase):
    """Of this tree."""

    def setUp(self):
        self.rows = rows_of(PAGE.read_text(encoding="utf-8"))

    def test_the_page_has_each_constant_with_its_value(self):
        constants = json.loads(FIGURES.read_text(encoding="utf-8"))["figures"]
        self.assertGreater(len(constants), 20)
        self.assertEqual(differences(constants, self.rows), [])

    def test_a_constant_is_the_figure_that_it_comes_from(self):
        figures = json.loads(MEASURED.read_text(encoding="utf-8"))["constants"]
        measured = {name: figure["value"] for name, figure in figures.items()}
        without = {name for name, _, source in self.rows if "micro:" not in source}
        self.assertEqual(without, {"issue", "independent_chains", "loaded_clock"})
        self.assertEqual(far_from_measured(self.rows, measured), [])


class Parser(unittest.TestCase):
    CONSTANTS = {"pipe": 1, "mma": 0.625, "fast": 1.5e9}
    TABLE = (
        "| constant | value | from |\n|:--|--:|:--|\n| `pipe` | 1 | micro:line, a clock |\n"
        "| `mma` | 0.625 | 1/micro:mma |\n| `fast` | 1.5e9 | counters |\n"
        "`pipe` is no row; | mma | 7 | x | neither\n"
    )

    def test_rows(self):
        self.assertEqual(
            rows_of(self.TABLE),
            [
                ("pipe", 1, "micro:line, a clock"),
                ("mma", 0.625, "1/micro:mma"),
                ("fast", 1.5e9, "counters"),
            ],
        )
        with self.assertRaises(ValueError):
            rows_of("| `a` | one | from |")

    def told(self, old="", new="", **figures):
        return differences(self.CONSTANTS | figures, rows_of(self.TABLE.replace(old, new)))

    def test_a_formula_of_figures(self):
        rows = [("b", 3, "micro:{a - 2}")]
        self.assertEqual(far_from_measured(rows, {"a": 5}), [])
        self.assertEqual(far_from_measured(rows, {"a": 9}), ["b: 3, but a - 2 is 7"])

    def test_differences_of_names_and_values(self):
        self.assertEqual(self.told(), [])
        self.assertEqual(self.told("0.625", "0.63"), ["mma: is 0.625, the page says 0.63"])
        self.assertEqual(
            self.told("`mma`", "`MMA`"), ["mma: not on the page", "MMA: no such constant"]
        )
        self.assertEqual(self.told(pipe=2), ["pipe: is 2, the page says 1"])
        self.assertEqual(
            self.told("`fast` | 1.5e9", "`pipe` | 1"),
            ["fast: not on the page", "pipe: twice on the page"],
        )
        self.assertEqual(self.told("counters", " "), ["fast: comes from nowhere"])

    def test_differences_from_what_was_measured(self):
        rows = rows_of(self.TABLE)
        self.assertEqual(far_from_measured(rows, {"line": 1.02, "mma": 1.59}), [])
        self.assertEqual(
            far_from_measured(rows, {"line": 1.05, "mma": 1.5}),
            ["pipe: 1, but line is 1.05", "mma: 0.625, but 1/mma is 0.666667"],
        )
        self.assertEqual(far_from_measured(rows, {"line": 1}), ["mma: no figure mma"])
        two = [("a", 2.0, "micro:a, micro:b: both")]
        self.assertEqual(far_from_measured(two, {"a": 2, "b": 3}), ["a: 2, but b is 3"])


if __name__ == "__main__":
    unittest.main()
