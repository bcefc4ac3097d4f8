"""Compiles a step, or a kernel of your own, with nvcc and shows ptxas's report of each kernel.

    ./scripts/ptxas 10                       a step, by its number or name
    ./scripts/ptxas steps/mine/kernel.cuh    a file, or a folder with main.cu
    ./scripts/ptxas                          all steps, for sm_90 or newer
    ./scripts/ptxas --update                 writes common/data/registers.json

Prints registers, bytes of static shared memory, stack frame and spills, and barriers per kernel. A
remark on wgmma or setmaxnreg (C7504 to C7520) is a finding; docs/ptxas.md explains each and how to
avoid it. Needs nvcc and no GPU; a step takes seconds.

The simulator reads the figures for sm_90, or the one that a step needs, from
common/data/registers.json. Other figures by the nvcc that wrote that file are a finding, too.
Exit status: 0 no finding; 1 a kernel has a stack frame or a spill or a remark, a file does not
compile, or registers.json is out of date; 2 bad use; 3 no nvcc.
"""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import command
from .command import BadInput, Failure, NotHere
from .files import ROOT, read_text, write_rows
from .nvcc import arches_of, every_arch_of, find_nvcc, nvcc_command, version_of
from .steps import all_needs_of, find_steps, listed, needs_of, number_of

FILE_ARCH = "sm_90a"  # has all instructions of the dialect
REGISTERS_OF = ("sm_90", "sm_90a", "sm_100a")
DIALECT = os.path.join("common", "dialect")
REGISTERS = "common/data/registers.json"
UPDATE = "run ./scripts/ptxas --update"
WITHOUT_WGMMA = ("-DFA_NO_WGMMA",)


@dataclass(frozen=True)
class Remark:
    """ptxas's remark on wgmma or setmaxnreg: docs/ptxas.md explains each code."""

    code: str  # "C7510"; empty where ptxas gives none
    words: str
    line: int = 0  # of the PTX, where ptxas names one


@dataclass
class Kernel:
    name: str  # mangled; empty for a remark that names no function
    registers: int = 0
    smem: int = 0  # bytes, static
    stack: int = 0  # bytes, as are the spills
    spills: int = 0
    remarks: list = field(default_factory=list)
    barriers: int = 0
    entry: bool = True  # else a function that was not inlined, or none


# "ptxas info    : (C7510) Potential Performance Loss: ... in the function '_Z1kPf'", and "(C7519)
# warpgroup.arrive is injected in around line 70 by compiler ... in function '_Z1kPf'".
REMARK = re.compile(
    r"(?:\((C\d+)\) )?(?:Potential Performance Loss: |(?=warpgroup\.\w+ is injected))"
    r"(.*?)(?: in (?:the )?function(?: '(\w+)')?)?\.?\s*$"
)


def remark_in(line):
    """(Remark, the function that it names or "") of a line of ptxas, or None."""
    found = REMARK.search(line)
    if not found:
        return None
    at = re.search(r" in around line (\d+)", found[2])
    words = " ".join(found[2].replace(at[0] if at else "", "").split())
    return Remark(found[1] or "", words, int(at[1]) if at else 0), found[3] or ""


def parse(text):
    """The kernels in the output of `ptxas -v`, then other functions with remarks.

    A remark names its function, which need not be a kernel. An unnamed one belongs to the only
    kernel; with several kernels its Kernel has no name.
    """
    kernels, remarks, current, properties_of = {}, [], None, None
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            current = properties_of = kernels.setdefault(found[1], Kernel(found[1]))
        elif found := re.search(r"Function properties for (\w+)", line):
            # Device functions that were not inlined are also listed; a call costs a stack frame.
            properties_of = kernels.get(found[1], current)
        elif (found := re.findall(r"(\d+) bytes (?:stack|spill)", line)) and properties_of:
            stack, stores, loads = map(int, found)
            properties_of.stack += stack
            properties_of.spills += stores + loads
        elif (found := re.search(r"Used (\d+) registers", line)) and current:
            smem = re.search(r"(\d+) bytes smem", line)
            barriers = re.search(r"used (\d+) barriers", line)
            current.registers = int(found[1])
            current.smem = int(smem[1]) if smem else 0
            current.barriers = int(barriers[1]) if barriers else 0
        elif found := remark_in(line):
            remarks.append(found)
    only = next(iter(kernels)) if len(kernels) == 1 else ""
    for remark, name in remarks:
        function = kernels.setdefault(name or only, Kernel(name, entry=False))
        function.remarks.append(remark)
    return list(kernels.values())


