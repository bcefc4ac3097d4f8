"""Merges results.json of several calls, and makes docs/results/<gpu>.json from them."""

import os
import re
import statistics

from flash_steps.command import BadInput
from flash_steps.commits import is_current
from flash_steps.files import read_json, write_rows
from flash_steps.gpu_table import find_model, model_of
from flash_steps.results import Run, get
from flash_steps.standing import repeats_of, slowed_peers
from flash_steps.text import bytes_text, flops_text

PROGRAM_CALLS = r"(gpu|sim|probes|memory|variants|help|describe|\w+check) "


ROOF_NAMES = {
    "copy_bytes_per_s": "copy",
    "fp32_flops": "FMA",
    "bf16_flops": "bf16 matmul",
    "fp32_matmul_flops": "fp32 matmul",
}


def roof_notes(runs, device):
    """Sentences that say when the roofs of these runs look wrong: a GPU that something slowed down
    while they were measured, and most likely the steps with them."""
    found = [run["roofs"] for run in runs if run.get("roofs")]
    model = model_of(device or "")
    # The data sheet's figure is all SMs' lanes times two times the highest clock.
    peak = model and find_model(model)["fp32_flops"]
    notes = []
    rates = [roofs["fp32_flops"] for roofs in found if roofs.get("fp32_flops")]
    if peak and rates and min(rates) < 0.9 * peak:
        slow = sum(rate < 0.9 * peak for rate in rates)
        notes.append(
            f"{slow} of {len(rates)} runs have an FMA roof under 90% of the "
            f"{flops_text(peak)} TFLOP/s of this GPU's highest clock (least: "
            f"{flops_text(min(rates))}): the GPU was slowed down; measure them again."
        )
    for key, name in ROOF_NAMES.items():
        rates = [roofs[key] for roofs in found if roofs.get(key)]
        if rates and max(rates) > 1.05 * min(rates):
            unit = (
                bytes_text
                if key == "copy_bytes_per_s"
                else (lambda rate: f"{flops_text(rate)} TFLOP")
            )
            notes.append(
                f"The {name} roof differs between runs, {unit(min(rates))}/s to "
                f"{unit(max(rates))}/s: do not compare their times."
            )
    return notes


def identity(row):
    """What makes a later row take the place of an earlier one."""
    if "step" in row and isinstance(row.get("problem"), dict):
        run = Run(row, "forward")
        # A simulated run is the same wherever it was made, and its device's name has the host's
        # cores; what it depends on is the GPU that it models.
        return (run.key, run.kind, run.get("device.name" if run.kind == "gpu" else "model_gpu"))
    return tuple(row.get(key) for key in ("name", "step", "variant", "problem", "tool", "figure"))


def merge(paths):
    """The results of several calls as one: lists by their rows, a later row in place of an earlier
    one; all else from the later file. Sections of the same name are both kept, in one."""
    merged = {}
    for path in paths:
        results = read_json(path)
        if isinstance(results, dict) and "rounds" in results:  # written by peers.py --json
            results = {
                "device": results.get("device"),
                "sections": {},
                "peers": results,
                "commands": [
                    {"name": "peers", "command": command} for command in results.get("commands", [])
                ],
            }
        if not isinstance(results, dict) or "sections" not in results:
            raise BadInput(f"{path} is neither a results.json of gpu_check.sh nor a peers.json")
        for key in ("device", "sources"):
            if merged and key in results and merged.get(key, results[key]) != results[key]:
                print(f"note: {path} differs in '{key}' from the file before it")
        for key, value in results.items():
            old = merged.get(key)
            if key == "notes":
                continue  # made anew of all runs
            if key == "commands":
                merged[key] = (old or []) + value
            elif key == "sections":
                merged[key] = merge_sections(old or {}, value)
            elif key == "peers" and old:
                merged[key] = merge_peers(old, value, path)
            elif isinstance(value, list):
                rows = {identity(row): row for row in old or []}
                rows.update({identity(row): row for row in value})
                merged[key] = list(rows.values())
            else:
                merged[key] = value
    merged["runs"] = merged.get("runs", [])
    merged.pop("done", None)  # of one folder
    merged["notes"] = roof_notes(merged["runs"], merged.get("device"))
    return merged


def peers_repeats(row, run=None):
    """What each run found, in a row of one run or of several."""
    if "repeats" in row:
        return row["repeats"]
    keys = ("ms", "flops_per_s", "of_matmul", "ratios", "commit")
    return [{"run": run, **{key: row.get(key) for key in keys}}]


def same_text(step, one, other):
    commits = {one.get("commit"), other.get("commit")}
    return len(commits) == 1 or all(is_current(step, commit) for commit in commits)


