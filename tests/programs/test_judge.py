"""./scripts/judge: right extensions of several styles, mutants and cheats."""

import argparse
import tempfile
import unittest

from copies import ROOT, main
from flash_steps import judge
from flash_steps.extension import Program, build

FOLDER = ROOT / "tests" / "extensions"
RIGHT = {  # and a part of what is said
    "rows": "causal",
    "tiles": "[B, N, H, d]",
    "wmma": "by its own check: N and d must be multiples of 16",
    "backward": "dV: largest error",
}


class Extension:
    """A built file, of which functions are judged."""

    def __init__(self, name):
        self.folder = tempfile.TemporaryDirectory()
        self.files = [str(FOLDER / name)]
        path, self.how = build(self.files, self.folder.name)
        self.program = Program(path, self.how, self.files)
        self.program.text = (FOLDER / name).read_text()
        self.judge = judge.Judge()

    def verdict(self, function):
        options = argparse.Namespace(function=function, call=None)
        (index, roles), *_ = judge.choose(self.program, self.how, options)
        called = judge.Called(self.judge, self.program, index, roles)
        return judge.judge_function(called, self.program.text)

    def close(self):
        self.program.close()
        self.judge.close()
        self.folder.cleanup()


class Judged(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        judge.SECONDS = 0.5
        cls.forward, cls.cheats = Extension("forward.cu"), Extension("cheats.cu")

    @classmethod
    def tearDownClass(cls):
        cls.forward.close()
        cls.cheats.close()

    def test_right_ones(self):
        for name, said in RIGHT.items():
            with self.subTest(name):
                verdict = self.forward.verdict(name)
                text = judge.screen(verdict, "forward.cu")
                self.assertTrue(verdict["ok"], text)
                self.assertIn(said, text)
                self.assertLessEqual(len(text.splitlines()), 24)

    def test_mutants(self):
        names = [f["name"] for f in self.forward.program.functions]
        mutants = [name for name in names if name[-1].isdigit()]
        self.assertEqual(len(mutants), 12)
        for name in mutants:
            with self.subTest(name):
                self.assertFalse(self.forward.verdict(name)["ok"])

    def test_cheats(self):
        self.assertTrue(self.cheats.verdict("honest")["ok"])
        helpers = ("honest", "run")
        cheats = [f["name"] for f in self.cheats.program.functions if f["name"] not in helpers]
        self.assertEqual(len(cheats), 14)
        for name in cheats:
            with self.subTest(name):
                self.assertFalse(self.cheats.verdict(name)["ok"])
        self.assertEqual(self.cheats.verdict("by_the_host")["kind"], "host")
        self.assertEqual(self.cheats.verdict("changes_inputs")["kind"], "changed")


if __name__ == "__main__":
    main()
