"""Fills the tables and outputs in README.md and the chapters from results.

    maintain tables                 all Markdown of the repository, from docs/results/*.json
    maintain tables --check         changes nothing; exit status 1 when a table is out of date, or a
                                    table or an output is empty
    maintain tables --run FILE.md   also runs the commands in these files and pastes their output

The text between the markers is replaced:

    <!-- table: steps n=1024 causal=true -->     columns as in compare.py; filters are keys of
    <!-- /table -->                              `problem`, `step`, `variant`, `direction`,
                                                 `device`, `row` (06_swapped: _ is a space)

    <!-- table: speed d=64 causal=false -->      TFLOP/s on a GPU: one row per step, a column per N
    <!-- /table -->

    <!-- table: scale d=64 causal=false -->      time, TFLOP/s, bytes and workspace against N, one
    <!-- /table -->                              table each; figure=time,hbm chooses some of them

    <!-- table: peers d=64 causal=false -->      against PyTorch, as peers.py printed it
    <!-- /table -->                              (filters: d, n, causal, step, direction, device)

    <!-- table: figure2 -->                      as figure2.py printed it (filter: device)
    <!-- /table -->

    <!-- table: decode what=peers -->            step 13, as maintain decode printed it; what=
    <!-- /table -->                              peers, variants, fp8, pages, queries, groups or
                                                 ragged (filters: b, nk, n, hkv, device)

    <!-- table: ring what=share -->              step 14, as maintain ring printed it; what=share,
    <!-- /table -->                              variants, nccl or long (filters: variant, n,
                                                 tokens, causal, device)

    <!-- table: memory -->                       a problem that the naive step cannot hold (device)
    <!-- /table -->

    <!-- table: neighbours -->                   each lesson file and the one that it changes
    <!-- /table -->

    <!-- table: where -->                        which step runs on which kind of GPU, found by
    <!-- /table -->                              running it in the simulator (needs build/sim)

    <!-- table: published_kernels -->            counts of published kernels beside a GPU's
    <!-- /table -->                              (published_kernels_h200.json)

    <!-- table: accuracy gpu=H200 -->            estimated over measured times, by variant
    <!-- /table -->                              (estimates.json; filters as its keys)

    <!-- table: estimated gpu=H200 n=4096 d=64 causal=false -->  one problem's times and limits
    <!-- /table -->

    <!-- run: build/sim/steps/01_naive --n 256 -->
    <!-- /run -->

and within a sentence, <!-- figure: WHAT FILTERS -->1.21x<!-- /figure -->, where WHAT is

    mean, least, where, cells, runs     of peers' ratios to against=BACKEND: geometric mean of the
                                        medians, the minimum of all runs, its problem, in how many
                                        cells the step is faster, and the number of runs
    speed, share                        TFLOP/s, and its share of the matmul rate: one figure, or
                                        the minimum and maximum of all that pass (from the runs;
                                        with against= from peers)
    counters                            how many figures of requests, sectors and lines were both
                                        counted and measured, a forward that two steps share once:
                                        an error where one of them differs
    decode                              of step 13: show=time, bandwidth (TB/s), share (of the copy
                                        bandwidth), ratio or overhead against=flash,best,07,copy...,
                                        copy (TB/s), floor (of the clock), device; filters:
                                        what=peers, variant=once, b, nk, n, hkv, page, device; one
                                        figure, or the minimum and maximum of all that pass
    ring                                of step 14: show=share, least, time, rate (TFLOP/s a GPU),
                                        with way=forward or both; memory, sent, hidden; device,
                                        carrier; filters: what=share, variant, n, tokens, causal

A result carries its commit (commits.py). Where its step has changed since, or
the GPU was slowed down, the table, or the last figure of a paragraph, says so. After a change of a
kernel --check fails until the page does.

Exit status: 0 done, 1 out of date or empty, 2 bad use or a command failed.
"""

import glob
import json
import os
import re
import statistics
import subprocess

