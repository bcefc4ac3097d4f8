"""What step programs write with --json: read it, join it by problem, lay it out in tables.

'Counted' comes only from the simulator and 'measured' only from a GPU; a Row holds one run of each
for the same step, variant, direction and problem.
"""

import json
import math
import os
import re
from dataclasses import dataclass, field

from step_text import ROOT, digest_of


class BadInput(Exception):
    """One sentence for the user; scripts print it and exit 2."""


def get(tree, path):
    """tree["a"]["b"] for the path "a.b"; None when anything on the way is absent or null."""
    for key in path.split("."):
        if not isinstance(tree, dict) or tree.get(key) is None:
            return None
        tree = tree[key]
    return tree


def total(counts):
    """The sum of {read, write, atomic} or {load, store, atomic}; None stays None."""
    return None if counts is None else sum(v for v in counts.values() if v)


@dataclass
class Run:
    """The forward or the backward of one program's run."""

    data: dict  # the program's JSON; for a backward, with the backward's own keys on top
    direction: str  # "forward" or "backward"

    def get(self, path):
        return get(self.data, path)

    @property
    def kind(self):
        return self.get("device.kind")

    @property
    def variant(self):
        return self.get("variant") or "kernel"

    @property
    def label(self):
        """kernel.cuh goes by its step's name, all else by the step's number:
        "05_recompute_backward", "05 standard", "05 bwd", "05 standard bwd"."""
        words = [] if self.variant == "kernel" else [self.variant]
        words += ["bwd"] if self.direction == "backward" else []
        number = re.match(r"\d+(?=_)", self.data["step"])
        return " ".join([number[0] if number and words else self.data["step"]] + words)

    @property
    def short_label(self):
        """ "05 kernel", "08 determin. bwd": where there is no room for the names of the step and of
        a long variant."""
        number = re.match(r"\d+(?=_)", self.data["step"])
        plain = number and self.label == self.data["step"]
        short = self.variant if len(self.variant) < 10 else self.variant[:8] + "."
        return f"{number[0]} {short}" if plain else self.label.replace(self.variant, short)

    @property
    def key(self):
        """What two runs share when they moved the same bytes: input and seed do not matter."""
        p = self.data["problem"]
        sizes = tuple(p.get(k) for k in ("b", "h", "hkv", "n", "nk", "d", "causal", "dtype"))
        return (self.data["step"], self.variant, self.direction, (*sizes, p.get("smem") or 0))


@dataclass
class Row:
    """One line of a table: what the simulator counted beside what one GPU measured."""

    sim: Run = None
    gpu: Run = None
    any: Run = field(init=False)  # whichever is there

    def __post_init__(self):
        self.any = self.gpu or self.sim

    def sim_get(self, path):
        return self.sim.get(path) if self.sim else None

    def gpu_get(self, path):
        return self.gpu.get(path) if self.gpu else None


def load(path):
    """The runs in one file: a program's object, a list of them, or {"runs": [...]}."""
    try:
        with open(path, encoding="utf-8") as file:
            tree = json.load(file)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path} is no JSON: {error}") from None
    objects = tree.get("runs", [tree]) if isinstance(tree, dict) else tree
    runs = []
    for data in objects if isinstance(objects, list) else [objects]:
        if not isinstance(data, dict) or not data.get("step") or not get(data, "problem.n"):
            raise BadInput(f"{path} holds no run of a step: write it with a step's --json")
        runs.append(Run(data, "forward"))
        if data.get("backward"):
            runs.append(Run({**data, **data["backward"]}, "backward"))
    return runs


