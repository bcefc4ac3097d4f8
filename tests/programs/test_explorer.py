"""The page docs/explorer/index.html: its runs equal the programs', and it works in a browser."""

import contextlib
import dataclasses
import html
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

import sample_results
from browser import FOUND, MISSING, Browser
from copies import BUILD, ROOT, Folder, for_all, main, maintain
from flash_steps import explorer, explorer_barriers, explorer_ring, explorer_runs, report
from flash_steps.command import Failure, NotHere
from flash_steps.explorer_pages import IDEAS, RING, STEPS, Run
from flash_steps.files import read_json, read_text
from flash_steps.rungs import DRAWN, Rung
from flash_steps.steps import program_of, report_of
from sample_results import gpu, sim, with_backward, with_prepare

FOLDER = pathlib.Path(explorer.FOLDER)
LARGEST = 2_500_000  # all files together, bytes
FIRST_PICTURE_MS = 1000
SIZES = ((1366, 650), (400, 800))
TABS = ("#ladder", "#roofline", "#runs", "#barriers&at=40")
READY = "document.body.ariaBusy === 'false'"  # no run is loading


# Text with less contrast than 4.5 to 1.
FAINT = """(() => {
  const one = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    one.clearRect(0, 0, 1, 1);
    one.fillStyle = colour;
    one.fillRect(0, 0, 1, 1);
    return [...one.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (rgb) => rgb.slice(0, 3).map((x) => x / 255)
    .map((x) => (x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], 0);
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode());) {
    const e = node.parentElement;
    if (!node.data.trim() || !e.checkVisibility() || e.closest("script, option")) continue;
    let at = e;
    while (at && !rgba(getComputedStyle(at).backgroundColor)[3]) at = at.parentElement;
    const two = [getComputedStyle(e).color, getComputedStyle(at).backgroundColor];
    const [low, high] = two.map((c) => luminance(rgba(c))).sort((a, b) => a - b);
    const ratio = (high + .05) / (low + .05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${e.tagName}.${e.className} ${node.data}`);
  }
  return found;
})()"""


# Captions of moments that need more lines than there is room for.
CUT = """[...Array(21).keys()].flatMap((i) => {
  player.put(i / 20);
  return [...document.querySelectorAll(".side .at")]
    .filter((e) => e.scrollHeight > e.clientHeight + 1).map((e) => e.textContent);
})"""


@for_all
class Files(unittest.TestCase):
    def test_they_are_up_to_date(self):
        done = maintain("explorer", "--check", "--build", BUILD)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        self.assertLess(sum(p.stat().st_size for p in FOLDER.glob("*.*")), LARGEST)

    def test_full_size_is_what_was_measured(self):
        """Read from docs/results without the code that made the page."""
        runs = explorer_runs.published_series()["runs"]
        runs = [run for run in runs if not run["causal"] and run["pass"] == "forward"]
        full = {run["id"]: run for run in runs}
        wanted = {"n": 4096, "d": 64, "causal": False}.items()
        for name, file in (("06 registers", "h200"), ("10 scheduled", "h200_bf16")):
            runs = read_json(f"{ROOT}/docs/results/{file}.json")["runs"]
            runs = [run for run in runs if f"{run['step'][:2]} {run['variant']}" == name]
            run = next(run for run in runs if wanted <= run["problem"].items())
            hbm = run["traffic"]["hbm"]
            moved = sum((hbm.get("measured") or hbm["predicted"]).values())
            heads = run["problem"]["b"] * run["problem"]["h"]
            self.assertEqual(full[name]["hbm"], moved / heads)
            beside = read_json(f"{ROOT}/docs/results/{file}.json")["peers"]["rows"]
            beside = [row for row in beside if row["label"] == name and wanted <= row.items()]
            ms = beside[0]["ms"] if beside else run["time"]["median_ms"]
            self.assertEqual(full[name]["ms"], ms)
            self.assertEqual(len(beside), name == "10 scheduled")


def small(step, variant, index, times, **changes):
    """A run with `times` fewer bytes and less time than 01 naive."""
    data = sim(step=step, variant=variant, variant_index=index, **changes)
    for way, count in data["traffic"]["hbm"]["model"].items():
        data["traffic"]["hbm"]["model"][way] = count // times
    data["estimate"]["ms"] /= times
    return data


def tour():
    """Four steps: one variant; three, the last with a backward; two of other types, one prepare."""
    return [
        small("01_naive", "naive", 0, 1),
        small("06_work_partitioning", "swapped", 0, 20),
        small("06_work_partitioning", "registers", 1, 40),
        with_backward(small("06_work_partitioning", "backward", 2, 30, forward_of="06 registers")),
        small("10_warp_specialized", "scheduled", 0, 590),
        with_prepare(small("12_fp8", "late", 0, 600, dtype="bf16", fp8=True)),
    ]


def rows_of(documents):
    with tempfile.TemporaryDirectory() as folder:
        return sample_results.rows_of(folder, documents)