from . import (
    command,
    decode_tables,
    estimates,
    figure2,
    measurement_tables,
    neighbours,
    peers_table,
    published_kernels,
    ring_tables,
    where,
)
from .command import BadInput
from .commits import UNKNOWN, here
from .counters_vs_sim import differences
from .files import read_json, read_text, write_text
from .problems import in_series, own_tiles, problem_text
from .results import PICTURES, columns_for, notes_on_estimates, published, speed, total
from .standing import mark_peers, rows_of, standing, standing_of, standing_parts, standing_text
from .steps import ROOT
from .text import Column, bytes_text, flops_text, markdown_table, range_text, time_text

TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- /table -->)", re.DOTALL)
COMMAND = re.compile(r"(<!-- run: (.+?) -->\n).*?(<!-- /run -->)", re.DOTALL)
FIGURE = re.compile(r"(<!-- figure: (.+?) -->)(.*?)(<!-- /figure -->)", re.DOTALL)
EMPTY = re.compile(r"<!-- ((table|run|figure): .+?) -->\s*<!-- /\2 -->")


def matches(known, filters):
    """Whether all filters fit {key: value}; a filter names one value or several with commas."""
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
    return {
        "smem": None,
        "lengths": None,
        "page": None,
        **run.data["problem"],
        "step": run.data["step"],
        "direction": run.direction,
        "variant": run.variant,
        "row": run.label.replace(" ", "_"),
        "device": run.get("device.name"),
    }


def steps_table(rows):
    columns, common = columns_for(rows)
    notes = "".join(f"\n\n{note}" for note in notes_on_estimates(rows))
    return (common + "\n\n" if common else "") + markdown_table(columns, rows) + notes


def against_n(title, rows, cell):
    """Rows are steps, columns are N; a cell where there is none is "-"."""
    cells = {(row.any.label, row.any.data["problem"]["n"]): cell(row) for row in rows}
    sizes = sorted({n for _, n in cells})
    columns = [Column(("", title), lambda label: label, left=True)]
    columns += [
        Column(("", f"N={n}"), lambda label, n=n: cells.get((label, n), "-")) for n in sizes
    ]
    return markdown_table(columns, list(dict.fromkeys(label for label, _ in cells)))


def speed_table(rows):
    """TFLOP/s by FlashAttention's convention."""
    if not rows:
        raise BadInput("table 'speed': no measured time passes its filters")
    return against_n("TFLOP/s", rows, speed)


def is_measured_series(row):
    p = row.any.data["problem"]
    return row.gpu and in_series(p) and own_tiles(p)


SCALE_FIGURES = {
    "time": ("Time", lambda r: time_text(r.ms)),
    "speed": ("TFLOP/s", speed),
    "requested": (
        "Requested bytes, predicted by the step's formula",
        lambda r: bytes_text(total(r.gpu_get("traffic.requested.predicted"))),
    ),
    "hbm": ("HBM bytes, measured", lambda r: bytes_text(r.hbm_measured)),
    "workspace": ("Workspace", lambda r: bytes_text(r.gpu_get("workspace_bytes"))),
}


def scale_table(rows, figures):
    """A small table for each figure: a row per step, a column per N, B*N and H*d as constant as
    FlashAttention's series has them."""
    if not rows:
        raise BadInput(
            "table 'scale': no measured run with B*N = 16384 and H*d = 2048 passes its filters"
        )
    for path, flag in (("problem.d", "d"), ("problem.causal", "causal"), ("device.name", "device")):
        if len({row.gpu.get(path) for row in rows}) > 1:
            raise BadInput(f"table 'scale': its filters must choose one {flag}")
    tables = []
    for figure in figures:
        if figure not in SCALE_FIGURES:
            raise BadInput(
                f"table 'scale': figure '{figure}': choose from {', '.join(SCALE_FIGURES)}"
            )
        title, cell = SCALE_FIGURES[figure]
        shown = [row for row in rows if figure != "speed" or row.any.get("flops")]
        tables.append(against_n(title, shown, cell))
    return "\n\n".join(tables)


def table_of_peers(found, filters):
    """The rows of peers.py that pass, of one device."""
    result = peers_that_pass(found, filters)
    reasons = [(row["step"], row["standing"]) for row in result["rows"] if row["step"]]
    return peers_table.markdown_of(result) + standing_text(reasons)


