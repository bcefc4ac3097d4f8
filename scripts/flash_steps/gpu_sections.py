"""The sections of gpu_check.sh. Each returns (ok, one line) and keeps its rows in `results`."""

import concurrent.futures
import math
import os
import re
import shutil
import time

from .commits import here, is_current
from .counters_vs_sim import compare_counters, hbm_entry, hbm_text, pairs, working_set
from .files import read_json
from .gpu_session import OUT_OF_TIME, SHORTEST_RUN, TOOL_ENVIRONMENT, NoTime, Session, name_of
from .gpus import ask_gpu
from .merge import merge_peers, without_slowed
from .problems import flags, problem_text, series, tag
from .results import get, join, join_for_reading, screen_of, total
from .shell import last_line
from .standing import repeats_of
from .steps import ROOT, number_of, numbered_steps
from .text import Column, bytes_text, entry, flops_text, percent_text, text_table, time_text

SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
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
SMEM_PROBLEMS = [dict(b=1, h=2, n=257, d=32, causal=False, smem=smem) for smem in (32768, 98304)]
# For the steps that decode from a cache (--lengths): one query, lengths with an empty entry and one
# of a single key, pages, splits, several queries with the mask, groups of one and of two bands.
DECODE_PROBLEMS = [
    dict(b=1, h=8, hkv=2, n=1, nk=257, d=64, causal=False),
    dict(b=4, h=8, hkv=2, n=1, nk=1500, d=128, causal=False, lengths=[0, 1, 700, 1500], page=16),
    dict(b=2, h=8, hkv=2, n=1, nk=3000, d=128, causal=False),
    dict(b=1, h=4, hkv=2, n=3, nk=1025, d=128, causal=True),
    dict(b=1, h=32, hkv=2, n=2, nk=2000, d=128, causal=True),
    dict(b=4, h=8, hkv=2, n=1, nk=1500, d=128, causal=False, lengths=[0, 1, 700, 1500]),
    dict(b=2, h=8, hkv=4, n=16, nk=1000, d=64, causal=True, lengths=[1000, 333], page=64),
    dict(b=1, h=4, hkv=1, n=1, nk=4096, d=128, causal=False, page=256),
    dict(b=1, h=2, n=1, nk=1, d=64, causal=False),
]
SANITIZER_PROBLEMS = [
    dict(b=1, h=2, n=65, d=64, causal=True),
    dict(b=1, h=1, n=130, d=128, causal=False),
    dict(b=1, h=2, hkv=1, n=100, nk=150, d=64, causal=True),
]
DECODE_SANITIZER_PROBLEMS = [DECODE_PROBLEMS[i] for i in (1, 4, 6)]
# What --figures takes of these: the tables' own problem, two ragged ones, shared key heads.
FIGURES_COUNTER_PROBLEMS = [COUNTER_PROBLEMS[i] for i in (9, 0, 1, 11)]
FIGURES_DECODE_PROBLEMS = [DECODE_PROBLEMS[i] for i in (1, 2, 3, 5, 6)]
TIMING_PROBLEMS = (
    [series(n, 64, False) for n in (512, 1024, 2048, 4096)]
    + [series(n, 64, True) for n in (1024, 4096)]
    + [series(4096, 128, causal) for causal in (False, True)]
)
# Decoding has tables of its own: maintain decode.
DECODE_TIMING_PROBLEMS = [
    dict(b=b, h=32, hkv=8, n=1, nk=nk, d=128, causal=False)
    for b, nk in ((1, 4096), (1, 65536), (32, 4096))
]
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
TIME_COLUMNS = [
    entry("step"),
    entry("problem"),
    Column(("", "median"), lambda e: time_text(e["median_ms"])),
    Column(("", "TFLOP/s"), lambda e: flops_text(e["flops_per_s"])),
    Column(("of", "roof"), lambda e: percent_text(e["share_of_roof"])),
    Column(("requested", "predicted"), lambda e: bytes_text(e["requested_predicted"])),
    Column(("HBM", "measured"), lambda e: bytes_text(e["hbm_measured"])),
    Column(("work-", "space"), lambda e: bytes_text(e["workspace"])),
]


