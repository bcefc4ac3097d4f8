"""The figures of report.html: bytes by buffer and level, roofline, time and traffic against N."""

import html
import math

from .axes import LogAxis, element, figure, legend, mark, plot, text
from .gpu_table import gpu_table
from .ladder import dtype_of, results_of_steps, ways
from .problems import in_series, lengths_text
from .results import total
from .text import bytes_text, flops_text, percent_text, time_text

# --- bytes by buffer and level --------------------------------------------------------------------

# The colour of a buffer (page/report.css); all others are "rest".
KINDS = {
    "input": ("Q", "K", "V", "Q8", "K8", "V8"),
    "output": ("O",),
    "square": ("S", "P", "dS"),
    "gradient": ("dO", "dQ", "dK", "dV", "dQ_sum"),
}
KIND_OF = {buffer: kind for kind, buffers in KINDS.items() for buffer in buffers}
KIND_TEXTS = (
    ("input", "Q, K, V"),
    ("square", "N x N: S, P, dS"),
    ("output", "O"),
    ("gradient", "gradients"),
    ("rest", "the rest: statistics, scales"),
    ("read", "HBM read"),
    ("write", "HBM written"),
)


def kind_of(buffer):
    return KIND_OF.get(buffer, "rest")


def buffer_parts(row):
    """[(class, its share of the requested bytes, name, tip)]: by kind, then the largest first."""
    buffers = row.sim_get("traffic.requested.buffers") or {}
    counted = {name: figures["counted"] for name, figures in buffers.items() if figures["counted"]}
    order = [kind for kind, _ in KIND_TEXTS]
    names = sorted(
        (name for name in counted if total(counted[name])),
        key=lambda name: (order.index(kind_of(name)), -total(counted[name])),
    )
    return [(kind_of(n), total(counted[n]), n, f"{n}: {ways(counted[n])}") for n in names]


def hbm_parts(counts, what):
    words = {"read": "read", "write": "written"}
    return [
        (way, counts[way], "", f"HBM, {what}: {bytes_text(counts[way])} {word}")
        for way, word in words.items()
        if (counts or {}).get(way)
    ]


def stack(parts, whole):
    """Parts side by side on a linear scale; the names of those that have room for it."""
    marks, at = "", 0.0
    for css, value, name, tip in parts:
        share = 100 * value / whole
        where = {"x": f"{at:.3f}%", "width": f"{share:.3f}%"}
        marks += mark(
            "rect",
            f"{tip} ({percent_text(value / whole)} of what is requested)",
            **where,
            height="100%",
            class_=f"{css} part",
        )
        if name and share > 1 + 2 * len(name):
            marks += text(
                name, x=f"{at + share / 2:.3f}%", y="50%", dy=4, text_anchor="middle", class_="on"
            )
        at += share
    return element("svg", marks, class_="stack")


def level(name, parts, whole):
    words = f"<span>{html.escape(name)}</span>"
    words += f"<b>{bytes_text(sum(part[1] for part in parts))}</b>"
    return element("p", words) + stack(parts, whole)


def bytes_of_step(row):
    levels = [
        (name, parts)
        for name, parts in (
            ("requested", buffer_parts(row)),
            ("HBM, modelled", hbm_parts(row.sim_get("traffic.hbm.model"), "modelled")),
            ("HBM, measured", hbm_parts(row.gpu_get("traffic.hbm.measured"), "measured")),
        )
        if parts
    ]
    if not levels:
        return ""
    whole = max(sum(part[1] for part in parts) for _, parts in levels)
    return element(
        "div",
        element("h4", html.escape(row.any.label))
        + "".join(level(name, parts, whole) for name, parts in levels),
        class_="levels",
    )


def bytes_figure(rows):
    panels = "".join(bytes_of_step(row) for row in results_of_steps(rows))
    if not panels:
        return ""
    used = {part[0] for row in rows for part in buffer_parts(row)} | {"read", "write"}
    caption = (
        "Each step's result on a linear scale of its own: its longest bar is the bytes that its "
        "loads, stores and atomics request, by buffer; below it what of them reaches HBM."
        + legend([entry for entry in KIND_TEXTS if entry[0] in used])
    )
    body = element("div", panels, class_="panels")
    return figure("Bytes by buffer and level", caption, body, "bytes")


# --- roofline -------------------------------------------------------------------------------------


def machines(rows):
    """{name: (bytes per s, {dtype: FLOP/s})}: measured roofs, or the data sheet."""
    table = {gpu["name"]: gpu for gpu in gpu_table()}
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


