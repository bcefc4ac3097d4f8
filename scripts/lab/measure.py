"""Everything that needs a GPU. docs/gpu.md explains it.

    gpu_check.sh              checks: sections tests, tour, counters, sanitizer, memory, timing and
                              peers, into build/gpu_check
    maintain measure          what README.md and the chapters show: timing, peers and a few
                              counters, into build/figures
    maintain measure --publish [DIR ...]    adds that to docs/results; tables and pictures

A call runs for --budget seconds; the next one with the same --out continues, and repeats results
of changed sources. That folder has results.json (machine, sections, commands), report.txt (what was
printed), gpu/ and sim/ (the programs' JSON), peers.json, logs/.

Exit status: 0 all right, 1 a section failed or is left, 2 bad use, 3 no GPU or tool.
"""

import concurrent.futures
import math
import os
import re
import shutil
import subprocess
import sys

from flash_steps import command
from flash_steps.commits import here, is_current
from flash_steps.gpu_table import find_model, model_of
from flash_steps.problems import flags, series
from flash_steps.results import join, join_for_reading, load_folder
from flash_steps.steps import ROOT, number_of, steps_on
from flash_steps.tour_table import groups_of, out_of_order

from .counters_vs_sim import compare_counters, compare_hbm, pairs
from .publish import publish
from .session import OUT_OF_TIME, Session, ask_gpu, last_line, name_of

SECTIONS = ("tests", "tour", "counters", "sanitizer", "memory", "timing", "peers")
OF_FIGURES = ("timing", "peers", "counters")

# The problems of each step that computes attention or decodes from a cache; programs refuse what
# their step lacks. The first FEW are for tables. One row, tile edges, ragged tiles, a full grid,
# every d, with and without mask, shared key heads and Nk != N. With a cache: one query, an empty
# entry, one of a single key, pages, splits, several queries with the mask, one band and two.
COUNTERS = [
    dict(b=1, h=2, n=1024, d=64, causal=False),
    dict(b=1, h=2, n=257, d=64, causal=False),
    dict(b=1, h=2, n=257, d=64, causal=True),
    dict(b=1, h=4, hkv=2, n=113, nk=203, d=64, causal=True),
    dict(b=1, h=2, n=1, d=64, causal=False),
    dict(b=1, h=2, n=17, d=64, causal=True),
    dict(b=1, h=2, n=64, d=64, causal=False),
    dict(b=2, h=1, n=100, d=32, causal=True),
    dict(b=2, h=1, n=100, d=96, causal=False),
    dict(b=2, h=1, n=100, d=128, causal=False),
    dict(b=2, h=1, n=257, d=128, causal=True),
    dict(b=1, h=2, n=1024, d=64, causal=True),
    dict(b=2, h=2, hkv=1, n=300, nk=20, d=128, causal=True),
]
DECODING = [
    dict(b=4, h=8, hkv=2, n=1, nk=1500, d=128, causal=False, lengths=[0, 1, 700, 1500], page=16),
    dict(b=2, h=8, hkv=2, n=1, nk=3000, d=128, causal=False),
    dict(b=1, h=4, hkv=2, n=3, nk=1025, d=128, causal=True),
    dict(b=4, h=8, hkv=2, n=1, nk=1500, d=128, causal=False, lengths=[0, 1, 700, 1500]),
    dict(b=2, h=8, hkv=4, n=16, nk=1000, d=64, causal=True, lengths=[1000, 333], page=64),
    dict(b=1, h=32, hkv=2, n=2, nk=2000, d=128, causal=True),
    dict(b=1, h=8, hkv=2, n=1, nk=257, d=64, causal=False),
    dict(b=1, h=4, hkv=1, n=1, nk=4096, d=128, causal=False, page=256),
    dict(b=1, h=2, n=1, nk=1, d=64, causal=False),
]
FEW = 4
PEERS_TURNS = 3
# For the steps with --smem: a smaller and a larger tile than the step's own.
SMEM = [dict(b=1, h=2, n=257, d=32, causal=False, smem=smem) for smem in (32768, 98304)]
SANITIZED = [
    dict(b=1, h=2, n=65, d=64, causal=True),
    dict(b=1, h=1, n=130, d=128, causal=False),
    dict(b=1, h=2, hkv=1, n=100, nk=150, d=64, causal=True),
]
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TIMED = [series(n, 64, False) for n in (512, 1024, 2048, 4096)]
TIMED += [series(n, 64, True) for n in (1024, 4096)]
TIMED += [series(4096, 128, causal) for causal in (False, True)]
SCALE = [series(n, 64, False) for n in (1024, 2048, 4096, 8192, 16384)]  # fp32 steps, with counters
PATIENCE = 150  # seconds for one of these
FASTEST = ("--backends", "flash cudnn")
PEERS = (
    (("06",), "--backends", "math efficient"),
    (("07", "09", "10", "12", "16"), "--variants=all", "--directions=forward", *FASTEST),
    (("08", "11"), "--variants=all", "--directions=backward", *FASTEST),
)


