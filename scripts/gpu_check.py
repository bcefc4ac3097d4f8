#!/usr/bin/env python3
"""Everything that needs a GPU. Started by gpu_check.sh; docs/gpu.md explains it.

A section that fails is recorded and the rest goes on. All results land in one folder:

    results.json    machine, commands, what each section found, and every run under "runs"
    report.txt      what was printed
    gpu/ sim/       what the programs wrote with --json
    logs/           the output of each command
"""

import argparse
import concurrent.futures
import datetime
import glob
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time

from counters_vs_sim import compare_counters, hbm_entry, hbm_text, load_folder, pairs, working_set
from results import (
    BadInput,
    Column,
    Run,
    bytes_text,
    columns_for,
    flops_text,
    get,
    gpu_table,
    join,
    load,
    mark_slowed,
    model_of,
    problem_text,
    repeats_of,
    slowed_peers,
    text_table,
    time_text,
    total,
)
from step_text import ROOT, digest_of

SCRIPTS = os.path.dirname(os.path.abspath(__file__))
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TOOL_ENVIRONMENT = {"FLASH_STEPS_UNDER_TOOL": "1"}  # no counters and no timing of our own beside it

# What --sections chooses from, in the order in which they run.
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

# One row, tile edges, ragged tiles, a full grid, every d, with and without mask, shared key heads
# and Nk != N; the programs refuse what their step lacks.
COUNTER_PROBLEMS = [
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
]
# For the steps that have --smem: a smaller and a larger tile than the step's own.
SMEM_PROBLEMS = [dict(b=1, h=2, n=257, d=64, causal=False, smem=smem) for smem in (32768, 98304)]
SANITIZER_PROBLEMS = [
    dict(b=1, h=2, n=65, d=64, causal=True),
    dict(b=1, h=1, n=130, d=128, causal=False),
    dict(b=1, h=2, hkv=1, n=100, nk=150, d=64, causal=True),
]


# What --figures takes of these: the tables' own problem, two ragged ones, shared key heads.
FIGURES_COUNTER_PROBLEMS = [COUNTER_PROBLEMS[i] for i in (9, 0, 1, 11)]