def demangled(names):
    """Names as in the simulator, without parameter lists, where c++filt is installed."""
    if not shutil.which("c++filt") or not names:
        return names
    call = {"input": "\n".join(names), "capture_output": True, "text": True, "check": True}
    return subprocess.run(["c++filt", "--no-params"], **call).stdout.splitlines()


def numbers_in_order(name):
    """A sort key: kernel<96> before kernel<128>."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def by_name(kernels):
    """[(demangled name, Kernel)], sorted for a reader."""
    named = [k.name for k in kernels if k.name]
    names = dict(zip(named, demangled(named)))
    pairs = [(names.get(k.name, "a kernel of this file"), k) for k in kernels]
    return sorted(pairs, key=lambda pair: numbers_in_order(pair[0]))


def place_in(ptx, line):
    """ "kernel.cuh:42" for a line of a PTX: where the kernel calls the dialect; or ""."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+) "([^"]*)"', ptx, re.MULTILINE))
    for text in reversed(ptx.splitlines()[:line]):
        if not text.lstrip().startswith(".loc"):
            continue
        for file, at in re.findall(r"(?:\.loc|inlined_at)\s+(\d+) (\d+) \d+", text):
            path = files.get(file, "")
            if path and DIALECT not in path:
                return f"{os.path.basename(path)}:{at}"
    return ""


# --- what is compiled ---


@dataclass
class Job:
    what: list  # steps' names, or a file
    sources: list  # compiled as one: a kernel included by several steps is compiled once
    arch: str
    options: tuple = ()
    older: bool = False  # than the step's default architecture: a finding is a remark
    numbered: bool = False  # steps of the ladder


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


def job_of(what):
    """One step for the newest architecture that it needs, or a file."""
    source, step = source_of(what)
    return Job([step or what], [source], arches_of(needs_of(step))[-1] if step else FILE_ARCH)


def jobs_of_steps(steps, every, nvcc):
    """Each step for sm_90, or the newer architecture that it needs; or for `every` GPU and, where
    it has variants for older ones, also without what needs the newer one. The ladder's steps of one
    architecture are one job, those for any GPU are not: in a file with a kernel that uses
    dynamic_smem(), ptxas rounds each kernel's static shared memory up to its alignment of 1024
    bytes. 02 and 03 have no such kernel, so --update would write rounded bytes; from 07 on each
    step has one, and the same bytes alone as with others. No test compares the two."""
    jobs = {}

    def add(step, newest, *kind):
        numbered = number_of(step) > 0
        key = newest if newest and numbered else step
        job = jobs.setdefault((key, *kind), Job([], [], *kind, numbered))
        job.what.append(step)
        job.sources.append(os.path.join(ROOT, "steps", step, "main.cu"))

    for step in steps:
        oldest, newest = (all_needs_of(step) or [None])[0], needs_of(step)
        usual, arches = arches_of(newest), every_arch_of(newest, nvcc)
        if not arches:
            print(f"remark: {step} is left out: {nvcc} makes no code for {newest}")
            continue
        for a in arches if every else usual[-1:]:
            add(step, newest, a, (), a not in usual)
        if every and oldest != newest:
            for a in every_arch_of(oldest, nvcc):
                add(step, newest, a, WITHOUT_WGMMA, True)
    return list(jobs.values())


def write_all(path, sources):
    """One file that includes these; each registers its step by an object `linked` (main.cu)."""
    lines = ""
    for number, source in enumerate(sources):
        lines += f'#define linked linked_{number}\n#include "{source}"\n#undef linked\n'
    Path(path).write_text(lines, encoding="utf-8")
    return path


def compiled(nvcc, job):
    """([(name, Kernel)], findings) of a job; a file that does not compile raises Failure."""

    def call(output, **kind):
        line = nvcc_command(nvcc, source, job.arch, output, **kind)
        line[-3:-3] = ["-lineinfo", "-x", "cu", *job.options]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            said = (done.stdout + done.stderr).rstrip()
            what = "do not compile as one file" if len(job.what) > 1 else "does not compile"
            raise Failure(f"{', '.join(job.what)} {what}:\n{said}")
        return done.stdout + done.stderr

    with tempfile.TemporaryDirectory() as folder:
        source = job.sources[0]
        if len(job.sources) > 1:
            source = write_all(os.path.join(folder, "steps.cu"), job.sources)
        kernels = by_name(parse(call(os.path.join(folder, "kernels.cubin"))))
        ptx = ""
        if any(remark.line for _, kernel in kernels for remark in kernel.remarks):
            path = os.path.join(folder, "kernels.ptx")
            call(path, kind="-ptx")
            ptx = read_text(path)
    return kernels, [f for name, kernel in kernels for f in findings_of(name, kernel, ptx)]


def findings_of(name, kernel, ptx):
    """One sentence per fault; a remark at several lines is one fault."""
    out = []
    memory = [f"a stack frame of {kernel.stack} bytes"] if kernel.stack else []
    memory += [f"{kernel.spills} bytes of spills"] if kernel.spills else []
    if memory:
        out.append(f"{name}: {' and '.join(memory)} (docs/ptxas.md#spills)")
    at = {}  # by remark
    for remark in kernel.remarks:
        lines = at.setdefault((remark.code, remark.words), [])
        place = place_in(ptx, remark.line) if remark.line else ""
        if place and place not in lines:
            lines.append(place)
    for (code, words), lines in at.items():
        where = f" at {', '.join(lines)}" if lines else ""
        page = f"{code}: {words}{where} (docs/ptxas.md)" if code else words + where
        out.append(f"{name}: {page}")
    return out


# --- common/data/registers.json ---


def write_registers(path, version, kernels):
    """The file for the simulator; `kernels`: {name: Kernel}."""
    source = (
        "What ptxas assigned to each kernel for sm_90 (or sm_90a, sm_100a): registers per thread, "
        "bytes of static shared memory per block. The simulator's L2 model derives from it how "
        "many blocks an SM holds. Written by ./scripts/ptxas --update."
    )
    rows = {}
    for name in sorted(kernels, key=numbers_in_order):
        template, angle, arguments = name.partition("<")
        row = kernels[name].registers, kernels[name].smem
        rows.setdefault(template, {})[angle + arguments] = row
    write_rows(path, {"source": source, "nvcc": version, "kernels": rows}, indent=2)


def compare_registers(path, version, kernels, numbered):
    """(finding or None, remark or None) comparing the file with the current output of ptxas.

    `kernels`: {name: Kernel} of all steps. The file must list those of the `numbered` steps, may
    list those of the user's steps, and no others."""
    try:
        file = json.loads(read_text(path))
        of_version = file["nvcc"]
        rows = {
            template + arguments: (registers, smem)
            for template, instances in file["kernels"].items()
            for arguments, (registers, smem) in instances.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{REGISTERS} cannot be read ({type(error).__name__}: {error}): {UPDATE}", None
    if of_version != version:
        return None, f"{REGISTERS} comes from nvcc {of_version}, this is {version}: not compared"
    now = {name: (kernel.registers, kernel.smem) for name, kernel in kernels.items()}
    known = {name for name in now if name in rows or name in numbered} | set(rows)
    wrong = sorted(name for name in known if rows.get(name) != now.get(name))
    if not wrong:
        return None, None
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{REGISTERS} differs from ptxas on {wrong[0]}{more}: {UPDATE}", None


# --- the command ---


def show(job, kernels, version):
    print(f"{', '.join(job.what)} for {job.arch}, nvcc {version}")
    print(f"{'registers':>9} {'smem':>6} {'stack':>6} {'spills':>6} {'barriers':>8}  kernel")
    for name, kernel in kernels:
        if kernel.entry:
            print(
                f"{kernel.registers:>9} {kernel.smem:>6} {kernel.stack:>6} {kernel.spills:>6} "
                f"{kernel.barriers:>8}  {name}"
            )


def look_at(jobs, nvcc, version):
    """Compiles and shows all: ([(Job, [(name, Kernel)])], findings). The steps of a job that fails
    are compiled one by one, since an error of one hides the others' results."""
    done, bad = [], []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # The last steps take longest and are compiled first.
        futures = [pool.submit(compiled, nvcc, job) for job in reversed(jobs)]
        for job, future in zip(jobs, reversed(futures)):
            try:
                kernels, findings = future.result()
            except Failure as failure:
                if len(job.what) > 1:
                    each = zip(job.what, job.sources)
                    apart = [replace(job, what=[w], sources=[x]) for w, x in each]
                    alone, findings = look_at(apart, nvcc, version)
                    if len(alone) == len(apart):
                        print(f"remark: {failure}")
                    done += alone
                    bad += [finding for finding in findings if finding not in bad]
                    continue
                if len(jobs) == 1:
                    raise
                bad.append(str(failure))
                continue
            show(job, kernels, version)
            done.append((job, kernels))
            if job.older:
                print("".join(f"remark: for {job.arch}, {x}\n" for x in findings), end="")
            else:  # a step also compiles its parent's kernels
                bad += [finding for finding in findings if finding not in bad]
    return done, bad


def all_steps(args, version):
    """Findings of all steps of steps/CMakeLists.txt, and of registers.json."""
    path = os.path.join(ROOT, REGISTERS)
    jobs = jobs_of_steps(listed(), args.every_arch, args.nvcc)
    done, bad = look_at(jobs, args.nvcc, version)
    of_file, must_know = {}, set()
    for job, kernels in done:
        if job.arch in REGISTERS_OF:
            found = {name: kernel for name, kernel in kernels if kernel.entry}
            of_file = {**found, **of_file}
            must_know |= set(found) if job.numbered else set()
    if of_file and not shutil.which("c++filt"):
        bad.append(f"{REGISTERS} holds demangled names: install c++filt (package binutils)")
    elif args.update:
        if not bad:
            write_registers(path, version, of_file)
            print(f"wrote {REGISTERS}: {len(of_file)} kernels")
    elif of_file and sum(len(job.what) for job, _ in done) == sum(len(job.what) for job in jobs):
        finding, remark = compare_registers(path, version, of_file, must_know)
        bad += [finding] if finding else []
        if remark:
            print("remark: " + remark)
    return bad


def main():
    parser = command.parser(__doc__)
    add = parser.add_argument
    add("what", nargs="*", metavar="STEP, FILE or FOLDER")
    add("--nvcc", default=find_nvcc(), help="default: that of PATH")
    add("--update", action="store_true", help=f"write {REGISTERS} instead of comparing with it")
    add("--every-arch", action="store_true", help="for every architecture from sm_75 to sm_120")
    args = parser.parse_args()
    if args.what and (args.update or args.every_arch):
        raise BadInput("--update and --every-arch apply to all steps: name none")
    for what in args.what:
        source_of(what)
    if not args.nvcc or not shutil.which(args.nvcc):
        raise NotHere("nvcc was not found: install the CUDA toolkit or give --nvcc")

    version = version_of(args.nvcc)
    if args.what:
        jobs = [job_of(what) for what in args.what]
        done, bad = look_at(jobs, args.nvcc, version)
        if not bad and not any(kernel.entry for _, kernels in done for _, kernel in kernels):
            raise BadInput(f"{' '.join(args.what)}: no kernel")
    else:
        bad = all_steps(args, version)
    for sentence in bad:
        print("finding: " + sentence)
    if not bad:
        print("no finding: no stack frame, no spill, no remark on wgmma")
    return 1 if bad else 0