class Series(unittest.TestCase):
    def figures(self, *documents):
        return explorer_runs.figures_of(rows_of(documents)[0])

    def test_figures_are_those_of_the_json(self):
        said = self.figures(sim())
        heads = sim()["problem"]["b"] * sim()["problem"]["h"]
        self.assertEqual((said["hbm"], said["hbm_kind"]), (60e6 / heads, "modelled"))
        self.assertEqual((said["ms"], said["time_kind"]), (0.4, "estimated"))
        self.assertAlmostEqual(said["rate"], sim()["flops"] / 0.4e-3)
        self.assertAlmostEqual(said["executed"], sim()["flops_executed"] / 0.4e-3)
        self.assertAlmostEqual(said["intensity"], sim()["flops_executed"] / 60e6)
        said = self.figures(sim(), gpu())
        self.assertEqual((said["hbm"], said["hbm_kind"]), (62e6 / heads, "measured"))
        self.assertEqual((said["ms"], said["time_kind"], said["limit"]), (0.5, "measured", None))

    def test_a_time_for_more_heads_is_of_their_flops(self):
        said, heads = self.figures(sim(estimate_heads=32)), sim()["problem"]["h"]
        self.assertEqual(said["heads"], 32)
        self.assertAlmostEqual(said["rate"], sim()["flops"] * 32 / heads / 0.4e-3)

    def test_nothing_counted_is_no_figure(self):
        data = sim()
        data["traffic"]["hbm"] = {"predicted": None, "model": None, "measured": None}
        data["estimate"] = None
        said = self.figures(data)
        self.assertEqual({said[key] for key in ("hbm", "ms", "rate", "intensity")}, {None})

    def test_a_ladder_is_of_one_problem_and_one_device(self):
        rows = rows_of([*tour(), sim(n=4096), gpu(n=4096), gpu("NVIDIA A100-SXM4-80GB", n=4096)])
        labels = [row.any.label for row in rows_of(tour())]
        self.assertEqual([row.any.label for row in explorer_runs.comparable(rows)], labels)
        two = rows_of([sim(), sim(n=4096), gpu(n=4096), gpu("NVIDIA A100-SXM4-80GB", n=4096)])
        (row,) = explorer_runs.comparable(two)
        self.assertEqual(row.any.data["problem"]["n"], 4096)

    def test_roofs_are_measured_or_of_the_data_sheet(self):
        self.assertEqual(list(explorer_runs.roofs_of(rows_of([sim()]))), ["H200, data sheet"])
        found = explorer_runs.roofs_of(rows_of([sim(), gpu()]))
        self.assertEqual(found["NVIDIA H200, measured"]["fp32"], 6.5e13)

    def test_published_runs_are_of_one_size_and_the_gpu_with_most(self):
        series = dict(b=4, h=32, hkv=32, n=4096, nk=4096, causal=False)
        runs = [gpu(**series), gpu("NVIDIA A100", step="02_tiled", **series)]
        runs += [gpu("NVIDIA A100", **{**series, **more}) for more in ({}, {"causal": True})]
        for more in ({"hkv": 8}, {"n": 2048}, {"nk": 2048}, {"d": 128}, {"smem": 65536}):
            runs.append(gpu("NVIDIA A100", **{**series, **more}))
        runs += [sim(**{**series, "n": 4096}, step="03_online_softmax")]
        with tempfile.TemporaryDirectory() as folder:
            path = sample_results.write(pathlib.Path(folder, "a.json"), {"runs": runs})
            with unittest.mock.patch.object(explorer_runs, "published", lambda _: [path]):
                found = explorer_runs.published_series()
                named = explorer_runs.published_series(4096, True)
                self.assertIsNone(explorer_runs.published_series(512))
        said = [(run["id"], run["causal"]) for run in found["runs"]]
        self.assertEqual(said, [("01 naive", False), ("01 naive", True), ("02 naive", False)])
        self.assertEqual((found["name"], found["wrong"]), ("A100, N = 4096", []))
        self.assertEqual(named["name"], "A100, N = 4096, causal")
        self.assertEqual([run["causal"] for run in named["runs"]], [True])
        less = [found["head"][i] for i in found["less"]]
        self.assertEqual(less, ["warp requests", "sectors/request", "workspace", "check"])

    def test_results_that_the_published_lack_are_added(self):
        (estimated,) = rows_of([sim()])
        (row,) = rows_of([gpu()])
        rungs = {section.name: [] for section in DRAWN}
        rungs["forward"] = [
            Rung("10 scheduled", "10_warp_specialized", "one", row),
            Rung("16 exp2", "16_blackwell", "two", estimated, "B200"),
            Rung("16 ctas", "16_blackwell", "three", estimated),
        ]
        rungs["masks"] = [Rung("15 x", "15_masks", "four", row), Rung("13 y", "13_decode", "five")]
        published = {"runs": [{"id": "10 scheduled", "pass": "forward"}]}
        with (
            unittest.mock.patch.object(explorer_runs, "published_series", lambda: published),
            unittest.mock.patch.object(explorer_runs, "ladder", lambda build: rungs),
            unittest.mock.patch.dict(explorer_runs.FASTEST, {"15_masks": ["x"]}),
        ):
            found = explorer_runs.whole_series("build")["runs"][1:]
        words = [(run["pass"], run["idea"], run.get("apart"), run.get("gpu")) for run in found]
        masks = next(section.words for section in DRAWN if section.name == "masks")
        self.assertEqual(words, [("forward", "two", None, "B200"), ("masks", "four", masks, None)])


