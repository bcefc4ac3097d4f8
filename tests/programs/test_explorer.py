"""The trace that every program writes, and the explorer's pages that replay it, in a browser.

Argument: a build folder.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from browser import FOUND, MISSING, Browser
from copies import ROOT, copy_scripts, maintain

BUILD = os.path.abspath(sys.argv.pop()) if len(sys.argv) > 1 else f"{ROOT}/build/sim"

from flash_steps import explorer  # noqa: E402  (copies.py makes it known)
from flash_steps.explorer_pages import (  # noqa: E402
    COMPARED,
    COMPARED_OPENING,
    FUSED,
    OWN_M,
    PAGES,
    SWAPPED,
    Run,
)
from flash_steps.mpi import has_mpi  # noqa: E402

KINDS = explorer.KINDS
OPERATIONS = dict(zip(KINDS, ("load", "store", "atomic")))
LARGEST_PAGE = 3_000_000
WIDTHS = (400, 1200)
READY = "document.body.ariaBusy === 'false'"  # no run is on its way


def run(step, *arguments):
    program = os.path.join(BUILD, "steps", step)
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)


def report_of(one):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        run(one.step, *one.arguments, "--json", path)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def requested_by(report):
    """All bytes that a run requests, in all its passes."""
    parts = passes_of(report).values()
    return sum(sum(part["requested"]["counted"].values()) for part in parts)


def passes_of(report):
    parts = {"forward": report, "backward": report["backward"], "prepare": report["prepare"]}
    return {name: part["traffic"] for name, part in parts.items() if part}


# What text of a page has less contrast than 4.5 to 1.
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


class Trace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def trace(self, step, *arguments):
        trace, report = self.folder / "trace.json", self.folder / "report.json"
        done = run(step, *arguments, "--trace", trace, "--json", report)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(trace.read_text()), json.loads(report.read_text())

    def test_no_byte_is_lost(self):
        """Sums over the events: the report's counts, of each pass and buffer of each step."""
        for page in PAGES:
            small = ("--b", 2, "--h", 2, "--n", 100)
            if page.first.group:
                small = ("--b", 2, "--h", 4, "--hkv", 2, "--n", 3, "--nk", 700)
            for causal in ((), ("--causal",)):
                with self.subTest(step=page.step, causal=causal):
                    trace, report = self.trace(page.step, *small, *causal)
                    self.compare(trace, report)

    def compare(self, trace, report):
        about = trace["flash_steps"]
        sums, touches = {}, {}
        for e in (e for e in trace["traceEvents"] if e["ph"] == "X"):
            a, place = e["args"], about["places"][e["args"]["place"]]
            if place["space"] == "shared":
                continue
            name = about["kernels"][e["pid"]]["pass"]
            row = sums.setdefault((name, place["name"]), {})
            for what in ("bytes", "requests", "sectors"):
                by_kind = row.setdefault(what, dict.fromkeys(KINDS, 0))
                if what != "sectors" or a["how"] != "TMA":
                    by_kind[a["kind"]] += a[what]
            for kind, moved in zip(KINDS, a["first_touch"]):
                touches[name, kind] = touches.get((name, kind), 0) + moved
        for name, traffic in passes_of(report).items():
            for buffer, counts in traffic["requested"]["buffers"].items():
                row = sums.pop((name, buffer))
                self.assertEqual(row["bytes"], counts["counted"], (name, buffer))
                for what in ("requests", "sectors"):
                    counted = counts.get(what) or dict.fromkeys(OPERATIONS.values(), 0)
                    want = {kind: counted[OPERATIONS[kind]] for kind in KINDS}
                    self.assertEqual(row[what], want, (name, buffer, what))
                self.assertEqual(row["bytes"], about["totals"][name][buffer]["bytes"])
            model = traffic["hbm"]["model"]
            self.assertEqual({kind: touches[name, kind] for kind in ("read", "write")}, model)
        self.assertEqual(sums, {})

    def test_what_perfetto_needs(self):
        trace, _ = self.trace("04_fused", "--h", 2, "--n", 64)
        tracks, ends = {}, {}
        for e in trace["traceEvents"]:
            if e["ph"] == "M":
                tracks[e["name"], e["pid"], e.get("tid")] = e["args"]["name"]
                continue
            self.assertEqual(e["ph"], "X")
            track = e["pid"], e["tid"]
            self.assertIn(("thread_name", *track), tracks)
            self.assertGreaterEqual(e["ts"], ends.get(track, 0))  # in order, none over another
            self.assertGreater(e["dur"], 0)
            ends[track] = e["ts"] + e["dur"]
        self.assertIn("flash_fwd_kernel", tracks["process_name", 0, None])
        self.assertEqual(tracks["thread_name", 0, 1], "block (0,1,0)")

    def test_a_trace_is_the_same_each_time_and_names_no_folder(self):
        first = self.trace("06_work_partitioning", "--h", 1, "--n", 100)[0]
        self.assertEqual(first, self.trace("06_work_partitioning", "--h", 1, "--n", 100)[0])
        self.assertNotIn(ROOT, json.dumps(first))
        paths = {line["path"] for line in first["flash_steps"]["lines"]}
        self.assertIn("steps/06_work_partitioning/2_registers.cuh", paths)

    def test_bad_use(self):
        for arguments, words in (
            (("--trace", "/nowhere/t.json"), "--trace /nowhere/t.json: cannot be written"),
            (("--trace", self.folder), "cannot be written"),
            (("--trace", self.folder / "t.json", "--predict"), "--predict runs nothing"),
            (("--trace", self.folder / "t.json", "--json", self.folder / "t.json"), "same file"),
        ):
            with self.subTest(arguments=arguments):
                done = run("01_naive", *arguments)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(len(done.stderr.splitlines()), 1)
                self.assertIn(words, done.stderr)
        self.assertFalse((self.folder / "t.json").exists())


