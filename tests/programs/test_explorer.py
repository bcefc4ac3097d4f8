"""The trace that every program writes, and the explorer's pages that replay it, in a browser.

Argument: a build folder.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from browser import FOUND, MISSING, Browser
from copies import ROOT, copy_scripts, maintain

BUILD = os.path.abspath(sys.argv.pop()) if len(sys.argv) > 1 else f"{ROOT}/build/sim"

from flash_steps import explorer  # noqa: E402  (copies.py makes it known)
from flash_steps.explorer_pages import COMPARED, COMPARED_OPENING, PAGES, Run  # noqa: E402

KINDS = explorer.KINDS
OPERATIONS = dict(zip(KINDS, ("load", "store", "atomic")))
FIRST_PICTURE_MS = 1000
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


def passes_of(report):
    parts = {"forward": report, "backward": report["backward"], "prepare": report["prepare"]}
    return {name: part["traffic"] for name, part in parts.items() if part}


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
            for folder in ("docs/explorer", "steps", "common"):
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

    def test_a_page_of_another_script_or_trace_is_found(self):
        with tempfile.TemporaryDirectory() as root:
            copy_scripts(root)
            shutil.copytree(f"{ROOT}/docs/explorer", f"{root}/docs/explorer")
            shutil.copytree(f"{ROOT}/steps", f"{root}/steps")
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
        """Returns after how many milliseconds the first picture was drawn; the index has none."""
        self.page = self.browser.open(explorer.path_of(name), **how)
        self.addCleanup(self.page.close)
        drawn = "document.documentElement.dataset.ready"
        return float(self.page.until(drawn)) if name != "index" else 0

    def value(self, expression):
        return self.page.eval(expression)

    def set(self, selector, value):
        """What a reader's hand at a slider or a list does."""
        key = "checked" if isinstance(value, bool) else "value"
        self.value(
            f"(() => {{ const e = document.querySelector('{selector}');"
            f" e.{key} = {json.dumps(value)}; e.dispatchEvent(new Event('input')); }})()"
        )

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
            stops = self.value(
                f"[...new Set(PAGE.runs.map((r) => r.{key}))].filter((v) => v !== 0)"
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

    def test_the_first_picture_comes_at_once(self):
        for name in ["compare", *(page.step for page in PAGES)]:
            with self.subTest(page=name):
                best = min(self.open(name) for _ in range(3))
                self.assertLess(best, FIRST_PICTURE_MS)

    def test_the_totals_are_the_programs_counts(self):
        """Of a fresh run of each step's program, to the byte."""
        for page in PAGES:
            wanted = [page.runs[0], next(r for r in page.runs if r.causal), page.first]
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
        self.assertIn("K[0:32, 0:64]", self.value("document.getElementById('status').textContent"))
        self.assertIn(
            "s += q[x] * k[x]", self.value("document.querySelector('pre .at').textContent")
        )
        self.assertIn(
            "32 lanes x 4 B = 128 B in 32 sectors",
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
                        self.value("document.getElementById('tip').textContent").split("[")[0]
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
        self.set("#block", "2")
        self.page.key("Home")
        self.page.key("ArrowRight")
        self.assertIn("Block (2,0,0)", self.value("document.getElementById('status').textContent"))

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
        self.set("#preset", 1)
        self.page.until("document.querySelectorAll('[data-buffer=S]').length > 0")
        self.set("#set-n", 2)
        self.page.until(READY)
        self.page.key("End")
        self.assertIn("to the byte", self.value("document.querySelector('.checked').textContent"))
        self.assertEqual(self.page.errors(), [])
        self.assertEqual(len(COMPARED), 18)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