class Traces(Folder):
    """What the files hold, of a few steps."""

    def stale(self, shown):
        return explorer.stale(str(BUILD), shown)

    def test_they_are_packed_as_they_were(self):
        for shown in (*(s for s in STEPS if s.step[:2] in ("07", "09", "16")), RING):
            with self.subTest(shown.step):
                held = explorer.kept(shown)
                there, made = read_text(explorer.path_of(shown.step)), text_of(shown, held)
                self.assertEqual(unpacked(there), unpacked(made))
                if shown is not RING:
                    self.assertEqual(list(held), [run.name for run in shown.runs])

    def test_what_is_out_of_date_is_named(self):
        """A run of tensor memory, whose events wait, made anew in another folder."""
        (tmem,) = (s for s in STEPS if s.step == "16_blackwell")
        shown = dataclasses.replace(tmem, own=(tmem.runs[0],))
        published = explorer.kept(shown)[shown.runs[0].name]
        with unittest.mock.patch.object(explorer, "FOLDER", str(self.folder)):
            path = explorer.path_of(shown.step)
            self.assertEqual(explorer.kept(shown), {})
            self.assertRegex(self.stale(shown), "lacks runs")
            made = explorer.fresh(str(BUILD), shown)
            (content,) = made.values()
            self.assertEqual(explorer.summary(content), explorer.summary(published))
            self.assertEqual(content["run"], {"n": 256, "causal": False, "smem": 0})
            self.assertEqual(content["registers"], published["registers"])
            (kernel,) = content["blocks"]
            self.assertTrue(all(len(rows) == len(waits) for _, _, rows, waits in kernel))
            self.write(path, text_of(shown, made))
            with unittest.mock.patch.object(explorer, "fresh", lambda *_: {**made}):
                self.assertIsNone(self.stale(shown))
                for change, words in (
                    (lambda c: c["lines"][3].update(text="x"), "was another line"),
                    (
                        lambda c: c["blocks"][0][0][2][0].__setitem__(5, 7),
                        "is not what the program",
                    ),
                    (lambda c: c["counted"]["forward"]["K"].update(read=7), "is not what the prog"),
                ):
                    other = json.loads(json.dumps(made))
                    change(other[shown.runs[0].name])
                    self.write(path, text_of(shown, other))
                    self.assertRegex(self.stale(shown), words)
                self.write(path, text_of(shown, made).replace('"sources"', ' "sources"'))
                self.assertRegex(self.stale(shown), "source lines that have changed")
            ring = json.loads(json.dumps(RUN_OF_RING))
            with unittest.mock.patch.object(explorer, "has_mpi", lambda _: True):
                with unittest.mock.patch.object(explorer, "ring_runs", lambda _: RUN_OF_RING):
                    self.assertRegex(self.stale(RING), "14.js is not what the program predicts")
                    self.write(explorer.path_of(RING.step), text_of(RING, ring))
                    self.assertIsNone(self.stale(RING))
                    ring["plain-r2"]["rows"] = [[1]]
                    self.write(explorer.path_of(RING.step), text_of(RING, ring))
                    self.assertRegex(self.stale(RING), "is not what the program predicts")

    def test_the_page_is_of_its_sources(self):
        """With the measurements that it has."""
        index = read_text(explorer.INDEX)
        series = json.loads(explorer.DATA.search(index)[2])["series"][0]
        contents = {shown.step: explorer.kept(shown) for shown in (*STEPS, RING)}
        for shown in STEPS:
            for run, (name, held) in zip(shown.runs, contents[shown.step].items(), strict=True):
                self.assertEqual((name, held["variant"]), (run.name, run.variant))
                more = {"mask": run.mask} if run.mask else {}
                size = {"n": run.n, "causal": run.causal, "smem": run.smem}
                self.assertEqual(held["run"], {**size, **more})
                self.assertEqual(held["registers"], shown.registers_of(run.variant))
                self.assertEqual(held["problem"].get("page") or 0, run.page)
        with unittest.mock.patch.object(explorer, "whole_series", lambda _: series):
            self.assertTrue(explorer.page("build", contents) == index, "maintain explorer")

    def test_events_are_lists_of_numbers(self):
        def event(thread, kernel=0, **more):
            args = {"place": 1, "stack": 2, "kind": "write", "how": "store", "bytes": 64}
            args |= {"requests": 3, "sectors": 4, "touched": [[0, 1, 2, 3], [4, 5, 6, 7]], **more}
            return {"ph": "X", "pid": kernel, "tid": thread, "ts": 9, "dur": 5, "args": args}

        def packed(space, *events):
            about = {"kernels": [{}, {}], "places": [{"space": "shared"}, {"space": space}]}
            trace = {"flash_steps": about, "traceEvents": [{"ph": "M"}, *events]}
            return explorer.packed_events(trace, ["load", "store"])

        row = [1, 2, 1, 1, 5, 64, 3, 4, 0, 0, 1, *range(8)]
        first, later = event(7), event(8, 1, kind="atomic", how="load", first_touch=[32, 16])
        del later["args"]["touched"]
        later["args"]["around"] = [[1, 1, 2, 2]]
        later["args"]["wavefronts"] = later["args"].pop("sectors") + 2
        self.assertEqual(
            packed("global", first, first, later),
            [
                [[7, 9, [row, row]]],
                [[8, 9, [[1, 2, 2, 0, 5, 64, 3, 6, 32, 16, 0, 1, 1, 2, 2]]]],
            ],
        )
        first["args"]["waits"] = 6
        self.assertEqual(packed("tensor", first), [[[7, 9, [row], [6]]], []])
        content = {"blocks": packed("global", first, first, later), "hows": ["load", "store"]}
        content |= {"places": [{"name": "Q"}, {"name": "K"}], "kernels": []}
        content |= dict.fromkeys(("problem", "idea", "registers", "counted"))
        sums = {(0, "K", 1, "store"): [128, 6, 8, 0, 0], (1, "K", 2, "load"): [64, 3, 6, 32, 16]}
        self.assertEqual(explorer.summary(content)[2], sums)
        self.assertEqual(explorer.summary({"rows": 1}), {"rows": 1})
        runs = [{"id": "06 registers", "ms": 1.2345, "pass": "forward", "causal": False}]
        runs += [{**runs[0], "ms": 7, **more} for more in ({"pass": "backward"}, {"causal": True})]
        self.assertEqual(explorer.with_times("a {06 registers} b", runs), "a 1.23 ms b")
        missing = [{"lines": [{"path": "no/such.cuh"}, {"path": "steps/01_naive/main.cu"}]}]
        sources = explorer.sources_of(missing)
        self.assertEqual(sources["no/such.cuh"], [])
        self.assertTrue(sources["steps/01_naive/main.cu"])

    def test_the_command(self):
        said = {"02_tiled": "02.js is old"}
        replaced = {
            "stale": lambda build, shown: said.get(shown.step),
            "kept": lambda shown: shown.step,
            "page": lambda build, contents: f"{build} {len(contents)} {contents['14_ring']}",
            "fresh": lambda build, shown: f"{build} {shown.step}",
            "file_text": lambda shown, content: content,
            "INDEX": str(self.write("index.html", "B 17 14_ring")),
            "FOLDER": str(self.folder),
        }
        for name, value in replaced.items():
            self.enterContext(unittest.mock.patch.object(explorer, name, value))
        barriers = str(self.write("barriers.js", "b"))
        self.enterContext(unittest.mock.patch.object(explorer_barriers, "PATH", barriers))
        texts = {"text": "b"}
        self.enterContext(
            unittest.mock.patch.object(explorer_barriers, "file_text", lambda: texts["text"])
        )

        def run(*words):
            out = io.StringIO()
            with unittest.mock.patch.object(sys, "argv", ["x", "--build", "B", *words]):
                with contextlib.redirect_stdout(out):
                    return explorer.main(), out.getvalue()

        self.assertEqual(run("--check", "03", "14"), (0, ""))
        with self.assertRaisesRegex(Failure, "^02.js is old: ./scripts/maintain explorer makes"):
            run("--check")
        said.clear()
        self.assertEqual(run("--check"), (0, ""))
        texts["text"] = "c"
        self.assertEqual(run("--check", "03"), (0, ""))
        with self.assertRaisesRegex(Failure, "barriers.js is not what docs/.*/mbarriers.cu does: "):
            run("--check")
        self.write("index.html", "x")
        with self.assertRaisesRegex(Failure, "^[^;]*index.html is not what its sources say: "):
            run("--check", "03")
        status, out = run("03", "14")
        self.assertEqual((status, out.count(" B\n")), (0, 3))
        self.assertEqual(read_text(self.folder / "03.js"), "B 03_online_softmax")
        self.assertEqual(read_text(self.folder / "14.js"), "B 14_ring")
        self.assertEqual(read_text(self.folder / "index.html"), "B 17 14_ring")
        self.assertEqual(read_text(barriers), "b")
        self.assertEqual(sorted(p.name for p in self.folder.glob("0*")), ["03.js"])
        self.assertEqual(run()[0], 0)
        self.assertEqual((read_text(barriers), len(list(self.folder.glob("*.js")))), ("c", 18))

    def test_a_run_is_typed_and_named(self):
        size = "--d=64 --workers=1"
        (latent,) = (shown for shown in STEPS if shown.step == "17_latent")
        words = "--variant=absorbed --d=576 --workers=1 --n=1 --nk=512 --h=16 --hkv=1"
        self.assertEqual(latent.runs[0].arguments, words.split())
        for run, name, words in (
            (Run("01_naive", "naive", 256), "naive-n256", f"{size} --n=256 --h=1"),
            (
                Run("04_fused", "fused", 512, True, 32768),
                "fused-n512-causal-m32768",
                f"{size} --n=512 --h=1 --causal --smem=32768",
            ),
            (
                Run("13_decode", "pages", 1024, group=4, page=64),
                "pages-n1024",
                f"{size} --n=1 --nk=1024 --h=4 --hkv=1 --page=64",
            ),
            (
                Run("15_masks", "packed", 1024, mask="3 documents, window 192"),
                "packed-n1024-3-documents-window-192",
                f"{size} --n=1024 --h=1 --causal --lengths=384,128,512 --window=192,0",
            ),
        ):
            variant = f"--variant={run.variant}"
            self.assertEqual((run.name, run.arguments), (name, [variant, *words.split()]))

    def test_equal_steps_of_a_warps_lanes_are_one(self):
        def step(thread, what="arrive", line="a.cu:7", **more):
            known = {"barrier": "full", "phase": 0, "arrivals": 1, "bytes": 0}
            return {"thread": thread, "what": what, "line": line, **known, **more}

        steps = [step(0), step(1, phase=1), step(1), step(0, "wait"), step(32), step(1)]
        steps += [step(-1, "bytes", "", bytes=64)]
        self.assertEqual(
            [
                (one["threads"], one["what"], one["phase"], one["line"], one["bytes"])
                for one in explorer_barriers.together(steps)
            ],
            [
                ([0, 1], "arrive", 1, 7, 0),
                ([1], "arrive", 0, 7, 0),
                ([0], "wait", 0, 7, 0),
                ([32], "arrive", 0, 7, 0),
                ([1], "arrive", 0, 7, 0),
                ([-1], "bytes", 0, 0, 64),
            ],
        )
        with unittest.mock.patch.object(explorer_barriers, "recorded", lambda: [step(0), step(1)]):
            text = explorer_barriers.file_text()
        tree = json.loads(text.removeprefix('flashSteps["barriers"] = ').removesuffix(";\n"))
        self.assertEqual([one["threads"] for one in tree["steps"]], [[0, 2]])
        self.assertEqual(tree["source"], read_text(ROOT / tree["path"]).splitlines())

    def test_ranks_are_predicted(self):
        calls = []

        def report_of(call):
            calls.append(call)
            ranks = [{"rows": [[0, 4]], "scores": [16], "sent": 1}] * int(call[2])
            return 0, "", {"variant_idea": "i", "problem": {"n": 1024}, "ranks": ranks}

        with unittest.mock.patch.object(explorer_ring.mpi, "report", report_of):
            found = explorer_ring.ring_runs("b")
        self.assertEqual(found["plain-r2"], RUN_OF_RING["plain-r2"])
        self.assertEqual(list(found), list(explorer.kept(RING)))
        self.assertEqual(
            {name: (len(r["rows"]), r["run"]) for name, r in found.items()}["zigzag-r8-causal"],
            (8, {"n": 8, "causal": True, "smem": 0}),
        )
        last = next(call for call in calls if call[2] == "8" and "--causal" in call)
        words = "b/steps/14_ring --n=1024 --h=4 --d=64 --predict --variant=plain --causal"
        self.assertEqual(last, ["mpirun", "-n", "8", *words.split()])
        for end, of, words in (((3, "no\n", None), Failure, "r2: no"), (OSError, NotHere, "mpi")):
            with unittest.mock.patch.object(explorer_ring.mpi, "report", side_effect=[end]):
                with self.assertRaisesRegex(of, words.replace("r2", "plain")):
                    explorer_ring.predicted("b", "plain", 2, False)