class Sections(Session):
    def has_flag(self, preset, step, flag):
        """Whether the program's --help shows it: a step that decodes has --lengths."""
        _, text = self.shell(f"help {step}", [self.program(preset, step), "--help"], 60)
        return flag in text

    def counter_cases(self, preset, variants):
        """[(step, variant, problem)], with the problems of --smem where a step has it."""
        cases = []
        for step in self.steps:
            decodes = self.has_flag(preset, step, "--lengths")
            problems = DECODE_PROBLEMS if decodes else COUNTER_PROBLEMS
            problems = problems[: 2 if self.options.quick else None]
            if self.options.figures:
                problems = FIGURES_DECODE_PROBLEMS if decodes else FIGURES_COUNTER_PROBLEMS
            elif self.has_flag(preset, step, "--smem"):
                problems = problems + SMEM_PROBLEMS
            cases += [(s, v, p) for s, v in variants if s == step for p in problems]
        return cases

    def working_set_problems(self, kind, variants, l2_bytes):
        """[(step, variant, problem)]: workspace, where a step keeps S and P, else Q, K, V and O
        together, as large as the wanted shares of the L2 (rounded down); the cache where a step
        decodes."""
        found = []
        shares = L2_SHARES[:-1] if self.options.quick else L2_SHARES
        small, large = (dict(b=1, h=1, n=n, d=64, causal=False) for n in (64, 128))
        for step, variant in variants:
            if self.has_flag(kind, step, "--lengths"):  # K and V of two heads
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

    def counters(self, sim_runs):
        figures = self.options.figures
        problems = FIGURES_COUNTER_PROBLEMS if figures else COUNTER_PROBLEMS + SMEM_PROBLEMS
        problems = problems + (FIGURES_DECODE_PROBLEMS if figures else DECODE_PROBLEMS)
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
        most = 1 if self.options.quick else 2 if self.options.figures else 3
        decode = {step for step in self.steps if self.has_flag("gpu-check", step, "--lengths")}
        cases = [
            ((s, v, p), t)
            for s, v in self.variants("gpu-check")
            for p in (DECODE_SANITIZER_PROBLEMS if s in decode else SANITIZER_PROBLEMS)[:most]
            for t in SANITIZER_TOOLS
        ]

        def one(case_and_tool):
            case, name = case_and_tool
            step, variant, problem = case
            call = [word, "--tool", name, "--error-exitcode", "9", *self.call_of("gpu-check", case)]
            status, output = self.shell(f"{name} {name_of(case)}", call, 240, TOOL_ENVIRONMENT)
            summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", output)
            if (
                status not in (0, None) and not summary
            ):  # the tool hides the status of a program that refuses
                alone = self.call_of("gpu-check", case)
                if self.shell(f"alone {name_of(case)}", alone, 240)[0] == 2:
                    status = 2
            # 2: this step does not support the problem. Without a summary a run is not clean.
            verdict = (
                "stopped"
                if status is None
                else "not supported"
                if status == 2
                else "clean"
                if status == 0 and summary
                else "FAILED"
            )
            return {
                "step": step,
                "variant": variant,
                "problem": tag(problem),
                "tool": name,
                "exit_status": status,
                "verdict": verdict,
                "summary": summary[-1] if summary else self.said(status, output),
            }

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            entries = list(pool.map(one, cases))
        self.results["sanitizer"] = entries
        failed = [e for e in entries if e["verdict"] == "FAILED"]
        clean = [e for e in entries if e["verdict"] == "clean"]
        stopped = [e for e in entries if e["verdict"] == "stopped"]
        self.say(text_table(SANITIZER_COLUMNS, entries))
        line = f"{len(clean)} runs clean, {len(failed)} not"
        line += f", {len(stopped)} {stopped[-1]['summary']}" if stopped else ""
        return bool(clean) and not failed and not stopped, line

    def timing(self, variants):
        few = 2 if self.options.quick else None
        decode = {step for step in self.steps if self.has_flag("gpu", step, "--lengths")}
        problems = TIMING_PROBLEMS[:few] + DECODE_TIMING_PROBLEMS[:few]
        cases = [
            (s, v, p)
            for s, v in variants
            for p in (DECODE_TIMING_PROBLEMS if s in decode else TIMING_PROBLEMS)[:few]
            # No table has an fp32 step with d = 128, one text has step 06's forward.
            if not self.options.figures
            or p["d"] == 64
            or number_of(s) > 6
            or (number_of(s), v) == (6, "registers")
        ]
        good, bad = self.gpu_runs(cases, "--iters=20", "--no-counters")
        rows = join(self.of_this_call(problems, self.gpu_results()))
        untimed = self.keep_times("timing", rows)
        return good > 0 and not bad and not untimed, f"{good} problems timed, {bad} failed"

    def scale(self, variants):
        """Time and bytes against N. A step whose S and P no longer fit says so, and one that would
        take too long is left out with a line. Neither is a failure."""
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
            f"{good} problems right, {statuses.count(3)} do not fit this GPU, {bad} failed"
        )

    def keep_times(self, section, rows):
        """Shows and keeps what was timed; returns how many rows have no time."""
        entries = []
        for row in rows:
            roofs = row.gpu.get("roofs") or {}
            fp32 = row.gpu.get("problem.dtype") == "fp32"
            roof = roofs.get("fp32_flops" if fp32 else "bf16_flops")
            if row.gpu.get("fp8"):
                roof = None  # not measured
            entries.append(
                {
                    "step": row.any.label,
                    "problem": problem_text(row.any.data["problem"]),
                    "median_ms": row.ms,
                    "p10_ms": row.gpu.get("time.p10_ms"),
                    "p90_ms": row.gpu.get("time.p90_ms"),
                    "flops_per_s": row.flops_per_s,
                    "share_of_roof": row.flops_per_s / roof if row.flops_per_s and roof else None,
                    "requested_predicted": total(row.gpu.get("traffic.requested.predicted")),
                    "hbm_measured": row.hbm_measured,
                    "workspace": row.gpu.get("workspace_bytes"),
                }
            )
        self.results[section] = entries
        if entries:
            self.say(text_table(TIME_COLUMNS, entries))
        return sum(e["median_ms"] is None for e in entries)

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
