"""Does a measured figure belong to this tree's kernels, on a GPU at full speed?"""

import glob
import math
import os

from .commits import is_current
from .files import read_json
from .gpu_table import peak_of
from .results import join_for_reading, load, published

OLDER, SLOWED = "of an earlier version of the kernel", "measured while the GPU was slowed down"


def standing(step, commit, slowed=False):
    """None, or why a run is not of this tree's kernel on a GPU at full speed."""
    return (SLOWED if slowed else None) if is_current(step, commit) else OLDER


def mark_slowed(runs):
    """Sets `slowed` for runs on a GPU whose FMA roof is under 90% of its highest clock's, or that
    has a roof under 90% of the best of the same card in these runs."""
    best = {}
    for run in runs:
        for key, rate in (run.get("roofs") or {}).items():
            place = run.get("device.name"), key
            best[place] = max(rate or 0, best.get(place, 0))
    peaks = {device: peak_of(device) for device, _ in best}
    for run in runs:
        device = run.get("device.name")
        roofs = {key: rate for key, rate in (run.get("roofs") or {}).items() if rate}
        under_peak = roofs.get("fp32_flops", math.inf) < 0.9 * (peaks.get(device) or 0)
        low = [key for key, rate in roofs.items() if rate < 0.9 * best[device, key]]
        run.data["slowed"] = under_peak or bool(low)


def standing_of(run):
    """Of its time: rungs.py may have replaced that by one of peers.py."""
    if "time_commit" in run.data:
        return standing(run.data["step"], run.data["time_commit"])
    return standing(run.data["step"], run.get("commit"), run.kind == "gpu" and run.get("slowed"))


def standing_parts(found):
    """A part of a sentence for each reason in [(label, reason or None)]."""
    labels = {}
    for label, reason in found:
        if reason:
            labels.setdefault(reason, set()).add(label)
    return [f"{reason}: {', '.join(sorted(labels[reason]))}" for reason in sorted(labels)]


def standing_text(found):
    """The same as paragraphs, for below a table."""
    return "".join(f"\n\n*{part[0].upper()}{part[1:]}.*" for part in standing_parts(found))


def runs_of(paths):
    """All runs in these files; current ones at full speed are last, since the last counts."""
    runs = [run for path in paths for run in load(path)]
    mark_slowed(runs)
    return sorted(runs, key=lambda run: standing_of(run) is None)


def rows_of(paths):
    return join_for_reading(runs_of(paths))


def measured(name, folder):
    """The results in <name>_*.json of a folder; "peers": those of peers.py in <gpu>.json, of all
    types of a GPU. Each row has its `standing`."""
    paths = sorted(glob.glob(os.path.join(folder, f"{name}_*.json")))
    results = [read_json(path) for path in paths]
    if name == "peers":
        of_device = {}
        for tree in map(read_json, published(folder)):
            if isinstance(tree, dict) and tree.get("peers"):
                new = {"date": tree.get("date"), **tree["peers"]}
                old = of_device.get(new["device"], {"rows": [], "matmul": {}})
                both = {"rows": old["rows"] + new["rows"], "matmul": old["matmul"] | new["matmul"]}
                of_device[new["device"]] = {**new, **both}
        results = list(of_device.values())
    for row in (row for result in results for row in result["rows"]):
        row["standing"] = row["step"] and standing(row["step"], row.get("commit"))
    return results
