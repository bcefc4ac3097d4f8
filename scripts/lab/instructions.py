"""Writes common/data/instructions.json: how many instructions each kernel executes.

    maintain instructions --measure DIR    on a GPU, by ncu: a CSV per variant and head dimension
    maintain instructions --update DIR     from these and the simulator's counts
    ... --steps "07 10"                    only these; --update keeps the rows of the others. Step
                                           16, which needs a B200, is counted only where named

The simulator counts every instruction of a warp except plain arithmetic and control, which an
estimated time needs, too. A GPU counts them once, for a small problem, and the file keeps for each
kernel how many it executes per instruction that the simulator counts: in all, in the FMA pipe, in
the ALU pipe, and of special functions. --update needs a build of the simulator.
Exit status: 0 done, 1 a program failed, 2 bad use, 3 no GPU or no ncu.
"""

import csv
import io
import os
import re
import shutil
import subprocess

from flash_steps.command import BadInput, Failure, NotHere, parser
from flash_steps.files import read_json, read_text, write_rows, write_text
from flash_steps.steps import (
    ROOT,
    chosen_of,
    described,
    numbered_steps,
    program_of,
    report_of,
    steps_on,
)

INSTRUCTIONS = "common/data/instructions.json"
PROBLEM = {"h": 4, "n": 1024}  # the simulator counts one head of it: they are alike
CAUSAL = "with a mask where a kernel is compiled for it"
METRICS = {
    "all": "smsp__inst_executed.sum",
    "fma": "sm__inst_executed_pipe_fma.sum",
    "alu": "sm__inst_executed_pipe_alu.sum",
    "special": "sm__inst_executed_pipe_xu.sum",
}
ARCH = "sm_90"  # of the GPU where they are counted
SOURCE = (
    "Warp instructions that each kernel executes for one that the simulator counts (loads, stores, "
    "shuffles, tensor-core operations): in all, in the FMA and ALU pipes, and special functions. "
    f"Counted by ncu on an H200 at B=1 H=4 N=1024, {CAUSAL}. Written by ./scripts/maintain "
    "instructions; docs/clock.md says how times are estimated from it."
)


def programs(build, steps):
    for step in steps:
        path = program_of(build, step)
        for variant in described(path, os.path.basename(build))["variants"]:
            for d in variant["supports"]["d"]:
                name = variant["name"]
                call = [path, "--variant", name, "--d", str(d), "--input", "normal"]
                yield f"d{d}_{step}_{name}", call
                yield f"d{d}_{step}_{name}_causal", [*call, "--causal"]


def measure(folder, steps):
    ncu = shutil.which("ncu")
    if not ncu:
        raise NotHere("ncu is not on the PATH")
    os.makedirs(folder, exist_ok=True)
    sizes = [part for name, value in PROBLEM.items() for part in (f"--{name}", str(value))]
    flags = ["--csv", "--page", "raw", "--print-units", "base", "--metrics"]
    env = {**os.environ, "FLASH_STEPS_UNDER_TOOL": "1"}
    for name, call in programs(os.path.join(ROOT, "build/gpu"), steps):
        command = [ncu, *flags, ",".join(METRICS.values()), *call, *sizes]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        if done.returncode:
            raise Failure(f"{name}: ncu ended with {done.returncode}: {done.stderr.strip()[-200:]}")
        write_text(os.path.join(folder, name + ".csv"), done.stdout)
        print(name, flush=True)


def launches(path):
    """The kernels of an ncu CSV, each a row of its metrics, in the order of launches."""
    text = read_text(path)
    begin = text.find('"ID"')
    if begin < 0:
        raise BadInput(f"{path} holds no table of ncu")
    table = [line for line in text[begin:].splitlines() if line.startswith('"')]
    return list(csv.DictReader(io.StringIO("\n".join(table))))[1:]  # the first row: units


def bare(kernel):
    """step01::scores_kernel of "void step01::scores_kernel<64>(const float *...)"."""
    return re.split(r"[<(]", kernel.removeprefix("void "))[0].split("::")[-1]


def mixes(path, call):
    """The rows of instructions.json that one program's launches give."""
    run = report_of(*call, "--h=1", f"--n={PROBLEM['n']}")
    passes = [p for p in (run.get("prepare"), run, run["backward"]) if p]  # as they are launched
    counted = [k for p in passes for k in p["kernels"] if k["instructions"]]
    measured = launches(path)[: len(counted)]
    if [bare(k["name"]) for k in counted] != [bare(row["Kernel Name"]) for row in measured]:
        raise BadInput(f"{path}: other kernels than those of {' '.join(call)}")
    for kernel, row in zip(counted, measured):
        of = PROBLEM["h"] * kernel["instructions"]
        figures = {key: float(row[m].replace(",", "")) / of for key, m in METRICS.items()}
        yield kernel["name"], {key: round(value, 4) for key, value in figures.items()}


def update(folder, steps):
    kernels = {}
    for name, call in programs(os.path.join(ROOT, "build/sim"), steps):
        path = os.path.join(folder, name + ".csv")
        if not os.path.exists(path):
            raise BadInput(f"{path} is not there")
        kernels = dict(mixes(path, call)) | kernels  # causal: only kernels of their own
        print(name, flush=True)
    if len(steps) < len(steps_on(ARCH)):
        own = tuple("step" + step[:2] for step in steps)  # a step runs kernels of others, too
        kernels = {name: mix for name, mix in kernels.items() if name.startswith(own)}
        kernels = read_json(os.path.join(ROOT, INSTRUCTIONS))["kernels"] | kernels
    kernels = {name: kernels[name] for name in sorted(kernels)}
    path = os.path.join(ROOT, INSTRUCTIONS)
    write_rows(path, {"source": SOURCE, "kernels": kernels}, indent=2)


def main():
    p = parser(__doc__)
    p.add_argument("--measure", metavar="DIR")
    p.add_argument("--update", metavar="DIR")
    p.add_argument("--steps")
    args = p.parse_args()
    steps = chosen_of(numbered_steps() if args.steps else steps_on(ARCH), args.steps, "there are")
    if bool(args.measure) == bool(args.update):
        raise BadInput("needs --measure DIR or --update DIR")
    if args.measure:
        measure(args.measure, steps)
    else:
        update(args.update, steps)
    return 0
