"""Fills the tables and outputs in README.md and the chapters from results.

    maintain tables                 all Markdown of the repository, from docs/results/*.json
    maintain tables --check         changes nothing; exit status 1 when a table is out of date, or a
                                    table or an output is empty
    maintain tables --run FILE.md   also runs the commands in these files and pastes their output
    maintain tables --show "KIND KEY=VALUE,..."     prints this table

The text between the markers is replaced:

    <!-- table: KIND KEY=VALUE,... ... -->
    <!-- /table -->

    <!-- run: build/sim/steps/01_naive --n 256 -->
    <!-- /run -->

and within a sentence, <!-- figure: KIND KEY=VALUE ... -->1.21x<!-- /figure -->. A filter chooses
rows by a key of theirs; in its values _ is a space. Kinds of tables:

    steps              columns as in compare.py; keys of `problem`, step, variant, direction,
                       device, row (06_swapped)
    rungs              a step's variants in the page's order, which names them: its columns up to
                       `idea` stay, the others are filled. rung: a variant of step=..., "09 wgmma",
                       cuDNN, FlashAttention-2, -3 or -4; from=peers (default), runs (and peers'
                       rivals), decode, masks or ring; by=KEY: columns for each of its values
                       (default: d); figures=time,speed (default), rate, copy (the share of a
                       copy's rate), ideal, hbm, requested
    speed, scale       one table each of time, TFLOP/s, bytes and workspace: a row per variant, a
                       column per N; figure=time,hbm chooses some, speed is scale figure=speed
    peers, means       beside PyTorch: TFLOP/s against N; ratios over all problems;
    peers_run          how that was measured
    rivals, rival_means    the same beside FlashAttention-3 and -4
    masks              step 15's variants beside backends with masks: a row per mask and variant
    decode, ring, models, latent    what=..., as decode.py and the others have them; what=card:
                       GPU, clock, timing, copy rate and date
    model              the same of model_tables.py
    accuracy, estimated    estimated beside measured times (estimates.json)
    ladder             section=forward,...: every rung at one problem; needs build/sim
    fastest            steps beside their fastest rivals on device=

and of figures:

    mean, least        of peers' ratios to against=BACKEND: geometric mean of the medians, the
                       minimum of all repeats; flash3, flash4 and best (of all) are in
                       rivals_<gpu>.json
    share              TFLOP/s beside it as a share of the matmul rate: from, to
    occasions          TFLOP/s in all results of any day and card: from, to
    counters           how many figures of requests, sectors and lines were both counted and
                       measured: an error where one of them differs

A result carries its commit (commits.py). Where its step has changed since, or the GPU was slowed
down, the table, or the last figure of a paragraph, says so; --check fails until the page does.

Exit status: 0 done, 1 out of date or empty, 2 bad use or a command failed.
"""

import glob
import itertools
import json
import os
import re
import statistics
import subprocess
import textwrap

from flash_steps import command, standing
from flash_steps.command import BadInput
from flash_steps.commits import UNKNOWN, here
from flash_steps.files import read_text, write_text
from flash_steps.problems import flops_of, in_series, own_tiles
from flash_steps.results import PICTURES, columns_for, notes_on_estimates, published, speed, total
from flash_steps.standing import standing_of, standing_parts, standing_text
from flash_steps.steps import ROOT
from flash_steps.text import (
    bytes_text,
    flops_text,
    markdown_table,
    range_text,
    three_digits,
    time_text,
)

from . import decode, estimates, ladder_tables, latent, measured, model_tables, models, peers, ring
from .counters_vs_sim import differences

MARKER = re.compile(r"(<!-- (table|figure|run):\s(.+?)\s-->)(.*?)(<!-- /\2 -->)", re.DOTALL)
PAGE_WIDTH = 118


class Results:
    """All results of a folder: rows of the programs' runs, peers, decode and ring."""

    def __init__(self, folder):
        self.rows = standing.rows_of(published(folder))
        names = ("peers", "decode", "ring", "model", "rivals", "masks", "occasions")
        names += ("models", "latent")
        self.of = {name: standing.measured(name, folder) for name in names}


