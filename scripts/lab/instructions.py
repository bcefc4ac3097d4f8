"""Writes common/data/instructions.json: how many instructions each kernel executes.

    maintain instructions --measure DIR    on a GPU, by ncu: a CSV per variant and head dimension
    maintain instructions --update DIR     from these and the simulator's counts
    maintain instructions --static         step 16's from its machine code, where there is no B200
    ... --steps "07 10"                    only these; --update keeps the rows of the others

The simulator counts every instruction of a warp except plain arithmetic and control, which an
estimated time also needs. A GPU counts them once, for a small problem, and the file has for each
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
import tempfile

from flash_steps.command import BadInput, Failure, NotHere, parser
from flash_steps.files import read_json, read_text, write_rows, write_text
from flash_steps.nvcc import find_nvcc, nvcc_command
from flash_steps.steps import (
    ROOT,
    chosen_of,
    described,
    needs_of,
    numbered_steps,
    program_of,
    report_of,
    steps_on,
)

from . import sass

INSTRUCTIONS = "common/data/instructions.json"
N, HEADS = 1024, 4  # the simulator counts one of the heads, which are alike
CACHE = ["--n=1", f"--nk={32 * N}", "--h=8", "--hkv=2"]  # all of them: their splits fill the GPU
LATENT = ["--n=1", f"--nk={8 * N}", "--h=64"]  # one vector per key for all heads
MASK, SCORES = ["--causal", f"--window={N // 4},0"], ["--cap=50", "--alibi", "--sinks"]
METRICS = {
    "all": "smsp__inst_executed.sum",
    "fma": "sm__inst_executed_pipe_fma.sum",
    "alu": "sm__inst_executed_pipe_alu.sum",
    "special": "sm__inst_executed_pipe_xu.sum",
}
ARCH = "sm_90"  # of the GPU that counts them
STATIC = "16_blackwell"  # there is no GPU for it
SOURCE = (
    "Warp instructions that each kernel executes for one that the simulator counts (loads, stores, "
    "shuffles, tensor-core operations): in all, in the FMA and ALU pipes, and special functions. "
    "Counted by ncu on an H200 at B=1 H=4 N=1024, with a mask where a kernel is compiled for it, a "
    "window in step 15, a cache of 32,768 keys in step 13 and of 8,192 in step 17; static: from "
    "machine code for sm_100a, per tile of keys without mask and rescaling. Written by "
    "./scripts/maintain instructions; docs/clock.md says how times are estimated from it."
)


def programs(build, steps):
    """(name, program and options, options for more heads on the GPU, how many times more)"""
    for step in steps:
        path = program_of(build, step)
        described_step = described(path, os.path.basename(build))
        for variant in described_step["variants"]:
            for d in variant["supports"]["d"]:
                name = f"d{d}_{step}_{variant['name']}"
                call = [path, f"--variant={variant['name']}", f"--d={d}", "--input=normal"]
                if described_step["supports"]["lengths"]:
                    yield name, [*call, *(LATENT if d == 576 else CACHE)], [], 1
                elif variant["supports"]["window"]:
                    mask = MASK + SCORES * variant["supports"]["score_mod"]
                    yield name, [*call, f"--n={N}", *mask], [f"--h={HEADS}"], HEADS
                else:
                    call.append(f"--n={N}")
                    yield name, call, [f"--h={HEADS}"], HEADS
                    yield f"{name}_causal", [*call, "--causal"], [f"--h={HEADS}"], HEADS


def measure(folder, steps):
    ncu = shutil.which("ncu")
    if not ncu:
        raise NotHere("ncu is not on the PATH")
    os.makedirs(folder, exist_ok=True)
    flags = ["--csv", "--page", "raw", "--print-units", "base", "--metrics"]
    env = {**os.environ, "FLASH_STEPS_UNDER_TOOL": "1"}
    for name, call, more, _ in programs(os.path.join(ROOT, "build/gpu"), steps):
        command = [ncu, *flags, ",".join(METRICS.values()), *call, *more]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        if done.returncode:
            raise Failure(f"{name}: ncu ended with {done.returncode}: {done.stderr.strip()[-200:]}")
        write_text(os.path.join(folder, name + ".csv"), done.stdout)
        print(name, flush=True)


def launches(path):
    """The kernels of an ncu CSV, one row of metrics each, in launch order."""
    text = read_text(path)
    begin = text.find('"ID"')
    if begin < 0:
        raise BadInput(f"{path} holds no table of ncu")
    table = [line for line in text[begin:].splitlines() if line.startswith('"')]
    return list(csv.DictReader(io.StringIO("\n".join(table))))[1:]  # the first row: units


def bare(kernel):
    """step01::scores_kernel of "void step01::scores_kernel<64>(const float *...)"."""
    return re.split(r"[<(]", kernel.removeprefix("void "))[0].split("::")[-1]


def mixes(path, call, times):
    """Rows of instructions.json from one program, on the GPU with `times` the heads of `call`."""
    alone = ["--estimate-heads=0"] if times == 1 else ["--h=1"]
    run = report_of(*call, *alone)
    passes = [p for p in (run.get("prepare"), run, run["backward"]) if p]  # in launch order
    counted = [k for p in passes for k in p["kernels"] if k["instructions"]]
    measured = launches(path)[: len(counted)]
    if [bare(k["name"]) for k in counted] != [bare(row["Kernel Name"]) for row in measured]:
        raise BadInput(f"{path}: other kernels than those of {' '.join(call)}")
    for kernel, row in zip(counted, measured):
        of = times * kernel["instructions"]
        figures = {key: float(row[m].replace(",", "")) / of for key, m in METRICS.items()}
        yield kernel["name"], {key: round(value, 4) for key, value in figures.items()}


def update(folder, steps):
    kernels = {}
    for name, call, _, times in programs(os.path.join(ROOT, "build/sim"), steps):
        path = os.path.join(folder, name + ".csv")
        if not os.path.exists(path):
            raise BadInput(f"{path} is not there")
        kernels = dict(mixes(path, call, times)) | kernels  # causal: only further kernels
        print(name, flush=True)
    if len(steps) < len(steps_on(ARCH)):
        own = tuple("step" + step[:2] for step in steps)  # a step also runs kernels of others
        kernels = {name: mix for name, mix in kernels.items() if name.startswith(own)}
        kernels = read_json(os.path.join(ROOT, INSTRUCTIONS))["kernels"] | kernels
    kernels = {name: kernels[name] for name in sorted(kernels)}
    path = os.path.join(ROOT, INSTRUCTIONS)
    write_rows(path, {"source": SOURCE, "kernels": kernels}, indent=2)


def static_mixes(nvcc, nvdisasm, step):
    """The same from machine code, without a GPU: per tile of keys, no masking, no rescaling."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = os.path.join(folder, "kernels.cubin")
        source = os.path.join(ROOT, "steps", step, "main.cu")
        for call in (nvcc_command(nvcc, source, needs_of(step), cubin), [nvdisasm, "-c", cubin]):
            done = subprocess.run(call, capture_output=True, text=True)
            if done.returncode:
                raise Failure(f"{call[0]}: {done.stderr.strip()[-300:]}")
    kernels = sass.kernels(done.stdout)
    program = program_of(os.path.join(ROOT, "build/sim"), step)
    for variant in described(program)["variants"]:
        for d in variant["supports"]["d"]:
            call = [program, f"--variant={variant['name']}", f"--d={d}", "--h=1", f"--n={N}"]
            call += ["--gpu=B200", "--input=normal"]
            short, long = (report_of(*call, f"--nk={nk}")["kernels"][0] for nk in (N, 2 * N))
            warps = 8 if long["threads"] // long["blocks"] == 512 else 4  # of the softmax
            trips = long["blocks"] * N // 128
            of = (long["instructions"] - short["instructions"]) / trips
            trip = sass.trip_of(kernels[long["name"]], d, warps)
            yield long["name"], {key: round(value / of, 4) for key, value in trip.items()}


def update_static():
    nvcc, nvdisasm = find_nvcc(), shutil.which("nvdisasm")
    if not nvcc or not nvdisasm:
        raise NotHere("--static needs nvcc and nvdisasm on the PATH")
    path = os.path.join(ROOT, INSTRUCTIONS)
    found = {name: {**mix, "static": True} for name, mix in static_mixes(nvcc, nvdisasm, STATIC)}
    kernels = read_json(path)["kernels"] | found
    write_rows(path, {"source": SOURCE, "kernels": dict(sorted(kernels.items()))}, indent=2)


def main():
    p = parser(__doc__)
    p.add_argument("--measure", metavar="DIR")
    p.add_argument("--update", metavar="DIR")
    p.add_argument("--steps")
    p.add_argument("--static", action="store_true")
    args = p.parse_args()
    if bool(args.measure) + bool(args.update) + args.static != 1:
        raise BadInput("needs --measure DIR, --update DIR or --static")
    if args.static:
        update_static()
        return 0
    steps = chosen_of(numbered_steps() if args.steps else steps_on(ARCH), args.steps, "there are")
    if args.measure:
        measure(args.measure, steps)
    else:
        update(args.update, steps)
    return 0
