"""Tables, figures for sentences and the picture of what `maintain ring` measured."""

import glob
import os
import textwrap

from .command import BadInput
from .decode_tables import range_text
from .files import read_json
from .problems import flops_of
from .standing import standing
from .text import Column, bytes_text, flops_text, markdown_table, text_table, time_text

STEP = "14_ring"
NOT_MEASURED = "Not measured yet: run `./scripts/maintain ring`."


def load(folder):
    """The results in ring_*.json of a folder; each row says its `standing`."""
    found = [read_json(path) for path in sorted(glob.glob(os.path.join(folder, "ring_*.json")))]
    for result in found:
        for row in result["rows"]:
            row["standing"] = standing(row["step"], row.get("text"))
    return found


# --- cells ----------------------------------------------------------------------------------------


def share_text(share):
    return f"{100 * share:.1f}%"


def tokens_text(row):
    return f"{row['tokens'] // 1024}K"


def mask_text(row):
    return "causal" if row["causal"] else "full"


def rate(row, way):
    """FLOP/s of a GPU."""
    flops = flops_of(row, "forward")
    if way == "both":
        flops *= 3.5
    return flops / row["ranks"] / (row[way]["ms"] * 1e-3)


def hidden(row):
    """The share of the last rank's messages, in one forward and backward, that pass while it
    computes."""
    overlap = row["overlap"]
    return overlap["both_ms"] / overlap["messages_ms"] if overlap["messages_ms"] else 1


def times(way, name):
    return [
        Column((name, "time"), lambda row: time_text(row[way]["ms"])),
        Column((name, "of ideal"), lambda row: share_text(row[way]["share"])),
        Column((name, "least"), lambda row: share_text(row[way]["least"])),
    ]


TOKENS = Column(("tokens", "a GPU"), tokens_text)
MASK = Column(("", "mask"), mask_text, left=True)
VARIANT = Column(("", "variant"), lambda row: row["variant"], left=True)
SHARES = [*times("forward", "forward"), *times("both", "with backward")]
HIDDEN = Column(("messages", "hidden"), lambda row: share_text(hidden(row)))
SENT = Column(("sent", "by a GPU"), lambda row: bytes_text(max(row["sent"])))
TABLES = {
    "share": [TOKENS, MASK, Column(("", "H"), lambda row: str(row["h"])), *SHARES, HIDDEN],
    "variants": [VARIANT, MASK, TOKENS, *SHARES, SENT],
    "nccl": [Column(("", "messages by"), lambda row: row["carrier"], left=True), *SHARES, HIDDEN],
    "long": [
        TOKENS,
        Column(("", "problem"), lambda row: row["problem"], left=True),
        Column(("", "forward"), lambda row: time_text(row["forward"]["ms"])),
        Column(("TFLOP/s", "a GPU"), lambda row: flops_text(rate(row, "forward"))),
        Column(("with", "backward"), lambda row: time_text(row["both"]["ms"])),
        Column(("memory", "a GPU"), lambda row: bytes_text(row["bytes_each"])),
    ],
}
TITLES = {
    "share": "zigzag: share of the ideal",
    "variants": "the other variants",
    "nccl": "messages by NCCL",
    "long": "a long sequence",
}


def order(row):
    return row["n"], not row["causal"], row["variant"], row.get("channels", 0)


def table_of(what, rows):
    if what not in TABLES:
        raise BadInput(f"table 'ring': what={what}: choose from {', '.join(TABLES)}")
    return TABLES[what], sorted((row for row in rows if row["what"] == what), key=order)


def said(row):
    """A line of the run."""
    parts = []
    for way, name in (("forward", "forward"), ("both", "with backward")):
        parts.append(f"{name} {time_text(row[way]['ms'])}")
        if "share" in row[way]:
            parts[-1] += f" {share_text(row[way]['share'])}"
    return ", ".join(parts)


def facts(result):
    return (
        f"{result['ranks']} x {result['device']}, {result['carrier']}; medians of "
        f"{result['iters']} runs, in up to {result['turns']} turns."
    )


def text_of(result):
    parts = []
    for what in TABLES:
        columns, rows = table_of(what, result["rows"])
        if rows:
            parts.append(f"{TITLES[what]}\n\n{text_table(columns, rows)}\n")
    lines = [facts(result), *result["notes"], *(f"FAILED: {line}" for line in result["failures"])]
    if result["left_out"]:
        lines.append(f"Left out, there was no time: {', '.join(result['left_out'])}.")
    return "\n".join(parts + [textwrap.fill(line, 100) for line in lines])


def markdown_of(what, rows):
    return markdown_table(*table_of(what, rows))


# --- figures in a sentence ------------------------------------------------------------------------

FIGURES = {
    "time": lambda row, way: (row[way]["ms"], time_text),
    "share": lambda row, way: (row[way]["share"], share_text),
    "least": lambda row, way: (row[way]["least"], share_text),
    "rate": lambda row, way: (rate(row, way), flops_text),
    "memory": lambda row, way: (row["bytes_each"], bytes_text),
    "sent": lambda row, way: (max(row["sent"]), bytes_text),
    "hidden": lambda row, way: (hidden(row), share_text),
}
OF_THE_RUN = {
    "device": lambda result: f"{result['ranks']} x {result['device']}",
    "carrier": lambda result: result["carrier"],
}


def figure_of(show, way, result, passing):
    """The text of one figure; way: forward, or both of forward and backward."""
    if show in OF_THE_RUN:
        return OF_THE_RUN[show](result)
    if show not in FIGURES or way not in ("forward", "both"):
        known = ", ".join((*FIGURES, *OF_THE_RUN))
        raise BadInput(f"figure 'ring': show={show} way={way}: choose from {known}; forward, both")
    found = [FIGURES[show](row, way) for row in passing]
    return range_text([value for value, _ in found], found[0][1])