RUN_OF_RING = {
    "plain-r2": {
        **{"variant": "plain", "idea": "i", "run": {"n": 2, "causal": False, "smem": 0}},
        **{"ranks": 2, "causal": False, "n": 1024},
        **{"rows": [[[0, 4]], [[0, 4]]], "scores": [[16], [16]]},
    }
}


def text_of(shown, contents):
    return explorer.file_text(shown, contents)


def unpacked(text):
    """What a file of the page holds: versions of zlib pack it differently."""
    head, _, tree = text.partition(" = ")
    tree = json.loads(tree.removesuffix(";\n"))
    if tree["sources"]:
        tree["sources"] = explorer.unpack(tree["sources"])
        tree["runs"] = {name: explorer.unpack(run) for name, run in tree["runs"].items()}
    return head, tree


@for_all
@unittest.skipUnless(FOUND, MISSING)
class InBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser())

    def open(self, address="", size=SIZES[0], dark=False, file=FOLDER / "index.html"):
        page = self.browser.open(file, *size, dark=dark, query=address)
        self.addCleanup(page.close)
        page.until("document.documentElement.dataset.ready")
        return page

    def test_one_screen_and_no_message(self):
        """Each idea, step and tab, and a reader's page: no sideways scrolling, no cut text."""
        ideas = [f"#{i + 1}" for i in range(len(IDEAS))]
        steps = [f"#{shown.step[:2]}" for shown in (*STEPS, RING)]
        shown = [(FOLDER / "index.html", address) for address in (*ideas, *steps, *TABS)]
        shown += [(self.own(tour()), address) for address in ("#1", *TABS)]
        for size in SIZES:
            for file, address in shown:
                with self.subTest(address=address, size=size):
                    page = self.open(address, size, address in ("#2", "#06", "#ladder"), file)
                    self.assertEqual(page.errors(), [])
                    self.assertEqual(page.overflow(), 0)
                    height = page.eval("document.documentElement.scrollHeight")
                    self.assertLessEqual(height, size[1])
                    self.assertEqual(page.eval(FAINT), [])
                    if address not in TABS:
                        self.assertEqual(page.eval(CUT), [])

    def own(self, documents, texts=None):
        """A page with these runs, alone in its folder."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        file = pathlib.Path(folder) / "report.html"
        text = report.page(rows_of(documents), texts or {}, file)
        file.write_text(text, encoding="utf-8")
        return file

    def test_the_first_picture_comes_at_once(self):
        best = min(
            float(self.open().eval("document.documentElement.dataset.ready")) for _ in range(3)
        )
        self.assertLess(best, FIRST_PICTURE_MS)

    def test_the_bytes_are_the_programs(self):
        """After a run of each variant: those in its file, which another test checks."""
        for shown in STEPS:
            kept = explorer.kept(shown)
            page = self.open(f"#{shown.step[:2]}&at=100&more")
            for run in {run.variant: run for run in reversed(shown.runs)}.values():
                with self.subTest(run=run):
                    name = f"{run.step[:2]} {run.variant}"
                    page.eval(f"choose({{pair: ['{name}', '{name}'], n: {run.n}}}, 1)")
                    page.until(f"{READY} && !!document.querySelector('#bytes .equal')")
                    shown_bytes = page.eval(
                        "Object.fromEntries([...document.querySelectorAll('#bytes "
                        "tr[data-buffer]')].map((row) => [row.dataset.buffer, "
                        "[...row.querySelectorAll('[data-bytes]')].map((c) => +c.dataset.bytes)]))"
                    )
                    self.assertEqual(shown_bytes, self.counted(kept[run.name], shown_bytes))

    def counted(self, content, like):
        sums = {}
        for buffers in content["counted"].values():
            for name, kinds in buffers.items():
                row = sums.setdefault(name, [0, 0, 0])
                for i, kind in enumerate(explorer.KINDS):
                    row[i] += kinds[kind]
        sums[""] = [sum(column) for column in zip(*sums.values())]
        columns = len(like[""])
        return {name: row[:columns] for name, row in sums.items()}

    def test_the_address_says_what_is_shown(self):
        address = "#04.fused-06.swapped&n=512&causal&at=40&block=1"
        page = self.open(address)
        self.assertEqual(page.eval("location.hash"), address)
        at = "document.querySelector('#b .at').textContent"
        text = page.eval(at)
        page.click("#ideas button:nth-child(4)")
        page.until(f"{READY} && location.hash.startsWith('#4')")
        page.eval(f"location.hash = {json.dumps(address)}")
        page.until(f"{at} === {json.dumps(text)}")
        self.assertTrue(self.open("#nonsense").eval("location.hash").startswith("#1"))
        other = self.open("#06&n=77")  # the nearest existing one
        self.assertEqual(other.eval("document.getElementById('set-n').value"), "256")

    def test_a_ladder_has_both_series(self):
        """A row per step's result and pass: its last variant, without prepares."""
        page = self.open("#ladder", file=self.own(tour()))
        tips = page.eval(
            "[...document.querySelectorAll('.rungs .s1.write')].map((bar) => bar.ariaLabel)"
        )
        shown = [tip.split(", your run")[0] for tip in tips]
        expected = ["01 naive, forward", "06 registers, forward", "10 scheduled, forward"]
        self.assertEqual(shown, [*expected, "12 late, forward", "06 backward, backward"])
        self.assertIn("HBM 375 kB per head, modelled; 10.0 us for 4 heads, estimated", tips[1])
        widths = page.eval(
            "[...document.querySelectorAll('.rungs .s1.write i')].map((bar) => bar.style.width)"
        )
        self.assertEqual(widths[:2], ["max(2px, 100%)", "max(2px, 2.5%)"])
        verdict = page.eval("document.getElementById('about').textContent")
        self.assertIn("✓ All 7 results are right. Your run, N = 1024, causal", verdict)
        self.assertIn("HBM bytes ÷40 from 01 to 06, then speed ×15 from 06 to 12.", verdict)
        page.eval("document.querySelector('.rungs .s1.write').focus()")
        self.assertEqual(page.eval("tip.textContent"), tips[0])
        page.click("h1")
        self.assertTrue(page.eval("tip.hidden"))

    def on_a_gpu(self):
        """Runs on a card: the ladder's ends, a cache and a window."""
        size = {"b": 4, "h": 32, "hkv": 32, "n": 4096, "nk": 4096, "causal": False}
        cache = {**size, "hkv": 8, "n": 1, "nk": 32768, "rate_of": "a copy", "dtype": "bf16"}
        masked = gpu(step="15_masks", variant="wgmma", **{**size, "causal": True})
        masked["problem"]["window"] = [1024, 0]
        return [
            gpu(median_ms=600, **size),
            gpu(step="06_work_partitioning", variant="registers", median_ms=15, **size),
            gpu(step="13_decode", variant="early", median_ms=0.0155, **cache),
            with_backward(masked),
        ]

    def test_a_gpus_bars_are_of_the_problem_of_the_others(self):
        """The H200's measurements in docs/results with the same N and mask."""
        for runs, above in (
            (self.on_a_gpu(), "H200, N = 4096"),
            (tour(), "H200, N = 1024, causal"),
        ):
            page = self.open("#ladder", file=self.own(runs))
            tips = page.eval(
                "[...document.querySelectorAll('.rungs .s0.write')].map((bar) => bar.ariaLabel)"
            )
            self.assertTrue(all(f", {above};" in tip for tip in tips), tips)
            self.assertIn("01 naive", tips[0])
            self.assertIn(f"Upper bars: {above}.", page.eval("tab.textContent"))

    def test_the_table_of_runs_fits(self):
        """A line per problem, with its runs below; no column is cut."""
        for runs in (self.on_a_gpu(), tour()):
            file = self.own(runs)
            for size in SIZES:
                page = self.open("#runs", size, file=file)
                self.assertLessEqual(page.eval("tab.scrollWidth - tab.clientWidth"), 0, size)
        page = self.open("#runs", file=self.own(self.on_a_gpu()))
        lines = page.eval("[...document.querySelectorAll('#tab tr')].map((row) => row.innerText)")
        problems = [line for line in lines if line.startswith("B=")]
        self.assertEqual(len(problems), 3)
        self.assertIn("B=4 H=32 N=4096 d=64 causal window=1024,0", problems)
        self.assertIn("4.00 TB/s", next(line for line in lines if line.startswith("13 early")))
        self.assertIn("All 5 results are right", page.eval("about.textContent"))

    def test_it_works_in_the_frame_of_a_notebook(self):
        """The page without address and other files: docs/flash_steps.ipynb."""
        file = self.own(tour())
        inside = html.escape(file.read_text(encoding="utf-8"))
        file.write_text(f'<iframe srcdoc="{inside}"></iframe>', encoding="utf-8")
        page = self.browser.open(file)
        self.addCleanup(page.close)
        frame = "document.querySelector('iframe').contentDocument"
        page.until(f"{frame}.documentElement.dataset.ready")
        for tab, words in ((1, "N × N scores"), (7, "✓ All 7 results are right.")):
            page.eval(f"{frame}.querySelector('#ideas button:nth-child({tab})').click()")
            page.until(f"{frame}.getElementById('about').textContent.includes('{words}')")
        self.assertEqual(page.errors(), [])

    def test_a_wrong_run_stands_at_the_top(self):
        texts = {"02_tiled shared, sim": ("it broke", False)}
        for file, words in (
            (self.own([sim(), sim(step="02_x", ok=False)]), "✗ Wrong or failed: 02 naive."),
            (self.own([sim()], texts), "✗ Wrong or failed: 02_tiled shared, sim."),
        ):
            page = self.open("#runs", file=file)
            self.assertIn(words, page.eval("document.getElementById('about').textContent"))
        self.assertEqual(
            page.eval("document.querySelector('details[open] pre').innerText"), "it broke"
        )

    def test_below_the_roof(self):
        page = self.open("#roofline", file=self.own([sim()]))
        tip = page.eval("document.querySelector('circle.s1').ariaLabel")
        # 1.07 GFLOP in 400 us, from 60 MB; an H200's HBM would allow 4.8 TB/s * 17.9 FLOP/B.
        self.assertIn("2.68 TFLOP/s at 17.9 FLOP per byte; 4% of its roof", tip)
        self.assertEqual(page.eval("document.querySelectorAll('.roof.s1').length"), 3)

    def test_a_mask_does_not_change_what_was_measured_of_hbm(self):
        """06 was measured only without the mask: 50 times fewer bytes than 04 with either."""
        words = "document.getElementById('figures').innerText"
        with_mask = self.open("#06&n=512&causal").eval(words)
        self.assertIn("measured, without the mask", with_mask)
        fewer = r"\d+× fewer bytes"
        self.assertEqual(
            re.findall(fewer, with_mask), re.findall(fewer, self.open("#06&n=512").eval(words))
        )
        self.assertRegex(with_mask, fewer)
        self.assertNotIn("without the mask", self.open("#10&n=512&causal").eval(words))

    def test_links_lead_to_the_book_or_nowhere(self):
        links = "[...document.querySelectorAll('a')].map((a) => a.getAttribute('href'))"
        for book in (None, "book/"):
            with unittest.mock.patch.object(report, "BOOK", FOLDER if book else "/nowhere"):
                file = self.own(tour())
            found = self.open("#ladder", file=file).eval(links)
            self.assertEqual(bool(found), bool(book))
            for link in found:
                self.assertRegex(link, r"docs/explorer/steps/\d\d_\w+/index\.html$")
        self.assertEqual(self.open("#06").eval(links), [])

    def test_play_and_the_keyboard(self):
        page = self.open("#1&at=0")
        sums = "sides.map((side) => total(side.counters.requested()))"
        self.assertEqual(page.eval(sums), [0, 0])
        page.key("ArrowRight")
        self.assertGreater(sum(page.eval(sums)), 0)
        page.key("End")
        whole = page.eval(sums)
        page.key("Home")
        self.assertEqual(page.eval(sums), [0, 0])
        page.key(" ")
        page.until("player.at > .02")
        self.assertEqual(page.eval("document.getElementById('play').ariaLabel"), "Pause")
        page.key(" ")
        page.eval("player.put(.999); player.toggle()")
        page.until("!player.playing")
        self.assertEqual(page.eval(sums), whole)

    def test_what_a_tile_holds(self):
        """K's place never holds V, in any step: a copy into shared memory has its own source. A
        latent cache has no V: in its place are features of K, and before them Q."""
        for shown in STEPS:
            page = self.open(f"#{shown.step[:2]}")
            found = page.eval(
                """sides.flatMap((side) => side.steps.flatMap((_, i) =>
                  [...side.state(i).holds].flatMap(([key, held]) => {
                    const { name } = side.run.places[parseInt(key, 10)];
                    const may = name === "V" && !side.run.buffers.has("V") ? "KQ" : name[0];
                    return /^[QKV]8?$/.test(name) && held.name && !may.includes(held.name[0])
                      ? [`${name} holds ${held.long}`] : [];
                  })))"""
            )
            self.assertEqual(found, [], shown.step)

    def test_why_flash_attention_1_moves_more(self):
        """In the page's own numbers: at N = 256 step 04 reads O 4 times and writes it 5 times."""
        page = self.open("#04.fused-06.swapped&at=100")
        times = page.eval(
            """sides.map((side) => {
              const { bytes } = side.run.buffers.get("O");
              return side.counters.buffers.get("O").map((moved) => moved / bytes);
            })"""
        )
        self.assertEqual(times, [[4, 5, 0], [0, 1, 0]])

    def test_details(self):
        page = self.open("#06&at=40&more")
        self.assertRegex(page.eval("document.querySelector('#source .at').textContent"), r"^\d+")
        self.assertEqual(page.eval("document.querySelectorAll('#warp .lanes span').length"), 32)
        page.click("#which button")
        self.assertTrue(page.eval("sides[0].node.hasAttribute('data-chosen')"))
        page.click("#open")
        page.until("!document.body.classList.contains('details')")

    def test_the_tiles_of_masks(self):
        """Each has a visible score, together all of them; the forward requests as many of K."""
        page = self.open("#15")
        (shown,) = (shown for shown in STEPS if shown.step == "15_masks")
        for run in shown.runs:
            mask = json.dumps(run.mask)
            page.eval(f"choose({{pair: ['08 atomics', '15 {run.variant}'], mask: {mask}}}, 1)")
            page.until(f"{READY} && sides[1].run.run.mask === {mask}")
            passes = page.eval(
                """sides[1].run.kernels.map((_, k) => sides[1].run.tilesOf(k).map((t) => t.seen))
                     .filter((seen) => seen.length)"""
            )
            report = report_of(program_of(BUILD, run.step), *run.arguments)
            with self.subTest(run=run):
                self.assertEqual(len(passes), 2)
                for seen in passes:
                    self.assertGreater(min(seen), 0)
                    self.assertEqual(sum(seen), report["flops"] // (4 * 64))
                counted = report["traffic"]["requested"]["buffers"]["K"]["counted"]["read"]
                self.assertEqual(len(passes[0]), counted // (2 * 64 * 128))

    def test_tensor_memory(self):
        """At the end each tile of rows has its S, P and O, and as many products have been added to
        S and O as there are tiles of keys. Only with roles no product waits for a softmax."""
        page = self.open("#16&n=512&at=100&more")
        for variant, tiles in (("tmem", 1), ("pair", 2)):
            page.eval(f"choose({{pair: ['16 {variant}', '16 {variant}']}}, 1)")
            page.until(f"{READY} && sides[1].run.variant === '{variant}'")
            found = page.eval(
                """(() => {
                  const written = {};
                  const adds = ({ how, kind }) => how === "tcgen05.mma" && kind === 2;
                  for (const { holder } of tensorMemory.events.filter(adds)) {
                    written[holder] = (written[holder] ?? 0) + 1;
                  }
                  const [products, softmax] = [1, 2].map((role) => new Set(
                    tensorMemory.events.filter((e) => e.role === role).map((e) => e.waits)));
                  return [[...new Set(tensorMemory.held)].filter((h) => h).sort(), written,
                          [...products].some((waits) => softmax.has(waits))];
                })()"""
            )
            names = [
                [f"{letter}{t}" for t in range(tiles)] if tiles > 1 else [letter]
                for letter in "OPS"
            ]
            held, written, together = found
            self.assertEqual(held, [name for of in names for name in of])
            self.assertEqual(written, {name: 4 for of in names[::2] for name in of})
            self.assertEqual(together, variant != "tmem")
            self.assertRegex(page.eval("tensorMemory.canvas.ariaLabel"), "^Tensor memory holds .*O")
        page.eval("choose({pair: ['06 registers', '06 registers']}, 1)")
        page.until(f"{READY} && tensorMemory.card.hidden")

    def test_the_phases_of_barriers(self):
        page = self.open("#barriers&at=0")
        said = "document.querySelector('.say').textContent"
        rows = "[...document.querySelectorAll('#tab tbody tr')]"
        table = f"{rows}.map((row) => row.innerText.split('\\t'))"
        self.assertIn("thread 64 makes full[0] a barrier of 1 arrival per phase", page.eval(said))
        page.key("End")
        state = {name: rest for name, *rest in page.eval(table)}
        self.assertEqual(state["full[1]"], ["3", "1", "1 of 1", "0", "-"])
        self.assertEqual(state["empty[0]"], ["3", "1", "64 of 64", "0", "-"])
        self.assertEqual(page.eval("location.hash"), "#barriers&at=100")
        self.assertEqual(
            page.eval("[...barriers.after.at(5).waits]"),
            [["warp 0", "full[0]"], ["warp 1", "full[0]"]],
        )
        page.key("Home")
        while "bytes of a copy land" not in page.eval(said):
            page.key("ArrowRight")
        self.assertIn("phase 0 is complete, phase 1 begins", page.eval(said))

    def test_the_ranks_of_step_14(self):
        """With a causal mask rank 0 of a plain ring waits in every hop but the first."""
        page = self.open("#14&causal&at=100")
        words = page.eval("sides.map((side) => side.text)")
        self.assertRegex(words[0], r"^Hop 3 of 3: ranks 0, 1, 2 wait\.$")
        self.assertEqual(words[1], "Hop 3 of 3: no rank waits.")
        shares = page.eval("document.getElementById('figures').textContent")
        self.assertEqual(re.findall(r"(\d+)%", shares)[1], "100")


if __name__ == "__main__":
    main()
