"""compare.py and report.py on hand-made JSON."""

import json
import os
import re
import subprocess
import sys

from copies import SCRIPTS, Folder, for_all, main, typed
from flash_steps import gpu_table, problems, results
from flash_steps import text as texts
from flash_steps.command import BadInput
from flash_steps.text import three_digits
from sample_results import few_blocks, gpu, sim, with_backward, with_prepare, write


def run(script, *args):
    return typed("maintain", script, *args)


def own_series(page):
    """The data of a page about its runs."""
    data = re.search(r'id="page">(.*?)</script>', page, re.S)[1]
    return json.loads(data)["series"][1]


class Scripts(Folder):
    def file(self, name, data):
        return write(self.folder / name, data)

    def compare(self, *runs, options=(), status=0):
        """compare.py on one file per argument: its output, or why it refuses."""
        files = [self.file(f"{i}.json", data) for i, data in enumerate(runs)]
        done = typed("compare.py", *options, *files)
        if status == 2:
            self.refused(done, status)
            self.assertEqual(done.stdout, "")
            return done.stderr
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def row(self, text, label):
        """The one line that starts with `label`."""
        lines = [line for line in text.splitlines() if line.startswith(label)]
        self.assertEqual(len(lines), 1, text)
        return lines[0]


def labels(text):
    return [line.split("  ")[0] for line in text.splitlines() if "ok" in line]


