"""Estimates, in the simulator, the times that docs/results holds as measured.

    maintain estimates [--max-n N] [--gpu H200] [--steps "06 07"] [--jobs 2]

For each problem of FlashAttention's series that was timed on this kind of GPU it simulates one head
and estimates the time for all of them. Writes docs/results/estimates.json; rows of other steps,
sizes and GPUs stay. Prints estimated over measured: the geometric mean, the least and the largest
of each variant. Exit status: 0 done, 1 a program failed, 2 bad use, 3 not built.
"""

import concurrent.futures
import glob
import json
import math
import os
import subprocess
import tempfile

from .command import BadInput, Failure, NotHere, parser
from .files import read_json, replace_text
from .problems import in_series
from .results import load
from .step_text import digest_of
from .steps import ROOT, chosen_of, numbered_steps

RESULTS = os.path.join(ROOT, "docs", "results")
ESTIMATES = os.path.join(RESULTS, "estimates.json")
SIZES = ("b", "h", "n", "d", "causal")
KEY = ("gpu", "step", "variant", "direction", *SIZES)
FEW_HEADS = 4  # simulated as they are


def short_name(device):
    """H200 of "NVIDIA H200"."""
    return device.removeprefix("NVIDIA ").split()[0]


def published():
    """docs/results/*.json of steps that ran on a GPU."""
    names = sorted(glob.glob(os.path.join(RESULTS, "*.json")))
    other = ("estimates", "microbenchmarks")
    return [name for name in names if not os.path.basename(name).startswith(other)]


def plain(problem):
    return (
        problem["hkv"] == problem["h"] and problem["nk"] == problem["n"] and not problem.get("smem")
    )


def measured_times():
    """{KEY's values: milliseconds} of all results: the programs' own, else those of peers.py."""
    times = {}
    for path in published():
        tree = read_json(path)
        for row in (tree.get("peers") or {}).get("rows", []):
            if plain(row):
                row = {**row, "gpu": short_name(tree["device"])}
                times[tuple(row[key] for key in KEY)] = row["ms"]
        for run in load(path):
            problem, ms = run.data["problem"], run.get("time.median_ms")
            if ms and plain(problem) and not run.borrowed:
                place = short_name(run.get("device.name")), run.data["step"], run.variant
                times[(*place, run.direction, *(problem[size] for size in SIZES))] = ms
    return times


def simulate(cell):
    """{direction: (milliseconds, what limits it)}."""
    gpu, step, variant, *sizes = cell
    sizes = dict(zip(SIZES, sizes))
    program = os.path.join(ROOT, "build/sim/steps", step)
    if not os.path.exists(program):
        raise NotHere(f"{program} is not there: build the preset sim first")
    heads = sizes["b"] * sizes["h"]
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "run.json")
        call = [program, "--variant", variant, "--input", "normal", "--gpu", gpu, "--json", report]
        call += ["--h", str(heads if heads <= FEW_HEADS else 1), "--n", str(sizes["n"])]
        call += ["--d", str(sizes["d"]), "--estimate-heads", str(heads)]
        call += ["--causal"] if sizes["causal"] else []
        done = subprocess.run(call, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{' '.join(call)} failed: {done.stderr.strip()}")
        run = read_json(report)
    found = {"forward": run["estimate"]}
    if run["backward"]:
        found["backward"] = run["backward"]["estimate"]
    return {direction: (e["ms"], e["limit"]) for direction, e in found.items()}


def kept():
    """{KEY's values: row} of estimates.json."""
    if not os.path.exists(ESTIMATES):
        return {}
    return {tuple(row[key] for key in KEY): row for row in read_json(ESTIMATES)["rows"]}


def write(rows):
    lines = ",\n".join("    " + json.dumps(rows[key]) for key in sorted(rows))
    replace_text(ESTIMATES, f'{{\n  "schema": 1,\n  "rows": [\n{lines}\n  ]\n}}\n')


def ratios(rows, measured):
    """{(gpu, step, variant, direction): [estimated / measured]}."""
    found = {}
    for key, row in rows.items():
        if key in measured:
            found.setdefault(key[:4], []).append(row["ms"] / measured[key])
    return found


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def main():
    p = parser(__doc__)
    p.add_argument("--max-n", type=int, default=4096)
    p.add_argument("--min-n", type=int, default=0)
    p.add_argument("--gpu", default="H200")
    p.add_argument("--steps")
    p.add_argument("--jobs", type=int, default=2)
    args = p.parse_args()
    measured = measured_times()
    steps = chosen_of(numbered_steps(), args.steps, "there are")
    wanted = {}
    for key in measured:
        sizes = dict(zip(SIZES, key[4:]))
        small = sizes["b"] * sizes["h"] <= FEW_HEADS
        fits = args.min_n <= sizes["n"] <= args.max_n
        if key[0] == args.gpu and key[1] in steps and fits and (in_series(sizes) or small):
            wanted.setdefault((*key[:3], *key[4:]), set()).add(key[3])
    if not wanted:
        raise BadInput(f"docs/results has no measured time for --gpu {args.gpu} at these sizes")
    rows = kept()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for cell, found in zip(wanted, pool.map(simulate, wanted)):
            for direction in wanted[cell]:
                key = (*cell[:3], direction, *cell[3:])
                ms, limit = found[direction]
                rows[key] = {**dict(zip(KEY, key)), "ms": round(ms, 6), "limit": limit}
                rows[key]["text"] = digest_of(cell[1])
                factor = f"{ms / measured[key]:.2f}x"
                print(*key[1:], f"{ms:.4g} ms, {factor} of measured, {limit}", flush=True)
    write(rows)
    for key, values in sorted(ratios(rows, measured).items()):
        span = f"{mean(values):.2f}x ({min(values):.2f} to {max(values):.2f})"
        print(f"{' '.join(key):55} {span}, {len(values)} problems")
    return 0
