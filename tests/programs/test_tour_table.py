"""The tour's table: of hand-made runs, and of the steps' results beside an H200's times."""

import unittest

from copies import BUILD, ROOT, Folder, for_all, main
from flash_steps import standing, steps, tour_runs, tour_table
from flash_steps.gpu_table import peak_of
from flash_steps.results import join_for_reading, load, published, runs_of
from sample_results import gpu, rows_of, sim, with_backward, with_prepare, write


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
        self.assertIn("10.2x as fast as 01", " ".join(learned.split()))

    def cell(self, title, label, *runs):
        """The cell of a column for the row with this label."""
        groups = tour_table.groups_of(rows_of(self.folder, runs))
        (column,) = (c for c in tour_table.columns_for(groups) if c.title == title)
        return next(column.cell(r) for _, rows in groups for r in rows if r.any.label == label)

    def test_most_sms_without_a_block_are_told(self):
        for busy, words in ((132, ""), (66, ""), (65, ", 65 of 132 SMs busy")):
            run = sim()
            run["estimate"]["kernels"][1]["sms"] = busy
            self.assertEqual(self.cell("limited by", "01 naive", run), "L1 lines" + words)

    def test_factors_are_of_times_of_one_kind(self):
        """None where only one of the two was measured."""
        six = {"step": "06_work_partitioning", "variant": "registers"}
        fast, measured = spends(sim(**six), HBM=0.2), gpu(**six, median_ms=0.1)
        for runs, factor in (
            ([sim(), fast], "2.00x"),
            ([sim(), measured], "-"),
            ([gpu(median_ms=0.5), measured], "5.00x"),
        ):
            self.assertEqual(self.cell("factor", "06 registers", *runs), factor)

    def test_why_a_row_is_slower(self):
        two = {"step": "02_tiled", "variant": "registers"}
        first = spends(sim(), HBM=0.2, start=0.1)
        for later, why in (
            (spends(sim(**two), HBM=0.2, start=0.1), ""),  # as fast
            (spends(sim(**two), HBM=0.1, start=0.1), ""),
            (spends(sim(**two), HBM=0.2, start=0.11), "launch +10.0 us since 01"),
            (spends(sim(**two), HBM=0.1, start=0.1, waiting=0.3), "waiting +300 us since 01"),
            (spends(sim(variant="other"), HBM=0.25, start=0.1), "HBM +50.0 us since naive"),
        ):
            rows = rows_of(self.folder, [first, later])
            rows.sort(key=lambda row: row.any.data == later)
            self.assertEqual(tour_table.why_slower(rows[1], rows[0]), why)
            self.assertEqual(tour_table.why_slower(rows[0], None), "")

    def test_slower_than_any_above_by_a_tenth(self):
        def told(*times):
            names = ("01_naive", "02_x", "03_x", "04_x", "05_x")
            runs = [gpu(step=name, median_ms=ms) for name, ms in zip(names, times)]
            return tour_table.out_of_order([("", rows_of(self.folder, runs))])

        self.assertEqual(told(10, 11), [])
        self.assertEqual(told(10, 11.01), ["02 naive takes longer than 01 naive"])
        self.assertEqual(told(10, 5, 5.4, 9, 6), ["05 naive takes longer than 02 naive"])

    def test_headings_and_notes(self):
        def heading(run, on=None):
            return tour_table.heading(rows_of(self.folder, [run])[0], on)

        size, a_b200 = "B=1 H=4 N=1024 d=64 causal", sim()
        a_b200["estimate"]["gpu"] = "B200"
        for run, on, words in (
            (sim(), None, f"Bytes of {size}; times estimated for an H200"),
            (sim(estimate_heads=64), None, f"of {size}; times estimated for 64 heads, on an H200"),
            (a_b200, None, "times estimated for a B200"),
            ({**sim(), "estimate": None}, None, f"Bytes of {size}"),
            (gpu(), "X", f"Measured on X: {size}; bytes are per head"),
            (gpu(n=4096, nk=4096), "X", "causal, as in README's picture; bytes are per head"),
        ):
            self.assertTrue(heading(run, on).endswith(words), heading(run, on))
        for a, b, text in ((1, 3, "0.333x"), (3, 1, "3.00x"), (0, 1, "-"), (1, 0, "-")):
            self.assertEqual(tour_table.times(a, b), text)
        four = {"step": "04_fused", "variant": "fused"}
        six = sim(step="06_work_partitioning", variant="registers")
        for bytes_of_04, noted in ((65999999, True), (66000001, False)):
            fused = sim(**four)
            fused["traffic"]["hbm"]["model"] = {"read": bytes_of_04, "write": 0}
            rows = rows_of(self.folder, [fused, six])
            notes = tour_table.notes_of(rows, rows)
            self.assertEqual(any("04: O moves" in note for note in notes), noted)

    def test_a_note_needs_each_of_its_rows(self):
        for runs, note, needs in (
            (self.ladder(), "04: O moves once", "04 06"),
            (self.ladder(), "12: quantising", "10 12"),
            (self.on_a_gpu(), "04 reads and writes O", "03 04 06"),
        ):
            for run in runs:
                said = " ".join(self.screen(*(x for x in runs if x is not run))[0].split())
                self.assertEqual(note in said, run["step"][:2] not in needs.split(), run["step"])

    def test_the_sentence_of_what_was_learned(self):
        runs = [
            spends(sim(), HBM=8.0),
            spends(sim(step="02_tiled", variant="registers"), HBM=2.0),
            spends(sim(step="06_work_partitioning", variant="registers"), HBM=0.5),
            spends(sim(step="07_tensor_cores", variant="lazy", dtype="bf16"), HBM=0.25),
            spends(sim(step="10_warp_specialized", variant="scheduled"), HBM=0.1),
        ]
        runs[2]["traffic"]["hbm"]["model"] = {"read": 20000000, "write": 0}
        said = tour_table.learned(rows_of(self.folder, runs))
        for words in (
            "4.00x as fast as 01 with",
            "3.00x fewer HBM bytes than 02",
            "(10) is 80.0x as",
        ):
            self.assertIn(words, said)
        said = tour_table.learned(rows_of(self.folder, runs[:4]))
        self.assertIn("on tensor cores, it (07) is 32.0x as fast as 01.", said)
        self.assertNotIn("tensor", tour_table.learned(rows_of(self.folder, runs[:3])))
        self.assertEqual(tour_table.learned(rows_of(self.folder, runs[1:])), "")

    def test_of_ranks(self):
        runs = sim(), sim(step="14_ring", variant="plain", ranks=[1])
        self.assertIn("14 plain", self.screen(*runs)[0])

    def on_a_gpu(self):
        """Four steps on a card, a cache, and what the card cannot run."""
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
            "a copy where TB/s are given",
            "this GPU does not run 10;",
            "above 100%: a copy",
        ):
            self.assertIn(words, " ".join(table.split()))
        self.assertEqual(
            tour_table.out_of_order(tour_table.groups_of(rows_of(self.folder, runs))), []
        )

    def test_of_a_gpu_without_counters(self):
        runs = self.on_a_gpu()[:7]
        for run in runs:
            run["traffic"]["hbm"]["measured"], run["traffic"]["note"] = None, "refused"
        runs[3]["ok"] = False
        runs[4]["time"]["median_ms"] = 26.5
        table, _ = self.screen(*runs, width=90)
        self.assertIn(
            "HBM of 01, 02, 03, 04, 06, 07 is predicted, each operand once: refused", table
        )
        self.assertIn("469 kB   28.0 ms     19.6    30%   21.4x  WRONG", table)
        groups = tour_table.groups_of(rows_of(self.folder, runs))
        wrong = ["06 registers takes longer than 03 one_pass"]  # and 04 may
        self.assertEqual(tour_table.out_of_order(groups), wrong)