class Table(Scripts):
    def cells(self, *data, label="01 naive"):
        """{column: cell} of the row with this label, and the whole output on one line."""
        shown = " ".join(self.compare(list(data)).split())
        rows = results.join_for_reading(results.load(self.file("0.json", list(data))))
        columns, _ = results.columns_for(rows)
        (row,) = (row for row in rows if row.any.label == label)
        return {column.title: column.cell(row) for column in columns}, shown

    def test_counted_and_measured_share_a_row(self):
        cells, shown = self.cells(sim(), gpu())
        expected = """step: 01 naive, requested read: 2.00 GB, requested write: 40.0 MB,
            warp requests: 5.00 M, sectors/request: 8.0, HBM modelled: 60.0 MB,
            HBM measured: 62.0 MB, workspace: 33.6 MB, estimated time: 400 us,
            limited by: L1 lines, busy SMs: 132, measured time: 500 us, estimated/measured: 0.80x,
            TFLOP/s: 1.07, check: ok"""
        pairs = " ".join(expected.split()).split(", ")
        self.assertEqual(cells, dict(pair.split(": ") for pair in pairs))
        head = (
            "B=1 H=4 N=1024 d=64 causal fp32, estimated for H200 (132 SMs), measured on NVIDIA H200"
        )
        self.assertIn(head + " requested", shown)

    def test_what_is_said_of_times(self):
        """Never mixes estimated and measured, two GPUs, or numbers of heads; "~": less certain."""
        a10, partly, older = sim(), sim(step="02_x"), sim()
        a10["estimate"].update(gpu="A10", verified=False)
        partly["estimate"]["kernels"][0]["arithmetic"] = False
        del older["estimate"], older["estimate_heads"]
        own = {key: sim()[key] for key in ("estimate", "estimate_heads")}  # by --estimate
        a100 = gpu("NVIDIA A100-SXM4-40GB", 0.8)
        heads, limit = sim(estimate_heads=64), "L1 lines 132"
        time = f"400 us {limit}"
        both = "estimated for H200 (132 SMs), measured on NVIDIA A100-SXM4-40GB"
        never = "~: times estimated for A10 were never measured ~ in 02"
        without = "~ in 02: without plain arithmetic, so a GPU may take longer"
        more = "01: estimated for more heads than were measured, so not shown"
        names = ("estimated for", "estimated time", "limited by", "busy SMs", "measured time")
        for runs, cells, shown in (
            ([sim()], time, "!measured !TFLOP !250us !>= !~"),
            ([few_blocks(sim())], "400 us waiting 4", "!measured !>="),
            ([sim(), gpu(median_ms=0.8)], f"{time} 800 us 0.50x", "!~"),
            ([sim(b=2), gpu(b=2, median_ms=0.8)], f"{time} 800 us 0.50x", "!shown"),
            ([sim(), a100], f"{time} 800 us", both),
            ([{**gpu(median_ms=0.2), **own}], f"{time} 200 us 2.00x", "!~"),
            ([older, gpu()], "500 us", "!~"),
            ([a10, partly], f"A10 (72 SMs) ~{time}", never),
            ([partly], f"~{time}", without),
            ([heads, gpu()], "500 us", more),
            ([heads], time, ", estimated for 64 heads on H200 (132 SMs)"),
            ([heads], time, "!shown"),
            ([heads, partly], f"64 heads on H200 (132 SMs) {time}", "~ in 02"),
        ):
            with self.subTest(cells=cells, shown=shown):
                found, text = self.cells(*runs, label=runs[0]["step"][:2] + " naive")
                found = [found.get(name) for name in (*names, "estimated/measured")]
                self.assertEqual(" ".join(filter(None, found)), cells)
                for word in shown.split() if shown[0] == "!" else [shown]:
                    check = self.assertNotIn if word[0] == "!" else self.assertIn
                    check(word.lstrip("!"), text)

    def test_what_parts_runs(self):
        """Sizes, shared memory, lengths and pages do, and have columns; input and seed do not."""
        paged = {"lengths": [1024, 0], "page": 64, "cache8": True}
        page = [sim(), sim(**paged), gpu(**paged), sim(lengths=[1024, 1], page=64), gpu(page=16)]
        for runs, expected in (
            ([sim(), gpu(input="normal", seed=7)], [["naive"]]),
            ([sim(), gpu(n=2048, nk=2048)], [["naive", "1024"], ["naive", "2048"]]),
            ([sim(), sim(smem=32768), gpu(smem=32768)], [["naive", "-"], ["naive", "32768"]]),
            (page, ["naive - -", "naive - 16", "naive 1024,0 64", "naive 1024,1 64"]),
        ):
            expected = [row.split() if isinstance(row, str) else row for row in expected]
            lines = self.compare(runs).splitlines()
            rows = [line.split()[1 : 1 + len(expected[0])] for line in lines if line[:2] == "01"]
            self.assertEqual(sorted(rows), expected)
        for size in ("b=2", "h=8", "hkv=2", "n=512", "nk=2048", "d=128", "causal=0", "dtype=bf16"):
            key, value = size.split("=")
            other = gpu(**{key: value if key == "dtype" else int(value)})
            found = [line for line in self.compare([sim(), other]).splitlines() if line[:2] == "01"]
            self.assertEqual(len(found), 2, size)
        for run, head in (
            ({"smem": 32768}, "B=1 H=4 N=1024 d=64 smem=32768 causal fp32"),
            (paged, "lengths=1024,0 page=64 causal fp32 fp8 cache"),
        ):
            self.assertIn(head, self.compare(sim(**run)))

    def test_each_gpu_and_each_direction_has_its_row(self):
        data = with_backward(sim(step="02_tiled", variant="shared"))
        data["backward"]["estimate"]["ms"] = 0.75
        for runs, rows in (
            ([sim(), gpu(), gpu("NVIDIA A100", 1.5)], ("NVIDIA H200 .*500 us", "A100 .*1.50 ms")),
            ([data], ("02 shared  .*400 us", "02 shared bwd .*750 us")),
        ):
            lines = [line for line in self.compare(*runs).splitlines() if line[0:1] == "0"]
            self.assertEqual(len(lines), 2)
            for line, words in zip(lines, rows):
                self.assertRegex(line, words)

    def test_a_later_run_of_the_same_replaces_the_earlier(self):
        cells, _ = self.cells(gpu(), gpu(median_ms=0.25))
        self.assertEqual(cells["measured time"], "250 us")

    def test_figures_have_three_digits(self):
        shown = [three_digits(x) for x in (0.12345, 3.14159, 999.4, 999.5, 999.6, 3141.6, 3.1)]
        self.assertEqual(shown, ["0.123", "3.14", "999", "1,000", "1,000", "3,142", "3.1"])
        shown = [three_digits(x, always=True) for x in (3.1, 31, 314, 0.5)]
        self.assertEqual(shown, ["3.10", "31.0", "314", "0.500"])
        for value, shown in (
            *((0, "0 B"), (1, "1 B"), (999, "999 B"), (1000, "1.00 kB"), (0.5, "0.50 B")),
            *((9.996, "10.0 B"), (99.96, "100 B"), (9996, "10.0 kB"), (9.994, "9.99 B")),
            *((999499, "999 kB"), (999500, "1.00 MB"), (5e9, "5.00 GB"), (1e12, "1.00 TB")),
            *((2e15, "2000 TB"), (-2048, "-2.05 kB"), (None, "-")),
        ):
            self.assertEqual(texts.bytes_text(value), shown)
        shown = [texts.count_text(x) for x in (7, 1000, 2.5e6, 3e9, 4e12)]
        self.assertEqual(shown, ["7", "1.00 K", "2.50 M", "3.00 G", "4.00 T"])
        shown = [texts.time_text(x) for x in (0.0005, 0.001, 0.9995, 1, 1500, None, 2e6)]
        self.assertEqual(shown, ["0.50 us", "1 us", "1.00 ms", "1.00 ms", "1.50 s", "-", "2000 s"])
        self.assertEqual(
            [texts.percent_text(x) for x in (0.1234, 1, None)], ["12.3%", "100.0%", "-"]
        )
        self.assertEqual(texts.flops_text(1.5e12) + texts.flops_text(None), "1.5-")
        self.assertEqual(texts.range_text([3, 1, 2], str), "1 to 3")
        self.assertEqual(texts.range_text([1, 1], str), "1")

    def test_lines_in_common(self):
        for one, other, common in (
            *(("abcd", "abcd", 4), ("abcd", "xbyd", 2), ("abcd", "dcba", 1), ("aab", "aba", 2)),
            *(("a" * 70 + "b", "b" + "a" * 70, 70), ("", "a", 0), ("a", "", 0)),
        ):
            self.assertEqual(texts.common_lines(one, other), common)

    def test_tables(self):
        columns = [
            texts.Column(("", "name"), lambda r: r[0], left=True),
            texts.Column(("re-", "quests"), lambda r: r[1]),
            texts.Column(("a/", "b"), lambda r: r[2]),
        ]
        rows = [("x", "12345678", "1"), ("longer", "9", "22")]
        shown = ["             re-  a/", "name      quests   b", "-" * 20]
        shown += ["x       12345678   1", "longer         9  22"]
        self.assertEqual(texts.text_table(columns, rows).splitlines(), shown)
        shown = ["| name | requests | a/b |", "|:--|--:|--:|", "| x | 12345678 | 1 |"]
        shown.append("| longer | 9 | 22 |")
        self.assertEqual(texts.markdown_table(columns, rows).splitlines(), shown)
        self.assertEqual(texts.aligned([("a", "b"), ("cc", "ddd")]), ["a     b", "cc  ddd"])
        self.assertEqual(max(map(len, texts.for_screen("word " * 40).splitlines())), 79)

    def test_gpus(self):
        for device, name, sms in (
            ("NVIDIA H200", "H200", 132),
            ("NVIDIA A100-SXM4-80GB", "A100-80GB", 108),
            ("NVIDIA GeForce RTX 4090", "RTX 4090", 128),
            ("Voodoo 2", None, None),
        ):
            self.assertEqual(gpu_table.model_of(device), name)
            self.assertEqual(gpu_table.sms_of(name), sms)
        self.assertEqual(gpu_table.find_model("H200")["arch"], "sm_90")
        self.assertGreater(gpu_table.peak_of("NVIDIA H200"), 6e13)
        self.assertIsNone(gpu_table.peak_of(None))
        with self.assertRaisesRegex(BadInput, "--gpu Voodoo2: .* has no such row"):
            gpu_table.find_model("Voodoo2")

    def test_problems_in_words(self):
        p = {"b": 2, "h": 8, "hkv": 2, "n": 64, "nk": 128, "d": 32, "causal": False}
        p["dtype"] = "bf16"
        words = "B=2 H=8 Hkv=2 N=64 Nk=128 d=32"
        same = {**p, "hkv": 8, "nk": 64, "causal": True}
        self.assertEqual(problems.problem_text(p), words + " bf16")
        self.assertEqual(problems.problem_text(same), "B=2 H=8 N=64 d=32 causal bf16")
        omit = {"B", "causal", "type", "Nk"}
        self.assertEqual(problems.problem_text({**p, "causal": True}, omit), "H=8 Hkv=2 N=64 d=32")
        more = {"smem": 4096, "lengths": [1, 5], "page": 16, "cache8": True}
        shown = f"{words} smem=4096 lengths=1,5 page=16 bf16 fp8 cache"
        self.assertEqual(problems.problem_text({**p, **more}), shown)
        flags = "--b=2 --h=8 --hkv=2 --n=64 --nk=128 --d=32"
        self.assertEqual(" ".join(problems.flags(p)), flags)
        shown = f"{flags} --smem=4096 --page=16 --lengths=1,5"
        self.assertEqual(" ".join(problems.flags({**p, **more})), shown)
        self.assertEqual(problems.flags({"n": 5, "causal": True}), ["--n=5", "--causal"])
        self.assertEqual(problems.tag(p), "b2_h8_n64_d32_hkv2_nk128")
        self.assertEqual(problems.tag(same), "b2_h8_n64_d32_causal")
        self.assertEqual(problems.tag({**same, "smem": 7}), "b2_h8_n64_d32_causal_m7")
        forward = 4 * 2 * 8 * 64 * 128 * 32
        for problem, way, flops in (
            (p, "forward", forward),
            (p, "backward", 2.5 * forward),
            ({**p, "causal": True}, "forward", forward / 2),
            ({**p, "scores": 10}, "backward", 2.5 * 4 * 2 * 8 * 32 * 10),
            ({**p, "lengths": [100, 28]}, "forward", forward / 2),
        ):
            self.assertEqual(problems.flops_of(problem, way), flops)
        mask = {"mask": "alibi.txt", "cap": 30, "alibi": True, "sinks": 4, "window": [1, 2]}
        shown = "window=1,2 mask=alibi.txt cap=30 alibi sinks"
        self.assertEqual(problems.mask_text({**p, **mask}), shown)
        self.assertEqual(problems.mask_text(p), "")
        for n, d, b, h in ((1024, 64, 16, 32), (16384, 128, 1, 16), (32768, 4096, 1, 1)):
            made = problems.series(n, d, True)
            self.assertEqual(made, {"b": b, "h": h, "n": n, "d": d, "causal": True})
            self.assertEqual(problems.in_series(made), n <= 16384)
        self.assertFalse(problems.in_series({**problems.series(1024, 64, 0), "h": 31}))
        documents = problems.documents_of
        self.assertEqual(documents({"row_starts": [0, 5, 6, 8, 11]}), "5,1,2,3")
        self.assertEqual(documents({"row_starts": [0, 5, 6, 8, 11, 15]}), "1..5 (5)")
        self.assertEqual(problems.lengths_text({"lengths": [4, 3, 2, 1]}), "4,3,2,1")

    def test_columns_of_sizes(self):
        """One per varying size; a size that follows another has none."""
        for runs, titles, common in (
            ((sim(), sim(n=64, nk=64)), ["step", "N"], "B=1 H=4 d=64 causal fp32"),
            ((sim(), sim(nk=64)), ["step", "Nk"], "B=1 H=4 N=1024 d=64 causal fp32"),
            ((sim(), sim(h=8, hkv=8)), ["step", "H"], "B=1 N=1024 d=64 causal fp32"),
            ((sim(), sim(h=8)), ["step", "H"], "B=1 N=1024 d=64 causal fp32"),
            ((sim(), sim(causal=False, b=2)), ["step", "B", "causal"], "H=4 N=1024 d=64 fp32"),
            ((sim(), sim(dtype="bf16", d=32)), ["step", "d", "type"], "B=1 H=4 N=1024 causal"),
        ):
            rows = results.join([results.Run(run, "forward") for run in runs])
            columns, said = results.columns_for(rows)
            names = [column.title for column in columns]
            self.assertEqual(names[: len(titles)], titles)
            self.assertEqual(names[len(titles)], "requested read")
            self.assertTrue(said.startswith(common + ","), said)
        self.assertEqual(results.columns_for([]), ([results.STEP], ""))

    def test_verdicts(self):
        for oks, checkable, word in (
            ((True, True), True, "ok"),
            ((True, False), True, "WRONG"),
            ((True, False), False, "not checkable"),
            ((None, None), True, "WRONG"),
        ):
            one, other = sim(ok=oks[0]), gpu(ok=oks[1])
            one["checkable"] = other["checkable"] = checkable
            row = results.Row(results.Run(one, "forward"), results.Run(other, "forward"))
            self.assertEqual(results.verdict(row), word)

    def test_busy_sms_in_words(self):
        for busy, words in ((132, "L1 lines"), (131, "L1 lines, 131 of 132 SMs"), (0, "L1 lines")):
            run = sim()
            run["estimate"]["kernels"][1]["sms"] = busy
            self.assertEqual(
                results.limit_in_words(results.Row(results.Run(run, "forward"))), words
            )

    def test_labels_are_short_and_stand_in_the_order_of_reading(self):
        runs, expected = [], []
        for step, variants in (
            ("05_recompute_backward", ("standard", "recompute")),
            ("06_work_partitioning", ("swapped", "registers", "backward")),
            ("mine", ("kernel", "another")),
        ):
            for i, variant in enumerate(variants):
                runs.append(with_backward(sim(step=step, variant=variant, variant_index=i)))
                label = f"{step.split('_')[0]} {variant}"
                expected += [label, label + " bwd"]
        self.assertEqual(labels(self.compare(runs[::-1])), expected)
        runs = [sim(step="02_x", variant=name) for name in ("shared", "registers", "another")]
        shown = self.compare(runs)  # in files without the order
        self.assertEqual(labels(shown), ["02 another", "02 registers", "02 shared"])

    def test_a_forward_that_is_another_variants_stands_there(self):
        own = sim(step="04_fused", variant="fused", forward_of=None)
        borrowed = with_backward(sim(step="05_x", variant="recompute", forward_of="04 fused"))
        shown = self.compare([own, borrowed])
        self.assertEqual(labels(shown), ["04 fused", "05 recompute bwd"])
        # It is checked nevertheless, and can be requested.
        wrong = {**borrowed, "ok": False}
        self.compare(wrong, status=1)
        shown = self.compare(borrowed, wrong, options=["--diff"], status=1)
        self.assertIn("A: 05 recompute (", shown)
        runs = results.load(self.file("a.json", with_backward(sim(forward_of="04 fused"))))
        for join, directions in (
            (results.join, ["forward", "backward"]),
            (results.join_for_reading, ["backward"]),
        ):
            self.assertEqual([row.any.direction for row in join(runs)], directions)

    def test_a_prepare_has_a_row_of_its_own_and_no_speed(self):
        """Older files lack the key: all other tests."""
        step = {"step": "12_fp8", "variant": "blocks"}
        made = [with_backward(with_prepare(make(**step))) for make in (sim, gpu)]
        shown = self.compare(*made)
        self.assertEqual(labels(shown), ["12 blocks prep", "12 blocks", "12 blocks bwd"])
        self.assertIn("20 us", self.row(shown, "12 blocks prep"))
        self.assertIn("500 us", self.row(shown, "12 blocks  "))
        cells = self.cells(with_prepare(gpu(**step)), label="12 blocks prep")[0]
        self.assertEqual(cells["TFLOP/s"], "-")
        none = {**with_prepare(sim(**step)), "prepare": None}
        runs = results.load(self.file("none.json", none))
        self.assertEqual([r.direction for r in runs], ["forward"])
        self.compare(*made, options=["--diff"], status=2)  # of two kinds
        shown = self.compare(made[0], made[0], options=["--diff"])
        pairs = re.findall("^A: (.*?) \\(", shown, re.M)
        self.assertEqual(pairs, ["12 blocks", "12 blocks prep", "12 blocks bwd"])
        # It is listed with its forward where that is another variant's.
        data = with_backward(with_prepare(sim(forward_of="12 blocks")))
        rows = results.join_for_reading(results.load(self.file("a.json", data)))
        self.assertEqual([row.any.direction for row in rows], ["backward"])

    def test_lengths_take_turns(self):
        one = results.Run(sim(lengths=[5, 0, 7, 5, 0, 7]), "forward")
        self.assertEqual(one.key, results.Run(sim(lengths=[5, 0, 7]), "forward").key)
        for other in ([5, 0, 7, 5], [7, 5, 0], [5], None):
            self.assertNotEqual(one.key, results.Run(sim(lengths=other), "forward").key)
        older = sim()
        for key in ("lengths", "page", "cache8"):
            del older["problem"][key]
        self.assertEqual(results.Run(sim(), "forward").key, results.Run(older, "forward").key)
        p = one.data["problem"]
        self.assertTrue(problems.tag({**p, "page": 16}).endswith("_causal_l5-0-7_p16"))
        many = [{**p, "lengths": [1, 2, 3, 4, last]} for last in (5, 6)]
        self.assertEqual(len({problems.tag(each) for each in many}), 2)
        self.assertEqual(problems.lengths_text(many[0]), "1..5 (5)")
        p = {**p, "causal": False, "b": 6}
        self.assertEqual(problems.flops_of(p, "forward"), 4 * 4 * 1024 * 24 * 64)
        self.assertFalse(problems.own_tiles(p))
        self.assertTrue(problems.own_tiles(older["problem"]))

    def test_masks_tell_problems_apart(self):
        plain, packs = sim(), [sim(), sim()]
        for pack, at in zip(packs, (5, 6)):
            pack["problem"] |= {"row_starts": [0, at, 8, 15, 21, 1024], "window": [256, 0]}
        keys = {results.Run(data, "forward").key for data in (plain, *packs)}
        self.assertEqual(len(keys), 3)
        # Each alone makes another problem.
        each = [("mask", "a.npy"), ("cap", 30), ("alibi", True), ("sinks", 4), ("window", [8, 0])]
        each += [("row_starts", [0, 1024]), ("key_starts", [0, 1024])]
        for key, value in each:
            one = sim()
            one["problem"][key] = value
            keys.add(results.Run(one, "forward").key)
        self.assertEqual(len(keys), 3 + len(each))
        p = packs[0]["problem"]
        self.assertEqual(problems.mask_text(p), "window=256,0 documents=3..1003 (5)")
        self.assertIn(" window=256,0 ", problems.problem_text(p))
        self.assertFalse(problems.own_tiles(p))
        p = {**p, "row_starts": [0, 512, 612, 712], "window": None, "scores": 7}
        self.assertEqual(problems.mask_text(p), "documents=512,2x100")
        many = {**p, "row_starts": [0, *range(512, 1013, 100)]}
        self.assertEqual(problems.mask_text(many), "documents=512,5x100")
        self.assertEqual(problems.flops_of(p, "forward"), 4 * p["b"] * p["h"] * p["d"] * 7)

    def test_a_wrong_run_shows_and_fails(self):
        self.assertIn("WRONG", self.row(self.compare(sim(ok=False), status=1), "01 naive"))

    def test_copies_by_tma_are_no_requests_and_a_note_says_so(self):
        plain = sim(step="07_tensor_cores", variant="lazy")
        copied = sim(step="09_tma_wgmma", variant="tma")
        for data in (plain, copied):
            buffers = data["traffic"]["requested"]["buffers"]
            for name in buffers:
                buffers[name]["requests"] = {"load": 4, "store": 4, "atomic": 0}
        self.assertEqual(results.notes_on(results.join([results.Run(plain, "forward")])), [])
        buffers["Q"]["requests"]["load"] = 0
        rows = results.join([results.Run(data, "forward") for data in (plain, copied)])
        self.assertRegex(results.notes_on(rows)[0], r"^09: .*TMA.* not as warp requests$")

    def test_atomics_have_a_column_where_there_are_any(self):
        data = with_backward(sim(step="06_work_partitioning", variant="backward"), atomic=7)
        self.assertNotIn("atomic", self.cells(data, label="06 backward bwd")[0])
        data["backward"]["traffic"]["requested"]["counted"]["atomic"] = 9000000
        for label, atomic in (("06 backward bwd", "9.00 MB"), ("06 backward", "-")):
            self.assertEqual(self.cells(data, label=label)[0]["atomic"], atomic)

    def test_results_with_a_header(self):
        runs = [sim(), sim(step="03_online_softmax", variant="one_pass")]
        self.assertIn("03 one_pass", self.compare({"device": "NVIDIA H200", "runs": runs}))

    def test_a_work_log(self):
        row = {"date": "2026-01-02", "function": "f", "verdict": "right", "requested": 2000}
        row |= {"hbm": 1000, "ms": 2, "limit": "HBM", "note": "first"}
        failed = {**row, "verdict": "wrong", "ms": None, "limit": None, "note": "a b"}
        said = self.compare({"worklog": [row, {**row, "ms": 1}, failed]})
        head, first, second, third = said.splitlines()
        words = "date function verdict requested HBM estimated limit note"
        self.assertEqual(head.split(), words.split())
        words = "2026-01-02 f right 2.00 kB 1.00 kB 2.00 ms"
        self.assertEqual(first.split(), [*words.split(), "#" * 20, "HBM", "first"])
        self.assertIn(" 1.00 ms  " + "#" * 10 + " " * 12, second)
        self.assertNotIn("#", third)
        self.assertTrue(third.endswith(" -      a b"), third)
        self.assertIn(" a b", self.compare({"worklog": [failed]}))

    def test_bad_files_get_one_sentence(self):
        path = self.folder / "bad.json"
        no_run, prediction = "holds no run of a step", [sim(), sim(ok=None)]  # from --predict
        for text, words in (
            (None, "No such file"),
            *((text, "is not JSON") for text in ("{", "[]x")),
            *((text, no_run) for text in ("{}", '{"step": 1}', "3")),
            (json.dumps(prediction), "holds a prediction and no run"),
        ):
            if text:
                path.write_text(text)
            done = typed("compare.py", path)
            self.refused(done, 2, "bad.json", words)
            self.assertEqual(done.stdout, "", text)


