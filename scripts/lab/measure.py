"""Everything that needs a GPU. docs/gpu.md explains it.

    gpu_check.sh              sections, listed below: each is recorded, one that fails does not
                              stop the next
    maintain measure          the same with --figures, into build/figures: only what README.md and
                              the chapters show; repeat until it is done, each call resumes
    maintain measure --publish [results.json ...]    docs/results, tables, figures, pictures

All results are in one folder:

    results.json    machine, commands, what each section found, and every run under "runs"
    report.txt      what was printed
    gpu/ sim/       what the programs wrote with --json
    logs/           the output of each command

Exit status: 0 all right, 1 a section failed or is left, 2 bad use, 3 no GPU or tool.
"""

import concurrent.futures
import math
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass

from flash_steps import command
from flash_steps.commits import here, is_current
from flash_steps.files import read_json, read_text, require_writable, write_rows, write_text
from flash_steps.gpu_table import find_model, model_of
from flash_steps.problems import flags, series, tag
from flash_steps.results import get, join, join_for_reading, load_folder, screen_of
from flash_steps.standing import repeats_of
from flash_steps.steps import ROOT, number_of, numbered_steps
from flash_steps.text import Column, entry, text_table

from . import figure2
from .counters_vs_sim import compare_counters, hbm_entry, hbm_text, pairs, working_set
from .gpus import ask_gpu, machine
from .merge import merge, merge_peers, publish, without_slowed
from .session import OUT_OF_TIME, SHORTEST_RUN, NoTime, Session, last_line, name_of

TOOL_ENVIRONMENT = {"FLASH_STEPS_UNDER_TOOL": "1"}  # no counters and no timing of our own beside it
SECTIONS = ("tests", "counters", "hbm", "sanitizer", "scale", "timing", "memory", "peers")
SECTIONS += ("figure2",)
# In which order they run; both counters and hbm need "runs". Of --figures what tables need.
ORDER = ("tests", "runs", "sanitizer", "scale", "timing", "memory", "peers", "figure2")
FIGURES_ORDER = ("scale", "timing", "peers", "runs", "figure2", "memory", "tests", "sanitizer")


@dataclass
class Problems:
    """What a section runs of each step that computes attention, or that decodes from a cache. The
    programs refuse what their step lacks."""

    attention: list
    decoding: list
    quick: int  # so many with --quick
    figures: tuple  # the places of those that --figures takes

    def of(self, decodes, options):
        problems = self.decoding if decodes else self.attention
        if options.quick:
            return problems[: self.quick]
        return [problems[i] for i in self.figures[decodes]] if options.figures else problems


