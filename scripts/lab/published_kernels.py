"""The counts of published kernels, in the simulator and on a GPU.

    maintain published_kernels FOLDER             counts each program of the list once more
    maintain published_kernels FOLDER --measure   measures each again (needs a GPU, nvcc and ncu)

FOLDER holds the repositories, each under its own name and at the commit that the list names. The
list, with what was measured and counted, is docs/results/published_kernels_h200.json; `maintain
tables` makes the table of docs/published_kernels.md from it. Both sides run the same unedited file
with the same arguments. Where only a program's first launches are measured, the mean launch is
compared.

Exit status: 0 all counts are as in the list, 1 one is not (then the list has the new one) or a
program failed, 2 bad use, 3 no GPU or tool for it.
"""

import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from flash_steps import command
from flash_steps.command import BadInput, NotHere
from flash_steps.files import ROOT, read_json, replace_text

RESULTS = os.path.join(ROOT, "docs", "results", "published_kernels_h200.json")
COMPILER = ("nvcc", "-O3", "-std=c++17", "-arch=sm_90")
FIGURES = ("requests", "sectors", "wavefronts")
COUNTERS = {  # the figure and the kind: counters that add up to it
    ("requests", "load"): ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
    ("requests", "store"): ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",),
    ("requests", "atomic"): (
        "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
        "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
    ),
    ("sectors", "load"): ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    ("sectors", "store"): ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    ("sectors", "atomic"): (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_atom.sum",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum",
    ),
    ("wavefronts", "load"): ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
    ("wavefronts", "store"): ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
}


def short_name(kernel):
    """Without return type, namespaces, template arguments and parameters."""
    return re.sub(r"[<(].*", "", kernel).split()[-1].split("::")[-1]


def add(kernels, name, figures):
    known = kernels.setdefault(name, {"launches": 0, **{f: {} for f in FIGURES}})
    known["launches"] += figures["launches"]
    for figure in FIGURES:
        for kind, count in figures[figure].items():
            known[figure][kind] = known[figure].get(kind, 0) + count


TIME_IS_UP = 124  # what ./scripts/sim ends with behind its limit


def run(arguments, folder, ends=(0,), **more):
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, **more)
    if done.returncode not in ends:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise BadInput(f"{arguments[0]} ended with status {done.returncode}: {' '.join(said[-2:])}")
    return done.stdout


def options(program, repository):
    """Folders are relative to the repository."""
    words = program.get("options", [])
    return [
        os.path.join(repository, word) if before == "-I" else word
        for before, word in zip(["", *words], words)
    ]


def measure(program, source, repository):
    with tempfile.TemporaryDirectory() as folder:
        run([*COMPILER, "-o", "program", source, *options(program, repository)], folder)
        metrics = ",".join(sorted({name for names in COUNTERS.values() for name in names}))
        first = ["-c", str(program["first"])] if "first" in program else []
        tool = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--metrics", metrics]
        text = run([*tool, *first, "./program", *program["arguments"]], folder)
    rows = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    kernels = {}
    for row in rows:
        if not row["ID"]:
            continue  # the units
        figures = {"launches": 1, **{figure: {} for figure in FIGURES}}
        for (figure, kind), names in COUNTERS.items():
            figures[figure][kind] = sum(int(row[name].replace(",", "")) for name in names)
        add(kernels, short_name(row["Kernel Name"]), figures)
    return kernels


def count(program, source, repository):
    with tempfile.TemporaryDirectory() as folder:
        sim = os.path.join(ROOT, "scripts", "sim")
        run([sim, "-o", "program", *options(program, repository), source], folder)
        wishes = ["program x", "gpu H200", "json counts.json"]
        if "first" in program:  # ends behind the first launch, however long it takes
            wishes += ["limit 0.001", "patience 3600"]
        environment = {**os.environ, "FLASH_STEPS_SIM": "\n".join(wishes)}
        ends = (0, TIME_IS_UP) if "first" in program else (0,)
        run(["./program", *program["arguments"]], folder, ends, env=environment)
        found = read_json(os.path.join(folder, "counts.json"))["kernels"]
    kernels = {}
    for kernel in found:
        if kernel["stopped"]:
            raise BadInput(f"{kernel['name']} takes too long here: its counts are partial")
        shared = kernel["shared"]
        figures = {
            "launches": kernel["launches"],
            "requests": kernel["requests"],
            "sectors": kernel["sectors"],
            "wavefronts": {
                "load": shared["load_wavefronts"],
                "store": shared["store_wavefronts"],
            },
        }
        add(kernels, short_name(kernel["name"]), figures)
    return kernels


def is_equal(measured, counted, figure):
    """In the mean launch."""
    return all(
        m * counted["launches"] == counted[figure][kind] * measured["launches"]
        for kind, m in measured[figure].items()
    )


