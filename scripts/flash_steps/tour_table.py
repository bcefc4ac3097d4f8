"""The tour's table: a row per step's result, what reaches HBM, the factor against the first."""

import collections

from .explorer_runs import dtype_of
from .gpu_table import sms_of
from .problems import problem_text
from .results import HERO, busy_sms, estimated_time, get, limited_by, notes_on_estimates, verdict
from .text import Column, bytes_text, for_screen, text_table, three_digits, time_text

NAMES = {label: words[0] for label, words in HERO.items()} | {
    "05 recompute bwd": "P recomputed",
    "06 backward bwd": "FlashAttention-2",
    "08 roles bwd": "Tensor cores",
    "11 columns bwd": "TMA and wgmma",
    "13 warps": "Decoding",
    "13 fp8": "Decoding, fp8",
    "15 window": "Window",
    "15 window bwd": "Window",
    "15 wgmma": "Window, Hopper",
    "15 wgmma bwd": "Window, Hopper",
}
WORDS = {"start": "launch"}  # of a limiter


def number_of(row):
    return row.any.label.split()[0]


def name_of(row):
    """ "06 FlashAttention-2"; its label, where it is no step's known result."""
    words = NAMES.get(row.any.label)
    return f"{number_of(row)} {words}" if words else row.any.label


def time_of(row):
    return row.estimated_ms if row.ms is None else row.ms


def hbm_of(row):
    return row.hbm_measured or row.hbm_modelled


def times(a, b):
    return f"{three_digits(a / b, always=True)}x" if a and b else "-"


def sizes_of(row):
    return problem_text(row.any.data["problem"], {"type"}).replace(" fp8 cache", "")


def groups_of(rows):
    """[(words, rows)]: forwards, backwards, then what solves another problem than the first row,
    which is compared with its step's first variant. Rows are in reading order: a step's result is
    its last. Of a step that several ranks share only what they ran: one rank repeats others."""
    last = {(row.any.data["step"], row.any.direction): row for row in rows}
    first = {(row.any.data["step"], row.any.direction): row for row in reversed(rows)}
    found = collections.defaultdict(list)
    for row in rows:
        sizes, way, step = sizes_of(row), row.any.direction, row.any.data["step"]
        shown = last[step, way] is row or (sizes != sizes_of(rows[0]) and first[step, way] is row)
        repeats = step == "14_ring" and not row.any.get("ranks")
        if shown and way != "prepare" and not repeats:
            found[sizes != sizes_of(rows[0]), way != "forward", sizes].append(row)
    order = sorted(found, key=lambda place: (place[0], not place[0] and place[1]))
    ways = ("forward", "backward")
    return [
        (
            sizes + ", backward" * backward if other else ways[backward],
            found[other, backward, sizes],
        )
        for other, backward, sizes in order
    ]


def parts_of(row):
    """{part: milliseconds} of all kernels, as estimated."""
    found = collections.Counter()
    for kernel in get(row.estimate, "kernels") or []:
        for part, share in kernel["parts"].items():
            found[part] += share * kernel["ms"]
    return found


def has_a_block_per_head(row):
    p, kernel = row.any.data["problem"], row.limiting_kernel
    return bool(kernel) and kernel["blocks"] == (row.estimated_heads or p["b"] * p["h"])


def why_slower(row, before):
    """Of a row that takes longer than the one before it in its group; else "". As the estimate has
    it: too few blocks, or the part that works, or waits, longest beyond what it did before."""
    if before is None or not (time_of(row) or 0) > (time_of(before) or 0):
        return ""
    if has_a_block_per_head(row) and not has_a_block_per_head(before):
        return "one block per head"
    more = (parts_of(row) - parts_of(before)).most_common(1)
    words = f"{WORDS.get(more[0][0], more[0][0])} +{time_text(more[0][1])}" if more else "slower"
    same = number_of(row) == number_of(before)
    return f"{words} since {before.any.variant if same else number_of(before)}"


def limiter(row):
    """ "tensor cores"; "waiting, 32 of 132 SMs busy" where most have no block."""
    word, busy = limited_by(row), busy_sms(row)
    there = row.estimate and sms_of(row.estimate["gpu"])
    few = there and busy != "-" and 2 * int(busy) < there
    return WORDS.get(word, word) + (f", {busy} of {there} SMs busy" if few else "")


