"""The plots of compare.py: time and traffic against N, and the roofline. Needs matplotlib.

    maintain plots                              PICTURES in docs/pictures, from docs/results
    maintain plots --out DIR results.json ...   the same of other results

ladder.svg: bytes per head and speed of each step's result, at one problem.
hbm_against_n.svg: HBM bytes of one head's forward against N: measured, and predicted by each step's
formula, for each step's result, with guide lines that grow as N and as N^2.
Exit status: 0 done, 2 bad use, no matplotlib or no result to draw.
"""

import math
import os

from . import command
from .command import BadInput
from .figure_data import family, flop_rate_text, machines, roofline_points
from .problems import DIRECTIONS
from .results import LADDER_N, PICTURES, published, total
from .standing import rows_of, standing_of
from .steps import ROOT
from .text import bytes_text, flops_text, time_text

try:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
except ImportError:
    raise BadInput(
        "plots need matplotlib: run ./scripts/setup.sh plots, or pip install matplotlib for "
        "this python3; the tables do not need it"
    ) from None

STYLE = {
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "svg.hashsalt": "flash-steps",  # the same file for the same rows
    "axes.spines.right": False,
    "figure.figsize": (7, 4.5),
    "legend.fontsize": 9,
}


MOST_LABELS = 12  # in a legend; with more, each step has one colour and shows its last variant
MOST_PANELS = 6
COLORS = [f"C{i}" for i in range(10)] + ["black", "gold"]


def labels_of(rows):
    """{row's id: label}, and a sentence where not every row has one. Devices are told apart."""
    devices = {row.gpu_get("device.name") for row in rows if row.gpu}

    def place(row):
        device = row.gpu_get("device.name") if len(devices) > 1 else None
        return row.any.data["step"], device

    def text(label, row):
        device = place(row)[1]
        return f"{label}, {device}" if device else label

    # A panel has one direction and says which.
    labels = {id(row): text(row.any.label.removesuffix(" bwd"), row) for row in rows}
    if len(set(labels.values())) <= MOST_LABELS:
        return labels, ""
    # A step's last forward and last backward may be of two variants. Rows are in reading order.
    last = {(place(row), row.any.direction): row.any.variant for row in rows}
    return {
        id(row): text(row.any.data["step"], row)
        for row in rows
        if row.any.variant == last[place(row), row.any.direction]
    }, "each step's last variant"


def legend(where, colors, styles):
    """Beside the plot: a colour per step, then a line style per source."""
    entries = [
        Line2D([], [], color=color, marker="o", linestyle="", label=label)
        for label, color in colors.items()
    ]
    entries += [
        Line2D([], [], color="0.3", marker=marker, linestyle=line, label=label)
        for label, (marker, line) in styles.items()
    ]
    where.legend(handles=entries, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def ticks_of(sizes):
    """Those of the sizes that leave their labels room, the largest first."""
    room = max(0.06 * math.log2(max(sizes) / min(sizes)), 0.1)
    kept = []
    for n in sorted(sizes, reverse=True):
        if not kept or math.log2(kept[-1] / n) >= room * len(str(n)) / 2:
            kept.append(n)
    return kept[::-1]


def value_axis(axes, values, text):
    """Logarithmic, and never so short that no tick has a label: 1, 2 and 5 of each power of ten."""
    low, high = min(values), max(values)
    room = max(4 / (high / low), 1.5) ** 0.5
    axes.set_yscale("log")
    axes.set_ylim(low / room, high * room)
    subs = (1, 2, 5) if high / low < 200 else (1,)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=20))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def against_n(path, title, text, rows, sources):
    """A panel for each family of problems, those with the most sizes; sources: {name: ((marker,
    line), row -> value)}. Nothing is written without a point."""
    labels, note = labels_of(rows)
    panels, used = {}, {}
    for row in rows:
        for name, (style, value) in sources.items():
            y = value(row) if id(row) in labels else None
            if y:
                used[name] = style
                line = panels.setdefault(family(row), {}).setdefault((labels[id(row)], name), [])
                line.append((row.any.data["problem"]["n"], y))
    if not panels:
        return []

    def richness(name):
        lines = panels[name].values()
        return -len({n for line in lines for n, _ in line}), -sum(map(len, lines))

    chosen = sorted(panels, key=richness)[:MOST_PANELS]
    left_out = len(panels) - len(chosen)
    notes = [note] if note else []
    notes += [f"{left_out} shapes with fewer sizes left out"] if left_out else []
    width = 1 if len(chosen) == 1 else 2
    height = math.ceil(len(chosen) / width)
    figure, grid = pyplot.subplots(
        height,
        width,
        figsize=(6.2 * width, 3.6 * height + 0.6),
        squeeze=False,
        layout="constrained",
    )
    colors = {}
    for row in rows:  # in the order of reading
        if id(row) in labels:
            colors.setdefault(labels[id(row)], COLORS[len(colors) % len(COLORS)])
    drawn = set()
    for axes, name in zip(grid.flat, chosen):
        for (label, source), points in panels[name].items():
            marker, line = sources[source][0]
            points = sorted(points)
            drawn.add(label)
            axes.plot(*zip(*points), color=colors[label], marker=marker, linestyle=line, ms=4)
        points = [point for line in panels[name].values() for point in line]
        sizes = {n for n, _ in points}
        axes.set_xscale("log", base=2)
        if len(sizes) == 1:
            axes.set_xlim(min(sizes) / 2, 2 * min(sizes))
        axes.set_xticks(ticks_of(sizes), [str(n) for n in ticks_of(sizes)])
        axes.xaxis.set_minor_locator(NullLocator())
        value_axis(axes, [y for _, y in points], text)
        axes.set_xlabel("N")
        axes.set_title(name, fontsize=10)
    for axes in grid.flat[len(chosen) :]:
        axes.set_visible(False)
    figure.suptitle(title(used) + (f" ({'; '.join(notes)})" if notes else ""))
    colors = {label: color for label, color in colors.items() if label in drawn}
    legend(grid[0, -1], colors, used)
    return save(figure, path)


