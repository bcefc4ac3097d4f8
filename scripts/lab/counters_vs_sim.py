"""Compares what a GPU's counters measured with what the simulator counted for the same problems.

    maintain counters_vs_sim GPU_DIR SIM_DIR     folders with the programs' --json files

Requests, sectors and lines must be equal. Wavefronts of shared memory are shown, and mostly are:
nvcc may join neighbouring loads, and a thread that polls a barrier counts each time. (gpu_check.sh
also uses this file to compare HBM bytes: the L2 model is within 10%, or 64 kB, only for working
sets below half of the L2 or above three times it.)
Exit status: 0 equal, 1 a difference or nothing to compare, 2 bad use.
"""

import os

from flash_steps import command
from flash_steps.command import BadInput
from flash_steps.problems import problem_text
from flash_steps.results import join, load_folder
from flash_steps.text import Column, bytes_text, entry, text_table

KINDS = ("load", "store", "atomic")
GROUPS = {  # whether their figures must be equal
    "requests": True,
    "sectors": True,
    "lines": True,
    "shared_wavefronts": False,
}


def pairs(gpu_runs, sim_runs):
    """Rows that hold both a measured and a counted run."""
    return [row for row in join(gpu_runs + sim_runs) if row.sim and row.gpu]


def differences(row):
    """One dict for each figure of one run; `equal` is None where nothing was measured."""
    found = []
    for group, promised in GROUPS.items():
        counted = row.sim.get(f"traffic.{group}")
        measured = row.gpu.get(f"traffic.{group}")
        if group == "lines" and measured is None:
            continue  # a run from before they were counted
        for kind in KINDS:
            c = counted and counted.get(kind)
            m = measured and measured.get(kind)
            if not c and not m and (measured is not None or not promised):
                continue  # neither atomic ... nor anything to show
            if measured is None and promised and kind != "load":
                continue  # one line says it
            found.append(
                {
                    "step": row.any.label,
                    "problem": problem_text(row.any.data["problem"]),
                    "figure": f"{kind} {group.removeprefix('shared_')}",
                    "promised": promised,
                    "counted": c,
                    "measured": m,
                    "equal": None if measured is None or counted is None else c == m,
                    "note": row.gpu.get("traffic.note") if measured is None else None,
                }
            )
    return found


def relative_difference(entry):
    if entry["equal"] is None:
        return 0.0
    return abs(entry["measured"] - entry["counted"]) / max(entry["counted"], 1)


def number(value):
    return "-" if value is None else f"{value:,}"


DIFFERENCE_COLUMNS = [
    entry("step"),
    entry("problem"),
    entry("figure"),
    Column(("", "counted"), lambda e: number(e["counted"])),
    Column(("", "measured"), lambda e: number(e["measured"])),
    Column(
        ("differ-", "ence"),
        lambda e: {True: "=", None: "not measured"}.get(
            e["equal"], f"{100 * relative_difference(e):.3g}%{'' if e['promised'] else ' *'}"
        ),
    ),
]


def wavefronts_text(entries):
    """A line about the figures that need not be equal; none where nothing of them was measured."""
    compared = [e for e in entries if not e["promised"] and e["equal"] is not None]
    unequal = [e for e in compared if not e["equal"]]
    if not compared:
        return []
    if not unequal:
        return [f"all {len(compared)} figures of wavefronts are equal"]
    return [
        f"* {len(unequal)} of {len(compared)} figures of wavefronts differ, by "
        f"{100 * max(map(relative_difference, unequal)):.3g}% at most: no promise, since nvcc may "
        "join loads, and a thread that polls a barrier counts each time"
    ]


def compare_counters(rows):
    """(entries, text, ok) for requests, sectors and lines, and wavefronts beside them."""
    entries = [entry for row in rows for entry in differences(row)]
    if not entries:
        return entries, "nothing to compare: no problem was both counted and measured", False
    lines = [text_table(DIFFERENCE_COLUMNS, entries)]
    compared = [e for e in entries if e["promised"] and e["equal"] is not None]
    unequal = [e for e in compared if not e["equal"]]
    backward, prepare, atomics = [
        sum(word in e[key].split() for e in compared)
        for word, key in (("bwd", "step"), ("prep", "step"), ("atomic", "figure"))
    ]
    if backward or prepare or atomics:
        line = f"{backward} of the figures are of backward passes, {atomics} of atomics"
        lines.append(line + (f", {prepare} of prepare passes" if prepare else ""))
    notes = dict.fromkeys(e["note"] for e in entries if e["note"])
    lines += [f"note: {note}" for note in notes]
    lines += wavefronts_text(entries)
    if unequal:
        worst = max(unequal, key=relative_difference)
        lines.append(
            f"{len(unequal)} of {len(compared)} figures differ; the largest difference is "
            f"{100 * relative_difference(worst):.3g}%: {worst['figure']} of "
            f"{worst['step']}, {worst['problem']}"
        )
    elif compared:
        lines.append(f"all {len(compared)} figures are equal; the largest difference is 0")
    else:
        lines.append("no figure was measured")
    return entries, "\n".join(lines), bool(compared) and not unequal


