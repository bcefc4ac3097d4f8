"""Runs variants and head dimensions in the simulator as each kind of GPU: what runs where.

    maintain where      the table in docs/gpu.md

A variant and head dimension runs as the GPU with the least shared memory of those that its
architecture allows, and as one with the most. Where both launch the same kernels, so does each
between: a step takes the first of its tiles that fits, and they are template arguments. Where they
differ, it runs once for each size between. GPUs with the same shared memory count as one: a step's
host functions know only that and the number of SMs (fa::Gpu), which shapes grids.

A cell says "-" where the architecture does not allow the step, "VARIANT, ..." where it allows only
these, "not VARIANT d=D, ..." where a block would need more shared memory than the GPU gives it.
Exit status: 0 done, 1 a program failed, 2 bad use.
"""

import concurrent.futures
import os

from flash_steps import command
from flash_steps.command import Failure, NotHere
from flash_steps.gpu_table import find_model
from flash_steps.results import runs_of
from flash_steps.steps import (
    ROOT,
    all_needs_of,
    described,
    numbered_steps,
    program_of,
    report_of,
    runs_on,
)
from flash_steps.text import Column, markdown_table

SIM_BUILD = os.path.join(ROOT, "build", "sim")
# (row of common/data/gpus.json, others with its architecture and shared memory)
KINDS = (
    ("T4", "T4"),
    ("A100", "A100"),
    ("RTX 3090", "RTX 30, A10"),
    ("RTX 4090", "RTX 40, L4"),
    ("RTX 5090", "RTX 50"),
    ("H200", "H100, H200"),
    ("B200", "B200"),
)
PROBLEM = ("--h=1", "--n=8", "--input=normal", "--workers=1")


def built():
    return all(os.path.exists(program_of(SIM_BUILD, step)) for step in numbered_steps())


def launched(build, step, gpu, variant, d):
    """The kernels' names; None where a block would need more shared memory than the GPU gives."""
    flags = (f"--gpu={gpu}", f"--variant={variant}", f"--d={d}", *PROBLEM)
    try:
        report = report_of(program_of(build, step), *flags)
    except NotHere as refusal:
        if "bytes of shared memory for a block" in str(refusal):
            return None
        raise Failure(f"{step} {' '.join(flags)}: {refusal}") from None
    runs = runs_of(report, step)
    return [kernel["name"] for run in runs for kernel in run.get("kernels") or []]


def shared_bytes(gpu):
    model = find_model(gpu)
    return model["sm_shared_bytes"] - model["block_reserved_bytes"]


def refused_by(gpus, kernels_on):
    """GPUs with too little shared memory for a case; kernels_on(gpu): what it launches there."""
    gpu_of = {shared_bytes(gpu): gpu for gpu in gpus}
    sizes = sorted(gpu_of)
    kernels = {size: kernels_on(gpu_of[size]) for size in {sizes[0], sizes[-1]}}
    same = kernels[sizes[0]] == kernels[sizes[-1]]
    for size in sizes[1:-1]:
        kernels[size] = kernels[sizes[0]] if same else kernels_on(gpu_of[size])
    return {gpu for gpu in gpus if kernels[shared_bytes(gpu)] is None}


def cells(build, step, gpus, pool):
    """{gpu: "yes", "VARIANT, ...", "not VARIANT d=D, ..." or "-"}."""
    variants = described(program_of(build, step))["variants"]

    def can(gpu, variant):
        return runs_on(find_model(gpu)["arch"], variant["needs"])

    def refusals(case):
        variant, d = case
        return refused_by(
            [gpu for gpu in gpus if can(gpu, variant)],
            lambda gpu: launched(build, step, gpu, variant["name"], d),
        )

    cases = [
        (v, d) for v in variants if any(can(gpu, v) for gpu in gpus) for d in v["supports"]["d"]
    ]
    refused = list(zip(cases, pool.map(refusals, cases)))
    found = {}
    for gpu in gpus:
        missing = [f"{v['name']} d={d}" for (v, d), where in refused if gpu in where]
        some = [v["name"] for v in variants if can(gpu, v)]
        if missing:
            found[gpu] = "not " + ", ".join(missing)
        else:
            found[gpu] = "yes" if len(some) == len(variants) else ", ".join(some) or "-"
    return found


def markdown():
    steps = numbered_steps()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = [
            {"step": step, "needs": ", ".join(all_needs_of(step)) or "any GPU"}
            | cells(SIM_BUILD, step, [gpu for gpu, _ in KINDS], pool)
            for step in steps
        ]
    columns = [
        Column(("", "step"), lambda row: row["step"], left=True),
        Column(("", "needs"), lambda row: row["needs"], left=True),
    ]
    for gpu, title in KINDS:
        head = f"{title} ({find_model(gpu)['arch']}, {shared_bytes(gpu) // 1024} KB)"
        columns.append(Column(("", head), lambda row, gpu=gpu: row[gpu], left=True))
    return markdown_table(columns, rows)


def main():
    command.parser(__doc__).parse_args()
    print(markdown())
    return 0