def hbm_against_n(path, rows):
    """HBM bytes of one head's forward for each step's result: its last variant. B*N is constant in
    FlashAttention's series, so the bytes of all heads together would hide one power of N."""
    chosen = PICTURES["hbm_against_n.svg"](rows)
    device = device_of(chosen, "no measured run with B*N = 16384, H*d = 2048, d = 64, not causal")

    def per_head(figure):
        lines = {}
        for row in chosen:
            p = row.any.data["problem"]
            y = total(row.gpu_get(f"traffic.hbm.{figure}")) / (p["b"] * p["h"])
            lines.setdefault(row.any.data["step"], []).append((p["n"], y))
        return lines

    measured, predicted = per_head("measured"), per_head("predicted")
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots()
        colors = {label: f"C{i % 10}" for i, label in enumerate(measured)}
        for label, points in predicted.items():
            axes.plot(*zip(*points), color=colors[label], linestyle="--", linewidth=1, zorder=3)
        for i, (label, points) in enumerate(measured.items()):
            # Steps that move the same bytes lie on one another: rings around rings.
            axes.plot(
                *zip(*points),
                color=colors[label],
                marker="o",
                linestyle="-",
                linewidth=1,
                markersize=4 + 3 * (len(measured) - 1 - i),
                markerfacecolor="none",
            )
        sizes = sorted({n for points in measured.values() for n, _ in points})
        # Through the largest and the smallest point at the left, moved a little out of the way.
        at_left = [y for points in measured.values() for n, y in points if n == sizes[0]]
        for power, y, factor in ((2, max(at_left), 1.6), (1, min(at_left), 1 / 1.6)):
            guide = [factor * y * (n / sizes[0]) ** power for n in sizes]
            axes.plot(sizes, guide, color="0.6", linestyle=":", zorder=1)
            axes.annotate(
                "~ N" + ("²" if power == 2 else ""),
                (sizes[-1], guide[-1]),
                color="0.4",
                xytext=(-6, 6 if power == 2 else -14),
                textcoords="offset points",
                ha="right",
            )
        axes.set_xscale("log", base=2)
        axes.set(
            yscale="log",
            xlabel="N",
            ylabel="HBM bytes per head, forward",
            title=f"{device}, d=64, fp32, not causal{said(chosen)}",
        )
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        legend(axes, colors, {"measured": ("o", "-"), "predicted": ("", "--")})
        return save(figure, path, commits_of(chosen))


BAND = 0.46  # between the two dots of a step; its row is 1 high
ASKED, MEASURED = {"alpha": 0.4, "filled": True}, {"filled": True}


