"""Compiles one step, or a kernel of your own, and says what ptxas says of each kernel.

    ./scripts/ptxas 10                       a step, by its number or name
    ./scripts/ptxas mine --d 128             one head dimension of it, which is faster
    ./scripts/ptxas steps/mine/kernel.cuh    a file, .cu or .cuh; or a folder that holds main.cu

Prints registers, bytes of static shared memory, stack frame and spills, and barriers per kernel. A
remark on wgmma or setmaxnreg (C7504 to C7520) is a finding; docs/ptxas.md says what each means and
how to get rid of it. It needs nvcc and no GPU, and takes seconds.
Exit status: 0 no finding; 1 a kernel has a stack frame or a spill or a remark, or the file does not
compile; 2 bad use; 3 no nvcc.
"""

import os
import re
import shutil
import subprocess
import tempfile

from . import command
from .command import BadInput, Failure, NotHere
from .files import ROOT, read_text
from .nvcc import arches_of, find_nvcc, nvcc_command, version_of
from .ptxas_report import by_name, parse
from .steps import all_needs_of, find_steps, runs_on

FILE_ARCH = "sm_90a"  # has all instructions of the dialect
DIALECT = os.path.join("common", "dialect")


def source_of(what):
    """(the file to compile, the step that it belongs to or None)."""
    if os.path.isdir(what):
        what = os.path.join(what, "main.cu")
        if not os.path.isfile(what):
            raise BadInput(f"{what} does not exist: name a file of the folder")
    if os.path.isfile(what):
        if not what.endswith((".cu", ".cuh")):
            raise BadInput(f"{what} is neither a .cu nor a .cuh file")
        inside = re.match(r"steps/(\w+)/", os.path.relpath(os.path.realpath(what), ROOT))
        return os.path.abspath(what), inside and inside[1]
    if what.endswith((".cu", ".cuh")) or "/" in what:
        raise BadInput(f"{what} does not exist")
    steps = find_steps()
    found = [step for step in steps if step == what or step.startswith(what + "_")]
    if len(found) != 1:
        raise BadInput(f"'{what}' is no step, file or folder; the steps are {', '.join(steps)}")
    return os.path.join(ROOT, "steps", found[0], "main.cu"), found[0]


def one_head_dimension(source, d):
    """The text of a file that has only the kernels of this d that fa::dispatch_d() chooses."""
    return (
        '#include "common/harness/step.h"\n'
        f"template <int d>\n  requires(d != {d})\n"
        "inline constexpr bool fa::has_kernels_of<d> = false;\n"
        f'#include "{source}"\n'
    )


class Places:
    """The lines of the source that a PTX with line numbers was made from."""

    def __init__(self, ptx):
        self.lines = ptx.splitlines()
        self.files = dict(re.findall(r'^\s*\.file\s+(\d+) "([^"]*)"', ptx, re.MULTILINE))

    def of(self, line):
        """ "kernel.cuh:42" of a line of the PTX: where the kernel calls the dialect; or ""."""
        for text in reversed(self.lines[:line]):
            if not text.lstrip().startswith(".loc"):
                continue
            for file, at in re.findall(r"(?:\.loc|inlined_at)\s+(\d+) (\d+) \d+", text):
                path = self.files.get(file, "")
                if path and DIALECT not in path:
                    return f"{os.path.basename(path)}:{at}"
        return ""


def arch_of(asked, step, nvcc):
    r"""(the architecture to compile for, nvcc's options for it).

    \raises BadInput when the step does not run on it, or nvcc does not know it."""
    needs = (step and all_needs_of(step)) or [None]
    arch = asked or (arches_of(needs[-1])[-1] if step else FILE_ARCH)
    codes = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True)
    if not re.fullmatch(r"sm_\d+[af]?", arch) or arch.rstrip("af") not in codes.stdout.split():
        raise BadInput(f"{arch}: {nvcc} knows {', '.join(codes.stdout.split())}")
    # sm_90a's code is not sm_90's.
    does = [n for n in needs if arch == n or runs_on(arch, n) and not (n or "").endswith("a")]
    if not does:
        raise BadInput(f"{arch}: {step} needs {needs[0]}")
    return arch, () if needs[-1] in does else ("-DFA_NO_WGMMA",)


def compiled(nvcc, source, arch, d, name, options=()):
    """([(name, Kernel)], Places).

    \\raises Failure with what nvcc says when it does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        if d:
            text = one_head_dimension(source, d)
            source = os.path.join(folder, "one_d.cu")
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
        ptx = os.path.join(folder, "kernels.ptx")
        # As nvcc does it by itself, in two calls: ptxas names lines of the PTX.
        said = ""
        for file, output, kind in ((source, ptx, "-ptx"), (ptx, "/dev/null", "-cubin")):
            more = ("-lineinfo", "-x", "cu", *options) if kind == "-ptx" else ()
            call = nvcc_command(nvcc, file, arch, output, kind=kind, more=more)
            done = subprocess.run(call, capture_output=True, text=True)
            said += done.stdout + done.stderr
            if done.returncode:
                raise Failure(f"{name} does not compile:\n{said.rstrip()}")
        return by_name(parse(said)), Places(read_text(ptx))


def findings_of(name, kernel, places):
    """A sentence for each fault; a remark that stands at several lines is one."""
    out = []
    if kernel.in_memory:
        out.append(f"{name}: {' and '.join(kernel.in_memory)} (docs/ptxas.md#spills)")
    at = {}  # of each remark
    for remark in kernel.remarks:
        lines = at.setdefault((remark.code, remark.words), [])
        place = places.of(remark.line) if remark.line else ""
        if place and place not in lines:
            lines.append(place)
    for (code, words), lines in at.items():
        where = f" at {', '.join(lines)}" if lines else ""
        page = f" (docs/ptxas.md#{code.lower()})" if code else ""
        out.append(f"{name}: {code + ': ' if code else ''}{words}{where}{page}")
    return out


def main():
    parser = command.parser(__doc__)
    parser.add_argument("what", metavar="STEP, FILE or FOLDER")
    parser.add_argument("--d", type=int, help="only this head dimension (default: all)")
    parser.add_argument(
        "--arch", help=f"default: what the step needs, and at least sm_90; of a file {FILE_ARCH}"
    )
    parser.add_argument("--nvcc", default=find_nvcc(), help="default: that of PATH")
    args = parser.parse_args()
    source, step = source_of(args.what)
    if not args.nvcc or not shutil.which(args.nvcc):
        raise NotHere("nvcc was not found: install the CUDA toolkit or give --nvcc")
    arch, options = arch_of(args.arch, step, args.nvcc)

    kernels, places = compiled(args.nvcc, source, arch, args.d, args.what, options)
    if not any(kernel.entry for _, kernel in kernels):
        raise BadInput(f"{args.what} has no kernel{' of this d' if args.d else ''}")
    print(f"{step or args.what} for {arch}, nvcc {version_of(args.nvcc)}")
    print(f"{'registers':>9} {'smem':>6} {'stack':>6} {'spills':>6} {'barriers':>8}  kernel")
    findings = []
    for name, kernel in kernels:
        if kernel.entry:
            print(
                f"{kernel.registers:>9} {kernel.smem:>6} {kernel.stack:>6} {kernel.spills:>6} "
                f"{kernel.barriers:>8}  {name}"
            )
        findings += findings_of(name, kernel, places)
    for sentence in findings:
        print("finding: " + sentence)
    if not findings:
        print("no finding: no stack frame, no spill, no remark on wgmma")
    return 1 if findings else 0
