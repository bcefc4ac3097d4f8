"""The tour's table: one row per step's result, its bytes, and the factor against the first. On a
GPU with measured times and rates; estimates in parentheses are for what the GPU does not run."""

import collections

from .explorer_runs import dtype_of
from .gpu_table import sms_of
from .problems import problem_text
from .results import (
    HERO,
    HERO_N,
    busy_sms,
    estimated_time,
    get,
    limited_by,
    moves_a_cache,
    notes_on_estimates,
    speed,
    steps_where,
    total,
    verdict,
)
from .text import Column, bytes_text, for_screen, text_table, three_digits, time_text

NAMES = {label: words[0] for label, words in HERO.items()} | {
    "05 recompute bwd": "P recomputed",
    "06 backward bwd": "FlashAttention-2",
    "08 roles bwd": "Tensor cores",
    "11 columns bwd": "TMA and wgmma",
    "11 direct bwd": "TMA and wgmma",
    "13 early": "Decoding",
    "13 fp8": "Decoding, fp8",
    "15 window": "Window",
    "15 window bwd": "Window",
    "15 wgmma": "Window, Hopper",
    "15 wgmma bwd": "Window, Hopper",
    "17 pairs": "Latent attention",
}
WORDS = {"start": "launch"}  # of a limiter


def number_of(row):
    return row.any.label.split()[0]


def name_of(row):
    """ "06 FlashAttention-2"; the label if it is no step's known result."""
    words = NAMES.get(row.any.label)
    return f"{number_of(row)} {words}" if words else row.any.label


def time_of(row):
    return row.estimated_ms if row.ms is None else row.ms


def hbm_of(row):
    predicted = total(row.gpu_get("traffic.hbm.predicted"))
    return row.hbm_measured or row.hbm_modelled or predicted


def per_head(row, moved):
    return moved and moved / row.heads


def times(a, b):
    return f"{three_digits(a / b, always=True)}x" if a and b else "-"


def sizes_of(row, *omit):
    return problem_text(row.any.data["problem"], {"type", *omit}).replace(" fp8 cache", "")


def problem_of(row):
    """What rows of one problem share. With a measured GPU the simulator runs fewer heads."""
    return sizes_of(row, "B", "H", "Hkv"), row.estimated_heads or row.heads


def groups_of(rows):
    """[(words, rows)]: forwards, backwards, then rows of other problems than the first row, which
    are compared with their step's first variant. Rows are in reading order: a step's result is its
    last. Of a step that several ranks share only their runs: one rank repeats others."""
    words = {}
    last = {(row.any.data["step"], row.any.direction): row for row in rows}
    first = {(row.any.data["step"], row.any.direction): row for row in reversed(rows)}
    found = collections.defaultdict(list)
    for row in rows:
        sizes, way, step = problem_of(row), row.any.direction, row.any.data["step"]
        words.setdefault(sizes, sizes_of(row))
        other = sizes != problem_of(rows[0])
        shown = last[step, way] is row or (other and first[step, way] is row)
        repeats = step == "14_ring" and not row.any.get("ranks")
        if shown and way != "prepare" and not repeats:
            found[other, way != "forward", sizes].append(row)
    order = sorted(found, key=lambda place: (place[0], not place[0] and place[1]))
    ways = ("forward", "backward")
    return [
        (
            words[sizes] + ", backward" * backward if other else ways[backward],
            found[other, backward, sizes],
        )
        for other, backward, sizes in order
    ]


def out_of_order(groups):
    """Measured rows that take a tenth longer than one above, except 04, which rereads its O."""
    found = []
    for _, rows in groups:
        best = None
        for row in rows:
            if row.ms and best and row.ms > 1.1 * best.ms and number_of(row) != "04":
                found.append(f"{row.any.label} takes longer than {best.any.label}")
            best = min((r for r in (best, row) if r and r.ms), key=lambda r: r.ms, default=None)
    return found