# One row, tile edges, ragged tiles, a full grid, every d, with and without mask, shared key heads
# and Nk != N. Of a cache: one query, lengths with an empty entry and one of a single key, pages,
# splits, several queries with the mask, groups of one and of two bands.
COUNTERS = Problems(
    [
        dict(b=1, h=2, n=257, d=64, causal=False),
        dict(b=1, h=2, n=257, d=64, causal=True),
        dict(b=1, h=2, n=1, d=64, causal=False),
        dict(b=1, h=2, n=17, d=64, causal=True),
        dict(b=1, h=2, n=64, d=64, causal=False),
        dict(b=2, h=1, n=100, d=32, causal=True),
        dict(b=2, h=1, n=100, d=96, causal=False),
        dict(b=2, h=1, n=100, d=128, causal=False),
        dict(b=2, h=1, n=257, d=128, causal=True),
        dict(b=1, h=2, n=1024, d=64, causal=False),
        dict(b=1, h=2, n=1024, d=64, causal=True),
        dict(b=1, h=4, hkv=2, n=113, nk=203, d=64, causal=True),
        dict(b=2, h=2, hkv=1, n=300, nk=20, d=128, causal=True),
    ],
    [
        dict(b=1, h=8, hkv=2, n=1, nk=257, d=64, causal=False),
        dict(b=4, h=8, hkv=2, n=1, nk=1500, d=128, causal=False, lengths=[0, 1, 700, 1500])
        | dict(page=16),
        dict(b=2, h=8, hkv=2, n=1, nk=3000, d=128, causal=False),
        dict(b=1, h=4, hkv=2, n=3, nk=1025, d=128, causal=True),
        dict(b=1, h=32, hkv=2, n=2, nk=2000, d=128, causal=True),
        dict(b=4, h=8, hkv=2, n=1, nk=1500, d=128, causal=False, lengths=[0, 1, 700, 1500]),
        dict(b=2, h=8, hkv=4, n=16, nk=1000, d=64, causal=True, lengths=[1000, 333], page=64),
        dict(b=1, h=4, hkv=1, n=1, nk=4096, d=128, causal=False, page=256),
        dict(b=1, h=2, n=1, nk=1, d=64, causal=False),
    ],
    quick=2,
    figures=((9, 0, 1, 11), (1, 2, 3, 5, 6)),
)
# For the steps that have --smem: a smaller and a larger tile than the step's own.
SMEM_PROBLEMS = [dict(b=1, h=2, n=257, d=32, causal=False, smem=smem) for smem in (32768, 98304)]
SANITIZER = Problems(
    [
        dict(b=1, h=2, n=65, d=64, causal=True),
        dict(b=1, h=1, n=130, d=128, causal=False),
        dict(b=1, h=2, hkv=1, n=100, nk=150, d=64, causal=True),
    ],
    [COUNTERS.decoding[i] for i in (1, 4, 6)],
    quick=1,
    figures=((0, 1), (0, 1)),
)
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Of decoding tables show what `maintain decode` measures.
TIMING = Problems(
    [series(n, 64, False) for n in (512, 1024, 2048, 4096)]
    + [series(n, 64, True) for n in (1024, 4096)]
    + [series(4096, 128, causal) for causal in (False, True)],
    [
        dict(b=b, h=32, hkv=8, n=1, nk=nk, d=128, causal=False)
        for b, nk in ((1, 4096), (1, 65536), (32, 4096))
    ],
    quick=2,
    figures=(range(8), range(3)),
)
SCALE_SIZES = (1024, 2048, 4096, 8192, 16384)
SCALE_PATIENCE = 150  # seconds that one run of the scale section may take
L2_SHARES = (0.25, 1, 4)  # working sets of the HBM section
# What the tables and texts of README.md and the chapters hold of peers.py: steps and arguments.
FIGURES_PEERS = (
    (("06",), "--backends", "math efficient"),
    (("07", "09", "10"), "--variants=all", "--directions=forward", "--backends", "flash cudnn"),
    (("08",), "--variants=all", "--directions=backward", "--backends", "flash"),
    (("11",), "--variants=all", "--directions=backward", "--backends", "flash cudnn"),
    (("12",), "--variants=all", "--directions=forward", "--backends", "flash cudnn"),
)


SANITIZER_COLUMNS = [
    Column(("", "step"), lambda e: f"{e['step']} {e['variant']}", left=True),
    entry("problem"),
    entry("tool"),
    Column(("", "result"), lambda e: e["verdict"], left=True),
    Column(("", "summary"), lambda e: e["summary"][:60], left=True),
]