def merge_peers(old, new, path):
    """The rows of both. Runs of the same text add up: a row holds their medians and, under
    `repeats`, each of them. A run of another text, or the same run again, takes the place of
    those before it."""
    for key in ("schema", "device", "torch", "rounds", "iters"):
        if old.get(key) != new.get(key):
            raise BadInput(
                f"{path}: its peers have '{key}' {new.get(key)}, those before "
                f"have {old.get(key)}: one table cannot hold both"
            )

    def place(row):
        return tuple(row.get(key) for key in ("step", "variant", "direction", "problem"))

    rows = {}
    for result in (old, new):
        later = {}  # a backend has a row beside each step
        for row in result["rows"]:
            later.setdefault(place(row), []).append(row)
        for key, same in later.items():
            runs = [run for row in same for run in peers_repeats(row, result.get("run"))]
            ids = {run["run"] for run in runs}
            before = [run for run in rows.pop(key, [[], []])[1] if run["run"] not in ids]
            kept = [run for run in before if same_text(key[0], run, runs[-1]) and None not in ids]
            rows[key] = same[-1], [run for run in kept if run["run"]] + runs
    return {
        **new,
        "run": None,
        "commands": list(dict.fromkeys(old.get("commands", []) + new.get("commands", []))),
        "notes": list(dict.fromkeys(old["notes"] + new["notes"])),
        "rows": [median_row(row, runs) for row, runs in rows.values()],
    }


def without_slowed(found):
    """These results of peers.py without the runs on a slowed GPU."""
    slowed, rows = slowed_peers([found]), []
    for row in found["rows"]:
        runs = [run for run in repeats_of(row) if not slowed(found, row, run)]
        if len(runs) == len(repeats_of(row)):
            rows.append(row)
        elif runs:
            rows.append(median_row(row, runs))
    return {**found, "rows": rows}


def median_row(row, runs):
    if len(runs) == 1 and runs[0]["run"] is None:
        return row
    row = {**row, "repeats": runs}
    for key in ("ms", "flops_per_s", "of_matmul"):
        values = [run[key] for run in runs if run.get(key) is not None]
        row[key] = statistics.median(values) if values else None
    names = dict.fromkeys(name for run in runs for name in run["ratios"])
    row["ratios"] = {
        name: statistics.median(run["ratios"][name] for run in runs if name in run["ratios"])
        for name in names
    }
    return row


def merge_sections(old, new):
    sections = dict(old)
    for name, section in new.items():
        before = sections.get(name)
        sections[name] = (
            section
            if before is None
            else {
                "ok": before["ok"] and section["ok"],
                "summary": f"{before['summary']}; {section['summary']}",
                "seconds": round(before["seconds"] + section["seconds"], 1),
            }
        )
    return sections


# What a section found in runs that are in the file themselves, and what no table or plot reads.
DERIVED = ("counters", "hbm", "timing", "scale", "sanitizer", "sources", "peers_seconds")


UNREAD = ("kernels", "sites", "remarks", "parent", "host_ms", "slowed", "damage", "finding")


def slim(tree):
    """Without what no table, plot or comparison of stored results reads; figures of 6 digits."""
    if isinstance(tree, dict):
        dropped = (*UNREAD, "buffers", "per_element", "rmse", "message", "input_note")
        return {key: slim(value) for key, value in tree.items() if key not in dropped}
    if isinstance(tree, list):
        return [slim(value) for value in tree]
    return float(f"{tree:.6g}") if isinstance(tree, float) else tree


def publish(paths, folder):
    """docs/results/<gpu>.json and <gpu>_bf16.json of what these files hold; returns their paths."""
    merged = merge(paths)
    for key in DERIVED:
        merged.pop(key, None)
    # A call that was cut short is no news when a later one has done its work.
    merged["commands"] = [
        c
        for c in {c["command"]: c for c in merged.get("commands", [])}.values()
        if not re.match(PROGRAM_CALLS, c["name"])
    ]
    model = model_of(merged.get("device") or "")
    if not model:
        raise BadInput(f"'{merged.get('device')}' is not in common/data/gpus.json: add it there")
    written = []
    for suffix, fp32 in (("", True), ("_bf16", False)):
        part = slim(merged)
        part["runs"] = [
            run for run in part["runs"] if (get(run, "problem.dtype") == "fp32") == fp32
        ]
        if part.get("peers"):
            rows = [row for row in part["peers"]["rows"] if (row["dtype"] == "fp32") == fp32]
            part["peers"] = {**part["peers"], "rows": rows}
            if not rows:
                part.pop("peers")
        if not fp32:
            part.pop("figure2", None)
            part.pop("memory", None)
        if not part["runs"] and not part.get("peers"):
            continue
        part["notes"] = roof_notes(part["runs"], part["device"])
        path = os.path.join(folder, f"{model.lower()}{suffix}.json")
        write_rows(path, part)
        written.append(path)
    return written
