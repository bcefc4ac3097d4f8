"""docs/gpu.md says what runs on which kind of GPU: held to the programs and to the simulator."""

import concurrent.futures
import os
import re
import unittest

from basis import BUILD, ROOT, main
from flash_steps.gpu_table import find_model
from flash_steps.steps import (
    all_needs_of,
    described,
    numbered_steps,
    program_of,
    report_of,
    runs_on,
)

# The page's names, and rows of common/data/gpus.json with their architecture and shared memory.
KINDS = {"T4": "T4", "A100": "A100", "RTX 30, A10": "RTX 3090", "RTX 40, L4": "RTX 4090"}
KINDS |= {"RTX 50": "RTX 5090", "H100, H200": "H200", "B200": "B200"}
PROBLEM = ("--h=1", "--n=8", "--input=normal", "--workers=1")


def shared_bytes(gpu):
    return find_model(gpu)["sm_shared_bytes"] - find_model(gpu)["block_reserved_bytes"]


class WhatRunsWhere(unittest.TestCase):
    def setUp(self):
        self.variants = {
            step: described(program_of(BUILD, step))["variants"] for step in numbered_steps()
        }

    def able(self, step, gpu):
        arch = find_model(gpu)["arch"]
        return [v["name"] for v in self.variants[step] if runs_on(arch, v["needs"])]

    def test_the_table_is_what_the_architectures_allow(self):
        page = (ROOT / "docs/gpu.md").read_text()
        table = re.search(r"(?m)^\| step \| needs \|.*\n(\|.*\n)+", page)[0].splitlines()
        heads, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table]
        wanted = [
            f"{kind} ({find_model(gpu)['arch']}, {shared_bytes(gpu) // 1024} KB)"
            for kind, gpu in KINDS.items()
        ]
        self.assertEqual(heads, ["step", "needs", *wanted])
        self.assertEqual([row[0] for row in rows], list(self.variants))
        for step, needs, *cells in rows:
            self.assertEqual(needs, ", ".join(all_needs_of(step)) or "any GPU")
            for gpu, cell in zip(KINDS.values(), cells):
                some = self.able(step, gpu)
                whole = len(some) == len(self.variants[step])
                self.assertEqual(cell, "yes" if whole else ", ".join(some) or "-", (step, gpu))

    def test_each_fits_the_least_shared_memory_that_its_architecture_allows(self):
        """A step takes the first of its tiles that fits, so what runs there runs on those with
        more."""
        cases = []
        for step, variants in self.variants.items():
            for v in variants:
                gpus = [gpu for gpu in KINDS.values() if v["name"] in self.able(step, gpu)]
                least = min(gpus, key=shared_bytes)
                cases += [(step, f"--gpu={least}", v["name"], d) for d in v["supports"]["d"]]

        def run(case):
            step, gpu, variant, d = case
            return report_of(
                program_of(BUILD, step), gpu, f"--variant={variant}", f"--d={d}", *PROBLEM
            )

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for case, report in zip(cases, pool.map(run, cases)):
                self.assertTrue(report["ok"] is not False, case)


main()
