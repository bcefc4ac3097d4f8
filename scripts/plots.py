#!/usr/bin/env python3
"""The plots of compare.py: time and traffic against N, and the roofline. Needs matplotlib.

    plots.py                                  docs/pictures/hbm_against_n.svg from docs/results
    plots.py --out FILE.svg results.json ...  the same of other results

HBM bytes of one head's forward against N: measured, and predicted by each step's formula, for each
step's result, with guide lines that grow as N and as N^2.
Exit status: 0 done, 2 bad use, no matplotlib or no result to draw.
"""

import argparse
import glob
import json
import os
import sys

from results import BadInput, join, load, total

try:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
except ImportError:
    sentence = (
        "plots need matplotlib: ./scripts/setup.sh plots, or pip install matplotlib for "
        "this python3; the tables do without"
    )
    if __name__ == "__main__":
        print(f"plots.py: {sentence}", file=sys.stderr)
        sys.exit(2)
    raise BadInput(sentence) from None

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GPUS = os.path.join(ROOT, "common", "data", "gpus.json")
STYLE = {
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "svg.hashsalt": "flash-steps",  # the same file for the same rows
    "axes.spines.right": False,
    "figure.figsize": (7, 4.5),
    "legend.fontsize": 9,
}


def series(rows, value):
    """{label: [(N, value)]}; a label names what else differs between the rows."""
    shapes = {shape(row) for row in rows}
    lines = {}
    for row in rows:
        y = value(row)
        if y:
            name = row.any.label + (f", {shape(row)}" if len(shapes) > 1 else "")
            lines.setdefault(name, []).append((row.any.data["problem"]["n"], y))
    return {name: sorted(points) for name, points in lines.items()}


def shape(row):
    p = row.any.data["problem"]
    return f"d={p['d']}" + (" causal" if p["causal"] else "")


def legend(axes, colors, styles):
    """Beside the plot: a colour per step, then a line style per source."""
    entries = [
        Line2D([], [], color=color, marker="o", linestyle="", label=label)
        for label, color in colors.items()
    ]
    entries += [
        Line2D([], [], color="0.3", marker=marker, linestyle=line, label=label)
        for label, (marker, line) in styles.items()
    ]
    axes.legend(handles=entries, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def against_n(path, title, ylabel, groups):
    """groups: {name: ((marker, line), {label: points})}. Nothing is written without a point."""
    groups = {name: group for name, group in groups.items() if group[1]}
    if not groups:
        return []
    figure, axes = pyplot.subplots()
    colors, sizes = {}, set()
    for (marker, line), lines in groups.values():
        for label, points in lines.items():
            color = colors.setdefault(label, f"C{len(colors) % 10}")
            axes.plot(*zip(*points), color=color, marker=marker, linestyle=line, markersize=4)
            sizes |= {n for n, _ in points}
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="N", ylabel=ylabel, title=title)
    axes.set_xticks(sorted(sizes), [str(n) for n in sorted(sizes)])
    axes.minorticks_off()
    legend(axes, colors, {name: style for name, (style, _) in groups.items()})
    return save(figure, path)


def hbm_against_n(path, rows):
    """HBM bytes of one head's forward for each step's result: its last variant, or kernel.cuh of
    files that do not know the order. B*N is constant in FlashAttention's series, so the bytes of
    all heads together would hide one power of N."""
    chosen = [
        row
        for row in rows
        if row.gpu
        and row.any.direction == "forward"
        and in_series(row.any.data["problem"])
        and row.gpu_get("traffic.hbm.measured")
    ]
    last = {row.any.data["step"]: row.any.variant for row in chosen}  # rows are in reading order
    chosen = [row for row in chosen if row.any.variant == last[row.any.data["step"]]]
    devices = sorted({row.gpu_get("device.name") for row in chosen})
    if len(devices) != 1:
        raise BadInput(
            "no measured run with B*N = 16384, H*d = 2048, d = 64, not causal"
            if not devices
            else f"one GPU a picture, please: these are {', '.join(devices)}"
        )

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
            title=f"{devices[0]}, d=64, fp32, not causal",
        )
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        legend(axes, colors, {"measured": ("o", "-"), "predicted": ("", "--")})
        return save(figure, path)


