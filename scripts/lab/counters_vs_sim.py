"""Compares a GPU's measured counters with the simulator's counts for the same problems.

Requests, sectors and lines must be equal. HBM bytes must be within 10%, or 0.3 MB, of the modelled
ones where the footprint is below half of the L2 or above three times it, and the simulator modelled
that GPU with --estimate-heads 0.
"""

from flash_steps.gpu_table import find_model, model_of
from flash_steps.problems import problem_text
from flash_steps.results import join
from flash_steps.text import Column, text_table

from .measured import column

KINDS = ("load", "store", "atomic")
GROUPS = ("requests", "sectors", "lines")


def pairs(gpu_runs, sim_runs):
    return [row for row in join(gpu_runs + sim_runs) if row.sim and row.gpu]


def entry_of(row, figure, counted, measured, equal, **more):
    problem = problem_text(row.any.data["problem"])
    found = {"step": row.any.label, "problem": problem, "figure": figure}
    return {**found, "counted": counted, "measured": measured, "equal": equal, **more}


def differences(row):
    """One dict per figure of one run; `equal` is None where nothing was measured."""
    found = []
    for group in GROUPS:
        counted, measured = (run.get(f"traffic.{group}") for run in (row.sim, row.gpu))
        if counted is None or measured is None:
            if group != "lines":  # older runs did not count them
                note = row.gpu.get("traffic.note")
                found.append(entry_of(row, group, None, None, None, note=note))
            continue
        for kind in KINDS:
            c, m = counted.get(kind), measured.get(kind)
            if c or m:
                found.append(entry_of(row, f"{kind} {group}", c, m, c == m))
    return found


def footprint(run):
    """Bytes of workspace, inputs and outputs, as in a program's line "memory"."""
    p = run.data["problem"]
    element = 4 if p["dtype"] == "fp32" else 2
    of_cache = 1 if p.get("cache8") else element
    queries, keys = p["b"] * p["h"] * p["n"], p["b"] * p["hkv"] * p["nk"]
    forward = 2 * p["d"] * (queries * element + keys * of_cache) + 4 * queries  # Q, O, K, V and LSE
    return run.data["workspace_bytes"] + forward * (2 if run.data["backward"] else 1)


def hbm_differences(row):
    """The same for HBM bytes, where the model is accurate."""
    model, measured = row.sim.get("traffic.hbm.model"), row.gpu.get("traffic.hbm.measured")
    modelled = row.sim.get("model_gpu")
    if not model or not measured or model_of(row.gpu.get("device.name")) != modelled:
        return []
    of_l2 = footprint(row.sim) / find_model(modelled)["l2_bytes"]
    # With other heads, more heads shared the L2 than ran.
    if row.sim.heads_differ or 0.5 <= of_l2 <= 3:
        return []
    found = []
    for way in ("read", "write"):
        # An H200 read up to 0.1 MB of code and constants, and of 189 figures of written bytes two
        # were 0.2 and 0.26 MB above those of the same kernel in other runs.
        near = abs(measured[way] - model[way]) <= max(0.1 * measured[way], 0.3e6)
        found.append(entry_of(row, f"HBM {way}", model[way], measured[way], near))
    return found


def relative_difference(entry):
    return abs(entry["measured"] - entry["counted"]) / max(entry["counted"] or 0, 1)


def difference_text(entry):
    if entry["equal"] is None:
        return "not measured"
    return f"{100 * relative_difference(entry):.3g}%"


COLUMNS = [
    *(column(key, key, left=True) for key in ("step", "problem", "figure")),
    *(column(key, key, "{:,}".format) for key in ("counted", "measured")),
    Column(("differ-", "ence"), difference_text),
]


def worst_of(entries):
    worst = max(entries, key=relative_difference)
    place = f"{worst['figure']} of {worst['step']}, {worst['problem']}"
    return f"the largest difference is {difference_text(worst)}: {place}"


def compare_counters(rows):
    """(text, ok) for requests, sectors and lines."""
    entries = [entry for row in rows for entry in differences(row)]
    compared = [e for e in entries if e["equal"] is not None]
    unequal = [e for e in compared if not e["equal"]]
    if not entries:
        return "nothing to compare: no problem was both counted and measured", False
    lines = [text_table(COLUMNS, entries)]
    backward, prepare = (
        sum(word in e["step"].split() for e in compared) for word in ("bwd", "prep")
    )
    atomics = sum("atomic" in e["figure"] for e in compared)
    passes = f"{backward} of the figures are of backward passes, {atomics} of atomics"
    lines.append(f"{passes}, {prepare} of prepare passes")
    lines += [f"note: {note}" for note in dict.fromkeys(e.get("note") for e in entries) if note]
    if unequal:
        lines.append(f"{len(unequal)} of {len(compared)} figures differ; {worst_of(unequal)}")
    elif compared:
        lines.append(f"all {len(compared)} figures are equal")
    else:
        lines.append("no figure was measured")
    return "\n".join(lines), bool(compared) and not unequal


def compare_hbm(rows):
    """The same for HBM bytes."""
    entries = [entry for row in rows for entry in hbm_differences(row)]
    if not entries:
        return "no HBM bytes to compare", True
    missed = [entry for entry in entries if not entry["equal"]]
    line = f"HBM: {len(entries) - len(missed)} of {len(entries)} figures within 10% or 0.3 MB"
    line += f"; {worst_of(missed)}" if missed else ""
    return "\n".join([text_table(COLUMNS, entries), line]), not missed
