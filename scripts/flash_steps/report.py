"""Prints the table of the tour and writes one self-contained HTML page.

    maintain report --out report.html build/tour

reads NAME.VARIANT.{sim,gpu}.json and the programs' texts beside them (.txt). A run without JSON has
failed; the page shows its last lines. compare.py writes the same page of any runs.
Exit status: 0 done, 1 there was nothing to show, or the page cannot be written.
"""

import glob
import html
import json
import os

from . import command
from .attention_map import attention_map
from .axes import element
from .command import BadInput, Failure
from .files import ROOT, read_text, replace_text, require_writable
from .gpu_table import model_of
from .ladder import comparable, ladder, results_of_steps
from .report_figures import against_n_figures, bytes_figure, roofline_figure
from .results import columns_for, join_for_reading, load, notes_on, published, screen_of
from .standing import rows_of, standing_of
from .text import bytes_text, three_digits, time_text

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page")
LEAD = "Same mathematics, same outputs, a different order of computation."


# --- sections: HTML, or nothing -------------------------------------------------------------------


def tiles(rows):
    """From the first step's forward to the last's: how many times fewer bytes, and less time."""
    forwards = [row for row in results_of_steps(rows) if row.any.direction == "forward"]
    if len(forwards) < 2:
        return ""
    first, last = forwards[0], forwards[-1]
    found = ""
    for what, value, words in (
        ("{} bytes requested", lambda r: r.requested, bytes_text),
        ("{} bytes through HBM, modelled", lambda r: r.hbm_modelled, bytes_text),
        ("{} bytes through HBM, measured", lambda r: r.hbm_measured, bytes_text),
        ("{} time, estimated", lambda r: r.estimated_ms, time_text),
        ("{} time, measured", lambda r: r.ms, time_text),
    ):
        a, b = value(first), value(last)
        if a and b:
            fewer = "less" if "time" in what else "fewer"
            times, change = (a / b, fewer) if a >= b else (b / a, "more")
            found += (
                f'<div><p class="figure">{three_digits(times)}×</p><p>{what.format(change)}</p>'
                f'<p class="dim">{words(a)} → {words(b)}</p></div>'
            )
    said = html.escape(f"The forward, from {first.any.label} to {last.any.label}")
    return f'<h2 class="small">{said}</h2><div class="tiles">{found}</div>' if found else ""


def chapter_links(out):
    """step -> where its chapter is, seen from the page, or None. Of the built book, or Markdown."""
    folder = os.path.dirname(os.path.abspath(out))
    book = os.path.join(ROOT, "build", "sim", "docs", "html")

    def link(step):
        chapter = os.path.join("steps", step)
        places = (
            os.path.join(book, chapter, "index.html"),
            os.path.join(ROOT, chapter, "README.md"),
        )
        return next((os.path.relpath(p, folder) for p in places if os.path.exists(p)), None)

    return link


def against_n_section(rows):
    """Of these runs where they have several N, else of the published results of their GPU."""
    own = against_n_figures(rows)
    if own:
        return "<p>Of these runs: measured times where there are any, else estimated ones.</p>", own
    device, measured = published_of(rows)
    figures = against_n_figures(measured)
    if not figures:
        return "", ""
    return (
        f"<p>Measured on {html.escape(device)}, in the project's published runs (docs/results); "
        "each step's result. On these axes bytes that grow with N² climb twice as steeply as bytes "
        "that grow with N.</p>"
    ), figures


def published_of(rows):
    """(device, its published rows): the GPU that these rows are measured on or estimated for."""
    wanted = {model_of(row.gpu_get("device.name")) for row in rows if row.gpu}
    wanted |= {row.sim_get("model_gpu") for row in rows}
    found = {}
    for row in rows_of(published(os.path.join(ROOT, "docs", "results"))):
        device = row.gpu_get("device.name")
        if device and model_of(device) in wanted and standing_of(row.gpu) is None:
            found.setdefault(device, []).append(row)
    device = max(found, key=lambda name: len(found[name]), default="")
    return device, found.get(device, [])


