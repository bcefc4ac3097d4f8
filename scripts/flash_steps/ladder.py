"""The ladder of report.html: a row a step, with its idea and its result; its other variants are
folded."""

import collections
import html
from dataclasses import dataclass

from .axes import LogAxis, element, figure, legend, mark
from .problems import cache_of
from .results import estimated_time, get, limit_in_words, modelled_gpu, total, verdict
from .steps import number_of
from .text import bytes_text, percent_text, three_digits, time_text

ORDER = ("forward", "backward", "prepare")  # in a step's row
SAID = {
    "forward": "",
    "backward": "backward",
    "prepare": "prepare: once, before the forward",
}


def comparable(rows):
    """The rows of one problem on one device: of the most steps, then of the largest N."""
    groups = collections.defaultdict(list)
    for row in rows:
        p = row.any.data["problem"]
        sizes = tuple(p.get(key) for key in ("b", "h", "hkv", "n", "nk", "d", "causal", "smem"))
        groups[sizes, cache_of(p)].append(row)

    def size(group):
        p = group[0].any.data["problem"]
        return len({row.any.data["step"] for row in group}), p["n"] * p["nk"], p["b"] * p["h"]

    chosen = max(groups.values(), key=size)
    device = next((row.gpu_get("device.name") for row in chosen if row.gpu), None)
    return [row for row in chosen if row.gpu_get("device.name") in (None, device)]


def by_step(rows):
    """{step: (its results, its other rows)}. The last variant in the order of reading is the step's
    result; the last forward and the last backward may be of two variants."""
    last = {(row.any.data["step"], row.any.direction): row for row in rows}
    steps = {}
    for row in rows:
        result = last[row.any.data["step"], row.any.direction] is row
        steps.setdefault(row.any.data["step"], ([], []))[0 if result else 1].append(row)
    for results, _ in steps.values():
        results.sort(key=lambda row: ORDER.index(row.any.direction))
    return steps


def results_of_steps(rows):
    return [row for results, _ in by_step(rows).values() for row in results]


def title_of(step):
    """ "06 work partitioning" """
    return step.replace("_", " ")


def dtype_of(row):
    """Of the products: "fp32", "bf16" or "e4m3"."""
    return "e4m3" if row.any.get("fp8") else row.any.data["problem"]["dtype"]


# --- the numbers of one row, as texts and bars ----------------------------------------------------


@dataclass
class Bar:
    css: str
    value: float
    words: str  # above it
    tip: str  # when it is hovered or focused
    note: str = ""  # below it


def bytes_bars(row):
    requested = row.sim_get("traffic.requested.counted")
    model, measured = row.sim_get("traffic.hbm.model"), row.gpu_get("traffic.hbm.measured")
    return [
        Bar(css, total(counts), f"{bytes_text(total(counts))} {what}", tip, note)
        for css, counts, what, note in (
            ("requested", requested, "requested", against_parent(row)),
            ("modelled", model, "HBM, modelled", ""),
            ("measured", measured, "HBM, measured", ""),
        )
        if counts is not None
        for tip in [f"{row.any.label}, {what}: {ways(counts)}"]
    ]


def time_bars(row):
    bars = []
    if row.estimated_ms is not None:
        words = f"{estimated_time(row)} estimated"
        tip = f"{row.any.label}, {kernels_of(row)}"
        note = f"limited by {limit_in_words(row)}"
        bars.append(Bar("estimated", row.estimated_ms, words, tip, note))
    if row.ms is not None:
        tip = f"{row.any.label}: median of {row.gpu_get('time.iters')} runs"
        p10, p90 = row.gpu_get("time.p10_ms"), row.gpu_get("time.p90_ms")
        tip += f", {time_text(p10)} to {time_text(p90)} (p10 to p90)" if p10 and p90 else ""
        bars.append(Bar("measured", row.ms, f"{time_text(row.ms)} measured", tip))
    return bars


def ways(counts):
    """ "2.20 GB read, 34.6 MB written" """
    words = {"read": "read", "write": "written", "atomic": "added by atomics"}
    return ", ".join(
        f"{bytes_text(counts[key])} {word}" for key, word in words.items() if counts.get(key)
    )


def kernels_of(row):
    """ "estimated for H200: scores_kernel 310 us (L1 lines 96.0%, waiting 4.0%); ..." """
    kernels = sorted(get(row.estimate, "kernels") or [], key=lambda kernel: -kernel["ms"])
    words = []
    for kernel in kernels[:4]:
        parts = list(kernel["parts"].items())[:3]
        shares = ", ".join(f"{part} {percent_text(share)}" for part, share in parts)
        words.append(f"{kernel['name']} {time_text(kernel['ms'])} ({shares})")
    return f"estimated for {modelled_gpu(row)}: " + "; ".join(words)


def against_parent(row):
    """ "26 times fewer than 01 naive", where the parent's prediction differs by 5%."""
    parent = total(row.sim_get("parent.requested.predicted"))
    own = total(row.sim_get("traffic.requested.predicted"))
    if not parent or not own or 0.95 < parent / own < 1.05:
        return ""
    times, word = (parent / own, "fewer") if parent > own else (own / parent, "more")
    return f"{three_digits(times)} times {word} than {row.sim_get('parent.step')}"


