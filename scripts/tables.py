#!/usr/bin/env python3
"""Fills the tables and outputs in README.md and the chapters from results.

    tables.py                        all Markdown of the repository, from docs/results/*.json
    tables.py --check                changes nothing; exit status 1 when a table is out of date, or
                                     a table or an output is empty
    tables.py --run FILE.md ...      also runs these files' commands and pastes what they print

Between the markers everything is replaced:

    <!-- table: steps n=1024 causal=true -->     columns as in compare.py; the filters are keys of
    <!-- /table -->                              `problem`, `step`, `variant`, `direction`, `device`
                                                 (a space in a name is written _)

    <!-- table: speed d=64 causal=false -->      TFLOP/s on a GPU: a row per step, a column per N
    <!-- /table -->

    <!-- table: scale d=64 causal=false -->      time, TFLOP/s, bytes and workspace against N, a
    <!-- /table -->                              table each; figure=time,hbm names some of them

    <!-- table: peers d=64 causal=false -->      against PyTorch, as peers.py printed it
    <!-- /table -->                              (filters: d, n, causal, step, direction, device)

    <!-- table: figure2 -->                      as figure2.py printed it (filter: device)
    <!-- /table -->

    <!-- table: memory -->                       a problem that the naive step cannot hold (device)
    <!-- /table -->

    <!-- run: build/sim/steps/01_naive --n 256 -->
    <!-- /run -->

Exit status: 0 done, 1 out of date or empty, 2 bad use or a command failed.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys

import figure2
import peers
from results import (
    BadInput,
    bytes_text,
    columns_for,
    join,
    load,
    markdown_table,
    speed,
    time_text,
    total,
)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- /table -->)", re.DOTALL)
COMMAND = re.compile(r"(<!-- run: (.+?) -->\n).*?(<!-- /run -->)", re.DOTALL)
EMPTY = re.compile(r"<!-- ((table|run): .+?) -->\s*<!-- /\2 -->")


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
        **run.data["problem"],
        "step": run.data["step"],
        "direction": run.direction,
        "variant": run.variant,
        "device": run.get("device.name"),
    }


def steps_table(rows):
    columns, common = columns_for(rows)
    return (common + "\n\n" if common else "") + markdown_table(columns, rows)


def speed_table(rows):
    """Rows are steps, columns are N; a cell is TFLOP/s by FlashAttention's convention."""
    cells = {}
    for row in rows:
        if speed(row) != "-":
            cells[row.any.label, row.any.data["problem"]["n"]] = speed(row)
    if not cells:
        raise BadInput("table 'speed': no measured time passes its filters")
    labels = list(dict.fromkeys(label for label, _ in cells))
    sizes = sorted({n for _, n in cells})
    lines = [
        "| TFLOP/s | " + " | ".join(f"N={n}" for n in sizes) + " |",
        "|:--|" + "--:|" * len(sizes),
    ]
    lines += [
        f"| {label} | " + " | ".join(cells.get((label, n), "-") for n in sizes) + " |"
        for label in labels
    ]
    return "\n".join(lines)


SCALE_FIGURES = {
    "time": ("Time", lambda r: time_text(r.gpu_get("time.median_ms"))),
    "speed": ("TFLOP/s", speed),
    "requested": (
        "Requested bytes, predicted by the step's formula",
        lambda r: bytes_text(total(r.gpu_get("traffic.requested.predicted"))),
    ),
    "hbm": ("HBM bytes, measured", lambda r: bytes_text(total(r.gpu_get("traffic.hbm.measured")))),
    "workspace": ("Workspace", lambda r: bytes_text(r.gpu_get("workspace_bytes"))),
}


def scale_table(rows, figures):
    """A small table for each figure: a row per step, a column per N, B*N and H*d as constant as
    FlashAttention's series has them."""

    def in_series(p):
        return p["b"] * p["n"] == 16384 and p["h"] * p["d"] == 2048 and not p.get("smem")

    rows = [row for row in rows if row.gpu and in_series(row.any.data["problem"])]
    if not rows:
        raise BadInput(
            "table 'scale': no measured run with B*N = 16384 and H*d = 2048 passes its filters"
        )
    for path, flag in (("problem.d", "d"), ("problem.causal", "causal"), ("device.name", "device")):
        if len({row.gpu.get(path) for row in rows}) > 1:
            raise BadInput(f"table 'scale': its filters must choose one {flag}")
    labels = list(dict.fromkeys(row.any.label for row in rows))
    sizes = sorted({row.any.data["problem"]["n"] for row in rows})
    tables = []
    for figure in figures:
        if figure not in SCALE_FIGURES:
            raise BadInput(
                f"table 'scale': figure '{figure}': choose from {', '.join(SCALE_FIGURES)}"
            )
        title, cell = SCALE_FIGURES[figure]
        cells = {(row.any.label, row.any.data["problem"]["n"]): cell(row) for row in rows}
        lines = [
            f"| {title} | " + " | ".join(f"N={n}" for n in sizes) + " |",
            "|:--|" + "--:|" * len(sizes),
        ]
        lines += [
            f"| {label} | " + " | ".join(cells.get((label, n), "-") for n in sizes) + " |"
            for label in labels
        ]
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def peers_table(found, filters):
    """The rows of peers.py that pass, of one device."""
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
    return peers.markdown_of(only(chosen, "peers"))


