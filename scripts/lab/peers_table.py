"""The table of peers.py, and the sentences below it."""

import math
import statistics
import textwrap

from flash_steps.problems import DIRECTIONS, problem_text
from flash_steps.results import Run
from flash_steps.standing import matmul_of, repeats_of
from flash_steps.text import Column, flops_text, markdown_table, percent_text, text_table, time_text

from .torch_attention import BACKENDS

FP32_NOTE = (
    "fp32: math multiplies on the CUDA cores (no TF32), as the steps do; efficient runs 3 TF32 "
    "products on the tensor cores for each fp32 one, so it is not a like-for-like comparison."
)


def columns_for(rows):
    """For rows of one type."""
    met = dict.fromkeys(name for row in rows for name in row["ratios"])
    backends = [name for name in BACKENDS if name in met]
    backends += [name for name in met if name not in BACKENDS]  # libraries of others

    def ratio(name):
        return lambda row: f"{row['ratios'][name]:.3g}x" if name in row["ratios"] else "-"

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
            short=lambda row: {"forward": "fwd", "backward": "bwd"}[row["direction"]],
        ),
        Column(
            ("", "who"), lambda row: row["label"], left=True, short=lambda row: short_label(row)
        ),
        Column(("", "time"), lambda row: time_text(row["ms"])),
        Column(("", "TFLOP/s"), lambda row: flops_text(row["flops_per_s"])),
        Column(
            (f"of {rows[0]['dtype']}", "matmul"),
            lambda row: percent_text(row["of_matmul"]),
        ),
    ] + [Column(("against", name), ratio(name)) for name in backends]


def short_label(row):
    if not row["step"]:
        return row["label"]
    return Run({"step": row["step"], "variant": row["variant"]}, row["direction"]).short_label


def in_order(rows):
    """By type, problem, then direction; PyTorch's backends and other libraries, which each step
    meets anew, once: the median of their times."""
    groups = {}
    for row in rows:
        groups.setdefault(
            (
                row["dtype"],
                row["d"],
                row["causal"],
                row["n"],
                DIRECTIONS.index(row["direction"]),
                row["problem"],
            ),
            {},
        ).setdefault(row["label"], []).append(row)
    ordered = []
    for key in sorted(groups):
        ours = {label for label, same in groups[key].items() if same[0]["step"]}
        if not ours:
            continue
        for label in sorted(groups[key], key=lambda label, ours=ours: label not in ours):
            same = groups[key][label]
            ms = statistics.median(row["ms"] for row in same)
            ordered.append(min(same, key=lambda row: abs(row["ms"] - ms)))
    return ordered


def ratios_of(row, name):
    """Of the runs in which this backend ran: it may have had too little memory in one."""
    return [run["ratios"][name] for run in repeats_of(row) if name in run["ratios"]]


def least_of(rows, name):
    """(the least ratio of all runs, its row, how many runs with this backend each row has at
    least)."""
    found = [ratios_of(row, name) for row in rows]
    ratio, i = min((min(ratios), i) for i, ratios in enumerate(found))
    return ratio, rows[i], min(map(len, found))


def runs_text(count):
    return "1 run" if count == 1 else f"{count} runs"


def means_of(rows):
    """One line for each variant and direction with three problems or more: the geometric means of
    its ratios, and the least."""
    groups = {}
    for row in rows:
        for name in row["ratios"]:
            groups.setdefault((row["label"], row["direction"], row["dtype"]), {}).setdefault(
                name, []
            ).append(row)
    lines = []
    for (label, direction, dtype), backends in groups.items():
        parts = []
        for name, found in backends.items():
            if len(found) > 2:
                mean = statistics.geometric_mean(row["ratios"][name] for row in found)
                least, where, count = least_of(found, name)
                parts.append(
                    f"{mean:.3g}x {name} (least {least:.3g}x in {runs_text(count)}, "
                    f"{problem_text(where, omit=('B', 'H', 'type'))})"
                )
        if parts:
            lines.append(
                f"Geometric mean of {len(found)} problems, {label}, {dtype} {direction}: "
                + ", ".join(parts)
                + "."
            )
    return lines


def errors_of(rows):
    """The largest errors of all outputs, as a sentence."""
    parts = []
    for what, direction in (("O", "forward"), ("gradients", "backward")):
        largest = {}
        for row in rows:
            if row["direction"] == direction:
                name = row["label"] if row["step"] else row["variant"]
                error = max(
                    math.inf if value is None else value
                    for tensor, value in row["errors"].items()
                    if tensor != "LSE"
                )
                largest[name] = max(error, largest.get(name, 0))
        if largest:
            parts.append(f"{what} " + ", ".join(f"{name} {e:.1e}" for name, e in largest.items()))
    return f"Largest error against fp64, {rows[0]['dtype']}: " + "; ".join(parts) + "."


def runs_of(rows):
    """A sentence where these rows, of one type, are of several runs, each with its own matmul."""
    rates = sorted(matmul_of(run) for row in rows for run in repeats_of(row) if run["of_matmul"])
    runs = [rate for i, rate in enumerate(rates) if i == 0 or rate > rates[i - 1] * (1 + 1e-4)]
    if len(runs) < 2:
        return []
    counts = sorted({len(repeats_of(row)) for row in rows if row["step"]})
    if counts[-1] > 1:
        return [
            f"Medians of {' to '.join(map(str, counts))} runs, in which the {rows[0]['dtype']} "
            f"matmul reached {flops_text(runs[0])} to {flops_text(runs[-1])} TFLOP/s."
        ]
    return [
        f"These rows come from {len(runs)} runs, in which the {rows[0]['dtype']} matmul reached "
        f"{' and '.join(flops_text(rate) for rate in runs)} TFLOP/s. Each ratio is of one run; "
        "do not compare times of different runs."
    ]


def tables_and_notes(result):
    """The rows of each type, in order, and what is to be read below them."""
    rows = in_order(result["rows"])
    by_type = {}
    for row in rows:
        by_type.setdefault(row["dtype"], []).append(row)
    errors = map(errors_of, by_type.values())
    return by_type.values(), [
        f"{result['device']}, PyTorch {result['torch']}, {result['rounds']} rounds of "
        f"{result['iters']} runs, medians; above 1x the step is faster. " + " ".join(errors),
        *[note for same in by_type.values() for note in runs_of(same)],
        *([FP32_NOTE] if "fp32" in by_type else []),
        *dict.fromkeys(result["notes"]),
        *means_of(rows),
    ]


def text_of(result):
    tables, notes = tables_and_notes(result)
    return "\n".join(
        [text_table(columns_for(rows), rows) + "\n" for rows in tables]
        + [textwrap.fill(note, 100) for note in notes]
    )


def markdown_of(result):
    tables, notes = tables_and_notes(result)
    return "\n\n".join([markdown_table(columns_for(rows), rows) for rows in tables] + notes)
