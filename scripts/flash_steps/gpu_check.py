"""Everything that needs a GPU. Started by gpu_check.sh; docs/gpu.md explains it.

A section that fails is recorded, and the next one runs. All results are in one folder:

    results.json    machine, commands, what each section found, and every run under "runs"
    report.txt      what was printed
    gpu/ sim/       what the programs wrote with --json
    logs/           the output of each command
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys

from . import figure2
from .files import read_text, require_writable, write_text
from .gpu_sections import Sections
from .gpu_table import find_model, model_of
from .gpus import machine
from .merge import merge, publish, write_results
from .results import load_folder
from .steps import ROOT, numbered_steps

# The names for --sections, in the order in which they run.
SECTIONS = (
    "tests",
    "counters",
    "hbm",
    "sanitizer",
    "scale",
    "timing",
    "memory",
    "peers",
    "figure2",
)


class Check(Sections):
    """The two ways to run."""

    def sim_only(self):
        """Only the simulator's side, on any machine, for --sim-json elsewhere."""
        self.results["model_gpu"] = self.options.model_gpu or "H200"
        l2_bytes = find_model(self.results["model_gpu"])["l2_bytes"]
        if not self.options.no_build:
            if not self.section("build", lambda: self.build("sim", self.steps)):
                return

        def runs():
            variants = self.variants("sim")
            cases = self.counter_cases("sim", variants) if "counters" in self.chosen else []
            if "hbm" in self.chosen:
                cases += self.working_set_problems("sim", variants, l2_bytes)
            ok, line, failed = self.simulate(cases, self.jobs)
            for sentence in failed:
                self.say(sentence)
            mark = os.path.join(self.out, "sim", "sources.sha256")
            write_text(mark, self.results["sources"] + "\n")
            return ok, line

        self.section("simulate", runs)

    def everything(self):
        self.results.update(machine())
        self.results["model_gpu"] = self.options.model_gpu or model_of(self.results["device"])
        model = self.results["model_gpu"] and find_model(self.results["model_gpu"])
        self.say(
            f"{self.results['device']}, driver {self.results['driver']}, CUDA "
            f"{self.results['toolkit']}, the simulator models "
            f"{self.results['model_gpu'] or 'no GPU: choose one with --model-gpu'}\n"
        )
        chosen = self.chosen
        targets = set(self.steps)
        if "memory" in chosen:
            targets.update((numbered_steps()[0], numbered_steps()[-1]))
        if "figure2" in chosen:
            targets.update(step for _, step, _ in figure2.RUNS)
        targets = [] if "tests" in chosen else sorted(targets)
        if not self.options.no_build and not self.section(
            "build", lambda: self.build("gpu", targets)
        ):
            return

        variants, cases, sets = [], [], []

        def prepare():
            variants.extend(self.variants("gpu"))
            if "counters" in chosen:
                cases.extend(self.counter_cases("gpu", variants))
            if "hbm" in chosen and model:
                sets.extend(self.working_set_problems("gpu", variants, model["l2_bytes"]))
            return True, f"{len(variants)} variants, {len(cases) + len(sets)} problems to count"

        if not self.section("variants", prepare):
            return
        both = cases + sets
        simulated = self.start_simulator(both) if both else None

        def sanitizer():
            if not self.options.no_build:
                self.section("build gpu-check", lambda: self.build("gpu-check", self.steps))
            self.section("sanitizer", self.sanitizer)

        # What "scale" ran with counters, "timing" does not run again without them.
        parts = [
            ("tests", "tests" in chosen, lambda: self.section("tests", self.tests)),
            ("runs", both, lambda: self.section("runs", lambda: self.counted_runs(both))),
            ("sanitizer", "sanitizer" in chosen, sanitizer),
        ]
        for name, body in (
            ("scale", lambda: self.scale(variants)),
            ("timing", lambda: self.timing(variants)),
            ("memory", self.memory),
            ("peers", self.peers),
            ("figure2", self.figure2),
        ):
            parts.append((name, name in chosen, lambda n=name, b=body: self.section(n, b)))
        if self.options.figures:  # what tables need comes first
            first = ("scale", "timing", "peers", "runs", "figure2", "memory")
            parts.sort(key=lambda part: first.index(part[0]) if part[0] in first else 9)
        for _, wanted, body in parts:
            if wanted:
                body()
        sim_runs = []

        def wait():
            ok, line, runs = simulated()
            sim_runs.extend(runs)
            return ok, line

        if both:
            self.section("simulator", wait, always=True)
        if "counters" in chosen:
            self.section("counters", lambda: self.counters(sim_runs), always=True)
        if "hbm" in chosen and model:
            self.section("hbm", lambda: self.hbm(sets, sim_runs, model["l2_bytes"]), always=True)
        if {"counters", "hbm", "timing", "scale"} & set(chosen):
            self.section("comparison", lambda: self.comparison(sim_runs), always=True)

    def counted_runs(self, cases):
        good, bad = self.gpu_runs(cases, "--iters=5")
        return good > 0 and not bad, (
            f"{good} problems right, {bad} failed, {len(cases) - good - bad} refused by their step"
        )

    def start_simulator(self, cases):
        """Returns a function that waits and gives (ok, line, runs)."""
        if self.options.sim_json:
            return lambda: (*self.check_digest(), load_folder(self.options.sim_json))
        if not self.results["model_gpu"]:
            return lambda: (False, "no model of this GPU: add a row to common/data/gpus.json", [])

        def work():
            if not self.options.no_build:
                ok, line = self.build("sim", self.steps)
                if not ok:
                    line += "; pass --sim-json with a folder made by gpu_check.sh --sim-only on "
                    return False, line + "another machine", []
            ok, line, _ = self.simulate(cases, self.jobs - 4)
            return ok, line, load_folder(os.path.join(self.out, "sim"))

        return concurrent.futures.ThreadPoolExecutor(1).submit(work).result

    def check_digest(self):
        path = os.path.join(self.options.sim_json, "sources.sha256")
        try:
            recorded = read_text(path).strip()
        except OSError:
            return False, f"{path} is missing: make the folder with --sim-only"
        if recorded != self.results["sources"]:
            return False, f"{self.options.sim_json} was made from other sources: make it again"
        return True, "made earlier, from the same sources"  # results name no machine's folders


