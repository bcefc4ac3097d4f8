"""Estimates, in the simulator, the times that docs/results has as measured.

    maintain estimates [--gpu H200] [--steps "06 07"]

For each problem of FlashAttention's series that was timed on this kind of GPU it simulates one head
(all heads for one query and up to 64K keys) and estimates the time of all of them. Writes
docs/results/estimates.json, keeping rows of other steps, sizes and GPUs; `maintain tables` shows
estimated over measured. A step that was never measured (16, with --gpu B200; 17) it estimates at
the problem of its section of the ladder (flash_steps/rungs.py), of one batch entry where the keys
differ from the queries.
Exit status: 0 done, 1 a program failed, 2 bad use, 3 not built.
"""

import concurrent.futures
import os
import statistics

from flash_steps.command import BadInput, parser
from flash_steps.commits import here
from flash_steps.files import read_json, write_rows
from flash_steps.gpu_table import find_model, model_of
from flash_steps.problems import flags, in_series, own_tiles
from flash_steps.results import PASSES, load, published
from flash_steps.rungs import RESULTS, SECTIONS, measured_rows, times_of
from flash_steps.steps import (
    ROOT,
    chosen_of,
    described,
    needs_of,
    numbered_steps,
    program_of,
    report_of,
)
from flash_steps.text import Column, time_text

SIM_BUILD = os.path.join(ROOT, "build", "sim")
ESTIMATES = os.path.join(RESULTS, "estimates.json")
DECODE = "13_decode"
TIMES = os.path.join(RESULTS, "times.json")
SIZES = ("b", "h", "n", "d", "causal", "hkv", "nk")
KEY = ("gpu", "step", "variant", "direction", *SIZES)
MAX_N = 4096
FEW_HEADS = 4  # this many are all simulated
FEW_KEYS = 65536  # of all batch entries, where they differ from the queries: all heads run


def plain(problem):
    return problem["hkv"] == problem["h"] and problem["nk"] == problem["n"] and own_tiles(problem)


def measured_times():
    """{KEY's values: milliseconds} of all results: programs, else peers.py, and times.json."""
    times = {key: row["ms"] for key, row in kept(TIMES).items()}
    peers = [row for row in measured_rows("peers", RESULTS) if plain(row)]
    decoding = [row for row in measured_rows("decode", RESULTS) if row["what"] == "peers"]
    runs = [pair for path in published(RESULTS) for pair in timed(load(path))]
    times |= {key_of(row): row["ms"] for row in peers}
    times |= {key: run.get("time.median_ms") for key, run in runs}
    times |= {key_of(row): row["ms"] for row in decoding if row["step"] == DECODE}
    return times


def key_of(row):
    """KEY's values; rows of problems without a cache may omit hkv and nk, of decoding `direction`,
    and measured rows have a `device`."""
    row = {"hkv": row["h"], "nk": row["n"], "direction": "forward", **row}
    return tuple(model_of(row["device"]) if key not in row else row[key] for key in KEY)


def is_wanted(sizes):
    if sizes["nk"] != sizes["n"]:
        return sizes["b"] * sizes["nk"] <= FEW_KEYS
    small = sizes["b"] * sizes["h"] <= FEW_HEADS
    return sizes["n"] <= MAX_N and (in_series(sizes) or small)


def timed(runs):
    """(KEY's values, run) of runs with a time."""
    for run in runs:
        problem = run.data["problem"]
        if run.get("time.median_ms") and plain(problem) and not run.borrowed:
            place = model_of(run.get("device.name")), run.data["step"], run.variant
            yield (*place, run.direction, *(problem[size] for size in SIZES)), run


def simulate(cell):
    """{direction: the values of a row of estimates.json}."""
    gpu, step, variant, *sizes = cell
    sizes = dict(zip(SIZES, sizes))
    heads, shown = sizes["b"] * sizes["h"], 0
    if sizes["nk"] == sizes["n"]:
        shown, one = heads, {key: sizes[key] for key in ("n", "d", "causal")}
        sizes = {**one, "h": heads if heads <= FEW_HEADS else 1}
    elif not is_wanted(sizes):  # a step that was never measured
        shown, sizes = heads, {**sizes, "b": 1}
    call = [f"--variant={variant}", "--input=normal", f"--gpu={gpu}", f"--estimate-heads={shown}"]
    program = program_of(SIM_BUILD, step)
    run = report_of(program, *call, *flags(sizes))
    found = {"forward": run["estimate"]}
    for direction in ("prepare", "backward"):
        if run.get(direction):
            found[direction] = run[direction]["estimate"]
    of = {"place": run["variant_index"], "commit": here()}
    return {
        direction: {"ms": round(e["ms"], 6), "limit": e["limit"], **of}
        for direction, e in found.items()
    }


def unmeasured(gpu, steps, measured):
    """KEY's values of steps that need this GPU's architecture and have no time, at the problem of
    their section of the ladder."""
    arch, timed_steps = find_model(gpu)["arch"] + "a", {key[1] for key in measured}
    timed_steps |= {step for section in SECTIONS for step, _ in times_of(section)}
    for step in (step for step in steps if needs_of(step) == arch and step not in timed_steps):
        for variant in described(program_of(SIM_BUILD, step))["variants"]:
            row = {"gpu": gpu, "step": step, "variant": variant["name"], "direction": "forward"}
            for section in SECTIONS:
                if section.shows(variant):
                    yield key_of({**row, **section.problem})


