"""Tables and the picture of measurements by ./scripts/model, docs/results/model_<gpu>.json."""

from flash_steps.files import read_json
from flash_steps.picture import EDGE, INK, STRONG, Picture
from flash_steps.text import bytes_text, percent_text, three_digits

from .measured import column

LABELS = {"flash": "PyTorch flash", "cudnn": "PyTorch cuDNN", "unfused": "PyTorch unfused"}
ORDER = ("01", "unfused", "06", "08", "flash", "cudnn", "10")
REFERENCE = "flash"  # its update minus its attention is "the rest" for all


def label(name):
    return LABELS.get(name, f"step {name}")


def amdahl(row, reference):
    """Predicted ms: the reference's rest, and this row's attention measured alone."""
    return reference["ms"] - reference["attention_ms"] + row["alone_ms"]


def largest_difference(losses, others):
    """The difference between means of 20 updates."""
    means = [[sum(x[i : i + 20]) / 20 for i in range(0, len(x) - 19, 20)] for x in (losses, others)]
    return max(abs(a - b) for a, b in zip(*means))


def by_length(figure, text):
    """Columns: N, and figure(row, the reference's row) for each name."""

    def of(name):
        def cell(rows):
            found = rows.get(name)
            return figure(found, rows[REFERENCE]) if found else None

        return column(label(name), cell, text)

    first = column("N", lambda rows: rows[REFERENCE]["n"])
    return [first, *map(of, ORDER)]


def off(row, reference):
    return amdahl(row, reference) / row["ms"] - 1


TABLES = {
    "updates": by_length(lambda row, _: row["ms"], lambda ms: three_digits(ms, always=True)),
    "attention": by_length(lambda row, _: row["attention_ms"] / row["ms"], percent_text),
    "amdahl": by_length(off, "{:+.1%}".format),
    "ends": [
        column("attention", lambda row: label(row["name"]), left=True),
        column("blocks", lambda row: "again" if row["how"] == "recomputed" else "kept", left=True),
        column("predicted N", "predicted", "{:,}".format),
        column("found N", "found", "{:,}".format),
        column("off", lambda row: row["predicted"] / row["found"] - 1, "{:+.1%}".format),
        column("free memory", "room_bytes", bytes_text),
    ],
    "training": [
        column("attention", lambda row: label(row["name"]), left=True),
        column("loss, last 20", lambda row: sum(row["losses"][-20:]) / 20, "{:.4f}".format),
        column("largest difference", "difference", "{:.4f}".format),
        column("tokens/s", "tokens_per_s", "{:,}".format),
        column("in attention", "attention", percent_text),
        column("peak", "peak_bytes", bytes_text),
    ],
}


def rows_for(what, rows):
    kind = "updates" if what in ("attention", "amdahl") else what
    return [row for row in rows if row["what"] == kind]


def table(what, rows):
    if what in ("updates", "attention", "amdahl"):
        sizes = sorted({row["n"] for row in rows})
        return TABLES[what], [{r["name"]: r for r in rows if r["n"] == n} for n in sizes]
    if what == "training":
        rows = [
            {**r, "difference": largest_difference(rows[0]["losses"], r["losses"])} for r in rows
        ]
    return TABLES[what], rows


def card(result):
    how = "medians of up to 5 updates after a first one"
    date = result["run"][:10]
    return {"GPU": result["device"], "PyTorch": result["torch"], "timing": how, "date": date}


def picture(path):
    """SVG: an update against N, split into attention and the rest."""
    result = read_json(path)
    names = ORDER[3:]
    rows = table("updates", rows_for("updates", result["rows"]))[1]
    most = max(row["ms"] for found in rows for row in found.values() if row["name"] in names)
    drawn = Picture(f"Attention in an update of GPT-2 small, 32,768 tokens, {result['device']}")
    left, bottom, height, wide = 64, 400, 310, 100
    for i, name in enumerate(names):
        drawn.box(left + 150 * i, 54, 14, 12, STRONG[i])
        drawn.text(left + 150 * i + 20, 64, label(name))
    drawn.box(left + 600, 54, 14, 12, EDGE)
    drawn.text(left + 620, 64, "the rest")
    for tick in range(0, int(most) + 1, 50):
        y = bottom - height * tick / most
        drawn.curve([(left, y), (left + wide * len(rows), y)], EDGE)
        drawn.text(left - 8, y + 4, f"{tick}{' ms' * (tick == 0)}", "end quiet")
    for j, found in enumerate(rows):
        x = left + wide * j + 10
        n = found[REFERENCE]["n"]
        drawn.text(x + 38, bottom + 18, f"N = {n}", "middle")
        for i, name in enumerate(names):
            row = found[name]
            rest, whole = (
                height * ms / most for ms in (row["ms"] - row["attention_ms"], row["ms"])
            )
            drawn.box(x + 20 * i, bottom - rest, 17, rest, EDGE)
            drawn.box(x + 20 * i, bottom - whole, 17, whole - rest, STRONG[i])
    drawn.curve([(left, bottom), (left + wide * len(rows), bottom)], INK)
    return drawn.svg(f"of {path.rsplit('/', 1)[-1]}, {result['run'][:10]}")
