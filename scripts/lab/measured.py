"""Tables, and figures for sentences, of what `maintain decode` and `maintain ring` measured.

A table has a line for each group of rows: those of one problem, by their names (`label` or
`shape`), or one row alone. A column reads one row of the group.
"""

import glob
import os
import textwrap
from dataclasses import dataclass

from flash_steps.command import BadInput
from flash_steps.files import read_json
from flash_steps.problems import cache_of, flops_of
from flash_steps.results import get
from flash_steps.standing import standing
from flash_steps.text import (
    Column,
    bytes_text,
    flops_text,
    markdown_table,
    percent_text,
    range_text,
    three_digits,
    time_text,
)

# --- texts ----------------------------------------------------------------------------------------


def rate_text(bytes_per_s):
    return three_digits(bytes_per_s / 1e12, always=True)


def share_text(share):
    return f"{100 * share:.{0 if share >= 0.1 else 1}f}%"


def ratio_text(ratio):
    return f"{three_digits(ratio, always=True)}x"


def keys_text(keys):
    return f"{keys // 1024}K" if keys % 1024 == 0 else f"{keys:,}"


# --- columns --------------------------------------------------------------------------------------


def value_of(row, what):
    """A row's figure: a key, as forward.ms, or a function."""
    return what(row) if callable(what) else get(row, what)


def column(head, what, text=str, of=None, left=False):
    """Of the group's row of this name, else of its first one."""

    def cell(group):
        row = group.get(of) if of else next(iter(group.values()))
        value = row and value_of(row, what)
        return "-" if value is None else text(value)

    return Column(head if isinstance(head, tuple) else ("", head), cell, left)


def against(head, other, mine):
    """How many times as fast as `other`, or as PyTorch's best, which it names."""

    def cell(group):
        rows = [row for name, row in group.items() if name.startswith("torch ")]
        best = min(rows, key=lambda row: row["ms"], default=None)
        row, them = group.get(mine), best if other == "best" else group.get(other)
        if not row or not them:
            return "-"
        more = f" ({them['variant']})" if other == "best" else ""
        return ratio_text(row["ratios"].get(them["variant"], them["ms"] / row["ms"])) + more

    return Column(("against", head), cell)


def results(of):
    return [
        column("time", "ms", time_text, of),
        column("TB/s", "bytes_per_s", rate_text, of),
        column(("of", "copy"), "of_copy", share_text, of),
    ]


def ideal(way, name):
    return [
        column((name, "time"), f"{way}.ms", time_text),
        column((name, "of ideal"), f"{way}.share", percent_text),
        column((name, "least"), f"{way}.least", percent_text),
    ]


def all_times(groups):
    """Of all labels: ours, PyTorch's, the copy."""
    labels = dict.fromkeys(name for group in groups for name in group)
    ordered = sorted(labels, key=lambda x: (x == "copy", x.startswith("torch")))
    return [BATCH, KEYS, *(column(label, "ms", time_text, label) for label in ordered)]


def by_page(groups):
    shapes = dict.fromkeys(name for group in groups for name in group if name != "none")
    factors = [
        column(
            ("time, pages", f"of {x}"), lambda row: 1 / row["ratios"]["none"], "{:.3f}".format, x
        )
        for x in shapes
    ]
    return [BATCH, KEYS, column("contiguous", "ms", time_text, "none"), *factors]


def by_queries(groups):
    """Times for each cache, and beside them how often one query's time that is."""
    one = next((group for group in groups if first(group)["n"] == 1), {})
    columns = [column("queries", "n")]
    for name in dict.fromkeys(name for group in groups for name in group):

        def factor(row, name=name):
            return row["ms"] / one[name]["ms"] if name in one else None

        columns.append(column(name, "ms", time_text, name))
        columns.append(column(("of one", "query's"), factor, "{:.2f}".format, name))
    return columns


def first(group):
    return next(iter(group.values()))


def ring_rate(way):
    """FLOP/s of a GPU."""
    factor = 3.5 if way == "both" else 1
    return lambda row: factor * flops_of(row, "forward") / row["ranks"] / (row[way]["ms"] * 1e-3)


def hidden(row):
    """The share of the last rank's messages, in one forward and backward, that pass while it
    computes."""
    overlap = row["overlap"]
    return overlap["both_ms"] / overlap["messages_ms"] if overlap["messages_ms"] else 1


# --- tables ---------------------------------------------------------------------------------------


@dataclass
class Table:
    title: str
    of: str  # the `what` of its rows
    key: object  # of a row: what those of a group share, and their order
    name: object  # of a row, in its group; None: the table leaves it out
    columns: object  # a list, or a function of the groups

    def groups(self, rows):
        found = {}
        for row in rows:
            if (name := self.name(row)) is not None:
                found.setdefault(self.key(row), {})[name] = row
        return [found[key] for key in sorted(found)]

    def markdown(self, rows):
        groups = self.groups(rows)
        return markdown_table(
            self.columns(groups) if callable(self.columns) else self.columns, groups
        )