def series(n, d, causal):
    """FlashAttention's own series: B*N = 16384, H*d = 2048."""
    return dict(b=16384 // n, h=2048 // d, n=n, d=d, causal=causal)


TIMING_PROBLEMS = (
    [series(n, 64, False) for n in (512, 1024, 2048, 4096)]
    + [series(n, 64, True) for n in (1024, 4096)]
    + [series(4096, 128, causal) for causal in (False, True)]
)
SCALE_SIZES = (1024, 2048, 4096, 8192, 16384)
SCALE_PATIENCE = 150  # seconds that one run of the scale section may take
SHORTEST_RUN = 8  # seconds; with fewer left no run begins
# Commands of which there is one for each run: their section says enough of them.
PROGRAM_CALLS = r"(gpu|sim|probes|memory|variants|help|\w+check) "
RESUMED = ("tests", "sanitizer", "memory", "figure2")  # which --figures does once
L2_SHARES = (0.25, 1, 4)  # working sets of the HBM section
# What the tables and texts of README.md and the chapters hold of peers.py: steps and arguments.
FIGURES_PEERS = (
    (("06",), "--backends", "math efficient"),
    (("07", "09", "10"), "--variants=all", "--directions=forward", "--backends", "flash cudnn"),
    (("08",), "--variants=all", "--directions=backward", "--backends", "flash"),
)
FIGURE2_STEPS = ("05_recompute_backward", "06_work_partitioning")


class NoGpu(Exception):
    """One sentence; exit status 3."""


OUT_OF_TIME = "the time was over: the same command goes on from here"


class NoTime(Exception):
    """One sentence: the section is not finished."""


def tag(problem):
    return (
        f"b{problem['b']}_h{problem['h']}_n{problem['n']}_d{problem['d']}"
        + "".join(
            f"_{key}{problem[key]}"
            for key, same in (("hkv", "h"), ("nk", "n"))
            if problem.get(key, problem[same]) != problem[same]
        )
        + ("_causal" if problem["causal"] else "")
        + (f"_m{problem['smem']}" if problem.get("smem") else "")
    )


def flags(problem):
    found = [
        f"--{key}={problem[key]}"
        for key in ("b", "h", "hkv", "n", "nk", "d", "smem")
        if problem.get(key)
    ]
    return found + (["--causal"] if problem["causal"] else [])


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


class Shell:
    """Runs commands, keeps their output in logs/ and remembers them for results.json."""

    def __init__(self, out, deadline, python):
        # No machine's paths in results.
        self.names = ((python, "python3"), (out, "OUT"), (ROOT, "."))
        self.logs = os.path.join(out, "logs")
        os.makedirs(self.logs, exist_ok=True)
        self.deadline = deadline  # of time.monotonic(), or None
        self.commands = []
        self.lock = threading.Lock()

    def remaining(self):
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def __call__(self, name, command, timeout=None, environment=None):
        """(exit status, output); status None: stopped because the time was over."""
        log = os.path.join(self.logs, re.sub(r"[^\w.-]+", "_", name) + ".txt")
        limit = min(timeout or math.inf, max(self.remaining(), 0.1))
        start = time.monotonic()
        with open(log, "w+", encoding="utf-8", errors="replace") as file:
            try:
                status = subprocess.run(
                    command,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    timeout=None if limit == math.inf else limit,
                    env={**os.environ, **(environment or {})},
                ).returncode
            except subprocess.TimeoutExpired:
                status = None
            except OSError as error:
                file.write(f"{command[0]}: {error.strerror}\n")
                status = 127
            file.seek(0)
            output = file.read()
        shown = shlex.join([f"{k}={v}" for k, v in (environment or {}).items()] + command)
        for path, name_of_it in self.names:
            shown = shown.replace(path, name_of_it)
        with self.lock:
            self.commands.append(
                {
                    "name": name,
                    "command": shown,
                    "exit_status": status,
                    "seconds": round(time.monotonic() - start, 2),
                }
            )
        return status, output


class Check:
    def __init__(self, options):
        self.options = options
        self.out = os.path.abspath(options.out)
        self.results = {"schema": 1, "sources": source_digest()}
        self.keep_runs_of_this_text()
        self.earlier_commands = []
        if options.figures:
            self.go_on_from_an_earlier_call()
        deadline = None if options.sim_only else time.monotonic() + options.budget
        self.shell = Shell(self.out, deadline, options.python)
        self.steps = find_steps(options.steps)
        self.chosen = options.sections
        self.done = {}  # what run() gave in this call
        self.report = []
        self.sections = {}
        self.jobs = os.cpu_count() or 1

    def keep_runs_of_this_text(self):
        """Calls for other sections add to a folder; runs of another text have no place in it. What
        the simulator counts depends on the simulator, too."""
        mark = os.path.join(self.out, "sources.sha256")
        same = False
        if os.path.exists(mark):
            with open(mark, encoding="utf-8") as file:
                same = file.read() == self.results["sources"]
        for name in ("gpu", "sim"):
            folder = os.path.join(self.out, name)
            os.makedirs(folder, exist_ok=True)
            for path in glob.glob(os.path.join(folder, "*.json")):
                data = load(path)[0].data
                if data.get("text") != digest_of(data["step"]) or (
                    name == "sim" and not same and folder != self.options.sim_json
                ):
                    os.remove(path)
        with open(mark, "w", encoding="utf-8") as file:
            file.write(self.results["sources"])

    def go_on_from_an_earlier_call(self):
        """What OUT/results.json has of this text is not run again; that one file is enough, so a
        call can go on where one on another machine ended."""
        path = os.path.join(self.out, "results.json")
        if not os.path.exists(path):
            return
        with open(path, encoding="utf-8") as file:
            before = json.load(file)
        mark_slowed([Run(data, "forward") for data in before["runs"]])
        for data in before["runs"]:
            if not data.pop("slowed") and get(data, "device.kind") == "gpu":
                write_json(
                    self.path_of("gpu", data["step"], data["variant"], data["problem"]), data
                )
        self.keep_runs_of_this_text()
        self.earlier_commands = before.get("commands", [])
        for key in ("tests", "sanitizer", "memory", "figure2", "peers", "peers_seconds", "done"):
            if key in before:
                self.results[key] = before[key]
        if "peers" in before:
            self.results["peers"] = without_slowed(before["peers"])

    def path_of(self, folder, step, variant, problem):
        return os.path.join(self.out, folder, f"{step}.{variant}.{tag(problem)}.json")

    def digest_of_steps(self, name):
        """What decides what a section of this call gives."""
        if name == "tests":
            return self.results["sources"]
        return " ".join(digest_of(step) for step in self.steps)

    # --- printing and keeping ---------------------------------------------------------------------

    def say(self, text=""):
        print(text, flush=True)
        self.report.append(text)

    def section(self, name, body, always=False):
        """Runs body() -> (ok, one line). Whatever goes wrong fails this section only; `always`
        is for those that read results and take no time."""
        self.say(f"== {name}")
        start = time.monotonic()
        done = self.results.get("done", {})
        if name in RESUMED and done.get(name) == self.digest_of_steps(name):
            self.sections[name] = {"ok": True, "summary": "done in an earlier call", "seconds": 0}
            self.say("done in an earlier call\n")
            return True
        if self.shell.remaining() <= 0 and not always:
            ok, line = False, "not reached: the time was over"
        else:
            try:
                ok, line = body()
            except (BadInput, NoTime) as error:
                ok, line = False, str(error)
            except Exception as error:  # a bug here must not cost the other sections
                ok, line = False, f"{type(error).__name__}: {error}"
        self.sections[name] = {
            "ok": ok,
            "summary": line,
            "seconds": round(time.monotonic() - start, 1),
        }
        self.say(f"{'ok' if ok else 'FAILED'}: {line}\n")
        if self.options.figures:
            if ok and name in RESUMED:
                self.results["done"] = {**done, name: self.digest_of_steps(name)}
            self.write()
        return ok

    def write(self):
        runs = []
        for folder in (
            os.path.join(self.out, "gpu"),
            self.options.sim_json or os.path.join(self.out, "sim"),
        ):
            for run in load_folder(folder):
                ours = not self.options.figures or run.data["step"] in self.steps
                if run.direction == "forward" and ours:  # the object holds its backward
                    runs.append(run.data)
        self.results.update(
            sections=self.sections,
            commands=self.earlier_commands + self.shell.commands,
            runs=runs,
            notes=roof_notes(runs, self.results.get("device")),
        )
        write_results(os.path.join(self.out, "results.json"), self.results)
        with open(os.path.join(self.out, "report.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(self.report) + "\n")

    # --- programs ---------------------------------------------------------------------------------

    def program(self, preset, step):
        return os.path.join(ROOT, "build", preset, "steps", step)

    def build(self, preset, targets):
        status, output = self.shell(f"configure {preset}", ["cmake", "--preset", preset])
        if status == 0:
            wanted = ["--target", *targets] if targets else []
            status, output = self.shell(
                f"build {preset}",
                ["cmake", "--build", "--preset", preset, "-j", str(self.jobs), *wanted],
            )
        if status == 0:
            return True, f"built {preset}"
        reason = next(
            (line.strip() for line in output.splitlines() if "rror" in line), last_line(output)
        )
        return False, f"{preset} did not build (logs/): {reason}"

    def variants(self, preset):
        """[(step, variant)] in the order of reading."""
        found = []
        for step in self.steps:
            found += [(step, name) for name in self.variants_of(preset, step)]
        return found

    def variants_of(self, preset, step):
        status, text = self.shell(
            f"variants {step}", [self.program(preset, step), "--list-variants"], 60
        )
        if status != 0 or not text.strip():
            raise BadInput(f"{step} --list-variants names none: {last_line(text)}")
        return text.split()

    def counter_cases(self, preset, variants):
        """[(step, variant, problem)], with the problems of --smem where a step has it."""
        cases = []
        for step in self.steps:
            problems = COUNTER_PROBLEMS[:2] if self.options.quick else list(COUNTER_PROBLEMS)
            if self.options.figures:
                cases += [
                    (s, v, p) for s, v in variants if s == step for p in FIGURES_COUNTER_PROBLEMS
                ]
                continue
            _, text = self.shell(f"help {step}", [self.program(preset, step), "--help"], 60)
            if "--smem" in text:
                problems += SMEM_PROBLEMS
            cases += [(s, v, p) for s, v in variants if s == step for p in problems]
        return cases

    def run(self, kind, step, variant, problem, *more, timeout=None, environment=None, folder=None):
        """(exit status, JSON or None, last line of the output); the JSON lands in `folder`, which
        is gpu/ or sim/ where none is named."""
        name = f"{step}.{variant}.{tag(problem)}"
        path = self.path_of(folder or kind, step, variant, problem)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            os.remove(path)  # of an earlier call
        status, output = self.shell(
            f"{folder or kind} {name}",
            [
                self.program(kind, step),
                f"--variant={variant}",
                *flags(problem),
                "--input=normal",
                f"--json={path}",
                *more,
            ],
            timeout,
            environment,
        )
        data = None
        if status in (0, 1) and os.path.exists(path):
            data = load(path)[0].data
            data["text"] = digest_of(step)
            write_json(path, data)
        return status, data, last_line(output)

    def working_set_problems(self, kind, variants, l2_bytes):
        """[(step, variant, problem)]: scratch, where a step keeps S and P, else Q, K, V and O
        together, as large as the wanted shares of the L2 (rounded down)."""
        found = []
        small, large = (dict(b=1, h=1, n=n, d=64, causal=False) for n in (64, 128))
        for step, variant in variants:
            probes = [
                self.run(
                    kind,
                    step,
                    variant,
                    p,
                    timeout=60,
                    environment=TOOL_ENVIRONMENT,
                    folder="probes",
                )[1]
                for p in (small, large)
            ]
            if None in probes:
                continue  # the counters section says why
            scratch = [probe["workspace_bytes"] for probe in probes]
            for share in L2_SHARES[:-1] if self.options.quick else L2_SHARES:
                target = share * l2_bytes
                if scratch[0] and scratch[1] > 3 * scratch[0]:  # grows as N^2
                    n = 64 * int(math.sqrt(target / (scratch[1] / 128**2)) / 64)
                    problem = dict(b=1, h=1, n=n, d=64, causal=False)
                else:
                    element = 4 if get(probes[0], "problem.dtype") == "fp32" else 2
                    heads = max(1, int(target / (4 * 128 * 64 * element)))
                    problem = dict(b=1, h=heads, n=128, d=64, causal=False)
                found.append((step, variant, problem))
        return found

    def simulate(self, cases, workers):
        """Runs cases side by side, one simulator thread each."""

        def one(case):
            step, variant, problem = case
            return case, self.run(
                "sim",
                step,
                variant,
                problem,
                "--workers=1",
                f"--model-gpu={self.results['model_gpu']}",
            )

        with concurrent.futures.ThreadPoolExecutor(max(1, workers)) as pool:
            # The largest first: the last to finish decides.
            ordered = sorted(cases, key=lambda c: -c[2]["h"] * c[2]["n"] ** 2 * c[2]["d"])
            return list(pool.map(one, ordered))

    # --- sections ---------------------------------------------------------------------------------

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
            return False, f"stopped after {len(tests)} tests: the time was over"
        if failed or status != 0 or not tests:
            return False, f"{len(failed)} of {len(tests)} tests failed: {', '.join(failed)}"
        return True, f"all {len(tests)} tests passed"

    def gpu_run(self, case, *more, timeout=120):
        """(exit status, seconds); a problem that this call has run before is not run again."""
        step, variant, problem = case
        name = (step, variant, tag(problem))
        if name not in self.done and self.options.figures:
            path = self.path_of("gpu", step, variant, problem)
            data = load(path)[0].data if os.path.exists(path) else None
            counted = get(data, "traffic.requests") and get(data, "traffic.hbm.measured")
            passes = [data, get(data, "backward")]
            timed = all(get(run, "time.median_ms") for run in passes if run)
            if get(data, "ok") and timed and (counted or "--no-counters" in more):
                self.done[name] = 0, 0.0
            elif self.shell.remaining() < SHORTEST_RUN:
                raise NoTime(OUT_OF_TIME)
        if name not in self.done:
            start = time.monotonic()
            status, _, line = self.run("gpu", step, variant, problem, *more, timeout=timeout)
            if status != 0:
                what = {None: "took too long", 1: "wrong result"}.get(status, f"exit {status}")
                if status != 2:  # 2: this step cannot do it, and says so
                    line = f"{what}: {line}"
                self.say(f"{step} {variant} {tag(problem)}: {line}")
            self.done[name] = status, time.monotonic() - start
        return self.done[name]

    def gpu_runs(self, cases, *more):
        """(how many came out right, how many did not); neither are problems that a step refuses (2)
        or for which this GPU has too little memory, shared memory included (3)."""
        statuses = [self.gpu_run(case, *more)[0] for case in cases]
        return statuses.count(0), sum(status not in (0, 2, 3) for status in statuses)

    def of_this_call(self, problems, runs):
        """The runs of these problems, of the steps that this call is about."""
        wanted = {tag(p) for p in problems}
        return [
            run
            for run in runs
            if run.data["step"] in self.steps and tag(run.data["problem"]) in wanted
        ]

    def gpu_results(self):
        return load_folder(os.path.join(self.out, "gpu"))

    def counters(self, sim_runs):
        problems = FIGURES_COUNTER_PROBLEMS if self.options.figures else COUNTER_PROBLEMS
        problems = problems + SMEM_PROBLEMS
        rows = pairs(
            self.of_this_call(problems, self.gpu_results()), self.of_this_call(problems, sim_runs)
        )
        entries, text, ok = compare_counters(rows)
        self.results["counters"] = entries
        self.say(text)
        return ok, text.splitlines()[-1]

    def hbm(self, cases, sim_runs, l2_bytes):
        wanted = {(step, variant, tag(problem)) for step, variant, problem in cases}
        entries, seen = [], set()
        for row in pairs(self.gpu_results(), sim_runs):
            name = (row.any.data["step"], row.any.variant, tag(row.any.data["problem"]))
            if name in wanted and row.gpu.get("traffic.hbm.measured"):
                seen.add(name)
                entries.append(hbm_entry(row, working_set(row.any), l2_bytes))
        self.results["hbm"] = entries
        self.say(hbm_text(entries))
        promised = [e for e in entries if e["promised"]]
        near = [e for e in promised if e["within_10_percent"]]
        return bool(entries) and seen == wanted and len(near) == len(promised), (
            f"{len(seen)} of {len(wanted)} problems compared; where the model promises 10%, "
            f"{len(near)} of {len(promised)} are within it"
        )

    def sanitizer(self):
        tool = shutil.which("compute-sanitizer")
        for folder in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
            tool = tool or shutil.which("compute-sanitizer", path=os.path.join(folder, "bin"))
        if not tool:
            return False, "compute-sanitizer was not found: it comes with the CUDA toolkit"
        # By its name where that finds it: no machine's paths in results.
        word = "compute-sanitizer" if shutil.which("compute-sanitizer") else tool
        problems = SANITIZER_PROBLEMS[:1] if self.options.quick else SANITIZER_PROBLEMS
        problems = problems[:2] if self.options.figures else problems
        cases = [
            (s, v, p, t)
            for s, v in self.variants("gpu-check")
            for p in problems
            for t in SANITIZER_TOOLS
        ]

        def one(case):
            step, variant, problem, name = case
            status, output = self.shell(
                f"{name} {step}.{variant}.{tag(problem)}",
                [
                    word,
                    "--tool",
                    name,
                    "--error-exitcode",
                    "9",
                    self.program("gpu-check", step),
                    f"--variant={variant}",
                    *flags(problem),
                    "--input=normal",
                ],
                240,
                TOOL_ENVIRONMENT,
            )
            summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", output)
            # 2: this step cannot do the problem. Silence is no clean bill: there must be a summary.
            verdict = (
                "not supported" if status == 2 else "clean" if status == 0 and summary else "FAILED"
            )
            return {
                "step": step,
                "variant": variant,
                "problem": tag(problem),
                "tool": name,
                "exit_status": status,
                "verdict": verdict,
                "summary": summary[-1] if summary else last_line(output),
            }

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            entries = list(pool.map(one, cases))
        self.results["sanitizer"] = entries
        failed = [e for e in entries if e["verdict"] == "FAILED"]
        clean = [e for e in entries if e["verdict"] == "clean"]
        self.say(
            text_table(
                [
                    Column(("", "step"), lambda e: f"{e['step']} {e['variant']}", left=True),
                    Column(("", "problem"), lambda e: e["problem"], left=True),
                    Column(("", "tool"), lambda e: e["tool"], left=True),
                    Column(("", "result"), lambda e: e["verdict"], left=True),
                    Column(("", "summary"), lambda e: e["summary"][:60], left=True),
                ],
                entries,
            )
        )
        return bool(clean) and not failed, f"{len(clean)} runs clean, {len(failed)} not"

    def timing(self, variants):
        problems = TIMING_PROBLEMS[:2] if self.options.quick else TIMING_PROBLEMS
        cases = [
            (s, v, p)
            for s, v in variants
            for p in problems
            # No table has an fp32 step with d = 128, one text has step 06's forward.
            if not self.options.figures or number_of(s) > 6 or p["d"] == 64 or v == "register"
        ]
        good, bad = self.gpu_runs(cases, "--iters=20", "--no-counters")
        rows = join(self.of_this_call(problems, self.gpu_results()))
        untimed = self.keep_times("timing", rows)
        return good > 0 and not bad and not untimed, f"{good} problems timed, {bad} failed"

    def keep_times(self, section, rows):
        """Shows and keeps what was timed; returns how many rows have no time."""
        entries = []
        for row in rows:
            ms = row.gpu.get("time.median_ms")
            roofs = row.gpu.get("roofs") or {}
            fp32 = row.gpu.get("problem.dtype") == "fp32"
            roof = roofs.get("fp32_flops" if fp32 else "bf16_flops")
            rate = row.gpu.get("flops") / (ms * 1e-3) if ms else None
            entries.append(
                {
                    "step": row.any.label,
                    "problem": problem_text(row.any.data["problem"]),
                    "median_ms": ms,
                    "p10_ms": row.gpu.get("time.p10_ms"),
                    "p90_ms": row.gpu.get("time.p90_ms"),
                    "flops_per_s": rate,
                    "share_of_roof": rate / roof if rate and roof else None,
                    "requested_predicted": total(row.gpu.get("traffic.requested.predicted")),
                    "hbm_measured": total(row.gpu.get("traffic.hbm.measured")),
                    "workspace": row.gpu.get("workspace_bytes"),
                }
            )
        self.results[section] = entries
        if entries:
            self.say(
                text_table(
                    [
                        Column(("", "step"), lambda e: e["step"], left=True),
                        Column(("", "problem"), lambda e: e["problem"], left=True),
                        Column(("", "median"), lambda e: time_text(e["median_ms"])),
                        Column(("TFLOP", "per s"), lambda e: flops_text(e["flops_per_s"])),
                        Column(
                            ("of", "roof"),
                            lambda e: (
                                "-"
                                if e["share_of_roof"] is None
                                else f"{100 * e['share_of_roof']:.1f}%"
                            ),
                        ),
                        Column(
                            ("requested", "predicted"),
                            lambda e: bytes_text(e["requested_predicted"]),
                        ),
                        Column(("HBM", "measured"), lambda e: bytes_text(e["hbm_measured"])),
                        Column(("work-", "space"), lambda e: bytes_text(e["workspace"])),
                    ],
                    entries,
                )
            )
        return sum(e["median_ms"] is None for e in entries)

    def scale(self, variants):
        """Time and bytes against N. A step whose S and P no longer fit says so, and one that would
        take too long is left out with a line: neither is a failure."""
        last = dict(variants)  # of each step
        late = [
            (s, v) for s, v in variants if 6 <= number_of(s) <= (6 if self.options.figures else 99)
        ]
        cases = [(s, v, 64) for s, v in variants if (s, v) in late]
        cases += [(s, v, 64) for s, v in variants if (s, v) not in late and last[s] == v]
        if self.options.figures:  # tables hold no other
            cases = [case for case in cases if number_of(case[0]) <= 6]
        else:
            cases += [(s, v, 128) for s, v in late]
        cases.sort(key=lambda case: (case[2], variants.index(case[:2])))
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
                status, seconds = self.gpu_run(
                    (step, variant, series(n, d, False)), "--iters=5", timeout=2 * SCALE_PATIENCE
                )
                statuses.append(status)
        good, bad = statuses.count(0), sum(status not in (0, 2, 3) for status in statuses)
        problems = [series(n, d, False) for n in sizes for d in (64, 128)]
        untimed = self.keep_times("scale", join(self.of_this_call(problems, self.gpu_results())))
        return good > 0 and not bad and not untimed, (
            f"{good} problems right, {statuses.count(3)} that do not fit this GPU, {bad} failed"
        )

    def memory(self):
        """A problem whose S and P do not fit this GPU: the naive step must say so in one sentence,
        the last one must be right."""
        bytes_here = int(ask_gpu("memory.total").split()[0]) << 20
        b, h = 4, 32
        n = 1024 * math.ceil(math.sqrt(1.1 * bytes_here / (8 * b * h)) / 1024)
        problem = dict(b=b, h=h, n=n, d=64, causal=False)
        entries = []
        ladder = numbered_steps()
        for step, expected in ((ladder[0], 3), (ladder[-1], 0)):
            variant = self.variants_of("gpu", step)[-1]
            status, data, line = self.run(
                "gpu", step, variant, problem, "--iters=3", timeout=300, folder="memory"
            )
            entries.append(
                {
                    "step": step,
                    "text": digest_of(step),
                    "variant": variant,
                    "problem": tag(problem),
                    "exit_status": status,
                    "expected": expected,
                    "line": line,
                    "workspace_bytes": get(data, "workspace_bytes"),
                    "median_ms": get(data, "time.median_ms"),
                }
            )
            self.say(f"{' '.join([step, *flags(problem)])}: exit status {status}\n  {line}")
        self.results["memory"] = entries
        naive, fused = entries
        ok = naive["exit_status"] == 3 and "scratch" in naive["line"] and fused["exit_status"] == 0
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
                if self.shell.remaining() < 1.1 * seconds.get(name, SHORTEST_RUN):
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
            return False, "the GPU was slowed down in some runs: the same command makes them again"
        return True, f"{made} calls made, {self.options.peers_runs} runs of each problem"

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
            mine = [r for r in mine if r.get("text") == digest_of(step)]
            counts.append(min((len(repeats_of(row)) for row in mine), default=0))
        return min(counts)

    def figure2(self):
        return self.script("figure2", "--backend", "gpu")

    def script(self, name, *arguments):
        """Runs scripts/NAME.py and keeps the JSON that it writes."""
        path = os.path.join(self.out, name + ".json")
        if os.path.exists(path):
            os.remove(path)  # of an earlier call
        status, output = self.shell(
            name,
            [
                self.options.python,
                os.path.join(ROOT, "scripts", name + ".py"),
                *arguments,
                "--json",
                path,
            ],
        )
        self.say(output.rstrip())
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.results[name] = json.load(file)
        if status == 3 and not self.options.sections_named:  # nothing that this machine must have
            return True, f"not here: {last_line(output)}"
        rows = len(get(self.results, f"{name}.rows") or [])
        if status != 0:
            what = "stopped: the time was over" if status is None else last_line(output)
            return False, f"{what} ({rows} rows kept)"
        return True, f"{rows} rows"

    def comparison(self, sim_runs):
        rows = join(self.gpu_results() + sim_runs)
        wrong = [run for row in rows for run in (row.sim, row.gpu) if run and not run.get("ok")]
        columns, common = columns_for(rows)
        self.say(text_table(columns, rows) + (f"\n{common}" if common else ""))
        return not wrong, f"{len(rows)} problems, {len(wrong)} wrong"

    # --- the two ways to run ----------------------------------------------------------------------

    def sim_only(self):
        """The simulator's side alone, on any machine, for --sim-json elsewhere."""
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
            done = self.simulate(cases, self.jobs)
            failed = [(c, r) for c, r in done if r[0] not in (0, 2)]
            for (step, variant, problem), (status, _, line) in failed:
                self.say(f"{step} {variant} {tag(problem)}: exit {status}: {line}")
            with open(
                os.path.join(self.out, "sim", "sources.sha256"), "w", encoding="utf-8"
            ) as file:
                file.write(self.results["sources"] + "\n")
            return not failed, f"{len(done) - len(failed)} of {len(done)} problems simulated"

        self.section("simulate", runs)

    def everything(self):
        self.results.update(machine())
        self.results["model_gpu"] = self.options.model_gpu or model_of(self.results["device"])
        model = self.results["model_gpu"] and find_model(self.results["model_gpu"])
        self.say(
            f"{self.results['device']}, driver {self.results['driver']}, CUDA "
            f"{self.results['toolkit']}, the simulator models "
            f"{self.results['model_gpu'] or 'no GPU: name one with --model-gpu'}\n"
        )
        chosen = self.chosen
        targets = set(self.steps)
        if "memory" in chosen:
            targets.update((numbered_steps()[0], numbered_steps()[-1]))
        if "figure2" in chosen:
            targets.update(FIGURE2_STEPS)
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

        # What "scale" has run with counters, "timing" need not run again without.
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
            f"{good} problems right, {bad} failed, "
            f"{len(cases) - good - bad} that their step refuses"
        )

    def start_simulator(self, cases):
        """Returns a function that waits and gives (ok, line, runs)."""
        if self.options.sim_json:

            def made_before():
                return (*self.check_digest(), load_folder(self.options.sim_json))

            return made_before
        if not self.results["model_gpu"]:
            return lambda: (False, "no model of this GPU: add a row to common/data/gpus.json", [])

        def work():
            if not self.options.no_build:
                ok, line = self.build("sim", self.steps)
                if not ok:
                    return (
                        False,
                        (
                            line + "; pass --sim-json with a folder that gpu_check.sh "
                            "--sim-only made on another machine"
                        ),
                        [],
                    )
            done = self.simulate(cases, self.jobs - 4)
            failed = [r for _, r in done if r[0] not in (0, 2)]
            return (
                not failed,
                f"{len(done) - len(failed)} of {len(done)} problems simulated",
                load_folder(os.path.join(self.out, "sim")),
            )

        future = concurrent.futures.ThreadPoolExecutor(1).submit(work)
        return future.result

    def check_digest(self):
        path = os.path.join(self.options.sim_json, "sources.sha256")
        try:
            with open(path, encoding="utf-8") as file:
                recorded = file.read().strip()
        except OSError:
            return False, f"{path} is missing: make the folder with --sim-only"
        if recorded != self.results["sources"]:
            return False, f"{self.options.sim_json} was made from other sources: make it again"
        return True, "made before, from the same sources"  # results name no machine's folders


# --- what is there ------------------------------------------------------------------------------


def find_steps(wanted):
    known = sorted(
        name
        for name in os.listdir(os.path.join(ROOT, "steps"))
        if os.path.exists(os.path.join(ROOT, "steps", name, "main.cu"))
    )
    if not wanted:
        return known
    found = []
    for word in wanted.split():
        matching = [s for s in known if s == word or s.startswith(word + "_")]
        if not matching:
            raise BadInput(f"no step '{word}'; there are {', '.join(known)}")
        found += matching
    return found


def number_of(step):
    """6 of "06_work_partitioning", 0 of a step of the user's own."""
    found = re.match(r"\d+(?=_)", step)
    return int(found[0]) if found else 0


def numbered_steps():
    """The ladder, without steps of the user's own."""
    found = find_steps(None)
    return [step for step in found if number_of(step)] or found


def source_digest():
    """Of everything that decides what a step counts, the simulator included: equal sources count
    equally. What a GPU measures is decided by less: step_text.py."""
    digest = hashlib.sha256()
    for top in ("steps", "common"):
        for folder, folders, files in os.walk(os.path.join(ROOT, top)):
            folders[:] = sorted(set(folders) - {"exercises"})  # no step depends on them
            for name in sorted(files):
                if name.endswith((".cuh", ".cu", ".h", ".cpp", ".json")):
                    path = os.path.join(folder, name)
                    digest.update(os.path.relpath(path, ROOT).encode())
                    with open(path, "rb") as file:
                        digest.update(file.read())
    return digest.hexdigest()


def find_model(name):
    for row in gpu_table():
        if row["name"] == name:
            return row
    raise BadInput(f"--model-gpu {name}: common/data/gpus.json has no such row")


def ask_gpu(fields):
    """What nvidia-smi says of the first GPU: values with commas between."""
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        answer = None
    if answer is None or answer.returncode != 0 or not answer.stdout.strip():
        raise NoGpu(
            "no GPU found (nvidia-smi does not answer); --sim-only makes the simulator's "
            "side on any machine"
        )
    return answer.stdout.splitlines()[0]


def machine():
    device, driver = (part.strip() for part in ask_gpu("name,driver_version").rsplit(",", 1))
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    try:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    except OSError:
        raise NoGpu("no nvcc found: install the CUDA toolkit, 12.4 or newer") from None
    version = re.search(r"release [\d.]+, V([\d.]+)", text)
    return {
        "device": device,
        "driver": driver,
        "toolkit": version[1] if version else None,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


# --- results.json -------------------------------------------------------------------------------


def write_json(path, data):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)


def write_results(path, results):
    """One line per run, and per row of peers: the file is long, and changes by runs."""
    peers = results.get("peers") or {}
    lists = {'"runs": []': results["runs"], '"rows": []': peers.get("rows")}
    short = {**results, "runs": []}
    if peers.get("rows"):
        short["peers"] = {**peers, "rows": []}
    text = json.dumps(short, indent=1)
    for mark, rows in lists.items():
        if rows:
            before, after = text.rsplit(mark, 1)
            lines = ",\n".join("  " + json.dumps(row) for row in rows)
            text = f"{before}{mark[:-1]}\n{lines}\n ]{after}"
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text + "\n")
    os.replace(path + ".part", path)


ROOF_NAMES = {
    "copy_bytes_per_s": "copy",
    "fp32_flops": "FMA",
    "bf16_flops": "bf16 matmul",
    "fp32_matmul_flops": "fp32 matmul",
}


def roof_notes(runs, device):
    """Sentences that say when the roofs of these runs look wrong: a GPU that something slowed down
    while they were measured, and most likely the steps with them."""
    found = [run["roofs"] for run in runs if run.get("roofs")]
    model = model_of(device or "")
    # The data sheet's figure is all SMs' lanes times two times the highest clock.
    peak = model and find_model(model)["fp32_flops"]
    notes = []
    rates = [roofs["fp32_flops"] for roofs in found if roofs.get("fp32_flops")]
    if peak and rates and min(rates) < 0.9 * peak:
        slow = sum(rate < 0.9 * peak for rate in rates)
        notes.append(
            f"{slow} of {len(rates)} runs have an FMA roof under 90% of the "
            f"{flops_text(peak)} TFLOP/s of this GPU's highest clock (least: "
            f"{flops_text(min(rates))}): the GPU was slowed down, measure them again."
        )
    for key, name in ROOF_NAMES.items():
        rates = [roofs[key] for roofs in found if roofs.get(key)]
        if rates and max(rates) > 1.05 * min(rates):
            unit = (
                bytes_text
                if key == "copy_bytes_per_s"
                else (lambda rate: f"{flops_text(rate)} TFLOP")
            )
            notes.append(
                f"The {name} roof differs between runs, {unit(min(rates))}/s to "
                f"{unit(max(rates))}/s: their times are not to be compared."
            )
    return notes


def identity(row):
    """What makes a later row take the place of an earlier one."""
    if "step" in row and isinstance(row.get("problem"), dict):
        run = Run(row, "forward")
        # A simulated run is the same wherever it was made, and its device's name has the host's
        # cores; what it depends on is the GPU that it models.
        return (run.key, run.kind, run.get("device.name" if run.kind == "gpu" else "model_gpu"))
    return tuple(row.get(key) for key in ("name", "step", "variant", "problem", "tool", "figure"))


def merge(paths):
    """The results of several calls as one: lists by their rows, a later row in place of an earlier
    one; all else from the later file. Sections of the same name are both kept, in one."""
    merged = {}
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                results = json.load(file)
        except (OSError, ValueError) as error:
            raise BadInput(f"{path}: {error}") from None
        if isinstance(results, dict) and "rounds" in results:  # written by peers.py --json
            results = {
                "device": results.get("device"),
                "sections": {},
                "peers": results,
                "commands": [
                    {"name": "peers", "command": command} for command in results.get("commands", [])
                ],
            }
        if not isinstance(results, dict) or "sections" not in results:
            raise BadInput(f"{path} is no results.json of gpu_check.sh, and no peers.json")
        for key in ("device", "sources"):
            if merged and key in results and merged.get(key, results[key]) != results[key]:
                print(f"note: {path} has another '{key}' than the file before it")
        for key, value in results.items():
            old = merged.get(key)
            if key == "notes":
                continue  # made anew of all runs
            if key == "commands":
                merged[key] = (old or []) + value
            elif key == "sections":
                merged[key] = merge_sections(old or {}, value)
            elif key == "peers" and old:
                merged[key] = merge_peers(old, value, path)
            elif isinstance(value, list):
                rows = {identity(row): row for row in old or []}
                rows.update({identity(row): row for row in value})
                merged[key] = list(rows.values())
            else:
                merged[key] = value
    merged["runs"] = merged.get("runs", [])
    merged.pop("done", None)  # of one folder
    merged["notes"] = roof_notes(merged["runs"], merged.get("device"))
    return merged


def peers_repeats(row, run=None):
    """What each run found, in a row of one run or of several."""
    if "repeats" in row:
        return row["repeats"]
    keys = ("ms", "flops_per_s", "of_matmul", "ratios", "text")
    return [{"run": run, **{key: row.get(key) for key in keys}}]


def merge_peers(old, new, path):
    """The rows of both. Runs of the same text add up: a row holds their medians and, under
    `repeats`, each of them. A run of another text, or the same run again, takes the place of
    those before it."""
    for key in ("schema", "device", "torch", "rounds", "iters"):
        if old.get(key) != new.get(key):
            raise BadInput(
                f"{path}: its peers have another '{key}' ({new.get(key)}) than those "
                f"before ({old.get(key)}): one table cannot hold both"
            )

    def place(row):
        return tuple(row.get(key) for key in ("step", "variant", "direction", "problem"))

    rows = {}
    for result in (old, new):
        later = {}  # a backend has a row beside each step
        for row in result["rows"]:
            later.setdefault(place(row), []).append(row)
        for key, same in later.items():
            runs = [run for row in same for run in peers_repeats(row, result.get("run"))]
            ids = {run["run"] for run in runs}
            before = [run for run in rows.pop(key, [[], []])[1] if run["run"] not in ids]
            text = runs[-1].get("text")
            kept = [run for run in before if run.get("text") == text and None not in ids]
            rows[key] = same[-1], [run for run in kept if run["run"]] + runs
    return {
        **new,
        "run": None,
        "commands": list(dict.fromkeys(old.get("commands", []) + new.get("commands", []))),
        "notes": list(dict.fromkeys(old["notes"] + new["notes"])),
        "rows": [median_row(row, runs) for row, runs in rows.values()],
    }


def without_slowed(found):
    """These results of peers.py without the runs on a slowed GPU."""
    slowed, rows = slowed_peers([found]), []
    for row in found["rows"]:
        runs = [run for run in repeats_of(row) if not slowed(found, row, run)]
        if len(runs) == len(repeats_of(row)):
            rows.append(row)
        elif runs:
            rows.append(median_row(row, runs))
    return {**found, "rows": rows}


def median_row(row, runs):
    if len(runs) == 1 and runs[0]["run"] is None:
        return row
    row = {**row, "repeats": runs}
    for key in ("ms", "flops_per_s", "of_matmul"):
        values = [run[key] for run in runs if run.get(key) is not None]
        row[key] = statistics.median(values) if values else None
    names = dict.fromkeys(name for run in runs for name in run["ratios"])
    row["ratios"] = {
        name: statistics.median(run["ratios"][name] for run in runs if name in run["ratios"])
        for name in names
    }
    return row


def merge_sections(old, new):
    sections = dict(old)
    for name, section in new.items():
        before = sections.get(name)
        sections[name] = (
            section
            if before is None
            else {
                "ok": before["ok"] and section["ok"],
                "summary": f"{before['summary']}; {section['summary']}",
                "seconds": round(before["seconds"] + section["seconds"], 1),
            }
        )
    return sections


# --- docs/results -------------------------------------------------------------------------------

# What a section found in runs that are in the file themselves, and what no table or plot reads.
DERIVED = ("counters", "hbm", "timing", "scale", "sanitizer", "sources", "peers_seconds")
UNREAD = ("kernels", "sites", "parent", "host_ms", "slowed", "damage", "finding")


def slim(tree):
    """Without what no table, plot or comparison of stored results reads; figures of 6 digits."""
    if isinstance(tree, dict):
        dropped = (*UNREAD, "buffers", "per_element", "rmse", "message", "input_note")
        return {key: slim(value) for key, value in tree.items() if key not in dropped}
    if isinstance(tree, list):
        return [slim(value) for value in tree]
    return float(f"{tree:.6g}") if isinstance(tree, float) else tree


def publish(paths, folder):
    """docs/results/<gpu>.json and <gpu>_bf16.json of what these files hold; returns their paths."""
    merged = merge(paths)
    for key in DERIVED:
        merged.pop(key, None)
    # A call that was cut short is no news when a later one has done its work.
    merged["commands"] = [
        c
        for c in {c["command"]: c for c in merged.get("commands", [])}.values()
        if not re.match(PROGRAM_CALLS, c["name"])
    ]
    model = model_of(merged.get("device") or "")
    if not model:
        raise BadInput(f"'{merged.get('device')}' is no row of common/data/gpus.json: add it there")
    written = []
    for suffix, fp32 in (("", True), ("_bf16", False)):
        part = slim(merged)
        part["runs"] = [
            run for run in part["runs"] if (get(run, "problem.dtype") == "fp32") == fp32
        ]
        if part.get("peers"):
            rows = [row for row in part["peers"]["rows"] if (row["dtype"] == "fp32") == fp32]
            part["peers"] = {**part["peers"], "rows": rows}
            if not rows:
                part.pop("peers")
        if not fp32:
            part.pop("figure2", None)
            part.pop("memory", None)
        if not part["runs"] and not part.get("peers"):
            continue
        part["notes"] = roof_notes(part["runs"], part["device"])
        path = os.path.join(folder, f"{model.lower()}{suffix}.json")
        write_results(path, part)
        written.append(path)
    return written


def parse():
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", metavar='"01 02"', help="by number or by name; default: all")
    parser.add_argument(
        "--sections", metavar='"tests timing"', help=f"some of: {' '.join(SECTIONS)}; default: all"
    )
    parser.add_argument(
        "--out",
        default=os.path.join("build", "gpu_check"),
        metavar="DIR",
        help="folder for the results (default %(default)s)",
    )
    parser.add_argument(
        "--sim-json",
        metavar="DIR",
        help="the sim/ folder that --sim-only made from the same sources",
    )
    parser.add_argument(
        "--sim-only", action="store_true", help="no GPU: only make the simulator's side in DIR/sim"
    )
    parser.add_argument(
        "--model-gpu",
        metavar="NAME",
        help="whose L2 is modelled (default: this GPU's; --sim-only: H200)",
    )
    parser.add_argument(
        "--merge",
        nargs="+",
        metavar="results.json",
        help="no run: make one results.json in --out from those of several calls, "
        "and from what peers.py --json wrote",
    )
    parser.add_argument(
        "--publish",
        nargs="+",
        metavar="results.json",
        help="no run: write docs/results/<gpu>.json and <gpu>_bf16.json from those of several "
        "calls, and fill all tables, figures and the picture",
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="the Python that has PyTorch, for the section peers",
    )
    parser.add_argument(
        "--figures",
        action="store_true",
        help="only what README.md and the chapters show; goes on where the last call ended",
    )
    parser.add_argument(
        "--peers-runs",
        type=int,
        default=3,
        metavar="N",
        help="with --figures: how often peers.py runs (default %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller problems")
    parser.add_argument("--no-build", action="store_true", help="the programs are already built")
    parser.add_argument(
        "--budget",
        type=float,
        default=570,
        metavar="SECONDS",
        help="sections that start later are not run (default %(default)s)",
    )
    options = parser.parse_args()
    options.sections_named = options.sections is not None
    if options.figures and not options.sections:  # no table shows what hbm compares
        options.sections = " ".join(name for name in SECTIONS if name != "hbm")
    options.sections = (options.sections or " ".join(SECTIONS)).split()
    for name in options.sections:
        if name not in SECTIONS:
            parser.error(f"--sections: '{name}' is none of {' '.join(SECTIONS)}")
    if options.sim_json and options.sim_only:
        parser.error("--sim-json and --sim-only exclude each other")
    if options.sim_json:
        options.sim_json = os.path.abspath(options.sim_json)
        if not os.path.isdir(options.sim_json):
            parser.error(f"--sim-json {options.sim_json}: no such folder")
    return options


def main():
    options = parse()
    if options.merge:
        merged = merge(options.merge)
        os.makedirs(options.out, exist_ok=True)
        path = os.path.join(options.out, "results.json")
        write_results(path, merged)
        print(f"{path}: {len(merged['runs'])} runs of {len(options.merge)} files")
        for note in merged["notes"]:
            print(f"note: {note}")
        return 0
    if options.publish:
        for path in publish(options.publish, os.path.join(ROOT, "docs", "results")):
            print(os.path.relpath(path))
        status = 0
        for script in ("tables.py", "plots.py"):
            status |= subprocess.run([sys.executable, os.path.join(SCRIPTS, script)]).returncode
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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadInput as error:
        print(f"gpu_check.sh: {error}", file=sys.stderr)
        sys.exit(2)
    except NoGpu as error:
        print(f"gpu_check.sh: {error}", file=sys.stderr)
        sys.exit(3)
