"""Prints the table of the tour and writes one self-contained HTML page.

    maintain report --out report.html build/tour

reads NAME.VARIANT.{sim,gpu}.json and the programs' texts beside them (.txt). A run without JSON has
failed; the page shows its last lines. Exit status: 0 done, 1 there was nothing to show, or the page
cannot be written.
"""

import glob
import html
import os

from . import command
from .command import BadInput, Failure
from .files import replace_text
from .results import (
    columns_for,
    estimated_time,
    join_for_reading,
    limit_in_words,
    load,
    notes_on,
    screen_of,
)
from .text import bytes_text, time_text

STYLE = """
:root { --fg: #1b1f24; --bg: #ffffff; --soft: #f4f6f8; --line: #d5dae0; --dim: #5b6570;
        --bar: #3572b0; --bar2: #d9822b; --bad: #c0272d; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --fg: #e4e8ec; --bg: #14181c; --soft: #1d2329; --line: #38414a; --dim: #9aa5b1;
          --bar: #5b9bd5; --bar2: #e8a05c; --bad: #ff6b6b; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--fg); background: var(--bg);
       max-width: 1080px; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.9rem; margin-bottom: .2rem; } h2 { font-size: 1.25rem; margin-top: 2.4rem; }
p.lead, figcaption, .dim { color: var(--dim); } p.lead { margin-top: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums;
        width: 100%; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; background: var(--soft); }
th.l, td.l { text-align: left; }
.bad { color: var(--bad); font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1.5rem; }
figure { margin: 0; } figcaption { font-size: .88rem; } figure h3 { font-size: 1rem; margin: 0; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--fg); }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .8rem;
      overflow-x: auto; font-size: .8rem; line-height: 1.4; }
summary { cursor: pointer; padding: .3rem 0; font-weight: 600; }
"""


def bars(title, caption, entries, room=78):
    """Horizontal bars on a linear scale from zero: entries are (label, value, its text, css
    variable); `room` is the texts' width."""
    entries = [e for e in entries if e[1] is not None]
    if not entries:
        return ""
    width, label_width, row = 520, 150, 24
    largest = max(value for _, value, _, _ in entries) or 1
    lines = []
    for i, (label, value, text, color) in enumerate(entries):
        length = max(1, (width - label_width - room) * value / largest)
        y = i * row
        label, text = html.escape(label), html.escape(text)
        lines.append(
            f'<text x="{label_width - 8}" y="{y + 16}" text-anchor="end">{label}</text>'
            f'<rect x="{label_width}" y="{y + 4}" width="{length:.1f}" height="{row - 8}" rx="2" '
            f'fill="var({color})"/>'
            f'<text x="{label_width + length + 6:.1f}" y="{y + 16}">{text}</text>'
        )
    return (
        f"<figure><h3>{html.escape(title)}</h3><figcaption>{html.escape(caption)}</figcaption>"
        f'<svg viewBox="0 0 {width} {len(entries) * row}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(lines)}</svg></figure>'
    )


def entries(rows, value, text, color="--bar"):
    return [(row.any.label, value(row), text(value(row)), color) for row in rows]


def time_charts(rows):
    """A chart per type: beside fp32 the bars of tensor cores would be too short to compare."""
    found = ""
    for dtype in dict.fromkeys(row.any.data["problem"]["dtype"] for row in rows):
        typed = [row for row in rows if row.any.data["problem"]["dtype"] == dtype]
        found += bars(
            f"Estimated time, {dtype}",
            "From the simulator's counts, and what limits the kernel that takes longest.",
            [
                (
                    row.any.label,
                    row.estimated_ms,
                    f"{estimated_time(row)}, {limit_in_words(row)}",
                    "--bar",
                )
                for row in typed
            ],
            room=230,
        ) + bars(
            f"Measured time, {dtype}",
            "Median on this machine's GPU, L2 flushed before each run.",
            entries(typed, lambda r: r.ms, time_text, "--bar2"),
        )
    return found