def problem(row):
    """Larger groups later."""
    return row["b"], row["nk"], row["n"], -row["hkv"], row["causal"], row["cache8"]


def label(row):
    return row["label"]


def shape(row):
    return row["shape"]


def cache_name(row):
    return f"B={row['b']}, {keys_text(row['nk'])}" if row["label"] == ONCE else None


def order(row):
    return row["n"], not row["causal"], row["variant"], row.get("channels", 0)


ONCE = "13 once"
BATCH, KEYS = column("B", "b"), column("keys", "nk", keys_text)
CACHE = column("K, V, Q, O", "bytes", bytes_text)
TOKENS = column(("tokens", "a GPU"), "tokens", lambda n: f"{n // 1024}K")
MASK = column("mask", lambda row: "causal" if row["causal"] else "full", left=True)
SHARES = [*ideal("forward", "forward"), *ideal("both", "with backward")]
HIDDEN = column(("messages", "hidden"), hidden, percent_text)
FORWARD = column("forward", "forward.ms", time_text)
BOTH = column(("with", "backward"), "both.ms", time_text)

DECODE = {
    "peers": Table(
        "13 once beside PyTorch and 07 lazy, one query",
        "peers",
        problem,
        label,
        [
            *(BATCH, KEYS, CACHE, *results(ONCE)),
            column(("copy of", "as much"), "ms", time_text, "copy"),
            against("PyTorch's best", "best", ONCE),
            against("07 lazy", "07 lazy", ONCE),
        ],
    ),
    "variants": Table("all of them, times", "peers", problem, label, all_times),
    "fp8": Table(
        "K and V in 8 bits, by the program's clock",
        "fp8",
        lambda row: (row["b"], row["nk"]),
        label,
        [
            *(BATCH, KEYS, column("K, V, Q, O", "bytes", bytes_text, "13 fp8")),
            *results("13 fp8"),
            column(("once,", "16 bits"), "ms", time_text, ONCE),
            against("once", ONCE, "13 fp8"),
        ],
    ),
    "pages": Table(
        "pages, as a share of the time without",
        "pages",
        lambda row: (row["nk"], row["b"]),
        shape,
        by_page,
    ),
    "queries": Table(
        "several queries, causal", "queries", lambda row: row["n"], cache_name, by_queries
    ),
    "groups": Table(
        "32 query heads, 16K keys, by the heads of a group",
        "groups",
        problem,
        label,
        [
            column("group", lambda row: row["h"] // row["hkv"]),
            *(CACHE, *results(ONCE)),
            column(("splits", "time"), "ms", time_text, "13 splits"),
            against("splits", "13 splits", ONCE),
            against("PyTorch's best", "best", ONCE),
        ],
    ),
    "ragged": Table(
        "ragged lengths beside equal ones of the same sum",
        "ragged",
        lambda row: (-row["b"], sum(row["lengths"])),
        shape,
        [
            BATCH,
            column(
                ("lengths", "in turn"),
                lambda row: ", ".join(map(str, cache_of(row)[0])),
                of="ragged",
                left=True,
            ),
            column(("keys", "in all"), lambda row: sum(row["lengths"]), "{:,}".format),
            *results("ragged"),
            column(("equal", "lengths"), "ms", time_text, "equal"),
            column(
                ("of that", "time"),
                lambda row: 1 / row["ratios"]["equal"],
                "{:.2f}".format,
                "ragged",
            ),
        ],
    ),
}


def ring_table(title, of, *columns):
    return Table(title, of, order, lambda row: "row", columns)


RING = {
    "share": ring_table(
        *("fused: share of the ideal", "share", TOKENS, MASK, column("H", "h"), *SHARES, HIDDEN)
    ),
    "variants": ring_table(
        "the other variants",
        "variants",
        column("variant", "variant", left=True),
        *(MASK, TOKENS, *SHARES),
        column(("sent", "by a GPU"), lambda row: max(row["sent"]), bytes_text),
    ),
    "nccl": ring_table(
        "messages by NCCL", "nccl", column("messages by", "carrier", left=True), *SHARES, HIDDEN
    ),
    "hop": ring_table(
        "a hop alone, on one GPU",
        "hop",
        column("rows", "tokens", lambda n: f"{n // 1024}K"),
        *(MASK, FORWARD),
        column(("TFLOP/s", "forward"), ring_rate("forward"), flops_text),
        BOTH,
        column(("TFLOP/s", "with backward"), ring_rate("both"), flops_text),
    ),
    "long": ring_table(
        "a long sequence",
        "long",
        TOKENS,
        column("problem", "problem", left=True),
        FORWARD,
        column(("TFLOP/s", "a GPU"), ring_rate("forward"), flops_text),
        BOTH,
        column(("memory", "a GPU"), "bytes_each", bytes_text),
    ),
}
TABLES = {"decode": DECODE, "ring": RING}


# --- what a run says ------------------------------------------------------------------------------


def decode_facts(result):
    copy = result["copy"]
    return [
        f"{result['device']}, PyTorch {result['torch']}, medians. A copy of "
        f"{bytes_text(copy['bytes'])} (read and written) reaches "
        f"{rate_text(copy['bytes_per_s'])} TB/s; the smallest kernel takes "
        f"{time_text(result['floor_ms'])} by this clock."
    ]


def ring_facts(result):
    """None of a run of which nothing was measured."""
    return [
        f"{result['ranks']} x {result['device']}, {result['carrier']}; medians of "
        f"{result['iters']} batches of runs, in up to {result['turns']} turns."
    ] * bool(result["carrier"])


FACTS = {"decode": decode_facts, "ring": ring_facts}


def load(name, folder):
    """The results in <name>_*.json of a folder; each row says its `standing`."""
    found = [read_json(path) for path in sorted(glob.glob(os.path.join(folder, f"{name}_*.json")))]
    for result in found:
        for row in result["rows"]:
            row["standing"] = row["step"] and standing(row["step"], row.get("commit"))
    return found


def not_measured(name):
    return f"Not measured yet: run `./scripts/maintain {name}`."


def left_out_text(lines):
    """No sentence, or one."""
    return [f"Left out, there was no time: {', '.join(lines)}."] if lines else []


def text_of(name, result):
    """All tables, and what else is to be said of a run, as it ends."""
    parts = []
    for table in TABLES[name].values():
        if rows := [row for row in result["rows"] if row["what"] == table.of]:
            parts.append(f"{table.title}\n\n{table.markdown(rows)}\n")
    said = [*FACTS[name](result), *dict.fromkeys(result["notes"])]
    said += [f"FAILED: {line}" for line in dict.fromkeys(result["failures"])]
    said += left_out_text(result["left_out"])
    return "\n".join(parts + [textwrap.fill(line, 100) for line in said])


def markdown_of(table, result, rows):
    """What was left out of a turn, but has its row, is not missing here."""
    there = [row for row in result["rows"] if row["what"] == table.of]

    def has_row(line):
        return any(row["variant"] in line and row["problem"] in line for row in there)

    missing = [x for x in result["left_out"] if x.startswith(table.of + ":") and not has_row(x)]
    return "\n\n".join([table.markdown(rows), *left_out_text(missing)])


# --- figures in a sentence ------------------------------------------------------------------------

# {show: (the figure of a row, with {way} of the marker; its text)}, or (..., of the run).
FIGURES = {
    "decode": {
        "share": ("of_copy", share_text),
        "bandwidth": ("bytes_per_s", rate_text),
    },
    "ring": {
        "share": ("{way}.share", percent_text),
        "time": ("{way}.ms", time_text),
        "rate": (ring_rate, flops_text),
        "memory": ("bytes_each", bytes_text),
        "hidden": (hidden, percent_text),
    },
}
OF_THE_RUN = {
    "decode": {
        "device": lambda result: result["device"],
        "copy": lambda result: rate_text(result["copy"]["bytes_per_s"]),
        "floor": lambda result: time_text(result["floor_ms"]),
    },
    "ring": {
        "device": lambda result: f"{result['ranks']} x {result['device']}",
        "carrier": lambda result: result["carrier"],
    },
}
# What a figure's marker means where it does not say.
DEFAULTS = {"decode": {"what": "peers", "variant": "once"}, "ring": {"what": "share"}}


def figure_of(name, result, passing, show, way):
    """The text of one figure: of the run, or of the rows that pass."""
    if show in OF_THE_RUN[name]:
        return OF_THE_RUN[name][show](result)
    if show not in FIGURES[name]:
        known = ", ".join((*FIGURES[name], *OF_THE_RUN[name]))
        raise BadInput(f"figure '{name}': show={show}: choose from {known}")
    if way not in ("forward", "both"):
        raise BadInput(f"figure '{name}': way={way}: choose from forward, both")
    if not passing:
        raise BadInput(f"figure '{name}': no row passes its filters")
    what, text = FIGURES[name][show]
    what = ring_rate(way) if what is ring_rate else what
    what = what.format(way=way) if isinstance(what, str) else what
    return range_text([value_of(row, what) for row in passing], text)