def parts_of(row):
    """{part: milliseconds} of all kernels, by the estimate."""
    found = collections.Counter()
    for kernel in get(row.estimate, "kernels") or []:
        for part, share in kernel["parts"].items():
            found[part] += share * kernel["ms"]
    return found


def has_a_block_per_head(row):
    kernel = row.limiting_kernel
    return bool(kernel) and kernel["blocks"] == (row.estimated_heads or row.heads)


def why_slower(row, before):
    """Why a row is slower than the previous one, else "": too few blocks, or the part that grew."""
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


def rate(row):
    if moves_a_cache(row) or not row.flops_per_s:
        return speed(row)
    return three_digits(row.flops_per_s / 1e12, always=True)


def share(row):
    """Shares of what was measured on this card; None where unknown."""
    roofs = row.gpu_get("roofs") or {}
    if moves_a_cache(row):
        roof, reached = roofs.get("copy_bytes_per_s"), row.bytes_per_s
    else:
        roof = roofs.get({"fp32": "fp32_flops", "bf16": "bf16_flops"}.get(dtype_of(row)))
        reached = row.flops_per_s
    return reached / roof if roof and reached else None


def share_text(row):
    of_roof = share(row)
    return "-" if of_roof is None else f"{of_roof:.0%}"


def factors_of(groups):
    first = {id(row): group[0] for _, group in groups for row in group}

    def factor(row):
        same = bool(row.ms) == bool(first[id(row)].ms)
        return times(time_of(first[id(row)]), time_of(row)) if same else "-"

    return factor


def measured_columns(groups):
    def time(row):
        return time_text(row.ms) if row.ms else f"({time_text(row.estimated_ms)})"

    def requested(row):
        moved = row.any.get("traffic.requested.predicted") or row.sim_get(
            "traffic.requested.counted"
        )
        return bytes_text(per_head(row, total(moved)))

    columns = [
        Column(("", "step"), name_of, left=True),
        Column(("", "type"), dtype_of, left=True),
        Column(("", "request"), requested),
        Column(("", "HBM"), lambda r: bytes_text(per_head(r, hbm_of(r)))),
        Column(("", "time"), time),
        Column(("", "TFLOP/s"), rate),
        Column(("", "share"), share_text),
        Column(("", "factor"), factors_of(groups)),
        Column(("", "check"), verdict),
    ]
    right = all(verdict(row) == "ok" for _, group in groups for row in group)
    return columns[: -1 if right else None]


def columns_for(groups):
    rows = [row for _, group in groups for row in group]
    if any(row.ms for row in rows):
        return measured_columns(groups)
    before = {id(row): other for _, group in groups for other, row in zip(group, group[1:])}

    def why(row):
        return why_slower(row, before.get(id(row)))

    columns = [
        Column(("", "step"), name_of, left=True),
        Column(("", "type"), dtype_of, left=True),
        Column(("", "HBM"), lambda r: bytes_text(hbm_of(r))),
        Column(("", "estimated"), estimated_time),
        Column(("", "factor"), factors_of(groups)),
        Column(("", "limited by"), lambda r: why(r) or limiter(r), left=True),
        Column(("", "check"), verdict),
    ]
    hidden = {"check"} if all(verdict(row) == "ok" for row in rows) else set()
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
    if measured_on:
        like = ", as in README's picture" * (row.any.data["problem"]["n"] == HERO_N)
        return f"Measured on {measured_on}: {sizes_of(row)}{like}; bytes are per head"
    text = f"Bytes of {sizes_of(row)}"
    if row.estimate:
        heads = row.estimated_heads
        gpu = row.estimate["gpu"]
        gpu = f"{'a' if gpu[0] in 'BTV' else 'an'} {gpu}"
        text += f"; times estimated for {f'{heads} heads, on ' if heads else ''}{gpu}"
    return text


