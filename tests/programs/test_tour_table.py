"""The tour's table: of runs made by hand, and of the steps' results beside an H200's times."""

import unittest

from copies import BUILD, ROOT, Folder, for_all, main
from flash_steps import standing, steps, tour_table
from flash_steps.results import join_for_reading, published, runs_of
from sample_results import gpu, rows_of, sim, with_backward, with_prepare


def spends(data, **parts):
    """The run with these milliseconds of its parts, in a kernel of 1000 blocks."""
    total = sum(parts.values())
    shares = {part: spent / total for part, spent in parts.items()}
    kernel = {"name": "k", "ms": total, "blocks": 1000, "sms": 132, "arithmetic": True}
    data["estimate"].update(ms=total, limit=max(parts, key=parts.get))
    data["estimate"]["kernels"] = [{**kernel, "parts": shares}]
    return data


class Made(Folder):
    def screen(self, *runs, width=80):
        said = tour_table.tour_screen(rows_of(self.folder, runs))
        self.assertLessEqual(max(map(len, "\n".join(said).splitlines())), width)
        return said

    def ladder(self):
        few = sim(step="04_fused", variant="fused")
        few["estimate"]["ms"] = 0.9
        few["estimate"]["kernels"][1].update(blocks=4, ms=0.8)
        kinds = {"dtype": "bf16"}
        last = spends(
            sim(step="12_fp8", variant="late", fp8=True, **kinds), waiting=0.0305, HBM=0.02
        )
        return [
            spends(sim(), HBM=4.0, waiting=0.1),
            spends(sim(step="02_tiled", variant="registers"), HBM=0.4),
            few,
            with_backward(spends(sim(step="06_work_partitioning", variant="registers"), HBM=0.2)),
            spends(sim(step="10_warp_specialized", variant="scheduled", **kinds), HBM=0.04),
            with_prepare(last),
            spends(sim(step="13_decode", variant="early", n=1, variant_index=0), waiting=0.1),
            spends(sim(step="13_decode", variant="fp8", n=1, variant_index=1), HBM=0.05),
            sim(step="14_ring", variant="plain", **kinds),
            *map(self.window, range(3), ("window", "packed", "wgmma")),
        ]

    def window(self, place, variant):
        run = sim(step="15_masks", variant=variant, variant_index=place, dtype="bf16")
        run["problem"]["window"] = [256, 0]
        return with_backward(run)

    def test_a_row_per_result_with_the_reason_where_it_is_slower(self):
        table, learned = self.screen(*self.ladder())
        shown = {" ".join(line.split()[:2]): line for line in table.splitlines()}
        for name, figures, why in (
            ("01 Textbook", "60.0 MB 4.10 ms 1.00x", "HBM"),
            ("02 Tiled", "60.0 MB 400 us 10.2x", "HBM"),
            ("04 FlashAttention-1", "60.0 MB 900 us 4.56x", "one block per head"),
            ("06 FlashAttention-2", "60.0 MB 200 us 20.5x", "HBM"),
            ("12 fp8", "60.0 MB 50.5 us 81.2x", "waiting +30.5 us since 10"),
            ("13 Decoding", "60.0 MB 100 us 1.00x", "waiting"),
            ("13 Decoding,", "60.0 MB 50 us 2.00x", "HBM"),
        ):
            self.assertTrue(" ".join(shown[name].split()).endswith(f" {figures} {why}"))
        heads = [line for line in table.splitlines() if "(factor against" in line]
        first = ["forward", "backward", "B=1", "B=1", "B=1"]
        self.assertEqual([x.split()[0] for x in heads], first)
        self.assertIn("causal window=256,0 (factor against 15)", heads[3])
        self.assertIn("causal window=256,0, backward (factor against 15)", heads[4])
        self.assertEqual(table.count("15 Window"), 4)
        self.assertNotIn("14 plain", table)
        self.assertIn("mpirun", table)
        for note in ("04: O moves once per tile of keys", "12: quantising Q, K and V takes 30 us"):
            self.assertIn(note, " ".join(table.split()))
        self.assertIn("10.2x as fast as 01", " ".join(learned.split()))

    def cell(self, title, label, *runs):
        """What stands in a column of the table for the row with this label."""
        groups = tour_table.groups_of(rows_of(self.folder, runs))
        (column,) = (c for c in tour_table.columns_for(groups) if c.title == title)
        return next(column.cell(r) for _, rows in groups for r in rows if r.any.label == label)

    def test_most_sms_without_a_block_are_told(self):
        for busy, words in ((132, ""), (100, ""), (66, ""), (65, ", 65 of 132 SMs busy")):
            run = sim()
            run["estimate"]["kernels"][1]["sms"] = busy
            self.assertEqual(self.cell("limited by", "01 naive", run), "L1 lines" + words)

    def test_factors_are_of_times_of_one_kind(self):
        """Where only one of two is measured there is none."""
        six = {"step": "06_work_partitioning", "variant": "registers"}
        fast, measured = spends(sim(**six), HBM=0.2), gpu(**six, median_ms=0.1)
        for runs, factor in (
            ([sim(), fast], "2.00x"),
            ([sim(), measured], "-"),
            ([gpu(median_ms=0.5), measured], "5.00x"),
        ):
            self.assertEqual(self.cell("factor", "06 registers", *runs), factor)

    def test_of_ranks(self):
        runs = sim(), sim(step="14_ring", variant="plain", ranks=[1])
        self.assertIn("14 plain", self.screen(*runs)[0])

    def on_a_gpu(self):
        """Four steps as a card runs them, a cache, and what it cannot run."""
        size = {"b": 4, "h": 32, "hkv": 32, "n": 4096, "nk": 4096, "causal": False}
        size["flops"] = 5.5e11
        cache = {**size, "hkv": 8, "n": 1, "nk": 32768, "dtype": "bf16", "rate_of": "a copy"}
        more = {**size, "b": 1, "h": 1, "hkv": 1, "dtype": "bf16", "estimate_heads": 128}
        return [
            gpu(median_ms=600, **size),
            gpu(step="02_tiled", variant="registers", median_ms=30, **size),
            gpu(step="03_online_softmax", variant="one_pass", median_ms=24, **size),
            gpu(step="04_fused", variant="fused", median_ms=28, **size),
            gpu(step="06_work_partitioning", variant="registers", median_ms=15, **size),
            gpu(step="07_tensor_cores", variant="lazy", median_ms=0.7, dtype="bf16", **size),
            sim(step="10_warp_specialized", variant="scheduled", **more),
            gpu(step="13_decode", variant="early", median_ms=0.0155, variant_index=0, **cache),
            gpu(step="13_decode", variant="fp8", median_ms=0.0124, variant_index=1, **cache),
        ]

    def test_of_a_gpu(self):
        runs = self.on_a_gpu()
        table, learned = self.screen(*runs)
        shown = {" ".join(line.split()[:2]): " ".join(line.split()) for line in table.splitlines()}
        for name, figures in (
            ("01 Textbook", "fp32 15.9 MB 484 kB 600 ms 0.917 1% 1.00x"),
            ("07 Tensor", "bf16 15.9 MB 484 kB 700 us 786 103% 857x"),
            ("10 FlashAttention-3", "bf16 2.04 GB 60.0 MB (400 us) - - -"),
            ("13 Decoding", "bf16 15.9 MB 484 kB 15.5 us 4.00 TB/s 95% 1.00x"),
            ("13 Decoding,", "bf16 15.9 MB 484 kB 12.4 us 5.00 TB/s 119% 1.25x"),
        ):
            self.assertTrue(shown[name].endswith(f" {figures}"), shown[name])
        self.assertNotIn("~", table)
        for words in (
            "Measured on NVIDIA H200: B=4 H=32 N=4096 d=64, as in README's picture",
            "cuBLAS in bf16, a copy where TB/s are given",
            "(): this GPU does not run 10; simulated, and estimated for an H200",
            "04 reads and writes O once per tile of keys, 1.00x the HBM bytes of 06",
            "above 100%: a copy and cuBLAS are programs",
        ):
            self.assertIn(words, " ".join(table.split()))
        self.assertIn("on tensor cores, it (07) is 857x as fast", " ".join(learned.split()))
        self.assertEqual(
            tour_table.out_of_order(tour_table.groups_of(rows_of(self.folder, runs))), []
        )

    def test_of_a_gpu_without_counters(self):
        runs = self.on_a_gpu()[:5]
        for run in runs:
            run["traffic"]["hbm"]["measured"], run["traffic"]["note"] = None, "refused"
        runs[3]["ok"] = False
        runs[4]["time"]["median_ms"] = 26.5
        table, _ = self.screen(*runs, width=90)
        self.assertIn("HBM of 01, 02, 03, 04, 06 is predicted, each operand once: refused", table)
        self.assertIn("469 kB  28.0 ms     19.6    30%   21.4x  WRONG", table)
        groups = tour_table.groups_of(rows_of(self.folder, runs))
        wrong = ["06 registers takes longer than 03 one_pass"]  # and 04 may
        self.assertEqual(tour_table.out_of_order(groups), wrong)