class Pages(unittest.TestCase):
    def test_bad_use(self):
        for arguments, words in (
            (("--check", "--jobs", "0", "index"), "--jobs 0: must be at least 1"),
            (("--check", "--keep-traces", "index"), "--keep-traces makes none: give one"),
            (("--quick", "index"), "--quick is for --check"),
        ):
            with self.subTest(arguments=arguments):
                done = maintain("explorer", *arguments)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(len(done.stderr.splitlines()), 1)
                self.assertIn(words, done.stderr)

    def test_kept_traces_of_other_sources_are_refused(self):
        with tempfile.TemporaryDirectory() as root:
            copy_scripts(root)
            for folder in ("docs/explorer", "docs/results", "steps", "common"):
                shutil.copytree(f"{ROOT}/{folder}", f"{root}/{folder}")
            again = ("explorer", "--keep-traces", "--build", "/nowhere", "06")
            page = pathlib.Path(root, "docs/explorer/06_work_partitioning.html")
            before = page.read_text()
            self.assertEqual(maintain(*again, root=root).returncode, 0)
            self.assertEqual(page.read_text(), before)
            kernel = pathlib.Path(root, "steps/06_work_partitioning/2_registers.cuh")
            kernel.write_text("// A line that was not there.\n" + kernel.read_text())
            done = maintain(*again, root=root)
            self.assertEqual(done.returncode, 1)
            self.assertIn("the kept traces are of other sources", done.stderr)
            self.assertEqual(page.read_text(), before)
            # Nor may a page pass that has got the new lines and kept the old numbers.
            held = explorer.blobs_in(before)["sources"]
            lines = {path: pathlib.Path(root, path).read_text().splitlines() for path in held}
            page.write_text(before.replace(explorer.pack(held), explorer.pack(lines)))
            done = maintain("explorer", "--check", "--build", "/nowhere", "06", root=root)
            self.assertEqual(done.returncode, 1)
            self.assertIn("2_registers.cuh", done.stderr)
            self.assertIn("was another line", done.stderr)

    def test_they_are_up_to_date(self):
        done = maintain("explorer", "--check", "--quick", "--build", BUILD)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_they_are_small(self):
        for name in [*(page.step for page in PAGES), "compare", "index"]:
            self.assertLess(os.path.getsize(explorer.path_of(name)), LARGEST_PAGE, name)

    def test_every_link_leads_somewhere(self):
        order = ["index", "compare", *(page.step for page in PAGES)]
        for at, name in enumerate(order):
            text = explorer.without_blobs(pathlib.Path(explorer.path_of(name)).read_text())
            links = set(re.findall(r'<a href="([^"]+)"', text))
            wanted = {"../glossary.md"}
            wanted |= {f"../../steps/{name}/README.md"} if at > 1 else set()
            wanted |= {f"{other}.html" for other in order[max(0, at - 1) : at + 2] if other != name}
            self.assertLessEqual(wanted, links, name)
            for link in links:
                path = os.path.join(explorer.FOLDER, link)
                self.assertTrue(os.path.isfile(path), f"{name}: {link}")

    def test_the_fold_explains_what_a_page_shows(self):
        terms = {}
        for name in ["compare", *(page.step for page in PAGES)]:
            text = pathlib.Path(explorer.path_of(name)).read_text()
            (fold,) = re.findall(r'<details class="fold">.*?</details>', text)
            terms[name] = re.findall(r"<dt>(.*?)</dt><dd>.+?\.</dd>", fold)
            self.assertLessEqual({"N, d", "HBM, L2", "requested bytes"}, set(terms[name]), name)
        for term, pages in (
            ("m, l", {"04_fused", "06_work_partitioning", "10_warp_specialized", "compare"}),
            ("M", {"04_fused"}),
            ("delta", {"05_recompute_backward", "11_hopper_backward"}),
            ("sector", {"01_naive", "12_fp8"}),
            ("wgmma", {"09_tma_wgmma", "12_fp8"}),
        ):
            self.assertLessEqual(pages, {name for name in terms if term in terms[name]}, term)
        for name, without in (
            ("01_naive", {"m, l", "LSE", "Br, Bc", "M", "TMA", "atomic", "bank, wavefront"}),
            ("07_tensor_cores", {"wgmma", "TMA", "M", "delta"}),
            ("compare", {"sector", "request", "bank, wavefront"}),
        ):
            self.assertEqual(without.intersection(terms[name]), set(), name)

    def test_a_variant_without_a_run_requests_the_bytes_of_one_with(self):
        for page in PAGES:
            done = run(page.step, "--list-variants")
            shown = {one.variant for one in page.runs}
            self.assertEqual(shown | set(page.left_out), set(done.stdout.split()), page.step)
            self.assertEqual(shown & set(page.left_out), set(), page.step)
            text = pathlib.Path(explorer.path_of(page.step)).read_text()
            for variant, same in page.left_out.items():
                with self.subTest(step=page.step, variant=variant):
                    self.assertIn(same, shown)
                    self.assertIn(f"{variant} (same bytes as {same})", text)
                    both = [report_of(Run(page.step, each, 128)) for each in (variant, same)]
                    self.assertEqual(*map(requested_by, both))

    def test_hbm_at_full_size_is_what_was_measured(self):
        """Read from docs/results without the code that made the pages."""
        found = 0
        files = [
            pathlib.Path(ROOT, "docs/results", f"{name}.json") for name in ("h200", "h200_bf16")
        ]
        runs = [each for file in files for each in json.loads(file.read_text())["runs"]]
        measured = [each for each in runs if each["device"]["kind"] == "gpu"]
        for name in ["compare", *(page.step for page in PAGES)]:
            text = pathlib.Path(explorer.path_of(name)).read_text()
            tree = re.search(r'<script type="application/json" id="page">(.*?)</script>', text)
            for one in json.loads(tree[1])["runs"]:
                full = one["full"]
                if full is None:
                    continue
                self.assertEqual(full["n"], explorer.FULL_N)
                sums = []
                for each in measured:
                    p = each["problem"]
                    key = (each["step"], each["variant"], p["n"], p["d"], p["causal"], p["smem"])
                    heads = p["b"] * p["h"]
                    if (*key, heads) != (
                        *(one["step"], one["variant"], full["n"], one["d"], one["causal"], None),
                        full["heads"],
                    ):
                        continue
                    hbm = [
                        t["hbm"]["measured"] for t in passes_of({"prepare": None, **each}).values()
                    ]
                    sums += [{k: sum(h[k] for h in hbm) for k in ("read", "write")}] * all(hbm)
                self.assertIn({k: full[k] for k in ("read", "write")}, sums, one["id"])
                self.assertIn(one["smem"], (0, OWN_M))
                found += 1
        self.assertGreater(found, 20)

    def test_the_own_m_has_the_tiles_of_the_steps_choice(self):
        for d in (64, 128):
            names = []
            for m in (0, OWN_M):
                with tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, "trace.json")
                    run("04_fused", *Run("04_fused", "fused", 64, d, smem=m).arguments,
                        "--trace", path)  # fmt: skip
                    with open(path, encoding="utf-8") as file:
                        names += [[k["name"] for k in json.load(file)["flash_steps"]["kernels"]]]
            self.assertEqual(*names)

    def test_a_page_of_another_script_or_trace_is_found(self):
        with tempfile.TemporaryDirectory() as root:
            copy_scripts(root)
            for folder in ("docs/explorer", "docs/results", "steps", "common"):
                shutil.copytree(f"{ROOT}/{folder}", f"{root}/{folder}")
            check = ("explorer", "--check", "--quick", "--build", BUILD, "06")
            self.assertEqual(maintain(*check, root=root).returncode, 0)
            path = pathlib.Path(root, "docs/explorer/06_work_partitioning.html")
            page = path.read_text()
            path.write_text(page.replace("walks over K and V", "walks over V"))
            done = maintain(*check, root=root)
            self.assertEqual(done.returncode, 1)
            self.assertIn("is not what docs/explorer/src", done.stderr)
            name = Run("06_work_partitioning", "swapped", 128).name
            content = explorer.blobs_in(page)[name]
            packed = explorer.pack(content)
            content["blocks"][0][0][2][0][5] += 4  # bytes of an event
            self.assertIn(packed, page)
            path.write_text(page.replace(packed, explorer.pack(content)))
            done = maintain(*check, root=root)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"{name} is not what the program's trace says", done.stderr)