def rows_of(results, name):
    return [{**row, "device": of["device"]} for of in results.of[name] for row in of["rows"]]


# --- filters --------------------------------------------------------------------------------------


def matches(known, filters):
    """Do all filters fit {key: value}? A filter names one value or several with commas."""
    for key, wanted in filters.items():
        if key not in known:
            raise BadInput(f"table filter '{key}': choose from {', '.join(sorted(known))}")
        value = known[key]
        text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
        if text.replace(" ", "_") not in wanted.split(","):
            return False
    return True


def keys_of(row):
    run = row.any
    absent = {"smem": None, "lengths": None, "page": None}
    names = {"step": run.data["step"], "variant": run.variant, "direction": run.direction}
    names |= {"row": run.label.replace(" ", "_"), "device": run.get("device.name")}
    return {**absent, **run.data["problem"], **names}


def one_result(name, results, filters):
    """(the result of the chosen device, its rows that pass); a backend passes with the steps."""

    def passes(row, device):
        mine = {k: v for k, v in filters.items() if row["step"] or k not in ("step", "variant")}
        return matches({**row, "device": device}, mine)

    found = []
    for result in results.of[name]:
        rows = [row for row in result["rows"] if passes(row, result["device"])]
        found += [(result, rows)] if any(row["step"] for row in rows) else []
    if not found:
        raise BadInput(f"table '{name}': no result passes its filters")
    if len(found) > 1:
        raise BadInput(f"table '{name}': its filters must choose one device")
    return found[0]


def paragraph(sentence):
    return textwrap.fill(sentence, PAGE_WIDTH)


def reasons_of(rows):
    """[(label, why it is not of this tree's kernel at full speed, or None)]"""
    return [(label_of(row), row["standing"]) for row in rows if row["step"]]


def label_of(row):
    return row.get("label") or " ".join([row["step"][:2], row.get("variant", "")]).strip()


# --- tables ---------------------------------------------------------------------------------------
# Each is a function of (results, filters) -> (Markdown, reasons_of the shown rows); rungs also has
# the page's text.


def steps_table(results, filters):
    rows = chosen_rows("steps", results, filters)
    columns, common = columns_for(rows)
    parts = [common] * bool(common) + [markdown_table(columns, rows), *notes_on_estimates(rows)]
    return "\n\n".join(parts), runs_standing(run for row in rows for run in (row.sim, row.gpu))


def chosen_rows(name, results, filters):
    rows = [row for row in results.rows if matches(keys_of(row), filters)]
    if not rows:
        raise BadInput(f"table '{name}': no result passes its filters")
    return rows


def runs_standing(runs):
    return [(run.label, standing_of(run)) for run in runs if run]


SCALE_FIGURES = {
    "time": ("Time", lambda r: time_text(r.ms)),
    "speed": ("TFLOP/s", speed),
    "requested": (
        "Requested bytes, predicted by the step's formula",
        lambda r: bytes_text(total(r.gpu_get("traffic.requested.predicted"))),
    ),
    "hbm": ("HBM bytes, measured", lambda r: bytes_text(r.hbm_measured)),
    "head": (
        "HBM bytes per head, measured",
        lambda r: bytes_text(r.hbm_measured and r.hbm_measured / r.heads),
    ),
    "workspace": ("Workspace", lambda r: bytes_text(r.gpu_get("workspace_bytes"))),
}


def is_measured_series(row):
    p = row.any.data["problem"]
    return row.gpu and in_series(p) and own_tiles(p)