def peers_that_pass(found, filters):
    chosen = []
    for result in found:
        # A backend has no step: it stays beside the steps that pass.
        rows = [
            row
            for row in result["rows"]
            if matches(
                {**row, "device": result["device"]},
                {k: v for k, v in filters.items() if row["step"] or k not in ("step", "variant")},
            )
        ]
        if any(row["step"] for row in rows):
            chosen.append({**result, "rows": rows})
    return only(chosen, "peers")


def figure2_table(found, filters):
    result = only(
        [result for result in found if matches({"device": result["device"]}, filters)], "figure2"
    )
    return figure2.markdown_of(result) + standing_text(standings(result["rows"]))


def standings(rows):
    return [(row["step"], standing(row["step"], row.get("commit"))) for row in rows]


def memory_table(found, filters):
    lines = ["| step | problem | exit status | says |", "|:--|:--|--:|:--|"]
    result = only(
        [result for result in found if matches({"device": result["device"]}, filters)], "memory"
    )
    for row in result["rows"]:
        lines.append(
            f"| {row['step']} | {row['problem']} | {row['exit_status']} | "
            f"{' '.join(row['line'].split())} |"
        )
    return "\n".join(lines) + standing_text(standings(result["rows"]))


def measured_table(module, found, filters):
    """What maintain decode, or ring, measured of one device; `module` has its tables."""
    filters = {"what": next(iter(module.TABLES)), **filters}
    kind = measurement_tables.table_of(module, filters["what"])
    if not found:
        return f"*{measurement_tables.not_measured(module)}*"
    result, rows = rows_of_one(found, {**filters, "what": kind.of}, module.NAME)
    if not rows:
        raise BadInput(
            f"table '{module.NAME}': no row of what={filters['what']} passes its filters"
        )
    reasons = [(row["step"], row["standing"]) for row in rows if row["step"]]
    return measurement_tables.markdown_of(kind, result, rows) + standing_text(reasons)


def measured_figure(module, found, filters):
    """(the text, [(step, why it is not of this tree's kernel, or None)])."""
    filters = {**module.FILTERS, **module.WORDS, **filters}
    words = [filters.pop(word) for word in module.WORDS]
    if not found:
        return "(not measured yet)", []
    result, passing = rows_of_one(found, filters, module.NAME)
    text = measurement_tables.figure_of(module, result, passing, *words)
    return text, [(row["step"], row["standing"]) for row in passing if row["step"]]


def rows_of_one(found, filters, name):
    """(the result of the device that they choose, its rows that pass)."""
    filters = dict(filters)
    devices = filters.pop("device", None)
    if devices:
        found = [r for r in found if matches({"device": r["device"]}, {"device": devices})]
    result = only(found, name)
    return result, [row for row in result["rows"] if matches(row, filters)]


def only(found, name):
    if not found:
        raise BadInput(f"table '{name}': no result passes its filters")
    if len(found) > 1:
        raise BadInput(f"table '{name}': its filters must choose one device")
    return found[0]


TABLES = {"steps": steps_table, "speed": speed_table, "scale": scale_table}
# Those of the tree itself.
NO_RESULTS = {
    "neighbours": neighbours.markdown,
    "where": where.markdown,
    "published_kernels": published_kernels.markdown,
}
# Those of docs/results/estimates.json beside what was measured.
ESTIMATES = {"accuracy": estimates.accuracy_table, "estimated": estimates.estimated_table}
# Those that a script printed from a key of its own in results.json.
EXTRAS = {"peers": table_of_peers, "figure2": figure2_table, "memory": memory_table}
# Those of files of their own.
OWN = {module.NAME: module for module in (decode_tables, ring_tables)}


def read_spec(kind, spec, known):
    """(name, {key: value}) of what a marker says."""
    name, *words = spec.split()
    if name not in known:
        raise BadInput(f"{kind} '{name}': choose from {', '.join(known)}")
    if not all("=" in word for word in words):
        raise BadInput(f"{kind} '{spec}': a filter is key=value")
    return name, dict(word.split("=", 1) for word in words)


