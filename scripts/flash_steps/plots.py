"""Draws the pictures of docs/pictures that show results; the others are maintained by hand.

    maintain plots                              from docs/results
    maintain plots --out DIR --results DIR      the same of other results

hero_light.svg, hero_dark.svg: the README's, HBM bytes per head and speed of the forwards.
hbm_against_n.svg: HBM bytes of one head's forward against N: measured, and predicted by each step's
formula, for each step's result, with guide lines that grow as N and as N^2.
Exit status: 0 done, 2 bad use or no result to draw.
"""

import html
import itertools
import math
import os
import re

from . import command
from .command import BadInput
from .files import replace_text
from .picture import EDGE, INK, QUIET, STRONG, Picture, element
from .results import HERO, HERO_N, PICTURES, published, total
from .rungs import RESULTS, beside_libraries, measured_rows, sizes_of
from .standing import rows_of, standing_of
from .steps import ROOT
from .text import bytes_text


class Plot:
    """A part of a picture with logarithmic axes at its bottom and left; `x` and `y`: (from, to)."""

    def __init__(self, picture, left, top, width, height, x, y):
        self.picture, self.ranges = picture, (x, y)
        self.left, self.top, self.width, self.height = left, top, width, height

    def at(self, *values):
        x, y = (
            math.log(max(value, low) / low) / math.log(high / low)
            for value, (low, high) in zip(values, self.ranges)
        )
        return self.left + self.width * x, self.top + self.height * (1 - y)

    def grid(self, x_ticks, y_ticks, x_name, y_name):
        """Lines and texts at the ticks, {value: text}, and the titles of the axes."""
        right, bottom = self.left + self.width, self.top + self.height
        for tick, text in x_ticks.items():
            x, _ = self.at(tick, 0)
            self.picture.curve([(x, self.top), (x, bottom)], EDGE)
            self.picture.text(x, bottom + 18, text, "middle quiet")
        for tick, text in y_ticks.items():
            _, y = self.at(0, tick)
            self.picture.curve([(self.left, y), (right, y)], EDGE)
            self.picture.text(self.left - 8, y + 4, text, "end quiet")
        self.picture.curve([(self.left, self.top), (self.left, bottom), (right, bottom)], INK)
        self.picture.text(self.left + self.width / 2, bottom + 38, x_name, "middle")
        self.picture.text(self.left - 48, self.top - 12, y_name)

    def curve(self, points, color, dash=None):
        self.picture.curve([self.at(*point) for point in points], color, dash=dash)


def decades(values):
    """{power of ten: its text}, from the one below all bytes to the one above them."""
    first = math.floor(math.log10(min(values)))
    last = max(math.ceil(math.log10(max(values))), first + 1)
    ticks = [10.0**power for power in range(first, last + 1)]
    return {tick: re.sub(r"\.0+(?!\d)", "", bytes_text(tick)) for tick in ticks}