def parse():
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--steps", metavar='"01 02"', help="by number or by name; default: all")
    add("--sections", metavar='"tests timing"', help=f"some of: {' '.join(SECTIONS)}; default: all")
    add(
        "--out",
        default=os.path.join("build", "gpu_check"),
        metavar="DIR",
        help="folder for the results (default %(default)s)",
    )
    add(
        "--sim-json",
        metavar="DIR",
        help="the sim/ folder that --sim-only made from the same sources",
    )
    add("--sim-only", action="store_true", help="without a GPU: only the simulator's side, DIR/sim")
    add(
        "--model-gpu",
        metavar="NAME",
        help="the GPU whose L2 is modelled (default: this one; with --sim-only: H200)",
    )
    add(
        "--merge",
        nargs="+",
        metavar="results.json",
        help="runs nothing: makes one results.json in --out from those of several calls, "
        "and from the output of peers.py --json",
    )
    add(
        "--publish",
        nargs="+",
        metavar="results.json",
        help="runs nothing: writes docs/results/<gpu>.json and <gpu>_bf16.json from those of "
        "several calls, and fills all tables, figures and the picture",
    )
    add(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="the Python that has PyTorch, for the section peers",
    )
    add(
        "--figures",
        action="store_true",
        help="only what README.md and the chapters show; resumes where the last call ended",
    )
    add(
        "--peers-runs",
        type=int,
        default=3,
        metavar="N",
        help="with --figures: number of runs of peers.py (default %(default)s)",
    )
    add("--quick", action="store_true", help="fewer and smaller problems")
    add("--no-build", action="store_true", help="use the programs as they are built")
    add(
        "--budget",
        type=float,
        default=570,
        metavar="SECONDS",
        help="no section starts after this time (default %(default)s)",
    )
    options = parser.parse_args()
    options.sections_named = options.sections is not None
    if options.figures and not options.sections:  # no table shows what hbm compares
        options.sections = " ".join(name for name in SECTIONS if name != "hbm")
    options.sections = (options.sections or " ".join(SECTIONS)).split()
    for name in options.sections:
        if name not in SECTIONS:
            parser.error(f"--sections: '{name}' is not one of {' '.join(SECTIONS)}")
    if options.sim_json and options.sim_only:
        parser.error("--sim-json and --sim-only cannot be combined")
    if options.sim_json:
        options.sim_json = os.path.abspath(options.sim_json)
        if not os.path.isdir(options.sim_json):
            parser.error(f"--sim-json {options.sim_json}: no such folder")
    return options


def main():
    options = parse()
    if options.merge:
        path = os.path.join(options.out, "results.json")
        os.makedirs(options.out, exist_ok=True)
        require_writable("--out", path, *options.merge)
        merged = merge(options.merge)
        write_results(path, merged)
        print(f"{path}: {len(merged['runs'])} runs from {len(options.merge)} files")
        for note in merged["notes"]:
            print(f"note: {note}")
        return 0
    if options.publish:
        for path in publish(options.publish, os.path.join(ROOT, "docs", "results")):
            print(os.path.relpath(path))
        status = 0
        for name in ("tables", "plots"):
            maintain = os.path.join(ROOT, "scripts", "maintain")
            status |= subprocess.run([sys.executable, maintain, name]).returncode
        return 1 if status else 0
    check = Check(options)
    try:
        if check.options.sim_only:
            check.sim_only()
        else:
            check.everything()
    finally:
        if check.sections:
            check.write()
    failed = [name for name, s in check.sections.items() if not s["ok"]]
    check.say("== summary")
    for note in check.results.get("notes", []):
        check.say(f"note: {note}")
    for name, s in check.sections.items():
        verdict = "ok" if s["ok"] else "FAILED"
        check.say(f"{verdict:7} {name:16} {s['seconds']:6.1f} s  {s['summary']}")
    check.say(f"results: {os.path.relpath(check.out, os.getcwd())}")
    check.write()
    return 1 if failed else 0