class Diff(Scripts):
    def diff(self, *runs, status=0):
        return self.compare(*runs, options=["--diff"], status=status)

    def test_two_runs_side_by_side(self):
        after = sim(step="02_tiled")
        after["traffic"]["requested"]["counted"]["read"] = 500000000
        shown = self.diff(sim(), after)
        about = " naive (B=1 H=4 N=1024 d=64 causal fp32, simulator, estimated for H200)"
        self.assertEqual(shown.splitlines()[:2], ["A: 01" + about, "B: 02" + about])
        for name, cells in (
            ("requested read", "2.00 GB 500 MB 0.25x"),
            ("requested atomic", "0 B 0 B -"),
            ("warp requests", "5.00 M 5.00 M 1x"),
            ("sectors", "40.0 M 40.0 M 1x"),
            ("HBM modelled", "60.0 MB 60.0 MB 1x"),
            ("workspace", "33.6 MB 33.6 MB 1x"),
            ("FLOPs executed", "1.07 G 1.07 G 1x"),
            ("estimated time", "400 us 400 us 1x"),
            ("host's wall time", "900 ms 900 ms 1x"),
            ("  S", "540 MB 540 MB 1x"),
        ):
            self.assertEqual(" ".join(self.row(shown, name).split()), f"{name.strip()} {cells}")
        self.assertNotIn("measured", shown)
        measured = self.diff(sim(), gpu(median_ms=1.2345))  # one run each, of any kind
        line = " ".join(self.row(measured, "measured time").split())
        self.assertEqual(line, "measured time - 1.23 ms -")
        self.assertIn("NVIDIA H200)\n", measured)
        after = sim(estimate_heads=64)
        after["estimate"].update(gpu="A10", ms=1.0)
        shown = self.diff(sim(), after)
        self.assertIn("400 us  1.00 ms   2.5x", self.row(shown, "estimated time"))
        self.assertIn("simulator, estimated for A10, 64 heads)\n", shown)

    def test_a_reader_that_goes_away_is_no_error(self):
        read, write_end = os.pipe()
        os.close(read)
        command = [sys.executable, SCRIPTS / "compare.py", self.file("run.json", sim())]
        done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
        os.close(write_end)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_many_runs_pair_by_step_and_problem(self):
        shown = self.diff([sim(), sim(n=64), sim(step="09_x")], [sim(n=64), sim()])
        self.assertEqual(shown.count("A: "), 2)
        self.assertNotIn("09 naive", shown)
        told = self.diff([sim(), sim(n=64)], [sim(n=65), sim(n=66)], status=2)
        self.assertIn("no step and problem is in both files", told)
        self.diff(sim(), status=2)