def dot(color, filled=False, alpha=1):
    """On a log scale a bar's length says nothing: it has no zero."""
    face = color if filled else "white"
    return {
        "marker": "o",
        "linestyle": "",
        "markersize": 9,
        "color": color,
        "markerfacecolor": face,
        "alpha": alpha,
    }


COLORS_OF = {"forward": "C0", "backward": "C1"}


def ladder(path, rows):
    """Bytes per head and TFLOP/s of each step's result: a row per step, in the order of reading."""
    chosen = PICTURES["ladder.svg"](rows)
    device = device_of(chosen, f"no measured time with B*N = 16384, N = {LADDER_N}, d = 64")

    def per_head(row, path):
        bytes_ = total(row.gpu_get(f"traffic.{path}"))
        return bytes_ and bytes_ / (row.any.data["problem"]["b"] * row.any.data["problem"]["h"])

    with pyplot.rc_context({**STYLE, "font.size": 12}):
        figure, (left, right) = pyplot.subplots(
            1, 2, sharey=True, figsize=(7, 6.2), width_ratios=(5, 4), layout="constrained"
        )
        for y, row in enumerate(chosen):
            color = COLORS_OF[row.any.direction]
            asked = per_head(row, "requested.predicted")
            measured = per_head(row, "hbm.measured")
            through = measured or per_head(row, "hbm.predicted")
            speed = row.flops_per_s / 1e12
            for axes, value, place, text, style in (
                (left, asked, y - BAND / 2, bytes_text(asked), ASKED),
                (left, through, y + BAND / 2, bytes_text(through), MEASURED if measured else {}),
                (right, speed, y, flops_text(row.flops_per_s), MEASURED),
            ):
                if not value:
                    continue
                axes.plot(value, place, **dot(color, **style))
                axes.annotate(
                    text,
                    (value, place),
                    xytext=(7, 0),
                    textcoords="offset points",
                    va="center_baseline",
                    fontsize=11,
                )
        # Room for the label of the longest bar, whatever the results.
        for axes, title, values, ticks in (
            (
                left,
                "bytes per head",
                [
                    per_head(row, path)
                    for row in chosen
                    for path in ("requested.predicted", "hbm.measured", "hbm.predicted")
                ],
                {1e6: "1 MB", 1e8: "100 MB", 1e10: "10 GB"},
            ),
            (
                right,
                "TFLOP/s",
                [row.flops_per_s / 1e12 for row in chosen],
                {1: "1", 10: "10", 100: "100", 1000: "1000"},
            ),
        ):
            values = [value for value in values if value]
            low = min(values) / 1.6
            axes.set_xscale("log")
            axes.set_xlim(low, low * (max(values) / low) ** 1.38)
            axes.set_title(title, fontsize=13)
            shown = {at: text for at, text in ticks.items() if low <= at <= 3 * max(values)}
            axes.set_xticks(list(shown), list(shown.values()), fontsize=10, color="0.4")
            axes.minorticks_off()
            axes.grid(visible=True, axis="x", color="0.85")
            axes.grid(visible=False, axis="y")
            axes.tick_params(left=False)
        names = [name_of(row) for row in chosen]
        left.set_yticks(range(len(chosen)), names)
        left.set_ylim(len(chosen) - 0.5, -0.5)
        types = ["fp8" if row.any.get("fp8") else row.any.get("problem.dtype") for row in chosen]
        left.set_ylabel(" ")  # room for these
        for kind in dict.fromkeys(types):
            first, last = types.index(kind), len(types) - 1 - types[::-1].index(kind)
            left.annotate(
                kind,
                (0, (first + last) / 2),
                xycoords=("figure fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                rotation=90,
                va="center",
                ha="left",
                color="0.4",
            )
            for axes in (left, right) if first else ():
                axes.axhline(first - 0.5, color="0.8", linewidth=1)
        p = chosen[0].any.data["problem"]
        figure.suptitle(
            f"{device}, N = {p['n']}, d = {p['d']}, not causal (log scales){said(chosen)}",
            fontsize=13,
        )
        figure.legend(
            handles=[
                Line2D([], [], **dot("0.3", **ASKED), label="requested by the threads"),
                Line2D([], [], **dot("0.3", **MEASURED), label="through HBM, measured"),
                Line2D([], [], **dot("0.3"), label="through HBM, predicted"),
                *(
                    Line2D([], [], **dot(color, **MEASURED), label=direction)
                    for direction, color in COLORS_OF.items()
                    if any(row.any.direction == direction for row in chosen)
                ),
            ],
            loc="outside lower center",
            ncols=2,
            fontsize=12,
            frameon=False,
        )
        return save(figure, path, commits_of(chosen))


def name_of(row):
    """ "08 tensor core backward": the step's folder."""
    return row.any.data["step"].replace("_", " ")


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


def said(rows):
    """What is to be said of runs that are not of this tree's kernels at the GPU's full speed."""
    reasons = {standing_of(row.gpu) for row in rows} - {None}
    return "".join(f"\n{reason}" for reason in sorted(reasons))


def save(figure, path, description=None):
    metadata = {"Date": None, "Description": description}
    figure.savefig(path, metadata=metadata, bbox_inches="tight")
    pyplot.close(figure)
    return [path]


def roofline(path, rows):
    labels, note = labels_of(rows)
    points = roofline_points([row for row in rows if id(row) in labels], labels)
    if not points:
        return []
    figure, axes = pyplot.subplots()
    left = min(p[1] for p in points) / 2
    right = max(p[1] for p in points) * 2
    colors, styles = {}, {}
    for label, x, y, measured in points:
        color = colors.setdefault(label, COLORS[len(colors) % len(COLORS)])
        marker = "o" if measured else "v"
        styles["measured" if measured else "estimated"] = (marker, "")
        axes.plot(x, y, marker=marker, color=color, markersize=5)
    dtypes = sorted({row.any.data["problem"]["dtype"] for row in rows})
    roofs = [
        (f"{name}, {dtype}", bandwidth, rates[dtype])
        for name, (bandwidth, rates) in machines(rows).items()
        for dtype in dtypes
        if rates.get(dtype)
    ]
    for i, (name, bandwidth, rate) in enumerate(roofs):
        line = ("-", "--", ":", "-.")[i % 4]
        xs = sorted({left, min(max(rate / bandwidth, left), right), right})
        axes.plot(xs, [min(rate, bandwidth * x) for x in xs], color="0.3", linestyle=line, zorder=1)
        styles[name] = ("", line)
    title = "Roofline" + (f" ({note})" if note else "")
    axes.set(xscale="log", xlabel="FLOP per byte of HBM", ylabel="FLOP/s", title=title)
    axes.set_xlim(left, right)
    value_axis(axes, [y for _, _, y, _ in points] + [r[2] for r in roofs], flop_rate_text)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    legend(axes, colors, styles)
    return save(figure, path)


def write_all(rows, folder):
    """Writes what the rows have figures for; returns the paths. Attention's passes alone: a
    prepare's time and bytes belong into no line of theirs, and it has no FLOPs for the roofline."""
    rows = [row for row in rows if row.any.direction in DIRECTIONS]

    def at(name):
        return os.path.join(folder, name)

    times = {
        "measured": (("o", "-"), lambda row: row.ms),
        "estimated": (("v", ":"), lambda row: row.estimated_ms),
    }
    traffic = {
        "requested": (("o", "-"), lambda row: row.requested),
        "HBM modelled": (("v", ":"), lambda row: row.hbm_modelled),
        "HBM measured": (("s", "--"), lambda row: row.hbm_measured),
    }

    def time_title(used):
        return f"Time, {' and '.join(name for name in times if name in used)}"

    with pyplot.rc_context(STYLE):
        return (
            against_n(at("time.svg"), time_title, time_text, rows, times)
            + against_n(at("traffic.svg"), lambda used: "Traffic", bytes_text, rows, traffic)
            + roofline(at("roofline.svg"), rows)
        )


def main():
    parser = command.parser(__doc__)
    parser.add_argument(
        "files", nargs="*", metavar="results.json", help="default: all of docs/results"
    )
    parser.add_argument("--out", metavar="DIR", default=os.path.join(ROOT, "docs", "pictures"))
    args = parser.parse_args()
    files = args.files or published(os.path.join(ROOT, "docs", "results"))
    rows = rows_of(files)  # as tables takes them
    os.makedirs(args.out, exist_ok=True)
    for draw, name in ((ladder, "ladder.svg"), (hbm_against_n, "hbm_against_n.svg")):
        for path in draw(os.path.join(args.out, name), rows):
            print(os.path.relpath(path))
    return 0
