"""Runs every variant and head dimension in the simulator as each kind of GPU: what runs where.

    maintain where      the table in docs/gpu.md

A cell is found by running, there or on a GPU with less shared memory: "-" where the architecture
does not allow the step, "VARIANT, ..." where it allows only these, "not VARIANT d=D, ..." where a
block would need more shared memory than the GPU gives it.
Exit status: 0 done, 1 a program failed, 2 bad use.
"""

import concurrent.futures
import os
import subprocess

from flash_steps import command
from flash_steps.command import Failure
from flash_steps.gpu_table import find_model
from flash_steps.steps import ROOT, all_needs_of, described, numbered_steps, program_of, runs_on
from flash_steps.text import Column, markdown_table

SIM_BUILD = os.path.join(ROOT, "build", "sim")
# (row of common/data/gpus.json, who else has its architecture and its shared memory)
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


def runs(build, step, gpu, variant, d):
    flags = (f"--gpu={gpu}", f"--variant={variant}", f"--d={d}", *PROBLEM)
    call = [program_of(build, step), *flags]
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode != 0 and "bytes of shared memory for a block" not in done.stderr:
        raise Failure(f"{step} {' '.join(flags)}: {(done.stderr or done.stdout)[-300:]}")
    return done.returncode == 0


def shared_bytes(gpu):
    """Of a block, at most."""
    model = find_model(gpu)
    return model["sm_shared_bytes"] - model["block_reserved_bytes"]


def cells(build, step, gpus, pool):
    """{gpu: "yes", "VARIANT, ...", "not VARIANT d=D, ..." or "-"}."""
    variants = described(program_of(build, step))["variants"]
    found, ran = {}, set()
    for gpu in sorted(gpus, key=shared_bytes):
        some = [v for v in variants if runs_on(find_model(gpu)["arch"], v["needs"])]
        cases = [(v["name"], d) for v in some for d in v["supports"]["d"]]
        new = [case for case in cases if case not in ran]
        done = pool.map(lambda case, gpu=gpu: runs(build, step, gpu, *case), new)
        ran |= {case for case, right in zip(new, done) if right}
        missing = [f"{variant} d={d}" for variant, d in cases if (variant, d) not in ran]
        if missing:
            found[gpu] = "not " + ", ".join(missing)
        else:
            found[gpu] = "yes" if some == variants else ", ".join(v["name"] for v in some) or "-"
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
