"""Runs variants and head dimensions in the simulator as each kind of GPU: what runs where.

    maintain where      the table in docs/gpu.md

A variant and head dimension runs as the GPU with the least shared memory of those that its
architecture allows; where a block would need more, as the next. A step takes the first of its tiles
that fits, so what runs there runs on those with more.

A cell says "-" where the architecture does not allow the step, "VARIANT, ..." where it allows only
these, "not VARIANT d=D, ..." where a block would need more shared memory than the GPU gives it.
Exit status: 0 done, 1 a program failed, 2 bad use.
"""

import concurrent.futures
import os

from flash_steps import command
from flash_steps.command import Failure, NotHere
from flash_steps.gpu_table import find_model
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


def fits(program, gpu, variant, d):
    """Does it run there, or would a block need more shared memory than the GPU gives?"""
    flags = (f"--gpu={gpu}", f"--variant={variant}", f"--d={d}", *PROBLEM)
    try:
        report_of(program, *flags)
    except NotHere as refusal:
        if "bytes of shared memory for a block" in str(refusal):
            return False
        raise Failure(f"{program} {' '.join(flags)}: {refusal}") from None
    return True


def shared_bytes(gpu):
    model = find_model(gpu)
    return model["sm_shared_bytes"] - model["block_reserved_bytes"]


def cells(build, step, gpus, pool):
    """{gpu: "yes", "VARIANT, ...", "not VARIANT d=D, ..." or "-"}."""
    program = program_of(build, step)
    variants = described(program)["variants"]
    able = {
        gpu: [v["name"] for v in variants if runs_on(find_model(gpu)["arch"], v["needs"])]
        for gpu in gpus
    }

    def refusals(case):
        """The GPUs with too little shared memory."""
        name, d = case
        found = []
        for gpu in sorted((g for g in gpus if name in able[g]), key=shared_bytes):
            if fits(program, gpu, name, d):
                break
            found.append(gpu)
        return found

    cases = [(v["name"], d) for v in variants for d in v["supports"]["d"]]
    refused = list(zip(cases, pool.map(refusals, cases)))
    found = {}
    for gpu in gpus:
        missing = [f"{name} d={d}" for (name, d), where in refused if gpu in where]
        if missing:
            found[gpu] = "not " + ", ".join(missing)
        else:
            all_run = len(able[gpu]) == len(variants)
            found[gpu] = "yes" if all_run else ", ".join(able[gpu]) or "-"
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