class Check(Session):
    """The sections. Each returns (ok, one line) and keeps its rows in `results`."""

    def supports(self, preset, step, what):
        """Whether the step takes "lengths" (it decodes from a cache), or "smem"."""
        return self.described(preset, step)["supports"][what]

    def cases_of(self, preset, variants, problems):
        """[(step, variant, problem)]"""
        return [
            (step, variant, p)
            for step, variant in variants
            for p in problems.of(self.supports(preset, step, "lengths"), self.options)
        ]

    def counter_cases(self, preset, variants):
        """With the problems of --smem where a step has it."""
        cases = self.cases_of(preset, variants, COUNTERS)
        if not self.options.figures:
            cases += [
                (step, variant, p)
                for step, variant in variants
                for p in SMEM_PROBLEMS
                if self.supports(preset, step, "smem")
            ]
        return cases

    def working_set_problems(self, kind, variants, l2_bytes):
        """[(step, variant, problem)]: workspace, where a step keeps S and P, else Q, K, V and O
        together, as large as the wanted shares of the L2 (rounded down); the cache where a step
        decodes."""
        found = []
        shares = L2_SHARES[:-1] if self.options.quick else L2_SHARES
        small, large = (dict(b=1, h=1, n=n, d=64, causal=False) for n in (64, 128))
        for step, variant in variants:
            if self.supports(kind, step, "lengths"):  # K and V of two heads
                cache = dict(b=1, h=8, hkv=2, n=1, d=128, causal=False)
                sizes = [int(share * l2_bytes / (2 * 2 * 128 * 2)) for share in shares]
                found += [(step, variant, {**cache, "nk": nk}) for nk in sizes]
                continue
            how = dict(timeout=60, environment=TOOL_ENVIRONMENT, folder="probes")
            probes = [self.run(kind, (step, variant, p), **how)[1] for p in (small, large)]
            if None in probes:
                continue  # the counters section says why
            need = [probe["workspace_bytes"] for probe in probes]
            for share in shares:
                target = share * l2_bytes
                if need[0] and need[1] > 3 * need[0]:  # grows as N^2
                    n = 64 * int(math.sqrt(target / (need[1] / 128**2)) / 64)
                    problem = dict(b=1, h=1, n=n, d=64, causal=False)
                else:
                    element = 4 if get(probes[0], "problem.dtype") == "fp32" else 2
                    heads = max(1, int(target / (4 * 128 * 64 * element)))
                    problem = dict(b=1, h=heads, n=128, d=64, causal=False)
                found.append((step, variant, problem))
        return found

    def tests(self):
        status, output = self.shell("ctest", ["ctest", "--preset", "gpu", "-j", "4"])
        tests = re.findall(
            r"^\s*\d+/\d+ Test\s+#\d+: (\S+) \.*\s*(.+?)\s+([\d.]+) sec", output, re.MULTILINE
        )
        self.results["tests"] = [
            {"name": n, "result": r.strip("* "), "seconds": float(s)} for n, r, s in tests
        ]
        failed = [n for n, r, _ in tests if "Passed" not in r]
        if status is None:
            return False, f"stopped after {len(tests)} tests: out of time"
        if failed or status != 0 or not tests:
            return False, f"{len(failed)} of {len(tests)} tests failed: {', '.join(failed)}"
        return True, f"all {len(tests)} tests passed"

    def counters(self, cases, sim_runs):
        problems = [problem for _, _, problem in cases]
        rows = pairs(
            self.of_this_call(problems, self.gpu_results()), self.of_this_call(problems, sim_runs)
        )
        entries, text, ok = compare_counters(rows)
        self.results["counters"] = entries
        self.say(text)
        return ok, text.splitlines()[-1]

    def hbm(self, cases, sim_runs, l2_bytes):
        wanted = set(map(name_of, cases))
        entries, seen = [], set()
        for row in pairs(self.gpu_results(), sim_runs):
            name = name_of((row.any.data["step"], row.any.variant, row.any.data["problem"]))
            if name in wanted and row.gpu.get("traffic.hbm.measured"):
                seen.add(name)
                entries.append(hbm_entry(row, working_set(row.any), l2_bytes))
        self.results["hbm"] = entries
        self.say(hbm_text(entries))
        promised = [e for e in entries if e["promised"]]
        near = [e for e in promised if e["within_10_percent"]]
        return bool(entries) and seen == wanted and len(near) == len(promised), (
            f"{len(seen)} of {len(wanted)} problems compared; where the model should be within "
            f"10%, {len(near)} of {len(promised)} are"
        )

    def sanitizer(self):
        tool = shutil.which("compute-sanitizer")
        for folder in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
            tool = tool or shutil.which("compute-sanitizer", path=os.path.join(folder, "bin"))
        if not tool:
            return False, "compute-sanitizer was not found: it is part of the CUDA toolkit"
        # By its name where that finds it: no machine's paths in results.
        word = "compute-sanitizer" if shutil.which("compute-sanitizer") else tool
        cases = self.cases_of("gpu-check", self.variants("gpu-check"), SANITIZER)

        def one(case_and_tool):
            case, name = case_and_tool
            program = self.call_of("gpu-check", case)
            call = [word, "--tool", name, "--error-exitcode", "9", *program]
            status, output = self.shell(f"{name} {name_of(case)}", call, 240, TOOL_ENVIRONMENT)
            summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", output)
            if status not in (0, None) and not summary:
                # The tool hides the status of a program that refuses: 2, not supported.
                if self.shell(f"alone {name_of(case)}", program, 240)[0] == 2:
                    status = 2
            verdict = {None: "stopped", 2: "not supported"}.get(status, "FAILED")
            if status == 0 and summary:  # without a summary a run is not clean
                verdict = "clean"
            return {
                "step": case[0],
                "variant": case[1],
                "problem": tag(case[2]),
                "tool": name,
                "exit_status": status,
                "verdict": verdict,
                "summary": summary[-1] if summary else self.said(status, output),
            }

        work = [(case, name) for case in cases for name in SANITIZER_TOOLS]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            entries = list(pool.map(one, work))
        self.results["sanitizer"] = entries
        verdicts = [entry["verdict"] for entry in entries]
        clean, failed, stopped = (verdicts.count(word) for word in ("clean", "FAILED", "stopped"))
        self.say(text_table(SANITIZER_COLUMNS, entries))
        line = f"{clean} runs clean, {failed} not"
        if stopped:
            last = [entry for entry in entries if entry["verdict"] == "stopped"][-1]
            line += f", {stopped} {last['summary']}"
        return clean > 0 and not failed and not stopped, line

    def timing(self):
        def wanted(step, variant, p):
            """No table has an fp32 step with d = 128, one text has step 06's forward."""
            late = number_of(step) > 6 or (number_of(step), variant) == (6, "registers")
            return not self.options.figures or p["d"] == 64 or late

        cases = self.cases_of("gpu", self.variants_here, TIMING)
        cases = [case for case in cases if wanted(*case)]
        good, bad = self.gpu_runs(cases, "--iters=20", "--no-counters")
        untimed = self.untimed([p for _, _, p in cases])
        return good > 0 and not bad and not untimed, f"{good} problems timed, {bad} failed"

    def untimed(self, problems):
        """How many rows of these have no time."""
        rows = join(self.of_this_call(problems, self.gpu_results()))
        return sum(row.ms is None for row in rows)

    def scale(self):
        """Time and bytes against N. A step whose S and P no longer fit says so, and one that would
        take too long is left out with a line. Neither is a failure."""
        figures, variants = self.options.figures, self.variants_here
        last = dict(variants)  # of each step
        late = [(s, v) for s, v in variants if 6 <= number_of(s) <= (6 if figures else 99)]
        cases = [(s, v, 64) for s, v in variants if (s, v) in late or last[s] == v]
        if figures:  # tables hold no other
            cases = [case for case in cases if number_of(case[0]) <= 6]
        else:
            cases += [(s, v, 128) for s, v in late]
        sizes = SCALE_SIZES[:2] if self.options.quick else SCALE_SIZES
        statuses = []
        for step, variant, d in cases:
            seconds = 0
            for n in sizes:
                if 2 * seconds > SCALE_PATIENCE:  # B*N is constant: twice the N, twice the work
                    self.say(
                        f"{step} {variant} d={d}: N={n} left out, N={n // 2} took {seconds:.0f} s"
                    )
                    break
                case = step, variant, series(n, d, False)
                status, seconds = self.gpu_run(case, "--iters=5", timeout=2 * SCALE_PATIENCE)
                statuses.append(status)
        good, bad = statuses.count(0), sum(status not in (0, 2, 3) for status in statuses)
        untimed = self.untimed([series(n, d, False) for n in sizes for d in (64, 128)])
        return good > 0 and not bad and not untimed, (
            f"{good} problems right, {statuses.count(3)} do not fit this GPU, {bad} failed"
        )

    def memory(self):
        """A problem whose S and P do not fit this GPU: the naive step must say so in one sentence,
        and the last step must be right."""
        bytes_here = int(ask_gpu("memory.total").split()[0]) << 20
        b, h = 4, 32
        n = 1024 * math.ceil(math.sqrt(1.1 * bytes_here / (8 * b * h)) / 1024)
        problem = dict(b=b, h=h, n=n, d=64, causal=False)
        entries = []
        ladder = numbered_steps()
        for step, expected in ((ladder[0], 3), (ladder[-1], 0)):
            variant = self.variants_of("gpu", step)[-1]
            case = step, variant, problem
            status, data, line = self.run("gpu", case, "--iters=3", timeout=300, folder="memory")
            entries.append(
                {
                    "step": step,
                    "commit": here(),
                    "variant": variant,
                    "problem": tag(problem),
                    "exit_status": status,
                    "expected": expected,
                    "line": line,
                    "workspace_bytes": get(data, "workspace_bytes"),
                    "median_ms": get(data, "time.median_ms"),
                }
            )
            if status is None:
                return False, f"{step}: {line}"
            self.say(f"{' '.join([step, *flags(problem)])}: exit status {status}\n  {line}")
        self.results["memory"] = entries
        naive, fused = entries
        ok = (
            naive["exit_status"] == 3 and "workspace" in naive["line"] and fused["exit_status"] == 0
        )
        return ok, (
            f"N={n}: {naive['step']} exit status {naive['exit_status']}, {fused['step']} "
            f"exit status {fused['exit_status']}"
        )

    def peers(self):
        """peers.py; with --figures what the tables need, as often as --peers-runs says."""
        if not self.options.figures:
            return self.script("peers", "--steps", " ".join(self.steps))
        slices = [
            (steps, arguments)
            for numbers, *arguments in FIGURES_PEERS
            if (steps := [s for s in self.steps if f"{number_of(s):02}" in numbers])
        ]
        seconds = self.results.setdefault("peers_seconds", {})
        made = 0
        for wanted in range(1, self.options.peers_runs + 1):
            for steps, arguments in slices:
                if self.runs_of_peers(steps, arguments) >= wanted:
                    continue
                name = " ".join(steps)
                if self.remaining() < 1.1 * seconds.get(name, SHORTEST_RUN):
                    raise NoTime(OUT_OF_TIME)
                start = time.monotonic()
                ok, line = self.run_of_peers("--steps", name, *arguments)
                if not ok:
                    return False, f"run {wanted}: {line}"
                seconds[name] = time.monotonic() - start
                made += 1
                self.write()
        found = self.results.get("peers")
        if found and without_slowed(found) != found:
            return False, "the GPU was slowed down in some runs: run the same command again"
        return True, f"{made} calls, {self.options.peers_runs} runs of each problem"

    def run_of_peers(self, *arguments):
        """One more run, beside those before it; whatever happens to it, those are kept."""
        before = kept = self.results.pop("peers", None)
        try:
            ok, line = self.script("peers", *arguments)
            new = self.results.get("peers") if ok else None
            if new:
                kept = merge_peers(before, new, "peers") if before else new
            return ok, line
        finally:
            self.results.pop("peers", None)
            if kept:
                self.results["peers"] = kept

    def runs_of_peers(self, steps, arguments):
        """How many runs of these steps' present text there are, on a GPU at full speed: a call is
        kept as a whole."""
        direction = "backward" if "--directions=backward" in arguments else "forward"
        rows = without_slowed(self.results["peers"])["rows"] if "peers" in self.results else []
        counts = []
        for step in steps:
            mine = [r for r in rows if r["step"] == step and r["direction"] == direction]
            mine = [r for r in mine if is_current(step, r.get("commit"))]
            counts.append(min((len(repeats_of(row)) for row in mine), default=0))
        return min(counts)

    def figure2(self):
        return self.script("figure2", "--backend", "gpu")

    def script(self, name, *arguments):
        """Runs scripts/NAME.py and keeps the JSON that it writes."""
        path = os.path.join(self.out, name + ".json")
        if os.path.exists(path):
            os.remove(path)  # of an earlier call
        script = os.path.join(ROOT, "scripts", name + ".py")
        status, output = self.shell(name, [self.options.python, script, *arguments, "--json", path])
        self.say(output.rstrip())
        if os.path.exists(path):
            self.results[name] = read_json(path)
        if status == 3 and not self.options.sections_named:  # this machine need not have it
            return True, f"not available: {last_line(output)}"
        rows = len(get(self.results, f"{name}.rows") or [])
        if status != 0:
            return False, f"{self.said(status, output)} ({rows} rows kept)"
        return True, f"{rows} rows"

    def comparison(self, sim_runs):
        rows = join_for_reading(self.gpu_results() + sim_runs)
        wrong = [run for row in rows for run in (row.sim, row.gpu) if run and not run.get("ok")]
        self.say(screen_of(rows))
        return not wrong, f"{len(rows)} problems, {len(wrong)} wrong"

    # --- the two ways to run ---

    def sim_only(self):
        """Only the simulator's side, on any machine, for --sim-json elsewhere."""
        self.results["model_gpu"] = self.options.model_gpu or "H200"
        l2_bytes = find_model(self.results["model_gpu"])["l2_bytes"]
        if not self.options.no_build:
            if not self.section("build", lambda: self.build("sim", self.steps)):
                return

        def runs():
            variants, chosen = self.variants("sim"), self.options.sections
            cases = self.counter_cases("sim", variants) if "counters" in chosen else []
            if "hbm" in chosen:
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
        modelled = self.results["model_gpu"] or "no GPU: choose one with --model-gpu"
        self.say(
            "{device}, driver {driver}, CUDA {toolkit}, ".format(**self.results)
            + f"the simulator models {modelled}\n"
        )
        chosen = self.options.sections
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

        counted, sets = [], []

        def prepare():
            self.variants_here = self.variants("gpu")
            if "counters" in chosen:
                counted.extend(self.counter_cases("gpu", self.variants_here))
            if "hbm" in chosen and model:
                l2_bytes = model["l2_bytes"]
                sets.extend(self.working_set_problems("gpu", self.variants_here, l2_bytes))
            problems = len(counted) + len(sets)
            return True, f"{len(self.variants_here)} variants, {problems} problems to count"

        if not self.section("variants", prepare):
            return
        both = counted + sets
        simulated = self.start_simulator(both) if both else None
        self.runs = lambda: self.counted_runs(both)
        # What "scale" ran with counters, "timing" does not run again without them.
        for name in FIGURES_ORDER if self.options.figures else ORDER:
            if both if name == "runs" else name in chosen:
                if name == "sanitizer" and not self.options.no_build:
                    self.section("build gpu-check", lambda: self.build("gpu-check", self.steps))
                self.section(name, getattr(self, name))
        sim_runs = []

        def wait():
            ok, line, runs = simulated()
            sim_runs.extend(runs)
            return ok, line

        for name, wanted, body in (
            ("simulator", both, wait),
            ("counters", "counters" in chosen, lambda: self.counters(counted, sim_runs)),
            ("hbm", "hbm" in chosen and model, lambda: self.hbm(sets, sim_runs, model["l2_bytes"])),
            (
                "comparison",
                {"counters", "hbm", "timing", "scale"}.intersection(chosen),
                lambda: self.comparison(sim_runs),
            ),
        ):
            if wanted:
                self.section(name, body, always=True)

    def counted_runs(self, cases):
        good, bad = self.gpu_runs(cases, "--iters=5")
        refused = len(cases) - good - bad
        line = f"{good} problems right, {bad} failed, {refused} refused by their step"
        return good > 0 and not bad, line

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