class Standing(Folder):
    def test_a_run_of_a_slowed_card_is_known(self):
        peak = peak_of("NVIDIA H200")
        for first, second, slowed in (
            ({}, {}, [False, False]),
            ({}, {"bf16_flops": 6.8e14}, [False, True]),  # of 7.6e14
            ({"bf16_flops": 6.8e14}, {}, [True, False]),
            ({}, {"bf16_flops": 6.9e14, "copy_bytes_per_s": None}, [False, False]),
            ({"fp32_flops": 0.89 * peak}, {"fp32_flops": 0.91 * peak}, [True, False]),
        ):
            paths = [str(self.folder / name) for name in ("1.json", "2.json")]
            for path, roofs in zip(paths, (first, second)):
                data = gpu()
                data["roofs"] |= roofs
                write(path, data)
            in_order = [run.data["slowed"] for run in standing.runs_of(paths)]
            self.assertEqual(in_order, sorted(slowed, reverse=True))  # the last one counts
            runs = [run for path in paths for run in load(path)]
            standing.mark_slowed(runs)
            self.assertEqual([run.data["slowed"] for run in runs], slowed)
        found = [("c", standing.OLDER), ("b", None), ("a", standing.OLDER)]
        self.assertEqual(standing.standing_text(found), f"\n\n*O{standing.OLDER[1:]}: a, c.*")


