"""What peers.py, `maintain decode` and `maintain ring` measured: their rows, and tables of them."""

import glob
import os
import statistics
import textwrap

from flash_steps.files import read_json
from flash_steps.problems import DIRECTIONS, flops_of, problem_text
from flash_steps.results import Run, get
from flash_steps.standing import standing
from flash_steps.text import (
    Column,
    bytes_text,
    flops_text,
    markdown_table,
    percent_text,
    text_table,
    three_digits,
    time_text,
)

from .torch_attention import BACKENDS

# --- rows -----------------------------------------------------------------------------------------


def place_of(row):
    """What two measurements of the same share."""
    keys = ("what", "step", "variant", "direction", "problem", "shape", "channels")
    return tuple(row.get(key) for key in keys)


def repeats_of(row):
    """What each repeat of a row of peers.py found: {ms, of_matmul, ratios}."""
    return row.get("repeats") or [row]


def median_row(row, repeats):
    """A row of peers.py with the medians of these."""
    names = dict.fromkeys(name for run in repeats for name in run["ratios"])
    ratios = {
        name: statistics.median(run["ratios"][name] for run in repeats if name in run["ratios"])
        for name in names
    }
    ms, of_matmul = (statistics.median(run[key] for run in repeats) for key in ("ms", "of_matmul"))
    rate = flops_of(row, row["direction"]) / (ms * 1e-3)
    found = {"ms": ms, "flops_per_s": rate, "of_matmul": of_matmul, "ratios": ratios}
    return {**row, **found, "repeats": repeats}


def matmul_of(row, run):
    """The matmul rate beside one repeat."""
    return flops_of(row, row["direction"]) / (run["ms"] * 1e-3) / run["of_matmul"]


def least_of(rows, name):
    """(the least ratio of all repeats, its row)"""
    found = [
        (run["ratios"][name], i)
        for i, row in enumerate(rows)
        for run in repeats_of(row)
        if name in run["ratios"]
    ]
    ratio, i = min(found)
    return ratio, rows[i]


def load(name, folder):
    """The results in <name>_*.json of a folder; each row says its `standing`."""
    paths = sorted(glob.glob(os.path.join(folder, f"{name}_*.json")))
    return with_standing([read_json(path) for path in paths])


def with_standing(results):
    for result in results:
        for row in result["rows"]:
            row["standing"] = row["step"] and standing(row["step"], row.get("commit"))
    return results


# --- columns --------------------------------------------------------------------------------------


def text_column(head, text):
    """Of a row's text; "-" where it is None."""
    return Column(("", head), lambda row: text(row) or "-", left=True)


def column(head, what, text=str):
    """Of a row's figure: a key, as forward.ms, or a function."""

    def cell(row):
        value = what(row) if callable(what) else get(row, what)
        return "-" if value is None else text(value)

    return Column(("", head), cell)


def ratio_text(ratio):
    return f"{three_digits(ratio, always=True)}x"


def keys_text(keys):
    return f"{keys // 1024}K" if keys % 1024 == 0 else f"{keys:,}"


# --- peers ----------------------------------------------------------------------------------------


def in_order(rows):
    """By type, problem, then direction; ours first."""
    keys = ("dtype", "d", "causal", "n")
    return sorted(
        rows,
        key=lambda row: (
            *(row[k] for k in keys),
            DIRECTIONS.index(row["direction"]),
            not row["step"],
        ),
    )


def short_label(row):
    if not row["step"]:
        return row["label"]
    return Run({"step": row["step"], "variant": row["variant"]}, row["direction"]).short_label


def against(name):
    return Column(
        ("against", name),
        lambda row: f"{row['ratios'][name]:.3g}x" if name in row["ratios"] else "-",
    )


def peers_screen(rows):
    """The columns for rows of one type."""
    short = {"forward": "fwd", "backward": "bwd"}
    return [
        Column(
            ("", "problem"),
            lambda row: row["problem"],
            left=True,
            short=lambda row: problem_text(row, omit=("B", "H", "type")),
        ),
        Column(
            ("direc-", "tion"),
            lambda row: row["direction"],
            left=True,
            short=lambda row: short[row["direction"]],
        ),
        Column(("", "who"), lambda row: row["label"], left=True, short=short_label),
        Column(("", "time"), lambda row: time_text(row["ms"])),
        Column(("", "TFLOP/s"), lambda row: flops_text(row["flops_per_s"])),
        Column((f"of {rows[0]['dtype']}", "matmul"), lambda row: percent_text(row["of_matmul"])),
    ] + [against(name) for name in BACKENDS if any(name in row["ratios"] for row in rows)]


def against_n(title, cells):
    """Rows are labels, columns are N, of {(label, N): text}; "-" where there is none."""
    columns = [Column(("", title), lambda label: label, left=True)]
    for n in sorted({n for _, n in cells}):
        columns.append(Column(("", f"N={n}"), lambda label, n=n: cells.get((label, n), "-")))
    return markdown_table(columns, list(dict.fromkeys(label for label, _ in cells)))


