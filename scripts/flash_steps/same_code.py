"""Says which steps have the same machine code as in another checkout.

    maintain same_code --before DIR    all steps of this tree, or the named ones
    maintain same_code --before DIR --restamp --same-launches
                                       also updates the digests of unchanged steps in docs/results

Compiles main.cu of both trees with nvcc, for sm_90 (or --arch), or for the architecture that the
step needs, and compares the code of its kernels: instructions, registers, relocations, constants
and the size of static shared memory. The names and the order of kernels, variables and files do not
count, nor do kernels of other steps in the same file. So a step that only renames things keeps its
results: --restamp replaces the other tree's digest (step_text.py) with this tree's, if the kernels
that it takes along from other steps are the same, too.
It needs nvcc and no GPU. It does not see how the host launches the kernels: with --same-launches
you state that you compared the launches of both trees (kernels, blocks, threads, shared memory) and
the bytes, and found them equal.
Exit status: 0 all are the same, 1 one differs, does not compile, keeps its digest or was not
measured with the other tree's text, 2 bad use, 3 no nvcc.
"""

import concurrent.futures
import glob
import hashlib
import os
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass, field

from . import command
from .command import BadInput, Failure, NotHere
from .files import read_text, write_text
from .nvcc import arches_of, demangled, find_nvcc, nvcc_command
from .results import PICTURES
from .step_text import digest_of
from .steps import ROOT, find_steps, number_of, steps_and_needs

NOBITS = 8  # a section's type: it has a size and no bytes


def sections_of(cubin):
    """[(name, its bytes; of one without any its size)] of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    found = []
    for i in range(count):
        name, kind, offset, length = struct.unpack_from("<II16xQQ", cubin, table + i * size)
        data = b"%d" % length if kind == NOBITS else cubin[offset : offset + length]
        found.append((name, data))
    names = found[names_at][1]
    return [(names[at : names.index(b"\0", at)].decode(), data) for at, data in found]


def relocations(data):
    """Where which kind of address is put in: the numbers of symbols follow their names' order."""
    entries = struct.iter_unpack("<QQq", data)
    return repr([(offset, info & 0xFFFFFFFF, addend) for offset, info, addend in entries]).encode()


def registers_of(sections):
    """{index of a section of code: registers of a thread}."""
    at = dict(sections)
    info, found, i = at.get(".nv.info", b""), {}, 0
    while i < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, i)
        if (form, attribute) == (4, 0x2F):  # EIATTR_REGCOUNT: of which symbol, how many
            symbol, count = struct.unpack_from("<II", info, i + 4)
            found[struct.unpack_from("<H", at[".symtab"], 24 * symbol + 6)[0]] = count
        i += 4 + (size if form == 4 else 0)
    return found


def kernels_of(cubin):
    """{digest of the code: a kernel's name}."""
    sections = sections_of(cubin)
    registers = registers_of(sections)
    shared = re.compile(r"\.nv\.(global|constant\d+)(\.init)?")  # by all kernels
    tables = [data for name, data in sections if shared.fullmatch(name)]
    kernels = {}
    for name in [name[len(".text.") :] for name, _ in sections if name.startswith(".text.")]:
        digest = hashlib.sha256(b"\0".join(tables))
        for i, (section, data) in enumerate(sections):
            head, dot, whose = section.rpartition("." + name)
            if not dot or whose:
                continue
            if head == ".text":
                digest.update(b"%d registers" % registers.get(i, 0) + data)
            elif head == ".rela.text":
                digest.update(relocations(data))
            elif head == ".nv.shared" or head.startswith(".nv.constant"):
                digest.update(head.encode() + data)
        kernels[digest.hexdigest()] = name
    return kernels


def step_of(kernel):
    """7 of a kernel in namespace step07, or step07_more; None of one in no step's."""
    found = re.match(r"_ZN(\d+)(step.*)", kernel)  # a name behind its length
    number = found and re.match(r"step(\d+)", found[2][: int(found[1])])
    return int(number[1]) if number else None


@dataclass
class Code:
    """What nvcc has made of a step in one tree."""

    kernels: dict = field(default_factory=dict)  # {digest: name}
    error: str = ""

    def own(self, number):
        """Its digests without the kernels of other steps: namespace step07 in step 09."""
        return {d for d, name in self.kernels.items() if step_of(name) in (None, number)}