def join(runs):
    """Rows in the order of reading: by step, by the place of its variant, then by size.

    Files that do not know the place (`variant_index`) have kernel.cuh last. A later
    run of the same step, problem and device replaces an earlier one.
    """
    sims, gpus, places = {}, {}, {}
    for run in runs:
        if run.get("variant_index") is not None:
            places[run.data["step"], run.variant] = run.get("variant_index")
        if run.kind == "sim":
            sims[run.key] = run
        else:
            gpus.setdefault(run.key, {})[run.get("device.name")] = run

    def reading_order(key):
        step, variant, direction, sizes = key
        place = places.get((step, variant), 0)
        return step, place, variant == "kernel", variant, direction != "forward", sizes

    rows = []
    for key in sorted({run.key for run in runs}, key=reading_order):
        measured = list(gpus.get(key, {}).values()) or [None]
        rows += [Row(sims.get(key), gpu) for gpu in measured]
    return rows


# --- whether a figure belongs to the text beside it ---------------------------------------------

OLDER, SLOWED = "of an older text of the kernel", "measured while the GPU was slowed down"


def standing(step, text, slowed=False):
    """None, or why a run is not one of this tree's kernel on a GPU at its full speed."""
    return OLDER if text is None or text != digest_of(step) else SLOWED if slowed else None


def gpu_table():
    with open(os.path.join(ROOT, "common", "data", "gpus.json"), encoding="utf-8") as file:
        return json.load(file)["gpus"]


def model_of(device):
    """The row whose words are all in the device's name: A100-80GB in NVIDIA A100-SXM4-80GB."""

    def words(name):
        return set(re.split(r"[ -]", name))

    fitting = [row["name"] for row in gpu_table() if words(row["name"]) <= words(device)]
    return max(fitting, key=lambda name: len(words(name)), default=None)


def peak_of(device):
    """FMA FLOP/s of all lanes at the highest clock, from the data sheet; None of an unknown GPU."""
    name = model_of(device or "")
    return next((row["fp32_flops"] for row in gpu_table() if row["name"] == name), None)


def mark_slowed(runs):
    """Sets `slowed` of runs on a GPU whose FMA roof is under 90% of its highest clock's, or with a
    roof under 90% of the best that the same kind of card has in these runs."""
    best = {}
    for run in runs:
        for key, rate in (run.get("roofs") or {}).items():
            place = run.get("device.name"), key
            best[place] = max(rate or 0, best.get(place, 0))
    peaks = {device: peak_of(device) for device, _ in best}
    for run in runs:
        device = run.get("device.name")
        roofs = {key: rate for key, rate in (run.get("roofs") or {}).items() if rate}
        run.data["slowed"] = any(
            rate < 0.9 * best[device, key]
            or key == "fp32_flops"
            and rate < 0.9 * (peaks[device] or 0)
            for key, rate in roofs.items()
        )


def repeats_of(row):
    """What each run of peers.py found: a row of gpu_check.py --merge may hold several, with their
    median."""
    return row.get("repeats") or [row]


def matmul_of(run):
    """The matmul rate beside a run of peers.py."""
    return run["flops_per_s"] / run["of_matmul"]


def slowed_peers(results):
    """A function of (result, row, run) of peers.py: whether the GPU was slowed down, which is where
    its matmul rate is under 90% of the best of the same device and type."""
    best = {}
    for result in results:
        for row in result["rows"]:
            place = result["device"], row.get("dtype")
            rates = [matmul_of(run) for run in repeats_of(row) if run.get("of_matmul")]
            best[place] = max([*rates, best.get(place, 0)])

    def slowed(result, row, run):
        least = 0.9 * best[result["device"], row.get("dtype")]
        return bool(run.get("of_matmul")) and matmul_of(run) < least

    return slowed


def standing_of(run):
    return standing(run.data["step"], run.get("text"), run.kind == "gpu" and run.get("slowed"))


def standing_parts(found):
    """A part of a sentence for each reason in [(step, reason or None)]."""
    steps = {}
    for step, reason in found:
        if reason:
            steps.setdefault(reason, set()).add(step)
    return [f"{reason}: {', '.join(sorted(steps[reason]))}" for reason in sorted(steps)]


def standing_text(found):
    """The same as paragraphs, to stand under a table."""
    return "".join(f"\n\n*{part[0].upper()}{part[1:]}.*" for part in standing_parts(found))