def roofline_points(rows, labels):
    """[(label, FLOP per HBM byte, FLOP/s, measured)]"""
    points = []
    for row in rows:
        flops = row.any.get("flops_executed") or row.any.get("flops")
        p = row.any.data["problem"]
        heads = p["b"] * p["h"]
        for hbm, ms, measured in (
            (row.hbm_measured, row.ms, True),
            (row.hbm_modelled, row.estimated_ms, False),
        ):
            if hbm and ms and flops:
                times = 1 if measured else (row.estimated_heads or heads) / heads
                rate = times * flops / (ms * 1e-3)
                points.append((labels[id(row)], flops / hbm, rate, measured))
    return points


def flop_rate_text(value):
    for unit, name in ((1e15, "P"), (1e12, "T")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value / 1e9:g} G"


def roofs_of(rows, dtypes):
    """[(name of the machine, dtype, bytes/s, FLOP/s)] of the types that the rows compute in."""
    return [
        (name, dtype, bandwidth, rates[dtype])
        for name, (bandwidth, rates) in machines(rows).items()
        for dtype in ("fp32", "bf16", "e4m3")
        if dtype in dtypes and rates.get(dtype) and bandwidth
    ]


def roof_marks(roofs, x, y):
    """Each machine's bandwidth as one slope, and a level line for each type."""
    marks = ""
    for name in dict.fromkeys(roof[0] for roof in roofs):
        mine = [roof for roof in roofs if roof[0] == name]
        bandwidth, top = mine[0][2], max(roof[3] for roof in mine)
        measured = "measured" in name  # dashed, and named below its lines
        css = "roof measured" if measured else "roof"
        # The slope, from where it enters the box to the highest ridge.
        start = max(x.low, y.low / bandwidth)
        marks += segment(x, y, (start, start * bandwidth), (top / bandwidth, top), css)
        middle = math.sqrt(start * top / bandwidth)
        marks += text(
            f"HBM {bytes_text(bandwidth)}/s",
            x=x.x(middle),
            y=y.y(middle * bandwidth),
            dx=10 if measured else -6,
            dy=12 if measured else -6,
            text_anchor="start" if measured else "end",
            class_="roofname",
        )
        for _, dtype, _, rate in mine:
            ridge = max(rate / bandwidth, x.low)
            marks += segment(x, y, (ridge, rate), (x.high, rate), f"{css} {dtype}")
            marks += text(
                f"{dtype} {flops_text(rate)} TFLOP/s",
                x="100%",
                y=y.y(rate),
                dy=14 if measured else -6,
                text_anchor="end",
                class_="roofname",
                data_short=dtype,
            )
    return marks


def segment(x, y, start, end, css):
    return element(
        "line", x1=x.x(start[0]), y1=y.y(start[1]), x2=x.x(end[0]), y2=y.y(end[1]), class_=css
    )


def roofline_figure(rows):
    results = [row for row in results_of_steps(rows) if row.any.direction != "prepare"]
    by_label = {row.any.label: row for row in results}
    points = roofline_points(results, {id(row): row.any.label for row in results})
    roofs = roofs_of(results, {dtype_of(row) for row in results})
    if not points or not roofs:
        return ""
    ridges = [peak / bandwidth for _, _, bandwidth, peak in roofs]
    x = LogAxis.of_decades([p[1] for p in points] + ridges, lambda value: f"{value:g}")
    y = LogAxis.of_decades([p[2] for p in points] + [roof[3] for roof in roofs], flop_rate_text)
    marks = roof_marks(roofs, x, y)
    for label, intensity, rate, measured in points:
        row = by_label[label]
        source = "measured" if measured else "estimated"
        ms = row.ms if measured else row.estimated_ms
        mine = [min(peak, bw * intensity) for _, dtype, bw, peak in roofs if dtype == dtype_of(row)]
        of_roof = f": {percent_text(rate / max(mine))} of its roof" if mine else ""
        tip = (
            f"{label}, {source}: {rate / 1e12:.3g} TFLOP/s at {intensity:.3g} FLOP per byte of "
            f"HBM, {time_text(ms)}{of_roof}"
        )
        where = {"cx": x.x(intensity), "cy": y.y(rate)}
        css = f"point {dtype_of(row)} {source} {row.any.direction}"
        marks += mark("circle", tip, **where, r=5.5, class_=css)
        if measured or row.ms is None:  # one name where there are two points
            marks += element("line", class_="leader", aria_hidden="true")
            marks += text(label, x=where["cx"], y=where["cy"], dx=9, dy=4, class_="label")
    kinds = [
        (f"point {dtype}", f"{dtype} step and roof")
        for dtype in ("fp32", "bf16", "e4m3")
        if any(dtype_of(row) == dtype for row in results)
    ]
    if any(point[3] for point in points):
        kinds.append(("point measured", "filled and dashed: measured"))
    caption = (
        "FLOPs as executed per byte of HBM, and per second. Under the slope HBM sets the limit, "
        "under a level line the peak of the step's type; a step far below both waits for something "
        f"else. Roofs: {html.escape(', '.join(machines(results)))}." + legend(kinds)
    )
    box = plot(x, y, marks, "FLOP per byte of HBM", "FLOP/s", "Roofline")
    return figure("Roofline", caption, box, "roofline", class_="chart roofline")


