"""Tables, and figures for sentences, of what `maintain decode` measured."""

from .command import BadInput
from .measurement_tables import Table
from .text import Column, bytes_text, percent_text, three_digits, time_text
from .torch_attention import BACKENDS

NAME, STEP = "decode", "13_decode"
RESULT, BEFORE = "13 once", "07 lazy"


# --- cells ----------------------------------------------------------------------------------------


def rate_text(bytes_per_s):
    return three_digits(bytes_per_s / 1e12, always=True)


def share_text(share):
    return f"{100 * share:.{0 if share >= 0.1 else 1}f}%"


def ratio_text(ratio):
    return f"{three_digits(ratio, always=True)}x"


def keys_text(keys):
    return f"{keys // 1024}K" if keys % 1024 == 0 else f"{keys:,}"


def problem_key(row):
    """Larger groups later."""
    return row["b"], row["nk"], row["n"], -row["hkv"], row["causal"], row["cache8"]


class Cell:
    """All that ran one problem: rows by their labels. Times are compared within it only."""

    def __init__(self, rows):
        self.rows = {row["label"]: row for row in rows}
        self.any = rows[0]

    def __getitem__(self, label):
        return self.rows.get(label)

    def best(self):
        """PyTorch's fastest."""
        there = [self[f"torch {name}"] for name in BACKENDS if self[f"torch {name}"]]
        return min(there, key=lambda row: row["ms"], default=None)

    def other(self, name):
        """The row that a ratio is against."""
        words = {"best": self.best(), "07": self[BEFORE], "copy": self["copy"]}
        return words[name] if name in words else self[f"13 {name}"] or self[f"torch {name}"]


def cells_of(rows):
    """In the order of batch and keys."""
    groups = {}
    for row in rows:
        groups.setdefault(problem_key(row), []).append(row)
    return [Cell(groups[key]) for key in sorted(groups)]


def of(label, text, key):
    """A cell's text of one contender's figure."""

    def cell(c):
        return text(c[label][key]) if c[label] else "-"

    return cell


def against(name, label=RESULT):
    def cell(c):
        other, mine = c.other(name), c[label]
        if not other or not mine:
            return "-"
        more = f" ({other['variant']})" if name == "best" else ""
        return ratio_text(mine["ratios"].get(name, other["ms"] / mine["ms"])) + more

    return cell


def whole(head, key, text=str):
    return Column(("", head), lambda c: text(c.any[key]))


BATCH, KEYS = whole("B", "b"), whole("keys", "nk", keys_text)
CACHE = whole("K, V, Q, O", "bytes", bytes_text)


def results(label):
    """Time, bandwidth and its share."""
    return [
        Column(("", "time"), of(label, time_text, "ms")),
        Column(("", "TB/s"), of(label, rate_text, "bytes_per_s")),
        Column(("of", "copy"), of(label, share_text, "of_copy")),
    ]


# --- tables ---------------------------------------------------------------------------------------
# Each gives (columns, what they show).


def peers_table(rows):
    columns = [BATCH, KEYS, CACHE, *results(RESULT)]
    columns += [
        Column(("copy of", "as much"), of("copy", time_text, "ms")),
        Column(("against", "PyTorch's best"), against("best")),
        Column(("against", "07 lazy"), against("07")),
    ]
    return columns, cells_of(rows)


def variants_table(rows):
    """Times of all, in the order in which they were met."""
    labels = dict.fromkeys(row["label"] for row in rows)
    columns = [BATCH, KEYS]
    columns += [
        Column(("", label), of(label, time_text, "ms"))
        for label in sorted(labels, key=lambda x: (x == "copy", x.startswith("torch")))
    ]
    return columns, cells_of(rows)


def fp8_table(rows):
    both = {}
    for row in rows:
        both.setdefault((row["b"], row["nk"]), []).append(row)
    # The bytes are those of the cache in 8 bits.
    cells = [Cell(sorted(both[key], key=lambda row: not row["cache8"])) for key in sorted(both)]
    columns = [BATCH, KEYS, CACHE, *results("13 fp8")]
    columns += [
        Column(("once,", "16 bits"), of("13 once", time_text, "ms")),
        Column(("against", "once"), against("once", "13 fp8")),
    ]
    return columns, cells


def by_shape(rows, key):
    """{shape: row} of each problem."""
    groups = {}
    for row in rows:
        groups.setdefault(key(row), {})[row["shape"]] = row
    return list(groups.values())


def pages_table(rows):
    shapes = list(dict.fromkeys(row["shape"] for row in rows if row["shape"] != "none"))

    def factor(shape):
        return lambda group: f"{1 / group[shape]['ratios']['none']:.3f}" if shape in group else "-"

    columns = [
        Column(("", "B"), lambda group: str(group["none"]["b"])),
        Column(("", "keys"), lambda group: keys_text(group["none"]["nk"])),
        Column(("", "contiguous"), lambda group: time_text(group["none"]["ms"])),
    ]
    columns += [Column(("time, pages", f"of {shape}"), factor(shape)) for shape in shapes]
    groups = by_shape(rows, lambda row: (row["nk"], row["b"]))
    return columns, [group for group in groups if "none" in group]