def in_series(problem):
    return (
        problem["b"] * problem["n"] == 16384
        and problem["h"] == 32
        and problem["d"] == 64
        and problem["n"] >= 1024
        and not problem["causal"]
        and not problem.get("smem")
    )


def save(figure, path):
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)
    return [path]


def machines(rows):
    """{name: (bytes per s, {dtype: FLOP/s})}: measured roofs, or the data sheet."""
    with open(GPUS, encoding="utf-8") as file:
        table = {gpu["name"]: gpu for gpu in json.load(file)["gpus"]}
    found = {}
    for row in rows:
        roofs = row.gpu_get("roofs")
        if roofs:
            found[f"{row.gpu.get('device.name')} (measured roofs)"] = (
                roofs["copy_bytes_per_s"],
                {"fp32": roofs["fp32_flops"], "bf16": roofs["bf16_flops"]},
            )
        sheet = table.get(row.sim_get("model_gpu"))
        if sheet:
            found[f"{sheet['name']} (data sheet)"] = (
                sheet["hbm_bytes_per_s"],
                {
                    "fp32": sheet["fp32_flops"],
                    "bf16": sheet.get("bf16_flops"),
                    "e4m3": sheet.get("fp8_flops"),
                },
            )
    return found


def roofline_points(rows):
    """[(label, FLOP per HBM byte, FLOP/s, measured)]: a bound lies on its roof by construction."""
    points = []
    for row in rows:
        flops = row.any.get("flops_executed") or row.any.get("flops")
        for run, path, ms_path in (
            (row.gpu, "traffic.hbm.measured", "time.median_ms"),
            (row.sim, "traffic.hbm.model", "bound_ms"),
        ):
            hbm = total(run.get(path)) if run else None
            ms = run.get(ms_path) if run else None
            if hbm and ms and flops:
                points.append((row.any.label, flops / hbm, flops / (ms * 1e-3), run is row.gpu))
    return points


def roofline(path, rows):
    points = roofline_points(rows)
    if not points:
        return []
    figure, axes = pyplot.subplots()
    left = min(p[1] for p in points) / 2
    right = max(p[1] for p in points) * 2
    colors, styles = {}, {}
    for label, x, y, measured in points:
        color = colors.setdefault(label, f"C{len(colors) % 10}")
        marker = "o" if measured else "v"
        styles["measured" if measured else "bound"] = (marker, "")
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
    axes.set(
        xscale="log", yscale="log", xlabel="FLOP per byte of HBM", ylabel="FLOP/s", title="Roofline"
    )
    legend(axes, colors, styles)
    return save(figure, path)


def write_all(rows, folder):
    """Writes what the rows have figures for; returns the paths."""

    def at(name):
        return os.path.join(folder, name)

    def lines(value):
        return series(rows, value)

    with pyplot.rc_context(STYLE):
        return (
            against_n(
                at("time.svg"),
                "Time",
                "ms",
                {
                    "measured": (("o", "-"), lines(lambda r: r.gpu_get("time.median_ms"))),
                    "roofline bound": (("v", ":"), lines(lambda r: r.sim_get("bound_ms"))),
                },
            )
            + against_n(
                at("traffic.svg"),
                "Traffic",
                "bytes",
                {
                    "requested": (
                        ("o", "-"),
                        lines(lambda r: total(r.sim_get("traffic.requested.counted"))),
                    ),
                    "HBM modelled": (
                        ("v", ":"),
                        lines(lambda r: total(r.sim_get("traffic.hbm.model"))),
                    ),
                    "HBM measured": (
                        ("s", "--"),
                        lines(lambda r: total(r.gpu_get("traffic.hbm.measured"))),
                    ),
                },
            )
            + roofline(at("roofline.svg"), rows)
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="*", metavar="results.json", help="default: all of docs/results"
    )
    parser.add_argument(
        "--out",
        metavar="FILE.svg",
        default=os.path.join(ROOT, "docs", "pictures", "hbm_against_n.svg"),
    )
    args = parser.parse_args()
    files = args.files or sorted(glob.glob(os.path.join(ROOT, "docs", "results", "*.json")))
    rows = join([run for path in files for run in load(path)])
    os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
    for path in hbm_against_n(args.out, rows):
        print(os.path.relpath(path))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadInput as error:
        print(f"plots.py: {error}", file=sys.stderr)
        sys.exit(2)