def map_section(rows):
    """Of runs on the real input. page/report.js fills in the text, the map and what they say."""
    real = any(row.any.data["problem"].get("input") == "real" for row in rows)
    data = attention_map() if real else None
    if data is None:
        return ""
    inside = json.dumps(data).replace("<", "\\u003c")
    return f"""
<p>The real input (<code>--input real</code>) is what a small GPT computes when it reads this text,
one token per character. Point at a character, or use the arrow keys in the text: the stronger the
colour of an earlier character, the more of this row of P goes to it. Head {data["head"]} is an
induction head: it finds where the same characters stood before, and looks at what came next.</p>
<figure id="attention" data-name="attention"><h3>P of head {data["head"]}, row by row</h3>
<figcaption id="attention-said" aria-live="polite"></figcaption>
<div class="attention"><div id="attention-text" tabindex="0" role="application"
aria-label="The text: arrow keys choose a character"></div>
<div><canvas id="attention-map" width="1024" height="1024" role="img"
aria-label="The whole map: a row for each character, a column for each earlier one"></canvas>
<ol id="attention-list"></ol></div></div></figure>
<script type="application/json" id="attention-data">{inside}</script>
<noscript><p>The map needs JavaScript.</p></noscript>"""


def html_table(columns, rows):
    def cell(tag, column, text):
        classes = " ".join(["l"] * column.left + ["bad"] * (text == "WRONG"))
        content = html.escape(text)
        content = content.replace("/", "/<wbr>") if tag == "th" else content
        return element(tag, content, class_=classes or None)

    head = "".join(cell("th", c, c.title) for c in columns)
    body = "".join(
        "<tr>" + "".join(cell("td", c, c.cell(row)) for c in columns) + "</tr>" for row in rows
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="The table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def table_section(columns, rows):
    notes = "".join(f"<br>{html.escape(note)}." for note in notes_on(rows))
    return f"""{html_table(columns, rows)}
<p class="dim">Requested bytes, requests and sectors are counted by the simulator. The estimated
time is what a model of the GPU makes of these counts, never a measurement: docs/clock.md explains
it and says how far it is from measured times. Limited by: what the kernel that takes longest keeps
busy, or waits for, most of its time. Busy SMs: how many get a block of it.{notes}</p>"""


def texts_section(texts):
    found = ""
    for name, (text, ok) in texts.items():
        found += (
            f"<details{'' if ok else ' open'}><summary{'' if ok else ' class=bad'}>"
            f'{html.escape(name)}</summary><pre tabindex="0">{html.escape(text)}</pre></details>'
        )
    return found


# --- the page -------------------------------------------------------------------------------------


def page(rows, texts, out, title="the tour"):
    """HTML of the rows and of the programs' texts, {name: (text, ok)}, for the file `out`."""
    columns, common = columns_for(rows)
    alike = comparable(rows)
    said, curves = against_n_section(rows)
    sections = (
        ("ladder", "The ladder", ladder(alike, chapter_links(out))),
        ("bytes", "Where the bytes go", bytes_figure(alike)),
        ("roofline", "Below the roof", roofline_figure(alike)),
        (
            "against-n",
            "Time and traffic against N",
            curves and f'{said}<div class="charts">{curves}</div>',
        ),
        ("map", "Attention over a text", map_section(rows)),
        ("table", "All runs", table_section(columns, rows)),
        ("texts", "The steps' own reports", texts_section(texts)),
    )
    sections = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{name}">{head}</a>' for name, head, _ in sections)
    body = "".join(
        f'<section id="{name}"><h2>{head}</h2>{content}</section>'
        for name, head, content in sections
    )
    scripts = ["theme.js", "report.js", "save.js"] + ["attention.js"] * (
        'id="attention-data"' in body
    )
    names = ("theme.css", "report.css", *scripts)
    theme, style, *scripts = (read_text(os.path.join(PAGE, name)) for name in names)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>flash-steps: {title}</title><style>
{theme}{style}</style></head><body>
<header><h1>FlashAttention, one step at a time</h1>
<p class="lead">{LEAD} Every row went through the same check against an fp64 reference.</p>
<p>{html.escape(common)}</p>
<nav aria-label="Sections">{links}<button id="theme" type="button">dark</button></nav></header>
<main>{tiles(alike)}{body}</main>
<div id="tip" role="tooltip" hidden></div>
<script>
{"".join(scripts)}</script></body></html>
"""


def write_page(out, rows, texts, title="the tour"):
    """page() to a file, as a whole or not at all."""
    replace_text(out, page(rows, texts, out, title))


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
    inputs = glob.glob(os.path.join(args.folder, "*.txt"))
    require_writable("--out", args.out, *inputs, *glob.glob(os.path.join(args.folder, "*.json")))
    rows = join_for_reading(runs)
    print(screen_of(rows))
    write_page(args.out, rows, texts)
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