def queries_table(rows):
    """A column of times for each cache, and beside it how often one query's time that is."""
    cells, columns = {}, [Column(("", "queries"), lambda n: str(n))]
    for row in rows:
        if row["label"] == RESULT:
            cells.setdefault((row["b"], row["nk"]), {})[row["n"]] = row
    for (b, nk), of_cache in cells.items():

        def time(n, of_cache=of_cache):
            return time_text(of_cache[n]["ms"]) if n in of_cache else "-"

        def factor(n, of_cache=of_cache):
            if n not in of_cache or 1 not in of_cache:
                return "-"
            return f"{of_cache[n]['ms'] / of_cache[1]['ms']:.2f}"

        name = f"B={b}, {keys_text(nk)}"
        columns += [Column(("", name), time), Column(("of one", "query's"), factor)]
    return columns, sorted({row["n"] for row in rows})


def groups_table(rows):
    columns = [
        Column(("", "group"), lambda c: str(c.any["h"] // c.any["hkv"])),
        CACHE,
        *results(RESULT),
        Column(("splits", "time"), of("13 splits", time_text, "ms")),
        Column(("against", "splits"), against("splits")),
        Column(("against", "PyTorch's best"), against("best")),
    ]
    return columns, cells_of(rows)


def ragged_table(rows):
    def turns(row):
        lengths = row["lengths"]
        few = [lengths[:n] for n in range(1, len(lengths) + 1) if len(lengths) % n == 0]
        return next(part for part in few if part * (len(lengths) // len(part)) == lengths)

    def place(row):
        return row["b"], sum(row["lengths"])

    columns = [
        Column(("", "B"), lambda g: str(g["ragged"]["b"])),
        Column(
            ("lengths", "in turn"), lambda g: ", ".join(map(str, turns(g["ragged"]))), left=True
        ),
        Column(("keys", "in all"), lambda g: f"{sum(g['ragged']['lengths']):,}"),
        Column(("", "time"), lambda g: time_text(g["ragged"]["ms"])),
        Column(("", "TB/s"), lambda g: rate_text(g["ragged"]["bytes_per_s"])),
        Column(("of", "copy"), lambda g: share_text(g["ragged"]["of_copy"])),
        Column(("equal", "lengths"), lambda g: time_text(g["equal"]["ms"])),
        Column(("of that", "time"), lambda g: f"{1 / g['ragged']['ratios']['equal']:.2f}"),
    ]
    return columns, [group for group in by_shape(rows, place) if len(group) == 2]


TABLES = {
    "peers": Table("13 once beside PyTorch and 07 lazy, one query", peers_table, "peers"),
    "variants": Table(
        "all of them, times", variants_table, "peers", printed=lambda row: row["b"] == 1
    ),
    "fp8": Table("K and V in 8 bits, by the program's clock", fp8_table, "fp8"),
    "pages": Table("pages, as a share of the time without", pages_table, "pages"),
    "queries": Table("several queries, causal", queries_table, "queries"),
    "groups": Table("32 query heads, 16K keys, by the heads of a group", groups_table, "groups"),
    "ragged": Table("ragged lengths beside equal ones of the same sum", ragged_table, "ragged"),
}


def facts(result):
    copy = result["copy"]
    return [
        f"{result['device']}, PyTorch {result['torch']}, medians. A copy of "
        f"{bytes_text(copy['bytes'])} (read and written) reaches "
        f"{rate_text(copy['bytes_per_s'])} TB/s; the smallest kernel takes "
        f"{time_text(result['floor_ms'])} by this clock."
    ]


# --- figures in a sentence ------------------------------------------------------------------------


def ratio_of(row, other, rows):
    """Above 1 the row is faster than `other`, of the same problem."""
    if not other:
        raise BadInput("figure 'decode': ratio and overhead need against=")
    if other in row["ratios"]:
        return row["ratios"][other]
    same = [r for r in rows if r["what"] == row["what"] and problem_key(r) == problem_key(row)]
    found = Cell(same).other(other)
    if not found:
        raise BadInput(f"figure 'decode': {row['label']} {row['problem']}: no '{other}' beside it")
    return found["ms"] / row["ms"]


FILTERS = {"what": "peers", "variant": "once"}
WORDS = {"show": "time", "against": None}
FIGURES = {
    "time": (lambda row, *_: row["ms"], time_text),
    "bandwidth": (lambda row, *_: row["bytes_per_s"], rate_text),
    "share": (lambda row, *_: row["of_copy"], share_text),
    "ratio": (ratio_of, ratio_text),
    # By how much the time is longer than that of `other` in its own turns.
    "overhead": (lambda *row: 1 / ratio_of(*row) - 1, percent_text),
}
OF_THE_RUN = {
    "device": lambda result: result["device"],
    "copy": lambda result: rate_text(result["copy"]["bytes_per_s"]),
    "floor": lambda result: time_text(result["floor_ms"]),
}
