"""Results of `maintain measure` become docs/results/<gpu>.json and <gpu>_bf16.json."""

import os

from flash_steps.command import BadInput
from flash_steps.files import read_json, write_rows
from flash_steps.gpu_table import model_of
from flash_steps.results import Run, get, load_folder

from .measured import matmul_of, median_row, place_of, repeats_of

# Parts of a run that no table, plot or comparison of stored results reads.
UNREAD = """
    kernels sites remarks parent host_ms slowed damage finding findings buffers per_element rmse
    message input_note check check_again check_complete naive_workspace_bytes bound_ms
    prediction_ok standing schema seed idea variant_idea
""".split()


def slim(tree):
    """Figures of 6 digits, without the unread parts."""
    if isinstance(tree, dict):
        return {key: slim(value) for key, value in tree.items() if key not in UNREAD}
    if isinstance(tree, list):
        return [slim(value) for value in tree]
    return float(f"{tree:.6g}") if isinstance(tree, float) else tree


def without_nulls(tree):
    if not isinstance(tree, dict):
        return tree
    return {k: without_nulls(v) for k, v in tree.items() if v is not None or k == "commit"}


def identity(data):
    """Runs with the same key replace earlier ones; a simulated run's GPU is the modelled one."""
    run = Run(data, "forward")
    return run.key, run.kind, run.get("device.name" if run.kind == "gpu" else "model_gpu")


def published_peers(result):
    """From the results of peers.py: the repeats at the GPU's full speed, and the steps' ratios."""
    rates = {}
    for row in result["rows"]:
        rates.setdefault(row["dtype"], []).extend(matmul_of(row, run) for run in repeats_of(row))
    rows, kept = [], {}
    for row in result["rows"]:
        least = 0.9 * max(rates[row["dtype"]])
        repeats = [run for run in repeats_of(row) if matmul_of(row, run) >= least]
        if repeats:
            row = median_row(row, repeats)
            kept.setdefault(row["dtype"], []).extend(matmul_of(row, run) for run in repeats)
            row["repeats"] = [{"ratios": run["ratios"]} for run in repeats]
            rows.append(row if row["step"] else {k: v for k, v in row.items() if k != "repeats"})
    matmul = {dtype: [min(found), max(found)] for dtype, found in kept.items()}
    return {**result, "matmul": matmul, "rows": rows}


def merge_peers(old, new, path):
    for key in ("torch", "rounds", "iters") if old else ():
        if old[key] != new[key]:
            raise BadInput(
                f"{path} has '{key}' {old[key]}, what was measured now {new[key]}: one table "
                "cannot hold both; remove the file's peers"
            )
    rows = {place_of(row): row for row in (old["rows"] if old else [])}
    rows |= {place_of(row): row for row in new["rows"]}
    about = ("device", "torch", "rounds", "iters", "notes", "matmul")
    return {**{key: new[key] for key in about}, "rows": list(rows.values())}


def publish(folders, target):
    """Adds the results in these folders to the files of their GPU in `target`: their paths."""
    written = []
    for folder in folders:
        about = read_json(os.path.join(folder, "results.json"))
        device, model = about["device"], model_of(about["device"])
        if not model:
            raise BadInput(f"'{device}' is not in common/data/gpus.json: add it there")
        measured = os.path.join(folder, "peers.json")
        peers = read_json(measured) if os.path.exists(measured) else {"rows": []}
        found = [run for name in ("gpu", "sim") for run in load_folder(os.path.join(folder, name))]
        made = [run.data for run in found if run.direction == "forward"]  # which holds all passes
        for suffix, fp32 in (("", True), ("_bf16", False)):
            path = os.path.join(target, f"{model.lower()}{suffix}.json")
            old = read_json(path) if os.path.exists(path) else {}
            runs = [r for r in made if (get(r, "problem.dtype") == "fp32") == fp32]
            mine = [row for row in peers["rows"] if (row["dtype"] == "fp32") == fp32]
            if not runs and not mine:
                continue
            of_runs = {identity(run): run for run in [*old.get("runs", []), *runs]}
            found = {key: about[key] for key in ("device", "driver", "toolkit", "date")}
            found["peers"] = old.get("peers")
            if mine:
                new = published_peers({**peers, "rows": mine})
                merged = merge_peers(old.get("peers"), new, path)
                found["peers"] = {**merged, "date": about["date"]}
            found["runs"] = list(map(without_nulls, of_runs.values()))
            write_rows(path, slim(found))
            written.append(path)
    return list(dict.fromkeys(written))