# --- HTML -----------------------------------------------------------------------------------------


def meter(axis, bars):
    """Each bar below its text, over the lines of the axis."""
    if axis is None:
        return "<div></div>"
    lines = "".join(axis.x_line(tick) for tick in axis.ticks)
    body = element("svg", lines, class_="lines", aria_hidden="true")
    for bar in bars:
        rect = mark("rect", bar.tip, width=axis.x(bar.value), height="100%", class_=bar.css, rx=2)
        body += element("p", html.escape(bar.words)) + element("svg", rect, class_="bar")
        body += element("p", html.escape(bar.note), class_="dim") if bar.note else ""
    return element("div", body, class_="meter")


def line(axes, who, row):
    """One row of the grid: who, bytes, time, check."""
    good = verdict(row) == "ok"
    cells = (
        element("div", who, class_="who")
        + meter(axes[0], bytes_bars(row))
        + meter(axes[1], time_bars(row))
        + element("div", "✓ right" if good else "✗ " + verdict(row), class_="ok" if good else "bad")
    )
    return element("div", cells, class_="line")


def result_who(row, idea, link):
    """The first line of a step says what the step is, the others only which pass they are."""
    data = row.any.data
    tags = f'<span class="type">{html.escape(dtype_of(row))}</span>'
    said = SAID[row.any.direction]
    if idea is None:
        variant = html.escape(row.any.variant)
        return element("p", f"{html.escape(said or 'forward')} <b>{variant}</b> {tags}")
    name = html.escape(title_of(data["step"]))
    name = element("a", name, href=link) if link else name
    words = " ".join(filter(None, [html.escape(said), f"<b>{html.escape(row.any.variant)}</b>"]))
    return f"<h4>{name}</h4><p>{html.escape(idea)}</p>" + element(
        "p", f"{words} {tags}", class_="dim"
    )


def variant_who(row):
    idea = row.any.get("variant_idea") or ""
    label = row.any.label.split(" ", 1)[-1]
    return f"<p><b>{html.escape(label)}</b></p>" + element("p", html.escape(idea), class_="dim")


def rung(axes, step, results, others, link):
    first, *rest = results
    lines = line(axes, result_who(first, first.any.get("idea") or "", link), first)
    lines += "".join(line(axes, result_who(row, None, None), row) for row in rest)
    if others:
        names = ", ".join(dict.fromkeys(row.any.variant for row in others))
        lines += element(
            "details",
            element("summary", f"other variants: {html.escape(names)}")
            + "".join(line(axes, variant_who(row), row) for row in others),
        )
    return element("li", lines, id=f"step-{number_of(step):02}" if number_of(step) else None)


def ladder(rows, link):
    """`link`: step -> where its chapter is, or None."""
    axes = (
        LogAxis.of_decades([bar.value for row in rows for bar in bytes_bars(row)], bytes_text),
        LogAxis.of_decades([bar.value for row in rows for bar in time_bars(row)], time_text),
    )
    heads = "".join(
        element("div", f"<b>{what}</b>" + (scale(axis) if axis else ""))
        for what, axis in (("Bytes", axes[0]), ("Time", axes[1]))
    )
    rungs = "".join(
        rung(axes, step, results, others, link(step))
        for step, (results, others) in by_step(rows).items()
    )
    said = [
        f"from {axis.text(axis.low)} to {axis.text(axis.high)}" for axis in axes if axis is not None
    ]
    used = {bar.css for row in rows for bar in bytes_bars(row) + time_bars(row)}
    keys = [
        (css, words)
        for css, words in (
            ("requested", "requested: what loads, stores and atomics ask for, counted"),
            ("modelled", f"HBM: what reaches DRAM behind the L2 of {models(rows)}, modelled"),
            ("estimated", f"time estimated for {estimated_for(rows)}"),
            ("measured", f"measured on {devices(rows)}"),
        )
        if css in used
    ]
    caption = (
        f"Logarithmic bars, {' and '.join(said)}: each grid line is ten times the one before."
        + legend(keys)
    )
    body = element("div", f"<div></div>{heads}<div></div>", class_="line heads", aria_hidden="true")
    return figure("A row a step", caption, body + element("ol", rungs), "ladder", class_="ladder")


def scale(axis):
    """The texts of the ticks, above the bars."""
    return element(
        "svg",
        "".join(
            element(
                "text",
                html.escape(axis.text(tick)),
                x=axis.x(tick),
                y=12,
                text_anchor="start" if i == 0 else "end" if i == len(axis.ticks) - 1 else "middle",
                class_="tick x",
            )
            for i, tick in enumerate(axis.ticks)
        ),
        class_="scale",
    )


def models(rows):
    names = [row.sim_get("model_gpu") or get(row.estimate, "gpu") for row in rows]
    return ", ".join(dict.fromkeys(filter(None, names))) or "the modelled GPU"


def estimated_for(rows):
    return ", ".join(dict.fromkeys(modelled_gpu(row) for row in rows if row.estimate))


def devices(rows):
    return ", ".join(dict.fromkeys(row.gpu_get("device.name") for row in rows if row.gpu))
