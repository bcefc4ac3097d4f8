"""nvcc: where it is, and the architectures and flags for a step."""

import re
import shutil
import subprocess

from .steps import ROOT, runs_on

# Common GPUs: T4; A100; RTX 30; RTX 40; H100, H200; RTX 50.
ALL_ARCHES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
ALSO = {"sm_100a": ("sm_103a",)}  # compiles the same step, which then runs there
STEP_ARCHES = ("sm_80", "sm_90")  # the oldest with all that they use; for registers.json


def arches_of(needs=None):
    """The architectures of a step: sm_90 besides what it needs, unless it runs nowhere else."""
    if needs is None:
        return STEP_ARCHES
    return (needs,) if needs.endswith("a") else tuple(dict.fromkeys((needs, "sm_90")))


def every_arch_of(needs, nvcc):
    """All of ALL_ARCHES that run the step and for which this nvcc generates code."""
    command = [nvcc, "--list-gpu-code"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if needs and needs.endswith("a"):
        return tuple(a for a in (needs, *ALSO.get(needs, ())) if a.rstrip("a") in made)
    return tuple(arch for arch in ALL_ARCHES if arch in made and runs_on(arch, needs))


def nvcc_command(nvcc, source, arch, output, root=ROOT, kind="-cubin"):
    virtual = arch.replace("sm_", "compute_")
    launcher = ["ccache"] if shutil.which("ccache") else []
    call = [nvcc, "-std=c++20", "-O3", "-I", root, "-gencode", f"arch={virtual},code={arch}"]
    call += ["-Xptxas", "-v", kind]
    return [*launcher, *call, source, "-o", output]


def find_nvcc():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def version_of(nvcc):
    """'13.0.88'; None where it does not say."""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bV(\d+(?:\.\d+)+)", text)
    return found[1] if found else None