def scale_table(results, filters, figures=None):
    """A small table per figure, with B*N and H*d constant as in FlashAttention's series."""
    filters = dict(filters)
    figures = figures or filters.pop("figure", ",".join(SCALE_FIGURES)).split(",")
    rows = list(filter(is_measured_series, chosen_rows("scale", results, filters)))
    if not rows:
        wanted = "no measured run with B*N = 16384 and H*d = 2048"
        raise BadInput(f"table 'scale': {wanted} passes its filters")
    tables = []
    for figure in figures:
        if figure not in SCALE_FIGURES:
            known = ", ".join(SCALE_FIGURES)
            raise BadInput(f"table 'scale': figure '{figure}': choose from {known}")
        title, cell = SCALE_FIGURES[figure]
        cells = [(row.any.label, row.any.data["problem"]["n"], cell(row)) for row in rows]
        said = {label for label, _, text in cells if text != "-"}
        shown = [entry for entry in cells if entry[0] in said]
        tables.append(markdown_table(*measured.against_n(title, shown)))
    return "\n\n".join(tables), runs_standing(row.gpu for row in rows)


def peers_table(table, source="peers"):
    def filled(results, filters):
        _, rows = one_result(source, results, filters)
        return markdown_table(*table(rows)), reasons_of(rows)

    return filled


def rivals_table(results, filters):
    """The speedup of a variant over its fastest rival: medians of the passes."""
    _, rows = one_result("rivals", results, filters)
    entries = [
        (
            f"{row['direction']}, d = {row['d']}, {'causal' if row['causal'] else 'full'}",
            row["n"],
            measured.ratio_text(row["ratios"]["best"]),
        )
        for row in rows
    ]
    return markdown_table(*measured.against_n("beside the fastest", entries)), reasons_of(rows)


RUNG_SOURCES = ("peers", "runs", "decode", "masks", "ring")
RUNG_LABELS = {"cuDNN": "torch cudnn", "FlashAttention-2": "torch flash"}
RUNG_RATIOS = {"FlashAttention-3": "flash3", "FlashAttention-4": "flash4"}
RUNG_FIGURES = {
    "time": ("time", lambda row: time_text(row["ms"])),
    "speed": ("TFLOP/s", lambda row: flops_text(row["flops_per_s"])),
    "rate": ("TB/s", lambda row: three_digits(row["bytes_per_s"] / 1e12, always=True)),
    "copy": ("of a copy", lambda row: f"{row['of_copy']:.0%}"),
    "ideal": ("of the ideal", lambda row: f"{row['share']:.0%}"),
    "hbm": ("HBM bytes", lambda row: bytes_text(row["hbm"]) if row["hbm"] else "-"),
    "requested": ("requested bytes", lambda row: bytes_text(row["requested"])),
}


def rows_of_runs(results):
    """The programs' runs as rows of peers have it."""
    for row in filter(is_measured_series, results.rows):
        bytes_of = {"hbm": row.hbm_measured}
        bytes_of["requested"] = total(row.gpu_get("traffic.requested.predicted"))
        said = {"label": row.any.label, "standing": standing_of(row.gpu)}
        yield {**keys_of(row), **said, **bytes_of, "ms": row.ms, "flops_per_s": row.flops_per_s}


def rows_of_rivals(results):
    """Those that rivals_<gpu>.json holds as ratios to a step's time, as rows of peers have it."""
    for row in rows_of(results, "rivals"):
        for label, name in RUNG_RATIOS.items():
            ms = row["ms"] * row["ratios"][name]
            rate = flops_of({"nk": row["n"], **row}, row["direction"]) / (ms * 1e-3)
            yield {**row, "label": label, "step": None, "ms": ms, "flops_per_s": rate}


def rung_rows(source, results):
    rows = rows_of(results, "peers" if source == "runs" else source)
    if source == "runs":
        rivals = [{**r, "hbm": None, "requested": None} for r in rows if not r["step"]]
        return [*rows_of_runs(results), *rivals]
    if source == "masks":
        return [{**row, "mask": peers.mask_text(row)} for row in rows]
    if source == "peers":
        return rows + list(rows_of_rivals(results))
    return {"decode": decode, "ring": ring}[source].rung_rows(rows)


