"""nvcc: where it is, what it compiles a step for and how."""

import re
import shutil
import subprocess

from .steps import ROOT, runs_on

# The GPUs that people have: T4; A100; RTX 30; RTX 40; H100, H200; RTX 50.
ALL_ARCHES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
STEP_ARCHES = ("sm_80", "sm_90")  # the oldest one with all that they use; registers.json's


def demangled(names):
    """Names as the simulator has them, without parameter lists, where c++filt is there."""
    if not shutil.which("c++filt") or not names:
        return names
    text = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout
    return [without_parameters(line) for line in text.splitlines()]


def without_parameters(function):
    """ "ns::k<(ns::E)1>" of "void ns::k<(ns::E)1>(float (*) [2], int)"."""
    depth = 0
    for at, char in enumerate(function):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0 and not function.startswith("(anonymous", at):
            function = function[:at]
            break
    return function.removeprefix("void ")


def arches_of(needs):
    """What a step is compiled for: sm_90 besides what it needs, unless that runs nowhere else."""
    if needs is None:
        return STEP_ARCHES
    return (needs,) if needs.endswith("a") else tuple(dict.fromkeys((needs, "sm_90")))


def every_arch_of(needs, nvcc):
    """All of ALL_ARCHES that run the step and that this nvcc makes code for."""
    if needs and needs.endswith("a"):
        return (needs,)
    codes = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True)
    made = codes.stdout.split()
    return tuple(arch for arch in ALL_ARCHES if arch in made and runs_on(arch, needs))


def nvcc_command(nvcc, source, arch, output, host=False, root=ROOT, kind="-cubin", more=()):
    """`host`: compile the host's half of the file, too, which is the same for all architectures;
    else `kind` is what to make. `more`: further options."""
    virtual = arch.replace("sm_", "compute_")
    launcher = ["ccache"] if shutil.which("ccache") else []
    return launcher + [
        nvcc,
        "-std=c++20",
        "-O3",
        "-I",
        root,
        "-gencode",
        f"arch={virtual},code={arch}",
        "-Xptxas",
        "-v",
        *(("-Xcompiler", "-O0", "-c") if host else (kind,)),
        *more,
        source,
        "-o",
        output,
    ]


def find_nvcc():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def version_of(nvcc):
    """'13.0.88'; None where it does not say."""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bV(\d+(?:\.\d+)+)", text)
    return found[1] if found else None
