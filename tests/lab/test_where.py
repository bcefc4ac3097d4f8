#!/usr/bin/env python3
"""maintain where: which step runs on which kind of GPU, from programs that say so.

Argument: a build folder, whose programs are not used.
"""

import concurrent.futures
import os
import sys
import tempfile
import unittest

import basis  # noqa: F401 -- finds the packages
from flash_steps.command import Failure
from lab import where

# A step's program with two variants; "wide" needs much shared memory when d = 128.
PROGRAM = """#!/bin/sh
case "$*" in
  --describe) echo '{"variants": [{"name": "narrow", "needs": "", "supports": {"d": [64, 128]}},
    {"name": "wide", "needs": "", "supports": {"d": [64, 128]}}]}' ;;
  *--gpu=T4*wide*--d=128*)
    echo "05_x: needs 90000 bytes of shared memory for a block; this GPU has 65536" >&2; exit 3 ;;
esac
"""


class Where(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = folder.name
        os.mkdir(os.path.join(self.build, "steps"))
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.addCleanup(self.pool.shutdown)

    def program(self, text, step="05_recompute_backward"):
        path = os.path.join(self.build, "steps", step)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def cell(self, gpu, step="05_recompute_backward"):
        return where.cell(self.build, step, gpu, self.pool)

    def test_yes_or_what_is_missing(self):
        wide = '"wide", "needs": "'
        for text, gpu, said in (
            (PROGRAM, "H200", "yes"),
            (PROGRAM, "T4", "not wide d=128"),
            (PROGRAM.replace(wide, wide + "sm_90a"), "A100", "narrow"),
            (PROGRAM.replace('"needs": "', '"needs": "sm_90a') + "exit 2\n", "RTX 4090", "-"),
        ):
            self.program(text)
            self.assertEqual(self.cell(gpu), said)

    def test_a_program_that_fails_is_no_yes(self):
        no_memory = PROGRAM.replace("of shared memory for a block", "of host memory")
        for text in (
            "#!/bin/sh\nexit 139\n",
            "#!/bin/sh\n",
            PROGRAM.replace("{", "", 1),
            PROGRAM.replace("exit 3", "exit 1").replace("for a block", "somewhere"),
            no_memory,
        ):
            with self.subTest(program=text):
                self.program(text)
                with self.assertRaises(Failure):
                    self.cell("T4")


if __name__ == "__main__":
    sys.argv = sys.argv[:1]
    unittest.main()