def compile_step(nvcc, root, step, arch):
    with tempfile.TemporaryDirectory() as folder:
        cubin = os.path.join(folder, "step.cubin")
        source = os.path.join(root, "steps", step, "main.cu")
        done = subprocess.run(
            nvcc_command(nvcc, source, arch, cubin, root=root), capture_output=True, text=True
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()
            return Code(error=next((line for line in lines if "error" in line), "no message"))
        with open(cubin, "rb") as file:
            return Code(kernels_of(file.read()))


def difference(step, before, after):
    """A sentence, or nothing where the code is the same."""
    for code, tree in ((before, "there"), (after, "here")):
        if code.error:
            return f"does not compile {tree}: {code.error}"
    parts = []
    for one, other, tree in ((before, after, "there"), (after, before, "here")):
        names = sorted(one.kernels[d] for d in one.own(number_of(step)) - set(other.kernels))
        if names:
            parts.append(f"{len(names)} only {tree} ({demangled(names)[0]})")
    return ", ".join(parts)


def same_name(step, known):
    """The step in the other tree, of the same name, else of the same number; None without one."""
    alike = [name for name in known if number_of(name) and number_of(name) == number_of(step)]
    return step if step in known else alike[0] if alike else None


def restamp(digests):
    """Replaces digests in docs/results and in the picture of them; `digests`: {step: (old, new)}.

    \raises Failure before anything is written, where a step's old one stands in no result."""
    paths = sorted(glob.glob(os.path.join(ROOT, "docs", "results", "*.json")))
    results = "".join(map(read_text, paths))
    changed = {step: pair for step, pair in digests.items() if pair[0] != pair[1]}
    for step, pair in changed.items():
        if not any(digest in results for digest in pair):  # the new one: it was restamped before
            raise Failure(
                f"{step}: no result in docs/results was measured with the text that --before has, "
                f"digest {pair[0]}; nothing was written"
            )
    if not changed:
        return
    new = dict(changed.values())
    old = re.compile(r"\b(?:%s)\b" % "|".join(new))
    others = [f"docs/pictures/{name}" for name in PICTURES] + ["tests/programs/kernels_h200.json"]
    for path in [*paths, *(os.path.join(ROOT, other) for other in others)]:
        if not os.path.exists(path):
            continue
        text, count = old.subn(lambda match: new[match[0]], read_text(path))
        if count:
            write_text(path, text)
            print(f"{os.path.relpath(path, ROOT)}: {count} digests updated to this tree")


def main():
    parser = command.parser(__doc__)
    add = parser.add_argument
    add("steps", nargs="*", metavar="STEP", help="by number or by name")
    add("--before", required=True, metavar="DIR", help="the other checkout")
    add("--restamp", action="store_true", help="write into docs/results")
    add("--same-launches", action="store_true", help="the counts of both trees are equal")
    add("--arch", default="sm_90", metavar="SM", help="of the GPU that was measured (%(default)s)")
    add("--nvcc", default=find_nvcc())
    add("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.restamp and not args.same_launches:
        raise BadInput(
            "machine code says nothing about launches: compare those of both trees (kernels, "
            "blocks, threads, shared memory) and the bytes, and add --same-launches if they are "
            "equal"
        )
    before = os.path.abspath(args.before)
    known = find_steps(root=before)
    if not known:
        raise BadInput(f"--before {args.before}: it holds no step")
    if not args.nvcc:
        raise NotHere("nvcc was not found: install the CUDA toolkit or give --nvcc")

    needs = dict(steps_and_needs())
    steps = [step for step in find_steps(" ".join(args.steps)) if step in needs]
    arches = {
        step: args.arch if args.arch in arches_of(needs[step]) else arches_of(needs[step])[0]
        for step in steps
    }
    others = {step: same_name(step, known) for step in steps}
    work = [(ROOT, step, arches[step]) for step in steps]
    work += [(before, others[step], arches[step]) for step in steps if others[step]]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        codes = dict(zip(work, pool.map(lambda one: compile_step(args.nvcc, *one), work)))

    same, kept, digests = [], [], {}
    for step in steps:
        arch, other = arches[step], others[step]
        after, there = codes[ROOT, step, arch], codes.get((before, other, arch))
        found = "not there" if not there else difference(step, there, after)
        kernels = f"{len(after.kernels)} kernel" + ("s" if len(after.kernels) != 1 else "")
        verdict = "differs" if found else "same"
        print(f"{step:<26}{verdict:<9}{kernels}, {arch}" + (f": {found}" if found else ""))
        if found:
            continue
        same.append(step)
        alien = {*after.kernels} ^ {*there.kernels}
        if not alien:
            digests[step] = digest_of(other, before), digest_of(step)
        elif args.restamp:
            named = demangled(sorted({**after.kernels, **there.kernels}[d] for d in alien))[0]
            print(f"{step} keeps its digest: another step's kernel differs: {named}")
            kept.append(step)
    if args.restamp:
        restamp(digests)
    if len(same) < len(steps):
        raise Failure(f"{len(steps) - len(same)} of {len(steps)} steps differ")
    if kept:
        raise Failure(f"not updated: {', '.join(kept)}")
    return 0