def table(spec, rows, extras):
    if spec in NO_RESULTS:
        return NO_RESULTS[spec]()
    name, filters = read_spec("table", spec, {**TABLES, **EXTRAS, **OWN, **ESTIMATES})
    if name in ESTIMATES:
        return ESTIMATES[name](filters)
    if name in OWN:
        return measured_table(OWN[name], extras[name], filters)
    if name in EXTRAS:
        return EXTRAS[name](extras[name], filters)
    more = ()
    if name == "scale":
        more = (filters.pop("figure", ",".join(SCALE_FIGURES)).split(","),)
    chosen = [row for row in rows if matches(keys_of(row), filters)]
    if not chosen:
        raise BadInput(f"table '{spec}': no result passes its filters")
    shown = {"speed": lambda row: speed(row) != "-", "scale": is_measured_series}.get(name)
    if shown:
        chosen = [row for row in chosen if shown(row)]
    runs = [run for row in chosen for run in ((row.gpu,) if shown else (row.sim, row.gpu)) if run]
    reasons = [(run.data["step"], standing_of(run)) for run in runs]
    return TABLES[name](chosen, *more) + standing_text(reasons)


# --- figures in a sentence ----------------------------------------------------------------------


def share_text(share):
    return f"{100 * share:.0f}"


WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count_word(count):
    return WORDS[count] if count < len(WORDS) else str(count)


RATIO_FIGURES = ("mean", "least", "where", "cells", "runs")
RATE_FIGURES = ("speed", "share")


def figure_of_peers(name, backend, rows):
    ratios = [row["ratios"][backend] for row in rows]
    if name == "mean":
        return f"{statistics.geometric_mean(ratios):.3g}x"
    if name == "speed":
        return range_text([row["flops_per_s"] for row in rows], flops_text)
    if name == "share":
        return range_text([row["of_matmul"] for row in rows], share_text) + "%"
    least, where, count = peers_table.least_of(rows, backend)
    if name == "least":
        return f"{least:.3g}x"
    if name == "where":
        return problem_text(where, omit=("B", "H", "type"))
    if name == "runs":
        return count_word(count) + (" run" if count == 1 else " runs")
    faster = [min(peers_table.ratios_of(row, backend)) > 1 for row in rows]
    return f"each of {len(rows)}" if all(faster) else f"{sum(faster)} of {len(rows)}"


def figure_of_runs(name, rows):
    if name == "speed":
        return range_text([row.flops_per_s for row in rows], flops_text)
    shares = []
    for row in rows:
        fp32 = row.any.data["problem"]["dtype"] == "fp32"
        roof = row.gpu_get("roofs.fp32_matmul_flops" if fp32 else "roofs.bf16_flops")
        shares += [row.flops_per_s / roof] if roof else []
    if not shares:
        raise BadInput("figure 'share': these runs have no matmul rate")
    return range_text(shares, share_text) + "%"


def equal_counters(spec, rows):
    both = [row for row in rows if row.sim and row.gpu]
    entries = [entry for row in both for entry in differences(row)]
    compared = [entry for entry in entries if entry["promised"] and entry["equal"] is not None]
    if not compared or not all(entry["equal"] for entry in compared):
        raise BadInput(f"figure '{spec}': nothing was counted and measured, or a figure differs")
    return f"{len(compared):,}", [(row.any.data["step"], standing_of(row.gpu)) for row in both]


def figure(spec, rows, extras):
    """(the text, [(step, why it is not of this tree's kernel at full speed, or None)])."""
    known = (*RATIO_FIGURES, *RATE_FIGURES, "counters", *OWN)
    name, filters = read_spec("figure", spec, known)
    if name in OWN:
        return measured_figure(OWN[name], extras[name], filters)
    backend = filters.pop("against", None)
    if name in RATIO_FIGURES and not backend:
        raise BadInput(f"figure '{spec}': name the backend, as in against=flash")
    if backend:
        result = peers_that_pass(extras["peers"], filters)
        chosen = [row for row in result["rows"] if row["step"] and backend in row["ratios"]]
        if not chosen:
            raise BadInput(f"figure '{spec}': no ratio against '{backend}' passes its filters")
        found = [(row["step"], row["standing"]) for row in chosen]
        return figure_of_peers(name, backend, chosen), found
    chosen = [row for row in rows if matches(keys_of(row), filters)]
    if name == "counters":
        return equal_counters(spec, chosen)
    chosen = [row for row in chosen if speed(row) != "-"]
    if not chosen:
        raise BadInput(f"figure '{spec}': no measured time passes its filters")
    found = [(row.any.data["step"], standing_of(row.gpu)) for row in chosen]
    return figure_of_runs(name, chosen), found