def hbm_against_n(rows):
    """HBM bytes of one head's forward for each step's result, its last variant. B*N is constant in
    FlashAttention's series, so the bytes of all heads together would hide one power of N."""
    chosen = PICTURES["hbm_against_n.svg"](rows)
    device = device_of(chosen, "no measured run with B*N = 16384, H*d = 2048, d = 64, not causal")

    def lines(figure):
        found = {}
        for row in chosen:
            point = row.any.data["problem"]["n"], per_head(row, f"hbm.{figure}")
            found.setdefault(row.any.data["step"], []).append(point)
        return found

    measured, predicted = lines("measured"), lines("predicted")
    sizes = sorted({n for points in measured.values() for n, _ in points})
    bytes_ = [y for found in (measured, predicted) for line in found.values() for _, y in line]
    picture = Picture(f"{device}, d=64, fp32, not causal")
    below = 52
    for reason in reasons_of(chosen):
        picture.text(20, below, reason)
        below += 18
    ticks = decades(list(filter(None, bytes_)))
    low, high = min(ticks), max(ticks)
    x_range = sizes[0] / 1.15, sizes[-1] * 1.15
    plot = Plot(picture, 68, below + 24, 520, 330, x_range, (low, high))
    plot.grid({n: str(n) for n in sizes}, ticks, "N", "HBM bytes per head, forward")
    # Through the largest and the smallest point at the left, moved a little aside.
    at_left = [y for points in measured.values() for n, y in points if n == sizes[0]]
    for power, y, factor in ((2, max(at_left), 1.6), (1, min(at_left), 1 / 1.6)):
        guide = [(n, factor * y * (n / sizes[0]) ** power) for n in sizes]
        guide = [point for point in guide if low <= point[1] <= high]
        if guide:
            plot.curve(guide, QUIET, dash="1 3")
            x, y = plot.at(*guide[-1])
            words, y = ("~ N²", y - 8) if power == 2 else ("~ N", y + 16)
            picture.text(x - 6, y, words, "end quiet")
    colors = dict(zip(measured, itertools.cycle(STRONG)))
    ends = []
    for step, points in predicted.items():
        plot.curve(points, colors[step], dash="5 3")
    for i, (step, points) in enumerate(measured.items()):
        plot.curve(points, colors[step])
        for n, y in points:  # steps that move the same bytes coincide: concentric rings
            picture.dot(*plot.at(n, y), colors[step], 2.5 + 2 * (len(measured) - 1 - i))
        ends.append((plot.at(*max(points))[1], step))
    below = 0
    for y, step in sorted(ends):  # each label below the previous one
        below = max(y + 4, below + 15)
        picture.text(600, below, step.replace("_", " "), "bold", style=f"fill:{colors[step]}")
    picture.text(68, plot.top + plot.height + 38, "solid: measured; dashed: predicted", "quiet")
    return picture.svg(commits_of(chosen))


COMPUTE = 5  # the first of them about arithmetic
LIBRARIES = {"torch flash": "FlashAttention-2", "torch cudnn": "cuDNN"}
THEMES = {  # text, dim text, bytes, speed, line
    "light": ("#1f2328", "#59636e", "#c2410c", "#0969da", "#d1d9e0"),
    "dark": ("#f0f6fc", "#9198a1", "#ff9450", "#58a6ff", "#3d444d"),
}


