"""Tables, figures for sentences and the picture of what `maintain ring` measured."""

from .command import BadInput
from .measurement_tables import Table
from .problems import flops_of
from .text import Column, bytes_text, flops_text, percent_text, time_text

NAME, STEP = "ring", "14_ring"


# --- cells ----------------------------------------------------------------------------------------


def tokens_text(row):
    return f"{row['tokens'] // 1024}K"


def mask_text(row):
    return "causal" if row["causal"] else "full"


def rate(row, way):
    """FLOP/s of a GPU."""
    flops = flops_of(row, "forward")
    if way == "both":
        flops *= 3.5
    return flops / row["ranks"] / (times_of(row, way)["ms"] * 1e-3)


def hidden(row):
    """The share of the last rank's messages, in one forward and backward, that pass while it
    computes."""
    overlap = row["overlap"]
    return overlap["both_ms"] / overlap["messages_ms"] if overlap["messages_ms"] else 1


def times(way, name):
    return [
        Column((name, "time"), lambda row: time_text(row[way]["ms"])),
        Column((name, "of ideal"), lambda row: percent_text(row[way]["share"])),
        Column((name, "least"), lambda row: percent_text(row[way]["least"])),
    ]


TOKENS = Column(("tokens", "a GPU"), tokens_text)
MASK = Column(("", "mask"), mask_text, left=True)
VARIANT = Column(("", "variant"), lambda row: row["variant"], left=True)
HEADS = Column(("", "H"), lambda row: str(row["h"]))
CARRIER = Column(("", "messages by"), lambda row: row["carrier"], left=True)
SHARES = [*times("forward", "forward"), *times("both", "with backward")]
HIDDEN = Column(("messages", "hidden"), lambda row: percent_text(hidden(row)))
SENT = Column(("sent", "by a GPU"), lambda row: bytes_text(max(row["sent"])))


def order(row):
    return row["n"], not row["causal"], row["variant"], row.get("channels", 0)


def table(of, title, *columns):
    return Table(title, lambda rows: (columns, sorted(rows, key=order)), of)


TABLES = {
    "share": table("share", "fused: share of the ideal", TOKENS, MASK, HEADS, *SHARES, HIDDEN),
    "variants": table("variants", "the other variants", VARIANT, MASK, TOKENS, *SHARES, SENT),
    "nccl": table("nccl", "messages by NCCL", CARRIER, *SHARES, HIDDEN),
    "hop": table(
        "hop",
        "a hop alone, on one GPU",
        Column(("", "rows"), tokens_text),
        MASK,
        Column(("", "forward"), lambda row: time_text(row["forward"]["ms"])),
        Column(("TFLOP/s", "forward"), lambda row: flops_text(rate(row, "forward"))),
        Column(("with", "backward"), lambda row: time_text(row["both"]["ms"])),
        Column(("TFLOP/s", "with backward"), lambda row: flops_text(rate(row, "both"))),
    ),
    "long": table(
        "long",
        "a long sequence",
        TOKENS,
        Column(("", "problem"), lambda row: row["problem"], left=True),
        Column(("", "forward"), lambda row: time_text(row["forward"]["ms"])),
        Column(("TFLOP/s", "a GPU"), lambda row: flops_text(rate(row, "forward"))),
        Column(("with", "backward"), lambda row: time_text(row["both"]["ms"])),
        Column(("memory", "a GPU"), lambda row: bytes_text(row["bytes_each"])),
    ),
}


def said(row):
    """A line of the run."""
    parts = []
    for way, name in (("forward", "forward"), ("both", "with backward")):
        parts.append(f"{name} {time_text(row[way]['ms'])}")
        if "share" in row[way]:
            parts[-1] += f" {percent_text(row[way]['share'])}"
    return ", ".join(parts)


def facts(result):
    """None of a run of which nothing was measured."""
    return [
        f"{result['ranks']} x {result['device']}, {result['carrier']}; medians of "
        f"{result['iters']} batches of runs, in up to {result['turns']} turns."
    ] * bool(result["carrier"])


# --- figures in a sentence ------------------------------------------------------------------------


def times_of(row, way):
    if way not in ("forward", "both"):
        raise BadInput(f"figure 'ring': way={way}: choose from forward, both")
    return row[way]


FILTERS = {"what": "share"}
WORDS = {"show": "share", "way": "forward"}
FIGURES = {
    "time": (lambda row, way, _: times_of(row, way)["ms"], time_text),
    "share": (lambda row, way, _: times_of(row, way)["share"], percent_text),
    "least": (lambda row, way, _: times_of(row, way)["least"], percent_text),
    "rate": (lambda row, way, _: rate(row, way), flops_text),
    "memory": (lambda row, *_: row["bytes_each"], bytes_text),
    "sent": (lambda row, *_: max(row["sent"]), bytes_text),
    "hidden": (lambda row, *_: hidden(row), percent_text),
}
OF_THE_RUN = {
    "device": lambda result: f"{result['ranks']} x {result['device']}",
    "carrier": lambda result: result["carrier"],
}
