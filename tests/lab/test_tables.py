"""maintain tables on results made by hand: what it refuses, and what it says of older results. That
it fills tables and figures rightly the pages show: as if the results were of this tree's kernels,
which test.sh --all asks, too (--check)."""

import functools
import math
import re
from unittest import mock

from basis import HERE, ROOT, Folder, for_all, gpu, main, maintain, sim, typed, with_prepare, write
from flash_steps import rungs, standing
from flash_steps.command import BadInput
from flash_steps.files import read_json, read_text
from flash_steps.problems import flops_of
from flash_steps.results import PICTURES, load
from lab import estimates, ladder_tables, tables
from sample_results import rows_of

OLDER = "of an earlier version of the kernel"
PEER = {"b": 1, "h": 32, "hkv": 32, "d": 64, "causal": True, "dtype": "bf16", "ms": 1.0}
PEER |= {"direction": "forward", "flops_per_s": 4e14, "of_matmul": 0.5}
RUNGS = "| rung | idea |\n|---|---|\n| `naive` | S |"


def of_series(n=1024, **changes):
    return gpu(**{**dict(b=16384 // n, h=32, hkv=32, n=n, nk=n, causal=False), **changes})


def peers(rows, **result):
    about = {"matmul": {}, "device": "NVIDIA H200", "torch": "2.11", "rounds": 2, "iters": 10}
    return {"device": "NVIDIA H200", "runs": [gpu()], "peers": {**about, "rows": rows}, **result}


def peers_rows(commit=HERE):
    """Steps 07 and 10 against flash, in two cells: medians of 2x and 1.5x, least 1.2x."""
    rows = []
    for step, variant in (("07_tensor_cores", "mma"), ("10_warp_specialized", "persistent")):
        for n, ratios in ((512, (1.9, 2, 2.1)), (1024, (1.2, 1.5, 1.6))):
            row = {**PEER, "n": n, "nk": n, "step": step, "variant": variant, "commit": commit}
            repeats = [{**row, "run": str(i), "ratios": {"flash": r}} for i, r in enumerate(ratios)]
            row |= {"problem": f"N={n}", "label": step, "repeats": repeats}
            rows.append({**row, "ratios": {"flash": ratios[1]}})
    return rows


class Pages(Folder):
    def fill(self, text, data):
        write(self.folder / "r.json", data)
        return tables.fill(text, tables.Results(self.folder))

    def table(self, spec, data, old="old"):
        text = self.fill(f"<!-- table: {spec} -->\n{old}\n<!-- /table -->\n", data)
        return text.removeprefix(f"<!-- table: {spec} -->\n").removesuffix("\n<!-- /table -->\n")

    def figure(self, spec, data):
        text = self.fill(f"is <!-- figure: {spec} -->old<!-- /figure --> so\n", data)
        return re.sub(r"<!-- .*? -->", "", text).removeprefix("is ").removesuffix(" so\n")

    def test_bad_markers_get_one_sentence(self):
        other = gpu()
        other["traffic"]["sectors"]["load"] += 1
        both = [of_series(causal=causal) for causal in (True, False)]
        once = peers(peers_rows())
        twice = peers([*peers_rows(), {**peers_rows()[0], "d": 8}])
        for make, spec, data, words in (
            (self.table, "nosuch", sim(), "choose from"),
            (self.table, "steps n", sim(), "key=value"),
            (self.table, "steps n=3", sim(), "no result"),
            (self.table, "steps x=3", sim(), "choose from"),
            (self.table, "peers n=77", once, "no result passes"),
            (self.table, "peers", twice, "two results of"),
            (self.table, "scale", gpu(n=2048), "no measured run"),
            (self.table, "scale", of_series(smem=65536), "no measured run"),
            (self.table, "scale figure=x", of_series(), "choose from"),
            (self.table, "scale d=64", both, "two results of"),
            (self.table, "ladder section=x", sim(), "choose from forward, backward"),
            (self.table, "fastest device=NVIDIA_H200", once, "no result of 10_warp"),
            (self.figure, "most step=x", once, "choose from"),
            (self.figure, "mean step=07_tensor_cores", once, "name the backend"),
            (self.figure, "mean against=cudnn", once, "no ratio"),
            (self.figure, "counters", [sim(), other], "or a figure differs"),
            (self.figure, "counters", [sim(), gpu(n=512, nk=512)], "nothing was counted"),
        ):
            with self.assertRaisesRegex(BadInput, words, msg=spec):
                make(spec, data)

    def test_a_run_of_this_text_at_full_speed_is_taken_first(self):
        older, slow, good = gpu(median_ms=0.1), gpu(median_ms=0.2), gpu(median_ms=0.5)
        older["commit"] = None
        slow["roofs"]["bf16_flops"] = 5.8e14
        other = gpu(step="02_tiled")  # at full speed, on the same card
        for runs, time, said in (
            ([good, slow, older], "500 us", None),
            ([slow], "200 us", "\n\n*Measured while the GPU was slowed down: 01 naive.*"),
            ([older], "100 us", f"\n\n*O{OLDER[1:]}: 01 naive.*"),
        ):
            text = self.table("steps step=01_naive", runs + [other])
            self.assertIn(time, text)
            self.assertTrue(text.endswith(said or "ok |"), text)

    def test_the_last_figure_of_a_paragraph_says_what_is_older(self):
        data = peers(peers_rows(commit=None))
        one = "<!-- figure: least against=flash step={} -->x<!-- /figure -->"
        first, second = one.format("07_tensor_cores"), one.format("10_warp_specialized")
        text = self.fill(f"a {first}, b {second}.\n\nc {first}\n", data)
        said = f"{OLDER}: 07_tensor_cores"
        self.assertEqual(
            re.sub(r"<!-- .*? -->", "", text),
            f"a 1.20x, b 1.20x ({said}, 10_warp_specialized).\n\nc 1.20x ({said})\n",
        )
        self.assertIn(f"*O{said[1:]}.*", self.table("means step=07_tensor_cores", data))
        end = "<!-- figure: standing -->x<!-- /figure -->\n"
        text = self.fill(f"a {first}.\n\nb {second} {end}", data)
        text = re.sub(r"<!-- .*? -->", "", text)
        self.assertEqual(text.count("earlier"), 1)
        self.assertTrue(text.endswith(f"O{said[1:]}, 10_warp_specialized\n"), text)

    def test_a_speed_of_several_occasions(self):
        known = {**PEER, "n": 512, "nk": 512, "step": "07_tensor_cores", "variant": "v"}
        known |= {"commit": HERE, "label": "07 v", "ratios": {}, "repeats": []}
        fast, slow = ({**known, "ms": ms} for ms in (1, 2))
        write(self.folder / "occasions_h200.json", {"device": "NVIDIA H200", "rows": [slow]})
        flops = flops_of(fast, "forward") * 1e-9  # of 1 ms, in TFLOP/s
        text = self.figure("occasions step=07_tensor_cores device=NVIDIA_H200", peers([fast]))
        self.assertEqual(text, f"{flops / 2:.3g} to {flops:.3g}")

    def test_rungs_keep_the_pages_columns(self):
        spec = "rungs step=10_warp_specialized n=1024"
        page = f"<!-- table: {spec} -->\n{{}}\n<!-- /table -->\n"
        rows = [{**row, "label": f"{row['step'][:2]} {row['variant']}"} for row in peers_rows()]
        wide = {**rows[3], "d": 128, "ms": 0.5, "flops_per_s": 8e14}
        rival = {**rows[3], "device": "NVIDIA H200", "ratios": {"flash3": 1.5, "flash4": 2}}
        rivals = {"device": "NVIDIA H200", "rows": [{**rival, "b": 16}]}
        write(self.folder / "rivals_h200.json", rivals)
        flops = 2 * 16 * 32 * 1024**2 * 64 / 1.5e9
        written = ["| rung | idea |", "|---|---|", "| 07 `mma` | one |", "| `persistent`, two | |"]
        written += ["| `third` | a \\| b |", "| FlashAttention-3 | |"]
        data = peers([*rows, wide])
        filled = self.fill(page.format("\n".join(written)), data)
        head, _, *found = filled.splitlines()[1:-1]
        titles = "| rung | idea | d = 64: time | TFLOP/s | d = 128: time | TFLOP/s |"
        rows = ["| 07 `mma` | one | 1.00 ms | 400 | - | - |"]
        rows += ["| `persistent`, two |  | 1.00 ms | 400 | 500 us | 800 |"]
        rows += ["| `third` | a \\| b | - | - | - | - |"]
        rows += [f"| FlashAttention-3 |  | 1.50 ms | {flops:.3g} | - | - |"]
        self.assertEqual((head, found), (titles, rows))
        self.assertEqual(self.fill(filled, data), filled)
        for text, more, said in (
            ("| variant | idea |", "", "write its rows first"),
            ("\n".join(written), " by=dtype", "two results of"),
            ("\n".join(written[:2]), "", "no result passes"),
            ("\n".join(written), " from=x", "choose from peers"),
            ("\n".join(written), " figures=x", "choose from time"),
        ):
            with self.assertRaisesRegex(BadInput, said):
                self.fill(page.format(text).replace(" -->", f"{more} -->", 1), data)

    def test_rungs_of_runs_have_bytes(self):
        filled = self.table("rungs step=01_naive from=runs figures=time,hbm", of_series(), RUNGS)
        self.assertEqual(filled.splitlines()[0], "| rung | idea | time | HBM bytes |")
        self.assertRegex(filled, r"\| `naive` \| S \| 500 us \| [\d.]+ [kMG]B \|")
        rival = {**peers_rows()[0], "step": None, "label": "torch math"}
        data, page = peers([rival], runs=[of_series()]), RUNGS + "\n| torch math | |"
        beside = self.table("rungs step=01_naive from=runs figures=time,hbm", data, page)
        self.assertIn("| torch math |  | 1.00 ms | - |", beside)

    def test_rungs_of_decoding_have_fp8_by_its_program(self):
        known = {"step": "13_decode", "d": 128, "ms": 1.0, "of_copy": 0.5, "standing": None}
        rows = [
            {**known, "what": what, "variant": variant, "label": f"13 {variant}", "ms": ms}
            for what, variant, ms in (("peers", "once", 1), ("fp8", "once", 2), ("fp8", "fp8", 3))
        ]
        results = mock.Mock(of={"decode": [{"device": "NVIDIA H200", "rows": rows}]})
        page = "| rung | idea |\n|---|---|\n| `once` | |\n| `fp8` | |"
        spec = "rungs step=13_decode from=decode figures=time,copy"
        filled = tables.value("table", spec, results, page)[0]
        self.assertIn("| `once` |  | 1.00 ms | 50% |\n| `fp8` |  | 3.00 ms | 50% |", filled)

    def test_a_rungs_time_is_that_beside_the_libraries(self):
        """Of the same problem and device; whether it is old, its own commit says."""
        size = dict(b=1, h=32, hkv=32, d=8, causal=True)
        runs = [gpu(step="07_tensor_cores", variant="mma", n=n, nk=n, **size) for n in (512, 64)]
        rows = [{**row, "d": 8, "commit": None} for row in peers_rows()]
        write(self.folder / "r.json", {**peers(rows), "runs": runs})
        paths = [self.folder / "r.json"]
        one, other = rungs.beside_libraries(standing.rows_of(paths), self.folder)[::-1]
        self.assertEqual((one.ms, other.ms), (PEER["ms"], runs[1]["time"]["median_ms"]))
        self.assertEqual([standing.standing_of(row.gpu) for row in (one, other)], [OLDER, None])

    def test_the_fastest_rival_is_that_of_each_problem(self):
        """Recomputed from one file, without the code that fills README's table."""
        decode = read_json(f"{estimates.RESULTS}/decode_h200.json")["rows"]
        once = [r for r in decode if r["what"] == "peers" and r.get("variant") == "once"]
        ratios = [min(v for k, v in row["ratios"].items() if k != "copy") for row in once]
        mean = math.prod(ratios) ** (1 / len(ratios))
        (line,) = (x for x in read_text(ROOT / "README.md").splitlines() if "| decode" in x)
        cells = [cell.strip() for cell in line.split("|")]
        self.assertEqual(cells[4:6], [f"{mean:.2f}x", f"{min(ratios):.3f}x"])
        self.assertIn(f"{len(ratios)} problems", line)

    def test_estimates_keep_a_prepares_time(self):
        path = write(self.folder / "a.json", with_prepare(gpu(step="12_fp8")))
        found = {key: run.get("time.median_ms") for key, run in estimates.timed(load(path))}
        times = {key[3]: ms for key, ms in found.items()}
        self.assertEqual(times, {"forward": 0.5, "prepare": 0.02})
        self.assertEqual({estimates.label(key) for key in found}, {"12 naive", "12 naive prep"})

    def test_the_pages_have_what_the_results_say(self):
        times = functools.cache(estimates.measured_times)
        with (
            mock.patch.object(standing, "is_current", return_value=True),
            mock.patch.object(estimates, "measured_times", times),
        ):
            results = tables.Results(estimates.RESULTS)
            blocks = [
                b for p in tables.markdown_files() for b in tables.MARKER.findall(read_text(p))
            ]
            found = {(kind, spec): old.strip() for _, kind, spec, old, _ in blocks if kind != "run"}
            self.assertGreater(len(found), 100)
            for (kind, spec), old in found.items():
                if spec == "standing":
                    continue
                if spec.split()[0] != "ladder" or ladder_tables.built():
                    with self.subTest(spec):
                        said = tables.value(kind, spec, results, old)[0]
                        self.assertEqual(old[: len(said)], said)

    def test_the_pictures_are_of_the_results(self):
        with mock.patch.object(standing, "is_current", return_value=True):
            self.ended(typed("maintain", "plots", "--out", self.folder))
        for name in PICTURES:
            drawn = read_text(ROOT / "docs" / "pictures" / name)
            self.assertTrue(read_text(self.folder / name) == drawn, f"{name}: maintain plots")

    def test_a_picture_that_is_of_other_results_is_named(self):
        rows = rows_of(self.folder, [gpu(), gpu(step="02_tiled", commit="4567")])
        self.write("docs/pictures/a.svg", f"01_naive={HERE} 02_tiled=4567")
        self.write("docs/pictures/b.svg", f"01_naive={HERE} 02_tiled=0123 03_x={HERE}")
        pictures = dict.fromkeys(("a.svg", "b.svg", "not_there.svg"), lambda rows: rows)
        with (
            mock.patch.object(tables, "ROOT", str(self.folder)),
            mock.patch.object(tables, "PICTURES", pictures),
        ):
            (found,) = tables.picture_findings(rows)
        words = "docs/pictures/b.svg: drawn from other results (02_tiled, 03_x): run ./scripts/"
        self.assertTrue(found.startswith(words), found)

    # --- the command ---

    def maintain(self, text, *args, status=0):
        """The output, and the page."""
        path = self.write("page.md", text)
        call = ["tables", "--results", self.folder, *args, path]
        done = self.ended(typed("maintain", *call), status)
        return done.stdout + done.stderr, path.read_text()

    def test_fills_between_the_markers_and_only_there(self):
        write(self.folder / "r.json", [sim(), gpu()])
        page = "before\n<!-- table: steps -->\nold\n<!-- /table -->\nafter\n"
        said, text = self.maintain(page, "--check", status=1)
        self.assertEqual((text, "out of date" in said), (page, True))
        _, text = self.maintain(page)
        self.assertRegex(text, "(?s)^before\n<!-- table: steps -->\n.*01 naive.*-->\nafter\n$")
        self.assertNotIn("old", text)
        self.assertEqual(self.maintain(text, "--check"), ("", text))
        shown, _ = self.maintain(text, "--show", "steps")
        self.assertIn(shown.strip(), text)
        page = "<!-- figure: counters -->x<!-- /figure -->\n"
        said, text = self.maintain(page, status=2)
        self.assertEqual((text, len(said.splitlines())), (page, 1))
        self.assertIn("put a word before it", said)

    @for_all
    def test_the_standard_library_is_enough(self):
        write(self.folder / "r.json", sim())
        show = ["--results", str(self.folder), "--show", "steps"]
        self.ended(maintain("tables", *show, python=["-S"]))

    def test_check_finds_what_is_empty(self):
        write(self.folder / "r.json", sim())
        for name, block in (
            ("table: steps", "<!-- table: steps -->\n \n<!-- /table -->\n"),
            ("run: echo one", "<!-- run: echo one -->\n<!-- /run -->\n"),
            ("figure: counters", "a <!-- figure: counters --><!-- /figure -->.\n"),
        ):
            said, text = self.maintain(block, "--check", status=1)
            self.assertEqual(text, block)
            self.assertIn(f"page.md: nothing below '{name}'", said)
        page = "<!-- run: echo one -->\n```\n$ echo one\none\n```\n<!-- /run -->\n"
        self.maintain(page, "--check")

    def test_runs_commands_when_asked(self):
        write(self.folder / "r.json", sim())
        page = "<!-- run: echo one; echo two -->\nold\n<!-- /run -->\n"
        self.assertIn("old", self.maintain(page)[1])
        _, text = self.maintain(page, "--run")
        self.assertIn("```\n$ echo one; echo two\none\ntwo\n```\n<!-- /run -->", text)
        long = f"echo {10**70} 'in quotes, {'word ' * 9}'"
        _, text = self.maintain(f"<!-- run: {long} -->\n<!-- /run -->\n", "--run")
        shown = text.split("```\n")[1].splitlines()
        self.assertEqual(shown[1], f"  'in quotes, {'word ' * 9}'")
        self.maintain("<!-- run: exit 3 -->\n<!-- /run -->\n", "--run", status=2)


main()