def rungs_table(results, filters, old):
    """The page's table: its columns up to `idea`, and figures of each rung that it names."""
    filters = {"from": "peers", "by": "d", "figures": "time,speed", **filters}
    source, by, figures, step = (filters.pop(k, "") for k in ("from", "by", "figures", "step"))
    figures = figures.split(",")
    for name, words, known in (
        ("from", [source], RUNG_SOURCES),
        ("figures", figures, RUNG_FIGURES),
    ):
        if wrong := [word for word in words if word not in known]:
            raise BadInput(f"table 'rungs': {name}={wrong[0]}: choose from {', '.join(known)}")
    lines = [line.strip()[1:-1] for line in old.splitlines() if line.startswith("|")]
    heads, *lines = [[c.strip() for c in re.split(r"(?<!\\)\|", line)] for line in lines] or [[]]
    if not {"rung", "idea"} <= set(heads):
        raise BadInput("table 'rungs': write its rows first, with the columns `rung` and `idea`")

    def name_of(line):
        return line[heads.index("rung")].replace("`", "").split(",")[0]

    lines = lines[1:]
    names = {RUNG_LABELS.get(name, name): name for name in map(name_of, lines)}
    names |= {f"{step[:2]} {name}": name for name in map(name_of, lines)}
    shown = {}
    for row in [row for row in rung_rows(source, results) if matches(row, filters)]:
        if name := names.get(row["label"].removesuffix(" bwd")):
            if (name, row[by]) in shown:
                raise BadInput(f"two results of {name} at {by}={row[by]}: choose one problem")
            shown[name, row[by]] = row
    if not shown:
        raise BadInput("table 'rungs': no result passes its filters")

    columns = [
        measured.column(head, lambda line, at=at: line[at], left=True)
        for at, head in enumerate(heads[: heads.index("idea") + 1])
    ]
    values = sorted({at for _, at in shown})
    for at, (title, text) in itertools.product(values, map(RUNG_FIGURES.get, figures)):
        first = len(values) > 1 and title == RUNG_FIGURES[figures[0]][0]
        head = f"{by} = {at}: {title}" if first else title

        def row_of(line, at=at):
            return shown.get((name_of(line), at))

        columns.append(measured.column(head, row_of, text))
    return markdown_table(columns, lines), reasons_of(shown.values())


def rival_means(results, filters):
    """Each rival's ratios over all problems, as peers.means()."""
    _, rows = one_result("rivals", results, filters)
    rows = [{"hkv": row["h"], "nk": row["n"], **row, "label": label_of(row)} for row in rows]
    return markdown_table(*peers.means(rows)), reasons_of(rows)


def peers_run(results, filters):
    result, _ = one_result("peers", results, filters)
    return markdown_table(*peers.card(result)), []


def measured_table(name, module):
    def table(results, filters):
        filters = dict(filters)
        what = filters.pop("what", None)
        if what not in (*module.TABLES, "card"):
            known = ", ".join(module.TABLES)
            raise BadInput(f"table '{name}': what={what}: choose from {known}, card")
        if results.of[name]:
            filters = {"device": results.of[name][-1]["device"].replace(" ", "_"), **filters}
        result, rows = one_result(name, results, filters)
        if what == "card":
            card = module.card(result)
            heads = [measured.column(head, head, left=True) for head in card]
            return markdown_table(heads, [card]), []
        rows = module.rows_for(what, rows)
        if not rows:
            raise BadInput(f"table '{name}': no result passes its filters")
        return markdown_table(*module.table(what, rows)), reasons_of(rows)

    return table


def accuracy_table(filters):
    rows = estimates.chosen(filters)
    table, order = markdown_table(*estimates.accuracy(rows)), estimates.order_text(rows)
    found = [
        (label_of(row), standing.standing(row["step"], row["commit"])) for row in rows.values()
    ]
    return f"{table}\n\n{paragraph(order)}", found


