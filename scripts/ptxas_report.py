#!/usr/bin/env python3
"""Compiles every step's kernels with nvcc and reads what ptxas says about them.

    ptxas_report.py [--nvcc NVCC] [--jobs N] [--out DIR] [STEP | FILE.cu ...]

Prints registers, static shared memory and spills per kernel. Without arguments it takes all steps
of steps/CMakeLists.txt, each for the architecture that it NEEDS, or sm_80. Needs no GPU.
Exit status: 0 clean; 1 when a file does not compile, or a kernel has a stack frame or a spill, or
its wgmma instructions were serialised; 2 bad use.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEFAULT_ARCH = "sm_80"


@dataclass
class Kernel:
    name: str  # mangled
    registers: int = 0
    smem: int = 0  # bytes, static
    stack: int = 0  # bytes, as are the spills
    spill_stores: int = 0
    spill_loads: int = 0
    serialised: bool = False

    @property
    def clean(self):
        return not (self.stack or self.spill_stores or self.spill_loads or self.serialised)


def parse(text):
    """The kernels in the output of `ptxas -v`.

    A warning about serialised wgmma names its function or stands between two kernels' lines; in
    both cases it belongs to one kernel.
    """
    kernels, current, properties_of = {}, None, None
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            current = properties_of = kernels.setdefault(found[1], Kernel(found[1]))
        elif found := re.search(r"Function properties for (\w+)", line):
            # Device functions that were not inlined are listed too; a call costs a stack frame.
            properties_of = kernels.get(found[1], current)
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                                r"(\d+) bytes spill loads", line):
            if properties_of:
                properties_of.stack += int(found[1])
                properties_of.spill_stores += int(found[2])
                properties_of.spill_loads += int(found[3])
        elif found := re.search(r"Used (\d+) registers", line):
            if current:
                current.registers = int(found[1])
                smem = re.search(r"(\d+) bytes smem", line)
                current.smem = int(smem[1]) if smem else 0
        elif "wgmma" in line and "serialized" in line:
            named = re.search(r"function '(\w+)'", line)
            kernel = kernels.setdefault(named[1], Kernel(named[1])) if named else current
            if kernel:
                kernel.serialised = True
    return list(kernels.values())


def demangled(names):
    """Readable names without parameter lists, where c++filt is there."""
    if not shutil.which("c++filt") or not names:
        return names
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                          check=True).stdout
    return [re.sub(r"^void ", "", re.sub(r"\(anonymous namespace\)::", "", line)).split("(")[0]
            for line in text.splitlines()]


def numbers_in_order(name):
    """A sort key: kernel<96> before kernel<128>."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def steps_and_needs():
    """[(step, architecture)] from steps/CMakeLists.txt."""
    with open(os.path.join(ROOT, "steps", "CMakeLists.txt"), encoding="utf-8") as file:
        calls = re.findall(r"^fa_step\((\w+)(?:\s+NEEDS\s+(\w+))?\s*\)", file.read(), re.MULTILINE)
    return [(name, needs or DEFAULT_ARCH) for name, needs in calls]


def nvcc_command(nvcc, source, arch, output):
    virtual = arch.replace("sm_", "compute_")
    launcher = ["ccache"] if shutil.which("ccache") else []
    return launcher + [nvcc, "-std=c++20", "-O3", "-I", ROOT, "-gencode",
                       f"arch={virtual},code={arch}", "-Xptxas", "-v", "-c", source, "-o", output]


def compile_one(nvcc, label, source, arch, out):
    """(label, architecture, kernels, error text or None)."""
    output = os.path.join(out, label + ".o")
    done = subprocess.run(nvcc_command(nvcc, source, arch, output), capture_output=True, text=True)
    text = done.stdout + done.stderr
    return label, arch, parse(text), text if done.returncode else None


def find_nvcc():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="STEP or FILE.cu")
    parser.add_argument("--nvcc", default=find_nvcc())
    parser.add_argument("--arch", help=f"for files (default {DEFAULT_ARCH})", default=DEFAULT_ARCH)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "nvcc"))
    args = parser.parse_args()
    if not args.nvcc:
        print("ptxas_report.py: no nvcc here: install the CUDA toolkit or give --nvcc",
              file=sys.stderr)
        return 2

    known = dict(steps_and_needs())
    work = []  # (label, source, architecture)
    for what in args.what or known:
        if what in known:
            work.append((what, os.path.join(ROOT, "steps", what, "main.cu"), known[what]))
        elif what.endswith(".cu") and os.path.exists(what):
            work.append((os.path.basename(what)[:-len(".cu")], what, args.arch))
        else:
            print(f"ptxas_report.py: '{what}' is neither a step nor a .cu file", file=sys.stderr)
            return 2

    os.makedirs(args.out, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda w: compile_one(args.nvcc, *w, args.out), work))

    bad = []
    print(f"{'step':<26}{'arch':<8}{'registers':>9} {'smem':>7} {'stack':>6} {'spills':>7}  kernel")
    seen = set()  # a step also compiles its parent's kernels, whose formulas it compares with
    for label, arch, kernels, error in results:
        if error:
            bad.append(f"{label} does not compile:\n{error}")
            continue
        names = demangled([k.name for k in kernels])
        for name, kernel in sorted(zip(names, kernels), key=lambda pair: numbers_in_order(pair[0])):
            if (name, arch) in seen:
                continue
            seen.add((name, arch))
            spills = kernel.spill_stores + kernel.spill_loads
            print(f"{label:<26}{arch:<8}{kernel.registers:>9} {kernel.smem:>7} {kernel.stack:>6} "
                  f"{spills:>7}  {name}")
            if not kernel.clean:
                why = ([f"a stack frame of {kernel.stack} bytes"] if kernel.stack else []) + (
                    [f"{spills} bytes of spills"] if spills else []) + (
                    ["serialised wgmma"] if kernel.serialised else [])
                bad.append(f"{label}: {name} has {' and '.join(why)}")
    for sentence in bad:
        print("finding: " + sentence)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
