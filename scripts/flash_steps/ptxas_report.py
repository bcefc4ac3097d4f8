"""Compiles every step's kernels with nvcc and reads what ptxas says about them.

    maintain ptxas_report [--nvcc NVCC] [--jobs N] [--out DIR] [STEP | FILE.cu ...]
    maintain ptxas_report --update        writes common/data/registers.json
    maintain ptxas_report --changed       nothing, if this nvcc has seen this text before
    maintain ptxas_report --every-arch    for every architecture from sm_75 to sm_120

Prints registers, static shared memory and spills per kernel. Without arguments it compiles all
steps of steps/CMakeLists.txt, each for sm_80 and sm_90, or for the architecture that it needs. With
--every-arch it compiles for sm_75 to sm_120, as far as the step and the toolkit allow. It needs no
GPU. The simulator reads the sm_90 figures from common/data/registers.json; the nvcc that wrote that
file must find the same figures. It holds a digest of the text, too: with --changed, steps with a
number are compiled only if the digest or the nvcc is another.
./scripts/ptxas does the same for one step or file while it is being written.
Exit status: 0 clean; 1 when a file does not compile, or a kernel has a stack frame or a spill (only
a remark for the architectures that --every-arch adds), or ptxas remarked on its wgmma instructions
(docs/ptxas.md), or registers.json is out of date; 2 bad use.
"""

import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field

from . import command
from .command import BadInput
from .commits import code_of, files_of
from .files import read_text, write_rows
from .nvcc import arches_of, demangled, every_arch_of, find_nvcc, nvcc_command, version_of
from .steps import ROOT, all_needs_of, steps_and_needs

DEFAULT_ARCH = "sm_80"
REGISTERS = "common/data/registers.json"


@dataclass(frozen=True)
class Remark:
    """What ptxas says of wgmma or setmaxnreg: docs/ptxas.md explains each code."""

    code: str  # "C7510"; empty where ptxas gives none
    words: str
    line: int = 0  # of the PTX, where ptxas names one


@dataclass
class Kernel:
    name: str  # mangled; empty for a remark that names no function
    registers: int = 0
    smem: int = 0  # bytes, static
    stack: int = 0  # bytes, as are the spills
    spill_stores: int = 0
    spill_loads: int = 0
    remarks: list = field(default_factory=list)
    barriers: int = 0
    entry: bool = True  # else a function that was not inlined, or no function at all

    @property
    def spills(self):
        return self.spill_stores + self.spill_loads

    @property
    def in_memory(self):
        """["a stack frame of 8 bytes", "12 bytes of spills"]"""
        return ([f"a stack frame of {self.stack} bytes"] if self.stack else []) + (
            [f"{self.spills} bytes of spills"] if self.spills else []
        )

    @property
    def faults(self):
        """The same and ["C7510 (...)"]; empty when it is clean."""
        remarks = (f"{r.code} ({r.words})".strip() for r in self.remarks)
        return self.in_memory + list(dict.fromkeys(remarks))

    @property
    def clean(self):
        return not self.faults


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
    """The kernels in the output of `ptxas -v`, then other functions that it remarks on.

    A remark names its function, which need not be a kernel. One that names none is the kernel's
    where it is the only one; else its Kernel has no name.
    """
    kernels, remarks, current, properties_of = {}, [], None, None
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            current = properties_of = kernels.setdefault(found[1], Kernel(found[1]))
        elif found := re.search(r"Function properties for (\w+)", line):
            # Device functions that were not inlined are listed too; a call costs a stack frame.
            properties_of = kernels.get(found[1], current)
        elif found := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
            r"(\d+) bytes spill loads",
            line,
        ):
            if properties_of:
                properties_of.stack += int(found[1])
                properties_of.spill_stores += int(found[2])
                properties_of.spill_loads += int(found[3])
        elif found := re.search(r"Used (\d+) registers", line):
            if current:
                current.registers = int(found[1])
                smem = re.search(r"(\d+) bytes smem", line)
                current.smem = int(smem[1]) if smem else 0
                barriers = re.search(r"used (\d+) barriers", line)
                current.barriers = int(barriers[1]) if barriers else 0
        elif found := remark_in(line):
            remarks.append(found)
    only = next(iter(kernels)) if len(kernels) == 1 else ""
    for remark, name in remarks:
        function = kernels.setdefault(name or only, Kernel(name, entry=False))
        function.remarks.append(remark)
    return list(kernels.values())


