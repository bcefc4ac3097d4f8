#!/usr/bin/env python3
"""docs/clock.md gives each constant of common/clock/constants.h with its value, and the figure of
the microbenchmarks that it comes from."""

import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.argv = sys.argv[:1]

CONSTANTS = ROOT / "common" / "clock" / "constants.h"
PAGE = ROOT / "docs" / "clock.md"
MEASURED = ROOT / "docs" / "results" / "microbenchmarks_h200.json"
CLOSE = 0.03  # constants are rounded


def constants_of(text):
    """{name: value} of a header; a value is a number, or a quotient of two."""
    found = {}
    for name, words in re.findall(r"constexpr double (k\w+) =([^;]*);", text):
        top, *below = [float(number) for number in words.split("/")]
        if len(below) > 1 or name in found:
            raise ValueError(f"{name} ={words}")
        found[name] = top / below[0] if below else top
    return found


def rows_of(text):
    """[(name, value, source)] of a page's table rows that begin with `kName`."""
    rows = []
    for line in text.splitlines():
        row = re.fullmatch(r"\| *`(k[A-Z]\w*)` *\|([^|]*)\|([^|]*)\|", line.strip())
        if row:
            name, value, source = (cell.strip() for cell in row.groups())
            rows.append((name, float(value), source))
    return rows


def differences(constants, rows):
    """What the page says of the header that is not so, in words."""
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
        text = CONSTANTS.read_text(encoding="utf-8")
        constants = constants_of(text)
        self.assertGreater(len(constants), 20)
        self.assertEqual(len(constants), text.count("constexpr"), "a constant of another form")
        self.assertEqual(differences(constants, self.rows), [])

    def test_a_constant_is_the_figure_that_it_comes_from(self):
        figures = json.loads(MEASURED.read_text(encoding="utf-8"))["constants"]
        measured = {name: figure["value"] for name, figure in figures.items()}
        without = {name for name, _, source in self.rows if "micro:" not in source}
        self.assertEqual(without, {"kIssue", "kIndependentChains", "kLoadedClock"})
        self.assertEqual(far_from_measured(self.rows, measured), [])


class Parser(unittest.TestCase):
    HEADER = (
        "/// kNot = 3;\nconstexpr double kPipe = 1;     ///< lines\n"
        "constexpr double kMma = 1 / 1.6;\nconstexpr double kFast = 1.5e9;  // Hz\n"
    )
    TABLE = (
        "| constant | value | from |\n|:--|--:|:--|\n| `kPipe` | 1 | micro:line, a clock |\n"
        "| `kMma` | 0.625 | 1/micro:mma |\n| `kFast` | 1.5e9 | counters |\n"
        "`kPipe` is no row; | kMma | 7 | x | neither\n"
    )

    def test_constants_and_rows(self):
        self.assertEqual(constants_of(self.HEADER), {"kPipe": 1, "kMma": 0.625, "kFast": 1.5e9})
        self.assertEqual(
            rows_of(self.TABLE),
            [
                ("kPipe", 1, "micro:line, a clock"),
                ("kMma", 0.625, "1/micro:mma"),
                ("kFast", 1.5e9, "counters"),
            ],
        )
        one = "constexpr double kA = 1;"
        for text in (one.replace("1", "kB"), one.replace("1", "1 / 2 / 3"), one + one):
            with self.assertRaises(ValueError):
                constants_of(text)
        with self.assertRaises(ValueError):
            rows_of("| `kA` | one | from |")

    def told(self, old="", new="", header=("", "")):
        constants = constants_of(self.HEADER.replace(*header))
        return differences(constants, rows_of(self.TABLE.replace(old, new)))

    def test_a_formula_of_figures(self):
        rows = [("kA", 3, "micro:{a - 2}")]
        self.assertEqual(far_from_measured(rows, {"a": 5}), [])
        self.assertEqual(far_from_measured(rows, {"a": 9}), ["kA: 3, but a - 2 is 7"])

    def test_differences_of_names_and_values(self):
        self.assertEqual(self.told(), [])
        self.assertEqual(self.told("0.625", "0.63"), ["kMma: is 0.625, the page says 0.63"])
        self.assertEqual(
            self.told("`kMma`", "`kMMA`"), ["kMma: not on the page", "kMMA: no such constant"]
        )
        self.assertEqual(self.told(header=("= 1;", "= 2;")), ["kPipe: is 2, the page says 1"])
        self.assertEqual(
            self.told("`kFast` | 1.5e9", "`kPipe` | 1"),
            ["kFast: not on the page", "kPipe: twice on the page"],
        )
        self.assertEqual(self.told("counters", " "), ["kFast: comes from nowhere"])

    def test_differences_from_what_was_measured(self):
        rows = rows_of(self.TABLE)
        self.assertEqual(far_from_measured(rows, {"line": 1.02, "mma": 1.59}), [])
        self.assertEqual(
            far_from_measured(rows, {"line": 1.05, "mma": 1.5}),
            ["kPipe: 1, but line is 1.05", "kMma: 0.625, but 1/mma is 0.666667"],
        )
        self.assertEqual(far_from_measured(rows, {"line": 1}), ["kMma: no figure mma"])
        two = [("kA", 2.0, "micro:a, micro:b: both")]
        self.assertEqual(far_from_measured(two, {"a": 2, "b": 3}), ["kA: 2, but b is 3"])


if __name__ == "__main__":
    unittest.main()