class Runs(unittest.TestCase):
    """The runs of the tour, and their sizes."""

    def test_the_longest_that_a_card_has_room_and_time_for(self):
        room = 8 * 16384 * 2048 // 64 * 4096 + 36 * 16384 * 2048  # S and P, and the other tensors
        for sms, free, n, why in (
            (132, room, 4096, ""),
            (132, room - 1, 2048, "18.4 GB of free memory"),
            (32, 1e12, 4096, ""),
            (31, 1e12, 2048, "31 SMs"),
            (15, 1e12, 1024, "15 SMs"),
            (1, 1e12, 512, "1 SMs"),
            (31, 1e9, 512, "31 SMs and 1.00 GB of free memory"),
        ):
            self.assertEqual(tour_runs.longest({"sms": sms, "free_bytes": free}), (n, why))

    def test_arguments(self):
        for lengths, window, device, words in (
            (False, False, None, "--b=1 --h=4 --n=4096 --d=64 --causal"),
            (False, False, {}, "--b=1 --h=4 --n=4096 --d=64 --causal"),
            (False, False, {1: 1}, "--b=4 --h=32 --n=4096 --d=64"),
            (False, True, {1: 1}, "--b=4 --h=32 --n=4096 --d=64 --causal --window=1024,0"),
            (True, False, None, "--b=1 --h=8 --hkv=2 --n=1 --nk=131072 --d=64 --causal"),
            (True, False, {1: 1}, "--b=4 --h=32 --hkv=8 --n=1 --nk=32768 --d=64 --causal"),
        ):
            step = {"supports": {"lengths": lengths, "window": window}}
            self.assertEqual(" ".join(tour_runs.arguments(step, 4096, device)), words)
        latent = {"supports": {"d": [576], "lengths": True, "window": False}}
        self.assertEqual(
            " ".join(tour_runs.arguments(latent, 1024, None)),
            "--b=1 --h=16 --hkv=1 --n=1 --nk=32768 --d=576 --causal",
        )
        for words, one in (
            ("--b=4 --h=32 --n=4096", "--b=1 --h=1 --n=4096 --e"),
            ("--b=4 --h=32 --hkv=8 --n=1", "--b=1 --h=4 --hkv=1 --n=1 --e"),
            ("--b=4 --h=8 --hkv=1 --n=1", "--b=1 --h=8 --hkv=1 --n=1 --estimate-heads=32"),
        ):
            self.assertEqual(" ".join(tour_runs.one_head(words.split(), "--e")), one)

    def test_variants(self):
        def names(step="x", window=False, everything=False, forward_of=None, last=(32, 64)):
            made = [{"name": name, "supports": {"d": [64]}} for name in "abc"]
            made += [{"name": "e", "supports": {"d": [*last]}, "forward_of": forward_of}]
            if step == "13_decode":
                made[1]["name"], made[2]["name"] = "early", "fp8"
            of = {"step": step, "supports": {"window": window}, "variants": made}
            return " ".join(v["name"] for v in tour_runs.variants_of(of, everything))

        self.assertEqual(names(), "e")
        self.assertEqual(names(last=(32,)), "c")
        latent = {"step": "x", "supports": {"window": False}}
        latent["variants"] = [{"name": name, "supports": {"d": [576]}} for name in "ab"]
        self.assertEqual([v["name"] for v in tour_runs.variants_of(latent, False)], ["b"])
        self.assertEqual(names(everything=True), "a b c e")
        self.assertEqual(names(window=True), "a e")
        self.assertEqual(names(forward_of="05 b"), "b e")
        self.assertEqual(names("13_decode"), "early fp8")
        self.assertEqual(names("13_decode", everything=True), "a early fp8 e")


class Recorded(unittest.TestCase):
    def test_of_a_recorded_gpu(self):
        """The tour's table from an H200's results, without a card: the ladder's order."""
        rows = [
            row
            for row in standing.rows_of(published(ROOT / "docs" / "results"))
            if row.gpu_get("device.name") == "NVIDIA H200"
            and tour_table.sizes_of(row) == "B=4 H=32 N=4096 d=64"
        ]
        table, learned = tour_table.tour_screen(rows)
        groups = tour_table.groups_of(rows)
        for found in groups, tour_table.groups_of(rows[::-1]):
            self.assertEqual([words for words, _ in found], ["forward", "backward"])
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
    """docs/results has an H200's times of 16 x 32 heads of the simulated tour's size."""

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
            known = {label.split()[1] for label in measured if label.startswith(step[:2])}
            variants = steps.described(program)["variants"]
            last = [variant for variant in variants if variant["name"] in known][-1]
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