def rows_of_picture(rows):
    """What plots.py draws of HBM bytes against N: each step's last variant in FlashAttention's
    series, d = 64, not causal, where they were measured."""
    chosen = []
    for row in rows:
        p = row.any.data["problem"]
        series = p["b"] * p["n"] == 16384 and p["h"] == 32 and p["d"] == 64 and p["n"] >= 1024
        if row.gpu_get("traffic.hbm.measured") and row.any.direction == "forward" and series:
            chosen += [] if p["causal"] or p.get("smem") else [row]
    last = {row.any.data["step"]: row.any.variant for row in chosen}  # rows are in reading order
    return [row for row in chosen if row.any.variant == last[row.any.data["step"]]]


# --- figures for people -------------------------------------------------------------------------


def scaled(value, units, step=1000):
    """Three significant digits: 1073741824 -> "1.07 G" with units of ("", "K", "M", "G")."""
    if value is None:
        return "-"
    exponent = 0
    while abs(value) >= 999.5 and exponent < len(units) - 1:
        value /= step
        exponent += 1
    digits = 0 if exponent == 0 and value == int(value) else max(0, 2 - int(math.log10(abs(value))))
    return f"{value:.{digits}f} {units[exponent]}".rstrip()


def bytes_text(value):
    return scaled(value, ("B", "kB", "MB", "GB", "TB"))


def count_text(value):
    return scaled(value, ("", "K", "M", "G", "T"))


def time_text(ms):
    return "-" if ms is None else scaled(ms * 1e3, ("us", "ms", "s"))


def flops_text(per_second):
    return "-" if per_second is None else f"{per_second / 1e12:.3g}"


# The sizes by which problems differ: how they are called, and their text in a table.
SIZES = {
    "B": lambda p: str(p["b"]),
    "H": lambda p: str(p["h"]),
    "Hkv": lambda p: str(p["hkv"]),
    "N": lambda p: str(p["n"]),
    "Nk": lambda p: str(p["nk"]),
    "d": lambda p: str(p["d"]),
    "causal": lambda p: "yes" if p["causal"] else "no",
    "type": lambda p: p["dtype"],
    "smem": lambda p: str(p["smem"]) if p.get("smem") else "-",
}


def problem_text(p, omit=()):
    """ "B=1 H=4 N=1024 d=64 causal fp32": Hkv and Nk only where they differ from H and N, and the
    shared memory M of a block only where it was limited."""
    same = {"Hkv": p["hkv"] == p["h"], "Nk": p["nk"] == p["n"], "smem": not p.get("smem")}
    parts = [
        f"{name}={SIZES[name](p)}"
        for name in ("B", "H", "Hkv", "N", "Nk", "d", "smem")
        if name not in omit and not same.get(name)
    ]
    if "causal" not in omit:
        parts += ["causal"] if p["causal"] else []
    return " ".join(parts + ([] if "type" in omit else [p["dtype"]]))


# --- columns ------------------------------------------------------------------------------------


def sectors_per_request(row):
    for source in (row.sim_get, row.gpu_get):
        requests, sectors = total(source("traffic.requests")), total(source("traffic.sectors"))
        if requests and sectors is not None:
            return f"{sectors / requests:.1f}"
    return "-"


def requests(row):
    counted = row.sim_get("traffic.requests") or row.gpu_get("traffic.requests")
    return count_text(total(counted))


def time(row):
    """A GPU's median, or the modelled GPU's bound, which says so: no step can be faster."""
    if row.gpu_get("time.median_ms") is not None:
        return time_text(row.gpu_get("time.median_ms"))
    bound = row.any.get("bound_ms")
    return "-" if bound is None else ">=" + time_text(bound)


def speed(row):
    ms, flops = row.gpu_get("time.median_ms"), row.any.get("flops")
    return flops_text(flops / (ms * 1e-3)) if ms and flops else "-"


def verdict(row):
    oks = [run.get("ok") for run in (row.sim, row.gpu) if run]
    return "ok" if all(oks) else "WRONG"