def hero(rows, folder, theme):
    """HBM bytes per head and TFLOP/s of the forwards, linear; speeds as the ladder has them."""
    chosen = beside_libraries(PICTURES[f"hero_{theme}.svg"](rows), folder)
    device = device_of(chosen, f"no measured time with B*N = 16384, N = {HERO_N}, d = 64")
    figures = [
        (row.any.label, per_head(row, "hbm.measured") or per_head(row, "hbm.predicted"), row)
        for row in chosen
    ]
    ink, dim, bytes_colour, speed_colour, edge = THEMES[theme]
    parts = []

    def words(x, y, text, size=14, fill=ink, **more):
        more = {"x": x, "y": y, "font_size": size, "fill": fill, **more}
        parts.append(element("text", html.escape(text), **more))

    def bar(x, y, width, colour, text):
        parts.append(element("rect", x=x, y=y, width=f"{width:.1f}", height=16, fill=colour))
        words(round(x + width + 6), y + 13, text, 13)

    def path(drawn, colour, **more):
        parts.append(element("path", d=drawn, stroke=colour, **more))

    most = max(moved for _, moved, _ in figures), max(row.flops_per_s for row in chosen)
    labels = [label for label, _, _ in figures]
    claim = "HBM bytes and speed of the steps"
    if labels == list(HERO):
        saved = figures[0][1] / figures[COMPUTE - 1][1]
        gained = chosen[-1].flops_per_s / chosen[COMPUTE - 1].flops_per_s
        claim = f"First stop moving bytes (÷{saved:.0f}), "
        claim += f"then keep the tensor cores busy (×{gained:.0f})"
    words(0, 20, claim, 17, font_weight=700)
    said = f"forward, one {device}, N = {HERO_N}, d = 64; HBM measured, of 07 to 12 predicted"
    if also := [row.any.label[:2] for row in chosen if "time_commit" in row.gpu.data]:
        said += f"; {', '.join(also)} timed beside the libraries"
    words(0, 40, said, 12, dim)
    words(300, 76, "HBM, MB per head", font_weight=700)
    words(560, 76, "TFLOP/s", font_weight=700)
    y = 92
    for label, moved, row in figures:
        name, idea = HERO[label]
        if labels.index(label) == COMPUTE:
            path(f"M0 {y - 1}H830", edge)
        words(0, y + 15, label[:2], 12, dim)
        words(26, y + 11, name, 13, font_weight=700)
        words(26, y + 24, idea, 11, dim)
        bar(300, y + 2, max(1.5, 160 * moved / most[0]), bytes_colour, f"{moved / 1e6:.3g}")
        speed = row.flops_per_s
        bar(560, y + 2, max(1.5, 200 * speed / most[1]), speed_colour, f"{speed / 1e12:.3g}")
        y += 30
    sizes = sizes_of(chosen[0].any.data["problem"])
    libraries = {
        row["label"]: row["flops_per_s"]
        for row in measured_rows("peers", folder)
        if (row["device"], row["direction"], sizes_of(row)) == (device, "forward", sizes)
    }
    for (label, name), side in zip(LIBRARIES.items(), (-1, 1)):
        if speed := libraries.get(label):
            x = round(560 + 200 * speed / most[1])
            path(f"M{x} {92 + 30 * COMPUTE - 1}V{y}", ink, stroke_dasharray="3 3")
            anchor = "start" if side > 0 else "end"
            text = f"{name} {speed / 1e12:.3g}"
            words(x + 4 * side, y + 12, text, 12, dim, text_anchor=anchor)
    last = "05, 08, 11 backward; 13 decoding; 14 several GPUs; 15 masks; 16 Blackwell, simulated."
    for sentence in [last, *reasons_of(chosen)]:
        y += 18
        words(0, y + 14, sentence, 12, dim)
    inside = element("title", html.escape(claim)) + element("desc", commits_of(chosen))
    kind = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 830 {y + 20}", "role": "img"}
    kind["font_family"] = "system-ui, sans-serif"
    return element("svg", "\n".join([inside, *parts, ""]), **kind) + "\n"


def per_head(row, path):
    bytes_, p = total(row.gpu_get(f"traffic.{path}")), row.any.data["problem"]
    return bytes_ and bytes_ / (p["b"] * p["h"])


def device_of(rows, nothing):
    devices = sorted({row.gpu_get("device.name") for row in rows})
    if len(devices) != 1:
        said_of = f"one picture shows one GPU: these are {', '.join(devices)}"
        raise BadInput(said_of if devices else nothing)
    return devices[0]


def commits_of(rows):
    """For tables --check: is a picture drawn from the results beside it?"""
    commits = {row.any.data["step"]: row.gpu.get("commit") for row in rows}
    return "commits " + " ".join(f"{step}={commit}" for step, commit in commits.items())


def reasons_of(rows):
    """Why some runs are not of this tree's kernels at full speed."""
    return sorted({standing_of(row.gpu) for row in rows} - {None})


def main():
    parser = command.parser(__doc__)
    add = parser.add_argument
    add("--results", metavar="DIR", default=RESULTS)
    add("--out", metavar="DIR", default=os.path.join(ROOT, "docs", "pictures"))
    args = parser.parse_args()
    rows = rows_of(published(args.results))  # as tables reads them
    drawn = {f"hero_{theme}.svg": hero(rows, args.results, theme) for theme in THEMES}
    drawn["hbm_against_n.svg"] = hbm_against_n(rows)
    os.makedirs(args.out, exist_ok=True)
    for name, svg in drawn.items():
        path = os.path.join(args.out, name)
        replace_text(path, svg)
        print(os.path.relpath(path))
    return 0
