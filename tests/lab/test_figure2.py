"""figure2.py in the simulator. Argument: a build folder."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILD = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.join(ROOT, "build", "sim")
SMALL = ("--backend", "sim", "--b", "1", "--h", "2", "--n", "128", "--d", "32")


def run(*args, build=BUILD):
    return subprocess.run(
        [sys.executable, os.path.join(ROOT, "scripts", "figure2.py"), *args, "--build", build],
        capture_output=True,
        text=True,
    )


class Figure2(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_more_flops_and_fewer_bytes(self):
        path = os.path.join(self.folder, "f.json")
        done = run(*SMALL, "--json", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100)
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(result["problem"]["n"], 128)
        standard, fused, fa2 = result["rows"]
        self.assertEqual([row["name"] for row in result["rows"]], ["standard", "fused", "FA-2"])
        # Forward two products and backward four; the fused one recomputes S.
        product = 2 * 2 * 128 * 128 * 32
        self.assertEqual(standard["flops"], 6 * product)
        self.assertEqual(fused["flops"], 7 * product)
        self.assertGreaterEqual(fa2["flops"], 7 * product)
        for row in (fused, fa2):
            self.assertLess(row["hbm"], standard["hbm"])
            self.assertLess(row["hbm_predicted"], standard["hbm_predicted"])
            self.assertLess(row["workspace"], standard["workspace"] / 10)
            self.assertIsNone(row["ms"])
        self.assertIn("66.6 / 75.2", done.stdout)
        self.assertIn("66.6 GFLOP does not follow", done.stdout)

    def test_what_is_not_there(self):
        for args, status, word in (
            ((*SMALL, "--d", "48"), 2, "--d 48"),
            (("--backend", "sim"), 2, "needs a GPU"),
            (("--n", "many"), 2, "--n"),
        ):
            done = run(*args)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(word, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        done = run(*SMALL, build=self.folder)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (3, 1))
        self.assertIn("is not built", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