@dataclass
class Column:
    head: tuple  # two lines
    cell: object  # Row -> text
    left: bool = False
    short: object = None  # Row -> text, where a table would be too wide

    @property
    def title(self):
        """The head on one line."""
        return " ".join(self.head).strip().replace("- ", "").replace("/ ", "/")


STEP = Column(("", "step"), lambda r: r.any.label, left=True, short=lambda r: r.any.short_label)
DEVICE = Column(("", "measured on"), lambda r: r.gpu_get("device.name") or "-", left=True)
COLUMNS = (
    Column(
        ("requested", "read"), lambda r: bytes_text(r.sim_get("traffic.requested.counted.read"))
    ),
    Column(
        ("requested", "write"), lambda r: bytes_text(r.sim_get("traffic.requested.counted.write"))
    ),
    Column(
        ("", "atomic"), lambda r: bytes_text(r.sim_get("traffic.requested.counted.atomic") or None)
    ),
    Column(("warp", "requests"), requests),
    Column(("sectors/", "request"), sectors_per_request),
    Column(("HBM", "modelled"), lambda r: bytes_text(total(r.sim_get("traffic.hbm.model")))),
    Column(("HBM", "measured"), lambda r: bytes_text(total(r.gpu_get("traffic.hbm.measured")))),
    Column(("work-", "space"), lambda r: bytes_text(r.any.get("workspace_bytes"))),
    Column(("", "time"), time),
    Column(("TFLOP", "per s"), speed),
    Column(("", "check"), verdict),
)


def columns_for(rows):
    """The columns that say something about these rows, and what all rows have in common."""
    problems = [row.any.data["problem"] for row in rows]
    varying = [name for name, text in SIZES.items() if len({text(p) for p in problems}) > 1]
    # Where Hkv follows H, and Nk follows N, one column says it.
    for follower, leader, same in (("Hkv", "H", "h hkv"), ("Nk", "N", "n nk")):
        x, y = same.split()
        if follower in varying and leader in varying and all(p[x] == p[y] for p in problems):
            varying.remove(follower)
    columns = [STEP] + [
        Column(("", name), lambda r, text=SIZES[name]: text(r.any.data["problem"]))
        for name in varying
    ]
    omit = (
        set(varying)
        | ({"Nk"} if "N" in varying else set())
        | ({"Hkv"} if "H" in varying else set())
    )
    common = [problem_text(problems[0], omit)] if problems else []
    devices = {DEVICE.cell(row) for row in rows}
    if len(devices) > 1:
        columns.append(DEVICE)
    elif devices != {"-"}:
        common.append(f"measured on {devices.pop()}")
    keep = [c for c in COLUMNS if any(c.cell(row) != "-" for row in rows)]
    return columns + keep, ", ".join(text for text in common if text)


def text_table(columns, rows, width=100):
    """Aligned text. Two blanks between columns; where the table would exceed `width` one, and short
    cells where only they make it fit."""

    def cells(short):
        return [[(short and c.short or c.cell)(row) for c in columns] for row in rows]

    for gap, short in (("  ", False), (" ", False), (" ", True), (" ", False)):
        lines = [[c.head[i] for c in columns] for i in (0, 1)] + cells(short)
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        if sum(widths) + len(gap) * (len(widths) - 1) <= width:
            break

    def layout(line):
        return gap.join(
            cell.ljust(w) if c.left else cell.rjust(w) for cell, w, c in zip(line, widths, columns)
        ).rstrip()

    rule = "-" * len(gap.join("-" * w for w in widths))
    return "\n".join([layout(lines[0]), layout(lines[1]), rule] + [layout(x) for x in lines[2:]])


def markdown_table(columns, rows):
    lines = [
        "| " + " | ".join(c.title for c in columns) + " |",
        "|" + "|".join(":--" if c.left else "--:" for c in columns) + "|",
    ]
    lines += ["| " + " | ".join(c.cell(row) for c in columns) + " |" for row in rows]
    return "\n".join(lines)
