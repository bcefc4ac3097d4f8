"""Draws the pictures of docs/pictures that show results.

    maintain plots                              from docs/results
    maintain plots --out DIR results.json ...   the same of other results

ladder.svg: bytes per head and speed of each step's result, at one problem.
hbm_against_n.svg: HBM bytes of one head's forward against N: measured, and predicted by each step's
formula, for each step's result, with guide lines that grow as N and as N^2.
Exit status: 0 done, 2 bad use or no result to draw.
"""

import os

from . import command
from .axes import LogAxis, tidy
from .command import BadInput
from .files import replace_text
from .picture import EDGE, QUIET, Picture, Plot
from .results import LADDER_N, PICTURES, published, total
from .standing import rows_of, standing_of
from .steps import ROOT
from .text import bytes_text, flops_text

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
COLORS_OF = {"forward": COLORS[0], "backward": COLORS[1]}
LARGER = " text.row { font-size: 15px } text.value { font-size: 14px }"


def hbm_against_n(rows):
    """HBM bytes of one head's forward for each step's result: its last variant. B*N is constant in
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
    below = say_standing(picture, chosen, 52)
    y_axis = LogAxis.of_decades(bytes_, bytes_text)
    x_axis = LogAxis(sizes[0] / 1.15, sizes[-1] * 1.15, sizes, str)
    plot = Plot(picture, 68, below + 24, 520, 330, x_axis, y_axis)
    plot.grid("N", "HBM bytes per head, forward")
    # Through the largest and the smallest point at the left, moved a little out of the way.
    at_left = [y for points in measured.values() for n, y in points if n == sizes[0]]
    for power, y, factor in ((2, max(at_left), 1.6), (1, min(at_left), 1 / 1.6)):
        guide = [(n, factor * y * (n / sizes[0]) ** power) for n in sizes]
        guide = [point for point in guide if y_axis.low <= point[1] <= y_axis.high]
        plot.curve(guide, QUIET, dash="1 3")
        x, y = plot.at(*guide[-1])
        picture.text(
            x - 6, y - 8 if power == 2 else y + 16, "~ N" + "²" * (power == 2), "end quiet"
        )
    colors = dict(zip(measured, COLORS))
    for step, points in predicted.items():
        plot.curve(points, colors[step], dash="5 3")
    for i, (step, points) in enumerate(measured.items()):
        plot.curve(points, colors[step])
        for n, y in points:  # steps that move the same bytes lie on one another: rings around rings
            plot.dot(n, y, colors[step], radius=2.5 + 2 * (len(measured) - 1 - i))
    for i, (step, color) in enumerate(colors.items()):
        picture.dot(614, plot.top + 8 + 20 * i, color, color, radius=4)
        picture.text(628, plot.top + 12 + 20 * i, step)
    for words, dash in (("measured", None), ("predicted", "5 3")):
        i += 1
        picture.curve(
            [(604, plot.top + 8 + 20 * i), (624, plot.top + 8 + 20 * i)], QUIET, dash=dash
        )
        picture.text(628, plot.top + 12 + 20 * i, words)
    return picture.svg(commits_of(chosen))


def ladder(rows):
    """Bytes per head and TFLOP/s of each step's result: a row per step, in the order of reading."""
    chosen = PICTURES["ladder.svg"](rows)
    device = device_of(chosen, f"no measured time with B*N = 16384, N = {LADDER_N}, d = 64")
    p = chosen[0].any.data["problem"]
    title = f"{device}, N = {p['n']}, d = {p['d']}, not causal (log scales)"
    picture = Picture(title, 700, LARGER)
    top = say_standing(picture, chosen, 52) + 24
    height = 36 * len(chosen)
    asked = [per_head(row, "requested.predicted") for row in chosen]
    measured = [per_head(row, "hbm.measured") for row in chosen]
    through = [value or per_head(row, "hbm.predicted") for value, row in zip(measured, chosen)]
    speed = [row.flops_per_s for row in chosen]

    def panel(left, width, name, values, decades, text):
        values = [value for value in values if value]
        low = min(values) / 1.6
        high = low * (max(values) / low) ** 1.38  # room for the text beside the last dot
        ticks = [value for value in decades if low <= value <= 3 * max(values)]
        axis = LogAxis(low, high, ticks, text)
        plot = Plot(picture, left, top, width, height, axis, LogAxis(1, 10, [], str))
        picture.text(left + width / 2, top - 10, name, "middle row")
        plot.grid()
        return plot

    left = panel(
        *(244, 240, "bytes per head", asked + through, (1e6, 1e8, 1e10)),
        lambda value: tidy(bytes_text(value)),
    )
    right = panel(
        *(496, 188, "TFLOP/s", speed, (1e12, 1e13, 1e14, 1e15)), lambda value: f"{value / 1e12:g}"
    )

    def value(plot, x, y, text, color, fill, opacity=1):
        x, _ = plot.at(x, 1)
        picture.dot(x, y, color, fill, 6, opacity)
        picture.text(x + 10, y + 5, text, "value")

    types = ["fp8" if row.any.get("fp8") else row.any.get("problem.dtype") for row in chosen]
    for i, row in enumerate(chosen):
        color, y = COLORS_OF[row.any.direction], top + 36 * i + 18
        picture.text(236, y + 5, row.any.data["step"].replace("_", " "), "end row")
        if asked[i]:
            value(left, asked[i], y - 8, bytes_text(asked[i]), color, color, 0.4)
        if through[i]:
            value(left, through[i], y + 8, bytes_text(through[i]), color, measured[i] and color)
        value(right, speed[i], y, flops_text(speed[i]), color, color)
        if types[i] not in types[:i]:
            if i:
                for plot in (left, right):
                    edge = plot.left + plot.width
                    picture.curve([(plot.left, y - 18), (edge, y - 18)], EDGE, 2)
            middle = y + 18 * (types.count(types[i]) - 1)
            turned = f"rotate(-90 20 {middle:g})"
            picture.text(20, middle, types[i], "middle row quiet", transform=turned)
    below = picture.bottom + 26
    for i, (words, fill, opacity) in enumerate(
        (
            ("requested by the threads", QUIET, 0.4),
            ("through HBM, measured", QUIET, 1),
            ("through HBM, predicted", None, 1),
        )
    ):
        picture.dot(160, below + 24 * i, QUIET, fill, 6, opacity)
        picture.text(184, below + 24 * i + 5, words, "row")
    for i, (direction, color) in enumerate(COLORS_OF.items()):
        if any(row.any.direction == direction for row in chosen):
            picture.dot(440, below + 24 * i, color, color, 6)
            picture.text(464, below + 24 * i + 5, direction, "row")
    return picture.svg(commits_of(chosen))


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
    """tables --check asks whether a picture is of the results beside it."""
    commits = {row.any.data["step"]: row.gpu.get("commit") for row in rows}
    return "commits " + " ".join(f"{step}={commit}" for step, commit in commits.items())


def say_standing(picture, rows, y):
    """Of runs that are not of this tree's kernels at the GPU's full speed; the line below."""
    for reason in sorted({standing_of(row.gpu) for row in rows} - {None}):
        picture.text(20, y, reason)
        y += 18
    return y


def main():
    parser = command.parser(__doc__)
    parser.add_argument(
        "files", nargs="*", metavar="results.json", help="default: all of docs/results"
    )
    parser.add_argument("--out", metavar="DIR", default=os.path.join(ROOT, "docs", "pictures"))
    args = parser.parse_args()
    files = args.files or published(os.path.join(ROOT, "docs", "results"))
    rows = rows_of(files)  # as tables takes them
    drawn = {"ladder.svg": ladder(rows), "hbm_against_n.svg": hbm_against_n(rows)}
    os.makedirs(args.out, exist_ok=True)
    for name, svg in drawn.items():
        path = os.path.join(args.out, name)
        replace_text(path, svg)
        print(os.path.relpath(path))
    return 0
