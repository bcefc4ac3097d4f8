"""Finds the steps whose machine code and launches equal those of an older commit.

    maintain equal_code COMMIT [--steps "07 14"]

For each step whose sources have changed since the commit, it compares the machine code of all
kernels and the simulator's counts per launch of small problems, for every variant: kernels, blocks,
threads, bytes; also for three ranks, where several can share it. Where all is equal, results of
that commit, and those that counted as its own, count as this commit's:
docs/results/equal_code.json tells `maintain tables`. An entry that no result needs is removed from
it. The older tree is built in build/equal_code.
Needs nvcc, MPI, a build of the simulator, and a tree without changes.
Exit status: 0 all of these steps are equal, 1 one differs, 2 bad use, 3 something is missing.
"""

import glob
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile

from flash_steps import mpi
from flash_steps.command import BadInput, Failure, NotHere, parser
from flash_steps.commits import EQUAL_CODE, UNCOMMITTED, equal_code, git, here, is_current, proof_of
from flash_steps.files import read_text, replace_text
from flash_steps.nvcc import arches_of, find_nvcc, nvcc_command, version_of
from flash_steps.steps import ROOT, chosen_of, described, needs_of, numbered_steps, program_of

RANKS = 3
# Sections of a kernel. Not .nv.constant0: the code and the launches show which parameters matter.
CODE = (".text.", ".nv.constant1", ".nv.constant2", ".nv.constant3", ".nv.constant4", ".nv.shared.")