def differences(kernel):
    """[(figure, kind, measured, counted)] of one mean launch."""
    measured, counted = kernel["measured"], kernel["counted"]
    return [
        (figure, kind, m // measured["launches"], counted[figure][kind] // counted["launches"])
        for figure in FIGURES
        for kind, m in measured[figure].items()
        if m * counted["launches"] != counted[figure][kind] * measured["launches"]
    ]


def markdown():
    """The table of docs/published_kernels.md."""
    found = read_json(RESULTS)
    lines = [
        "| file | kernel | requests | sectors | wavefronts | where they differ |",
        "|---|---|---:|---:|---:|---|",
    ]
    for program in found["programs"]:
        name = " ".join([os.path.basename(program["file"]), *program["arguments"]])
        for kernel in program["kernels"]:
            differ = differences(kernel)
            measured = kernel["measured"]
            totals = []
            for figure in FIGURES:
                total = sum(measured[figure].values()) // measured["launches"]
                mark = "≠" if any(figure == d[0] for d in differ) else "="
                totals.append(f"{total:,} {mark}" if total else "-")
            why = "; ".join(
                f"{kind} {figure}: {m:,} on the GPU, {c:,} here" for figure, kind, m, c in differ
            )
            if differ and program.get("reason"):
                why += f": {program['reason']}"
            lines.append(f"| `{name}` | `{kernel['name']}` | {' | '.join(totals)} | {why} |")
    shared = [
        k
        for p in found["programs"]
        for k in p["kernels"]
        if sum(k["measured"]["wavefronts"].values())
    ]
    equal = sum(is_equal(k["measured"], k["counted"], "wavefronts") for k in shared)
    kernels = sum(len(p["kernels"]) for p in found["programs"])
    both = sum(
        all(is_equal(k["measured"], k["counted"], f) for f in ("requests", "sectors"))
        for p in found["programs"]
        for k in p["kernels"]
    )
    lines += [
        "",
        f"Of {kernels} kernels {both} have equal requests and sectors, and of the {len(shared)} "
        f"that use shared memory {equal} equal wavefronts. Measured on an {found['device']}, by "
        f"{found['tools']}.",
    ]
    return "\n".join(lines)


def gpu_and_tools():
    for tool in ("nvidia-smi", "nvcc", "ncu"):
        if not shutil.which(tool):
            raise NotHere(f"--measure needs a GPU, nvcc and ncu: there is no {tool}")
    name = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], ROOT).splitlines()[0]
    nvcc = re.search(r"V([\d.]+)", run(["nvcc", "--version"], ROOT))[1]
    ncu = re.search(r"Version ([\d.]+)", run(["ncu", "--version"], ROOT))[1]
    return name, f"ncu {ncu}, compiled by nvcc {nvcc} with {' '.join(COMPILER[1:])}"


def source_of(program, folder):
    """(repository, file), which must be the one of the list."""
    repository = os.path.abspath(os.path.join(folder, os.path.basename(program["repository"])))
    source = os.path.join(repository, program["file"])
    try:
        with open(source, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        raise BadInput(f"{source}: {error.strerror}") from None
    if program.setdefault("sha256", digest) != digest:
        raise BadInput(f"{source} is not the file of commit {program['commit']}")
    return repository, source


def compare(label, program, counted):
    """Notes the new counts. Returns how many kernels are not as in the list."""
    changed = 0
    for kernel in program["kernels"]:
        name, before, now = kernel["name"], kernel.get("counted"), counted.get(kernel["name"])
        if now is None:
            print(f"{label}: {name} has not run here")
            changed += 1
            continue
        kernel["counted"] = now
        same = before is None or all(is_equal(before, now, figure) for figure in FIGURES)
        changed += not same
        state = "differs from the GPU" if differences(kernel) else "as on the GPU"
        print(f"{label}: {name} {state}{'' if same else ', and not as in the list'}", flush=True)
    return changed


def main():
    parser = command.parser(__doc__)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--measure", action="store_true")
    args = parser.parse_args()
    found = read_json(RESULTS)
    if args.measure:
        found["device"], found["tools"] = gpu_and_tools()
    failed = 0
    for program in found["programs"]:
        label = " ".join([os.path.basename(program["file"]), *program["arguments"]])
        repository, source = source_of(program, args.folder)
        try:
            if args.measure:
                old = {kernel["name"]: kernel for kernel in program.get("kernels", [])}
                program["kernels"] = [
                    {**old.get(name, {}), "name": name, "measured": measured}
                    for name, measured in measure(program, source, repository).items()
                ]
                print(f"{label}: {len(program['kernels'])} kernels measured", flush=True)
            else:
                failed += compare(label, program, count(program, source, repository))
        except BadInput as error:
            print(f"{label}: {error}")
            failed += 1
    replace_text(RESULTS, json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
