"""docs/clock.md gives each figure of clock_h200.json with its value and its microbenchmark."""

import re
import unittest

from copies import ROOT, main
from flash_steps.files import read_json

FIGURES = ROOT / "common" / "data" / "clock_h200.json"
PAGE = ROOT / "docs" / "clock.md"
MEASURED = ROOT / "docs" / "results" / "microbenchmarks_h200.json"
CLOSE = 0.03  # constants are rounded


class Page(unittest.TestCase):
    def setUp(self):
        """{name: (value, source)} of the page's table rows `name` | number | source."""
        rows = re.findall(r"(?m)^\| *`(\w+)` *\|([^|]*)\|([^|]*)\|$", PAGE.read_text("utf-8"))
        self.rows = {name: (float(value), source.strip()) for name, value, source in rows}
        self.assertEqual(len(rows), len(self.rows), "a row stands twice")

    def test_the_page_has_each_constant_with_its_value(self):
        constants = read_json(FIGURES)["figures"]
        self.assertGreater(len(constants), 20)
        self.assertEqual(constants, {name: value for name, (value, _) in self.rows.items()})

    def test_a_constant_is_the_figure_that_it_comes_from(self):
        figures = read_json(MEASURED)["constants"]
        measured = {name: figure["value"] for name, figure in figures.items()}
        measured_rows = set()
        for name, (value, source) in self.rows.items():
            with self.subTest(name):
                self.assertGreater(len(source), 2)
                for formula, inverse, figure in re.findall(
                    r"micro:\{([^}]*)\}|(1/)?micro:(\w+)", source
                ):
                    if formula:
                        want = eval(
                            formula, {"__builtins__": {}}, measured
                        )  # the page's arithmetic
                    else:
                        want = 1 / measured[figure] if inverse else measured[figure]
                    self.assertLessEqual(abs(value - want), CLOSE * abs(want), source)
                    measured_rows.add(name)
        without = set(self.rows) - measured_rows
        self.assertEqual(without, {"issue", "independent_chains", "loaded_clock"})


if __name__ == "__main__":
    main()
