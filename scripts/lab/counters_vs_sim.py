"""Compares what a GPU's counters measured with what the simulator counted for the same problems.

    maintain counters_vs_sim GPU_DIR SIM_DIR     folders with the programs' --json files

Requests, sectors and lines must be equal. Wavefronts of shared memory are shown, and mostly are:
nvcc may join neighbouring loads, and a thread that polls a barrier counts each time. HBM bytes must
be within 10%, or 0.3 MB, of the modelled ones where the footprint is below half of the L2 or above
three times it. They are compared where the simulator modelled that GPU, with --estimate-heads 0.
Exit status: 0 equal, 1 a difference or nothing to compare, 2 bad use.
"""

import os

from flash_steps import command
from flash_steps.command import BadInput
from flash_steps.gpu_table import find_model, model_of
from flash_steps.problems import problem_text
from flash_steps.results import join, load_folder
from flash_steps.text import Column, entry, text_table

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
    if any(e["equal"] is False and not e["promised"] for e in entries):
        lines.append("* no promise: nvcc may join loads, and a thread that polls counts each time")
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


def footprint(run):
    """Bytes of workspace, inputs and outputs, as a program's line "memory" has them."""
    p = run.data["problem"]
    element = 4 if p["dtype"] == "fp32" else 2
    of_cache = 1 if p.get("cache8") else element
    queries, keys = p["b"] * p["h"] * p["n"], p["b"] * p["hkv"] * p["nk"]
    forward = 2 * p["d"] * (queries * element + keys * of_cache) + 4 * queries  # Q, O, K, V and LSE
    return run.data["workspace_bytes"] + forward * (2 if run.data["backward"] else 1)


def hbm_differences(row):
    """As `differences`, of HBM bytes; `equal` is within what the model promises."""
    model, measured = row.sim.get("traffic.hbm.model"), row.gpu.get("traffic.hbm.measured")
    modelled = row.sim.get("model_gpu")
    if not model or not measured or model_of(row.gpu.get("device.name")) != modelled:
        return []
    if row.sim.heads_differ:  # the L2 was shared by more heads than ran
        return []
    of_l2 = footprint(row.sim) / find_model(modelled)["l2_bytes"]
    return [
        {
            "step": row.any.label,
            "problem": problem_text(row.any.data["problem"]),
            "figure": f"HBM {way}",
            "promised": of_l2 < 0.5 or of_l2 > 3,
            "counted": model[way],
            "measured": measured[way],
            # An H200 read up to 0.1 MB of code and constants, and of 189 figures of what was
            # written two were 0.2 and 0.26 MB above what the same kernel wrote in other runs.
            "equal": abs(measured[way] - model[way]) <= max(0.1 * measured[way], 0.3e6),
        }
        for way in ("read", "write")
    ]


HBM_COLUMNS = [
    *DIFFERENCE_COLUMNS[:3],
    Column(("", "modelled"), lambda e: number(e["counted"])),
    DIFFERENCE_COLUMNS[4],
    Column(
        ("differ-", "ence"),
        lambda e: f"{100 * relative_difference(e):.3g}%{'' if e['promised'] else ' *'}",
    ),
]


def compare_hbm(rows):
    """(text, ok): a miss is wrong only where the model promises."""
    entries = [entry for row in rows for entry in hbm_differences(row)]
    if not entries:
        return "no HBM bytes to compare", True
    promised = [entry for entry in entries if entry["promised"]]
    missed = [entry for entry in promised if not entry["equal"]]
    lines = [text_table(HBM_COLUMNS, entries)]
    if len(promised) < len(entries):
        lines.append("* no promise: the footprint is close to the L2's size")
    line = f"HBM: {len(promised) - len(missed)} of {len(promised)} figures within 10% or 0.3 MB"
    if missed:
        worst = max(missed, key=relative_difference)
        line += f"; the furthest: {worst['figure']} of {worst['step']}, {worst['problem']}"
    return "\n".join([*lines, line]), not missed


def main():
    parser = command.parser(__doc__)
    parser.add_argument("gpu", metavar="GPU_DIR")
    parser.add_argument("sim", metavar="SIM_DIR")
    options = parser.parse_args()
    for folder in (options.gpu, options.sim):
        if not os.path.isdir(folder):
            raise BadInput(f"{folder} is not a folder")
    rows = pairs(load_folder(options.gpu), load_folder(options.sim))
    _, text, equal = compare_counters(rows)
    hbm_text, near = compare_hbm(rows)
    print(text, hbm_text, sep="\n\n")
    return 0 if equal and near else 1