TABLES = {
    "steps": steps_table,
    "speed": lambda results, filters: scale_table(results, filters, ["speed"]),
    "scale": scale_table,
    "peers": peers_table(peers.speeds),
    "means": peers_table(peers.means),
    "peers_run": peers_run,
    "masks": peers_table(peers.masked, "masks"),
    "rivals": rivals_table,
    "rungs": rungs_table,
    "rival_means": rival_means,
    "decode": measured_table("decode", decode),
    "ring": measured_table("ring", ring),
    "models": measured_table("models", models),
    "latent": measured_table("latent", latent),
    "model": measured_table("model", model_tables),
    "accuracy": lambda results, filters: accuracy_table(filters),
    "estimated": lambda results, filters: (markdown_table(*estimates.problem(filters)), []),
    "ladder": lambda results, filters: ladder_tables.ladder_table(filters),
    "fastest": ladder_tables.fastest_table,
}


# --- figures in a sentence ------------------------------------------------------------------------


def of_peers(text):
    """`text`: a function of rows and a backend."""

    def figure(results, filters):
        filters = dict(filters)
        backend = filters.pop("against", None)
        if not backend:
            raise BadInput("a figure: name the backend, as in against=flash")
        source = "rivals" if backend in ("flash3", "flash4", "best") else "peers"
        rows = [row for row in one_result(source, results, filters)[1] if backend in row["ratios"]]
        if not rows:
            raise BadInput(f"a figure: no ratio against '{backend}' passes its filters")
        return text(rows, backend), reasons_of(rows)

    return figure


def equal_counters(results, filters):
    rows = [row for row in results.rows if matches(keys_of(row), filters) and row.sim and row.gpu]
    entries = [entry for row in rows for entry in differences(row)]
    compared = [entry for entry in entries if entry["equal"] is not None]
    if not compared or not all(entry["equal"] for entry in compared):
        raise BadInput("a figure: nothing was counted and measured, or a figure differs")
    return f"{len(compared):,}", runs_standing(row.gpu for row in rows)


def occasions(results, filters):
    """The lowest and the highest speed of all results that pass, on any day and card."""
    rows = [
        row
        for name in ("peers", "rivals", "occasions")
        for row in rows_of(results, name)
        if row["step"] and matches(row, filters)
    ]
    if not rows:
        raise BadInput("a figure: no result passes its filters")
    rates = [flops_of({"nk": r["n"], **r}, r["direction"]) / (r["ms"] * 1e-3) for r in rows]
    return range_text([min(rates), max(rates)], flops_text), reasons_of(rows)


def mean_text(rows, backend):
    mean = statistics.geometric_mean(row["ratios"][backend] for row in rows)
    return measured.ratio_text(mean)


FIGURES = {
    "mean": of_peers(mean_text),
    "least": of_peers(lambda rows, name: measured.ratio_text(measured.least_of(rows, name)[0])),
    "share": of_peers(lambda rows, _: range_text([r["of_matmul"] for r in rows], "{:.0%}".format)),
    "counters": equal_counters,
    "occasions": occasions,
}


# --- pages ----------------------------------------------------------------------------------------


def value(kind, spec, results, old=""):
    """(the text of a table or a figure, reasons_of the shown rows); old: the page's text"""
    known = {"table": TABLES, "figure": FIGURES}[kind]
    name, *words = spec.split()
    if name not in known:
        raise BadInput(f"{kind} '{name}': choose from {', '.join(known)}")
    if not all("=" in word for word in words):
        raise BadInput(f"{kind} '{spec}': a filter is key=value")
    page = [old] if name == "rungs" else []
    return known[name](results, dict(word.split("=", 1) for word in words), *page)


