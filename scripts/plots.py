"""The plots of compare.py: time and traffic against N, and the roofline. Needs matplotlib."""

import json
import os

from results import BadInput, total

try:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
except ImportError:
    raise BadInput("plots need matplotlib: ./scripts/setup.sh plots, or pip install matplotlib "
                   "for this python3; the tables do without") from None

GPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "common", "data", "gpus.json")
STYLE = {"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False,
         "svg.hashsalt": "flash-steps",  # the same file for the same rows
         "axes.spines.right": False, "figure.figsize": (7, 4.5), "legend.fontsize": 9}


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
    entries = [Line2D([], [], color=color, marker="o", linestyle="", label=label)
               for label, color in colors.items()]
    entries += [Line2D([], [], color="0.3", marker=marker, linestyle=line, label=label)
                for label, (marker, line) in styles.items()]
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
                {"fp32": roofs["fp32_flops"], "bf16": roofs["bf16_flops"]})
        sheet = table.get(row.sim_get("model_gpu"))
        if sheet:
            found[f"{sheet['name']} (data sheet)"] = (
                sheet["hbm_bytes_per_s"],
                {"fp32": sheet["fp32_flops"], "bf16": sheet.get("bf16_flops"),
                 "e4m3": sheet.get("fp8_flops")})
    return found


def roofline_points(rows):
    """[(label, FLOP per HBM byte, FLOP/s, measured)]: a bound lies on its roof by construction."""
    points = []
    for row in rows:
        flops = row.any.get("flops_executed") or row.any.get("flops")
        for run, path, ms_path in ((row.gpu, "traffic.hbm.measured", "time.median_ms"),
                                   (row.sim, "traffic.hbm.model", "bound_ms")):
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
    roofs = [(f"{name}, {dtype}", bandwidth, rates[dtype])
             for name, (bandwidth, rates) in machines(rows).items() for dtype in dtypes
             if rates.get(dtype)]
    for i, (name, bandwidth, rate) in enumerate(roofs):
        line = ("-", "--", ":", "-.")[i % 4]
        xs = sorted({left, min(max(rate / bandwidth, left), right), right})
        axes.plot(xs, [min(rate, bandwidth * x) for x in xs], color="0.3", linestyle=line, zorder=1)
        styles[name] = ("", line)
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte of HBM", ylabel="FLOP/s",
             title="Roofline")
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
            against_n(at("time.svg"), "Time", "ms", {
                "measured": (("o", "-"), lines(lambda r: r.gpu_get("time.median_ms"))),
                "roofline bound": (("v", ":"), lines(lambda r: r.sim_get("bound_ms")))}) +
            against_n(at("traffic.svg"), "Traffic", "bytes", {
                "requested": (("o", "-"),
                              lines(lambda r: total(r.sim_get("traffic.requested.counted")))),
                "HBM modelled": (("v", ":"),
                                 lines(lambda r: total(r.sim_get("traffic.hbm.model")))),
                "HBM measured": (("s", "--"),
                                 lines(lambda r: total(r.gpu_get("traffic.hbm.measured"))))}) +
            roofline(at("roofline.svg"), rows))
