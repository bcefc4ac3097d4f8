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

    <!-- run: build/sim/steps/01_naive --n 256 -->
    <!-- /run -->

Exit status: 0 done, 1 out of date or empty, 2 bad use or a command failed.
"""

import argparse
import glob
import os
import re
import subprocess
import sys

from results import BadInput, columns_for, flops_text, join, load, markdown_table

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- /table -->)", re.DOTALL)
COMMAND = re.compile(r"(<!-- run: (.+?) -->\n).*?(<!-- /run -->)", re.DOTALL)
EMPTY = re.compile(r"<!-- ((table|run): .+?) -->\s*<!-- /\2 -->")


def matches(row, filters):
    run = row.any
    known = {**run.data["problem"], "step": run.data["step"], "direction": run.direction,
             "variant": run.get("variant") or "kernel", "device": run.get("device.name")}
    for key, wanted in filters.items():
        if key not in known:
            raise BadInput(f"table filter '{key}': choose from {', '.join(sorted(known))}")
        value = known[key]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if text.replace(" ", "_") not in wanted.split(","):
            return False
    return True


def steps_table(rows):
    columns, common = columns_for(rows)
    return (common + "\n\n" if common else "") + markdown_table(columns, rows)


def speed_table(rows):
    """Rows are steps, columns are N; a cell is TFLOP/s by FlashAttention's convention."""
    cells = {}
    for row in rows:
        ms, flops = row.gpu_get("time.median_ms"), row.any.get("flops")
        if ms and flops:
            cells[row.any.label, row.any.data["problem"]["n"]] = flops_text(flops / (ms * 1e-3))
    if not cells:
        raise BadInput("table 'speed': no measured time passes its filters")
    labels = list(dict.fromkeys(label for label, _ in cells))
    sizes = sorted({n for _, n in cells})
    lines = ["| TFLOP/s | " + " | ".join(f"N={n}" for n in sizes) + " |",
             "|:--|" + "--:|" * len(sizes)]
    lines += [f"| {label} | " + " | ".join(cells.get((label, n), "-") for n in sizes) + " |"
              for label in labels]
    return "\n".join(lines)


TABLES = {"steps": steps_table, "speed": speed_table}


def table(spec, rows):
    name, *words = spec.split()
    if name not in TABLES:
        raise BadInput(f"table '{name}': choose from {', '.join(TABLES)}")
    if not all("=" in word for word in words):
        raise BadInput(f"table '{spec}': a filter is key=value")
    chosen = [row for row in rows if matches(row, dict(word.split("=", 1) for word in words))]
    if not chosen:
        raise BadInput(f"table '{spec}': no result passes its filters")
    return TABLES[name](chosen)


def output_of(command):
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    text = (done.stdout + done.stderr).rstrip()
    if done.returncode > 1:  # 1 is a step that shows a finding
        raise BadInput(f"'{command}' ended with exit status {done.returncode}: {text[-200:]}")
    return f"```\n$ {command}\n{text}\n```"


def fill(text, rows, run):
    text = TABLE.sub(lambda m: f"{m[1]}{table(m[2], rows)}\n{m[3]}", text)
    if run:
        text = COMMAND.sub(lambda m: f"{m[1]}{output_of(m[2])}\n{m[3]}", text)
    return text


def markdown_files():
    return [path for pattern in ("README.md", "docs/*.md", "steps/*/README.md")
            for path in sorted(glob.glob(os.path.join(ROOT, pattern)))]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--results", default=os.path.join(ROOT, "docs", "results"), metavar="DIR")
    args = parser.parse_args()

    paths = sorted(glob.glob(os.path.join(args.results, "*.json")))
    rows = join([run for path in paths for run in load(path)])
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
        after = fill(before, rows, args.run)
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