class Check(Session):
    """The sections. Each returns (ok, one line)."""

    def supports(self, preset, step, what):
        """Does the step support "lengths" (it decodes from a cache), or "smem"?"""
        return self.described(preset, step)["supports"][what]

    def variants(self, preset):
        return [(step, name) for step in self.steps for name in self.variants_of(preset, step)]

    def cases_of(self, preset, attention, decoding, few=None):
        """[(step, variant, problem)], with this many problems per variant."""
        return [
            (step, variant, p)
            for step, variant in self.variants(preset)
            for p in (decoding if self.supports(preset, step, "lengths") else attention)[:few]
        ]

    def tests(self):
        status, output = self.shell("ctest", ["ctest", "--preset", "gpu", "-j", "4"])
        tests = re.findall(
            r"^\s*\d+/\d+ Test\s+#\d+: (\S+) \.*\s*(.+?)\s+[\d.]+ sec", output, re.MULTILINE
        )
        failed = [name for name, result in tests if "Passed" not in result]
        if status is None:
            return False, f"stopped after {len(tests)} tests: out of time"
        if failed or status != 0 or not tests:
            return False, f"{len(failed)} of {len(tests)} tests failed: {', '.join(failed)}"
        return True, f"all {len(tests)} tests passed"

    def tour(self):
        """tour.sh, whose steps must get faster in ladder order."""
        chosen = ["--steps", self.options.steps] if self.options.steps else []
        status, output = self.shell("tour", [os.path.join(ROOT, "scripts", "tour.sh"), *chosen])
        self.say(output.rstrip())
        if status is None:
            return False, OUT_OF_TIME
        groups = groups_of(join_for_reading(load_folder(os.path.join(ROOT, "build", "tour"))))
        measured = sum(bool(row.ms) for _, rows in groups for row in rows)
        wrong = out_of_order(groups)
        line = "; ".join(wrong) or f"{measured} rows measured, in the order of the ladder"
        return status == 0 and measured > 0 and not wrong, line

    def counters(self):
        few = FEW if self.options.figures else None
        cases = self.cases_of("gpu", COUNTERS, DECODING, few)
        if not few:
            smem = [(s, v) for s, v in self.variants("gpu") if self.supports("gpu", s, "smem")]
            cases += [(step, variant, p) for step, variant in smem for p in SMEM]
        problems = [problem for _, _, problem in cases]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            simulated = pool.submit(self.simulate, cases)
            good, bad = self.gpu_runs(cases, "--iters=5")
            ok, line = simulated.result()
        self.say(f"{good} problems right, {bad} failed; {line}")
        found = pairs(self.of_problems(problems, "gpu"), self.of_problems(problems, "sim"))
        (text, equal), (hbm_text, near) = compare_counters(found), compare_hbm(found)
        self.say(f"{text}\n\n{hbm_text}")
        said = "; ".join([line, last_line(text), last_line(hbm_text)])
        return ok and equal and near and good > 0 and not bad, said

    def gpu_runs(self, cases, *more):
        """(number right, number wrong) without the refused (2) and those that do not fit (3)."""
        statuses = [self.gpu_run(case, *more)[0] for case in cases]
        return statuses.count(0), sum(status not in (0, 2, 3) for status in statuses)

    def sanitizer(self):
        tool = shutil.which("compute-sanitizer")
        for folder in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
            tool = tool or shutil.which("compute-sanitizer", path=os.path.join(folder, "bin"))
        if not tool:
            return False, "compute-sanitizer was not found: it is part of the CUDA toolkit"
        if not self.options.no_build:
            ok, line = self.build("gpu-check", self.steps)
            if not ok:
                return ok, line
        decoding = [DECODING[i] for i in (0, 4, 5)]
        cases = self.cases_of("gpu-check", SANITIZED, decoding)
        clean = self.results["clean"]  # {run: the commit of its step}, also of earlier calls

        def one(case_and_tool):
            case, name = case_and_tool
            run = f"{name} {name_of(case)}"
            if is_current(case[0], clean.get(run)):
                return "clean"
            program = self.call_of("gpu-check", case)
            call = [tool, "--tool", name, "--error-exitcode", "9", *program]
            # The program then neither counts nor times.
            alone = {"FLASH_STEPS_UNDER_TOOL": "1"}
            status, output = self.shell(run, call, 240, alone)
            summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", output)
            if status == 0 and summary:  # without a summary a run does not count as clean
                clean[run] = here()
                return "clean"
            if status is None:
                return "stopped"
            if status != 0 and not summary:
                # The tool hides the status of a program that refuses: 2, not supported.
                if self.shell(f"alone {name_of(case)}", program, 240)[0] == 2:
                    return "not supported"
            self.say(f"{run}: {summary[-1] if summary else last_line(output)}")
            return "failed"

        work = [(case, name) for case in cases for name in SANITIZER_TOOLS]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            verdicts = list(pool.map(one, work))
        good, failed, stopped = (verdicts.count(word) for word in ("clean", "failed", "stopped"))
        line = f"{good} runs clean, {failed} not" + f", {stopped} {OUT_OF_TIME}" * bool(stopped)
        return good > 0 and not failed and not stopped, line

    def ends_of_the_ladder(self):
        steps = steps_on(find_model(self.results["model_gpu"])["arch"])
        return steps[0], steps[-1]

    def memory(self):
        """A problem whose S and P do not fit: the naive step says so, the last step is right."""
        bytes_here = int(ask_gpu("memory.total").split()[0]) << 20
        b, h = 4, 32
        n = 1024 * math.ceil(math.sqrt(1.1 * bytes_here / (8 * b * h)) / 1024)
        problem = dict(b=b, h=h, n=n, d=64, causal=False)
        (first, last), ok, found = self.ends_of_the_ladder(), True, []
        for step, expected in ((first, 3), (last, 0)):
            case = step, self.variants_of("gpu", step)[-1], problem
            status, line = self.run("gpu", case, "--iters=3", timeout=300, folder="memory")
            if status is None:
                return False, f"{step}: {line}"
            self.say(f"{' '.join([step, *flags(problem)])}: exit status {status}\n  {line}")
            ok = ok and status == expected and (status == 0 or "workspace" in line)
            found.append(f"{step} exit status {status}")
        return ok, f"N={n}: {', '.join(found)}"

    def timing(self):
        """Times against N, for fp32 steps also HBM bytes, of each step's result and all of step 06.
        Runs that would take too long, or whose S and P no longer fit, are no failures."""
        variants = self.variants("gpu")
        last = dict(variants)  # of each step
        early = [
            (step, variant)
            for step, variant in variants
            if number_of(step) == 6 or (number_of(step) < 6 and last[step] == variant)
        ]
        statuses = []
        for step, variant in early:
            seconds = 0
            for p in SCALE:
                if 2 * seconds > PATIENCE:  # B*N is constant: twice the N, twice the work
                    self.say(
                        f"{step} {variant}: N={p['n']} left out, the last took {seconds:.0f} s"
                    )
                    break
                case = step, variant, p
                status, seconds = self.gpu_run(case, "--iters=5", timeout=2 * PATIENCE)
                statuses.append(status)
        good, bad = statuses.count(0), sum(status not in (0, 2, 3) for status in statuses)
        cases = self.cases_of("gpu", TIMED, [])  # `maintain decode` times the others
        cases = [case for case in cases if case[2]["d"] == 64 or number_of(case[0]) > 6]
        more, worse = self.gpu_runs(cases, "--iters=20", "--no-counters")
        timed = join(self.of_problems([*SCALE, *(p for _, _, p in cases)], "gpu"))
        untimed = sum(row.ms is None for row in timed)
        line = f"{good + more} problems timed, {bad + worse} failed"
        return bad + worse + untimed == 0, line

    def peers(self):
        """peers.py, several turns; each call continues."""
        path, made = os.path.join(self.out, "peers.json"), 0
        script = os.path.join(ROOT, "scripts", "peers.py")
        for numbers, *more in PEERS:
            steps = [step for step in self.steps if f"{number_of(step):02}" in numbers]
            if not steps:
                continue
            call = [self.options.python, script, "--steps", " ".join(steps), *more]
            call += [f"--turns={PEERS_TURNS}"]
            call += [f"--budget={max(self.remaining() - 30, 0):.0f}", "--json", path]
            status, output = self.shell(f"peers {steps[0]}", call)
            self.say(output.rstrip())
            if status == 3 and not self.options.sections:  # this machine need not have it
                return True, f"not available: {last_line(output)}"
            if status is None or (status == 1 and "there was no time" in output):
                return False, OUT_OF_TIME
            if status != 0:
                return False, self.said(status, output)
            made += 1
        return True, f"{made} comparisons"

    def everything(self):
        options = self.options
        self.results["model_gpu"] = model_of(self.results["device"]) or "H200"
        words = "{device}, driver {driver}, CUDA {toolkit}, the simulator models {model_gpu}\n"
        self.say(words.format(**self.results))
        chosen = (options.sections or " ".join(OF_FIGURES if options.figures else SECTIONS)).split()
        targets = set(self.steps)
        if "memory" in chosen:
            targets.update(self.ends_of_the_ladder())
        targets = [] if "tests" in chosen else sorted(targets)
        if not options.no_build and not self.section("build", lambda: self.build("gpu", targets)):
            return
        for name in chosen:
            self.section(name, getattr(self, name), once=name in ("tests", "tour", "memory"))