def fill(text, results, run=False):
    """Fills a text; remarks follow a paragraph's last figure, or the section's `standing`."""
    said_of = []

    def filled(match):
        begin, kind, spec, old, end = match.groups()
        if kind == "run":
            return f"{begin}\n{output_of(spec)}\n{end}" if run else match[0]
        if spec.split()[0] == "ladder" and not ladder_tables.built():
            return match[0]  # unchanged: test.sh, which builds, compares it with the programs
        below = text[match.end() :]
        if spec == "standing":
            said = (
                "; ".join(standing_parts(said_of))
                or "all figures above were measured with this version of the kernels; a chapter's "
                "table names those of its rows that were not"
            )
            said_of.clear()
            return begin + said[0].upper() + said[1:] + end
        new, reasons = value(kind, spec, results, old)
        if kind == "table":
            return f"{begin}\n{new}{standing_text(reasons)}\n{end}"
        said_of.extend(reasons)
        if "<!-- figure: standing" in below.split("\n#", 1)[0]:
            return begin + new + end
        if "<!-- figure:" not in below.split("\n\n", 1)[0]:
            if said := standing_parts(said_of):
                new += f" ({'; '.join(said)})"
            said_of.clear()
        return begin + new + end

    return MARKER.sub(filled, text)


def picture_findings(rows):
    """The pictures that are not of these results, and why: a picture names its runs' sources."""
    findings = []
    for picture, rows_of_picture in PICTURES.items():
        name = os.path.join("docs", "pictures", picture)
        path = os.path.join(ROOT, name)
        if not os.path.exists(path):
            continue
        drawn = dict(re.findall(r"(\d\d_\w+)=(\w+)", read_text(path)))
        there = {row.any.data["step"]: str(row.gpu.get("commit")) for row in rows_of_picture(rows)}
        if old := [step for step in {**drawn, **there} if drawn.get(step) != there.get(step)]:
            steps = ", ".join(old)
            why = f"drawn from other results ({steps}): run ./scripts/maintain plots"
            findings.append(f"{name}: {why}")
    return findings


def on_screen(command):
    """A command in lines of 88 columns, broken between words; quoted words stay whole."""
    lines = ["$"]
    for word in re.findall(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""", command):
        if len(lines[-1]) + len(word) > 85 and lines[-1].strip("$ "):
            lines[-1] += " \\"
            lines.append(" ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def output_of(command):
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    text = (done.stdout + done.stderr).rstrip()
    if done.returncode > 1:  # 1: a step that shows a finding
        raise BadInput(f"'{command}' ended with exit status {done.returncode}: {text[-200:]}")
    text = text.replace(ROOT, "/home/you/flash-steps")
    return f"```\n{on_screen(command)}\n{text}\n```"


def markdown_files():
    steps = ("steps/*.md", "steps/*/*.md", "steps/*/beyond/*.md")
    patterns = ("README.md", "docs/*.md", "docs/results/*.md", *steps)
    return [path for p in patterns for path in sorted(glob.glob(os.path.join(ROOT, p)))]


def main():
    parser = command.parser(__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--show", metavar="TABLE")
    parser.add_argument("--results", default=os.path.join(ROOT, "docs", "results"), metavar="DIR")
    args = parser.parse_args()

    results = Results(args.results)
    if args.show:
        print(value("table", args.show, results)[0])
        return 0
    findings = []
    # Only git knows which results are of this tree's kernels, as the pages state.
    blind = args.check and not args.files and here() == UNKNOWN
    if blind:
        print("without git only empty tables are looked for")
    for path in args.files or markdown_files():
        try:
            before = read_text(path)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from None
        name = os.path.relpath(path, ROOT)
        # The output of a command contains times, so the check only requires some output.
        blocks = MARKER.findall(before) if args.check else []
        empty = [f"{kind}: {spec}" for _, kind, spec, old, _ in blocks if not old.strip()]
        if empty:
            findings += [f"{name}: nothing below '{block}'" for block in empty]
            continue  # there may be no results yet to compare the others with
        if blind:
            continue
        after = fill(before, results, args.run)
        if re.search(r"^ *<!-- figure:", after, re.MULTILINE):
            why = "a browser takes a line that begins with a figure's marker for HTML"
            raise BadInput(f"{name}: {why}: put a word before it")
        if after != before:
            findings.append(f"{name}: {'out of date' if args.check else 'filled'}")
            if not args.check:
                write_text(path, after)
    if args.check and not args.files and not blind:
        findings += picture_findings(results.rows)
    for finding in findings:
        print(finding)
    return 1 if args.check and findings else 0