def peers_table(rows):
    """TFLOP/s of all variants and backends."""
    ours_first = sorted(rows, key=lambda row: (not row["step"], row["step"] or ""))
    cells = {(row["label"], row["n"]): flops_text(row["flops_per_s"]) for row in ours_first}
    return against_n("TFLOP/s", cells)


def means_of(rows):
    """(columns, lines): for each variant the geometric means of its ratios, and the least."""
    groups = {}
    for row in rows:
        if row["step"]:
            groups.setdefault((row["label"], row["dtype"]), []).append(row)

    def cell(name):
        def text(found):
            there = [row for row in found if name in row["ratios"]]
            if not there:
                return "-"
            mean = statistics.geometric_mean(row["ratios"][name] for row in there)
            least, where = least_of(there, name)
            at = problem_text(where, omit=("B", "H", "type"))
            return f"{mean:.3g}x, least {least:.3g}x ({at})"

        return text

    met = [name for name in BACKENDS if any(name in row["ratios"] for row in rows)]
    columns = [
        Column(("", "variant"), lambda found: found[0]["label"], left=True),
        Column(("", "problems"), lambda found: str(len(found))),
        *(Column(("against", name), cell(name), left=True) for name in met),
    ]
    return columns, list(groups.values())


def means_table(rows):
    return markdown_table(*means_of(rows))


def peers_facts(result):
    count = max(len(repeats_of(row)) for row in result["rows"])
    facts = (
        f"{result['device']}, PyTorch {result['torch']}, medians of up to {count} repeats of "
        f"{result['rounds']} rounds of {result['iters']} runs; above 1x the step is faster."
    )
    for dtype, rates in result.get("matmul", {}).items():
        span = " to ".join(dict.fromkeys(map(flops_text, rates)))
        facts += f" The {dtype} matmul reached {span} TFLOP/s."
    return [facts]


def peers_text(result):
    rows, parts = in_order(result["rows"]), []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        mine = [row for row in rows if row["dtype"] == dtype]
        parts += [text_table(peers_screen(mine), mine), text_table(*means_of(mine))]
    return parts


# --- decode ---------------------------------------------------------------------------------------

ONCE = "13 once"


BATCH, KEYS = column("B", "b"), column("keys", "nk", keys_text)
DECODED = (
    column("K, V, Q, O", "bytes", bytes_text),
    column("time", "ms", time_text),
    column("TB/s", "bytes_per_s", lambda rate: three_digits(rate / 1e12, always=True)),
    column("of a copy", "of_copy", "{:.0%}".format),
)
# {table: (the `what` of its rows, what tells its lines apart, their first columns)}
DECODE = {
    "peers": ("peers", ("b", "nk"), (BATCH, KEYS)),
    "variants": ("peers", ("b", "nk"), (BATCH, KEYS)),
    "fp8": ("fp8", ("b", "nk"), (BATCH, KEYS)),
    "pages": ("pages", ("nk", "b"), (BATCH, KEYS)),
    "queries": ("queries", ("n",), (column("queries", "n"),)),
    "groups": ("groups", ("group",), (column("heads of a group", "group"),)),
    "ragged": ("ragged", ("b", "keys"), (BATCH, column("keys in all", "keys", "{:,}".format))),
}


def name_in_line(what, row):
    """What a row is called in its line; None where it is not shown."""
    if what == "queries":
        return f"B={row['b']}, {keys_text(row['nk'])}" if row["label"] == ONCE else None
    return row.get("shape") or row["label"]


def beside_best(line):
    """How many times as fast as PyTorch's fastest backend, and which that is."""
    torch = [row for name, row in line.items() if name.startswith("torch ")]
    best = min(torch, key=lambda row: row["ms"], default=None)
    return best and f"{ratio_text(line[ONCE]['ratios'][best['variant']])} ({best['variant']})"


def beside_07(line):
    return ratio_text(line["07 lazy"]["ms"] / line[ONCE]["ms"]) if "07 lazy" in line else None


def time_and_share(row):
    share = f", {row['of_copy']:.0%}" if row["step"] else ""
    return time_text(row["ms"]) + share