def numbers_in_order(name):
    """A sort key: kernel<96> before kernel<128>."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def by_name(kernels):
    """[(demangled name, Kernel)], as a reader sorts them."""
    named = [k.name for k in kernels if k.name]
    names = dict(zip(named, demangled(named)))
    pairs = [(names.get(k.name, "a kernel of this file"), k) for k in kernels]
    return sorted(pairs, key=lambda pair: numbers_in_order(pair[0]))


def compile_one(nvcc, label, source, arch, host, more, out):
    """(label, architecture, kernels, error text or None)."""
    output = os.path.join(out, f"{label}.{arch}.o")
    command = nvcc_command(nvcc, source, arch, output, host, more=more)
    done = subprocess.run(command, capture_output=True, text=True)
    text = done.stdout + done.stderr
    return label, arch, parse(text), text if done.returncode else None


def compiled_text(steps):
    """A digest of the code that nvcc compiles for these steps, [(name, needs)], and of how it is
    called. Comments and white space do not count."""
    call = nvcc_command("nvcc", "", "", "", root="")
    how = [(step, arches_of(needs)) for step, needs in steps], call[call.index("nvcc") :]
    texts = [repr(how)]
    paths = set().union(*(files_of(step) for step, _ in steps))
    for path in sorted(path for path in paths if not path.startswith("common/sim/")):
        texts.append("\n".join([path, *code_of(read_text(os.path.join(ROOT, path)))]))
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def seen_before(path, version, text):
    """Whether this nvcc has written the file for this text, which it does of clean kernels only."""
    try:
        with open(path, encoding="utf-8") as file:
            known = json.load(file)
        return (known["nvcc"], known["text"]) == (version, text)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_registers(path, version, text, kernels):
    """The file that the simulator reads. `text`: compiled_text(); `kernels`: {name: Kernel}."""
    head = {
        "source": "What ptxas assigned to each kernel for sm_90 (or sm_90a): registers per thread, "
        "bytes of static shared memory per block. The simulator's L2 model derives "
        "from it how many blocks an SM holds. Written by "
        "./scripts/maintain ptxas_report --update.",
        "nvcc": version,
        "text": text,
    }
    rows = {
        name: {"registers": kernels[name].registers, "shared_bytes": kernels[name].smem}
        for name in sorted(kernels, key=numbers_in_order)
    }
    write_rows(path, {**head, "kernels": rows}, indent=2)


def compare_registers(path, version, kernels, numbered, all_steps):
    """(finding or None, remark or None) on the file against what ptxas has just said.

    `kernels`: {name: Kernel}. Of these the file must know the `numbered` steps' ones; a step of the
    user's own may be unknown. With `all_steps`, it may hold no other kernel."""
    update = "run ./scripts/maintain ptxas_report --update"
    try:
        with open(path, encoding="utf-8") as file:
            known = json.load(file)
        of_version = known["nvcc"]
        rows = {
            name: (row["registers"], row["shared_bytes"]) for name, row in known["kernels"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{REGISTERS} cannot be read ({type(error).__name__}: {error}): {update}", None
    if of_version != version:
        return None, f"{REGISTERS} comes from nvcc {of_version}, this is {version}: not compared"
    wrong = []
    for name, kernel in kernels.items():
        now = (kernel.registers, kernel.smem)
        if name not in rows:
            if name in numbered:
                wrong.append(f"lacks {name}")
        elif rows[name] != now:
            wrong.append(
                "gives {} {} registers and {} B of shared memory, ptxas {} and {}".format(
                    name, *rows[name], *now
                )
            )
    if all_steps:
        wrong += [f"holds {name}, which no step has" for name in rows if name not in kernels]
    if not wrong:
        return None, None
    more = f" (and {len(wrong) - 1} more like this)" if len(wrong) > 1 else ""
    return f"{REGISTERS} {wrong[0]}{more}: {update}", None


def main():
    parser = command.parser(__doc__)
    add = parser.add_argument
    add("what", nargs="*", metavar="STEP or FILE.cu")
    add("--nvcc", default=find_nvcc())
    add("--arch", help=f"for files (default {DEFAULT_ARCH})", default=DEFAULT_ARCH)
    add("--jobs", type=int, default=2)
    add("--out", default=os.path.join(ROOT, "build", "nvcc"))
    add("--every-arch", action="store_true", help="compile for sm_75 to sm_120")
    add("--update", action="store_true", help=f"write {REGISTERS} instead of comparing with it")
    add("--changed", action="store_true", help=f"leave out what {REGISTERS} already covers")
    args = parser.parse_args()
    if args.changed and (args.what or args.update or args.every_arch):
        raise BadInput("--changed is of all steps: name none, and leave --update and --every-arch")
    if args.update and args.what:
        raise BadInput("--update compiles all steps: name none")
    if not args.nvcc:
        raise BadInput("nvcc was not found: install the CUDA toolkit or give --nvcc")

    known = dict(steps_and_needs())
    if args.every_arch and not all(what in known for what in args.what):
        raise BadInput("--every-arch is for steps: a file has --arch")
    path, version = os.path.join(ROOT, REGISTERS), version_of(args.nvcc)
    text = compiled_text([step for step in known.items() if step[0][0].isdigit()])
    chosen = args.what or list(known)
    if args.changed and seen_before(path, version, text):
        print(
            f"the kernels of the numbered steps are as nvcc {version} found them clean: {REGISTERS}"
        )
        chosen = [step for step in known if not step[0].isdigit()]
    work = []  # (label, source, architecture, with the host's half, more flags)
    for what in chosen:
        if what in known:
            source = os.path.join(ROOT, "steps", what, "main.cu")
            arches = arches_of(known[what])
            if args.every_arch:
                arches = every_arch_of(known[what], args.nvcc)
                if not arches:
                    raise BadInput(f"{args.nvcc} makes no code that runs {what}")
            work += [(what, source, arch, arch == arches[0], ()) for arch in arches]
            if len(both := all_needs_of(what)) == 2:  # and without what needs the newer one
                older = every_arch_of(both[0], args.nvcc) if args.every_arch else [both[0]]
                work += [(what, source, arch, True, ("-DFA_NO_WGMMA",)) for arch in older]
        elif what.endswith(".cu") and os.path.exists(what):
            work.append((os.path.basename(what)[: -len(".cu")], what, args.arch, True, ()))
        else:
            raise BadInput(f"'{what}' is neither a step nor a .cu file")

    os.makedirs(args.out, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda w: compile_one(args.nvcc, *w, args.out), work))

    bad = []
    if work:
        columns = f"{'registers':>9} {'smem':>7} {'stack':>6} {'spills':>7}  kernel"
        print(f"{'step':<26}{'arch':<8}{columns}")
    seen = set()  # a step also compiles its parent's kernels, whose formulas it compares with
    for_simulator, numbered = {}, set()
    for label, arch, kernels, error in results:
        if error:
            bad.append(f"{label} does not compile:\n{error}")
            continue
        for name, kernel in by_name(kernels):
            if kernel.name and (name, arch) in seen:
                continue
            seen.add((name, arch))
            if kernel.entry and label in known and arch.startswith("sm_90"):
                for_simulator.setdefault(name, kernel)
                if label[0].isdigit():
                    numbered.add(name)
            if kernel.entry:
                print(
                    f"{label:<26}{arch:<8}{kernel.registers:>9} {kernel.smem:>7} "
                    f"{kernel.stack:>6} {kernel.spills:>7}  {name}"
                )
            if not kernel.clean:
                sentence = f"{label}: {name} has {' and '.join(kernel.faults)}"
                if label in known and arch not in arches_of(known[label]):
                    print(f"remark: for {arch}, {sentence}")
                else:
                    bad.append(sentence)
    compiled = not any("does not compile" in sentence for sentence in bad)
    if not bad and for_simulator and not shutil.which("c++filt"):
        bad.append(f"{REGISTERS} holds demangled names: install c++filt (package binutils)")
    elif args.update:
        if not bad:
            write_registers(path, version, text, for_simulator)
            print(f"wrote {REGISTERS}: {len(for_simulator)} kernels")
    elif for_simulator and compiled:
        finding, remark = compare_registers(
            path, version, for_simulator, numbered, all_steps=len(chosen) == len(known)
        )
        bad += [finding] if finding else []
        if remark:
            print("remark: " + remark)
    for sentence in bad:
        print("finding: " + sentence)
    return 1 if bad else 0
