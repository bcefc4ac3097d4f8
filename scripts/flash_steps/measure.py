"""Measures again what README.md and the chapters show of a GPU, and nothing else.

    maintain measure --sim-json build/sim_side/sim     repeat until it is done: each call resumes
    maintain measure --publish                         docs/results, tables, figures, picture

A call takes up to --budget seconds; the exit status says whether anything is left. It builds, then
calls gpu_check.sh --figures for the fp32 and for the bf16 steps, side by side with two GPUs. Its
output is in --out: fp32.json, bf16.json, and a report of each. Copy these to another machine to
resume there. Make the simulator's side first, on any machine:

    ./scripts/gpu_check.sh --figures --sim-only --out build/sim_side

Exit status: 0 all measured, 1 something failed or is left, 2 bad use, 3 no GPU or tool.
"""

import os
import shutil
import subprocess
import sys
import time

from . import command
from .command import BadInput, NotHere
from .gpu_check import SECTIONS
from .gpus import count_gpus
from .steps import ROOT, find_steps

CHECK = [sys.executable, os.path.join(ROOT, "scripts", "maintain"), "gpu_check"]
# What each half does; figure2 and the naive step of memory are fp32, the tests are of all.
HALVES = {
    "fp32": (
        ("01", "02", "03", "04", "05", "06"),
        "counters sanitizer scale timing memory figure2 peers",
    ),
    "bf16": (("07", "08", "09", "10", "11", "12", "13"), "tests counters sanitizer timing peers"),
}
LEAST = 60  # seconds: with fewer left no half begins


def gpus():
    """The GPUs that this call may use: those of CUDA_VISIBLE_DEVICES where it is set."""
    there = count_gpus()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(there))))
    words = [word.strip() for word in chosen.split(",")] if there else []
    return [word for word in words if word and not word.startswith("-")]


def build():
    """Both presets; False after a line for each that does not build."""
    ok = True
    for preset in ("gpu", "gpu-check"):
        log = os.path.join(ROOT, "build", f"measure.{preset}.txt")
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "w", encoding="utf-8") as file:
            for call in (
                ["cmake", "--preset", preset],
                ["cmake", "--build", "--preset", preset, "-j", str(os.cpu_count())],
            ):
                if subprocess.run(call, cwd=ROOT, stdout=file, stderr=file).returncode:
                    print(f"measure: {preset} did not build: {os.path.relpath(log)}")
                    ok = False
                    break
    return ok


def steps_of(name):
    """Those of one half that there are."""
    known = {step[:2] for step in find_steps()}
    return [number for number in HALVES[name][0] if number in known]


def sections_of(name, options):
    """The chosen sections that belong to this half."""
    return [section for section in HALVES[name][1].split() if section in options.sections.split()]


def start(name, options, gpu, budget):
    """gpu_check.py of one half, on one GPU."""
    numbers, sections = steps_of(name), sections_of(name, options)
    folder = os.path.join(ROOT, "build", "measure", name)
    os.makedirs(folder, exist_ok=True)
    kept = os.path.join(options.out, name + ".json")
    if os.path.exists(kept):
        shutil.copy(kept, os.path.join(folder, "results.json"))
    call = [*CHECK, "--figures", "--no-build", "--out", folder]
    call += ["--steps", " ".join(numbers), "--sections", " ".join(sections)]
    call += ["--python", options.python]
    call += ["--budget", str(budget), "--peers-runs", str(options.peers_runs)]
    call += ["--sim-json", options.sim_json] if options.sim_json else []
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    with open(os.path.join(folder, "log.txt"), "w", encoding="utf-8") as log:
        return subprocess.Popen(call, stdout=log, stderr=log, env=environment)


def keep(name, options):
    """The results of one half, and its report, into --out."""
    folder = os.path.join(ROOT, "build", "measure", name)
    for source, target in (("results.json", f"{name}.json"), ("log.txt", f"{name}.txt")):
        path = os.path.join(folder, source)
        if os.path.exists(path):
            shutil.copy(path, os.path.join(options.out, target))


def summary(name, options):
    path = os.path.join(options.out, f"{name}.txt")
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        print(f"{name}:\n" + (text[text.find("== summary") :] if "== summary" in text else text))


def measure(options):
    found = gpus()
    if not found:
        raise NotHere(
            "no GPU found (nvidia-smi does not answer, or CUDA_VISIBLE_DEVICES names none)"
        )
    end = time.monotonic() + options.budget
    os.makedirs(options.out, exist_ok=True)
    if not options.no_build and not build():
        return 1
    names = [name for name in options.halves.split() if sections_of(name, options)]
    status, running = 0, {}
    try:
        if len(found) > 1 and len(names) > 1:
            for name, gpu in zip(names, found):
                running[name] = start(name, options, gpu, end - time.monotonic())
            status = max(half.wait() for half in running.values())
        else:
            for name in names:
                left = end - time.monotonic()
                if left <= LEAST:
                    status = 1
                    break
                running[name] = start(name, options, found[0], left)
                status = max(status, running[name].wait())
    finally:  # Ctrl-C reaches gpu_check.py too, which writes what it has
        for name, half in running.items():
            half.wait()
            keep(name, options)
    for name in names:
        summary(name, options)
    return 1 if status else 0


def parse():
    parser = command.parser(__doc__)
    add = parser.add_argument
    add("--out", default=os.path.join(ROOT, "build", "figures"), metavar="DIR")
    add("--publish", action="store_true", help="runs nothing: fills docs and pages")
    add("--sim-json", metavar="DIR", help="the folder made by gpu_check.sh --sim-only")
    add("--halves", default=" ".join(HALVES), metavar='"fp32 bf16"')
    add(
        "--sections",
        default="tests counters sanitizer scale timing memory figure2 peers",
        metavar='"scale peers"',
        help="sections of gpu_check.sh; default: %(default)s",
    )
    add("--budget", type=float, default=560, metavar="SECONDS")
    add("--peers-runs", type=int, default=3, metavar="N")
    add("--python", default=sys.executable, metavar="PATH", help="a Python with PyTorch")
    add("--no-build", action="store_true")
    options = parser.parse_args()
    for name in options.halves.split():
        if name not in HALVES:
            parser.error(f"--halves: '{name}' is not one of {' '.join(HALVES)}")
    for name in options.sections.split():
        if name not in SECTIONS:
            parser.error(f"--sections: '{name}' is not one of {' '.join(SECTIONS)}")
    if not any(sections_of(name, options) for name in options.halves.split()):
        parser.error(
            f"--sections {options.sections}: not a section of the halves '{options.halves}'"
        )
    options.out = os.path.abspath(options.out)
    if options.sim_json:
        options.sim_json = os.path.abspath(options.sim_json)
    return options


def main():
    options = parse()
    if not options.publish:
        return measure(options)
    found = [os.path.join(options.out, name + ".json") for name in HALVES]
    found = [path for path in found if os.path.exists(path)]
    if not found:
        raise BadInput(f"nothing to publish in {options.out}")
    return subprocess.run([*CHECK, "--publish", *found]).returncode