def decode_table(what, rows):
    """Times by problem and variant, with the share of a copy's bandwidth; `peers`: of one variant,
    with more of it."""
    _, keys, first = DECODE[what]
    lines, names = {}, {}
    for row in rows:
        more = {"keys": sum(row["lengths"] or []), "group": row["h"] // row["hkv"]}
        row, name = {**row, **more}, name_in_line(what, row)
        if name is not None:
            lines.setdefault(tuple(row[key] for key in keys), {})[name] = row
            names[name] = (name == "copy", not row["step"])

    def of(name, plain):
        return Column(plain.head, lambda line: plain.cell(line[name]) if name in line else "-")

    def any_row(plain):
        return Column(plain.head, lambda line: plain.cell(next(iter(line.values()))))

    columns = [any_row(plain) for plain in first]
    if what == "peers":
        columns += [of(ONCE, plain) for plain in DECODED]
        for head, cell in (("PyTorch's best", beside_best), ("07 lazy", beside_07)):
            columns.append(Column(("against", head), lambda line, cell=cell: cell(line) or "-"))
    else:
        for name in sorted(names, key=names.get):
            columns.append(of(name, Column(("", name), time_and_share)))
    return markdown_table(columns, [lines[place] for place in sorted(lines)])


def decode_facts(result):
    rate, copied = (result["copy"][key] for key in ("bytes_per_s", "bytes"))
    return [
        f"{result['device']}, PyTorch {result['torch']}, medians. Percentages are of the bandwidth "
        f"of a copy, {three_digits(rate / 1e12, always=True)} TB/s with {bytes_text(copied)} read "
        f"and written; the smallest kernel takes {time_text(result['floor_ms'])} by this clock."
    ]


# --- ring -----------------------------------------------------------------------------------------


def tokens_text(tokens):
    return f"{tokens // 1024}K"


def rate_of(way, factor):
    """FLOP/s of a GPU."""
    return lambda row: factor * flops_of(row, "forward") / row["ranks"] / (row[way]["ms"] * 1e-3)


def hidden(row):
    """The share of the last rank's messages, in one forward and backward, that pass while it
    computes."""
    overlap = row["overlap"]
    return overlap["both_ms"] / overlap["messages_ms"] if overlap["messages_ms"] else 1


SHARES = [
    column(f"{name} {head}", f"{way}.{key}", text)
    for way, name in (("forward", "forward"), ("both", "with backward"))
    for head, key, text in (
        ("time", "ms", time_text),
        ("of ideal", "share", percent_text),
        ("least", "least", percent_text),
    )
]
TIMES = [
    column(head, what, text)
    for way, name, factor in (("forward", "forward", 1), ("both", "with backward", 3.5))
    for head, what, text in (
        (name, f"{way}.ms", time_text),
        (f"{name} TFLOP/s a GPU", rate_of(way, factor), flops_text),
    )
]
TOKENS = column("tokens a GPU", "tokens", tokens_text)
MASK = text_column("mask", lambda row: "causal" if row["causal"] else "full")
HIDDEN = column("messages hidden", hidden, percent_text)
RING = {
    "share": [TOKENS, MASK, column("H", "h"), *SHARES, HIDDEN],
    "variants": [
        *(text_column("variant", lambda row: row["variant"]), MASK, TOKENS, *SHARES),
        column("sent by a GPU", lambda row: max(row["sent"]), bytes_text),
    ],
    "nccl": [text_column("messages by", lambda row: row["carrier"]), *SHARES, HIDDEN],
    "hop": [TOKENS, MASK, *TIMES],
    "long": [TOKENS, *TIMES, column("memory a GPU", "bytes_each", bytes_text)],
}


def ring_table(what, rows):
    keys = ("variant", "channels")
    rows = sorted(
        rows, key=lambda r: (r["n"], not r["causal"], *(str(r.get(key) or "") for key in keys))
    )
    return markdown_table(RING[what], rows)


def ring_facts(result):
    """None of a run of which nothing was measured."""
    return [
        f"{result['ranks']} x {result['device']}, {result['carrier']}; medians of "
        f"{result['iters']} batches of runs, in up to {result['turns']} turns."
    ] * bool(result["carrier"])


# --- what a run says ------------------------------------------------------------------------------

TABLES = {"decode": (decode_table, DECODE), "ring": (ring_table, RING)}
FACTS = {"decode": decode_facts, "ring": ring_facts}


def rows_for(name, what, rows):
    """Those of the table `what`."""
    of = DECODE[what][0] if name == "decode" else what
    return [row for row in rows if row["what"] == of]


def text_of(name, result):
    """All tables, and what else is to be said of a run, as it ends."""
    rows, parts = result["rows"], []
    if name == "peers":
        parts = peers_text(result)
        said = peers_facts(result) if rows else []
    else:
        table, kinds = TABLES[name]
        for what in kinds:
            if mine := rows_for(name, what, rows):
                parts.append(f"{what}\n\n{table(what, mine)}")
        said = FACTS[name](result)
    said += dict.fromkeys(result["notes"])
    said += [f"FAILED: {line}" for line in dict.fromkeys(result["failures"])]
    if left := result["left_out"]:
        more = f", and {len(left) - 1} more" if len(left) > 1 else ""
        said.append(f"Left out, there was no time: {left[0]}{more}.")
    return "\n\n".join([*parts, "\n".join(textwrap.fill(line, 100) for line in said)])