def byte_charts(rows):
    models = [row.sim_get("model_gpu") for row in rows if row.sim_get("model_gpu")]
    model = models[0] if models else "the modelled GPU"
    hbm = []
    for row in rows:
        hbm += entries([row], lambda r: r.hbm_modelled, bytes_text)
        hbm += entries([row], lambda r: r.hbm_measured, bytes_text, "--bar2")
    return "".join(
        (
            bars(
                "Requested",
                "Bytes that the kernels' loads, stores and atomics request, counted.",
                entries(rows, lambda r: r.requested, bytes_text),
            ),
            bars(
                "HBM",
                f"Bytes that reach DRAM: modelled with the L2 of {model} (blue), measured on "
                "this machine's GPU (orange, where there is one).",
                hbm,
            ),
            bars(
                "Workspace",
                "Memory beyond inputs and outputs.",
                entries(rows, lambda r: r.any.get("workspace_bytes"), bytes_text),
            ),
        )
    )


def html_table(columns, rows):
    def cell(tag, column, text):
        classes = " ".join(["l"] * column.left + ["bad"] * (text == "WRONG"))
        start = f'{tag} class="{classes}"' if classes else tag
        return f"<{start}>{html.escape(text)}</{tag}>"

    head = "".join(cell("th", c, c.title) for c in columns)
    body = "".join(
        "<tr>" + "".join(cell("td", c, c.cell(row)) for c in columns) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def page(rows, texts):
    columns, common = columns_for(rows)
    notes = "".join(f"<br>{html.escape(note)}." for note in notes_on(rows))
    sections = []
    for name, (text, ok) in texts.items():
        sections.append(
            f"<details{'' if ok else ' open'}><summary{'' if ok else ' class=bad'}>"
            f"{html.escape(name)}</summary><pre>{html.escape(text)}</pre></details>"
        )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>flash-steps: the tour</title><style>{STYLE}</style></head><body>
<h1>FlashAttention, one step at a time</h1>
<p class="lead">Same mathematics, same outputs, a different order of computation.
Every row went through the same check against an fp64 reference.</p>
<p>{html.escape(common)}</p>
<h2>All steps</h2>{html_table(columns, rows)}
<p class="dim">Requested bytes, requests and sectors are counted by the simulator. The estimated
time is what a model of the GPU makes of these counts, never a measurement: docs/clock.md explains
it and says how far it is from measured times. Limited by: what the kernel that takes longest keeps
busy, or waits for, most of its time. Busy SMs: how many get a block of it.{notes}</p>
<h2>Where the time goes</h2><div class="charts">{time_charts(rows)}</div>
<h2>Where the bytes go</h2><div class="charts">{byte_charts(rows)}</div>
<h2>The steps' own reports</h2>{"".join(sections)}
</body></html>
"""


def main():
    parser = command.parser(__doc__)
    parser.add_argument("folder")
    parser.add_argument("--out", default="report.html")
    args = parser.parse_args()

    runs, texts = [], {}
    for path in sorted(glob.glob(os.path.join(args.folder, "*.txt")), key=reading_order):
        stem = path[: -len(".txt")]
        found = runs_beside(path)
        runs += found
        with open(path, encoding="utf-8", errors="replace") as file:
            name, variant, backend = os.path.basename(stem).split(".")
            ok = bool(found) and all(run.get("ok") for run in found)
            texts[f"{name} {variant}, {backend}"] = (file.read(), ok)
    if not runs:
        raise Failure(f"no step left a result in {args.folder}")
    rows = join_for_reading(runs)
    print(screen_of(rows))
    try:
        replace_text(args.out, page(rows, texts))
    except OSError as error:
        raise Failure(f"{args.out} cannot be written: {error.strerror}") from None
    print(f"\n{args.out}\n  the same table, with pictures and each step's report")
    return 0


def runs_beside(path):
    """The runs whose text this is; none of a program that failed."""
    try:
        stem = path[: -len(".txt")]
        return load(stem + ".json") if os.path.exists(stem + ".json") else []
    except BadInput as error:
        raise Failure(error) from None


def reading_order(path):
    """By step, then by the variant's place; without a JSON that says it, by its name."""
    name, variant, backend, _ = os.path.basename(path).split(".")
    runs = runs_beside(path)
    place = runs[0].get("variant_index") if runs else None
    return name, 0 if place is None else place, variant, backend
