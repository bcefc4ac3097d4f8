#!/usr/bin/env python3
"""scripts/fit_m.py: step 04's traffic against its shared memory.

Argument: a build folder.
"""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else ROOT / "build" / "sim"
FUSED = BUILD / "steps" / "04_fused"
sys.path.insert(0, str(ROOT / "scripts"))

from flash_steps import fit_m  # noqa: E402 -- found on the path above


def run(*arguments, program=FUSED):
    return subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts" / "fit_m.py"),
            *([f"--program={program}"] if program else []),
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
    )


def points(n, d, sizes):
    """What the header of step 04's kernel predicts for one head."""
    found = []
    for smem in sizes:
        bc = fit_m.keys_of(smem, d)
        tc = -(-n // bc)
        elements = (2 + 2 * tc) * n * d + 2 * (tc + 1) * n + (tc + 1) * n * d + (2 * tc + 3) * n
        found.append({"smem": smem, "bc": bc, "predicted": 4 * elements})
    return found


class Mathematics(unittest.TestCase):
    def test_least_squares_finds_a_line(self):
        a, b, r2 = fit_m.least_squares([1, 2, 5, 7], [3 + 4 * x for x in (1, 2, 5, 7)])
        self.assertAlmostEqual(a, 3)
        self.assertAlmostEqual(b, 4)
        self.assertAlmostEqual(r2, 1)

    def test_least_squares_says_when_it_is_none(self):
        a, b, r2 = fit_m.least_squares([1, 2, 3, 4], [1, -1, -1, 1])
        self.assertAlmostEqual(b, 0)
        self.assertAlmostEqual(a, 0)
        self.assertAlmostEqual(r2, 0)

    def test_where_nothing_is_rounded_the_fit_is_the_formula(self):
        n = 1024
        for d in (32, 64, 128):
            exact = [fit_m.smem_of(bc, d) for bc in fit_m.KEYS]
            self.assertEqual([fit_m.keys_of(m, d) for m in exact], [16, 32, 64, 128])
            self.assertEqual([fit_m.keys_of(m - 1, d) for m in exact], [0, 16, 32, 64])
            found, (a, b) = fit_m.fits(points(n, d, exact), 1, n, d)
            part = found["K, V"]
            self.assertAlmostEqual(part[0] / a, 1)
            self.assertAlmostEqual(part[1] / b, 1)
            self.assertAlmostEqual(part[2], 1)
            self.assertLess(found["M"][2], 1)


class Program(unittest.TestCase):
    def refused(self, status, *arguments, words, program=FUSED):
        with self.subTest(arguments=arguments):
            done = run(*arguments, program=program)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            self.assertEqual(done.stdout, "")
            for word in words:
                self.assertIn(word, done.stderr)

    def test_runs_and_fits(self):
        done = run("--n", 130, "--d", 32, "--smem", "65536,16384,24576")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("B=1 H=1 N=130 d=32 fp32", done.stdout)
        self.assertIn("  fit ", done.stdout)
        self.assertIn("  formula ", done.stdout)
        rows = re.findall(r"(?m)^ *([\d,]+) B .* ([\d,]+) B +([\d,]+) B ", done.stdout)
        wanted = points(130, 32, [16384, 24576, 65536])
        expected = [(f"{p['smem']:,}", *[f"{p['predicted']:,}"] * 2) for p in wanted]
        self.assertEqual(rows, expected)

    def test_bad_use(self):
        small = ("--n", 20, "--d", 32)
        self.refused(2, *small, "--smem", "many", words=("many", "16384"))
        self.refused(2, *small, "--smem", "18000,19000", words=("three",))
        self.refused(2, *small, "--smem", "100,18000,19000", words=("--smem 100",))
        self.refused(2, "--d", 48, words=("--d 48",))
        self.refused(2, *small, words=("--smem",), program=BUILD / "steps" / "02_tiled")
        self.refused(3, words=("cmake --build",), program=BUILD / "nothing")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
