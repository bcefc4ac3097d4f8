"""Prints the table of the tour and writes its page: docs/explorer's, with these runs as a second
series, in one self-contained file.

    maintain report --out report.html build/tour

reads NAME.VARIANT.{sim,gpu}.json and the programs' texts beside them (.txt). A run without JSON has
failed; the page shows its last lines.
Exit status: 0 done, 1 there was nothing to show, or the page cannot be written.
"""

import glob
import json
import os

from . import command
from .command import BadInput, Failure
from .explorer import DATA, FOLDER, INDEX, SOURCES, json_inside
from .explorer_runs import comparable, published_series, series
from .files import ROOT, read_text, replace_text, require_writable
from .results import join_for_reading, load, screen_of
from .tour_table import tour_screen

BOOK = os.path.join(ROOT, "build", "sim", "docs", "html")


def page(rows, texts, out):
    """HTML of the rows and of the programs' texts, {name: (text, ok)}, for the file `out`."""
    drawn = comparable(rows)
    problem = drawn[0].any.data["problem"]
    name = f"your run, N = {problem['n']}" + ", causal" * problem["causal"]
    if not drawn[0].gpu and drawn[0].sim_get("model_gpu") != "H200":
        name += f", as on {drawn[0].sim_get('model_gpu')}"
    own = series(rows, name, drawn)
    own["texts"] = [[name, text, ok] for name, (text, ok) in texts.items()]
    book = os.path.relpath(BOOK, os.path.dirname(os.path.abspath(out))) + "/"
    traces = (read_text(path) for path in sorted(glob.glob(os.path.join(FOLDER, "*.js"))))
    style, script = (read_text(os.path.join(SOURCES, f"explorer.{kind}")) for kind in ("css", "js"))
    parts = {
        '<link rel="stylesheet" href="src/explorer.css">': f"<style>\n{style}</style>",
        '<script src="src/explorer.js">': f"<script>\nflashSteps = {{}};\n{''.join(traces)}"
        f"</script>\n<script>\n{script}",
    }

    def with_own(data):
        tree = json.loads(data[2])
        tree["series"].append(own)
        if problem["n"] == problem["nk"]:  # the same problem as measured
            tree["beside"] = published_series(problem["n"], problem["causal"])
        tree["book"] = book if os.path.exists(BOOK) else None
        return data[1] + json_inside(tree) + data[3]

    text = DATA.sub(with_own, read_text(INDEX))
    for old, new in parts.items():
        text = text.replace(old, new)
    return text


def main():
    parser = command.parser(__doc__)
    parser.add_argument("folder")
    parser.add_argument("--out", default="report.html")
    parser.add_argument("--all", action="store_true", help="a row for each variant")
    args = parser.parse_args()

    runs, texts = [], {}
    for path in sorted(glob.glob(os.path.join(args.folder, "*.txt")), key=reading_order):
        found = runs_beside(path)
        runs += found
        with open(path, encoding="utf-8", errors="replace") as file:
            name, variant, backend, _ = os.path.basename(path).split(".")
            ok = bool(found) and all(run.get("ok") for run in found)
            texts[f"{name} {variant}, {backend}"] = (file.read(), ok)
    if not runs:
        raise Failure(f"no step left a result in {args.folder}")
    inputs = glob.glob(os.path.join(args.folder, "*.txt"))
    require_writable("--out", args.out, *inputs, *glob.glob(os.path.join(args.folder, "*.json")))
    rows = join_for_reading(runs)
    table, learned = tour_screen(rows)
    print(screen_of(rows) if args.all else table)
    replace_text(args.out, page(rows, texts, args.out))
    print(f"\n{args.out}\n  these runs beside an H200's, in pictures, and each step's report\n")
    print(learned, end="\n" * bool(learned))
    return 0


def runs_beside(path):
    """The runs of this text; none for a program that failed."""
    try:
        stem = path[: -len(".txt")]
        return load(stem + ".json") if os.path.exists(stem + ".json") else []
    except BadInput as error:
        raise Failure(error) from None


def reading_order(path):
    """By step, then by the variant's place; without JSON, by its name."""
    name, variant, backend, _ = os.path.basename(path).split(".")
    runs = runs_beside(path)
    place = runs[0].get("variant_index") if runs else None
    return name, 0 if place is None else place, variant, backend