class Recorded(unittest.TestCase):
    def test_of_a_recorded_gpu(self):
        """The tour's table of results of an H200, without a card: the ladder's order."""
        rows = [
            row
            for row in standing.rows_of(published(ROOT / "docs" / "results"))
            if row.gpu_get("device.name") == "NVIDIA H200"
            and tour_table.sizes_of(row) == "B=4 H=32 N=4096 d=64"
        ]
        table, learned = tour_table.tour_screen(rows)
        groups = tour_table.groups_of(rows)
        self.assertEqual([words for words, _ in groups], ["forward", "backward"])
        ladder = ["01 02 03 04 06 07 09 10 12".split(), "05 06 08 11".split()]
        self.assertEqual([[tour_table.number_of(r) for r in part] for _, part in groups], ladder)
        self.assertEqual(tour_table.out_of_order(groups), [])
        for words in ("~", "never", "estimated"):
            self.assertNotIn(words, table)
        self.assertIn("04 reads and writes O once per tile of keys", table)
        said = " ".join(learned.split())
        self.assertRegex(
            said, r"96.\dx fewer HBM bytes than 02, and 2.0\dx as fast; .* is 6\d\dx as"
        )


@for_all
class Order(Folder):
    """docs/results holds an H200's times of 16 x 32 heads of the simulated tour's size."""

    def test_the_estimates_have_the_order_of_an_h200(self):
        measured = {
            row.any.label: row.ms
            for row in standing.rows_of(published(ROOT / "docs" / "results"))
            if row.gpu_get("device.name") == "NVIDIA H200"
            and tour_table.sizes_of(row) == "B=16 H=32 N=1024 d=64 causal"
        }
        runs = []
        for step in steps.numbered_steps()[:12]:
            program = steps.program_of(BUILD, step)
            last = steps.described(program)["variants"][-1]
            forward = (last["forward_of"] or "").split()
            for variant in forward[1:] * (forward[:1] == [step[:2]]) + [last["name"]]:
                size = ("--causal", "--n", "1024", "--h", "1", "--estimate-heads", "128")
                report = steps.report_of(program, "--variant", variant, *size)
                runs += runs_of(report, program)
        groups = tour_table.groups_of(join_for_reading(runs))
        self.assertEqual([words for words, _ in groups], ["forward", "backward"])
        slower, otherwise = {}, []
        for _, rows in groups:
            for before, row in zip(rows, rows[1:]):
                names = before.any.label, row.any.label
                there = measured[names[1]] > measured[names[0]]
                why = tour_table.why_slower(row, before)
                self.assertEqual(bool(why), row.estimated_ms > before.estimated_ms)
                slower |= {names[1]: why} if why else {}
                otherwise += [names[1]] if there != bool(why) else []
        self.assertEqual(slower.pop("04 fused"), "one block per head")
        self.assertEqual((slower, otherwise), ({}, []))


if __name__ == "__main__":
    main()