def fill_figures(paragraph, rows, extras):
    """The last figure of a paragraph says what is to be said of any of them."""
    reasons, left = [], len(FIGURE.findall(paragraph))

    def one(match):
        nonlocal left
        left -= 1
        text, found = figure(match[2], rows, extras)
        reasons.extend(found)
        if left == 0 and (said := standing_parts(reasons)):
            text += f" ({'; '.join(said)})"
        return match[1] + text + match[4]

    return FIGURE.sub(one, paragraph)


def load_extras(paths):
    """{"peers": [...], "figure2": [...], "memory": [...]}: one entry for each file that has it."""
    extras = {name: [] for name in EXTRAS}
    for path in paths:
        tree = read_json(path)
        for name in EXTRAS:
            found = tree.get(name) if isinstance(tree, dict) else None
            if isinstance(found, list):
                found = {"device": tree.get("device"), "rows": found}
            if found:
                extras[name].append(found)
    mark_peers(extras["peers"])
    return extras


def picture_findings(rows):
    """Which pictures are not of these results, and why: a picture names its runs' texts."""
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
            findings.append(
                f"{name}: drawn from other results ({steps}): run ./scripts/maintain plots"
            )
    return findings


def output_of(command):
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    text = (done.stdout + done.stderr).rstrip()
    if done.returncode > 1:  # 1 is a step that shows a finding
        raise BadInput(f"'{command}' ended with exit status {done.returncode}: {text[-200:]}")
    text = text.replace(ROOT, "/home/you/flash-steps")
    return f"```\n$ {command}\n{text}\n```"


def fill(text, rows, extras, run):
    def filled(m):
        if m[2] == "where" and not where.built():
            return m[0]  # as it was: test.sh, which builds, holds it to the programs
        return f"{m[1]}{table(m[2], rows, extras)}\n{m[3]}"

    text = TABLE.sub(filled, text)
    text = "\n\n".join(fill_figures(part, rows, extras) for part in text.split("\n\n"))
    if run:
        text = COMMAND.sub(lambda m: f"{m[1]}{output_of(m[2])}\n{m[3]}", text)
    return text


def markdown_files():
    return [
        path
        for pattern in ("README.md", "docs/*.md", "docs/results/*.md", "steps/*.md", "steps/*/*.md")
        for path in sorted(glob.glob(os.path.join(ROOT, pattern)))
    ]


def main():
    parser = command.parser(__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--results", default=os.path.join(ROOT, "docs", "results"), metavar="DIR")
    args = parser.parse_args()

    paths = published(args.results)
    rows = rows_of(paths)
    extras = load_extras(paths)
    extras |= {name: measurement_tables.load(name, args.results) for name in OWN}
    findings = []
    # Only git knows which results are of this tree's kernels, which the pages say.
    blind = args.check and not args.files and here() == UNKNOWN
    if blind:
        print("without git only empty tables are looked for")
    for path in args.files or markdown_files():
        try:
            before = read_text(path)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from None
        name = os.path.relpath(path, ROOT)
        # The output of a command holds times, so the check is only that there is one.
        empty = [match[1] for match in EMPTY.finditer(before)] if args.check else []
        if empty:
            findings += [f"{name}: nothing below '{block}'" for block in empty]
            continue  # there may be no results yet to compare the others with
        if blind:
            continue
        after = fill(before, rows, extras, args.run)
        if re.search(r"^ *<!-- figure:", after, re.MULTILINE):
            raise BadInput(
                f"{name}: a browser takes a line that begins with a figure's marker for HTML: "
                "put a word before it"
            )
        if after != before:
            findings.append(f"{name}: {'out of date' if args.check else 'filled'}")
            if not args.check:
                write_text(path, after)
    if args.check and not args.files and not blind:
        findings += picture_findings(rows)
    for finding in findings:
        print(finding)
    return 1 if args.check and findings else 0