@for_all
class Pictures(Scripts):
    """What is drawn: tests/lab/test_tables.py, from the published results."""

    def test_what_cannot_be_drawn(self):
        def run_of(step, variant, n=4096, name="NVIDIA H200"):
            size = {"b": 16384 // n, "h": 32, "hkv": 32, "n": n, "nk": n, "causal": False}
            return gpu(name, 10, step=step, variant=variant, **size)

        forwards = ("01_naive", "naive"), ("06_work_partitioning", "registers")
        runs = [run_of(*of, n) for of in forwards for n in (1024, 2048, 4096)]
        for data, word in (
            ([gpu()], "no measured time"),
            ([run for run in runs if run["problem"]["n"] < 4096], "N = 4096"),
            ([*runs, run_of(*forwards[0], name="NVIDIA A100")], "one picture shows one GPU"),
        ):
            self.file("r.json", data)
            done = run("plots", "--out", self.folder / "new", "--results", self.folder)
            self.refused(done, 2, word)


class Report(Scripts):
    """./scripts/maintain report, which tour.sh calls"""

    def add(self, name, data=None, text=""):
        if data:
            self.file(name + ".json", data)
        self.write(name + ".txt", text)

    def report(self):
        """(the labels of the table, the page)"""
        page = self.folder / "report.html"
        done = self.ended(run("report", "--all", "--out", page, self.folder))
        rows = [line.split("  ")[0] for line in done.stdout.splitlines() if line.startswith("0")]
        return rows, page.read_text()

    def test_table_and_page(self):
        for step, variant, more in (
            *(("01_naive", "naive", {}), ("02_tiled", "registers", {})),
            ("02_tiled", "shared", {"ok": False}),
            *(("06_x", v, {"variant_index": i}) for i, v in enumerate(("swapped", "registers"))),
        ):
            name = f"{step}.{variant}.sim"
            data = sim(step=step, variant=variant, **more)
            self.add(name, data, f"the text of {name} & <more>")
        self.add("03_online_softmax.one_pass.sim", text="nothing")
        rows, text = self.report()
        expected = ["01 naive", "02 registers", "02 shared", "06 swapped", "06 registers"]
        self.assertEqual(rows, expected)
        own = own_series(text)
        self.assertEqual(own["wrong"], ["02 shared"])
        texts = {name: (said, ok) for name, said, ok in own["texts"]}
        said = "the text of 01_naive.naive.sim & <more>"
        self.assertEqual(texts["01_naive naive, sim"], (said, True))
        self.assertEqual(texts["03_online_softmax one_pass, sim"], ("nothing", False))
        names = list(texts)
        self.assertLess(*(names.index(f"06_x {v}, sim") for v in ("swapped", "registers")))
        for outside in ("http:", "https:", "src=", "url(", "@import"):
            self.assertNotIn(outside, text)

    def test_the_page_shows_estimated_times_and_what_limits_them(self):
        slow = few_blocks(sim(step="04_fused", dtype="bf16"))
        slow["estimate"]["kernels"][0]["arithmetic"] = False
        for data in (sim(), slow):
            self.add(f"{data['step']}.naive.sim", data)
        own = own_series(self.report()[1])
        limits = [run["limit"] for run in own["runs"]]
        self.assertEqual(limits, ["L1 lines", "waiting, 4 of 132 SMs"])
        cells = [dict(zip(own["head"], row)) for row in own["cells"] if len(row) > 1]
        self.assertEqual([row["estimated time"] for row in cells], ["400 us", "~400 us"])
        self.assertNotIn("measured time", own["head"])
        self.assertIn("~ in 04: without plain arithmetic", " ".join(own["notes"]))
        # Beside it the measurements.
        self.add("01_naive.naive.gpu", gpu())
        own = own_series(self.report()[1])
        cells = dict(zip(own["head"], own["cells"][1]))  # after the line of its problem
        times = [cells[f"{which} time"] for which in ("estimated", "measured")]
        self.assertEqual(times, ["400 us", "500 us"])
        self.assertEqual(own["runs"][0]["ms"], 0.5)

    def test_the_page_names_another_gpu(self):
        for model, ends in ("H200", "N = 1024, causal"), ("L4", "N = 1024, causal, as on L4"):
            self.add("01_naive.naive.sim", sim(model_gpu=model))
            self.assertTrue(own_series(self.report()[1])["name"].endswith(ends), model)

    def test_nothing_to_show(self):
        self.refused(run("report", "--out", self.folder / "r.html", self.folder), 1)


if __name__ == "__main__":
    main()
