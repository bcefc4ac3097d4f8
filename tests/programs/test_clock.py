"""What the time of a kernel is made of: an H200's counters, and the page of the clock's figures."""

import json
import re
import unittest
from pathlib import Path

from copies import BUILD, ROOT, main
from flash_steps.commits import is_current
from flash_steps.files import read_json
from flash_steps.steps import program_of, report_of

FIGURES = ROOT / "common" / "data" / "clock_h200.json"
PAGE = ROOT / "docs" / "clock.md"
MEASURED = ROOT / "docs" / "results" / "microbenchmarks_h200.json"
CLOSE = 0.03  # constants are rounded
KERNELS = json.loads(Path(__file__).with_name("kernels_h200.json").read_text("utf-8"))

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
    words = ["--variant", variant, *KERNELS["problem"].split()]
    run = report_of(program_of(BUILD, step), *words, "--estimate-heads=0")  # all SMs, as on the GPU
    passes = [run["prepare"], run, run["backward"]]
    kernels = [kernel for one in passes if one for kernel in one["kernels"] or []]
    return [kernel for kernel in kernels if kernel["threads"]]


class KernelCounters(unittest.TestCase):
    """The simulator's counts of each kernel, against kernels_h200.json."""

    def test_lines_and_wavefronts_are_those_of_the_hardware(self):
        runs = {}
        for row in KERNELS["kernels"]:
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
        if compared == len(KERNELS["kernels"]):
            self.assertEqual(different, {*DIFFERENT}, "an excuse that is not needed any more")


class Latent(unittest.TestCase):
    def test_more_heads_change_the_limiter(self):
        """Of step 17: 64 sequences of 8,192 keys, of which one runs."""
        program, found = program_of(BUILD, "17_latent"), []
        for heads in (16, 32, 64, 128):
            size = f"--nk=8192 --h={heads} --estimate-heads={64 * heads} --input=normal"
            found.append(report_of(program, *size.split())["estimate"])
        self.assertEqual([e["limit"] for e in found], ["HBM"] * 3 + ["tensor cores"])
        times = [e["ms"] for e in found]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[3], 1.3 * times[2])  # 128 heads are two blocks of 64 rows
        self.assertLess(times[2], 1.1 * times[0])


class Page(unittest.TestCase):
    """docs/clock.md gives each figure of clock_h200.json with its value and its microbenchmark."""

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