def notes_on_measured(shown):
    """The meaning of the columns."""
    notes = [
        "request: bytes of all loads and stores, by the step's formula; share: of what this card "
        "was measured to do, an FMA loop in fp32, cuBLAS in bf16"
        + ", a copy where TB/s are given"
        * any(map(moves_a_cache, shown))
    ]
    if steps := steps_where(shown, lambda row: row.ms and row.hbm_measured is None):
        why = next(row.gpu_get("traffic.note") for row in shown if row.hbm_measured is None)
        notes.append(f"HBM of {steps} is predicted, each operand once: {why or 'no counters'}")
    if steps := steps_where(shown, lambda row: not row.ms):
        gpu = next(row.estimate["gpu"] for row in shown if not row.ms and row.estimate)
        notes.append(f"(): this GPU does not run {steps}; simulated, and estimated for an {gpu}")
    if any((share(row) or 0) > 1 for row in shown):
        notes.append("above 100%: a copy and cuBLAS are programs, and no limits of the card")
    return notes


def notes_of(rows, shown):
    """Sentences with figures, for below the table."""
    named = {row.any.label: row for row in rows}
    measured = any(row.ms for row in shown)
    notes = notes_on_measured(shown) if measured else notes_on_estimates(shown)
    moved, kept, before = (named.get(x) for x in ("04 fused", "06 registers", "03 one_pass"))
    if measured and moved and kept and before and (moved.ms or 0) > (before.ms or 0) > 0:
        more = times(hbm_of(moved), hbm_of(kept))
        notes.append(
            f"04 reads and writes O once per tile of keys, {more} the "
            "HBM bytes of 06: it is slower than 03, and needs no memory for S"
        )
    if not measured and moved and kept and hbm_of(moved) and hbm_of(moved) < 1.1 * hbm_of(kept):
        notes.append(
            "04: O moves once per tile of keys. At this N the L2 holds it; an H200 full of heads "
            "of N = 4096 sends it through HBM (the picture in README.md)"
        )
    fp8, bf16, prepare = (named.get(x) for x in ("12 late", "10 scheduled", "12 late prep"))
    if fp8 and bf16 and prepare and time_of(prepare):
        notes.append(f"12: quantising Q, K and V takes {time_text(time_of(prepare))} more")
    if any(row.any.data["step"] == "14_ring" for row in rows if row not in shown):
        notes.append(
            "14: one rank repeats other steps; with ranks: "
            "mpirun --oversubscribe -n 4 build/sim/steps/14_ring --causal --n 1024"
        )
    return notes


def learned(rows):
    """One sentence with the forwards' figures: how bytes and time changed; or ""."""
    kind = any(row.ms for row in rows)
    named = {row.any.label: row for row in rows if time_of(row) and bool(row.ms) == kind}
    first, tiled, kept = (named.get(x) for x in ("01 naive", "02 registers", "06 registers"))
    if not (first and tiled and kept):
        return ""
    said = (
        f"tiles in shared memory (02) are {times(time_of(first), time_of(tiled))} as fast as 01 "
        "with the same HBM bytes; FlashAttention-2 (06) keeps S and P on the chip: "
        f"{times(hbm_of(tiled), hbm_of(kept))} fewer HBM bytes than 02, and "
        f"{times(time_of(tiled), time_of(kept))} as fast"
    )
    if best := named.get("10 scheduled") or named.get("07 lazy"):
        factor = times(time_of(first), time_of(best))
        words = "FlashAttention-3 (10)" if number_of(best) == "10" else "it (07)"
        said += f"; on tensor cores, {words} is {factor} as fast as 01"
    return f"learned: {said}."


def tour_screen(rows):
    """(heading, table and notes; the sentence that the tour ends with)"""
    groups = groups_of(rows)
    shown = [row for _, group in groups for row in group]
    device = next((row.gpu_get("device.name") for row in shown if row.gpu), None)
    lines = [for_screen(heading(shown[0], device)), "", *table_of(groups), ""] if shown else []
    lines += [for_screen(note) for note in notes_of(rows, shown)]
    return "\n".join(lines).rstrip("\n"), for_screen(learned(shown))