def export(commit, folder, steps):
    """The tree of a commit, with these programs built for the simulator."""
    if not os.path.isdir(folder):
        subprocess.run(["git", "clone", "-q", "--no-checkout", ROOT, folder], check=True)
        subprocess.run(["git", "checkout", "-q", commit], cwd=folder, check=True)
    build = os.path.join(folder, "build", "sim")
    for call in (
        ["cmake", "--preset", "sim", "-B", build],
        ["cmake", "--build", build, "-j", str(os.cpu_count()), "--target", *steps],
    ):
        subprocess.run(call, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def commits_in(paths):
    """The commits that these results name."""
    texts = map(read_text, paths)
    return {c for text in texts for c in re.findall(r'"(?:commit|at)": "([0-9a-f]{12})"', text)}


def needed(entries):
    """The entries that a result of this tree needs, each with the steps that need it."""
    steps = {id(entry): set() for entry in entries}
    results = {*glob.glob(os.path.join(ROOT, "docs", "results", "*.json"))} - {EQUAL_CODE}
    for commit in commits_in(results):
        for step in numbered_steps():
            for entry in proof_of(step, commit, entries) or []:
                steps[id(entry)].add(step)
    kept = [{**entry, "steps": sorted(steps[id(entry)])} for entry in entries]
    return [entry for entry in kept if entry["steps"]]


def current_then(folder, steps):
    """{commit: its steps that were current} by the older tree, for the commits in its results."""
    named = commits_in(glob.glob(os.path.join(folder, "docs", "results", "*.json")))
    code = "import sys; from flash_steps.commits import is_current\n"
    code += "for c in sys.argv[2:]: print(c, *[s for s in sys.argv[1].split() if is_current(s, c)])"
    call = [sys.executable, "-c", code, " ".join(steps), *sorted(named)]
    scripts = os.path.join(folder, "scripts")
    environment = {**os.environ, "PYTHONPATH": scripts}
    environment.pop("FLASH_STEPS_COMMIT", None)
    said = subprocess.run(call, cwd=scripts, env=environment, capture_output=True, text=True)
    rows = [line.split() for line in said.stdout.splitlines()]
    return {commit: current for commit, *current in rows if current}


def machine_code(nvcc, step, root):
    """{section: (bytes, digest)} of the step's kernels."""
    arch = arches_of(needs_of(step))[-1]
    with tempfile.TemporaryDirectory() as folder:
        cubin = os.path.join(folder, "kernels.cubin")
        source = os.path.join(root, "steps", step, "main.cu")
        call = nvcc_command(nvcc, source, arch, cubin, root=root)
        done = subprocess.run(call, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{source}: {done.stderr.strip()[-300:]}")
        with open(cubin, "rb") as file:
            data = file.read()
        listing = subprocess.run(["readelf", "-SW", cubin], capture_output=True, text=True)
    found = {}
    for line in listing.stdout.splitlines():
        name, kind, _, start, size, *_ = [*line.partition("]")[2].split(), *[""] * 5]
        if name.startswith(CODE):
            start, size = int(start, 16), int(size, 16)
            kept = data[start : start + size] if kind != "NOBITS" else b""
            found[name] = size, hashlib.sha256(kept).hexdigest()
    return found


def calls_of(step):
    """(arguments, ranks) of the compared runs."""
    for v in described(program_of(os.path.join(ROOT, "build", "sim"), step))["variants"]:
        can = v["supports"]
        for d in can["d"]:
            n, nk = (1, 700) if can["n"] else (300, 377 if can["cross"] else 300)
            size = [f"--n={n}", f"--nk={nk}"]
            size += ["--h=6", f"--hkv={3 if can['gqa'] else 6}", f"--d={d}", "--input=normal"]
            size += ["--estimate-heads=0"]  # else a launch depends on how many heads fill the GPU
            for causal in ([], ["--causal"]):
                for ranks in (1, RANKS) if v["ranks"] else (1,):
                    yield ["--variant", v["name"], *size, *causal], ranks


def launches(root, step, arguments, ranks):
    """The launches and messages of one run; None where the tree lacks the variant, or its size."""
    line = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    line += [program_of(os.path.join(root, "build", "sim"), step), *arguments]
    status, said, run = mpi.report(line, 600)
    if status == 2:
        return None
    if status not in (0, 4):  # right; or too few digits to say
        raise Failure(f"{' '.join(line)}: {said.strip()[-300:]}")
    passes = [p for p in (run.get("prepare"), run, run.get("backward")) if p]
    kept = ("rows", "scores", "sent", "requested")
    of_ranks = [{key: rank[key] for key in kept} for rank in run.get("ranks") or []]
    return [p.get("kernels") for p in passes], of_ranks


def kernels_of(code):
    """{kernel, as a launch names it: its machine code} from the result of machine_code()."""
    found = {name[len(".text.") :]: value for name, value in code.items() if ".text." in name}
    call = subprocess.run(["c++filt", *found], capture_output=True, text=True)
    named = {}
    for name, value in zip(call.stdout.splitlines(), found.values()):
        depth = [*itertools.accumulate((c == "<") - (c == ">") for c in name)]
        end = next((i for i, c in enumerate(name) if c == "(" and not depth[i]), len(name))
        named[name[:end].removeprefix("void ")] = value
    return named


def named_as(then, now, before, after):
    """The launches of then, with the names that kernels of equal code have now."""
    for was, is_ in zip(then[0], now[0]):
        for a, b in zip(was or [], is_ or []):
            old, new = a.get("name"), b.get("name")
            if old != new and before.get(old) and before.get(old) == after.get(new):
                a["name"] = new
    return then


def differs(nvcc, step, older):
    """What differs, or None. A removed or new kernel shows in the launches; a renamed one with the
    same code is equal. A new variant leaves the results of the others valid."""
    before, now = (machine_code(nvcc, step, root) for root in (older, ROOT))
    if names := [name for name in before.keys() & now.keys() if before[name] != now[name]]:
        return f"machine code of {', '.join(sorted(names))}"
    before, now = kernels_of(before), kernels_of(now)
    for arguments, ranks in calls_of(step):
        was = launches(older, step, arguments, ranks)
        if was is not None:
            found = launches(ROOT, step, arguments, ranks)
            if named_as(was, found, before, now) != found:
                return f"launches of {' '.join(arguments)}, {ranks} ranks"
    return None


def main():
    p = parser(__doc__)
    p.add_argument("commit")
    p.add_argument("--steps")
    args = p.parse_args()
    since, at, nvcc = git("rev-parse", "--short=12", args.commit), here(), find_nvcc()
    if not since or at.endswith(UNCOMMITTED):
        raise BadInput("name a commit of this history, and commit what has changed")
    since = since.strip()
    if not nvcc:
        raise NotHere("nvcc was not found: install the CUDA toolkit")
    steps = chosen_of(numbered_steps(), args.steps, "there are")
    steps = [step for step in steps if not is_current(step, since)]
    older = os.path.join(ROOT, "build", "equal_code", since)
    if steps:
        export(since, older, steps)
    equal = []
    for step in steps:
        what = differs(nvcc, step, older)
        print(f"{step}: {what or 'equal'}", flush=True)
        equal += [] if what else [step]
    if equal:
        how = f"machine code of nvcc {version_of(nvcc)}, and the launches in the simulator"
        of = {since: equal, **current_then(older, equal)}
        new = [{"since": c, "at": at, "steps": found, "how": how} for c, found in of.items()]
        entries = needed([*new, *equal_code()])
        replace_text(EQUAL_CODE, json.dumps(entries, indent=2) + "\n")
    return 0 if equal == steps else 1