# --- the command ----------------------------------------------------------------------------------


def parse(figures):
    out = os.path.join("build", "figures" if figures else "gpu_check")
    parser = command.parser(__doc__)
    add = parser.add_argument
    add("--steps", metavar='"01 02"', help="by number or by name; default: all")
    add("--sections", metavar='"tests timing"', help=f"of: {' '.join(SECTIONS)}")
    add("--out", metavar="DIR", default=out, help="folder of the results (%(default)s)")
    add("--python", metavar="PATH", default=sys.executable, help="the Python that has PyTorch")
    add("--no-build", action="store_true", help="use the programs as they are built")
    add("--budget", type=float, default=570, metavar="SECONDS", help="no run starts later")
    said = "runs nothing: adds what these folders hold (default: --out) to docs/results, and tables"
    add("--publish", nargs="*", metavar="DIR", help=said)
    options = parser.parse_args()
    options.figures = figures
    for name in (options.sections or "").split():
        if name not in SECTIONS:
            parser.error(f"--sections: '{name}' is not one of {' '.join(SECTIONS)}")
    return options


def publish_all(folders):
    for path in publish(folders, os.path.join(ROOT, "docs", "results")):
        print(os.path.relpath(path))
    maintain = [sys.executable, os.path.join(ROOT, "scripts", "maintain")]
    return max(bool(subprocess.run([*maintain, tool]).returncode) for tool in ("tables", "plots"))


def main(figures=False):
    options = parse(figures)
    if options.publish is not None:
        return publish_all(options.publish or [options.out])
    check = Check(options)
    try:
        check.everything()
    finally:
        check.write()
    return check.summary()