def figure2_table(found, filters):
    return figure2.markdown_of(
        only(
            [result for result in found if matches({"device": result["device"]}, filters)],
            "figure2",
        )
    )


def memory_table(found, filters):
    lines = ["| step | problem | exit status | says |", "|:--|:--|--:|:--|"]
    for row in only(
        [result for result in found if matches({"device": result["device"]}, filters)], "memory"
    )["rows"]:
        lines.append(
            f"| {row['step']} | {row['problem']} | {row['exit_status']} | "
            f"{' '.join(row['line'].split())} |"
        )
    return "\n".join(lines)


def only(found, name):
    if not found:
        raise BadInput(f"table '{name}': no result passes its filters")
    if len(found) > 1:
        raise BadInput(f"table '{name}': its filters must choose one device")
    return found[0]


TABLES = {"steps": steps_table, "speed": speed_table, "scale": scale_table}
# Those that a script printed from a key of its own in results.json.
EXTRAS = {"peers": peers_table, "figure2": figure2_table, "memory": memory_table}


def table(spec, rows, extras):
    name, *words = spec.split()
    if name not in {**TABLES, **EXTRAS}:
        raise BadInput(f"table '{name}': choose from {', '.join({**TABLES, **EXTRAS})}")
    if not all("=" in word for word in words):
        raise BadInput(f"table '{spec}': a filter is key=value")
    filters = dict(word.split("=", 1) for word in words)
    if name in EXTRAS:
        return EXTRAS[name](extras[name], filters)
    more = ()
    if name == "scale":
        more = (filters.pop("figure", ",".join(SCALE_FIGURES)).split(","),)
    chosen = [row for row in rows if matches(keys_of(row), filters)]
    if not chosen:
        raise BadInput(f"table '{spec}': no result passes its filters")
    return TABLES[name](chosen, *more)


def load_extras(paths):
    """{"peers": [...], "figure2": [...], "memory": [...]}: one entry for each file that has it."""
    extras = {name: [] for name in EXTRAS}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            tree = json.load(file)
        for name in EXTRAS:
            found = tree.get(name) if isinstance(tree, dict) else None
            if isinstance(found, list):
                found = {"device": tree.get("device"), "rows": found}
            if found:
                extras[name].append(found)
    return extras


def output_of(command):
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    text = (done.stdout + done.stderr).rstrip()
    if done.returncode > 1:  # 1 is a step that shows a finding
        raise BadInput(f"'{command}' ended with exit status {done.returncode}: {text[-200:]}")
    return f"```\n$ {command}\n{text}\n```"


def fill(text, rows, extras, run):
    text = TABLE.sub(lambda m: f"{m[1]}{table(m[2], rows, extras)}\n{m[3]}", text)
    if run:
        text = COMMAND.sub(lambda m: f"{m[1]}{output_of(m[2])}\n{m[3]}", text)
    return text


def markdown_files():
    return [
        path
        for pattern in ("README.md", "docs/*.md", "steps/*/README.md")
        for path in sorted(glob.glob(os.path.join(ROOT, pattern)))
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--results", default=os.path.join(ROOT, "docs", "results"), metavar="DIR")
    args = parser.parse_args()

    paths = sorted(glob.glob(os.path.join(args.results, "*.json")))
    rows = join([run for path in paths for run in load(path)])
    extras = load_extras(paths)
    findings = []
    for path in args.files or markdown_files():
        try:
            with open(path, encoding="utf-8") as file:
                before = file.read()
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from None
        name = os.path.relpath(path, ROOT)
        # What a command printed holds times, so all that can be asked of it is to be there.
        empty = [match[1] for match in EMPTY.finditer(before)] if args.check else []
        if empty:
            findings += [f"{name}: nothing under '{block}'" for block in empty]
            continue  # there may be no results yet to compare the others with
        after = fill(before, rows, extras, args.run)
        if after != before:
            findings.append(f"{name}: {'out of date' if args.check else 'filled'}")
            if not args.check:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(after)
    for finding in findings:
        print(finding)
    return 1 if args.check and findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadInput as error:
        print(f"tables.py: {error}", file=sys.stderr)
        sys.exit(2)