# --- the command ----------------------------------------------------------------------------------


def parse(figures):
    out = os.path.join("build", "figures" if figures else "gpu_check")
    parser = command.parser(__doc__)
    for flag, how in (
        ("--steps", dict(metavar='"01 02"', help="by number or by name; default: all")),
        ("--sections", dict(metavar='"tests timing"', help=f"of: {' '.join(SECTIONS)}")),
        ("--out", dict(metavar="DIR", default=out, help="folder of the results (%(default)s)")),
        ("--sim-json", dict(metavar="DIR", help="the sim/ folder of --sim-only, of these sources")),
        ("--sim-only", dict(action="store_true", help="without a GPU: the simulator's side only")),
        ("--model-gpu", dict(metavar="NAME", help="whose L2 is modelled; default: this GPU's")),
        (
            "--merge",
            dict(
                nargs="+",
                metavar="results.json",
                help="runs nothing: one results.json in --out of those of several calls, and of "
                "peers.py --json",
            ),
        ),
        (
            "--publish",
            dict(
                nargs="*",
                metavar="results.json",
                help="runs nothing: docs/results/<gpu>.json and <gpu>_bf16.json of several calls "
                "(default: the one in --out), and all tables, figures and pictures",
            ),
        ),
        (
            "--python",
            dict(metavar="PATH", default=sys.executable, help="the Python that has PyTorch"),
        ),
        (
            "--figures",
            dict(
                action="store_true",
                default=figures,
                help="only what README.md and the chapters show; resumes",
            ),
        ),
        (
            "--peers-runs",
            dict(type=int, default=3, metavar="N", help="with --figures; %(default)s"),
        ),
        ("--quick", dict(action="store_true", help="fewer and smaller problems")),
        ("--no-build", dict(action="store_true", help="use the programs as they are built")),
        (
            "--budget",
            dict(type=float, default=570, metavar="SECONDS", help="no section starts later"),
        ),
    ):
        parser.add_argument(flag, **how)
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


def merge_into(path, paths):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    require_writable("--out", path, *paths)
    merged = merge(paths)
    write_rows(path, merged)
    print(f"{path}: {len(merged['runs'])} runs from {len(paths)} files")
    for note in merged["notes"]:
        print(f"note: {note}")
    return 0


def publish_all(paths):
    for path in publish(paths, os.path.join(ROOT, "docs", "results")):
        print(os.path.relpath(path))
    maintain = [sys.executable, os.path.join(ROOT, "scripts", "maintain")]
    return max(bool(subprocess.run([*maintain, tool]).returncode) for tool in ("tables", "plots"))


def main(figures=False):
    options = parse(figures)
    results = os.path.join(options.out, "results.json")
    if options.merge:
        return merge_into(results, options.merge)
    if options.publish is not None:
        return publish_all(options.publish or [results])
    check = Check(options)
    try:
        if options.sim_only:
            check.sim_only()
        else:
            check.everything()
    finally:
        if check.sections:
            check.write()
    return check.summary()
