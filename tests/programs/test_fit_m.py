"""scripts/fit_m.py: step 04's traffic against its shared memory."""

import re

from copies import Folder, for_all, main, typed
from flash_steps import fit_m
from flash_steps.results import Run


def predicted(keys, n, d=fit_m.D):
    """The header's prediction of step 04's kernel for one head."""
    tc = -(-n // keys)
    elements = (2 + 2 * tc) * n * d + 2 * (tc + 1) * n + (tc + 1) * n * d + (2 * tc + 3) * n
    return 4 * elements


class Fit(Folder):
    def test_a_fit_of_three_points(self):
        a, b, square = fit_m.least_squares([1, 2, 3], [2, 3, 7])  # residuals 0.5, -1, 0.5 of 14
        self.assertAlmostEqual(a, -1)
        self.assertAlmostEqual(b, 2.5)
        self.assertAlmostEqual(square, 1 - 1.5 / 14)

    def test_where_nothing_is_rounded_the_fit_is_the_formula(self):
        n = 1024
        runs = []
        for keys in fit_m.KEYS:
            requested = {"predicted": {"read": predicted(keys, n)}, "counted": {"read": keys}}
            traffic = {"requested": requested, "hbm": {"model": {"read": 1500, "write": 500}}}
            runs.append((keys, Run({"traffic": traffic}, "forward")))
        found, (a, b) = fit_m.fits(runs, n)
        part = found["K, V"]
        self.assertAlmostEqual(part[0] / a, 1)
        self.assertAlmostEqual(part[1] / b, 1)
        self.assertAlmostEqual(part[2], 1)
        self.assertLess(found["M"][2], 1)
        row = fit_m.table(runs, n).splitlines()[-1].replace(" B", "").split()
        # 128 keys' K, V (of 68 floats), P (of 144 floats), m and l; N^2 d^2 over this.
        smem = 2 * 128 * 68 + 64 * 144 + 2 * 64
        shown = (4 * smem, 128, 8, predicted(128, n), 128, n * n * 64 * 64 / smem)
        self.assertEqual(row, [*(f"{x:,.0f}" for x in shown), "2.00", "kB"])
        fit, other, formula = fit_m.fit_lines(found, (a, b)).splitlines()[2:]
        self.assertEqual(other.split()[-1], "1.00000")
        self.assertEqual(other.split()[3:5], formula.split()[3:5])
        self.assertNotEqual(fit.split()[-2:], other.split()[-2:])

    @for_all
    def test_runs_and_fits(self):
        """With the tiles that the step chooses for these sizes of shared memory."""
        done = self.ended(typed("fit_m.py", "--n", "130"))
        self.assertIn("B=1 H=1 N=130 d=64 fp32", done.stdout)
        rows = re.findall(r"(?m)^ *[\d,]+ B +(\d+) .* ([\d,]+) B +([\d,]+) B ", done.stdout)
        expected = [(str(keys), *[f"{predicted(keys, 130):,}"] * 2) for keys in fit_m.KEYS]
        self.assertEqual(rows, expected)
        for words in ("  fit ", "  formula "):
            self.assertIn(words, done.stdout)

    def test_bad_use(self):
        self.refused(typed("fit_m.py", "--n", "0"), 2, "--n 0")


if __name__ == "__main__":
    main()
