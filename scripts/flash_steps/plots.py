"""Draws README's picture of results: HBM bytes per head and speed of the forwards.

    maintain plots                              from docs/results
    maintain plots --out DIR --results DIR      the same of other results

docs/pictures/hero_light.svg and hero_dark.svg, for a light and a dark page.
Exit status: 0 done, 2 bad use or no result to draw.
"""

import html
import os

from . import command
from .command import BadInput
from .files import replace_text
from .picture import element
from .results import HERO, HERO_N, PICTURES, published, total
from .rungs import RESULTS, beside_libraries, measured_rows, sizes_of
from .standing import rows_of, standing_of
from .steps import ROOT

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
    bytes_ = total(row.gpu_get(f"traffic.{path}"))
    return bytes_ and bytes_ / row.heads


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
    os.makedirs(args.out, exist_ok=True)
    for theme in THEMES:
        path = os.path.join(args.out, f"hero_{theme}.svg")
        replace_text(path, hero(rows, args.results, theme))
        print(os.path.relpath(path))
    return 0
