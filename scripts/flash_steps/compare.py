"""Compares runs of steps from the JSON files that the programs write with --json.

    compare.py build/tour/*.json                 one table: steps x sizes x GPUs
    compare.py --diff before.json after.json     two runs of a step side by side
    compare.py worklog.json                      the versions of an extension (judge --log)

Files of several machines can be mixed: one row has the simulator's counts and estimates and a GPU's
measurements of the same step and problem. 'Estimated/measured' is shown where both are of one GPU.
Exit status: 0 done, 1 a run in the files was wrong, 2 bad use.
"""

import contextlib

from . import command
from .command import BadInput, Failure
from .files import read_json
from .problems import problem_text
from .results import get, join_for_reading, load, screen_of, total
from .text import aligned, bytes_text, count_text, time_text

# The rows of --diff: name, path in the JSON, how to sum it, how to print it.
METRICS = (
    ("requested read", "traffic.requested.counted.read", None, bytes_text),
    ("requested write", "traffic.requested.counted.write", None, bytes_text),
    ("requested atomic", "traffic.requested.counted.atomic", None, bytes_text),
    ("warp requests", "traffic.requests", total, count_text),
    ("sectors", "traffic.sectors", total, count_text),
    ("HBM predicted", "traffic.hbm.predicted", total, bytes_text),
    ("HBM modelled", "traffic.hbm.model", total, bytes_text),
    ("HBM measured", "traffic.hbm.measured", total, bytes_text),
    ("workspace", "workspace_bytes", None, bytes_text),
    ("FLOPs executed", "flops_executed", None, count_text),
    ("estimated time", "estimate.ms", None, time_text),
    ("measured time", "time.median_ms", None, time_text),
    ("host's wall time", "host_ms", None, time_text),
)


def metrics_of(run):
    """{name: (value, how to print it)} of one run, its buffers included."""
    found = {}
    for name, path, reduce, text in METRICS:
        value = run.get(path)
        if value is not None:
            found[name] = (reduce(value) if reduce else value, text)
    for buffer, figures in (run.get("traffic.requested.buffers") or {}).items():
        counted = get(figures, "counted")
        if counted is not None:
            found[f"  {buffer}"] = (total(counted), bytes_text)
    return found


def describe(run):
    """Problem and device; for a simulator also the modelled GPU and the number of heads."""
    words = [problem_text(run.data["problem"]), run.get("device.name")]
    if run.get("estimate") and run.kind == "sim":
        words.append(f"estimated for {run.get('estimate.gpu')}")
        if run.heads_differ:
            words.append(f"{run.get('estimate_heads')} heads")
    return f"{run.label} ({', '.join(words)})"


def diff_lines(a, b):
    """Two runs side by side, and the ratio of the second to the first."""
    lines = [f"A: {describe(a)}", f"B: {describe(b)}"]
    left, right = metrics_of(a), metrics_of(b)
    names = list(left) + [name for name in right if name not in left]
    cells = [("", "A", "B", "B / A")]
    for name in names:
        x, y = left.get(name), right.get(name)
        text = (x or y)[1]
        ratio = f"{y[0] / x[0]:.3g}x" if x and y and x[0] else "-"
        cells.append((name, text(x[0]) if x else "-", text(y[0]) if y else "-", ratio))
    return lines + aligned(cells)


def diff(first, second):
    """If both have one run, these two; otherwise the runs of the same step and problem."""
    if len(first) == 1 and len(second) == 1:
        return "\n".join(diff_lines(first[0], second[0]))
    others = {(run.key, run.kind): run for run in second}
    pairs = [(run, others[run.key, run.kind]) for run in first if (run.key, run.kind) in others]
    if not pairs:
        raise BadInput("no step and problem is in both files")
    return "\n\n".join("\n".join(diff_lines(a, b)) for a, b in pairs)


def worklog_of(path):
    """The rows that ./scripts/judge --log wrote; None where the file is another one."""
    with contextlib.suppress(Failure):  # load() says it
        found = read_json(path)
        return found.get("worklog") if isinstance(found, dict) else None


def worklog_lines(rows):
    """A table with a bar for each estimated time."""
    longest = max((row["ms"] or 0 for row in rows), default=0)
    cells = [("date", "function", "verdict", "requested", "HBM", "estimated", "", "limit", "note")]
    for row in rows:
        bar = "#" * round(20 * (row["ms"] or 0) / longest) if longest else ""
        moved = [bytes_text(row[key]) for key in ("requested", "hbm")]
        times = [time_text(row["ms"]), f"{bar:<20}", row["limit"] or "-"]
        cells.append((row["date"], row["function"], row["verdict"], *moved, *times, row["note"]))
    return aligned(cells, left=(0, 1, 2, 7, 8))


def main():
    parser = command.parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--diff", action="store_true", help="print two files side by side")
    args = parser.parse_args()
    if args.diff and len(args.files) != 2:
        raise BadInput("--diff needs two files")

    if len(args.files) == 1 and (rows := worklog_of(args.files[0])):
        print("\n".join(worklog_lines(rows)))
        return 0
    loaded = [load(path) for path in args.files]
    if args.diff:
        print(diff(*loaded))
    else:
        print(screen_of(join_for_reading([run for runs in loaded for run in runs])))
    return 0 if all(run.get("ok") for runs in loaded for run in runs) else 1