def working_set(run):
    """Bytes of the buffers that one pass touches, by their names: S, P and their gradients are
    [N, Nk], Q, K, V, O and theirs are matrices, all others hold a float per row."""
    p = run.data["problem"]
    element = {"fp32": 4, "bf16": 2, "e4m3": 1}[p["dtype"]]
    of_cache = 1 if p.get("cache8") else element
    heads, kv_heads = p["b"] * p["h"], p["b"] * p["hkv"]
    sizes = {
        "Q": heads * p["n"] * p["d"] * element,
        "K": kv_heads * p["nk"] * p["d"] * of_cache,
        "S": heads * p["n"] * p["nk"] * element,
    }
    sizes.update(V=sizes["K"], O=sizes["Q"], P=sizes["S"])
    return sum(
        sizes.get(name.removeprefix("d"), heads * p["n"] * 4)
        for name in run.get("traffic.requested.buffers")
    )


def hbm_entry(row, working_set, l2_bytes):
    """Modelled beside measured HBM bytes of one run; ratios are measured / modelled."""
    model, measured = row.sim.get("traffic.hbm.model"), row.gpu.get("traffic.hbm.measured")
    entry = {
        "step": row.any.label,
        "problem": problem_text(row.any.data["problem"]),
        "working_set": working_set,
        "of_l2": working_set / l2_bytes,
        "model": model,
        "measured": measured,
        "promised": working_set < l2_bytes / 2 or working_set > 3 * l2_bytes,
    }
    for kind in ("read", "write"):
        known = model and measured and model[kind]
        entry[f"{kind}_ratio"] = measured[kind] / model[kind] if known else None
    # An almost empty kernel reads 35 to 50 kB: code, constants, parameters.
    entry["within_10_percent"] = (
        None
        if not model or not measured
        else all(
            abs(measured[kind] - model[kind]) <= max(0.1 * measured[kind], 64e3)
            for kind in ("read", "write")
        )
    )
    return entry


def hbm_bytes(source, kind):
    return lambda e: bytes_text(e[source][kind]) if e[source] else "-"


def ratio(kind):
    return lambda e: "-" if e[f"{kind}_ratio"] is None else f"{e[f'{kind}_ratio']:.2f}"


HBM_COLUMNS = [
    entry("step"),
    entry("problem"),
    Column(("working", "set"), lambda e: bytes_text(e["working_set"])),
    Column(("of", "L2"), lambda e: f"{e['of_l2']:.2f}"),
    Column(("read", "modelled"), hbm_bytes("model", "read")),
    Column(("", "measured"), hbm_bytes("measured", "read")),
    Column(("", "ratio"), ratio("read")),
    Column(("write", "modelled"), hbm_bytes("model", "write")),
    Column(("", "measured"), hbm_bytes("measured", "write")),
    Column(("", "ratio"), ratio("write")),
    Column(
        ("", "10%"),
        lambda e: (
            {True: "yes", False: "no", None: "-"}[e["within_10_percent"]]
            + ("" if e["promised"] else " *")
        ),
    ),
]


def hbm_text(entries):
    if not entries:
        return "nothing to compare: no problem was both modelled and measured"
    text = text_table(HBM_COLUMNS, entries)
    if not all(e["promised"] for e in entries):
        text += (
            "\n* between half the size of the L2 and three times it, the model promises no accuracy"
        )
    return text


def main():
    parser = command.parser(__doc__)
    parser.add_argument("gpu", metavar="GPU_DIR")
    parser.add_argument("sim", metavar="SIM_DIR")
    options = parser.parse_args()
    for folder in (options.gpu, options.sim):
        if not os.path.isdir(folder):
            raise BadInput(f"{folder} is not a folder")
    _, text, ok = compare_counters(pairs(load_folder(options.gpu), load_folder(options.sim)))
    print(text)
    return 0 if ok else 1
