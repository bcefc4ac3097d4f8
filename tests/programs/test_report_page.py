#!/usr/bin/env python3
"""report.html: its numbers are those of the JSON, and it works in a browser: hover, keyboard, dark,
a phone's width, saved figures, print. Screenshots of it go to the folder SCREENSHOTS, where set."""

import json
import math
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

import browser
import copies
from flash_steps import attention_map, axes, ladder, report, report_figures, results
from sample_results import gpu, sim, with_backward, with_prepare, write

sys.argv = sys.argv[:1]


def small(step, variant, index, times, **changes):
    """A run that requests and takes `times` less than 01 naive."""
    data = sim(step=step, variant=variant, variant_index=index, **changes)
    data["idea"], data["variant_idea"] = f"the idea of {step}", f"the idea of <{variant}>"
    requested = data["traffic"]["requested"]
    for counts in (
        requested["counted"],
        requested["predicted"],
        *(buffer["counted"] for buffer in requested["buffers"].values()),
    ):
        counts.update({way: n // times for way, n in counts.items()})
    data["estimate"]["ms"] /= times
    data["parent"] = {
        "step": "01 naive",
        "requested": {"predicted": {"read": 2000000000, "write": 40000000, "atomic": 0}},
    }
    return data


def tour():
    """Four steps: one variant; three variants with a backward in the last; one that is as fast as
    the next, whose labels must make room for each other; fp8 with a prepare."""
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
        runs = []
        for i, data in enumerate(documents):
            path = os.path.join(folder, f"{i}.json")
            write(path, data)
            runs += results.load(path)
    return results.join_for_reading(runs)


def page_of(documents, texts=None):
    return report.page(rows_of(documents), texts or {}, os.path.join(copies.ROOT, "report.html"))


class Ladder(unittest.TestCase):
    def setUp(self):
        self.rows = rows_of(tour())

    def test_a_steps_result_is_its_last_variant_of_each_pass(self):
        found = {
            step: ([row.any.label for row in first], [row.any.label for row in others])
            for step, (first, others) in ladder.by_step(self.rows).items()
        }
        self.assertEqual(
            found,
            {
                "01_naive": (["01 naive"], []),
                "06_work_partitioning": (["06 registers", "06 backward bwd"], ["06 swapped"]),
                "10_warp_specialized": (["10 scheduled"], []),
                "12_fp8": (["12 late", "12 late prep"], []),
            },
        )

    def test_a_ladder_is_of_one_problem(self):
        many = rows_of([*tour(), sim(n=4096), gpu(n=4096), gpu("NVIDIA A100-SXM4-80GB", n=4096)])
        self.assertEqual(
            [r.any.label for r in ladder.comparable(many)], [r.any.label for r in self.rows]
        )
        two = rows_of([sim(), sim(n=4096), gpu(n=4096), gpu("NVIDIA A100-SXM4-80GB", n=4096)])
        (row,) = ladder.comparable(two)
        self.assertEqual(row.any.data["problem"]["n"], 4096)

    def test_says_how_much_a_row_changed_since_its_parent(self):
        said = {row.any.label: ladder.against_parent(row) for row in self.rows}
        self.assertEqual(said["01 naive"], "")
        self.assertEqual(said["06 registers"], "40 times fewer than 01 naive")
        more = small("05_x", "x", 0, 1)
        more["traffic"]["requested"]["predicted"]["read"] *= 3
        (row,) = rows_of([more])
        self.assertEqual(ladder.against_parent(row), "2.96 times more than 01 naive")

    def test_bars_are_the_numbers_of_the_json(self):
        (row,) = rows_of([sim(), gpu()])
        self.assertEqual(
            [(bar.value, bar.words) for bar in ladder.bytes_bars(row) + ladder.time_bars(row)],
            [
                (2040000000, "2.04 GB requested"),
                (60000000, "60.0 MB HBM, modelled"),
                (62000000, "62.0 MB HBM, measured"),
                (0.4, "400 us estimated"),
                (0.5, "500 us measured"),
            ],
        )
        self.assertIn("scores_kernel 300 us (L1 lines 90.0%", ladder.time_bars(row)[0].tip)
        self.assertIn("median of 50 runs, 490 us to 525 us", ladder.time_bars(row)[1].tip)

    def test_a_logarithmic_axis(self):
        axis = axes.LogAxis.of_decades([2e6, None, 3e9], lambda value: f"{value / 1e6:.1f} M")
        self.assertEqual((axis.low, axis.high, len(axis.ticks)), (1e6, 1e10, 5))
        self.assertEqual(axis.text(1e7), "10 M")
        self.assertEqual((axis.x(1e6), axis.x(1e8), axis.y(1e8)), ("0.00%", "50.00%", "50.00%"))
        self.assertEqual(axis.share(0), 0)
        self.assertIsNone(axes.LogAxis.of_decades([None, 0], str))


class Figures(unittest.TestCase):
    def test_a_bar_of_buffers_is_all_that_is_requested(self):
        (row,) = rows_of([sim()])
        parts = report_figures.buffer_parts(row)
        self.assertEqual(
            [part[:3] for part in parts], [("input", 1500000000, "Q"), ("square", 540000000, "S")]
        )
        self.assertEqual(sum(part[1] for part in parts), row.requested)
        self.assertIn("S: 500 MB read, 40.0 MB written (26.5%", report_figures.bytes_figure([row]))

    def test_the_roof_of_a_step_is_that_of_its_type(self):
        (row,) = rows_of([sim()])
        text = report_figures.roofline_figure([row])
        # 1.07 GFLOP in 400 us, from 60 MB; an H200's HBM would allow 4.8 TB/s * 17.9 FLOP/B.
        self.assertIn("2.68 TFLOP/s at 17.9 FLOP per byte of HBM, 400 us: 4.0% of its roof", text)
        self.assertIn("fp32 66.9 TFLOP/s", text)
        self.assertNotIn("bf16", text)

    def test_a_time_for_more_heads_is_of_their_flops(self):
        (row,) = rows_of([sim(estimate_heads=16 * 2)])
        heads = row.any.data["problem"]["b"] * row.any.data["problem"]["h"]
        text = report_figures.roofline_figure([row])
        self.assertIn(f"{2.68435 * 32 / heads:.3g} TFLOP/s at 17.9 FLOP per byte", text)
        self.assertIn("estimated for 32 heads on H200 (132 SMs)", ladder.ladder([row], lambda _: 0))

    def test_nothing_measured_and_nothing_counted_is_no_figure(self):
        data = sim()
        data["traffic"]["hbm"]["model"] = data["estimate"] = None
        data["traffic"]["requested"]["buffers"] = {}
        rows = rows_of([data])
        self.assertEqual(report_figures.roofline_figure(rows), "")
        self.assertIn("2.04 GB requested", page_of([data]))

    def test_against_n_needs_two_sizes(self):
        self.assertEqual(report_figures.against_n_figures(rows_of([sim()])), "")
        text = report_figures.against_n_figures(rows_of([sim(n=n, nk=n) for n in (512, 1024)]))
        self.assertIn("01 naive, N=512: 400 us", text)
        self.assertIn("01 naive, N=1024: 15.0 MB", text)  # of each of the four heads


class AttentionMap(unittest.TestCase):
    def test_rows_of_p_in_eight_bits(self):
        Q, K = [[8.0, 0, 0, 0], [8.0, 0, 0, 0]], [[1.0, 0, 0, 0], [0.5, 0, 0, 0]]
        p = 1 / (1 + math.exp(-2))
        expected = bytes([255, round(255 * p), round(255 * (1 - p))])
        self.assertEqual(attention_map.eighths(Q, K), expected)

    def test_the_shipped_text(self):
        data = attention_map.attention_map()
        self.assertEqual(len(data["text"]), 1024)
        self.assertLess(len(json.dumps(data)), 300_000)
        with tempfile.TemporaryDirectory() as folder:
            self.assertIsNone(attention_map.attention_map(folder))

    def test_only_beside_runs_on_the_real_input(self):
        self.assertIn("attention-data", page_of([sim()]))
        self.assertNotIn('id="attention-data"', page_of([sim(input="normal")]))


@unittest.skipUnless(browser.FOUND, browser.MISSING)
class InABrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = os.path.join(cls.folder.name, "report.html")
        texts = {"01_naive naive, sim": ("a long line " * 40, True)}
        with open(cls.path, "w", encoding="utf-8") as file:
            file.write(page_of([*tour(), gpu()], texts))
        cls.chromium = browser.Browser()
        cls.chromium.__enter__()
        cls.addClassCleanup(cls.chromium.__exit__)

    def open(self, **how):
        page = self.chromium.open(self.path, **how)
        self.addCleanup(page.close)
        page.until("document.querySelector('#attention-list li') !== null")
        page.eval("new Promise(requestAnimationFrame)")
        return page

    def test_fits_every_width_in_light_and_dark(self):
        for width in (1200, 940, 720, 400, 320):
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    page = self.open(width=width, dark=dark)
                    self.assertEqual(page.errors(), [])
                    self.assertEqual(page.overflow(), 0)
                    page.eval("document.querySelectorAll('details').forEach((d) => d.open = true)")
                    self.assertEqual(page.overflow(), 0)
                    self.assertEqual(self.cut_off(page), [])
                    if "SCREENSHOTS" in os.environ:
                        name = f"report_{width}_{'dark' if dark else 'light'}.png"
                        page.screenshot(os.path.join(os.environ["SCREENSHOTS"], name), full=True)

    def cut_off(self, page):
        """Texts that leave the page, or overlap in a plot, but for those in a box that scrolls."""
        return page.eval(
            """(() => {
              const found = [], width = document.documentElement.clientWidth;
              const hidden = (e) => e.closest("#tip, .scroll, pre") || !e.checkVisibility();
              for (const e of document.querySelectorAll("body *")) {
                const at = e.getBoundingClientRect();
                if (!hidden(e) && at.width && (at.right > width + 1 || at.x < -1))
                  found.push(`${e.tagName} ${e.textContent.slice(0, 30)} ${at.x} ${at.right}`);
              }
              for (const plot of document.querySelectorAll(".plot")) {
                const texts = [...plot.querySelectorAll("text:not([visibility=hidden])")];
                texts.forEach((a, i) => texts.slice(i + 1).forEach((b) => {
                  const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
                  if (p.x < q.right && q.x < p.right && p.y + 3 < q.bottom && q.y + 3 < p.bottom)
                    found.push(`${a.textContent} on ${b.textContent}`);
                }));
              }
              return found;
            })()"""
        )

    def test_dark_follows_the_system_and_the_button(self):
        background = "getComputedStyle(document.body).backgroundColor"
        page = self.open(dark=True)
        dark = page.eval(background)
        self.assertEqual(page.eval("document.getElementById('theme').textContent"), "light")
        page.click("#theme")
        light = page.eval(background)
        self.assertEqual(light, "rgb(255, 255, 255)")
        self.assertNotEqual(light, dark)
        page.click("#theme")
        self.assertEqual(page.eval(background), dark)
        page.eval("localStorage.removeItem('theme')")  # which the next pages would keep

    def test_hover_shows_a_marks_numbers(self):
        page = self.open()
        for mark, words in (
            ("#ladder rect.requested", "01 naive, requested: 2.00 GB read, 40.0 MB written"),
            ("#ladder rect.estimated", "scores_kernel 300 us (L1 lines 90.0%"),
            (".stack rect.square", "S: 500 MB read"),
            ("circle.point", "FLOP per byte of HBM"),
        ):
            page.hover(mark)
            self.assertFalse(page.eval("tip.hidden"), mark)
            self.assertIn(words, page.eval("tip.textContent"))
        page.hover("h1")
        self.assertTrue(page.eval("tip.hidden"))

    def test_the_keyboard_reaches_everything(self):
        page = self.open()
        seen = []
        for _ in range(80):
            page.key("Tab")
            seen.append(
                page.eval(
                    """(() => {
                      const e = document.activeElement;
                      return e.id || e.getAttribute("aria-label") || e.textContent.slice(0, 20);
                    })()"""
                )
            )
            if "attention-text" in seen:
                break
        for name in ("theme", "The ladder", "Save this figure as SVG"):
            self.assertIn(name, seen)
        self.assertIn("attention-text", seen)
        self.assertTrue(any("requested: 2.00 GB read" in name for name in seen), seen)
        # One stop in a figure: the arrow keys go on from there.
        self.assertEqual(sum("HBM, modelled" in name for name in seen), 0)

    def test_arrow_keys_go_from_mark_to_mark(self):
        page = self.open()
        page.eval("document.querySelector('#ladder rect.requested').focus()")
        page.key("ArrowRight")
        self.assertIn("01 naive, HBM, modelled", page.eval("tip.textContent"))
        page.key("ArrowLeft")
        self.assertIn("01 naive, requested", page.eval("tip.textContent"))
        page.key("Escape")
        self.assertTrue(page.eval("tip.hidden"))

    def test_a_fold_opens_by_the_keyboard_and_shows_the_variants(self):
        page = self.open()
        shown = "document.querySelector('#ladder details .line').checkVisibility()"
        self.assertFalse(page.eval(shown))
        page.eval("document.querySelector('#ladder summary').focus()")
        page.key("Enter")
        self.assertTrue(page.eval(shown))
        self.assertIn(
            "the idea of <swapped>",
            page.eval("document.querySelector('#ladder details').innerText"),
        )

    def test_the_attention_of_a_character(self):
        page = self.open()
        said = "document.getElementById('attention-said').textContent"
        # The induction head: at the s of the last "raise" it looks at an e that followed one.
        self.assertRegex(page.eval(said), r"^Character 982, “s”: \d\d\.\d% on “e” at 764")
        page.hover("#attention-text span:nth-child(5)")
        self.assertIn("Character 4, “m”", page.eval(said))
        page.eval("document.getElementById('attention-text').focus()")
        for key, place in (
            ("ArrowRight", 5),
            ("ArrowDown", 36 + 5),
            ("ArrowUp", 5),
            ("End", 1023),
            ("ArrowRight", 1023),
            ("Home", 0),
            ("ArrowUp", 0),
            ("ArrowLeft", 0),
        ):
            page.key(key)
            self.assertIn(f"Character {place},", page.eval(said), key)
        self.assertIn("100.0%", page.eval(said))  # the first row of P has one entry

    def test_each_figure_is_saved_as_svg_and_png(self):
        page = self.open()
        figures = page.eval("all('figure').length")
        self.assertEqual(page.eval("all('figure .save button').length"), 2 * figures)
        for i in range(figures):
            svg = page.eval(f"figureAsSvg(all('figure')[{i}])")
            wrong = re.findall(r' class=|var\(|light-dark|"(?:NaN|undefined|null)', svg)
            self.assertEqual(wrong, [])
            title = page.eval(f"all('figure h3')[{i}].textContent")
            self.assertIn(f">{title}</text>", svg)
            size = page.eval(f"figureAsPng(all('figure')[{i}]).then((blob) => blob.size)")
            self.assertGreater(size, 5000)
        self.assertNotIn("the idea of &lt;swapped&gt;", page.eval("figureAsSvg(all('figure')[0])"))
        # The button saves: what it makes has the figure's name.
        page.eval("save = (blob, name) => { window.saved = `${name} ${blob.type}`; }")
        page.click("figure .save button")
        self.assertEqual(page.until("window.saved"), "ladder.svg image/svg+xml")
        self.assertEqual(page.errors(), [])

    def test_the_table_scrolls_in_its_box_and_keeps_its_first_column(self):
        page = self.open(width=400)
        place = "document.querySelector('.scroll')"
        self.assertGreater(page.eval(f"{place}.scrollWidth - {place}.clientWidth"), 0)
        first = f"{place}.querySelector('td').getBoundingClientRect().x"
        before = page.eval(first)
        page.eval(f"{place}.scrollLeft = {place}.scrollWidth")
        self.assertAlmostEqual(page.eval(first), before, delta=1)
        last = f"{place}.querySelector('th:last-child').getBoundingClientRect().right"
        self.assertLess(page.eval(last), 400)

    def test_no_chapter_is_raw_markdown(self):
        """A link to the book where it is built; else the file's name."""
        with tempfile.TemporaryDirectory() as root, mock.patch.object(report, "ROOT", root):
            built = os.path.join(root, "build", "sim", "docs", "html", "steps", "12_fp8")
            for folder, name in (
                (os.path.join(root, "steps", "01_naive"), "README.md"),
                (os.path.join(root, "steps", "12_fp8"), "README.md"),
                (built, "index.html"),
            ):
                os.makedirs(folder)
                write(os.path.join(folder, name), {})
            path = os.path.join(root, "report.html")
            with open(path, "w", encoding="utf-8") as file:
                file.write(report.page(rows_of(tour()), {}, path))
            page = self.chromium.open(path)
            self.addCleanup(page.close)
            links = "[...document.querySelectorAll('#ladder h4 a')].map((a) => a.href)"
            self.assertEqual(page.eval(links), ["file://" + os.path.join(built, "index.html")])
            words = page.eval("document.querySelector('#ladder h4').textContent")
            self.assertEqual(words, "01 naive: steps/01_naive/README.md")

    def test_prints_in_light_without_what_only_a_screen_needs(self):
        page = self.open(dark=True)
        page.call("Emulation.setEmulatedMedia", media="print")
        self.assertEqual(
            page.eval("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)"
        )
        self.assertFalse(page.eval("document.querySelector('nav').checkVisibility()"))

    def test_without_scripts_only_the_map_is_missing(self):
        with open(self.path, encoding="utf-8") as file:
            text = re.sub(r"<script>.*?</script>", "", file.read(), flags=re.S)
        path = os.path.join(self.folder.name, "bare.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        page = self.chromium.open(path, width=400)
        self.addCleanup(page.close)
        self.assertEqual(page.overflow(), 0)
        self.assertGreater(
            page.eval("document.querySelectorAll('svg rect[aria-label]').length"), 20
        )


if __name__ == "__main__":
    unittest.main()