# --- against N ------------------------------------------------------------------------------------


def per_head(counts, row):
    p = row.any.data["problem"]
    return total(counts) / (p["b"] * p["h"]) if counts else None


# What is drawn against N: title, which direction, row -> value, its text, the y axis' name.
AGAINST_N = (
    ("Forward: time", "forward", lambda r: r.ms or r.estimated_ms, time_text, "time"),
    ("Backward: time", "backward", lambda r: r.ms or r.estimated_ms, time_text, "time"),
    (
        "Forward: HBM bytes of one head",
        "forward",
        lambda r: per_head(r.gpu_get("traffic.hbm.measured") or r.sim_get("traffic.hbm.model"), r),
        bytes_text,
        "HBM bytes per head",
    ),
    (
        "Backward: HBM bytes of one head",
        "backward",
        lambda r: per_head(r.gpu_get("traffic.hbm.measured") or r.sim_get("traffic.hbm.model"), r),
        bytes_text,
        "HBM bytes per head",
    ),
)


def family(row):
    """What the points of one panel have in common: FlashAttention's series, or B and H."""
    p = row.any.data["problem"]
    sizes = f"B={p['b']} H={p['h']}"
    if in_series(p):
        sizes = "B·N=16384 H·d=2048"
    more = [f"Hkv={p['hkv']}"] if p["hkv"] != p["h"] else []
    more += [f"Nk={p['nk']}"] if p["nk"] != p["n"] else []
    more += [f"M={p['smem']}"] if p.get("smem") else []
    more += [f"lengths={lengths_text(p)}"] if p.get("lengths") else []
    more += [f"page={p['page']}"] if p.get("page") else []
    more += ["causal"] if p["causal"] else []
    more += [f"estimated for {row.estimated_heads} heads"] if row.estimated_heads else []
    return " ".join([sizes, f"d={p['d']}", *more]) + f", {row.any.direction}"


def lines_of(rows, value):
    """{label: [(N, value)]} of the family of problems with the most points, and its name."""
    families = {}
    for row in rows:
        if value(row):
            lines = families.setdefault(family(row), {})
            label = row.any.label.removesuffix(" bwd")
            lines.setdefault(label, []).append((row.any.data["problem"]["n"], value(row)))
    # A step's result: its last variant, in the order of reading.
    for name, lines in families.items():
        last = {label.split()[0]: label for label in lines}
        families[name] = {label: sorted(lines[label]) for label in last.values()}

    def richness(name):
        lines = families[name].values()
        return len({n for line in lines for n, _ in line}), sum(map(len, lines))

    best = max(families, key=richness, default=None)
    if best is None or richness(best)[0] < 2:
        return {}, ""
    return families[best], best


def against_n(rows, title, direction, value, text_of, y_name):
    lines, problem = lines_of([row for row in rows if row.any.direction == direction], value)
    if not lines:
        return ""
    sizes = sorted({n for points in lines.values() for n, _ in points})
    x = LogAxis(sizes[0], sizes[-1], sizes, str)
    y = LogAxis.of_decades([v for points in lines.values() for _, v in points], text_of)
    marks = ""
    for label, points in lines.items():
        number = label.split()[0]
        css = f"s{int(number)}" if number.isdigit() else "s0"
        for (n, v), (m, w) in zip(points, points[1:]):
            marks += segment(x, y, (n, v), (m, w), f"curve {css}")
        for n, v in points:
            tip = f"{label}, N={n}: {text_of(v)}"
            marks += mark("circle", tip, cx=x.x(n), cy=y.y(v), r=4, class_=f"dot {css}")
        n, v = points[-1]
        where = {"x": x.x(n), "y": y.y(v), "dx": 10, "dy": 4}
        marks += text(label, **where, class_=f"label end {css}", data_short=number)
    box = plot(x, y, marks, "N", y_name, title)
    name = title.lower().replace(":", "").replace(" ", "_")
    return figure(
        title, html.escape(problem) + ", both axes logarithmic.", box, name, class_="chart"
    )


def against_n_figures(rows):
    """Of rows with several N; those that the rows have data for."""
    return "".join(against_n(rows, *entry) for entry in AGAINST_N)