def columns_for(groups):
    rows = [row for _, group in groups for row in group]
    first = {id(row): group[0] for _, group in groups for row in group}
    before = {id(row): other for _, group in groups for other, row in zip(group, group[1:])}

    def factor(row):
        kind = time_of if row.ms and first[id(row)].ms else lambda r: r.estimated_ms
        return times(kind(first[id(row)]), kind(row))

    def why(row):
        return why_slower(row, before.get(id(row)))

    columns = [
        Column(("", "step"), name_of, left=True),
        Column(("", "type"), dtype_of, left=True),
        Column(("", "HBM"), lambda r: bytes_text(hbm_of(r))),
        Column(("", "estimated"), estimated_time),
        Column(("", "measured"), lambda r: time_text(r.ms)),
        Column(("", "factor"), factor),
        Column(("", "limited by"), lambda r: why(r) or limiter(r), left=True),
        Column(("", "check"), verdict),
    ]
    hidden = set() if any(row.ms for row in rows) else {"measured"}
    hidden |= {"estimated"} if all(row.ms for row in rows) else set()
    hidden |= {"check"} if all(verdict(row) == "ok" for row in rows) else set()
    return [column for column in columns if column.title not in hidden]


def table_of(groups):
    rows = [row for _, group in groups for row in group]
    lines = text_table(columns_for(groups), rows).split("\n")
    shown, lines = lines[1:3], lines[3:]  # the head's first line is empty
    for words, group in groups:
        shown += [f"{words} (factor against {number_of(group[0])})", *lines[: len(group)]]
        lines = lines[len(group) :]
    return shown + lines


def heading(row, measured_on):
    text = f"Bytes of {sizes_of(row)}"
    if row.estimate:
        heads = row.estimated_heads
        gpu = row.estimate["gpu"]
        gpu = f"{'a' if gpu[0] in 'BTV' else 'an'} {gpu}"
        text += f"; times estimated for {f'{heads} heads, on ' if heads else ''}{gpu}"
    return text + (f"; measured on {measured_on}" if measured_on else "")


def notes_of(rows, shown):
    """Sentences with figures, for below the table."""
    named = {row.any.label: row for row in rows}
    notes = notes_on_estimates(shown)
    moved, kept = (named.get(x) for x in ("04 fused", "06 registers"))
    if moved and kept and hbm_of(moved) and hbm_of(moved) < 1.1 * hbm_of(kept):
        notes.append(
            "04: O moves once per tile of keys. At this N the L2 holds it; an H200 full of heads "
            "of N = 4096 sends it through HBM (the picture in README.md)"
        )
    fp8, bf16, prepare = (named.get(x) for x in ("12 late", "10 scheduled", "12 late prep"))
    if fp8 and bf16 and prepare and fp8.estimate and bf16.estimate:
        notes.append(
            f"12: quantising Q, K and V takes {time_text(time_of(prepare))} more. This estimate "
            "was never compared with a measurement; on an H200 12 is faster than 10 "
            "(docs/results/h200.md)"
        )
    if any(row.any.data["step"] == "14_ring" for row in rows if row not in shown):
        notes.append(
            "14: one rank repeats other steps; with ranks: "
            "mpirun --oversubscribe -n 4 build/sim/steps/14_ring --causal --n 1024"
        )
    return notes


def learned(rows):
    """One sentence with the figures of the forwards: what the bytes and the time became; or ""."""
    named = {row.any.label: row for row in rows if time_of(row)}
    first, tiled, kept = (named.get(x) for x in ("01 naive", "02 registers", "06 registers"))
    if not (first and tiled and kept):
        return ""
    said = (
        f"tiles in shared memory (02) are {times(time_of(first), time_of(tiled))} as fast as 01 "
        "with the same HBM bytes; FlashAttention-2 (06) keeps S and P on the chip: "
        f"{times(hbm_of(tiled), hbm_of(kept))} fewer HBM bytes than 02, and "
        f"{times(time_of(tiled), time_of(kept))} as fast"
    )
    if best := named.get("10 scheduled"):
        factor = times(time_of(first), time_of(best))
        said += f"; on tensor cores, FlashAttention-3 (10) is {factor} as fast as 01"
    return f"learned: {said}."


def tour_screen(rows):
    """(heading, table and notes; the sentence that the tour ends with)"""
    groups = groups_of(rows)
    shown = [row for _, group in groups for row in group]
    device = next((row.gpu_get("device.name") for row in shown if row.gpu), None)
    lines = [for_screen(heading(shown[0], device)), "", *table_of(groups), ""] if shown else []
    lines += [for_screen(note) for note in notes_of(rows, shown)]
    return "\n".join(lines).rstrip("\n"), for_screen(learned(shown))
