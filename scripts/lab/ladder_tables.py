"""Tables of steps/README.md and README.md: all rungs at one problem each, and the fastest beside
their fastest rivals."""

import functools
import os
import statistics

from flash_steps.command import BadInput
from flash_steps.gpu_table import model_of
from flash_steps.results import total
from flash_steps.rungs import SECTIONS, ladder
from flash_steps.standing import standing_of
from flash_steps.steps import ROOT, numbered_steps, program_of
from flash_steps.text import bytes_text, flops_text, time_text

from . import measured

SIM_BUILD = os.path.join(ROOT, "build", "sim")
HEADS = ("rung", "HBM", "requested", "time", "TFLOP/s", "idea")
LIBRARIES = "cuDNN, FlashAttention-3 and -4"
BF16 = "cuDNN, FlashAttention-2 (bf16)"
MASKS = {
    "flex": "FlexAttention",
    "varlen": "`varlen_attn`",
    "flash3": "FlashAttention-3",
    "flash4": "FlashAttention-4",
}
# What, the name of its results, step, variant, direction (None: not in the rows), the rivals' keys
# of `ratios`, of which each problem's fastest counts, and their names: in words, or of each key, of
# which those with a ratio are shown.
FASTEST = (
    ("forward", "rivals", "10_warp_specialized", "scheduled", "forward", "best", LIBRARIES),
    ("backward", "rivals", "11_hopper_backward", "direct", "backward", "best", LIBRARIES),
    ("forward, masks", "masks", "15_masks", "wgmma", "forward", " ".join(MASKS), MASKS),
    ("backward, masks", "masks", "15_masks", "wgmma", "backward", " ".join(MASKS), MASKS),
    ("decode", "decode", "13_decode", "once", None, "math flash cudnn", "PyTorch's backends"),
    ("forward, fp8", "peers", "12_fp8", "late", "forward", "flash cudnn", BF16),
)


def built():
    return all(os.path.exists(program_of(SIM_BUILD, step)) for step in numbered_steps())


@functools.cache
def rungs():
    return ladder(SIM_BUILD)


def cells_of(rung):
    """Bytes per query head: in brackets those that the formulas predict. Times with ~ are
    estimated. Empty: not measured."""
    row, label = rung.row, f"[{rung.label[:2]}]{rung.label[2:]}"
    if not row:
        return [label, *[""] * 4, rung.idea]
    ms = row.ms or row.estimated_ms
    guess = "~" if rung.estimated_for else ""

    def per_head(counts):
        return unbroken(bytes_text(total(counts) / row.heads)) if counts else ""

    predicted = per_head(row.any.get("traffic.hbm.predicted"))
    return [
        label,
        per_head(row.gpu_get("traffic.hbm.measured")) or predicted and f"({predicted})",
        per_head(row.any.get("traffic.requested.predicted")),
        guess + unbroken(time_text(ms)) if ms else "",
        guess + flops_text(row.any.get("flops") / (ms * 1e-3)) if ms else "",
        rung.idea,
    ]


def as_columns(lines, left):
    """Markdown in columns, also as a text; the last column, of prose, is as wide as it is."""
    widths = [max(map(len, column)) for column in zip(*lines)][:-1]

    def text(cells, last):
        padded = [
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths))
        ]
        return f"| {' | '.join(padded)} | {last} |"

    rule = ["-" * (w - (at not in left)) + ":" * (at not in left) for at, w in enumerate(widths)]
    head, *rows = [text(line[:-1], line[-1]) for line in lines]
    return "\n".join([head, text(rule, "---"), *rows])


def unbroken(text):
    """A number and its unit on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def ladder_table(filters):
    """The problem and the rungs of one section, and reasons_of those with a time."""
    name = filters.get("section", "").replace("_", " ")
    sections = {section.name: section for section in SECTIONS}
    if name not in sections:
        known = ", ".join(sections).replace("masks bwd", "masks_bwd")
        raise BadInput(f"table 'ladder': section={name}: choose from {known}")
    shown = rungs()[name]
    timed = [rung for rung in shown if rung.row and (rung.row.ms or rung.estimated_for)]
    found = [(rung.label, standing_of(rung.row.any)) for rung in timed]
    table = as_columns([HEADS, *map(cells_of, shown)], left=[0])
    words = sections[name].words
    return f"{words[0].upper()}{words[1:]}:\n\n{table}", found


def beside(row, rivals):
    """(the ratio to the fastest of these rivals, that of each repeat)"""

    def least(ratios):
        return min(ratios[name] for name in rivals if name in ratios)

    return least(row["ratios"]), [least(run["ratios"]) for run in measured.repeats_of(row)]


def fastest_table(results, filters):
    """A line per row of FASTEST, and reasons_of."""
    device = filters.get("device", "").replace("_", " ")
    lines, found = [("what", "step", "against the fastest of", "mean", "least", "measured")], []
    for words, name, step, variant, direction, rivals, names in FASTEST:
        mine = [result for result in results.of[name] if result["device"] == device]
        key = step, variant, direction
        rows = [
            row
            for result in mine
            for row in result["rows"]
            if (row["step"], row.get("variant"), row.get("direction")) == key
            and row.get("what", "peers") == "peers"
        ]
        if not rows:
            raise BadInput(f"table 'fastest': no result of {step} {variant} on '{device}'")
        ratios = [beside(row, rivals.split()) for row in rows]
        mean = statistics.geometric_mean(ratio for ratio, _ in ratios)
        least = min(min(repeats) for _, repeats in ratios)
        text = map(measured.ratio_text, (mean, least))
        label = f"{step[:2]} {variant}"
        if names is MASKS:
            there = {name for row in rows for name in row["ratios"]}
            names = ", ".join(words for name, words in MASKS.items() if name in there)
            names = names.replace("-3, FlashAttention-4", "-3 and -4")
        of_file = mine[0].get("date") or mine[0]["run"]
        date = max(row.get("date") or of_file for row in rows)[:10]
        where = f"{model_of(device)}, {len(rows)} problems, {date}"
        lines.append((words, label, names, *text, where))
        found += [(label, row["standing"]) for row in rows]
    return as_columns(lines, left=[0, 1, 2]), found