def kept(path):
    """{KEY's values: row} of estimates.json or times.json."""
    if not os.path.exists(path):
        return {}
    return {key_of(row): row for row in read_json(path)["rows"]}


def in_reading_order(rows):
    return sorted(rows, key=lambda key: (*key[:2], key[3], rows[key]["place"], key))


# --- tables ---------------------------------------------------------------------------------------


def label(key):
    """ "06 swapped", "05 standard bwd"."""
    return " ".join([key[1][:2], key[2], *PASSES[key[3]]])


def pairs_in_order(rows, measured, apart=1.15):
    """(how many, of how many) pairs of variants further apart than this are in the right order."""
    problems = {}
    for key, row in rows.items():
        if key in measured:
            place = (key[0], key[3], *key[4:])
            problems.setdefault(place, []).append((measured[key], row["ms"]))
    right = count = 0
    for times in problems.values():
        for i, a in enumerate(times):
            for b in times[:i]:
                if max(a[0], b[0]) > apart * min(a[0], b[0]):
                    count += 1
                    right += (a[0] < b[0]) == (a[1] < b[1])
    return right, count


def chosen(filters):
    """Kept rows whose keys have these texts."""
    for key in filters:
        if key not in KEY:
            raise BadInput(f"table filter '{key}': choose from {', '.join(KEY)}")

    def passes(row):
        known = dict(zip(KEY, key_of(row)))
        return all(str(known[key]).lower() == wanted.lower() for key, wanted in filters.items())

    return {place: row for place, row in kept(ESTIMATES).items() if passes(row)}


def accuracy(rows):
    measured, found = measured_times(), {"all": []}
    for key in in_reading_order(rows):
        if key in measured:
            ratio = rows[key]["ms"] / measured[key]
            found.setdefault(label(key), []).append(ratio)
            found["all"].append(ratio)
    if not found["all"]:
        raise BadInput("table 'accuracy': nothing was estimated that passes its filters")

    def figure(head, of, text="{:.2f}x"):
        return Column(("", head), lambda line: text.format(of(line[1])))

    def within(head, factor):
        def share(ratios):
            return sum(1 / factor <= ratio <= factor for ratio in ratios) / len(ratios)

        return figure(head, share, "{:.0%}")

    columns = [
        Column(("", "variant"), lambda line: line[0], left=True),
        figure("problems", len, "{}"),
        figure("mean", statistics.geometric_mean),
        figure("least", min),
        figure("largest", max),
        *(within("within 1.15x", 1.15), within("1.3x", 1.3), within("1.5x", 1.5)),
    ]
    found["all"] = found.pop("all")  # the last line
    return columns, list(found.items())


def order_text(rows):
    measured = measured_times()
    right, count = pairs_in_order(rows, measured)
    far_right, far = pairs_in_order(rows, measured, apart=1.5)
    return (
        f"Of {count:,} pairs of variants whose measured times for one problem differ by more "
        f"than 15%, {right:,} were estimated in the right order ({100 * right / count:.1f}%). "
        f"Of the {count - far:,} that differ by less than 1.5x: {right - far_right:,} "
        f"({100 * (right - far_right) / (count - far):.0f}%)."
    )


def problem(filters):
    """A table of one problem's estimated and measured times, by variant."""
    measured, rows = measured_times(), chosen(filters)
    if len({key[4:] for key in rows}) != 1:
        raise BadInput("table 'estimated': its filters must choose one problem")

    def factor(key):
        return f"{rows[key]['ms'] / measured[key]:.2f}x" if key in measured else ""

    columns = [
        Column(("", "variant"), label, left=True),
        Column(("", "estimated"), lambda key: time_text(rows[key]["ms"])),
        Column(("", "measured"), lambda key: time_text(measured.get(key))),
        Column(("", "ratio"), factor),
        Column(("", "limited by"), lambda key: rows[key]["limit"], left=True),
    ]
    return columns, in_reading_order(rows)


def main():
    p = parser(__doc__)
    p.add_argument("--gpu", default="H200")
    p.add_argument("--steps")
    args = p.parse_args()
    measured = measured_times()
    steps = chosen_of(numbered_steps(), args.steps, "there are")
    wanted = {}
    keys = [key for key in measured if key[0] == args.gpu and key[1] in steps]
    keys = [key for key in keys if is_wanted(dict(zip(SIZES, key[4:])))]
    for key in (*keys, *unmeasured(args.gpu, steps, measured)):
        wanted.setdefault((*key[:3], *key[4:]), set()).add(key[3])
    if not wanted:
        raise BadInput(f"docs/results has no measured time for --gpu {args.gpu} at these sizes")
    rows = kept(ESTIMATES)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for cell, found in zip(wanted, pool.map(simulate, wanted)):
            for direction in wanted[cell]:
                key = (*cell[:3], direction, *cell[3:])
                row = rows[key] = {**dict(zip(KEY, key)), **found[direction]}
                times = f"{row['ms'] / measured[key]:.2f}x of measured, " if key in measured else ""
                words = f"{row['ms']:.4g} ms, {times}{row['limit']}"
                print(*key[1:], words, flush=True)
    found = {"schema": 1, "rows": [rows[key] for key in sorted(rows)]}
    write_rows(ESTIMATES, found, indent=2)
    return 0
