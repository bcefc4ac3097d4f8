"""The simulator's counts of each kernel, against an H200's counters (kernels_h200.json)."""

import json
import unittest
from pathlib import Path

from copies import BUILD, main
from flash_steps.commits import is_current
from flash_steps.steps import program_of, report_of

MEASURED = json.loads(Path(__file__).with_name("kernels_h200.json").read_text("utf-8"))

# Shared-memory loads and stores that differ, and why: {a part of the kernel's name: the reason}.
FUSED = "nvcc reads neighbouring floats at once"
SPINS = "a thread that polls an mbarrier, or a named barrier's word, counts each time"
DIFFERENT = {
    "step02_shared::output_kernel": FUSED,
    "step05_from_lse::tile_kernel": FUSED,
    "step08_queries::query_kernel": FUSED,
    "step08_keys::backward_kernel": FUSED,
    "step08_wide::backward_kernel": FUSED,
    "step08_deterministic::backward_kernel": "5 of 50953: banks were busy with a copy, perhaps",
    "step10": SPINS,
}


def counted(step, variant):
    words = ["--variant", variant, *MEASURED["problem"].split()]
    run = report_of(program_of(BUILD, step), *words, "--estimate-heads=0")  # all SMs, as on the GPU
    passes = [run["prepare"], run, run["backward"]]
    kernels = [kernel for one in passes if one for kernel in one["kernels"] or []]
    return [kernel for kernel in kernels if kernel["threads"]]


class KernelCounters(unittest.TestCase):
    def test_lines_and_wavefronts_are_those_of_the_hardware(self):
        runs = {}
        for row in MEASURED["kernels"]:
            runs.setdefault((row["step"], row["variant"]), []).append(row)
        compared, different = 0, set()
        for (step, variant), rows in runs.items():
            if not is_current(step, rows[0]["commit"]):
                print(f"{step} {variant}: measured with an earlier version of the kernel")
                continue
            kernels = counted(step, variant)
            self.assertEqual([k["name"] for k in kernels], [r["kernel"] for r in rows])
            for row, kernel in zip(rows, kernels):
                with self.subTest(variant=variant, kernel=row["kernel"]):
                    shared, lines = kernel["shared"], kernel["lines"]
                    self.assertEqual(lines["load"], row["line_loads"])
                    self.assertEqual(lines["store"], row["line_stores"])
                    self.assertEqual(shared["wgmma_wavefronts"], row["wgmma"])
                    ours = shared["load_wavefronts"], shared["store_wavefronts"]
                    same = ours == (row["shared_loads"], row["shared_stores"])
                    known = [part for part in DIFFERENT if row["kernel"].startswith(part)]
                    different.update(() if same else known)
                    self.assertTrue(same or known, f"{ours} counted, {row}")
                compared += 1
        self.assertGreater(compared, 0, "no kernel has the text that was measured")
        if compared == len(MEASURED["kernels"]):
            self.assertEqual(different, {*DIFFERENT}, "an excuse that is not needed any more")


if __name__ == "__main__":
    main()
