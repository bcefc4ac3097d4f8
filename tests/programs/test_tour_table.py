"""The tour's table: of runs made by hand, and of the steps' results beside an H200's times."""

from copies import BUILD, ROOT, Folder, for_all, main
from flash_steps import standing, steps, tour_table
from flash_steps.results import join_for_reading, published, runs_of
from sample_results import few_blocks, gpu, rows_of, sim, with_backward, with_prepare


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
            spends(sim(step="13_decode", variant="warps", n=1, variant_index=0), waiting=0.1),
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
        """Where the first row has no measured time, all are of the estimates."""
        six = {"step": "06_work_partitioning", "variant": "registers"}
        fast = spends(sim(**six), HBM=0.2)
        runs = [sim(), fast, gpu(**six, median_ms=0.1)]
        self.assertEqual(self.cell("factor", "06 registers", *runs), "2.00x")
        self.assertEqual(self.cell("factor", "06 registers", *runs, gpu(median_ms=0.5)), "5.00x")

    def test_of_ranks_and_of_a_gpu(self):
        self.assertIn(
            "14 plain", self.screen(sim(), sim(step="14_ring", variant="plain", ranks=[1]))[0]
        )
        runs = [few_blocks(sim(step="01_naive")), gpu()]
        runs += [few_blocks(sim(step="06_work_partitioning", variant="registers"))]
        runs += [gpu(step="06_work_partitioning", variant="registers", median_ms=0.4)]
        table, learned = self.screen(*runs)
        self.assertNotIn("estimated  measured", table)  # where all are measured
        for words in ("NVIDIA H200", "62.0 MB", "waiting, 4 of 132 SMs busy"):
            self.assertIn(words, table)
        runs += [sim(step="04_fused", variant="fused", ok=False)]
        for words in ("WRONG", "estimated  measured  factor"):
            self.assertIn(words, self.screen(*runs, width=100)[0])
        self.assertEqual(learned, "")


@for_all
class Order(Folder):
    """docs/results holds an H200's times of 16 x 32 heads of the tour's size."""

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
        self.assertRegex(slower.pop("12 late"), r"^waiting \+.* us since 10$")
        self.assertEqual((slower, otherwise), ({}, ["12 late"]))  # a note below the table says so


if __name__ == "__main__":
    main()