@unittest.skipUnless(FOUND, MISSING)
class InBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser().__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.browser.__exit__()

    def open(self, name, **how):
        self.page = self.browser.open(explorer.path_of(name), **how)
        self.addCleanup(self.page.close)
        if name != "index":  # it has no picture
            self.page.until("document.documentElement.dataset.ready")

    def value(self, expression):
        return self.page.eval(expression)

    def set(self, selector, value):
        """What a reader's hand at a slider or a list does."""
        key = "checked" if isinstance(value, bool) else "value"
        self.value(
            f"(() => {{ const e = document.querySelector('{selector}');"
            f" e.{key} = {json.dumps(value)}; e.dispatchEvent(new Event('input')); }})()"
        )

    def test_no_link_leads_to_raw_markdown(self):
        for name, words in (
            ("04_fused", ["Chapter 04: steps/04_fused/README.md", "Glossary: docs/glossary.md"]),
            ("14_ring", ["Chapter 14: steps/14_ring/README.md", "Glossary: docs/glossary.md"]),
            ("index", ["Glossary: docs/glossary.md"]),
        ):
            page = self.browser.open(explorer.path_of(name))
            self.addCleanup(page.close)
            links = page.eval("[...document.querySelectorAll('a')].map((a) => a.href)")
            self.assertEqual([link for link in links if link.endswith(".md")], [])
            shown = page.eval("document.body.textContent")
            for part in words:
                self.assertIn(part, shown)

    def position(self):
        return int(self.value("document.getElementById('scrub').value"))

    def last(self):
        return int(self.value("document.getElementById('scrub').max"))

    def table(self):
        """{buffer: {kind: bytes}} as the page shows them."""
        rows = self.value(
            "[...document.querySelectorAll('tr[data-buffer]')].map((row) => [row.dataset.buffer,"
            " [...row.querySelectorAll('[data-bytes]')].map((c) => [+c.dataset.bytes,"
            " +c.textContent.replace(/,/g, '')])])"
        )
        for _, cells in rows:
            for exact, shown in cells:
                self.assertEqual(exact, shown)
        return {
            name: {**dict.fromkeys(KINDS, 0), **dict(zip(KINDS, (exact for exact, _ in cells)))}
            for name, cells in rows
        }

    def choose(self, wanted):
        """Sets a step page's controls to a run."""
        for key in ("variant", "n", "d", "smem", "causal"):
            alike = (
                f"r.variant === '{wanted.variant}' && r.d === {wanted.d}"
                if key == "smem"
                else "true"
            )
            stops = self.value(
                f"[...new Set(PAGE.runs.filter((r) => {alike}).map((r) => r.{key}))]"
                ".filter((v) => v !== 0)"
            )
            value = getattr(wanted, key)
            if len(stops) < 2 or value not in stops:
                continue
            if key in ("n", "d", "smem"):
                value = sorted(stops).index(value)
            self.set(f"#set-{key}", value)
        self.page.until(READY)

    def test_every_page_at_every_width(self):
        names = ["index", "compare", *(page.step for page in PAGES)]
        for name in names:
            for width in WIDTHS:
                for dark in (False, True):
                    with self.subTest(page=name, width=width, dark=dark):
                        self.open(name, width=width, dark=dark)
                        self.page.key("End")
                        self.assertEqual(self.page.overflow(), 0)
                        light = self.value(
                            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)"
                            ".reduce((n, x) => n + +x, 0)"
                        )
                        self.assertEqual(light < 300, dark)
                        self.assertEqual(self.page.errors(), [])

    def test_the_ranks_of_step_14(self):
        """Who waits, and sums of the hops' bytes against the program's totals."""
        kept = explorer.kept_ring()
        self.assertEqual({one["ranks"] for one in kept}, {2, 4, 8})
        for width in WIDTHS:
            for dark in (False, True):
                self.open("14_ring", width=width, dark=dark)
                self.page.key("End")
                self.assertEqual(self.page.overflow(), 0)
                self.assertEqual(self.value(FAINT), [])
                self.assertEqual(self.page.errors(), [])
        for one in kept:
            for way in ("forward", "backward"):
                with self.subTest(variant=one["variant"], ranks=one["ranks"], way=way):
                    chosen = {**{k: one[k] for k in ("variant", "ranks", "causal")}, "pass": way}
                    for name, value in chosen.items():
                        key = "checked" if name == "causal" else "value"
                        self.value(
                            f"document.getElementById('set-{name}').{key} = {json.dumps(value)}"
                        )
                    self.value(
                        "document.getElementById('controls').dispatchEvent(new Event('change'))"
                    )
                    self.page.key("End")
                    self.assertIn(
                        "= the program's", self.value("document.getElementById('sum').textContent")
                    )
                    cells = self.value(
                        "[...document.querySelectorAll('tbody tr')].map((row) =>"
                        " [...row.cells].slice(2).map((c) => +c.innerText.replace(/,/g, '')))"
                    )
                    scores, waited, sent = map(list, zip(*cells))
                    self.assertEqual(scores, [sum(each) for each in one["scores"]])
                    self.assertEqual(sent, [each[way == "backward"] for each in one["sent"]])
                    fair = one["variant"] == "zigzag" or not one["causal"]
                    self.assertEqual(max(waited) == 0, fair)

    @unittest.skipUnless(has_mpi(f"{BUILD}/steps/14_ring"), "no mpirun here")
    def test_the_ranks_are_those_of_the_program(self):
        self.assertEqual(maintain("explorer", "--check", "--build", BUILD, "14").returncode, 0)

    def test_the_longest_numbers_fit_a_phone(self):
        for page in PAGES:
            self.open(page.step, width=400)
            for variant in {one.variant for one in page.runs}:
                runs = [one for one in page.runs if one.variant == variant and not one.causal]
                largest = max(runs, key=lambda one: (one.n, one.d))
                with self.subTest(run=largest.name):
                    self.choose(largest)
                    shown = self.value("document.getElementById('set-n').nextSibling.textContent")
                    self.assertEqual(int(shown), largest.n)
                    self.page.key("End")
                    self.assertEqual(self.page.overflow(), 0)

    def test_the_totals_are_the_programs_counts(self):
        """Of a fresh run of each step's program, to the byte."""
        for page in PAGES:
            other = next((r for r in page.runs if r.causal), page.runs[-1])  # one query has no mask
            wanted = [page.runs[0], other, page.first]
            self.open(page.step)
            for one in wanted:
                with self.subTest(run=one.name):
                    self.choose(one)
                    self.page.key("End")
                    report = report_of(one)
                    want = {}
                    for traffic in passes_of(report).values():
                        for buffer, counts in traffic["requested"]["buffers"].items():
                            row = want.setdefault(buffer, dict.fromkeys(KINDS, 0))
                            for kind in KINDS:
                                row[kind] += counts["counted"][kind]
                    want["all"] = {k: sum(row[k] for row in want.values()) for k in KINDS}
                    self.assertEqual(self.table(), want)
                    checked = "document.querySelector('.table .checked').className"
                    self.assertEqual(self.value(checked), "checked equal")
                    hbm = sum(sum(t["hbm"]["model"].values()) for t in passes_of(report).values())
                    shown = "+document.querySelector('[data-level=hbm]').dataset.bytes"
                    self.assertEqual(self.value(shown), hbm)
        self.assertEqual(self.page.errors(), [])

    def test_play_moves_the_counters_and_stops_at_the_end(self):
        self.open("04_fused")
        self.assertEqual(self.table()["all"]["read"], 0)
        self.page.click("#play")
        moved = "+document.querySelector('tr[data-buffer=all] [data-bytes]').dataset.bytes"
        self.page.until(f"{moved} > 0")
        self.assertEqual(self.value("document.getElementById('play').ariaLabel"), "Pause")
        self.page.key(" ")
        here = self.position()
        self.value("new Promise((r) => setTimeout(r, 400))")
        self.assertEqual(self.position(), here)
        self.set("#speed", "16")
        self.page.key(" ")
        self.page.until("document.getElementById('scrub').value === "
                           "document.getElementById('scrub').max")  # fmt: skip
        self.page.until("document.getElementById('play').ariaLabel === 'Play'")
        self.assertEqual(self.page.errors(), [])

    def test_a_key_before_the_first_picture(self):
        page = self.page = self.browser.open(explorer.path_of("10_warp_specialized"))
        self.addCleanup(page.close)
        for key in (" ", "End", "ArrowRight"):
            page.key(key)
        page.until(READY)
        self.assertEqual(page.errors(), [])

    def test_what_a_tile_holds(self):
        """K's place never holds V, in any step: a copy into shared memory has its own source."""
        for name in (page.step for page in PAGES):
            self.open(name)
            places = self.value(
                "(async () => { const found = []; for (const run of PAGE.runs.slice(0, 3)) {"
                " const r = await runOf(run);"
                " r.kernels.forEach((k) => k.blocks[0].events.forEach((e) => {"
                " const to = r.placeOf(e); if (to.space === 'global' || e.kind !== 1) return;"
                " const from = r.source(e); if (from) found.push([to.name, r.placeOf(from).name]);"
                " })); } return found; })()"
            )
            for to, source in places:
                if to.split()[0] in ("Q", "K", "V", "dO"):
                    with self.subTest(page=name, place=to):
                        self.assertEqual(source.rstrip("8"), to.split()[0])

    def test_words_for_bytes(self):
        self.open("01_naive")
        for n, words in ((999, "999 B"), (1000, "1.00 kB"), (999_499, "999 kB")):
            self.assertEqual(self.value(f"bytes({n})"), words)
        for n, words in ((999_600, "1.00 MB"), (1_234_000_000_000, "1.23 TB")):
            self.assertEqual(self.value(f"bytes({n})"), words)

    def test_the_keyboard(self):
        self.open("06_work_partitioning")
        for key, want in (
            ("ArrowRight", 1),
            ("Shift+ArrowRight", 11),
            ("ArrowLeft", 10),
            ("End", self.last()),
            ("ArrowRight", self.last()),
            ("Home", 0),
            ("ArrowLeft", 0),
        ):
            self.page.key(key)
            self.assertEqual(self.position(), want, key)
        self.assertEqual(self.position(), 0)
        self.value("document.getElementById('scrub').focus()")  # a slider has keys of its own
        for key, want in (("End", self.last()), ("Home", 0), ("ArrowRight", 1)):
            self.page.key(key)
            self.assertEqual(self.position(), want, key)
        taken = (
            "((at, key) => { at.focus();"
            " const e = new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true });"
            " return !at.dispatchEvent(e); })(%s, '%s')"
        )
        element = "document.querySelector('%s')"
        everything = ["ArrowLeft", "Home", "End", " "]
        for selector, keys in (
            ("body", everything),
            (".picture", everything),
            ("#scrub", [" "]),
            ("#step", ["ArrowLeft", "Home", "End"]),  # a button has Space
            ("#theme", ["ArrowLeft"]),
            ("nav a", ["ArrowLeft"]),
            ("#speed", []),
            ("#set-n", []),
            ("#set-causal", []),
        ):
            for key in everything:
                with self.subTest(focus=selector, key=key):
                    self.assertEqual(self.value(taken % (element % selector, key)), key in keys)
        self.open("06_work_partitioning")
        reached = set()
        for _ in range(40):
            self.page.key("Tab")
            reached.add(self.value("document.activeElement.id || document.activeElement.className"))
        for control in ("theme", "play", "scrub", "speed", "set-n", "block", "picture"):
            self.assertIn(control, reached)
        self.assertEqual(self.page.errors(), [])

    def test_every_control_has_a_name(self):
        for name in ("04_fused", "compare"):
            self.open(name)
            nameless = self.value(
                "[...document.querySelectorAll('button, input, select, canvas')].filter((e) =>"
                " !(e.ariaLabel || e.labels?.length || e.textContent.trim()))"
                ".map((e) => e.outerHTML)"
            )
            self.assertEqual(nameless, [])

    def test_scrubbing_back_shows_the_same(self):
        self.open("01_naive")
        half = self.last() // 2
        self.set("#scrub", half)
        before = self.table(), self.value("document.getElementById('status').textContent")
        self.page.key("End")
        self.set("#scrub", half)
        again = self.table(), self.value("document.getElementById('status').textContent")
        self.assertEqual(before, again)

    def test_a_line_and_a_request_stand_beside_the_picture(self):
        self.open("01_naive")
        self.page.key("ArrowRight")
        self.page.key("ArrowRight")
        self.assertIn(
            "reads K, rows 0 to 31:", self.value("document.getElementById('status').textContent")
        )
        self.assertIn(
            "s += q[x] * k[x]", self.value("document.querySelector('pre .at').textContent")
        )
        self.assertIn(
            "32 lanes × 4 B = 128 B in 32 sectors",
            self.value("document.querySelector('.request').textContent"),
        )
        self.open("04_fused")
        for _ in range(20):  # to the first tile: a function that the kernel calls
            self.page.key("ArrowRight")
            if self.value("document.querySelector('pre .call') !== null"):
                break
        called = self.value("document.querySelector('pre .call').textContent")
        self.assertRegex(called, r"load_tile|dot_rows")

    def test_a_tip_names_the_element(self):
        for name in ("01_naive", "compare"):
            self.open(name)
            self.page.key("End")
            box = self.value(
                "(() => { const c = document.querySelector('.picture'); c.scrollIntoView();"
                " const r = c.getBoundingClientRect(); return [r.x, r.y, r.width]; })()"
            )
            words = set()
            for x in range(10, int(box[2]), 12):
                self.page.mouse(box[0] + x, box[1] + 200)
                if self.value("!document.getElementById('tip').hidden"):
                    words.add(
                        self.value("document.getElementById('tip').textContent").split(",")[0]
                    )
            self.assertLessEqual({"Q", "O"}, words)

    def test_sliders_and_lists(self):
        self.open("04_fused")
        self.page.key("End")
        first = self.table()
        self.set("#set-smem", 0)  # narrow tiles of keys: O comes and goes more often
        self.page.until(READY)
        self.page.key("End")
        self.assertGreater(self.table()["O"]["write"], 2 * first["O"]["write"])
        self.open("06_work_partitioning")
        self.page.key("End")
        whole = self.table()
        self.set("#set-causal", True)
        self.page.until(READY)
        self.page.key("End")
        self.assertLess(self.table()["K"]["read"], whole["K"]["read"])
        blocks = self.value("document.getElementById('block').options.length")
        self.assertEqual(blocks, 4)
        for name, stops, widths in (
            ("64", 4, [16, 32, 64, 128]),
            ("128", 4, [16, 32, 64, 128]),
        ):  # each stop of M has tiles of its own
            self.open("04_fused")
            self.set("#set-d", ("64", "128").index(name))
            self.page.until(READY)
            found = []
            for stop in range(stops):
                self.set("#set-smem", stop)
                self.page.until(READY)
                found.append(self.value("document.querySelector('.tiles').textContent"))
            self.assertEqual([int(text.split()[-1]) for text in found], widths)
            self.assertEqual(self.value("+document.getElementById('set-smem').max"), stops - 1)
        self.open("06_work_partitioning")
        self.set("#block", "2")
        self.page.key("Home")
        self.page.key("ArrowRight")
        self.assertIn("Block (2,0,0)", self.value("document.getElementById('status').textContent"))

    def test_a_tile_in_shared_memory_has_the_rows_of_device_memory(self):
        said = (
            "(async () => { const r = await runOf(PAGE.runs.find((r) => r.id === PAGE.first));"
            " const view = new View(document.createElement('div'), true); view.show(r);"
            " return view.steps.map((s, i) => { view.set(i); return view.text; }); })()"
        )
        self.open("07_tensor_cores")
        rows = self.value(said)
        shared = [text for text in rows if "shared memory" in text]
        named = [text for text in shared if "computed values" not in text]
        self.assertGreater(len(named), 8)
        for text in named:
            self.assertRegex(
                text, r"(reads|writes) [QKV], rows \d+ to \d+, (from|to) shared memory"
            )
        self.assertTrue(any("K, rows 128 to 255" in text for text in named), named)
        # A copy by TMA fills the parts of two warpgroups: each reads its own rows.
        self.open("09_tma_wgmma")
        texts = {text.partition(") ")[2] for text in self.value(said)}
        self.assertIn("writes Q, rows 0 to 127, to shared memory by TMA: 16,384 B", texts)
        for rows in ("0 to 63", "64 to 127"):
            self.assertIn(f"reads Q, rows {rows}, from shared memory by wgmma: 8,192 B", texts)
        self.open("12_fp8")  # the epilogue stores registers: no buffer's rows
        (stored,) = {text.split(": ")[0] for text in self.value(said) if "stmatrix" in text}
        self.assertIn("writes computed values to O in shared memory by stmatrix", stored)
        self.assertFalse([text for text in rows if "[" in text or "undefined" in text])

    def test_a_decoding_split_has_keys_of_its_own(self):
        """A block reads its split's keys, its warps hold some of them, and its rows of O_parts are
        its own."""
        self.open("13_decode")
        self.set("#set-variant", "groups")
        self.page.until(READY)
        label = "document.getElementById('set-n').parentNode.firstChild.textContent"
        self.assertEqual(self.value(label), "Nk")
        keys = range(0, 1024, 128)  # of splits, at d = 128
        for block, first in enumerate(keys):
            self.set("#block", str(block))
            said = self.value(
                "(async () => { const r = await runOf(PAGE.runs.find((r) => r.variant === 'groups'"
                " && r.n === 1024 && r.d === 128));"
                " const v = new View(document.createElement('div'),"
                f" true); v.follow = {block}; v.show(r);"
                " return v.steps.map((s, i) => { v.set(i); return v.text; }); })()"
            )
            words = (
                f"Block ({block},0,0) reads K, rows {first} to {first + 127} by cp.async: 32,768 B"
            )
            self.assertIn(words, said)
            held = f"writes some of K, rows {first} to {first + 127}, to shared memory by cp.async"
            self.assertTrue(any(held in text for text in said), said)
            part = f"writes O_parts, rows {4 * block} to {4 * block + 3}: 2,048 B"
            self.assertTrue(any(part in text for text in said), said)
        self.assertEqual(self.page.errors(), [])

    def test_the_legend_has_the_colours_of_the_run(self):
        hidden = "document.querySelector('.legend .adds').hidden"
        for name, variant, adds in (
            ("04_fused", "fused", False),
            ("08_tensor_core_backward", "roles", True),
            ("08_tensor_core_backward", "deterministic", False),
        ):
            self.open(name)
            self.set("#set-variant", variant)
            self.page.until(READY)
            self.assertEqual(self.value(hidden), not adds, (name, variant))
        self.open("12_fp8")
        legend = self.value("document.querySelector('.legend').textContent")
        self.assertIn("Too small to draw: Q_scale", legend)
        names = self.value("[...document.querySelectorAll('#kernels button')].map((b) =>"
                           " [b.textContent, b.scrollWidth <= b.clientWidth])")  # fmt: skip
        self.assertIn("2 quantise block → K8", [text for text, _ in names])
        self.assertTrue(all(whole for _, whole in names), names)
        self.page.set_size(400)
        widths = self.value("[...document.querySelectorAll('#kernels button')].every((b) =>"
                            " b.scrollWidth <= b.clientWidth)")  # fmt: skip
        self.assertTrue(widths)

    def test_text_can_be_read_in_light_and_dark(self):
        """A contrast of 4.5 to 1 at least, of all text that is no picture."""
        for name in ("index", "compare", "01_naive", "04_fused", "11_hopper_backward"):
            for dark in (False, True):
                with self.subTest(page=name, dark=dark):
                    self.open(name, dark=dark)
                    self.page.key("End")
                    self.value("document.querySelectorAll('details').forEach((d) => d.open = true)")
                    self.value("new Promise((r) => setTimeout(r, 200))")  # bars grow
                    self.assertEqual(self.value(FAINT), [])

    def test_first_values_have_a_row(self):
        part = (
            "Object.fromEntries([...document.querySelectorAll('tr[data-part]')].map((row) =>"
            " [row.dataset.part, +row.querySelector('[data-bytes]').dataset.bytes]))"
        )
        self.open("04_fused")
        self.assertEqual(self.value(part), {"m": 0, "l": 0, "O": 0})
        self.page.key("End")
        self.assertEqual(self.value(part), {"m": 256 * 4, "l": 256 * 4, "O": 256 * 64 * 4})
        full = "+document.querySelector('.full').dataset.bytes"
        self.assertGreater(self.value(full), 1e9)
        self.set("#set-smem", 0)  # tiles that were not measured
        self.page.until(READY)
        self.assertEqual(self.value(full), 0)
        for name, want in (("01_naive", {}), ("06_work_partitioning", {})):
            self.open(name)
            self.page.key("End")
            self.assertEqual(self.value(part), want)
        self.open("05_recompute_backward")
        self.page.key("End")
        self.assertEqual(self.value(part)["dQ"], 256 * 64 * 4)
        self.set("#set-variant", "standard")  # dP becomes dS in place: no first value
        self.page.until(READY)
        self.page.key("End")
        self.assertEqual(self.value(part), {})

    def test_the_theme_can_be_changed(self):
        self.open("04_fused")
        theme = "document.documentElement.dataset.theme"
        before = self.value(theme)
        self.page.click("#theme")
        self.assertNotEqual(self.value(theme), before)
        self.page.click("#theme")
        self.assertEqual(self.value(theme), before)
        for dark in (True, False):  # the system's change is not the reader's
            self.page.set_dark(dark)
            self.value("new Promise((r) => setTimeout(r, 60))")
            self.assertEqual(self.value(theme), before)
        self.value("localStorage.removeItem('theme')")
        self.open("index")
        self.page.set_dark(True)
        self.page.until(f"{theme} === 'dark'")
        self.page.click("#theme")
        self.assertEqual(self.value(theme), "light")
        self.value("localStorage.removeItem('theme')")
        self.assertEqual(self.page.errors(), [])

    def test_two_runs_side_by_side(self):
        """Why step 04 moves more than step 06, in the page's own numbers."""
        self.open("compare")
        self.page.key("End")
        rows = self.value(
            "Object.fromEntries([...document.querySelectorAll('tr[data-buffer]')].map((row) =>"
            " [row.dataset.buffer, [...row.querySelectorAll('td')].slice(1).map((c) =>"
            " +(c.dataset.bytes ?? -1))]))"
        )
        n = 256 * 64 * 4
        self.assertEqual(rows["O"], [4 * n, 5 * n, 0, n])
        self.assertEqual(rows["Q"], [4 * n, 0, n, 0])
        self.assertEqual(rows["K"], [n, 0, 4 * n, 0])
        totals = self.value("[...document.querySelectorAll('[data-total]')].map((b) =>"
                            " +b.dataset.bytes)")  # fmt: skip
        self.assertGreater(totals[0], totals[1])
        counted = [report_of(one)["traffic"]["requested"]["counted"] for one in COMPARED_OPENING]
        self.assertEqual(totals, [sum(c.values()) for c in counted])
        self.assertIn("to the byte", self.value("document.querySelector('.checked').textContent"))
        sums = [sum(row[i] for name, row in rows.items() if name != "all" and row[i] > 0)
                for i in range(4)]  # fmt: skip
        self.assertEqual(rows["all"], sums)
        self.assertEqual([sums[0] + sums[1], sums[2] + sums[3]], totals)
        zeroed = self.value(
            "[...document.querySelectorAll('[data-part=O] [data-bytes]')]"
            ".map((c) => +c.dataset.bytes)"
        )
        self.assertEqual(zeroed, [n])  # step 06 writes O only once, at the end
        # The ratio at each N, of fresh runs; the full size, as on the pages of the steps.
        ratios = []
        for size in (128, 256, 512):
            a, b = (requested_by(report_of(Run(*side, size))) for side in (FUSED, SWAPPED))
            ratios.append(f"{round(a / b, 2):g}× at N\u00a0=\u00a0{size}")
        growth = self.value("document.querySelector('.growth').textContent")
        self.assertIn(", ".join(ratios), growth)
        self.assertIn("Both grow alike, so the ratio hardly changes", growth)
        self.set("#set-causal", True)
        self.page.until(READY)
        growth = self.value("document.querySelector('.growth').textContent")
        self.assertIn("04 fused grows faster, so the ratio changes", growth)
        self.assertIn("04 fused requests as many bytes as without", growth)
        masked, whole = (
            requested_by(report_of(Run(*SWAPPED, 512, causal=causal))) for causal in (True, False)
        )
        self.assertIn(f"06 swapped requests {round(100 - 100 * masked / whole)}% fewer", growth)
        self.set("#set-causal", False)
        self.page.until(READY)
        full = self.value("[...document.querySelectorAll('[data-full]')].map((b) =>"
                          " [+b.dataset.bytes, b.textContent])")  # fmt: skip
        want = [explorer.full_size(one) for one in COMPARED_OPENING]
        self.assertEqual([exact for exact, _ in full], [w["read"] + w["write"] for w in want])
        words = self.value("document.querySelector('.hbm').textContent")
        for _, text in full:
            self.assertIn(f"{text}", words)
        self.set("#preset", 1)
        self.page.until("document.querySelectorAll('[data-buffer=S]').length > 0")
        self.set("#set-n", 2)
        self.page.until(READY)
        self.page.key("End")
        self.assertIn("to the byte", self.value("document.querySelector('.checked').textContent"))
        self.assertEqual(self.page.errors(), [])
        self.assertEqual(len(COMPARED), 18)
        self.open("compare", width=400)
        for preset in range(3):  # long numbers
            self.set("#preset", preset)
            self.set("#set-n", 2)
            self.page.until(READY)
            self.page.key("End")
            self.assertEqual(self.page.overflow(), 0, preset)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
